//! Paying for a call of which the descriptor matters: tickets and waits. What a thread
//! holds belongs to one descriptor, so it keeps nothing from call to call, and has leases
//! only where no descriptor makes a difference (`ahead.rs`).

pub(crate) use crate::patience::{Patience, Timeout};

use crate::ahead;
use crate::beside;
use crate::claim::Claim;
use crate::facts::{fact, facts};
use crate::group;
use crate::held::Way;
use crate::hold::{self, Lack};
use crate::kept::Kept;
use crate::own::Own;
use crate::sys;
use crate::wait::{self, Wait, Waiter};
use bonsai_calls::CallId;
use bonsai_ledger::{Segment, Unshaped};

/// The shortest part of a call.
const PAGE: u64 = bonsai_decide::PAGE as u64;

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
    let Some(claim) = Claim::current(own) else {
        return Wait::Due;
    };
    let crowd = own.crowd;
    let Some(entry) = own.entries.get_mut(usize::from(call)) else {
        return Wait::Due;
    };
    let (has_bytes, has_calls) = claim.counts();
    let missing = |has: bool, held: i64, need: u64| {
        let need = i64::try_from(need).unwrap_or(i64::MAX);
        let short = if has { need.saturating_sub(held) } else { 0 };
        u64::try_from(short).unwrap_or(0)
    };
    let short = (
        missing(has_bytes, entry.bytes, bytes),
        missing(has_calls, entry.calls, calls),
    );
    if short == (0, 0) {
        return Wait::Due;
    }
    let now = sys::now();
    if claim.is_plain && !crowd && ahead::grant(segment, entry, claim, short.0, now) {
        entry.bytes += i64::try_from(short.0).unwrap_or(0);
        return Wait::Due;
    }
    // Bytes that came in have moved: they are owed, whatever becomes of the wait.
    let owed = bytes == 0 && calls == 0;
    let (end, got) = if beside::concerns(claim) && pay_beside(segment, own, claim, call, short, now)
    {
        (Wait::Due, short)
    } else {
        turn(segment, own, claim, (call, patience), (short, owed))
    };
    if let Some(entry) = own.entries.get_mut(usize::from(call)) {
        entry.bytes += i64::try_from(got.0).unwrap_or(0);
        entry.calls += i64::try_from(got.1).unwrap_or(0);
    }
    end
}

/// Pays the part that is not the stream's from the thread's lease (`beside.rs`), and the part of the stream, if both may go at once;
/// nothing otherwise.
#[inline(never)]
fn pay_beside(
    segment: &Segment,
    own: &mut Own,
    claim: &mut Claim,
    call: CallId,
    short: (u64, u64),
    now: u64,
) -> bool {
    if !beside::pay(segment, own, call, claim, short.0, now) {
        return false;
    }
    if claim.len == 0 {
        return true;
    }
    let mask = core::mem::take(&mut claim.mask);
    let line = claim.only_line();
    let is_due =
        pay_leased(segment, claim, line, short) || pay_due(segment, claim, line, short, now);
    claim.mask = mask;
    if !is_due {
        segment.refund_mask(mask, claim.byte_buckets, short.0, 0);
    }
    is_due
}

/// Pays from the lease of the only stream that a claim draws on, without a look at the clock.
#[inline(always)]
fn pay_leased(segment: &Segment, claim: &Claim, line: Line, short: (u64, u64)) -> bool {
    line.is_some_and(|(index, _)| segment.use_stream_lease(index, claim.epoch, short.0))
}

/// Pays what a claim draws on if all of it may go at once, and nothing otherwise.
#[inline(always)]
fn pay_due(segment: &Segment, claim: &Claim, line: Line, short: (u64, u64), now: u64) -> bool {
    if let Some(line) = line
        && segment.take_stream_lease(line, short.0, (claim.epoch, now))
    {
        return true;
    }
    let is_due = claim.take_due(segment, short.0, short.1, now);
    if is_due {
        claim.note(segment, short, 0);
    }
    is_due
}

/// The only line of a stream that a claim draws on ([`Claim::only_line`]).
type Line = Option<(usize, u8)>;

