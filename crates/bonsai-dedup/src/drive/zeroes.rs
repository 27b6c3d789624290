//! Zeroes, and whole ranges of blocks: what is done costs a step for each GiB or MiB of which nothing else is known, and
//! not one for each block.

use std::ops::Range;

use super::pages::{BLOCKS, BLOCKS_BITS, Cell};
use super::table::{FULL, LEAF_BITS, MAX_PAGES, Place, has, mask};
use super::{DriveMap, Key, Learned, Volume};

/// Blocks of a leaf of the table.
const LEAF_BLOCKS: u64 = 1 << (BLOCKS_BITS + LEAF_BITS);
const PAGE_BLOCKS: u64 = BLOCKS as u64;

/// What is to be known of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    Zero,
    /// Nothing, as it was written.
    Written,
    /// Nothing.
    Unknown,
}

impl Fill {
    const fn cell(self) -> Cell {
        match self {
            Self::Zero => Cell::Zero,
            Self::Written => Cell::Written,
            Self::Unknown => Cell::Unknown,
        }
    }
}

impl<K: Key> DriveMap<K> {
    /// Enters what is known of a range of blocks, in about so many steps; says from which block on it is to be gone on
    /// with. What there is no room for is not known.
    pub(super) fn fill(
        &mut self,
        volume: Volume,
        blocks: Range<u64>,
        fill: Fill,
        steps: u32,
    ) -> u64 {
        let end = blocks.end.min(MAX_PAGES << BLOCKS_BITS);
        let (mut at, mut left) = (blocks.start, steps.max(1));
        while at < end && left > 0 {
            let (next, taken) = self.fill_part(volume, at..end, fill);
            at = next;
            left = left.saturating_sub(taken);
        }
        if at >= end { blocks.end } else { at }
    }

    /// Does a leaf, or a page, or a part of one: says where that ends, and what it took.
    fn fill_part(&mut self, volume: Volume, blocks: Range<u64>, fill: Fill) -> (u64, u32) {
        let Range { start, end } = blocks;
        let Ok(page) = u32::try_from(start >> BLOCKS_BITS) else {
            return (end, 1);
        };
        let leaf_end = (start / LEAF_BLOCKS + 1) * LEAF_BLOCKS;
        let is_zero = fill == Fill::Zero;
        if start.is_multiple_of(LEAF_BLOCKS) && leaf_end <= end {
            let reach = self.volumes.get(volume);
            // A list that has to be longer for it takes what a leaf would.
            let growth = reach.map_or(0, |entry| entry.table.growth(page, Place::None));
            let is_set = (!is_zero || growth <= self.spare())
                && self
                    .volumes
                    .with_table(volume, |table| table.set_leaf(page, is_zero))
                    == Some(true);
            if is_set {
                return (leaf_end, 4);
            }
        }
        // Nothing to do up to the end of the leaf.
        let uniform = self
            .volumes
            .get(volume)
            .and_then(|entry| entry.table.uniform(page));
        if uniform == Some(is_zero) {
            return (leaf_end.min(end), 1);
        }
        let next = ((start >> BLOCKS_BITS) + 1) << BLOCKS_BITS;
        let next = next.min(end);
        let first = u32::try_from(start % PAGE_BLOCKS).unwrap_or(0);
        let part = first..first + u32::try_from(next - start).unwrap_or(0);
        (next, self.fill_page(volume, page, part, fill))
    }

    fn fill_page(&mut self, volume: Volume, page: u32, part: Range<u32>, fill: Fill) -> u32 {
        let Some(entry) = self.volumes.get(volume) else {
            return 1;
        };
        let place = entry.table.place(page);
        let old = match place {
            Place::Page(number) => {
                let mut steps = 1;
                for slot in part {
                    steps += self.fill_slot(number << BLOCKS_BITS | slot, fill);
                }
                self.settle(number);
                return steps;
            }
            Place::None => [0; 4],
            Place::Zeroes(mask) => mask,
        };
        let part = mask(part);
        let new = std::array::from_fn(|word| match fill {
            Fill::Zero => old[word] | part[word],
            _ => old[word] & !part[word],
        });
        if new != old {
            self.set_zeroes(volume, page, new);
        }
        2
    }

