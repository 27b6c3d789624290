//! How calls are paid for: what goes out before, what comes in when it has come.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

use super::job::{Job, Paid};
use super::{KEPT_NS, Next, Performers, locked};
use crate::enforce::drawn::Drawn;
use crate::enforce::serve::Enforcer;
use crate::enforce::threads::AHEAD;

/// How what comes in is paid for.
pub(super) enum Payment<'a> {
    /// Before, as what goes out.
    First,
    /// When it has come, while nobody else owes anything.
    Then { _turn: MutexGuard<'a, ()> },
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

impl Performers {
    /// How a job's next piece is paid for. No lock is held over what may wait for a device: everybody would wait with it.
    pub(super) fn payment(&self, job: &Job, drawn: Drawn, piece: u64) -> Payment<'_> {
        let is_paid = job.paid.as_ref().is_some_and(|paid| paid.bytes > 0);
        if !job.plan.is_in() || !drawn.counts_bytes() || is_paid {
            return Payment::First;
        }
        if !job.may_hang() {
            return Payment::Then {
                _turn: locked(&self.turn),
            };
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
        if moved > 0 {
            job.handle.is_timed.store(false, Ordering::Relaxed);
        }
        if owes {
            let bytes = drawn.mask & drawn.byte_buckets;
            // A debt: whoever comes next waits for it.
            let _ = self.ledger.take(bytes, drawn.byte_buckets, moved, 0, now);
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
