//! The steps of a change of limits, as readers see them.

use crate::layout::Segment;
use crate::sync::{AtomicU64, Ordering, fence};
use bonsai_bucket::Curve;

impl Segment {
    /// Starts a change: makes the copy that is not in force equal to the one
    /// that is, and returns its index. For one writer at a time.
    pub(crate) fn begin_change(&self) -> usize {
        let next = (self.epoch().wrapping_add(1) & 1) as usize;
        // A reader may still be in this copy, from the change before last. If it
        // sees any word written from here on, it also finds the epoch advanced.
        fence(Ordering::Release);
        self.configs[next].copy_from(&self.configs[next ^ 1]);
        next
    }

    /// Takes a bucket out of the mask of every call in the copy `next`, at `now`.
    pub(crate) fn lift(&self, next: usize, bucket: usize, now: u64) {
        let config = &self.configs[next];
        // The line starts anew a moment before the copy comes into force, and a kill
        // in between leaves it so: its other counter has to fit the limit as it was.
        self.restart(bucket, &config.curves[bucket].load().0, now);
        for mask in config.masks.iter().chain(&config.narrowed) {
            mask.store(
                mask.load(Ordering::Relaxed) & !(1 << bucket),
                Ordering::Relaxed,
            );
        }
        // A call that has read the old mask may still take a ticket here: due at
        // once. Nothing can be leased.
        let open = Curve {
            rate_milli: 0,
            burst: 1 << 62,
            anchor_units: self.next_counter(bucket).load(Ordering::Relaxed),
            anchor_fraction: 0,
            anchor_ns: 0,
        };
        config.curves[bucket].store(&open, 0);
    }

    /// The counter that a line has once a change lets it start anew.
    pub(crate) fn next_counter(&self, bucket: usize) -> &AtomicU64 {
        let line = &self.lines[bucket];
        line.issued(line.generation().wrapping_add(1))
    }

    /// Prepares a line to start anew at `now` with an empty bucket under `curve`.
    pub(crate) fn restart(&self, bucket: usize, curve: &Curve, now: u64) {
        let empty = curve.floor(now).wrapping_add(curve.burst);
        self.next_counter(bucket).store(empty, Ordering::Relaxed);
    }

    /// Puts the copy into force that [`Segment::begin_change`] has prepared, and
    /// makes the tickets of the buckets `anew` void, each of which is named once.
    /// Returns the new epoch.
    pub(crate) fn end_change(&self, anew: &[usize]) -> u32 {
        for bucket in anew {
            self.lines[*bucket]
                .generation
                .fetch_add(1, Ordering::Release);
        }
        let mut seen = self.epoch();
        loop {
            let mut next = seen.wrapping_add(1);
            if next == 0 {
                // Never 0: a thread that has not looked yet has 0. Two steps keep the
                // parity.
                next = 2;
            }
            // A process may advance it at this moment; see `watch_closing`.
            let epoch = &self.header.epoch.0;
            match epoch.compare_exchange(seen, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return next,
                Err(now) => seen = now,
            }
        }
    }
}
