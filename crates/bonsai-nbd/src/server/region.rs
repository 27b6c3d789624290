//! The address range that all buffers of a server come from.
//!
//! # Story
//! ```text
//! | slot 0 | slot 1 | ... | shared: blocks of 2^n pages, split and joined as in a buddy allocator |
//! ```
//! A general allocator keeps what it was given back in places that depend on order and threads, so that the sum of what is in use
//! says nothing of what a process takes. One range as long as the budget does: no buffer lies outside of it.
//!
//! # Invariants
//! 1. Two live [`Block`]s never overlap: a block is either handed out, or kept, or free.
//! 2. A free block holds no memory: its pages went back to the system before it became free.
//! 3. Kept blocks together are at most [`MOST_KEPT`] bytes.

use std::collections::BTreeSet;
use std::io;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The smallest block, in bytes: a page.
pub(super) const SMALLEST: usize = 4096;
/// Sizes of blocks: 4 KiB, doubled up to 32 MiB, the largest payload of a request.
const ORDERS: usize = 14;
/// The largest block that keeps its pages for the next one who needs its size: faults cost more than a copy.
const LARGEST_KEPT: usize = 1 << 20;
/// Blocks that keep their pages, together, at most.
const MOST_KEPT: usize = 32 << 20;

/// Mapped memory.
#[derive(Debug)]
pub(super) struct Region {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: it is an address and a length, and all access goes through `slice`, whose callers see to it that
// ranges are disjoint.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// So many bytes; none of them takes memory before it is written to.
    pub(super) fn new(length: usize) -> io::Result<Self> {
        let length = length.max(SMALLEST);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses where, so that nothing that exists is replaced.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, length })
    }

    /// # Safety
    /// Nobody else has any byte of the range as long as the result lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "ranges are disjoint, as the caller says"
    )]
    pub(super) unsafe fn slice(&self, start: usize, length: usize) -> &mut [u8] {
        let start = start.min(self.length);
        let length = length.min(self.length - start);
        // SAFETY: the range lies within the mapping, which lives as long as `self` and is zeroed or written memory;
        // that nobody else has it, the caller says.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(start), length) }
    }

    /// Gives pages back to the system; what is read there then is zero.
    ///
    /// # Safety
    /// Nobody has any byte of the range.
    pub(super) unsafe fn clear(&self, start: usize, length: usize) {
        let start = start.min(self.length);
        let length = length.min(self.length - start);
        // SAFETY: the range lies within the mapping, and nobody has it. Where it fails (it does not for memory of
        // one's own) pages stay until the block is used again.
        let _ = unsafe {
            madvise(
                self.base.as_ptr().add(start).cast(),
                length,
                Advice::LinuxDontNeed,
            )
        };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new` with this length, and who has a part of it holds the region.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// A part of the shared range: where it begins, in bytes from the beginning of that, and its size as a power of two pages.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Block {
    pub(super) start: usize,
    order: usize,
}

impl Block {
    /// In bytes.
    pub(super) const fn size(self) -> usize {
        SMALLEST << self.order
    }
}

/// The size of the block that so many bytes need; `None` if no block is that large.
pub(super) fn block_size(bytes: usize) -> Option<usize> {
    order(bytes).map(|order| SMALLEST << order)
}

fn order(bytes: usize) -> Option<usize> {
    let pages = bytes.div_ceil(SMALLEST).max(1).next_power_of_two();
    let order = pages.trailing_zeros() as usize;
    (order < ORDERS).then_some(order)
}

/// Which blocks are free, and which are kept.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    free: [BTreeSet<usize>; ORDERS],
    kept: [Vec<usize>; ORDERS],
    kept_bytes: usize,
}

impl Blocks {
    /// All of a range is free.
    pub(super) fn new(bytes: usize) -> Self {
        let mut all = Self::default();
        let mut start = 0;
        while bytes - start >= SMALLEST {
            let room = (bytes - start) / SMALLEST;
            let by_room = room.ilog2() as usize;
            let by_place = (start / SMALLEST).trailing_zeros() as usize;
            let order = by_room.min(by_place).min(ORDERS - 1);
            if let Some(free) = all.free.get_mut(order) {
                free.insert(start);
            }
            start += SMALLEST << order;
        }
        all
    }

    /// A block for so many bytes; `None` where there is none in one piece. `release` gives the pages of blocks
    /// back that were kept.
    pub(super) fn take(&mut self, bytes: usize, mut release: impl FnMut(Block)) -> Option<Block> {
        let order = order(bytes)?;
        if let Some(start) = self.kept.get_mut(order).and_then(Vec::pop) {
            let block = Block { start, order };
            self.kept_bytes -= block.size();
            return Some(block);
        }
        if let Some(block) = self.split(order) {
            return Some(block);
        }
        for order in 0..ORDERS {
            for start in self
                .kept
                .get_mut(order)
                .map(std::mem::take)
                .unwrap_or_default()
            {
                let block = Block { start, order };
                release(block);
                self.join(block);
            }
        }
        self.kept_bytes = 0;
        self.split(order)
    }

    /// Whether a block that is given back keeps its pages. If so, it is taken back by this; if not, the pages are to be
    /// given back first, and then the block by [`Self::join`].
    pub(super) fn keep(&mut self, block: Block) -> bool {
        let size = block.size();
        if size > LARGEST_KEPT || self.kept_bytes + size > MOST_KEPT {
            return false;
        }
        let Some(kept) = self.kept.get_mut(block.order) else {
            return false;
        };
        kept.push(block.start);
        self.kept_bytes += size;
        true
    }

    fn split(&mut self, order: usize) -> Option<Block> {
        let from =
            (order..ORDERS).find(|at| self.free.get(*at).is_some_and(|of| !of.is_empty()))?;
        let start = self.free.get_mut(from)?.pop_first()?;
        for half in (order..from).rev() {
            self.free.get_mut(half)?.insert(start + (SMALLEST << half));
        }
        Some(Block { start, order })
    }

    /// A block without pages is free again, and joined with its neighbour where that is free too.
    pub(super) fn join(&mut self, block: Block) {
        let Block {
            mut start,
            mut order,
        } = block;
        while order + 1 < ORDERS {
            let neighbour = start ^ (SMALLEST << order);
            if !self
                .free
                .get_mut(order)
                .is_some_and(|of| of.remove(&neighbour))
            {
                break;
            }
            start = start.min(neighbour);
            order += 1;
        }
        if let Some(free) = self.free.get_mut(order) {
            free.insert(start);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranges(of: &Blocks) -> Vec<(usize, usize)> {
        let sets = of.free.iter().map(|all| all.iter().copied().collect());
        let sets: Vec<Vec<usize>> = sets.chain(of.kept.iter().cloned()).collect();
        let with = sets.iter().enumerate();
        with.flat_map(|(at, all)| {
            all.iter()
                .map(move |start| (*start, SMALLEST << (at % ORDERS)))
        })
        .collect()
    }

    proptest! {
        #[test]
        fn blocks_are_disjoint_and_none_is_lost(
            pages in 1usize..300,
            steps in prop::collection::vec((any::<bool>(), 0usize..40, 1usize..200_000), 0..200),
        ) {
            let bytes = pages * SMALLEST;
            let mut blocks = Blocks::new(bytes);
            let mut held: Vec<Block> = Vec::new();
            for (gives, at, wanted) in steps {
                if gives && !held.is_empty() {
                    let block = held.swap_remove(at % held.len());
                    if !blocks.keep(block) {
                        blocks.join(block);
                    }
                } else if let Some(block) = blocks.take(wanted, |_| ()) {
                    prop_assert!(block.size() >= wanted);
                    held.push(block);
                }
                let mut all = ranges(&blocks);
                all.extend(held.iter().map(|of| (of.start, of.size())));
                all.sort_unstable();
                let mut end = 0;
                for (start, size) in all {
                    prop_assert_eq!(start, end, "a gap or an overlap");
                    end = start + size;
                }
                prop_assert_eq!(end, bytes);
            }
            // All of it given back is as at first.
            held.into_iter().for_each(|block| blocks.join(block));
            let _ = blocks.take(usize::MAX >> 1, |_| ());
            while let Some(kept) = blocks.kept.iter_mut().enumerate().find_map(|(order, of)| {
                of.pop().map(|start| Block { start, order })
            }) {
                blocks.join(kept);
            }
            prop_assert_eq!(blocks.free, Blocks::new(bytes).free);
        }
    }

    #[test]
    fn cleared_memory_is_zero_again() {
        let region = Region::new(1 << 20).expect("memory");
        // SAFETY: nobody else has it.
        unsafe { region.slice(8192, 4096) }.fill(7);
        // SAFETY: what was had before is not used any more.
        unsafe { region.clear(8192, 4096) };
        // SAFETY: as above.
        assert_eq!(unsafe { region.slice(8192, 4096) }, [0; 4096]);
    }
}
