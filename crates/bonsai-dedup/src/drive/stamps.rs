//! Whether a block of a volume was written since: atomic counters that need no lock.
//!
//! # Words
//! - *Class*: blocks of a volume whose numbers are equal modulo [`CLASSES`] share a counter. Neighbours never do.
//! - *Region*: 32 MiB of blocks share two counters, one of *wide* changes (which cost no counter for each
//!   block) and one of *narrow* changes (which count in the classes of their blocks as well).
//! - *Change*: a write, trim or zeroing between [`Stamps::begin`] and [`Stamps::end`].
//! - *Stamp* of a block: the number of changes of its class and of wide changes of its region.
//!
//! # Invariants
//! 1. A stamp holds only while no change of its block began since, or was under way when it was taken.
//! 2. The content of a change is known only where the change was *alone*: no other change of the block was
//!    under way at any moment between its begin and its end. Of two that overlap nobody knows whose bytes
//!    are on the disk, whichever ends last.
//!
//! # Why no lock is needed
//! A change counts before its bytes move, then comes a fence; a reader reads its bytes, then comes a fence, then it looks
//! at the counters. So a reader that got a byte of a change sees that the change has begun (both fences are
//! sequentially consistent: one of them comes first).
//!
//! # Limits
//! A change of another block of the class, or a wide change of another part of the region, voids a stamp for
//! nothing. That costs one redirect or one fingerprint, of this volume alone: volumes share no counters.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Classes of blocks: few enough for 8 KiB, so many that two blocks at work at once seldom share one.
const CLASSES: usize = 1_024;
const REGIONS: usize = 64;
/// Blocks of a region: 32 MiB, the most that one request of a client changes.
const REGION_BITS: u32 = 13;
/// Changes of more blocks than this may be wide.
const NARROW: u64 = 256;

/// In a counter, the upper half counts begins and ends, the lower half those under way.
const BEGIN: u64 = 1 << 32 | 1;
const END: u64 = (1 << 32) - 1;

/// How often a block had been changed when the stamp was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp(u64);

/// A change that has begun.
#[derive(Debug)]
#[must_use = "a change that is not ended voids stamps for ever"]
pub struct Change {
    blocks: Range<u64>,
    /// Of each class (narrow) or region (wide), in order, what it counted when this change had begun, where this
    /// was the only one.
    alone: Vec<Option<Alone>>,
    is_wide: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Alone {
    /// The counter of the class, or of narrow changes of the region.
    narrow: u64,
    /// The counter of wide changes of the region.
    wide: u64,
}

#[derive(Debug, Default)]
struct Region {
    wide: AtomicU64,
    narrow: AtomicU64,
}

/// The counters of one volume.
#[derive(Debug)]
pub struct Stamps {
    classes: Box<[AtomicU64]>,
    regions: Box<[Region]>,
}

impl Default for Stamps {
    fn default() -> Self {
        Self {
            classes: (0..CLASSES).map(|_| AtomicU64::new(0)).collect(),
            regions: (0..REGIONS).map(|_| Region::default()).collect(),
        }
    }
}

const fn is_quiet(counter: u64) -> bool {
    counter & 0xffff_ffff == 0
}

impl Stamps {
    pub(super) const BYTES: usize =
        size_of::<Self>() + CLASSES * size_of::<AtomicU64>() + REGIONS * size_of::<Region>();

    fn class(&self, block: u64) -> &AtomicU64 {
        &self.classes[usize::try_from(block % CLASSES as u64).unwrap_or(0)]
    }

    fn region(&self, block: u64) -> &Region {
        let region = (block >> REGION_BITS) % REGIONS as u64;
        &self.regions[usize::try_from(region).unwrap_or(0)]
    }

    /// A stamp for a block that is about to be read; `None` while a change of it is under way.
    #[must_use]
    pub fn of(&self, block: u64) -> Option<Stamp> {
        let narrow = self.class(block).load(Ordering::SeqCst);
        let wide = self.region(block).wide.load(Ordering::SeqCst);
        let both = is_quiet(narrow) && is_quiet(wide);
        both.then(|| Stamp::new(narrow, wide))
    }

    /// Whether no change of a block began since the stamp was taken: what was read of it in between is what
    /// the map said it holds.
    #[must_use]
    pub fn holds(&self, block: u64, stamp: Stamp) -> bool {
        // After what was read: see the module.
        fence(Ordering::SeqCst);
        self.of(block) == Some(stamp)
    }

    /// The same of many blocks.
    #[must_use]
    pub fn all_hold(&self, mut stamps: impl Iterator<Item = (u64, Stamp)>) -> bool {
        fence(Ordering::SeqCst);
        stamps.all(|(block, stamp)| self.of(block) == Some(stamp))
    }

    /// A change of blocks is about to begin. `is_wide` where the content of all of them will be one (zeroes) or
    /// unknown: then a long range costs a counter for each region.
    pub fn begin(&self, blocks: Range<u64>, is_wide: bool) -> Change {
        let is_wide = is_wide && blocks.end.saturating_sub(blocks.start) > NARROW;
        let mut alone = Vec::new();
        if is_wide {
            for first in counters(&blocks) {
                let region = self.region(first);
                let wide = region.wide.fetch_add(BEGIN, Ordering::SeqCst);
                let narrow = region.narrow.load(Ordering::SeqCst);
                let quiet = is_quiet(wide) && is_quiet(narrow);
                let wide = wide.wrapping_add(BEGIN);
                alone.push(quiet.then_some(Alone { narrow, wide }));
            }
        } else {
            for first in counters(&blocks) {
                let region = self.region(first);
                region.narrow.fetch_add(BEGIN, Ordering::SeqCst);
            }
            for block in classes(&blocks) {
                let narrow = self.class(block).fetch_add(BEGIN, Ordering::SeqCst);
                let wide = self.region(block).wide.load(Ordering::SeqCst);
                let quiet = is_quiet(narrow) && is_quiet(wide);
                let narrow = narrow.wrapping_add(BEGIN);
                alone.push(quiet.then_some(Alone { narrow, wide }));
            }
        }
        // Before bytes move: see the module.
        fence(Ordering::SeqCst);
        Change {
            blocks,
            alone,
            is_wide,
        }
    }

