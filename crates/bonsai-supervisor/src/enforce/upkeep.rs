//! What the supervisor does by itself: lets calls go when they are due, has waits computed
//! anew when limits change, and forgets who has ended.

use std::cmp::Reverse;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::serve::{Enforcer, first_of_all, monotonic_ns};
use super::state::State;
use super::threads::{IN, OUT};
use super::{filter, pending};

/// Threads that have ended, and calls that nobody waits for any more, are looked for so
/// often.
const SWEEP: Duration = Duration::from_millis(250);

/// Threads that wait are asked for their signals so often, and so many of them at a time.
const HEAR: Duration = Duration::from_millis(20);
pub(super) const MOST_HEARD: usize = 64;

impl Enforcer {
    /// Lets calls go when they are due, and clears up.
    pub(super) fn ring(self: &Arc<Self>) {
        // SAFETY: concerns this thread only; sleeps end 50 us late otherwise.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        first_of_all();
        let (mut heard, mut turn) = (0, 0);
        let mut last = [(0, 0); 2];
        let mut state = self.state();
        while !self.has_ended() {
            let now = monotonic_ns();
            while let Some(Reverse((due, alarm, tid))) = state.alarms.peek().copied() {
                if due > now {
                    break;
                }
                state.alarms.pop();
                let waits = state
                    .threads
                    .get(&tid)
                    .and_then(|thread| thread.wait.as_ref());
                if waits.is_some_and(|wait| wait.alarm == alarm) {
                    self.look(&mut state, tid, now);
                }
            }
            if u128::from(now.saturating_sub(state.swept)) >= SWEEP.as_nanos() {
                self.sweep(&mut state, now);
            }
            for (shift, last) in [&self.hearing, &self.parking].into_iter().zip(&mut last) {
                if shift.is_held_up(last, now, HEAR.as_nanos()) {
                    // Without a thread now, the next turn tries again.
                    let _ = self.relieve(shift);
                }
            }
            let hears = filter::waits_killable() && !state.alarms.is_empty();
            if hears && u128::from(now.saturating_sub(heard)) >= HEAR.as_nanos() {
                heard = now;
                turn += MOST_HEARD;
                self.hear_signals(&state, turn, now);
            }
            let next = state.alarms.peek().map_or(u64::MAX, |Reverse(next)| next.0);
            let is_busy = self.hearing.is_busy() || self.parking.is_busy();
            let most = if hears || is_busy { HEAR } else { SWEEP };
            let pause = Duration::from_nanos(next.saturating_sub(monotonic_ns())).min(most);
            let waited = self.alarm.wait_timeout(state, pause);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Lets threads that have waited for a while take their signals: the call keeps its place if it is made again.
    fn hear_signals(&self, state: &State, turn: usize, now: u64) {
        let long = |since: u64| u128::from(now.saturating_sub(since)) >= HEAR.as_nanos();
        let waiting = state.threads.values().filter_map(|thread| {
            let wait = thread.wait.as_ref().filter(|wait| long(wait.since))?;
            Some((thread.pid, wait))
        });
        let waiting: Vec<_> = waiting.collect();
        let count = waiting.len().max(1);
        // The others come the next time.
        let all = waiting.iter().cycle().skip(turn % count);
        for (pid, wait) in all.take(waiting.len().min(MOST_HEARD)) {
            let entry = || pending::by_kind(&wait.asked, *pid, wait.entry);
            if let Some(answer) = pending::answer(&wait.asked, *pid, entry) {
                // Without an answer by now, it has taken it.
                self.listener.end_with(wait.asked.id, answer);
            }
        }
    }

    /// Has every wait computed anew when limits change.
    pub(super) fn watch_limits(&self) {
        let word = &self.ledger.header.epoch.0;
        let mut seen = self.ledger.epoch();
        while !self.has_ended() {
            let second = rustix::fs::Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            };
            // Whatever ends it, we look.
            let _ = rustix::thread::futex::wait(
                word,
                rustix::thread::futex::Flags::empty(),
                seen,
                Some(&second),
            );
            let epoch = self.ledger.epoch();
            if epoch == seen {
                continue;
            }
            seen = epoch;
            let mut state = self.state();
            let waiting = state
                .threads
                .iter()
                .filter(|(_, thread)| thread.wait.is_some());
            let waiting: Vec<u32> = waiting.map(|(tid, _)| *tid).collect();
            let now = monotonic_ns();
            state.alarms.clear();
            for tid in waiting {
                self.look(&mut state, tid, now);
            }
            self.alarm.notify_one();
            drop(state);
            self.performers.ring();
        }
    }

    /// Counts what was moved last, of threads that have ended, too.
    pub fn settle(&self) {
        self.sweep(&mut self.state(), monotonic_ns());
    }

    /// Forgets threads that have ended and calls that nobody waits for.
    pub(super) fn sweep(&self, state: &mut State, now: u64) {
        state.swept = now;
        let State {
            threads,
            ahead,
            kept,
            alarms,
            ..
        } = state;
        threads.retain(|_, thread| {
            let gone = thread.is_gone();
            if let Some(wait) = thread
                .wait
                .take_if(|wait| gone || !self.listener.is_valid(wait.asked.id))
            {
                self.ledger.refund(&wait.tickets, wait.paid, 1);
                *ahead -= wait.credit;
                thread.note_end(&self.ledger, wait.entry, now.saturating_sub(wait.since));
            }
            if let Some(wait) = &thread.wait {
                // Notes that are not renewed are taken for stale.
                let due = self.ledger.due_last(&wait.tickets, now);
                thread.note(&self.ledger, wait.entry, wait.since, due, now);
            }
            let counted = if gone { None } else { thread.counted() };
            // Of a dead thread nobody can say how much it was: all that was asked for.
            let through = [IN, OUT].map(|direction| {
                gone || counted.is_some_and(|it| thread.is_through(direction, it))
            });
            if through[IN] {
                *ahead -= thread.settle(&self.ledger, IN, counted, now);
            }
            // Paid for already: it is to be counted, too.
            if through[OUT] {
                thread.settle(&self.ledger, OUT, counted, now);
            }
            if gone {
                *kept -= thread.kept();
            }
            !gone
        });
        // Alarms of calls that are gone, which might be due in a year.
        if alarms.len() > 2 * threads.len() + 1024 {
            alarms.retain(|Reverse((_, alarm, tid))| {
                let wait = threads.get(tid).and_then(|thread| thread.wait.as_ref());
                wait.is_some_and(|wait| wait.alarm == *alarm)
            });
        }
    }
}
