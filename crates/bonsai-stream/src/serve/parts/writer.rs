//! Files of handlers, written by a thread of their own: a disk that is slow or hung holds up no stream.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that wait to be written to the files of a handler; more are left out.
const MOST: usize = 16 << 20;

/// Time for which the thread stays without work.
const STAYS: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce() + Send>;

/// The writer of a handler's files, one for all streams.
#[derive(Clone, Default)]
pub(super) struct Writer {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Something is to be written, or all was.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(usize, Work)>,
    /// Bytes of what waits and of what is being written.
    bytes: usize,
    is_busy: bool,
    has_thread: bool,
    failed: Option<String>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.shared.state().bytes;
        f.debug_struct("Writer").field("bytes", &bytes).finish()
    }
}

impl Writer {
    /// Writes so many bytes later, behind all before them; false where too many wait, or there is no thread.
    pub(super) fn run(&self, bytes: usize, work: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.shared.state();
        if state.bytes.saturating_add(bytes) > MOST {
            return false;
        }
        if !state.has_thread {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name("handlers".to_owned());
            if thread.spawn(move || shared.work()).is_err() {
                return false;
            }
            state.has_thread = true;
        }
        state.bytes += bytes;
        state.waiting.push_back((bytes, Box::new(work)));
        drop(state);
        self.shared.changed.notify_all();
        true
    }

    /// A file cannot be made: the next stream is told.
    pub(super) fn fail(&self, why: String) {
        self.shared.state().failed = Some(why);
    }

    pub(super) fn take_failure(&self) -> Option<String> {
        self.shared.state().failed.take()
    }

    /// Waits until all is written, or that time; true where all is.
    pub(super) fn settle(&self, until: Instant) -> bool {
        let mut state = self.shared.state();
        loop {
            if state.waiting.is_empty() && !state.is_busy {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.state();
        loop {
            while let Some((bytes, work)) = state.waiting.pop_front() {
                state.is_busy = true;
                drop(state);
                work();
                state = self.state();
                state.is_busy = false;
                state.bytes -= bytes;
            }
            self.changed.notify_all();
            let waited = self.changed.wait_timeout(state, STAYS);
            let (again, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            state = again;
            if waited.timed_out() && state.waiting.is_empty() {
                state.has_thread = false;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn bytes_that_wait_for_a_disk_are_bounded_and_written_in_order() {
        let soon = || Instant::now() + Duration::from_secs(30);
        let writer = Writer::default();
        assert!(writer.settle(Instant::now()), "nothing is to be written");
        let (go, until) = channel::<()>();
        let (tell, told) = channel();
        let hung = move || {
            let _ = until.recv();
        };
        assert!(writer.run(0, hung));
        for number in 0..4 {
            let tell = tell.clone();
            let work = move || {
                let _ = tell.send(number);
            };
            assert!(writer.run(MOST / 4, work));
        }
        assert!(!writer.run(1, || ()), "there is no room");
        assert!(!writer.settle(Instant::now()));
        drop(go);
        assert!(writer.settle(soon()));
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert!(writer.run(MOST, || ()) && writer.settle(soon()));
        writer.fail("why".to_owned());
        assert_eq!(writer.take_failure().as_deref(), Some("why"));
        assert_eq!(writer.take_failure(), None);
    }
}