    /// The bytes of a change have arrived, or may have. Says of which blocks the content may be learned now.
    pub fn end(&self, change: Change) -> Ended {
        let Change {
            blocks,
            mut alone,
            is_wide,
        } = change;
        if is_wide {
            for (first, was) in counters(&blocks).zip(&mut alone) {
                let region = self.region(first);
                let narrow = region.narrow.load(Ordering::SeqCst);
                let wide = region.wide.fetch_add(END, Ordering::SeqCst);
                if *was != Some(Alone { narrow, wide }) {
                    *was = None;
                }
            }
        } else {
            for (block, was) in classes(&blocks).zip(&mut alone) {
                let wide = self.region(block).wide.load(Ordering::SeqCst);
                let narrow = self.class(block).fetch_add(END, Ordering::SeqCst);
                if *was != Some(Alone { narrow, wide }) {
                    *was = None;
                }
            }
            for first in counters(&blocks) {
                let region = self.region(first);
                region.narrow.fetch_add(END, Ordering::SeqCst);
            }
        }
        Ended {
            blocks,
            alone,
            is_wide,
        }
    }

    /// No stamp that was taken of a block holds any more.
    pub(super) fn void(&self, block: u64) {
        self.class(block).fetch_add(1 << 32, Ordering::SeqCst);
    }

    /// The same of all blocks.
    pub(super) fn void_all(&self) {
        for region in &self.regions {
            region.wide.fetch_add(1 << 32, Ordering::SeqCst);
        }
    }
}

impl Stamp {
    const fn new(narrow: u64, wide: u64) -> Self {
        Self(narrow >> 32 | wide >> 32 << 32)
    }
}

/// A change that has ended.
#[derive(Debug)]
pub struct Ended {
    blocks: Range<u64>,
    alone: Vec<Option<Alone>>,
    is_wide: bool,
}

impl Ended {
    /// The stamp with which the content of a block can be learned; none where another change of it was under way
    /// meanwhile, and none of a wide change: [`super::DriveMap::learned_zeroes`] enters its parts.
    #[must_use]
    pub fn stamp(&self, block: u64) -> Option<Stamp> {
        if self.is_wide {
            return None;
        }
        let at = usize::try_from(block.checked_sub(self.blocks.start)?).ok()?;
        let of = (*self.alone.get(at % CLASSES)?)?;
        let is_its = self.blocks.contains(&block) && self.is_of_region(block, at);
        is_its.then(|| Stamp::new(of.narrow.wrapping_add(END), of.wide))
    }

    /// Of a change that is longer than there are classes, a class was compared with the region of its first block
    /// alone.
    fn is_of_region(&self, block: u64, at: usize) -> bool {
        let first = self.blocks.start + (at % CLASSES) as u64;
        first >> REGION_BITS == block >> REGION_BITS
    }

    /// Parts of `within` that may be learned now, if it is one content: each is to be entered under the lock of
    /// the map, after `check` said that no change came since.
    pub(super) fn parts(&self, stamps: &Stamps, within: &Range<u64>) -> Vec<Range<u64>> {
        let mut parts: Vec<Range<u64>> = Vec::new();
        let mut add = |part: Range<u64>| match parts.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => parts.push(part),
        };
        let (start, end) = (
            self.blocks.start.max(within.start),
            self.blocks.end.min(within.end),
        );
        if !self.is_wide {
            for block in start..end {
                if self.stamp(block).is_some_and(|of| stamps.holds(block, of)) {
                    add(block..block + 1);
                }
            }
            return parts;
        }
        // Of a range that is longer than there are counters, they are those of its first regions again.
        let alone = self.alone.iter().cycle();
        for (first, was) in regions(&self.blocks).zip(alone) {
            let Some(was) = was else { continue };
            let region = stamps.region(first);
            let now = Alone {
                narrow: region.narrow.load(Ordering::SeqCst),
                wide: region.wide.load(Ordering::SeqCst),
            };
            let ended = Alone {
                wide: was.wide.wrapping_add(END),
                ..*was
            };
            let next = ((first >> REGION_BITS) + 1) << REGION_BITS;
            let part = first.max(start)..next.min(end);
            if now == ended && part.start < part.end {
                add(part);
            }
        }
        parts
    }
}

/// A block of each pair of counters of regions that a range has.
fn counters(blocks: &Range<u64>) -> impl Iterator<Item = u64> + use<> {
    regions(blocks).take(REGIONS)
}

/// The first block of a range in each of its regions.
fn regions(blocks: &Range<u64>) -> impl Iterator<Item = u64> + use<> {
    let (start, end) = (blocks.start, blocks.end);
    let count = match start < end {
        true => ((end - 1) >> REGION_BITS) - (start >> REGION_BITS) + 1,
        false => 0,
    };
    let first = move |n| match n {
        0 => start,
        n => ((start >> REGION_BITS) + n) << REGION_BITS,
    };
    (0..count).map(first)
}

/// A block of each class that a range has.
fn classes(blocks: &Range<u64>) -> Range<u64> {
    let end = blocks.end.min(blocks.start.saturating_add(CLASSES as u64));
    blocks.start..end.max(blocks.start)
}
