//! Tickets: how a call takes its place in the lines of its buckets.

use crate::config::consistent;
use crate::layout::{BUCKETS, BucketLine, Segment};
use crate::sync::{AtomicU64, Ordering};
use bonsai_bucket::Curve;

/// The most buckets one call can draw on.
pub const MAX_TICKETS: usize = 16;

/// The most tickets that can be kept from call to call.
pub const KEPT: usize = 5;

/// For so long leases are booked before their tickets are taken, after one was refused whose
/// ticket was due. What the line holds of such tickets then is lost, a tenth of a second's
/// worth at most where lines are long: 0.3 % of that time.
const REFUSED_MS: u32 = 30_000;

/// Places in the lines of all buckets that a call draws on.
#[derive(Clone, Copy, Debug)]
pub struct Tickets {
    len: u8,
    tickets: [Ticket; MAX_TICKETS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Ticket {
    position: u64,
    generation: u32,
    bucket: u8,
    bytes: bool,
    /// One more than the index of the stream whose line it was taken from; 0 for the
    /// bucket's own.
    stream: u16,
}

impl Tickets {
    /// No tickets.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            len: 0,
            tickets: [Ticket {
                position: 0,
                generation: 0,
                bucket: 0,
                bytes: false,
                stream: 0,
            }; MAX_TICKETS],
        }
    }

    /// Adds one; false where there is no room.
    pub(crate) fn push(
        &mut self,
        position: u64,
        generation: u32,
        (bucket, bytes): (u8, bool),
        stream: u16,
    ) -> bool {
        let Some(free) = self.tickets.get_mut(usize::from(self.len)) else {
            return false;
        };
        *free = Ticket {
            position,
            generation,
            bucket,
            bytes,
            stream,
        };
        self.len += 1;
        true
    }

    /// As words, to be kept; `None` where there are too many.
    #[must_use]
    pub fn to_words(&self) -> Option<[[u64; 2]; KEPT]> {
        let mut words = [[0; 2]; KEPT];
        for (i, t) in self.iter().enumerate() {
            let [bucket, stream] = [u64::from(t.bucket), u64::from(t.stream)];
            let rest = u64::from(t.generation) | bucket << 32 | u64::from(t.bytes) << 40;
            *words.get_mut(i)? = [t.position, rest | 1 << 41 | stream << 48];
        }
        Some(words)
    }

    /// From kept words.
    #[must_use]
    pub fn from_words(words: &[[u64; 2]; KEPT]) -> Self {
        let mut tickets = Self::none();
        for [position, rest] in words.iter().filter(|[_, rest]| rest >> 41 & 1 != 0) {
            let [.., bucket, bits, low, high] = rest.to_le_bytes();
            #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
            let generation = *rest as u32;
            let bucket = (bucket & 63, bits & 1 != 0);
            let stream = u16::from_le_bytes([low, high]);
            tickets.push(*position, generation, bucket, stream);
        }
        tickets
    }

    fn iter(&self) -> impl Iterator<Item = &Ticket> {
        self.tickets.iter().take(usize::from(self.len))
    }
}

/// Takes a ticket for `units` on a counter: first come, first served.
pub(crate) fn advance(counter: &AtomicU64, curve: &Curve, units: u64, now: u64) -> u64 {
    let mut issued = counter.load(Ordering::Relaxed);
    loop {
        // Not fetch_add: a refund between the look and the addition would give a
        // ticket below the floor.
        let floor = curve.raised(issued, now);
        let ticket = floor.wrapping_add(units);
        match counter.compare_exchange_weak(issued, ticket, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return ticket,
            Err(seen) => issued = seen,
        }
    }
}

impl BucketLine {
    /// The counter of a generation.
    #[must_use]
    pub const fn issued(&self, generation: u32) -> &AtomicU64 {
        &self.issued[(generation & 1) as usize]
    }

