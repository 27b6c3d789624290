//! The invariants of the [module](super), as code.

use std::collections::{HashMap, HashSet};

use super::contents::Contents;
use super::pages::{Cell, NIL, PAGE_BYTES};
use super::volumes::Usage;
use super::{DriveMap, Key, Known, Volume};

impl<K: Key> DriveMap<K> {
    /// Checks every invariant, in time proportional to what is known: for tests.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check_invariants(&self) {
        self.contents.check_unused();
        let mut usages = HashMap::new();
        self.check_pages(&mut usages);
        let mut seen = HashSet::new();
        for content in self.contents.all() {
            self.check_stack(content, &mut seen);
            let owner = self.pages.owner(self.contents.head(content));
            usages.entry(owner).or_default().contents += 1;
        }
        for &content in &self.condemned {
            let mut slot = self.contents.condemned_top(content);
            while slot != NIL {
                assert!(seen.insert(slot), "1: a block is in one stack, once");
                assert_eq!(self.pages.cell(slot), Cell::Content(content), "1: its own");
                slot = self.pages.next(slot);
            }
        }
        let blocks: usize = self.pages.all().map(|page| page.kept.1).sum();
        let blocks = blocks + seen.len();
        let counted: usize = self.pages.all().map(|page| page.kept.0 + page.kept.1).sum();
        assert_eq!(
            blocks, counted,
            "1: every block with a content is in a stack"
        );
        self.check_volumes(&usages);
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

    fn check_pages(&self, usages: &mut HashMap<(Volume, u32), Usage>) {
        let mut with_nexts = 0;
        for page in self.pages.all() {
            let number = page.number;
            assert_eq!(page.kept, page.counted, "4: page {number} counts");
            assert_ne!(
                page.kept.0, 0,
                "4: page {number} is given back when it has no contents"
            );
            with_nexts += usize::from(page.has_nexts);
            let usage = usages.entry(page.owner).or_default();
            usage.pages += 1;
            usage.nexts += u32::from(page.has_nexts);
            usage.blocks += page.kept.0 as u64;
            usage.zeroes += page.kept.1 as u64;
        }
        assert_eq!(self.pages.kept_nexts(), with_nexts, "5: pointers");
    }

    fn check_volumes(&self, usages: &HashMap<(Volume, u32), Usage>) {
        for (volume, entry) in self.volumes.numbers().zip(&self.volumes.entries) {
            let wanted = usages.get(&(volume, entry.life)).copied();
            assert_eq!(
                entry.usage,
                wanted.unwrap_or_default(),
                "5: what {volume:?} holds"
            );
            let counted = entry.table.counted();
            assert_eq!(
                (entry.table.bytes(), entry.table.zeroes()),
                counted,
                "5: the table of {volume:?}"
            );
            let mut known = Vec::new();
            let mut from = Some(0);
            while let Some(at) = from {
                from = self.known_slice(volume, at, 7, &mut known);
            }
            let blocks: u64 = known.iter().map(|of: &Known<K>| of.blocks).sum();
            let condemned = self.condemned_of(volume);
            assert_eq!(blocks + condemned, entry.known(), "4: of {volume:?}");
            self.check_ring(entry.ring, wanted.unwrap_or_default().pages);
        }
    }

    fn condemned_of(&self, volume: Volume) -> u64 {
        let mut count = 0;
        for &content in &self.condemned {
            let mut slot = self.contents.condemned_top(content);
            while slot != NIL {
                let owner = self.pages.owner(slot);
                count += u64::from(owner.0 == volume && self.volumes.is_alive(owner));
                slot = self.pages.next(slot);
            }
        }
        count
    }

    fn check_ring(&self, ring: u32, pages: u32) {
        let mut count = u32::from(pages > 0);
        let mut at = ring;
        while count > 0 && self.pages.after(at) != ring && count <= pages {
            count += 1;
            at = self.pages.after(at);
        }
        assert_eq!(count, pages, "4: pages of a ring");
    }

    fn check_room(&self) {
        let bytes = self.bytes();
        let most = self.config.max_bytes;
        assert!(bytes <= most, "5: {bytes} bytes are more than {most}");
        let tables = self.volumes.entries.iter();
        let tables: usize = tables.map(|entry| entry.table.bytes()).sum();
        assert_eq!(self.volumes.table_bytes(), tables, "5: tables");
    }

    /// What a volume holds of the map, in bytes.
    #[must_use]
    pub fn held(&self, volume: Volume) -> usize {
        let entry = self.volumes.get(volume);
        entry.map_or(0, |entry| entry.held(Contents::<K>::EACH))
    }

    /// What a page takes: by so much at most two volumes of one share differ.
    #[must_use]
    pub const fn page_bytes() -> usize {
        PAGE_BYTES
    }
}
