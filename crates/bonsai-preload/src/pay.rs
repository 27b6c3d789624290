//! Paying for a call: tickets, waits and leases of one thread.

use crate::calls::gives_descriptor;
use crate::extension;
use crate::own::{Entry, Own, UNLIMITED};
pub(crate) use crate::patience::{Patience, Timeout};

use crate::seccomp::is_filtered;
use crate::slots::{fact, facts};
use crate::sys;
use crate::wait::{self, Wait};
use bonsai_bucket::{Pace, QUANTUM_NS, Turn};
use bonsai_calls::{self as calls, CALLS, CallId};
use bonsai_decide::charge::LONGEST_TICKET_NS;
use bonsai_decide::quantum_length;
use bonsai_ledger::{Segment, Tickets, Unshaped};
use core::sync::atomic::Ordering;

/// Microseconds modulo 2^32.
#[expect(clippy::cast_possible_truncation, reason = "modulo 2^32 is meant")]
const fn us(now: u64) -> u32 {
    (now / 1000) as u32
}

/// Brings a thread's leases up to the limits in force. What it holds of a lease
/// was paid for under the earlier limits: it keeps as much of that as the new ones
/// would lease it, and its debts.
pub(crate) fn sync(segment: &Segment, own: &mut Own) {
    let epoch = segment.epoch();
    if own.epoch.load(Ordering::Relaxed) == epoch {
        return;
    }
    if own.synced == epoch && !own.crowd {
        own.epoch.store(epoch, Ordering::Relaxed);
        return;
    }
    own.synced = epoch;
    for (call, entry) in (0_u8..).zip(own.entries.iter_mut().take(CALLS.len())) {
        let (_, mask, bytes) = segment.mask(call);
        if segment.is_special(call) {
            // It never takes the fast path.
            *entry = Entry::NONE;
            continue;
        }
        let (has_bytes, has_calls) = (mask & bytes != 0, mask & !bytes != 0);
        let (most_bytes, most_calls) = segment.quantum(mask, bytes, QUANTUM_NS);
        let keep = |left: i64, most: u64| match u64::try_from(left) {
            Ok(left) if left < UNLIMITED.unsigned_abs() / 2 && !own.crowd => left.min(most),
            _ => 0,
        };
        let wanted = (keep(entry.bytes, most_bytes), keep(entry.calls, most_calls));
        let (kept_bytes, kept_calls) = match (mask, wanted) {
            (0, _) | (_, (0, 0)) => (0, 0),
            _ => segment.lease(mask, bytes, wanted.0, wanted.1, epoch),
        };
        let settled = |has: bool, left: i64, kept: u64| match (has, left) {
            (false, _) => UNLIMITED,
            (true, ..0) => left,
            (true, _) => i64::try_from(kept).unwrap_or(0),
        };
        entry.bytes = settled(has_bytes, entry.bytes, kept_bytes);
        entry.calls = settled(has_calls, entry.calls, kept_calls);
        if is_watched(call) {
            entry.calls = entry.calls.min(0);
        }
        entry.lease_bytes = u32::try_from(kept_bytes).unwrap_or(0);
        entry.lease_calls = u32::try_from(kept_calls).unwrap_or(0);
        entry.piece = if has_bytes {
            quantum_length(most_bytes)
        } else {
            u32::MAX
        };
    }
    // A thread without a page of its own never takes the fast path.
    own.epoch
        .store(if own.crowd { 0 } else { epoch }, Ordering::Relaxed);
}

/// Whether a call never takes the fast path, as there is a filter: what a descriptor is may be
/// known from the call alone that gave it, and libc makes some of these in other ways than we do.
fn is_watched(call: CallId) -> bool {
    is_filtered() && (gives_descriptor(call) || call == calls::PIPE)
}

/// Has a thread look at all of its leases when it comes next.
pub(crate) fn start_anew(own: &mut Own) {
    own.epoch.store(0, Ordering::Relaxed);
    own.synced = 0;
}

