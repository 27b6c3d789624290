//! The limits in force, and how they change under readers that never wait.

use crate::layout::{BUCKETS, GROUPS, ROWS, Segment, flags};
use crate::sync::{AtomicU64, Ordering, fence};
use bonsai_bucket::Curve;
use bonsai_calls::{self as calls, CallId};

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
    /// By call: buckets that it draws on if its descriptor is one that they are for.
    pub narrowed: [AtomicU64; ROWS],
    /// Calls that are decided on with a look at their descriptor, a bit each.
    pub special: [AtomicU64; 2],
    /// Buckets that each stream has one of its own of.
    pub per_stream: AtomicU64,
    /// Which number the service has in its group, by what that shares; 0 for none. See
    /// `group.rs`.
    pub groups: [AtomicU64; GROUPS],
    /// By call: what it draws on of those, a bit each; eight calls to a word.
    pub grouped: [AtomicU64; ROWS.div_ceil(8)],
    /// Those of `groups` that count bytes, a bit each.
    pub group_bytes: AtomicU64,
}

/// Calls that close descriptors, and with them rings: decided on once there are any.
pub(crate) const CLOSING: [CallId; 4] =
    [calls::CLOSE, calls::CLOSE_RANGE, calls::DUP2, calls::DUP3];

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
    /// Marks calls that the extension decides on.
    pub(crate) fn mark(&self, calls: &[CallId]) {
        for call in calls {
            let word = &self.special[usize::from(call / 64) & 1];
            word.fetch_or(1 << (call % 64), Ordering::SeqCst);
        }
    }

    /// Buckets that are in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        let all = self.masks.iter().chain(&self.narrowed);
        all.fold(0, |all, mask| all | mask.load(Ordering::Relaxed))
    }

    /// Buckets of limits on some descriptors, or per stream.
    #[must_use]
    pub fn narrowed(&self) -> u64 {
        let calls = self.narrowed.iter();
        calls.fold(0, |all, mask| all | mask.load(Ordering::Relaxed))
    }

    #[cfg(all(feature = "std", not(loom)))]
    pub(crate) fn set_group_bytes(&self, thing: usize, bytes: bool) {
        let others = self.group_bytes.load(Ordering::Relaxed) & !(1 << thing);
        let word = others | u64::from(bytes) << thing;
        self.group_bytes.store(word, Ordering::Relaxed);
    }

    /// What a call draws on of the service's group, a bit for each of `groups`.
    #[must_use]
    pub fn grouped(&self, call: CallId) -> u8 {
        let word = self.grouped.get(usize::from(call / 8));
        let bits = word.map_or(0, |word| word.load(Ordering::Relaxed));
        bits.to_le_bytes()[usize::from(call % 8)]
    }

    /// Copies another configuration into this one, which is not in force.
    pub fn copy_from(&self, other: &Self) {
        let copy = |to: &[AtomicU64], from: &[AtomicU64]| {
            for (to, from) in to.iter().zip(from) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        };
        copy(&self.masks, &other.masks);
        copy(&self.narrowed, &other.narrowed);
        copy(&self.special, &other.special);
        copy(&self.groups, &other.groups);
        copy(&self.grouped, &other.grouped);
        let one = core::slice::from_ref;
        copy(one(&self.byte_buckets), one(&other.byte_buckets));
        copy(one(&self.per_stream), one(&other.per_stream));
        copy(one(&self.group_bytes), one(&other.group_bytes));
        for (to, from) in self.curves.iter().zip(&other.curves) {
            for (to, from) in to.0.iter().zip(&from.0) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }
}

/// Reads of a consistent configuration: `read` may see words of two
/// configurations, in which case it is run again.
pub(crate) fn consistent<C, T>(
    epoch: &crate::sync::AtomicU32,
    configs: &[C; 2],
    mut read: impl FnMut(&C) -> T,
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

    /// Makes the closing of descriptors be decided on from here on, in every process: a
    /// ring must not be kept beyond the program's last descriptor of it.
    pub fn watch_closing(&self) {
        if self.header.flags.load(Ordering::Relaxed) & flags::RINGS != 0
            && self.is_special(calls::CLOSE)
        {
            return;
        }
        self.header.flags.fetch_or(flags::RINGS, Ordering::SeqCst);
        for config in &self.configs {
            config.mark(&CLOSING);
        }
        // The same copy stays in force; threads that hold leases for such calls give them
        // up.
        if self.header.epoch.0.fetch_add(2, Ordering::Release) >= u32::MAX - 1 {
            self.header.epoch.0.fetch_add(2, Ordering::Release);
        }
    }

    /// Whether a call is decided on with a look at its descriptor.
    #[must_use]
    #[inline(never)]
    pub fn is_special(&self, call: CallId) -> bool {
        // One word of the copy in force: no retry is needed.
        let config = &self.configs[(self.epoch() & 1) as usize];
        let word = config.special[usize::from(call / 64) & 1].load(Ordering::Relaxed);
        word >> (call % 64) & 1 != 0
    }

    /// True where a limit, or the service's group, is on a call, whatever its descriptor is.
    #[must_use]
    pub fn is_limited(&self, call: CallId) -> bool {
        let (_, limited) = self.with_config(|config| {
            let of = |masks: &[AtomicU64; ROWS]| {
                let mask = masks.get(usize::from(call));
                mask.is_some_and(|mask| mask.load(Ordering::Relaxed) != 0)
            };
            of(&config.masks) || of(&config.narrowed) || config.grouped(call) != 0
        });
        limited
    }

    /// Entries that are limited, of those whose bits are in `set`.
    pub fn limited_of(&self, set: [u64; 2]) -> impl Iterator<Item = CallId> {
        let entries = (0_u8..).take(calls::CALLS.len());
        let is_set = move |call: CallId| set[usize::from(call / 64) & 1] >> (call % 64) & 1 != 0;
        entries.filter(move |call| is_set(*call) && self.is_limited(*call))
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
