//! Threads of which one works at a time. One is enough until it is held up: by memory of a file whose server does not answer, or by
//! closing such a file. Then another one takes its place, and the first one ends when it comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::serve::Enforcer;

/// Threads of a kind, at most; all but one of them are held up.
const MOST: usize = 64;

/// The threads of one kind.
#[derive(Debug)]
pub(crate) struct Shift {
    pub(super) name: &'static str,
    pub(super) run: fn(&Arc<Enforcer>),
    threads: AtomicUsize,
    /// Threads among them that wait for work.
    idle: AtomicUsize,
    /// Work that was done.
    done: AtomicU64,
}

impl Shift {
    pub(super) fn new(name: &'static str, run: fn(&Arc<Enforcer>)) -> Self {
        Self {
            name,
            run,
            threads: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            done: AtomicU64::new(0),
        }
    }

    /// Another thread was started.
    pub(super) fn start(&self) {
        self.threads.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits for work.
    pub(super) fn idle<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.idle.fetch_add(1, Ordering::Relaxed);
        let got = wait();
        self.idle.fetch_sub(1, Ordering::Relaxed);
        got
    }

    /// Some work was taken or done.
    pub(super) fn count(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether no thread waits for work.
    pub(super) fn is_busy(&self) -> bool {
        self.idle.load(Ordering::Relaxed) == 0
    }

    /// Whether another thread waits for work, so that the calling one is to end.
    pub(super) fn is_replaced(&self) -> bool {
        let is_replaced = self.idle.load(Ordering::Relaxed) > 0;
        if is_replaced {
            self.threads.fetch_sub(1, Ordering::Relaxed);
        }
        is_replaced
    }

    /// Whether the thread that works has been held up for so long (ns) that it needs relief. `last` is what was done at the look
    /// before, and since when.
    pub(super) fn is_held_up(&self, last: &mut (u64, u64), now: u64, long: u128) -> bool {
        let done = self.done.load(Ordering::Relaxed);
        let goes_on = self.idle.load(Ordering::Relaxed) > 0 || done != last.0;
        let is_long = u128::from(now.saturating_sub(last.1)) >= long;
        if goes_on || is_long {
            *last = (done, now);
        }
        !goes_on && is_long && self.threads.load(Ordering::Relaxed) < MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_held_up_is_replaced_and_ends() {
        let shift = Shift::new("none", |_| ());
        shift.start();
        let mut last = (0, 0);
        assert!(
            !shift.idle(|| shift.is_held_up(&mut last, 100, 10)),
            "it waits"
        );
        assert!(!shift.is_held_up(&mut last, 105, 10), "not for long");
        shift.count();
        assert!(
            !shift.is_held_up(&mut last, 115, 10),
            "it has done something"
        );
        assert!(shift.is_held_up(&mut last, 125, 10));
        assert!(!shift.is_held_up(&mut last, 126, 10), "its relief comes");
        shift.start();
        assert!(!shift.is_replaced());
        assert!(shift.idle(|| shift.is_replaced()), "the other one waits");
    }
}