/// Makes `bytes` and `calls` available to the thread's next call of an entry, and
/// pays its debts.
///
/// A call that cannot be made in pieces waits for all of its bytes with one ticket,
/// so that such calls go one after the other and not several at a time. Very many
/// bytes take several: a thread that is killed or cancelled while it waits leaves
/// the others no more than one to wait for. What has been waited for when the wait
/// ends early is the thread's for its next call.
pub(crate) fn acquire(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    bytes: u64,
    calls: u64,
    patience: Patience,
) -> Wait {
    let note = own.note();
    let over = || {
        if let Some(note) = note {
            note.end();
        }
    };
    // A wait that was left by `siglongjmp` is over, too.
    over();
    let end = obtain(segment, own, call, bytes, calls, patience);
    over();
    end
}

fn obtain(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    bytes: u64,
    calls: u64,
    patience: Patience,
) -> Wait {
    let goal = i64::try_from(bytes).unwrap_or(i64::MAX);
    let mut deadline = None;
    loop {
        let Some(entry) = own.entries.get(usize::from(call)) else {
            return Wait::Due;
        };
        let mut level = goal;
        if goal.saturating_sub(entry.bytes) > i64::from(entry.piece) {
            let (_, mask, byte_buckets) = segment.mask(call);
            let most = segment.bytes_in(mask, byte_buckets, LONGEST_TICKET_NS);
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            level = entry
                .bytes
                .saturating_add(most.max(i64::from(entry.piece)))
                .min(goal);
        }
        let limit = |now| *deadline.get_or_insert_with(|| patience.limit(now));
        match reach(segment, own, call, level, calls, limit) {
            Wait::Due if level >= goal => return Wait::Due,
            Wait::Due => {}
            Wait::Changed => resync(segment, own, call),
            // A call that the kernel never interrupts is not interrupted here either:
            // the handler has run, the wait goes on.
            Wait::Interrupted
                if facts(call) & fact::WHOLE != 0 && !own.cancel.is_cancelled() => {}
            end => {
                // What the thread has got together for this call must not look like a
                // large lease to the fast path, which does not add up vectors.
                own.epoch.store(0, Ordering::Relaxed);
                return end;
            }
        }
    }
}

/// Follows a change of limits in the middle of a call: what has been paid for it
/// so far stays.
fn resync(segment: &Segment, own: &mut Own, call: CallId) {
    let paid = own.entries.get(usize::from(call)).map_or(0, |e| e.bytes);
    sync(segment, own);
    if let Some(entry) = own.entries.get_mut(usize::from(call))
        && entry.bytes < UNLIMITED / 2
        && paid < UNLIMITED / 2
    {
        entry.bytes = paid;
    }
}

