//! Paying for a call of which the descriptor matters: tickets and waits, no leases. What
//! a thread holds belongs to one descriptor, so it keeps nothing from call to call.

pub(crate) use crate::patience::{Patience, Timeout};

use crate::claim::Claim;
use crate::facts::{fact, facts};
use crate::own::Own;
use crate::sys;
use crate::wait::{self, Wait, Waiter};
use bonsai_calls::CallId;
use bonsai_ledger::{Segment, Unshaped, WaitNote};

/// Makes `bytes` and `calls` available to the call under way, and pays for what came in
/// before it was due.
pub(crate) fn acquire(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    bytes: u64,
    calls: u64,
    patience: Patience,
) -> Wait {
    let Some(mut claim) = Claim::current(own).copied() else {
        return Wait::Due;
    };
    let (note, tid) = (own.note(), own.tid);
    let Some(entry) = own.entries.get_mut(usize::from(call)) else {
        return Wait::Due;
    };
    let (has_bytes, has_calls) = claim.counts();
    let missing = |has: bool, held: i64, need: u64| {
        let need = i64::try_from(need).unwrap_or(i64::MAX);
        let short = if has { need.saturating_sub(held) } else { 0 };
        u64::try_from(short).unwrap_or(0)
    };
    let short_bytes = missing(has_bytes, entry.bytes, bytes);
    let short_calls = missing(has_calls, entry.calls, calls);
    // Bytes that came in have moved: they are owed, whatever becomes of the wait.
    let owed = bytes == 0 && calls == 0;
    let end = turn(
        segment,
        (note, tid, call),
        &mut claim,
        (short_bytes, short_calls),
        owed,
        patience,
    );
    if end == Wait::Due || owed {
        entry.bytes += i64::try_from(short_bytes).unwrap_or(0);
        entry.calls += i64::try_from(short_calls).unwrap_or(0);
    }
    end
}

/// Takes tickets for bytes and calls, and waits until they are due. What is not owed is
/// given back if the wait ends early.
pub(crate) fn turn(
    segment: &Segment,
    (note, tid, call): (Option<&WaitNote>, u32, CallId),
    claim: &mut Claim,
    (bytes, calls): (u64, u64),
    owed: bool,
    patience: Patience,
) -> Wait {
    if bytes + calls == 0 {
        return Wait::Due;
    }
    let from = sys::now();
    let mut now = from;
    let end = loop {
        let Some(tickets) = claim.take(segment, bytes, calls, now) else {
            segment.count_unshaped(Unshaped::TooManyLimits);
            break Wait::Due;
        };
        if !segment.stale(&tickets) && segment.due(&tickets, now) <= now {
            break Wait::Due;
        }
        let waiter = Waiter { note, tid, call };
        // A little longer than this call needs, so that those which follow need not
        // sleep each: what becomes available meanwhile is not lost.
        let late = segment.later(&tickets);
        let limit = patience.limit(now);
        let (end, woken) = wait::until_due(segment, &late, now, limit, waiter);
        segment.record_wait(call, tid as usize, woken - now);
        now = woken;
        let end = match end {
            Wait::Due | Wait::Changed => end,
            _ if segment.due(&tickets, now) <= now => Wait::Due,
            // A call that the kernel never interrupts is not interrupted here either.
            Wait::Interrupted if facts(call) & fact::WHOLE != 0 => Wait::Changed,
            end => end,
        };
        match end {
            Wait::Changed => {
                segment.refund(&tickets, bytes, calls);
                *claim = claim.anew(segment, call);
            }
            Wait::Due => break end,
            end => {
                if !owed {
                    segment.refund(&tickets, bytes, calls);
                }
                break end;
            }
        }
    };
    if let Some(note) = note {
        note.end();
    }
    if end == Wait::Due || owed {
        claim.note(segment, bytes, calls, now - from);
    }
    end
}

/// Whether a limit in bytes is on the call under way.
pub(crate) fn counts_bytes(_: &Segment, own: &Own, _: CallId) -> bool {
    Claim::current(own).is_some_and(|claim| claim.counts().0)
}

/// Gives back what was acquired for a call and not used by it.
pub(crate) fn give_back(segment: &Segment, own: &mut Own, call: CallId, bytes: u64, calls: u64) {
    let Some(claim) = Claim::current(own) else {
        return;
    };
    let (has_bytes, has_calls) = claim.counts();
    let Some(entry) = own.entries.get_mut(usize::from(call)) else {
        return;
    };
    let bytes = if has_bytes { bytes } else { 0 };
    let calls = if has_calls { calls } else { 0 };
    entry.bytes -= i64::try_from(bytes).unwrap_or(0);
    entry.calls -= i64::try_from(calls).unwrap_or(0);
    claim.refund(segment, bytes, calls);
}
