//! Leases of a thread under limits that are the same for every descriptor, for calls that are under others, too; and under one limit on
//! some descriptors that is not per stream. Without them, each call of each thread would write the lines of those buckets, which all
//! threads share.
//!
//! The entry of the call has the lease, as it has those of calls that are the same for every descriptor (`ahead.rs`); which of them
//! an entry has, depends on the limits in force alone. What is booked is in `lease_bytes`, with a mark of what it is of above
//! (0, or one more than the bucket of the limit on some descriptors); what is left is in `lease_calls`, and the
//! limits that it was granted under in `granted_us`.
//!
//! # Invariants
//! 1. A lease is of units that are due, booked as the library's own are, and void with the limits it was granted under.
//! 2. It is for bytes only. Of limits that no descriptor makes a difference to, what the library ends when a thread ends
//!    (`pay::release`) is what was booked.
//! 3. What was paid with it is paid as if by a ticket: what a call does not use goes back to the buckets, or to the lease. A call that
//!    has to wait, or is refused, does not use it.
//!
//! # Limits
//! What went through under a limit on some descriptors is counted when it is leased: [`FEW`] calls of a thread ahead at most.

use crate::ahead;
use crate::claim::Claim;
use crate::facts::quick_path;
use crate::held;
use crate::own::{Entry, Own};
use bonsai_bucket::QUANTUM_NS;
use bonsai_calls::CallId;
use bonsai_ledger::Segment;

/// Least lease, in needs of a call.
const WORTH: u64 = 8;

/// Longest lease under a limit on some descriptors, in needs of a call.
const FEW: u64 = 128;

/// Longest lease, bytes.
const MOST: u32 = (1 << quick_path::MARK_SHIFT) - 1;

/// What a lease is of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark(u32);

impl Mark {
    /// Limits that no descriptor makes a difference to.
    pub(crate) const ALL: Self = Self(0);

    /// A limit on some descriptors.
    pub(crate) const fn of(bucket: u8) -> Self {
        Self(bucket as u32 + 1)
    }

    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    const fn of_entry(entry: &Entry) -> Self {
        Self(entry.lease_bytes >> quick_path::MARK_SHIFT)
    }

    /// The limit on some descriptors.
    const fn bucket(self) -> Option<u32> {
        self.0.checked_sub(1)
    }

    /// What a claim may have a lease of, if it is on bytes.
    #[inline]
    fn of_claim(claim: &Claim) -> Option<Self> {
        if claim.is_plain || claim.mask == 0 {
            return None;
        }
        if claim.scoped == 0 {
            return Some(Self::ALL);
        }
        #[expect(clippy::cast_possible_truncation, reason = "below 64")]
        let bucket = claim.scoped.trailing_zeros() as u8;
        let is_one = claim.all() == 1 << bucket && claim.scoped == claim.mask;
        is_one.then_some(Self::of(bucket))
    }
}

/// Bytes that the thread has left of such a lease for calls of this kind, under the limits of `epoch`.
#[inline]
pub(crate) fn left(own: &Own, call: CallId, (epoch, mark): (u32, Mark)) -> u64 {
    let entry = own.entries.get(usize::from(call));
    entry.map_or(0, |entry| left_in(entry, epoch, mark))
}

#[inline]
fn left_in(entry: &Entry, epoch: u32, mark: Mark) -> u64 {
    match entry.granted_us == epoch && Mark::of_entry(entry) == mark {
        true => entry.lease_calls.into(),
        false => 0,
    }
}

/// Uses up bytes of such a lease. False, with nothing changed, if a signal handler has used it up meanwhile, or taken another one.
#[inline]
pub(crate) fn spend(own: &mut Own, call: CallId, of: (u32, Mark), bytes: u64) -> bool {
    let enough = left(own, call, of) >= bytes;
    if let Some(entry) = own.entries.get_mut(usize::from(call)).filter(|_| enough) {
        entry.lease_calls -= u32::try_from(bytes).unwrap_or(entry.lease_calls);
    }
    enough
}

/// Gives back what a call did not use, if it is still the same lease.
#[inline]
pub(crate) fn restore(own: &mut Own, call: CallId, (epoch, mark): (u32, Mark), bytes: u64) {
    if let Some(entry) = own.entries.get_mut(usize::from(call))
        && entry.granted_us == epoch
        && Mark::of_entry(entry) == mark
    {
        let bytes = u32::try_from(bytes).unwrap_or(0);
        entry.lease_calls = entry
            .lease_calls
            .saturating_add(bytes)
            .min(entry.lease_bytes & MOST);
    }
}