    fn fill_slot(&mut self, slot: u32, fill: Fill) -> u32 {
        let before = self.pages.cell(slot);
        if let (Cell::Content(content), Fill::Zero) = (before, fill) {
            if self.contents.leader(content).is_none() {
                return 1;
            }
            let (volume, block) = self.pages.place(slot);
            self.change(volume, block);
        }
        if before == fill.cell() {
            return 0;
        }
        1 + self.detach(slot, fill.cell())
    }

    /// Puts down the zeroes of a page that is none, where there is room; else nothing is known of its blocks, or of those of
    /// the leaf.
    fn set_zeroes(&mut self, volume: Volume, page: u32, zeroes: [u64; 4]) {
        let place = match zeroes {
            [0, 0, 0, 0] => Place::None,
            mask => Place::Zeroes(mask),
        };
        let mut wanted = place;
        loop {
            let growth = self.volumes.get(volume).map_or(0, |entry| {
                if entry.table.uniform(page) == Some(false) && wanted == Place::None {
                    0
                } else {
                    entry.table.growth(page, wanted)
                }
            });
            if growth <= self.spare() {
                break;
            }
            if self.free_some(volume, growth) {
                continue;
            }
            if wanted == Place::None {
                // A leaf of zeroes alone cannot be told apart for want of room.
                self.volumes
                    .with_table(volume, |table| table.set_leaf(page, false));
                return;
            }
            wanted = Place::None;
        }
        // What went for it may have been zeroes of the same page: they are known again, as they were a moment ago.
        self.volumes
            .with_table(volume, |table| table.set(page, wanted));
    }

    /// Of a single block, whose content is not known to be zeroes.
    pub(super) fn remember_zero(&mut self, volume: Volume, block: u64) -> Learned {
        self.fill(volume, block..block + 1, Fill::Zero, 1);
        match self.cell(volume, block) {
            Cell::Zero => Learned::New,
            _ => Learned::Refused,
        }
    }

    /// A block that is in no page.
    pub(super) fn unlink_zero(&mut self, volume: Volume, block: u64) {
        if self.cell(volume, block) == Cell::Zero {
            self.fill(volume, block..block + 1, Fill::Unknown, 1);
        }
    }

    /// What is known of a block, in a page or not.
    #[inline]
    pub(super) fn cell(&self, volume: Volume, block: u64) -> Cell {
        if let Some(slot) = self.volumes.slot(volume, block) {
            return self.pages.cell(slot);
        }
        let page = u32::try_from(block >> BLOCKS_BITS).ok();
        let entry = self.volumes.get(volume);
        let place = page.zip(entry).map(|(page, of)| of.table.place(page));
        let at = u32::try_from(block % PAGE_BLOCKS).unwrap_or(0);
        match place {
            Some(Place::Zeroes(mask)) if mask == FULL || has(&mask, at) => Cell::Zero,
            _ => Cell::Unknown,
        }
    }

    /// Whether anything is known of a range: zeroes, or contents.
    #[must_use]
    pub fn knows_any(&self, volume: Volume, blocks: Range<u64>) -> bool {
        let Some(entry) = self.volumes.get(volume) else {
            return false;
        };
        let end = blocks.end.min(entry.table.end() << BLOCKS_BITS);
        let mut at = blocks.start;
        while at < end {
            let page = u32::try_from(at >> BLOCKS_BITS).unwrap_or(u32::MAX);
            if entry.table.uniform(page) == Some(false) {
                at = (at / LEAF_BLOCKS + 1) * LEAF_BLOCKS;
                continue;
            }
            let next = (((at >> BLOCKS_BITS) + 1) << BLOCKS_BITS).min(end);
            let first = u32::try_from(at % PAGE_BLOCKS).unwrap_or(0);
            let part = first..first + u32::try_from(next - at).unwrap_or(0);
            let is_known = match entry.table.place(page) {
                Place::None => false,
                Place::Zeroes(zeroes) => {
                    let part = mask(part);
                    zeroes.iter().zip(&part).any(|(is, asked)| is & asked != 0)
                }
                Place::Page(_) if part.len() == BLOCKS as usize => true,
                Place::Page(page) => part
                    .map(|of| self.pages.cell(page << BLOCKS_BITS | of))
                    .any(|cell| matches!(cell, Cell::Zero | Cell::Content(_))),
            };
            if is_known {
                return true;
            }
            at = next;
        }
        false
    }
}
