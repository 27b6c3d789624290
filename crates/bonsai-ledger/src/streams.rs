//! Buckets of streams: a limit that is per stream has one for each.
//!
//! # Definitions
//! A stream is what one descriptor refers to; its *identity* is a number that no other
//! one has at the same time (the inode of a socket). Under each limit that is per
//! stream it has a [`StreamLine`], found by a hash of identity and limit. All of them
//! share the curve of the limit, so that a change of its rate reaches each at once, and
//! only count for themselves how far they are on it.
//!
//! ```text
//!  free (key 0) ──> given out (key 1) ──> of a stream ──idle until full──> may be given
//!                        ^                                                 to another
//!                        └─────────────────────────────────────────────────┘
//! ```
//!
//! A *lease* of a line is of units that were due when they were taken, and are in `used`
//! already: calls use them up without a look at the clock or the curve, in whatever thread or
//! process. It ends with the limits it was granted under.
//!
//! # Invariants
//! 1. A line that has been idle until its bucket was full tells nothing any more: a new
//!    one would be the same. Such lines are given to others; nothing else is.
//! 2. Nobody waits for anybody. Two processes that look for the same stream at the same
//!    instant may get two lines for it.
//! 3. A line's lease is never larger than what its limit has for leases: half of the burst, of
//!    which the curve is only ahead by the other half. So a stream is never further ahead than
//!    by its burst.
//!
//! # Limits
//! [`PROBES`] lines are looked at for a stream; where all of them are in use by others,
//! it gets none. A thread that found its line just before that is given to another
//! stream draws one call's units there. A process killed while it gives out a line
//! takes that with it.

use crate::identity::ProcessId;
use crate::layout::{BucketLine, STREAMS, Segment, StreamLine};
use crate::sync::Ordering;
use crate::take::Tickets;

/// Lines looked at for a stream.
pub const PROBES: usize = 16;

const FREE: u64 = 0;
const GIVEN_OUT: u64 = 1;

/// The units of a lease, of which the rest is its epoch.
const LEFT: u64 = 0xffff_ffff;

/// A lease is at least so many times what its first call needs.
const WORTH: u64 = 4;

/// The key of a stream under the limit of a bucket.
fn key(identity: u64, bucket: u8) -> u64 {
    (identity << 6 | u64::from(bucket & 63)) | 1 << 63
}

