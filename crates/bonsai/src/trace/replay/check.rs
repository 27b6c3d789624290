//! What reads have to find.
//!
//! A disk is simulated: the first access of a block says what it holds, and then what is written. Where a trace contradicts
//! itself, so that a read has a content that nobody wrote, what was there before counts.

use std::collections::BTreeMap;
use std::ops::Range;

use bonsai_trace::twin::fill;
use bonsai_trace::{BLOCK, Digest, Op};

use super::feed::Order;

/// Of a block.
pub(super) const BYTES: usize = 4096;

/// The simulated disks. 48 bytes for each block whose content is known, and for each extent of unknown ones: a trim of any
/// length is one.
#[derive(Debug, Default)]
pub(super) struct Disks {
    held: BTreeMap<(u32, u64), Digest>,
    /// Where extents begin that were changed to what is not known, and where they end; what is held in them was written later.
    unknown: BTreeMap<(u32, u64), u64>,
}

impl Disks {
    /// Takes in an order as it is sent; of a read, adds what each of its blocks has to hold, `None` where that is not known.
    pub(super) fn take(
        &mut self,
        order: &Order,
        contents: &[Digest],
        expected: &mut Vec<Option<Digest>>,
    ) {
        let (volume, end) = (order.volume, order.offset + u64::from(order.length));
        let blocks = order.offset / BLOCK..end.div_ceil(BLOCK);
        match order.op {
            Op::Flush => {}
            Op::Read => {
                for (n, block) in blocks.enumerate() {
                    let content = contents.get(n).copied();
                    expected.push(content.and_then(|content| self.read((volume, block), content)));
                }
            }
            Op::Write | Op::Trim if order.is_left_out => self.forget(volume, blocks),
            Op::Write if !contents.is_empty() => {
                let places = blocks.map(|block| (volume, block));
                self.held.extend(places.zip(contents.iter().copied()));
            }
            Op::Write | Op::Trim => {
                let from = (volume, blocks.start);
                while let Some((&at, _)) = self.held.range(from..(volume, blocks.end)).next() {
                    self.held.remove(&at);
                }
                self.forget(volume, blocks);
            }
        }
    }

    /// What a block has to hold that is read with a content.
    fn read(&mut self, place: (u32, u64), content: Digest) -> Option<Digest> {
        if let Some(held) = self.held.get(&place) {
            return Some(*held);
        }
        let before = self.unknown.range(..=place).next_back();
        if before.is_some_and(|(from, end)| from.0 == place.0 && place.1 < *end) {
            return None;
        }
        self.held.insert(place, content);
        Some(content)
    }

    /// Has an extent unknown, where nothing is held.
    fn forget(&mut self, volume: u32, mut blocks: Range<u64>) {
        // Those that it touches become one with it.
        let touched = (volume, 0)..=(volume, blocks.end);
        while let Some((&(_, start), &end)) = self.unknown.range(touched.clone()).next_back() {
            if end < blocks.start {
                break;
            }
            blocks = blocks.start.min(start)..blocks.end.max(end);
            self.unknown.remove(&(volume, start));
        }
        self.unknown.insert((volume, blocks.start), blocks.end);
    }
}

/// Compares what was read with what it has to be.
pub(super) fn compare(bytes: &[u8], expected: &[Option<Digest>]) -> Compared {
    let mut done = Compared::default();
    let mut right = [0; BYTES];
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    for (n, (block, expected)) in blocks.iter().zip(expected).enumerate() {
        let Some(digest) = expected else {
            continue;
        };
        done.blocks += 1;
        fill(*digest, &mut right);
        if *block != right {
            done.wrong += 1;
            done.first = done.first.or(Some(n));
        }
    }
    done
}

/// What became of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Compared {
    pub(super) blocks: u64,
    pub(super) wrong: u64,
    /// The first wrong one, by its number in the read.
    pub(super) first: Option<usize>,
}
