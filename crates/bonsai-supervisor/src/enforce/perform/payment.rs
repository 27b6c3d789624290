//! How calls are paid for: what goes out before, what comes in when it has come.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::job::{Job, MOST, Paid};
use super::{KEPT_NS, Next, Performers, locked};
use crate::enforce::drawn::Drawn;
use crate::enforce::serve::Enforcer;
use crate::enforce::threads::AHEAD;

/// A turn that is waited for, but not for ever: a call that has it may be held up by memory of a file whose server does not answer.
#[derive(Debug, Default)]
pub(super) struct Turn {
    is_taken: Mutex<bool>,
    is_free: Condvar,
    /// A wait for the turn timed out, and the turn has not been given back since.
    is_held_up: AtomicBool,
}

/// Longest wait for the turn.
const TURN: Duration = Duration::from_millis(20);

/// A turn, until it is dropped.
#[derive(Debug)]
pub(super) struct Taken<'a>(&'a Turn);

impl Turn {
    fn take(&self) -> Option<Taken<'_>> {
        let mut is_taken = locked(&self.is_taken);
        if *is_taken && !self.is_held_up.load(Ordering::Relaxed) {
            let waited = self
                .is_free
                .wait_timeout_while(is_taken, TURN, |taken| *taken);
            is_taken = waited.unwrap_or_else(PoisonError::into_inner).0;
            self.is_held_up.store(*is_taken, Ordering::Relaxed);
        }
        if *is_taken {
            return None;
        }
        *is_taken = true;
        Some(Taken(self))
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *locked(&self.0.is_taken) = false;
        self.0.is_held_up.store(false, Ordering::Relaxed);
        self.0.is_free.notify_one();
    }
}

/// How what comes in is paid for.
pub(super) enum Payment<'a> {
    /// Before, as what goes out.
    First,
    /// When it has come, while nobody else owes anything.
    Then { _turn: Taken<'a> },
    /// When it has come, of what may be ahead.
    Ahead { ahead: &'a AtomicU64, bytes: u64 },
}

impl Drop for Payment<'_> {
    fn drop(&mut self) {
        if let Self::Ahead { ahead, bytes } = self {
            ahead.fetch_sub(*bytes, Ordering::Relaxed);
        }
    }
}

/// Bytes of all copies of calls that are longer than a piece, at most.
const LARGE: u64 = 64 * MOST;

/// Memory for a copy, until it is dropped.
pub(super) struct Copy<'a> {
    large: &'a AtomicU64,
    bytes: u64,
}

impl Drop for Copy<'_> {
    fn drop(&mut self) {
        self.large.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Performers {
    /// Memory for a copy of `bytes` bytes, or of a piece of them where too much is in use.
    pub(super) fn copy(&self, bytes: u64) -> (u64, Copy<'_>) {
        let large = &self.large;
        let fits = |sum: u64| sum.checked_add(bytes).filter(|sum| *sum <= LARGE);
        let is_short = bytes <= MOST;
        if !is_short
            && large
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
                .is_ok()
        {
            return (bytes, Copy { large, bytes });
        }
        (bytes.min(MOST), Copy { large, bytes: 0 })
    }

    /// How a job's next piece is paid for. No lock is held over what may wait for a device: everybody would wait with it.
    pub(super) fn payment(&self, job: &Job, drawn: Drawn, piece: u64) -> Payment<'_> {
        let is_paid = job.paid.as_ref().is_some_and(|paid| paid.bytes > 0);
        if !job.plan.is_in() || !drawn.counts_bytes() || is_paid {
            return Payment::First;
        }
        if !job.may_hang()
            && let Some(taken) = self.turn.take()
        {
            return Payment::Then { _turn: taken };
        }
        let ahead = &self.ahead;
        let fits = |sum: u64| sum.checked_add(piece).filter(|sum| *sum <= AHEAD);
        match ahead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Payment::Ahead {
                ahead,
                bytes: piece,
            },
            Err(_) => Payment::First,
        }
    }
}

impl Enforcer {
    /// Charges what an attempt has moved.
    pub(super) fn use_up(&self, job: &mut Job, drawn: Drawn, (moved, owes): (u64, bool), now: u64) {
        job.done += moved;
        job.counted = true;
        let result = moved;
        let moved = job.moved_of(result);
        job.unmoved += result - moved;
        if moved > 0 {
            job.handle.is_timed.store(false, Ordering::Relaxed);
        }
        if owes {
            drawn.owe(&self.ledger, moved, now);
        }
        let Some(paid) = job.paid.as_mut() else {
            return;
        };
        paid.calls = 0;
        paid.bytes = paid.bytes.saturating_sub(moved);
        if owes || paid.bytes == 0 {
            job.paid = None;
        }
    }

    /// Takes tickets for the next piece; what to wait for until they are due.
    pub(super) fn pay(&self, job: &mut Job, drawn: Drawn, bytes: u64, now: u64) -> Option<Next> {
        let is_void = |paid: &Paid| {
            let kept = paid
                .due_since
                .is_some_and(|since| now.saturating_sub(since) > KEPT_NS);
            kept || self.ledger.stale(&paid.tickets)
        };
        if job.paid.as_ref().is_some_and(is_void) {
            self.give_back(job);
        }
        if job.paid.is_none() {
            let calls = u64::from(!job.counted);
            let taken = self
                .ledger
                .take(drawn.mask, drawn.byte_buckets, bytes, calls, now);
            let Some(tickets) = taken else {
                return Some(Next::End(-i64::from(libc::EAGAIN)));
            };
            job.paid = Some(Paid {
                tickets,
                bytes,
                calls,
                due_since: None,
            });
        }
        let paid = job.paid.as_mut()?;
        let due = self.ledger.due_last(&paid.tickets, now);
        if due.0 <= now {
            paid.due_since.get_or_insert(now);
            return None;
        }
        if let Some(thread) = self.state().threads.get(&job.asked.tid) {
            thread.note(&self.ledger, job.entry, job.since, due, now);
        }
        if now >= job.deadline {
            return Some(Next::End(-i64::from(libc::EAGAIN)));
        }
        job.limited_since = Some(now);
        Some(Next::At(due.0.min(job.deadline)))
    }

    /// Gives back what was paid for and not used.
    pub(super) fn give_back(&self, job: &mut Job) {
        if let Some(paid) = job.paid.take() {
            self.ledger.refund(&paid.tickets, paid.bytes, paid.calls);
        }
    }
}
