//! The limits in force, and how they change under readers that never wait.

use crate::layout::{BUCKETS, ROWS, Segment};
use crate::sync::{AtomicU64, Ordering, fence};
use bonsai_bucket::Curve;
use bonsai_calls::CallId;

/// One copy of the limits.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(C, align(4096)))]
pub struct Config {
    /// By call: the buckets it draws on, a bit each.
    pub masks: [AtomicU64; ROWS],
    /// Buckets whose unit is the byte; the others count calls.
    pub byte_buckets: AtomicU64,
    pub(crate) _pad: AtomicU64,
    /// The curve of each bucket.
    pub curves: [CurveWords; BUCKETS],
}

/// A [`Curve`] and its lease budget, word by word.
#[derive(Debug)]
#[repr(C)]
pub struct CurveWords(pub(crate) [AtomicU64; 6]);

impl CurveWords {
    /// The curve and the units that may be out as leases.
    #[must_use]
    pub fn load(&self) -> (Curve, u64) {
        let word = |i: usize| self.0[i].load(Ordering::Relaxed);
        let curve = Curve {
            rate_milli: word(0),
            burst: word(1),
            anchor_units: word(2),
            anchor_fraction: word(3),
            anchor_ns: word(4),
        };
        (curve, word(5))
    }

    /// Writes a curve into a copy that is not in force.
    pub fn store(&self, curve: &Curve, leases: u64) {
        let words = [
            curve.rate_milli,
            curve.burst,
            curve.anchor_units,
            curve.anchor_fraction,
            curve.anchor_ns,
            leases,
        ];
        for (word, value) in self.0.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

impl Config {
    /// Copies another configuration into this one, which is not in force.
    pub fn copy_from(&self, other: &Self) {
        for (to, from) in self.masks.iter().zip(&other.masks) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let bytes = other.byte_buckets.load(Ordering::Relaxed);
        self.byte_buckets.store(bytes, Ordering::Relaxed);
        for (to, from) in self.curves.iter().zip(&other.curves) {
            for (to, from) in to.0.iter().zip(&from.0) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }
}

/// Reads of a consistent configuration: `read` may see words of two
/// configurations, in which case it is run again.
pub(crate) fn consistent<T>(
    epoch: &crate::sync::AtomicU32,
    configs: &[Config; 2],
    mut read: impl FnMut(&Config) -> T,
) -> (u32, T) {
    loop {
        let before = epoch.load(Ordering::Acquire);
        let value = read(&configs[(before & 1) as usize]);
        fence(Ordering::Acquire);
        // The copy just read is rewritten only after a further change has been
        // made to the other one and the epoch has moved on.
        if epoch.load(Ordering::Relaxed) == before {
            return (before, value);
        }
        #[cfg(loom)]
        loom::thread::yield_now();
    }
}

impl Segment {
    /// The number of the configuration in force.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.header.epoch.0.load(Ordering::Acquire)
    }

    /// Reads the configuration in force; see [`Segment::epoch`] for its number.
    pub fn with_config<T>(&self, read: impl FnMut(&Config) -> T) -> (u32, T) {
        consistent(&self.header.epoch.0, &self.configs, read)
    }

    /// The buckets a call draws on, with the epoch and those of them that count
    /// bytes.
    #[must_use]
    pub fn mask(&self, call: CallId) -> (u32, u64, u64) {
        let (epoch, (mask, bytes)) = self.with_config(|config| {
            (
                config.masks[usize::from(call)].load(Ordering::Relaxed),
                config.byte_buckets.load(Ordering::Relaxed),
            )
        });
        (epoch, mask, bytes)
    }
}