/// Waits for what the service's group has to give, when its own limits have given; returns
/// how that ended, and what there is of both. A call that may be refused is, instead.
#[inline(never)]
fn share(
    segment: &Segment,
    own: &mut Own,
    claim: &Claim,
    (call, patience): (CallId, Patience),
    (got, owed): ((u64, u64), bool),
) -> (Wait, (u64, u64)) {
    let (note, waiter) = (own.note(), own.waiter(call));
    let end = if claim.refusable.is_some() {
        let (mut kept, now) = (Kept::new(claim.shares, got), sys::now());
        let until = kept.due(segment, now);
        if until <= now {
            return (Wait::Due, got);
        }
        if refused(segment, own, claim, call, (&kept, until, owed), now) {
            if owed {
                return (Wait::TimedOut, got);
            }
            // It is noted when it is used.
            claim.note(segment, (got.0.wrapping_neg(), got.1.wrapping_neg()), 0);
            return (Wait::TimedOut, (0, 0));
        }
        let end = kept.sit(segment, patience, waiter);
        if end != Wait::Due && !owed {
            kept.give_back(segment);
        }
        end
    } else {
        group::acquire(segment, claim.shares, got, owed, patience, waiter)
    };
    if let Some(note) = note {
        note.end();
    }
    if end == Wait::Due || owed {
        return (end, got);
    }
    claim.refund_own(segment, got.0, got.1);
    (end, (0, 0))
}

/// Refuses a call that its group does not let go yet, if that is possible.
fn refused(
    segment: &Segment,
    own: &mut Own,
    claim: &Claim,
    call: CallId,
    (kept, until, owed): (&Kept, u64, bool),
    now: u64,
) -> bool {
    // Of what has been paid already: for whoever gives it back.
    let Some(tickets) = claim.take(segment, 0, 0, now) else {
        return false;
    };
    let lack = Lack {
        tickets: &tickets,
        credit: credit(own, claim, call, (kept.units(), owed)),
        shared: *kept,
        until,
    };
    let is_refused = hold::refuse(segment, call, claim, &lack, now);
    if is_refused {
        forget_credit(own, call, owed);
    }
    is_refused
}

/// What a call had is kept with its descriptor, where it is refused before it is made; and
/// all calls of the thread are looked at from now on.
fn forget_credit(own: &mut Own, call: CallId, owed: bool) {
    if let Some(entry) = own.entries.get_mut(usize::from(call)).filter(|_| !owed) {
        (entry.bytes, entry.calls) = (entry.bytes.min(0), entry.calls.min(0));
    }
    ahead::look_at_all(own);
}

/// Takes bytes and calls that a claim draws on, and waits for them if need be; returns how
/// that ended, and what there is of them.
#[inline]
pub(crate) fn turn(
    segment: &Segment,
    own: &mut Own,
    claim: &mut Claim,
    what: (CallId, Patience),
    (short, owed): ((u64, u64), bool),
) -> (Wait, (u64, u64)) {
    let line = claim.only_line();
    if pay_leased(segment, claim, line, short) {
        return (Wait::Due, short);
    }
    let now = sys::now();
    let (end, got) = if pay_due(segment, claim, line, short, now) {
        (Wait::Due, short)
    } else {
        wait_for(segment, own, claim, what, (short, owed), now)
    };
    match end {
        Wait::Due if claim.shares.any() => share(segment, own, claim, what, (got, owed)),
        end => (end, got),
    }
}

