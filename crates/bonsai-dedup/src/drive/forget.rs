//! What is forgotten at once, and taken apart later.
//!
//! # Rules
//! - A volume that is forgotten begins another life. Its old pages stay in the stacks of their contents, where they
//!   are passed over, until [`DriveMap::reclaim`] has taken them out.
//! - A content whose stack is too long to take a block out of its middle is *condemned*: it is found no more, its blocks
//!   count as evicted, and none of them can be learned until it was taken out.
//! - Both are done in slices, and whoever learns does one of them: what is still to be done never grows.

use super::pages::{BLOCKS_BITS, Cell, NIL, NO_PAGE};
use super::table::Table;
use super::{DriveMap, Key, Volume};

/// Blocks of another life that a look into a stack passes over, at most.
const PASSED: usize = 64;

/// Steps that giving entries of contents back counts as.
const SHRINK_COST: u32 = 512;

/// What is left of a life of a volume.
#[derive(Debug)]
pub(super) struct Dying {
    pub(super) owner: (Volume, u32),
    /// A page of its ring, or [`NO_PAGE`].
    pub(super) ring: u32,
    table: Table,
}

impl<K: Key> DriveMap<K> {
    /// All that is known of a volume is out of sight.
    pub(super) fn end_life(&mut self, volume: Volume) {
        let life = self.volumes.get(volume).map_or(0, |entry| entry.life);
        let Some((table, ring)) = self.volumes.end_life(volume) else {
            return;
        };
        if ring != NO_PAGE || table.bytes() > 0 {
            self.dying_bytes += table.bytes();
            self.dying.push(Dying {
                owner: (volume, life),
                ring,
                table,
            });
        }
    }

    /// Takes apart what was forgotten, in about so many steps; whether there was anything to do.
    pub fn reclaim(&mut self, steps: u32) -> bool {
        let mut left = steps;
        let mut any = false;
        while left > 0 {
            let taken = if let Some(content) = self.condemned.last().copied() {
                self.reclaim_block(content);
                1
            } else if let Some(of) = self.dying.last() {
                match of.ring {
                    NO_PAGE => self.reclaim_leaf(),
                    page => self.forget_page(page),
                }
            } else if self.contents.is_mostly_unused() && self.shrink() {
                SHRINK_COST
            } else {
                break;
            };
            left = left.saturating_sub(taken.max(1));
            any = true;
        }
        any
    }

    /// The top block of a condemned content goes, or the content.
    fn reclaim_block(&mut self, content: u32) {
        let slot = self.contents.condemned_top(content);
        if slot == NIL {
            self.condemned.pop();
            self.contents.release(content);
            return;
        }
        let beneath = self.pages.next(slot);
        self.pages.set_next(slot, NIL);
        self.set_cell(slot, Cell::Evicted);
        self.contents.set_condemned_top(content, beneath);
        self.settle(slot >> BLOCKS_BITS);
    }

    fn reclaim_leaf(&mut self) -> u32 {
        if let Some(of) = self.dying.last_mut() {
            self.dying_bytes -= of.table.bytes();
            if of.table.drop_leaf() {
                self.dying_bytes += of.table.bytes();
            } else {
                self.dying.pop();
            }
        }
        1
    }

    /// The content is found no more.
    pub(super) fn condemn(&mut self, content: u32) {
        self.discharge(content);
        let (pages, volumes) = (&self.pages, &self.volumes);
        let group_of = |slot| volumes.group(pages.volume(slot));
        self.contents.condemn(content, group_of);
        self.condemned.push(content);
    }

    /// From a block of a stack on, the first one that is not of another life.
    pub(super) fn alive_from(&self, mut slot: u32) -> Option<u32> {
        if self.dying.is_empty() {
            return (slot != NIL).then_some(slot);
        }
        for _ in 0..PASSED {
            if slot == NIL {
                return None;
            }
            if self.volumes.is_alive(self.pages.owner(slot)) {
                return Some(slot);
            }
            slot = self.pages.next(slot);
        }
        None
    }
}
