//! Going over contents and their blocks in slices, so that nobody waits long for the map meanwhile.
//!
//! # Rules
//! - A slice takes a bounded number of steps; a step is a block, or a number of a content that is not in use.
//! - What changes between two slices may be missed, or seen twice; what is told of a block is true at that moment.
//! - A walk that is to see one content in so many goes by their numbers, which are given out as contents come:
//!   which content a guest has next to another says nothing about who else has it.

use super::pages::{Cell, NIL};
use super::{DriveMap, Key, Volume};

/// How far a walk is.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    content: u32,
    /// The next block of that, or [`NIL`].
    slot: u32,
    /// The next content.
    next: u32,
    every: u32,
}

impl Walk {
    /// Over one content in `every`; 0 counts as 1.
    #[must_use]
    pub const fn new(every: u32) -> Self {
        let every = if every == 0 { 1 } else { every };
        Self {
            content: 0,
            slot: NIL,
            next: every / 2,
            every,
        }
    }
}

impl<K: Key> DriveMap<K> {
    /// Goes on with a walk: `each` is told of the blocks of contents that are not zeroes, one content after the
    /// other, by the content's number. False at the end.
    pub fn walk(
        &self,
        walk: &mut Walk,
        steps: usize,
        mut each: impl FnMut(u32, Volume, u64),
    ) -> bool {
        for _ in 0..steps {
            if walk.slot == NIL {
                if walk.next >= self.contents.numbers() {
                    return false;
                }
                walk.content = walk.next;
                walk.next = walk.next.saturating_add(walk.every);
                let head = self.contents.head_of(walk.content);
                walk.slot = head.unwrap_or(NIL);
            }
            let slot = walk.slot;
            if self.pages.cell_of(slot) == Some(Cell::Content(walk.content)) {
                if self.volumes.is_alive(self.pages.owner(slot)) {
                    let (volume, block) = self.pages.place(slot);
                    each(walk.content, volume, block);
                }
                walk.slot = self.pages.next(slot);
            } else {
                // It has left the stack since, and with it is lost what was beneath.
                walk.slot = NIL;
            }
        }
        true
    }
}
