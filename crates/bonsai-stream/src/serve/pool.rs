//! Calls that may wait for a disk, made by threads beside the loop: a disk that hangs holds up its own viewers alone.
//!
//! ```text
//!   run ──> queue of its file ──> turn of its file system ──> a thread ──┐
//!                ^                        ^                              │ the file's next work
//!                └────────────────────────┴──────────────────────────────┘
//! ```
//! # Invariants
//! 1. At most [`THREADS`] works run, [`OF_DEVICE`] of one file system and [`OF_FILE`] of one file.
//! 2. A file stands in the turns of its file system exactly while another work of it may begin, and a file system in
//!    the turns of all exactly while a file of it stands in its own. So a thread takes the next work without a search.
//! 3. A work that may begin waits for a thread only while all threads are at work.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

/// Threads at most; works at a time of one file system, and of one file. A hung file leaves threads to others of its
/// file system, and hung file systems, up to three, to other ones.
const THREADS: usize = 64;
const OF_DEVICE: usize = 16;
const OF_FILE: usize = 4;

/// Time for which a thread without work stays.
const STAYS: Duration = Duration::from_secs(10);

/// The file system of a file, and its number in it.
pub(super) type FileId = (u64, u64);

pub(super) type Work = Box<dyn FnOnce() + Send>;

/// Starts a thread.
type Spawn = fn(Work) -> io::Result<()>;

/// The threads, which end with the pool, each after its present work.
#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
    spawn: Spawn,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    devices: HashMap<u64, Device>,
    turns: VecDeque<u64>,
    threads: usize,
    /// Threads without work that were not called, and calls that none of them has heard.
    idle: usize,
    calls: usize,
    is_over: bool,
}

#[derive(Default)]
struct Device {
    busy: usize,
    files: HashMap<u64, Queue>,
    turns: VecDeque<u64>,
    has_turn: bool,
}

#[derive(Default)]
struct Queue {
    busy: usize,
    waiting: VecDeque<Work>,
    has_turn: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Threads are started when there is something to do.
    pub(super) fn new() -> Self {
        Self::with(|work| {
            let thread = thread::Builder::new().name("files".to_owned());
            thread.spawn(work).map(drop)
        })
    }

    fn with(spawn: Spawn) -> Self {
        Self {
            shared: Arc::default(),
            spawn,
        }
    }

    /// A pool with threads that do nothing before [`Pool::start`].
    #[cfg(test)]
    pub(super) fn stopped() -> Self {
        Self::with(|_| Ok(()))
    }

    #[cfg(test)]
    pub(super) fn start(&self) {
        let shared = Arc::clone(&self.shared);
        thread::spawn(move || shared.work());
    }

    /// A pool that can start no thread.
    #[cfg(test)]
    pub(super) fn refused() -> Self {
        Self::with(|_| Err(io::ErrorKind::WouldBlock.into()))
    }

    /// Runs a work that may wait for that file, on a thread.
    ///
    /// # Errors
    /// No thread is there, and none can be started.
    pub(super) fn run(&self, file: FileId, work: Work) -> io::Result<()> {
        let mut state = self.shared.state();
        state.push(file, work);
        if state.idle > 0 {
            state.idle -= 1;
            state.calls += 1;
            self.shared.work.notify_one();
        } else if state.threads < THREADS {
            let shared = Arc::clone(&self.shared);
            match (self.spawn)(Box::new(move || shared.work())) {
                Ok(()) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    state.take_back(file);
                    return Err(error);
                }
                // The threads that there are do it later.
                Err(_) => {}
            }
        }
        Ok(())
    }
}

impl Pool {
    /// Drops files of a file system, which may be asked when they are closed (FUSE: flush), and hang.
    pub(super) fn close(&self, file: FileId, files: impl Send + 'static) {
        // Where there is no thread, they are closed here.
        let _ = self.run(file, Box::new(move || drop(files)));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.is_over = true;
        state.turns.clear();
        let rest = std::mem::take(&mut state.devices);
        drop(state);
        self.shared.work.notify_all();
        if rest.values().any(|of| !of.files.is_empty()) {
            // Files of works that are not done may hang when they are closed.
            let _ = (self.spawn)(Box::new(move || drop(rest)));
        }
    }
}

