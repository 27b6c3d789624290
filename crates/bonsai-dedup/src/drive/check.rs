//! The invariants of the [module](super), as code.

use std::collections::HashSet;

use super::pages::{Cell, NIL};
use super::{Content, DriveMap, Key};

impl<K: Key> DriveMap<K> {
    /// Checks every invariant, in time proportional to what is known: for tests.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check_invariants(&self) {
        let mut seen = HashSet::new();
        for content in self.contents.all() {
            self.check_stack(content, &mut seen);
        }
        let mut with_content = 0;
        let mut with_zero = 0;
        for volume in self.volumes.numbers() {
            for (block, content) in self.known(volume) {
                match content {
                    Content::Zero => with_zero += 1,
                    Content::Key(_) => with_content += 1,
                }
                assert!(
                    self.volumes.slot(volume, block).is_some(),
                    "1: a known block has a place"
                );
            }
        }
        assert_eq!(
            seen.len(),
            with_content,
            "1: every known block is in one stack"
        );
        assert_eq!(
            self.known_blocks(),
            (with_content + with_zero) as u64,
            "4: known blocks are counted"
        );
        self.check_room();
    }

    fn check_stack(&self, content: u32, seen: &mut HashSet<u32>) {
        let head = self.contents.head(content);
        assert_ne!(head, NIL, "2: a content has a block");
        let group = self.group_of(head);
        let found = self.find(self.contents.key(content), group);
        assert_eq!(
            found,
            Some(content),
            "3: found by the index, and the only one"
        );
        let mut slot = head;
        while slot != NIL {
            assert!(seen.insert(slot), "1: a block is in one stack, once");
            assert_eq!(
                self.pages.cell(slot),
                Cell::Content(content),
                "1: it knows its stack"
            );
            assert_eq!(self.group_of(slot), group, "2: of one group");
            slot = self.pages.next(slot);
        }
    }

    fn check_room(&self) {
        for (page, kept, counted) in self.pages.counts() {
            assert_eq!(kept, counted, "4: page {page} counts what it knows");
            assert_ne!(
                kept, 0,
                "4: page {page} is given back when nothing is known"
            );
        }
        assert_eq!(
            self.pages.kept_nexts(),
            self.pages.counted_nexts(),
            "5: pointers"
        );
        let others = self.bytes() - self.volumes.bytes();
        assert!(
            others + self.volumes.counted_bytes() <= self.config.max_bytes,
            "5: {} bytes are more than {}",
            self.bytes(),
            self.config.max_bytes
        );
        assert_eq!(
            self.volumes.bytes(),
            self.volumes.counted_bytes(),
            "5: folders"
        );
    }
}
