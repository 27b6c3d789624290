//! Leases of a thread under the limits of the whole service, for calls that are under limits on some descriptors or per stream,
//! too: without them, each call of each thread would write the lines of those buckets, which all threads share.
//!
//! The entry of the call has the lease, as it has those of calls that are the same for every descriptor (`ahead.rs`); which of both
//! an entry has, depends on the limits in force alone. What is booked is in `lease_bytes`, what is left in `lease_calls`, and the
//! limits that it was granted under in `granted_us`.
//!
//! # Invariants
//! 1. A lease is of units that are due, booked as the library's own are, and void with the limits it was granted under.
//! 2. It is for bytes only, and under limits that no descriptor makes a difference to: what the library ends when a thread ends
//!    (`pay::release`) is what was booked.
//! 3. What was paid with it is paid as if by a ticket: what a call does not use goes back to the buckets, or to the lease. A call that
//!    has to wait, or is refused, does not use it.

use crate::ahead;
use crate::claim::Claim;
use crate::held;
use crate::own::{Entry, Own};
use bonsai_bucket::QUANTUM_NS;
use bonsai_calls::CallId;
use bonsai_ledger::Segment;

/// Least lease, in needs of a call.
const WORTH: u64 = 8;

/// Bytes that the thread has left for calls of this kind, under the limits of `epoch`.
#[inline]
pub(crate) fn left(own: &Own, call: CallId, epoch: u32) -> u64 {
    let entry = own.entries.get(usize::from(call));
    entry.map_or(0, |entry| left_in(entry, epoch))
}

#[inline]
fn left_in(entry: &Entry, epoch: u32) -> u64 {
    match entry.granted_us == epoch {
        true => entry.lease_calls.into(),
        false => 0,
    }
}

/// Uses up what [`left`] has found.
#[inline]
pub(crate) fn spend(own: &mut Own, call: CallId, bytes: u64) {
    if let Some(entry) = own.entries.get_mut(usize::from(call)) {
        // A signal handler may have used up some in between.
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        entry.lease_calls = entry.lease_calls.saturating_sub(bytes);
    }
}

/// Gives back what a call did not use.
#[inline]
pub(crate) fn restore(own: &mut Own, call: CallId, epoch: u32, bytes: u64) {
    if let Some(entry) = own.entries.get_mut(usize::from(call))
        && entry.granted_us == epoch
    {
        let bytes = u32::try_from(bytes).unwrap_or(0);
        entry.lease_calls = entry
            .lease_calls
            .saturating_add(bytes)
            .min(entry.lease_bytes);
    }
}

/// True for a claim on bytes of limits that no descriptor makes a difference to, beside others.
#[inline]
pub(crate) const fn concerns(claim: &Claim) -> bool {
    claim.mask != 0 && claim.scoped == 0 && !claim.is_plain
}

/// Pays the part of the whole service for `bytes` of a call that this [`concerns`], from the lease, which is taken anew if it is not
/// enough. False, with nothing changed but the lease, where it cannot be.
pub(crate) fn pay(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    claim: &Claim,
    bytes: u64,
    now: u64,
) -> bool {
    if claim.counts() != (true, false) || claim.shares.any() || own.crowd {
        return false;
    }
    if left(own, call, claim.epoch) < bytes {
        let entry = own.entries.get_mut(usize::from(call));
        return entry.is_some_and(|entry| grant(segment, entry, claim, bytes, now));
    }
    spend(own, call, bytes);
    true
}

/// Pays for `short` bytes and a quantum beyond them, if all of that is due.
fn grant(segment: &Segment, entry: &mut Entry, claim: &Claim, short: u64, now: u64) -> bool {
    let (mask, byte_buckets, epoch) = (claim.mask, claim.byte_buckets, claim.epoch);
    let (most, _) = segment.quantum(mask, byte_buckets, QUANTUM_NS);
    let most = most.min(u64::from(u32::MAX / 2));
    if most / WORTH < short || !held::nothing() || segment.line(mask, now).is_some() {
        return false;
    }
    if entry.granted_us != epoch {
        (entry.lease_bytes, entry.lease_calls) = (0, 0);
        entry.granted_us = epoch;
    }
    let booked = core::mem::take(&mut entry.lease_bytes).into();
    segment.end_lease(mask, byte_buckets, booked, 0, epoch);
    let kept = core::mem::take(&mut entry.lease_calls);
    // The rest of the lease before counts for what the call needs.
    let needs = short.saturating_sub(kept.into());
    match ahead::lease_own(segment, claim, needs, most, now) {
        Some(got) => {
            entry.lease_bytes = u32::try_from(got).unwrap_or(0);
            entry.lease_calls = entry.lease_bytes;
            true
        }
        None => {
            segment.refund_mask(mask, byte_buckets, kept.into(), 0);
            false
        }
    }
}

/// The thread ends, or becomes another program: what is left goes back.
pub(crate) fn release(segment: &Segment, entry: &Entry, call: CallId) {
    let (epoch, mask, byte_buckets) = segment.mask(call);
    segment.refund_mask(mask, byte_buckets, left_in(entry, epoch), 0);
}