/// Makes at least `level` bytes (below zero: part of a debt) and `calls` calls
/// available: takes tickets for what the thread does not hold yet and a lease
/// beyond that, and waits until they are due. When the wait ends early, nothing
/// is taken and nothing changed.
fn reach(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    level: i64,
    calls: u64,
    deadline: impl FnOnce(u64) -> u64,
) -> Wait {
    let waiter = own.waiter(call);
    let alone = waiter.note.is_some();
    let tid = own.tid;
    let (epoch, mask, byte_buckets) = segment.mask(call);
    if !own.crowd && own.epoch.load(Ordering::Relaxed) != epoch {
        return Wait::Changed;
    }
    let Some(entry) = own.entries.get_mut(usize::from(call)) else {
        return Wait::Due;
    };
    let short = |has: bool, left: i64, need: i64| {
        if has {
            u64::try_from(need.saturating_sub(left)).unwrap_or(0)
        } else {
            0
        }
    };
    let has_bytes = mask & byte_buckets != 0;
    let has_calls = mask & !byte_buckets != 0;
    let short_bytes = short(has_bytes, entry.bytes, level);
    let short_calls = short(
        has_calls,
        entry.calls,
        i64::try_from(calls).unwrap_or(i64::MAX),
    );
    if short_bytes == 0 && short_calls == 0 {
        return Wait::Due;
    }
    // From here on a signal handler's calls must not use what is being counted.
    let (held_bytes, held_calls) = (entry.bytes, entry.calls);
    entry.bytes = if has_bytes { 0 } else { held_bytes };
    entry.calls = if has_calls { 0 } else { held_calls };
    let give_back = |entry: &mut Entry| {
        entry.bytes += if has_bytes { held_bytes } else { 0 };
        entry.calls += if has_calls { held_calls } else { 0 };
    };

    let mut now = sys::now();
    let under = Under {
        mask,
        byte_buckets,
        epoch,
    };
    // What is still to be paid of a call that was made is about one call.
    let size = u64::try_from(level).unwrap_or(0).max(short_bytes);
    let lease = if alone && !is_watched(call) {
        under.ahead(segment, entry, (short_bytes, short_calls), size, now)
    } else {
        Ahead::default()
    };
    let (lease_bytes, lease_calls) = (lease.bytes, lease.calls);

    let want = (short_bytes + lease_bytes, short_calls + lease_calls);
    let Some(tickets) = segment.take(mask, byte_buckets, want.0, want.1, now) else {
        segment.count_unshaped(Unshaped::TooManyLimits);
        give_back(entry);
        return Wait::Due;
    };
    if segment.stale(&tickets) || segment.due_last(&tickets, now).0 > now {
        let from = now;
        let (end, woken) = wait::until_due(
            segment,
            &tickets,
            now,
            deadline(now),
            waiter,
        );
        now = woken;
        segment.record_wait(call, tid as usize, now - from);
        if end != Wait::Due {
            // What has become due meanwhile stays with the thread: whoever is
            // interrupted again and again gets on all the same.
            let earned = match end {
                Wait::Changed => 0,
                _ => segment.due_part(&tickets, want.0, now).min(short_bytes),
            };
            segment.refund(&tickets, want.0 - earned, want.1);
            give_back(entry);
            entry.bytes += i64::try_from(earned).unwrap_or(0);
            return end;
        }
    }
    let (got_bytes, got_calls) = lease.get(segment, under, &tickets, now);
    let signed = |n: u64| i64::try_from(n).unwrap_or(0);
    give_back(entry);
    entry.bytes += if has_bytes {
        signed(short_bytes + got_bytes)
    } else {
        0
    };
    entry.calls += if has_calls {
        signed(short_calls + got_calls)
    } else {
        0
    };
    if alone {
        if short_bytes > 0 {
            entry.lease_bytes = u32::try_from(got_bytes).unwrap_or(0);
        }
        if short_calls > 0 {
            entry.lease_calls = u32::try_from(got_calls).unwrap_or(0);
        }
        entry.granted_us = us(now);
    }
    Wait::Due
}

/// The limits that a call is under.
#[derive(Clone, Copy)]
struct Under {
    mask: u64,
    byte_buckets: u64,
    epoch: u32,
}

/// What a thread takes beyond what its call needs.
#[derive(Clone, Copy, Default)]
struct Ahead {
    bytes: u64,
    calls: u64,
    /// It is booked already.
    is_booked: bool,
}

impl Under {
    /// What to take beyond `short` bytes and calls, of which a call has `size` bytes. What
    /// was booked for the leases that are used up now ends; what is booked for this one stands
    /// in the entry from now on, so that the thread's next turn ends it however this one ends.
    fn ahead(
        self,
        segment: &Segment,
        entry: &mut Entry,
        short: (u64, u64),
        size: u64,
        now: u64,
    ) -> Ahead {
        let (mask, byte_buckets, epoch) = (self.mask, self.byte_buckets, self.epoch);
        let line = segment.line(mask, now);
        let turn = line.map_or(Turn::FIRST, |wait| Turn::after(now, wait));
        let round = line.map(|_| turn.round);
        let (most_bytes, most_calls) = segment.quantum(mask, byte_buckets, turn.ns);
        let next = |last: u32, short: u64, size: u64, most: u64| {
            let pace = Pace {
                lease: last,
                granted_us: entry.granted_us,
            };
            if short == 0 {
                0
            } else {
                pace.next(us(now), short, size, most, round)
            }
        };
        let mut ahead = Ahead {
            bytes: next(entry.lease_bytes, short.0, size, most_bytes),
            calls: next(entry.lease_calls, short.1, 1, most_calls),
            is_booked: segment.leases_are_short(mask, now),
        };
        let mut booked = (0, 0);
        if ahead.is_booked {
            // Before its own ends: who had one leaves the room to the next in line.
            booked = segment.lease(mask, byte_buckets, ahead.bytes, ahead.calls, epoch);
            (ahead.bytes, ahead.calls) = booked;
        }
        let replace = |short: u64, lease: &mut u32, booked: u64| {
            if short == 0 {
                return 0;
            }
            let booked = u32::try_from(booked).unwrap_or(0);
            u64::from(core::mem::replace(lease, booked))
        };
        let ended = (
            replace(short.0, &mut entry.lease_bytes, booked.0),
            replace(short.1, &mut entry.lease_calls, booked.1),
        );
        segment.end_lease(mask, byte_buckets, ended.0, ended.1, epoch);
        ahead
    }
}

