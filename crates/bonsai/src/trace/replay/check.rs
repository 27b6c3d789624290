//! What reads have to find.
//!
//! A disk is simulated: the first access of a block says what it holds, and then what is written. Where a trace contradicts
//! itself, so that a read has a content that nobody wrote, what was there before counts.

use std::collections::HashMap;

use bonsai_trace::twin::fill;
use bonsai_trace::{BLOCK, Digest, Op};

use super::feed::Order;

/// Of a block.
pub(super) const BYTES: usize = 4096;

/// The simulated disks. 48 bytes for each block that was accessed.
#[derive(Debug, Default)]
pub(super) struct Disks {
    /// `None` where a block was changed to what is not known.
    held: HashMap<(u32, u64), Option<Digest>>,
}

impl Disks {
    /// Takes in an order as it is sent; of a read, adds what each of its blocks has to hold, `None` where that is not known.
    pub(super) fn take(
        &mut self,
        order: &Order,
        contents: &[Digest],
        expected: &mut Vec<Option<Digest>>,
    ) {
        let (offset, length) = (order.offset, u64::from(order.length));
        let blocks = offset / BLOCK..(offset + length).div_ceil(BLOCK);
        for (n, block) in blocks.enumerate() {
            let key = (order.volume, block);
            let content = contents.get(n).copied();
            match order.op {
                Op::Read => match content {
                    Some(content) => {
                        let held = self.held.entry(key).or_insert(Some(content));
                        expected.push(*held);
                    }
                    None => expected.push(None),
                },
                // What the block holds stays, where that is known.
                Op::Write | Op::Trim if order.is_left_out => {
                    self.held.entry(key).or_insert(None);
                }
                Op::Write | Op::Trim => {
                    self.held.insert(key, content);
                }
                Op::Flush => {}
            }
        }
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
