//! Leases under limits that do not bind: as long as nothing is held, calls that no
//! descriptor makes a difference to are paid for in advance, a quantum at a time, and
//! those that send or only come and go take the library's fast path.
//!
//! # Invariants
//! 1. A lease is of units that are due, booked like the library's own leases, and gone with
//!    the limits it was granted under. What it has of a group is part of what the group has
//!    granted, and is booked there; a change of the group's terms leaves it.
//! 2. While something is held, each call of the thread that was refused is looked at.

use crate::beside;
use crate::calls;
use crate::claim::Claim;
use crate::facts::{fact, facts};
use crate::group::{self, Shares};
use crate::held;
use crate::own::{Entry, Own, UNLIMITED};
use bonsai_bucket::QUANTUM_NS;
use bonsai_calls::{CLOSE, CallId};
use bonsai_ledger::{Segment, flags};
use core::sync::atomic::Ordering;

/// A lease is at least so many times what the call needs.
const WORTH: u64 = 8;

/// Pays for `short` bytes and a quantum beyond them, if all of that is due; else nothing
/// has changed. Of a group, that is part of what the service has been granted already.
pub(crate) fn grant(
    segment: &Segment,
    entry: &mut Entry,
    claim: &Claim,
    short: u64,
    now: u64,
) -> bool {
    let (mask, byte_buckets, shares) = (claim.mask, claim.byte_buckets, claim.shares);
    if claim.counts() != (true, false) || !held::nothing() {
        return false;
    }
    let (most, _) = segment.quantum(mask, byte_buckets, QUANTUM_NS);
    let most = most.min(u64::from(u32::MAX / 2));
    if most / WORTH < short || mask != 0 && segment.line(mask, now).is_some() {
        return false;
    }
    let booked = core::mem::take(&mut entry.lease_bytes).into();
    segment.end_lease(mask, byte_buckets, booked, 0, claim.epoch);
    let mut lease = most;
    if shares.any() {
        group::end_lease(segment, shares, booked, claim.epoch);
        match group::lease(segment, shares, short, most, claim.epoch) {
            Some(some) => lease = some,
            None => return false,
        }
    }
    let Some(got) = lease_own(segment, claim, short, lease, now) else {
        group::end_lease(segment, shares, lease, claim.epoch);
        group::give_back(segment, shares, short + lease, 0);
        return false;
    };
    group::end_lease(segment, shares, lease - got, claim.epoch);
    group::give_back(segment, shares, lease - got, 0);
    entry.bytes += i64::try_from(got).unwrap_or(0);
    entry.lease_bytes = u32::try_from(got).unwrap_or(0);
    true
}

/// The same of the service's own limits; returns the lease.
pub(crate) fn lease_own(
    segment: &Segment,
    claim: &Claim,
    short: u64,
    lease: u64,
    now: u64,
) -> Option<u64> {
    let (mask, byte_buckets) = (claim.mask, claim.byte_buckets);
    if mask == 0 {
        return Some(lease);
    }
    let tickets = segment.take(mask, byte_buckets, short + lease, 0, now)?;
    if segment.stale(&tickets) || segment.due(&tickets, now) > now {
        segment.refund(&tickets, short + lease, 0);
        return None;
    }
    let (got, _) = segment.lease(mask, byte_buckets, lease, 0, claim.epoch);
    segment.refund(&tickets, lease - got, 0);
    Some(got)
}

/// See [`crate::extension::Release`]: what the library does not know of is what the group
/// gave.
pub(crate) unsafe extern "C" fn release(segment: &Segment, own: &mut Own, call: CallId) {
    let Some(entry) = own.entries.get_mut(usize::from(call)) else {
        return;
    };
    let (epoch, (shares, narrowed)) = segment.with_config(|config| {
        let narrowed = config.narrowed.get(usize::from(call));
        let narrowed = narrowed.map_or(0, |word| word.load(Ordering::Relaxed));
        (Shares::of(config, call), narrowed)
    });
    if narrowed != 0 {
        beside::release(segment, entry, call);
    } else if shares.any() {
        group::end_lease(segment, shares, entry.lease_bytes.into(), epoch);
        let left = u64::try_from(entry.bytes).unwrap_or(0);
        group::give_back(segment, shares, left.min(entry.lease_bytes.into()), 0);
    }
}

/// After a call that is the same for every descriptor: what it leaves to the next one of
/// its kind.
pub(crate) fn keep(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    claim: &Claim,
    had_credit: bool,
) {
    let crowd = own.crowd;
    let Some(entry) = own.entries.get_mut(usize::from(call)) else {
        return;
    };
    let (bytes, counted) = claim.counts();
    let limited = claim.mask != 0 || claim.shares.any();
    if crowd || had_credit || !bytes && limited {
        (entry.bytes, entry.calls) = (0, 0);
        return;
    }
    entry.bytes = if bytes { entry.bytes } else { 0 };
    let shape = facts(call) & (fact::IN | fact::OUT);
    let unseen = match (shape, limited) {
        // What comes in is paid for afterwards, so that each call is looked at.
        (fact::IN, _) => false,
        (fact::OUT, _) => !counted,
        // What is known of a number ends when it is closed: that is looked at where there
        // is such a thing, or where other threads may come to know something.
        (_, false) if calls::gives_descriptor(call) => !knows_numbers(segment),
        (_, false) => call == CLOSE && !knows_numbers(segment) && !held::has_threads(),
        _ => false,
    };
    entry.calls = if unseen && held::nothing() {
        UNLIMITED
    } else {
        0
    };
}

/// Whether something is known of each number: there is a limit on some descriptors, or a
/// ring.
fn knows_numbers(segment: &Segment) -> bool {
    let known = flags::NARROWED | flags::RINGS;
    segment.header.flags.load(Ordering::Relaxed) & known != 0
}

/// Something is held: the thread's calls are looked at from now on.
pub(crate) fn look_at_all(own: &mut Own) {
    for entry in &mut own.entries {
        entry.calls = entry.calls.min(0);
    }
}