impl Ahead {
    /// What there is of it when its tickets are due.
    fn get(self, segment: &Segment, under: Under, tickets: &Tickets, now: u64) -> (u64, u64) {
        let all = (self.bytes, self.calls);
        if all == (0, 0) {
            return all;
        }
        if segment.epoch() != under.epoch {
            // What was booked is void with its epoch.
            segment.refund(tickets, all.0, all.1);
            return (0, 0);
        }
        if self.is_booked {
            return all;
        }
        let (bytes, calls) = segment.fresh(tickets, all, now);
        let got = segment.lease(under.mask, under.byte_buckets, bytes, calls, under.epoch);
        if got != all {
            segment.refuse_lease(under.mask, now);
        }
        got
    }
}

/// Gives back everything a thread holds: it is about to end, or to become another
/// program.
pub(crate) fn release(segment: &Segment, own: &mut Own) {
    if own.crowd || own.epoch.load(Ordering::Relaxed) != segment.epoch() {
        // What belongs to earlier limits is not worth the risk of enriching the
        // present ones.
        return;
    }
    own.epoch.store(0, Ordering::Relaxed);
    for call in (0_u8..).take(CALLS.len()) {
        let Some(entry) = own.entries.get_mut(usize::from(call)) else {
            return;
        };
        let lease = (u64::from(entry.lease_bytes), u64::from(entry.lease_calls));
        let left = |held: i64| match u64::try_from(held) {
            Ok(held) if held < UNLIMITED.unsigned_abs() / 2 => held,
            _ => 0,
        };
        let (bytes, calls) = (left(entry.bytes), left(entry.calls));
        if lease == (0, 0) && bytes + calls == 0 {
            continue;
        }
        let (epoch, mask, byte_buckets) = segment.mask(call);
        segment.end_lease(mask, byte_buckets, lease.0, lease.1, epoch);
        segment.refund_mask(mask, byte_buckets, bytes, calls);
        if lease.0 != 0
            && segment.is_special(call)
            && let Some(extension) = extension::there()
        {
            // SAFETY: the extension's own, for such calls.
            unsafe { (extension.release)(segment, own, call) };
        }
        let Some(entry) = own.entries.get_mut(usize::from(call)) else {
            return;
        };
        (entry.bytes, entry.calls) = (entry.bytes.min(0), entry.calls.min(0));
        (entry.lease_bytes, entry.lease_calls) = (0, 0);
    }
}

/// First part of a call: all `bytes`, as no call is refused here.
pub(crate) const fn at_once(_: &Segment, _: &Own, _: CallId, bytes: usize) -> usize {
    bytes
}

/// Whether a limit in bytes is on a call.
#[inline(always)]
pub(crate) fn counts_bytes(segment: &Segment, _: &Own, call: CallId) -> bool {
    let (_, mask, byte_buckets) = segment.mask(call);
    mask & byte_buckets != 0
}

/// Gives back what was acquired for a call and not used by it.
pub(crate) fn give_back(segment: &Segment, own: &mut Own, call: CallId, bytes: u64, calls: u64) {
    let (_, mask, byte_buckets) = segment.mask(call);
    let Some(entry) = own.entries.get_mut(usize::from(call)) else {
        return;
    };
    let bytes = if mask & byte_buckets != 0 { bytes } else { 0 };
    let calls = if mask & !byte_buckets != 0 { calls } else { 0 };
    entry.bytes -= i64::try_from(bytes).unwrap_or(0);
    entry.calls -= i64::try_from(calls).unwrap_or(0);
    segment.refund_mask(mask, byte_buckets, bytes, calls);
}