/// Where the search for a key starts.
fn start(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

/// What was found for a stream.
enum Place {
    /// Its own line.
    Own(usize),
    /// A line that it can have, and the key that this has.
    Unused(usize, u64),
}

/// The bucket that is part of a key; `None` for none of a stream.
fn bucket_of(key: u64) -> Option<usize> {
    (key >> 63 != 0).then_some((key & 63) as usize)
}

impl StreamLine {
    /// Offsets, for code that is no Rust: of the key, of what was ever asked for and of which time, of what went through, and of the lease.
    pub const PLACES: [usize; 5] = [
        core::mem::offset_of!(Self, key),
        core::mem::offset_of!(Self, issued),
        core::mem::offset_of!(Self, generation),
        core::mem::offset_of!(Self, used),
        core::mem::offset_of!(Self, lease),
    ];

    /// The bucket of the limit that it is under; `None` where it is free.
    #[must_use]
    pub fn bucket(&self) -> Option<usize> {
        bucket_of(self.key.load(Ordering::Acquire))
    }

    /// Its stream.
    #[must_use]
    pub fn identity(&self) -> u64 {
        (self.key.load(Ordering::Acquire) & !(1 << 63)) >> 6
    }

    /// Units that went through.
    #[must_use]
    pub fn used(&self) -> u64 {
        // First, because a lease is counted there before it is here.
        let left = self.lease.load(Ordering::Acquire) & LEFT;
        self.used.load(Ordering::Relaxed).saturating_sub(left)
    }

    /// Units that its lease has left under the limits of `epoch`.
    fn left(&self, epoch: u32) -> u64 {
        let lease = self.lease.load(Ordering::Relaxed);
        if lease >> 32 == u64::from(epoch) {
            lease & LEFT
        } else {
            0
        }
    }

    /// Uses up units of its lease, if there are as many.
    fn use_lease(&self, epoch: u32, units: u64) -> bool {
        let mut lease = self.lease.load(Ordering::Relaxed);
        while lease >> 32 == u64::from(epoch) && lease & LEFT >= units {
            let next = lease - units;
            match self.lease.compare_exchange_weak(
                lease,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(seen) => lease = seen,
            }
        }
        false
    }

    /// Adds units to its lease, which stays within `most`; what was left of an earlier epoch's,
    /// which is over, or `None` where that cannot be.
    fn lend(&self, epoch: u32, units: u64, most: u64) -> Option<u64> {
        let lease = self.lease.load(Ordering::Relaxed);
        let is_old = lease >> 32 != u64::from(epoch);
        let left = if is_old { 0 } else { lease & LEFT };
        if left + units > most.min(LEFT) {
            return None;
        }
        let next = u64::from(epoch) << 32 | (left + units);
        self.lease
            .compare_exchange(lease, next, Ordering::Release, Ordering::Relaxed)
            .is_ok()
            .then_some(if is_old { lease & LEFT } else { 0 })
    }

    fn start_count(&self) {
        self.lease.store(0, Ordering::Relaxed);
        for word in [&self.used, &self.waited_ns, &self.waits] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Counts what went through, and what was waited for.
    pub fn note(&self, units: u64, waited_ns: u64) {
        self.used.fetch_add(units, Ordering::Relaxed);
        if waited_ns > 0 {
            self.waited_ns.fetch_add(waited_ns, Ordering::Relaxed);
            self.waits.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Segment {
    /// The line of a stream under the limit of `bucket` at `now`, made if need be: its
    /// index. `populate` brings the page of a line in and says whether that went well.
    /// `None` where there is no room.
    pub fn stream(
        &self,
        identity: u64,
        bucket: u8,
        (process, fd): (ProcessId, u32),
        now: u64,
        mut populate: impl FnMut(&StreamLine) -> bool,
    ) -> Option<usize> {
        let key = key(identity, bucket);
        // Whoever is a moment too late looks once more.
        let (i, seen) = match self.place(key, now, &mut populate)? {
            Place::Own(i) => return Some(i),
            Place::Unused(i, seen) if self.give_out(i, seen) => (i, seen),
            Place::Unused(..) => match self.place(key, now, &mut populate)? {
                Place::Own(i) => return Some(i),
                Place::Unused(i, seen) if self.give_out(i, seen) => (i, seen),
                Place::Unused(..) => return None,
            },
        };
        let line = &self.streams[i];
        if let Some((_, limit)) = self.limit_of(line, seen) {
            // What its last stream had is not forgotten.
            for (all, own) in [
                (&limit.used, line.used()),
                (&limit.waited[0], line.waited_ns.load(Ordering::Relaxed)),
                (&limit.waited[1], line.waits.load(Ordering::Relaxed)),
            ] {
                all.fetch_add(own, Ordering::Relaxed);
            }
        }
        let (generation, floor) = self.stream_floor(usize::from(bucket), now);
        line.issued.store(floor, Ordering::Relaxed);
        line.generation.store(generation, Ordering::Relaxed);
        line.pid.store(process.pid, Ordering::Relaxed);
        line.namespace.store(process.namespace, Ordering::Relaxed);
        line.fd.store(fd, Ordering::Relaxed);
        line.start_count();
        line.key.store(key, Ordering::Release);
        Some(i)
    }

    /// The line that has this key, or one that it can have: a free one, or one that has
    /// been idle.
    fn place(
        &self,
        key: u64,
        now: u64,
        populate: &mut impl FnMut(&StreamLine) -> bool,
    ) -> Option<Place> {
        let mut page = None;
        let (mut free, mut idle) = (None, None);
        for i in (0..PROBES).map(|i| start(key).wrapping_add(i) % STREAMS) {
            let line = &self.streams[i];
            if page.replace(i / 64) != Some(i / 64) && !populate(line) {
                continue;
            }
            let seen = line.key.load(Ordering::Acquire);
            if seen == key {
                return Some(Place::Own(i));
            }
            if seen == FREE {
                free = free.or(Some((i, seen)));
            } else if free.is_none() && idle.is_none() && self.is_idle(line, now) {
                idle = Some((i, seen));
            }
        }
        free.or(idle).map(|(i, seen)| Place::Unused(i, seen))
    }

    fn give_out(&self, index: usize, seen: u64) -> bool {
        let key = &self.streams[index].key;
        let given = key.compare_exchange(seen, GIVEN_OUT, Ordering::Acquire, Ordering::Relaxed);
        given.is_ok()
    }

    /// The limit that a line with this key is under, if that is still the same.
    fn limit_of(&self, line: &StreamLine, key: u64) -> Option<(usize, &BucketLine)> {
        let bucket = bucket_of(key)?;
        let limit = self.lines.get(bucket)?;
        let same = line.generation.load(Ordering::Relaxed) == limit.generation();
        same.then_some((bucket, limit))
    }

    /// Whether a line is still the one of a stream under a limit.
    #[must_use]
    pub fn is_stream(&self, index: usize, identity: u64, bucket: u8) -> bool {
        let line = self.streams.get(index);
        line.is_some_and(|l| l.key.load(Ordering::Acquire) == key(identity, bucket))
    }

    fn stream_floor(&self, bucket: usize, now: u64) -> (u32, u64) {
        let generation = self.lines[bucket].generation();
        (generation, self.curve(bucket).0.floor(now))
    }

    /// Whether the bucket of a line is full: it has been idle.
    fn is_idle(&self, line: &StreamLine, now: u64) -> bool {
        let Some(bucket) = line.bucket() else {
            return false;
        };
        let (generation, _) = self.stream_floor(bucket, now);
        let (curve, _) = self.curve(bucket);
        line.generation.load(Ordering::Relaxed) != generation
            || curve.level(line.issued.load(Ordering::Relaxed), now)
                >= i64::try_from(curve.burst).unwrap_or(i64::MAX)
    }

    /// Takes a ticket for `units` on the line of a stream, beside those in `taken`.
    /// False where there are too many.
    pub fn take_stream(
        &self,
        taken: &mut Tickets,
        (index, bucket): (usize, u8),
        is_bytes: bool,
        units: u64,
        now: u64,
    ) -> bool {
        let line = &self.streams[index];
        let i = usize::from(bucket);
        let (generation, floor) = self.stream_floor(i, now);
        if line.generation.load(Ordering::Relaxed) != generation {
            // Of another limit's time: as if it were new.
            line.start_count();
            line.issued.store(floor, Ordering::Relaxed);
            line.generation.store(generation, Ordering::Relaxed);
        }
        let (curve, _) = self.curve(i);
        let position = crate::take::advance(&line.issued, &curve, units, now);
        #[expect(clippy::cast_possible_truncation, reason = "there are 8192")]
        taken.push(position, generation, (bucket, is_bytes), index as u16 + 1)
    }

    /// Takes `units` on the line of a stream if they may go at `now`, and nothing
    /// otherwise.
    #[must_use]
    pub fn take_stream_due(&self, (index, bucket): (usize, u8), units: u64, now: u64) -> bool {
        let bucket = usize::from(bucket);
        let (Some(line), Some(limit)) = (self.streams.get(index), self.lines.get(bucket)) else {
            return false;
        };
        let (curve, _) = self.curve(bucket);
        line.generation.load(Ordering::Relaxed) == limit.generation()
            && crate::take::advance_due(&line.issued, &curve, units, now)
    }

    /// Units that the lease of a stream has left under the limits of `epoch`; 0 if the line is
    /// another's.
    #[must_use]
    pub fn stream_lease(&self, (index, bucket): (usize, u8), identity: u64, epoch: u32) -> u64 {
        match self.streams.get(index) {
            Some(line) if line.key.load(Ordering::Acquire) == key(identity, bucket) => {
                line.left(epoch)
            }
            _ => 0,
        }
    }

    /// Uses up units of the lease of a line, if there are as many under the limits of `epoch`.
    #[must_use]
    pub fn use_stream_lease(&self, index: usize, epoch: u32, units: u64) -> bool {
        let line = self.streams.get(index);
        line.is_some_and(|line| line.use_lease(epoch, units))
    }

    /// Takes `units` on the line of a stream, and a lease for those that follow, if all of
    /// that may go at `now` under the limits of `epoch`, and counts them; nothing otherwise.
    #[must_use]
    pub fn take_stream_lease(
        &self,
        (index, bucket): (usize, u8),
        units: u64,
        (epoch, now): (u32, u64),
    ) -> bool {
        let (Some(line), Some(limit)) =
            (self.streams.get(index), self.lines.get(usize::from(bucket)))
        else {
            return false;
        };
        let (seen, (curve, budget)) =
            self.with_config(|config| config.curves[usize::from(bucket)].load());
        let lease = curve
            .units_in(bonsai_bucket::QUANTUM_NS)
            .min(budget - budget / 4)
            .min(LEFT);
        let same = line.generation.load(Ordering::Relaxed) == limit.generation();
        // Half of one is still there: somebody else has just taken it.
        let has = line.left(epoch) > lease / 2;
        if seen != epoch || !same || has || lease / WORTH < units {
            return false;
        }
        let all = units + lease;
        if !crate::take::advance_due(&line.issued, &curve, all, now) {
            return false;
        }
        line.used.fetch_add(all, Ordering::Relaxed);
        // What is not lent, or was and is not used up, was not used.
        let unused = line.lend(epoch, lease, budget).unwrap_or(lease);
        if unused > 0 {
            line.used.fetch_sub(unused, Ordering::Relaxed);
            line.issued.fetch_sub(unused, Ordering::Relaxed);
        }
        true
    }

    /// Gives back to the line of a stream what a call did not use.
    pub fn refund_stream(&self, index: usize, units: u64) {
        if let Some(line) = self.streams.get(index) {
            line.issued.fetch_sub(units, Ordering::Relaxed);
        }
    }

    /// The same, of what was counted.
    pub fn return_to_stream(&self, index: usize, units: u64) {
        if let Some(line) = self.streams.get(index) {
            line.issued.fetch_sub(units, Ordering::Relaxed);
            line.used.fetch_sub(units, Ordering::Relaxed);
        }
    }

    /// Lines of streams in use under the limit of `bucket` as it is now, with their place.
    #[cfg(any(feature = "std", loom, miri))]
    pub fn stream_lines(&self, bucket: usize) -> impl Iterator<Item = &StreamLine> {
        let of = move |line: &&StreamLine| {
            let key = line.key.load(Ordering::Acquire);
            self.limit_of(line, key).is_some_and(|(of, _)| of == bucket)
        };
        self.streams.iter().filter(of)
    }
}