impl State {
    fn push(&mut self, (device, file): FileId, work: Work) {
        let of_device = self.devices.entry(device).or_default();
        let of_file = of_device.files.entry(file).or_default();
        of_file.waiting.push_back(work);
        self.give_turn((device, file));
    }

    /// The work of a file that was pushed last is not done.
    fn take_back(&mut self, (device, file): FileId) {
        let of_device = self.devices.get_mut(&device);
        if let Some(queue) = of_device.and_then(|of| of.files.get_mut(&file)) {
            queue.waiting.pop_back();
        }
    }

    /// A file has a turn, and its file system, where another work of it may begin.
    fn give_turn(&mut self, (device, file): FileId) {
        let Some(of_device) = self.devices.get_mut(&device) else {
            return;
        };
        if let Some(queue) = of_device.files.get_mut(&file) {
            let may = queue.busy < OF_FILE && !queue.waiting.is_empty();
            if may && !queue.has_turn {
                queue.has_turn = true;
                of_device.turns.push_back(file);
            }
            if queue.busy == 0 && queue.waiting.is_empty() && !queue.has_turn {
                of_device.files.remove(&file);
            }
        }
        let may = of_device.busy < OF_DEVICE && !of_device.turns.is_empty();
        if may && !of_device.has_turn {
            of_device.has_turn = true;
            self.turns.push_back(device);
        }
        if of_device.files.is_empty() && !of_device.has_turn {
            self.devices.remove(&device);
        }
    }

    /// The next work, of the file that comes next in turn.
    fn begin(&mut self) -> Option<(FileId, Work)> {
        loop {
            let device = self.turns.pop_front()?;
            let Some(of_device) = self.devices.get_mut(&device) else {
                continue;
            };
            of_device.has_turn = false;
            let Some(file) = of_device.turns.pop_front() else {
                continue;
            };
            let Some(queue) = of_device.files.get_mut(&file) else {
                continue;
            };
            queue.has_turn = false;
            let work = queue.waiting.pop_front();
            if work.is_some() {
                queue.busy += 1;
                of_device.busy += 1;
            }
            self.give_turn((device, file));
            if let Some(work) = work {
                return Some(((device, file), work));
            }
        }
    }

    fn end(&mut self, (device, file): FileId) {
        if let Some(of_device) = self.devices.get_mut(&device) {
            of_device.busy = of_device.busy.saturating_sub(1);
            if let Some(queue) = of_device.files.get_mut(&file) {
                queue.busy = queue.busy.saturating_sub(1);
            }
        }
        self.give_turn((device, file));
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's work.
    fn work(&self) {
        let mut state = self.state();
        while !state.is_over {
            let Some((file, work)) = state.begin() else {
                match self.idle(state) {
                    Some(called) => state = called,
                    None => return,
                }
                continue;
            };
            drop(state);
            // A work tells of its panic itself; the thread goes on.
            let _ = catch_unwind(AssertUnwindSafe(work));
            state = self.state();
            state.end(file);
        }
        state.threads -= 1;
    }

    /// Waits for a call; none came for long.
    fn idle<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Option<MutexGuard<'a, State>> {
        state.idle += 1;
        loop {
            let (again, waited) = self
                .work
                .wait_timeout(state, STAYS)
                .unwrap_or_else(PoisonError::into_inner);
            state = again;
            if state.calls > 0 {
                state.calls -= 1;
                return Some(state);
            }
            if state.is_over {
                return Some(state);
            }
            if waited.timed_out() {
                state.idle -= 1;
                state.threads -= 1;
                return None;
            }
        }
    }
}

/// Things that threads hand to the loop, which waits for its descriptor.
#[derive(Debug)]
pub(super) struct Mailbox<T> {
    items: Mutex<Vec<T>>,
    bell: OwnedFd,
}

impl<T> Mailbox<T> {
    /// # Errors
    /// The system has no descriptor left.
    pub(super) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            items: Mutex::default(),
            bell: eventfd(0, flags)?,
        })
    }

    pub(super) fn put(&self, item: T) {
        self.items().push(item);
        // A count that is full wakes, too.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Takes what came since the last time; the descriptor can be read when there is some.
    pub(super) fn take(&self) -> Vec<T> {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut *self.items())
    }

    fn items(&self) -> MutexGuard<'_, Vec<T>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> AsFd for Mailbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
mod tests;
