//! Ranges of blocks: what a long change does, and what is known of a volume, in slices.

use std::ops::Range;

use super::pages::{BLOCKS, BLOCKS_BITS, Cell, Pages};
use super::stamps::Ended;
use super::table::{LEAF_BITS, Place, has};
use super::zeroes::Fill;
use super::{Content, DriveMap, How, Key, Volume};

/// Blocks that follow each other, and what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known<K> {
    /// The first of them.
    pub first: u64,
    /// How many: one, where they are not zeroes.
    pub blocks: u64,
    /// What each of them holds.
    pub content: Content<K>,
}

impl<K: Key> DriveMap<K> {
    /// Nothing is known of a range any more, as it is about to be written; done in about so many steps. Says from which block on
    /// it is to be gone on with: the end of the range when it is done.
    pub fn forget_range(&mut self, volume: Volume, blocks: Range<u64>, steps: u32) -> u64 {
        self.fill(volume, blocks, Fill::Written, steps)
    }

    /// What a change that has ended left is zeroes, as far as no other change came in between: from block `from` on, in about
    /// so many steps. Says from which block on it is to be gone on with; `None` when it is done.
    pub fn learned_zeroes(
        &mut self,
        volume: Volume,
        ended: &Ended,
        within: Range<u64>,
        steps: u32,
    ) -> Option<u64> {
        let stamps = self.volumes.stamps(volume)?;
        let parts = ended.parts(stamps, &within);
        let mut left = steps;
        for part in parts {
            let (start, end) = (part.start, part.end);
            let next = self.enter_zeroes(volume, part, How::Write, left.max(1));
            if next < end {
                return Some(next);
            }
            // As many blocks take a step at least.
            left = left.saturating_sub(u32::try_from((end - start) >> 12).unwrap_or(u32::MAX));
        }
        None
    }

    /// A range is known to be zeroes, for a caller that does one thing at a time; as [`Self::forget_range`].
    pub fn enter_zeroes(
        &mut self,
        volume: Volume,
        blocks: Range<u64>,
        how: How,
        steps: u32,
    ) -> u64 {
        if !self.volumes.is_open(volume) {
            return blocks.end;
        }
        if !self.dying.is_empty() || !self.condemned.is_empty() {
            self.reclaim(super::LEARN_STEPS);
        }
        let known = |this: &Self| {
            this.volumes
                .get(volume)
                .map_or(0, super::volumes::Entry::known)
        };
        let before = known(self);
        let next = self.fill(volume, blocks, Fill::Zero, steps);
        let new = known(self).saturating_sub(before);
        self.counters.new += new;
        *match how {
            How::Read => &mut self.counters.by_read,
            How::Write => &mut self.counters.by_write,
            How::Scan => &mut self.counters.by_scan,
        } += new;
        next
    }

    /// What is known of a volume from a block on, in order, in about so many steps, for whoever keeps it. Says from which
    /// block on it is to be gone on with; `None` at the end.
    pub fn known_slice(
        &self,
        volume: Volume,
        from: u64,
        steps: usize,
        into: &mut Vec<Known<K>>,
    ) -> Option<u64> {
        let table = &self.volumes.get(volume)?.table;
        let end = table.end();
        let mut left = steps.max(1);
        let mut at = from;
        while at >> BLOCKS_BITS < end {
            if left == 0 {
                return Some(at);
            }
            let page = u32::try_from(at >> BLOCKS_BITS).ok()?;
            let offset = u32::try_from(at % u64::from(BLOCKS)).ok()?;
            let next_page = ((at >> BLOCKS_BITS) + 1) << BLOCKS_BITS;
            left -= 1;
            if let Some(is_zero) = table.uniform(page) {
                let next = ((at >> (BLOCKS_BITS + LEAF_BITS)) + 1) << (BLOCKS_BITS + LEAF_BITS);
                if is_zero {
                    add_zeroes(into, at..next);
                }
                at = next;
                continue;
            }
            match table.place(page) {
                Place::None => {}
                Place::Zeroes(mask) => {
                    for bit in (offset..BLOCKS).filter(|bit| has(&mask, *bit)) {
                        let block = (at - u64::from(offset)) + u64::from(bit);
                        add_zeroes(into, block..block + 1);
                    }
                }
                Place::Page(number) => {
                    left = left.saturating_sub(BLOCKS as usize / 4);
                    let slots = Pages::slots(number).skip(offset as usize);
                    slots.for_each(|slot| self.add_known(slot, into));
                }
            }
            at = next_page;
        }
        None
    }

    fn add_known(&self, slot: u32, into: &mut Vec<Known<K>>) {
        let (_, block) = self.pages.place(slot);
        match self.pages.cell(slot) {
            Cell::Zero => add_zeroes(into, block..block + 1),
            Cell::Content(content) if self.contents.leader(content).is_some() => into.push(Known {
                first: block,
                blocks: 1,
                content: Content::Key(self.contents.key(content)),
            }),
            _ => {}
        }
    }
}

fn add_zeroes<K: Key>(into: &mut Vec<Known<K>>, blocks: Range<u64>) {
    let count = blocks.end - blocks.start;
    match into.last_mut() {
        Some(last) if last.content == Content::Zero && last.first + last.blocks == blocks.start => {
            last.blocks += count;
        }
        _ => into.push(Known {
            first: blocks.start,
            blocks: count,
            content: Content::Zero,
        }),
    }
}