    /// The generation now in use.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Takes a ticket for `units`: first come, first served.
    #[inline]
    pub fn take(&self, generation: u32, curve: &Curve, units: u64, now: u64) -> u64 {
        advance(self.issued(generation), curve, units, now)
    }

    /// Gives units back.
    pub fn refund(&self, units: u64) {
        self.issued(self.generation())
            .fetch_sub(units, Ordering::Relaxed);
    }

    /// Counts what went through under a limit on some descriptors, or per stream, and
    /// what was waited for.
    pub fn note(&self, units: u64, waited_ns: u64) {
        self.used.fetch_add(units, Ordering::Relaxed);
        if waited_ns > 0 {
            self.waited[0].fetch_add(waited_ns, Ordering::Relaxed);
            self.waited[1].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Raises an idle bucket to its floor, as a change of its curve requires.
    pub fn raise(&self, curve: &Curve, now: u64) {
        self.take(self.generation(), curve, 0, now);
    }

    /// Takes up to `units` of the lease budget under the limits of `epoch`;
    /// returns how many there were. Leases of earlier epochs are void: whoever
    /// holds one gives it back before its next call.
    pub fn lease(&self, units: u64, budget: u64, epoch: u32) -> u64 {
        let budget = budget.min(u64::from(u32::MAX));
        let mut seen = self.leased.load(Ordering::Relaxed);
        loop {
            let (of, out) = unpack(seen);
            let out = match epoch.wrapping_sub(of) {
                0 => out,
                newer if newer < 1 << 31 => 0,
                _ => return 0,
            };
            let granted = units.min(budget.saturating_sub(out));
            if granted == 0 {
                return 0;
            }
            let next = pack(epoch, out + granted);
            match self.leased.compare_exchange_weak(
                seen,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return granted,
                Err(now) => seen = now,
            }
        }
    }

    /// Gives `units` of the lease budget of `epoch` back.
    #[inline(never)]
    pub fn end_lease(&self, units: u64, epoch: u32) {
        let mut seen = self.leased.load(Ordering::Relaxed);
        loop {
            let (of, out) = unpack(seen);
            if of != epoch {
                return;
            }
            let next = pack(epoch, out.saturating_sub(units));
            match self.leased.compare_exchange_weak(
                seen,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

/// Milliseconds modulo 2^32.
#[expect(clippy::cast_possible_truncation, reason = "modulo 2^32 is meant")]
const fn ms(now: u64) -> u32 {
    (now / 1_000_000) as u32
}

const fn unpack(word: u64) -> (u32, u64) {
    ((word >> 32) as u32, word & 0xffff_ffff)
}

const fn pack(epoch: u32, out: u64) -> u64 {
    (epoch as u64) << 32 | out
}

/// Takes `units` on a counter if they may go at `now`, and nothing otherwise.
#[inline]
pub(crate) fn advance_due(counter: &AtomicU64, curve: &Curve, units: u64, now: u64) -> bool {
    let floor = curve.floor(now);
    let end = floor.wrapping_add(curve.burst);
    let mut issued = counter.load(Ordering::Relaxed);
    loop {
        let raised = if is_ahead(floor, issued) {
            floor
        } else {
            issued
        };
        let ticket = raised.wrapping_add(units);
        if is_ahead(ticket, end) {
            return false;
        }
        match counter.compare_exchange_weak(issued, ticket, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(seen) => issued = seen,
        }
    }
}

/// Whether one position is ahead of another, modulo 2^64.
const fn is_ahead(a: u64, b: u64) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

/// Runs `each` for every bucket number in a mask.
fn for_each_bit(mut mask: u64, mut each: impl FnMut(usize)) {
    while mask != 0 {
        each(mask.trailing_zeros() as usize);
        mask &= mask - 1;
    }
}

impl Segment {
    pub(crate) fn curve(&self, bucket: usize) -> (Curve, u64) {
        consistent(&self.header.epoch.0, &self.configs, |c| {
            c.curves[bucket].load()
        })
        .1
    }

    /// Takes tickets at `now` in every bucket of `mask`: `bytes` where bytes are
    /// counted, `calls` where calls are. Returns `None`, with nothing taken, if
    /// there are more than [`MAX_TICKETS`].
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a bucket number is below 64"
    )]
    pub fn take(
        &self,
        mask: u64,
        byte_buckets: u64,
        bytes: u64,
        calls: u64,
        now: u64,
    ) -> Option<Tickets> {
        if mask.count_ones() as usize > MAX_TICKETS {
            return None;
        }
        let mut taken = Tickets::none();
        for_each_bit(mask, |i| {
            let is_bytes = byte_buckets & (1 << i) != 0;
            let units = if is_bytes { bytes } else { calls };
            let line = &self.lines[i];
            let generation = line.generation();
            let (curve, _) = self.curve(i);
            taken.tickets[usize::from(taken.len)] = Ticket {
                position: line.take(generation, &curve, units, now),
                generation,
                bucket: i as u8,
                bytes: is_bytes,
                stream: 0,
            };
            taken.len += 1;
        });
        Some(taken)
    }

    /// Takes `units` of a bucket if they may go at `now`, and nothing otherwise: what most
    /// calls need, without a ticket.
    #[must_use]
    pub fn take_due(&self, bucket: usize, units: u64, now: u64) -> bool {
        let Some(line) = self.lines.get(bucket) else {
            return false;
        };
        let generation = line.generation();
        let (_, (curve, _)) = consistent(&self.header.epoch.0, &self.configs, |c| {
            c.curves[bucket].load()
        });
        advance_due(line.issued(generation), &curve, units, now)
    }

    /// The instant, at or after `now`, when all tickets are due under the limits
    /// now in force. A limit that was lifted meanwhile is not waited for.
    #[must_use]
    pub fn due(&self, tickets: &Tickets, now: u64) -> u64 {
        self.due_last(tickets, now).0
    }

    /// The same, and the bucket of the ticket that is due last.
    #[must_use]
    pub fn due_last(&self, tickets: &Tickets, now: u64) -> (u64, u8) {
        let mut last = (now, 0);
        for t in tickets.iter() {
            let i = usize::from(t.bucket);
            if self.lines[i].generation.load(Ordering::Relaxed) == t.generation {
                let due = self.curve(i).0.due(t.position, now);
                if due > last.0 {
                    last = (due, t.bucket);
                }
            }
        }
        last
    }

    /// The same tickets, as if others for a quantum had been taken before each: when
    /// these are due, so are those, and that many units beyond them. No more than the
    /// bucket holds by then, so that nothing is lost.
    #[must_use]
    pub fn later(&self, tickets: &Tickets) -> Tickets {
        let mut later = *tickets;
        for ticket in later.tickets.iter_mut().take(usize::from(tickets.len)) {
            let (curve, _) = self.curve(usize::from(ticket.bucket));
            let more = curve
                .units_in(bonsai_bucket::QUANTUM_NS / 2)
                .min(curve.burst / 2);
            ticket.position = ticket.position.wrapping_add(more);
        }
        later
    }

    /// The same, a whole quantum later, where each bucket holds two of them: else as they
    /// are. Whoever comes for a quantum then finds another one.
    #[must_use]
    pub fn with_another(&self, tickets: &Tickets) -> Tickets {
        let mut later = *tickets;
        for ticket in later.tickets.iter_mut().take(usize::from(tickets.len)) {
            let (curve, _) = self.curve(usize::from(ticket.bucket));
            let quantum = curve.units_in(bonsai_bucket::QUANTUM_NS);
            if curve.burst / 2 < quantum {
                return *tickets;
            }
            ticket.position = ticket.position.wrapping_add(quantum);
        }
        later
    }

    /// How long the longest line of the buckets of `mask` is at `now`, in ns: what a
    /// ticket for nothing would wait. `None` where each has something left.
    #[must_use]
    pub fn line(&self, mask: u64, now: u64) -> Option<u64> {
        let mut longest = None;
        for_each_bit(mask, |i| {
            let line = &self.lines[i];
            let issued = line.issued(line.generation()).load(Ordering::Relaxed);
            let (curve, _) = self.curve(i);
            if curve.level(issued, now) <= 0 {
                let wait = curve.due(curve.raised(issued, now), now) - now;
                longest = longest.max(Some(wait));
            }
        });
        longest
    }

    /// Whether the line of one of the tickets has started anew: its place there is
    /// void, and the call has to take new ones under the limits now in force.
    #[must_use]
    pub fn stale(&self, tickets: &Tickets) -> bool {
        tickets
            .iter()
            .any(|t| self.lines[usize::from(t.bucket)].generation() != t.generation)
    }

    /// Of `bytes` that tickets were taken for, those that are due at `now` in every
    /// bucket that counts bytes: what a wait that ends early has earned so far.
    #[must_use]
    pub fn due_part(&self, tickets: &Tickets, bytes: u64, now: u64) -> u64 {
        let mut due = bytes;
        for t in tickets.iter().filter(|t| t.bytes) {
            let (curve, _) = self.curve(usize::from(t.bucket));
            let missing = curve.missing(t.position, now);
            due = due.min(bytes.saturating_sub(missing));
        }
        due
    }

    /// Units among the last `bytes` and `calls` of tickets that are still to be had at `now` in every bucket; see
    /// [`Curve::fresh`].
    #[must_use]
    pub fn fresh(&self, tickets: &Tickets, (bytes, calls): (u64, u64), now: u64) -> (u64, u64) {
        let (mut fresh_bytes, mut fresh_calls) = (bytes, calls);
        for t in tickets.iter() {
            let fresh = if t.bytes {
                &mut fresh_bytes
            } else {
                &mut fresh_calls
            };
            let (curve, _) = self.curve(usize::from(t.bucket));
            *fresh = curve.fresh(t.position, *fresh, now);
        }
        (fresh_bytes, fresh_calls)
    }

    /// Gives back what a call did not use.
    pub fn refund(&self, tickets: &Tickets, bytes: u64, calls: u64) {
        for t in tickets.iter() {
            let line = &self.lines[usize::from(t.bucket)];
            let units = if t.bytes { bytes } else { calls };
            if units != 0 && line.generation.load(Ordering::Relaxed) == t.generation {
                // Not `line.refund`: the line may be starting anew just now.
                let own = self.streams.get(usize::from(t.stream).wrapping_sub(1));
                let counter = own.map_or_else(|| line.issued(t.generation), |s| &s.issued);
                counter.fetch_sub(units, Ordering::Relaxed);
            }
        }
    }

    /// Gives back units of an earlier ticket of the same limits.
    #[inline(never)]
    pub fn refund_mask(&self, mask: u64, byte_buckets: u64, bytes: u64, calls: u64) {
        for_each_bit(mask, |i| {
            let is_bytes = byte_buckets & (1 << i) != 0;
            let units = if is_bytes { bytes } else { calls };
            if units != 0 {
                self.lines[i].refund(units);
            }
        });
    }

    /// Books a lease of up to `bytes` and `calls` in every bucket of `mask`, and
    /// returns what all of them allow.
    #[must_use]
    pub fn lease(
        &self,
        mask: u64,
        byte_buckets: u64,
        bytes: u64,
        calls: u64,
        epoch: u32,
    ) -> (u64, u64) {
        let (mut got_bytes, mut got_calls) = (bytes, calls);
        let mut booked = [0_u64; BUCKETS];
        for_each_bit(mask, |i| {
            let (_, budget) = self.curve(i);
            let is_bytes = byte_buckets & (1 << i) != 0;
            let got = if is_bytes {
                &mut got_bytes
            } else {
                &mut got_calls
            };
            booked[i] = self.lines[i].lease(*got, budget, epoch);
            *got = booked[i];
        });
        // What an earlier bucket booked beyond the smallest goes back.
        for_each_bit(mask, |i| {
            let is_bytes = byte_buckets & (1 << i) != 0;
            let got = if is_bytes { got_bytes } else { got_calls };
            if booked[i] > got {
                self.lines[i].end_lease(booked[i] - got, epoch);
            }
        });
        (got_bytes, got_calls)
    }

    /// Whether leases have to be booked before their tickets are taken: in a bucket of `mask`
    /// one whose turn had come has found no room within the last 30 s.
    ///
    /// What is booked during a wait is missing to the others all that time, so that leases
    /// are booked when their tickets are due, where their threads use them up at once. Where
    /// threads keep what is left of theirs, that is too late: see [`Segment::refuse_lease`].
    #[must_use]
    pub fn leases_are_short(&self, mask: u64, now: u64) -> bool {
        let mut short = false;
        for_each_bit(mask, |i| {
            let until = self.lines[i].short_until_ms.load(Ordering::Relaxed);
            short |= until.wrapping_sub(ms(now)) <= REFUSED_MS;
        });
        short
    }

    /// Notes that a ticket was due and its lease found no room, or was looked at so late that it was lost. The units are lost: given
    /// back, they would be had by whoever comes next, at the end of the line, when those who
    /// are in it have theirs as well: at a multiple of the rate.
    #[inline(never)]
    pub fn refuse_lease(&self, mask: u64, now: u64) {
        for_each_bit(mask, |i| {
            self.lines[i]
                .short_until_ms
                .store(ms(now).wrapping_add(REFUSED_MS), Ordering::Relaxed);
        });
    }

    /// Ends a lease booked by [`Segment::lease`] with the same mask and epoch.
    #[inline(never)]
    pub fn end_lease(&self, mask: u64, byte_buckets: u64, bytes: u64, calls: u64, epoch: u32) {
        for_each_bit(mask, |i| {
            let is_bytes = byte_buckets & (1 << i) != 0;
            self.lines[i].end_lease(if is_bytes { bytes } else { calls }, epoch);
        });
    }

    /// The bytes that every bucket of `mask` that counts bytes gives in `ns`; the
    /// smallest, `u64::MAX` where there is no such bucket.
    #[must_use]
    pub fn bytes_in(&self, mask: u64, byte_buckets: u64, ns: u64) -> u64 {
        let mut bytes = u64::MAX;
        for_each_bit(mask & byte_buckets, |i| {
            bytes = bytes.min(self.curve(i).0.units_in(ns));
        });
        bytes
    }

    /// The bytes that may be given back to every bucket of `mask` that counts bytes without being lost; the smallest,
    /// `u64::MAX` where there is no such bucket.
    #[must_use]
    pub fn burst_of(&self, mask: u64, byte_buckets: u64) -> u64 {
        let mut bytes = u64::MAX;
        for_each_bit(mask & byte_buckets, |i| {
            bytes = bytes.min(self.curve(i).0.burst);
        });
        bytes
    }

    /// What a thread may take as a lease: the units that every bucket of `mask`
    /// gives in `ns`, at most three quarters of its lease budget; the smallest,
    /// for bytes and for calls. `u64::MAX` where there is no such bucket.
    #[must_use]
    pub fn quantum(&self, mask: u64, byte_buckets: u64, ns: u64) -> (u64, u64) {
        let (mut bytes, mut calls) = (u64::MAX, u64::MAX);
        for_each_bit(mask, |i| {
            let (curve, budget) = self.curve(i);
            let units = curve.units_in(ns).min(budget - budget / 4);
            let least = if byte_buckets & (1 << i) != 0 {
                &mut bytes
            } else {
                &mut calls
            };
            *least = (*least).min(units);
        });
        (bytes, calls)
    }
}