/// True for a claim of which a part may be paid from a lease.
#[inline]
pub(crate) fn concerns(claim: &Claim) -> bool {
    Mark::of_claim(claim).is_some()
}

/// Pays the part that is not the stream's for `bytes` of a call that this [`concerns`], from the lease, which is taken anew if it is not
/// enough. False, with nothing changed but the lease, where it cannot be.
pub(crate) fn pay(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    claim: &Claim,
    bytes: u64,
    now: u64,
) -> bool {
    let Some(mark) = Mark::of_claim(claim) else {
        return false;
    };
    if claim.counts() != (true, false) || claim.shares.any() || own.crowd {
        return false;
    }
    if left(own, call, (claim.epoch, mark)) < bytes {
        let entry = own.entries.get_mut(usize::from(call));
        return entry.is_some_and(|entry| grant(segment, entry, (claim, mark), bytes, now));
    }
    spend(own, call, (claim.epoch, mark), bytes)
}

/// Pays for `short` bytes and a quantum beyond them, if all of that is due.
fn grant(
    segment: &Segment,
    entry: &mut Entry,
    (claim, mark): (&Claim, Mark),
    short: u64,
    now: u64,
) -> bool {
    let (mask, byte_buckets, epoch) = (claim.mask, claim.byte_buckets, claim.epoch);
    let (most, _) = segment.quantum(mask, byte_buckets, QUANTUM_NS);
    let mut most = most.min(MOST.into());
    if mark != Mark::ALL {
        most = most.min(short.saturating_mul(FEW));
    }
    if most / WORTH < short || !held::nothing() || segment.line(mask, now).is_some() {
        return false;
    }
    if entry.granted_us != epoch {
        (entry.lease_bytes, entry.lease_calls) = (0, 0);
        entry.granted_us = epoch;
    }
    if Mark::of_entry(entry) != mark {
        end(segment, entry, mask, byte_buckets);
    }
    let booked = core::mem::take(&mut entry.lease_bytes) & MOST;
    segment.end_lease(mask, byte_buckets, booked.into(), 0, epoch);
    let kept = u64::from(core::mem::take(&mut entry.lease_calls));
    // The rest of the lease before counts for what the call needs.
    let needs = short.saturating_sub(kept);
    let got = ahead::lease_own(segment, claim, needs, most, now);
    match got {
        Some(got) => {
            entry.lease_calls = u32::try_from(got).unwrap_or(0);
            entry.lease_bytes = entry.lease_calls | mark.number() << quick_path::MARK_SHIFT;
            note(segment, mark, needs + got);
        }
        None => {
            segment.refund_mask(mask, byte_buckets, kept, 0);
            note(segment, mark, kept.wrapping_neg());
        }
    }
    got.is_some()
}

/// Counts what went through under a limit on some descriptors.
fn note(segment: &Segment, mark: Mark, bytes: u64) {
    let bucket = mark
        .bucket()
        .and_then(|bucket| segment.lines.get(bucket as usize));
    if let Some(line) = bucket {
        line.note(bytes, 0);
    }
}

/// Ends a lease under the limits in force, which is of `mask` if no descriptor makes a difference to it; what is left goes back.
fn end(segment: &Segment, entry: &mut Entry, mask: u64, byte_buckets: u64) {
    let mark = Mark::of_entry(entry);
    let mask = mark.bucket().map_or(mask, |bucket| 1 << bucket);
    let (booked, left) = (entry.lease_bytes & MOST, entry.lease_calls);
    (entry.lease_bytes, entry.lease_calls) = (0, 0);
    segment.end_lease(mask, byte_buckets, booked.into(), 0, entry.granted_us);
    segment.refund_mask(mask, byte_buckets, left.into(), 0);
    note(segment, mark, u64::from(left).wrapping_neg());
}

/// The thread ends, or becomes another program: what is left goes back.
pub(crate) fn release(segment: &Segment, entry: &mut Entry, call: CallId) {
    let (epoch, mask, byte_buckets) = segment.mask(call);
    if entry.granted_us == epoch {
        // Under limits that are the same for every descriptor, the library has ended it.
        let is_ended = Mark::of_entry(entry) == Mark::ALL;
        if is_ended {
            segment.refund_mask(mask, byte_buckets, entry.lease_calls.into(), 0);
        } else {
            end(segment, entry, mask, byte_buckets);
        }
    }
}