/// Waits for bytes and calls; returns how that ended, and what there is of them.
#[inline(never)]
fn wait_for(
    segment: &Segment,
    own: &mut Own,
    claim: &mut Claim,
    (call, patience): (CallId, Patience),
    (short, owed): ((u64, u64), bool),
    from: u64,
) -> (Wait, (u64, u64)) {
    let (note, waiter) = (own.note(), own.waiter(call));
    let mut now = from;
    // What is still missing, and what has been earned of it.
    let (mut left, mut earned, mut is_held) = (short, 0, false);
    let end = loop {
        let Some(tickets) = claim.take(segment, left.0, left.1, now) else {
            segment.count_unshaped(Unshaped::TooManyLimits);
            break Wait::Due;
        };
        if !segment.stale(&tickets) && segment.due(&tickets, now) <= now {
            break Wait::Due;
        }
        if claim.refusable.is_some() && !segment.stale(&tickets) {
            let lacks = (left.0 + earned, left.1);
            let lack = Lack {
                tickets: &tickets,
                credit: credit(own, claim, call, (lacks, owed)),
                shared: Kept::new(claim.shares, lacks),
                until: 0,
            };
            if hold::refuse(segment, call, claim, &lack, now) {
                is_held = true;
                break Wait::TimedOut;
            }
        }
        // A little longer than this call needs, so that those which follow need not
        // sleep each: what becomes available meanwhile is not lost.
        let late = segment.later(&tickets);
        let limit = patience.limit(now);
        let (end, woken) = wait::until_due(segment, &late, now, limit, waiter);
        segment.record_wait(call, own.tid as usize, woken - now);
        now = woken;
        if end == Wait::Due || end != Wait::Changed && segment.due(&tickets, now) <= now {
            break Wait::Due;
        }
        // What has become due meanwhile is kept, so that whoever is interrupted again
        // and again gets on all the same.
        let part = match end {
            Wait::Changed => 0,
            _ => segment.due_part(&tickets, left.0, now),
        };
        segment.refund(&tickets, left.0 - part, left.1);
        (left.0, earned) = (left.0 - part, earned + part);
        match end {
            Wait::Changed => claim.fill(segment, call, &mut own.readable),
            // A call that the kernel never interrupts is not interrupted here either.
            Wait::Interrupted if facts(call) & fact::WHOLE != 0 && !own.cancel.is_cancelled() => {}
            end => break end,
        }
    };
    if let Some(note) = note {
        note.end();
    }
    if is_held {
        forget_credit(own, call, owed);
    }
    let got = match end {
        Wait::Due => short,
        // The next call waits for it.
        _ if is_held && owed => short,
        _ if is_held => (0, 0),
        _ => (earned, 0),
    };
    claim.note(segment, got, now - from);
    (end, got)
}

/// What is kept with a refused call, to be used together: what it has already, and what
/// the tickets are for that it lacks. What is owed has been used.
fn credit(own: &Own, claim: &Claim, call: CallId, (lacks, owed): ((u64, u64), bool)) -> (u64, u64) {
    if owed {
        return (0, 0);
    }
    let (has_bytes, has_calls) = claim.counts();
    let of = |has: bool, held: i64| u64::try_from(held).unwrap_or(0) * u64::from(has);
    own.entries.get(usize::from(call)).map_or(lacks, |entry| {
        (
            lacks.0 + of(has_bytes, entry.bytes),
            lacks.1 + of(has_calls, entry.calls),
        )
    })
}

/// First part of a call of `bytes` bytes. A call that may be refused goes with what may go at once, if that is worth it: a program
/// expects a connection that has been idle to take something, and a full bucket has less than a piece.
pub(crate) fn at_once(segment: &Segment, own: &Own, call: CallId, bytes: usize) -> usize {
    let Some(claim) = Claim::current(own) else {
        return bytes;
    };
    if claim.refusable != Some(Way::Out) || claim.shares.any() {
        return bytes;
    }
    let entry = own.entries.get(usize::from(call));
    let paid = entry.map_or(0, |entry| u64::try_from(entry.bytes).unwrap_or(0));
    let full = segment.burst_of(claim.all(), claim.byte_buckets);
    let piece = u64::from(claim.piece(segment, call));
    let least = (full.min(piece) / 4).max(PAGE);
    let lacks = (bytes as u64).saturating_sub(paid);
    if lacks == 0 || bytes as u64 <= least {
        return bytes;
    }
    let part = paid + claim.due_part(segment, lacks, sys::now());
    if part < least {
        return bytes;
    }
    usize::try_from(part / PAGE * PAGE).map_or(bytes, |part| part.min(bytes))
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
