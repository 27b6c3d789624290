//! Reads of samples that may wait for a disk, by threads beside the loop: a disk that hangs holds up its own viewers
//! alone.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

/// Threads at most; of those, for one file system, and for one file. A hung file leaves threads to others of its file
/// system, and a hung file system to other ones.
const THREADS: usize = 64;
const OF_DEVICE: usize = 16;
const OF_FILE: usize = 4;

/// Time for which a thread without work stays.
const STAYS: Duration = Duration::from_secs(10);

/// Bytes that wait to be sent, of all streams, above which nothing is read ahead.
const HELD: usize = 128 << 20;

/// The file system of a file, and its number in it.
type FileId = (u64, u64);

/// Bytes that are to be read.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) session: usize,
    pub(super) ticket: u64,
    pub(super) file: Arc<File>,
    pub(super) id: FileId,
    pub(super) offset: u64,
    pub(super) len: usize,
}

/// A job that is done.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) session: usize,
    pub(super) ticket: u64,
    pub(super) chunk: Chunk,
}

/// Bytes of a file, from where they were asked for on.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) id: FileId,
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
    /// Why there are fewer than were asked for: the file ends there, or cannot be read any further.
    pub(super) is_end: bool,
    pub(super) error: Option<io::Error>,
    _held: Held,
}

/// A share of the bytes that wait.
#[derive(Debug)]
struct Held {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Held {
    fn new(all: &Arc<AtomicUsize>, bytes: usize) -> Self {
        all.fetch_add(bytes, Ordering::Relaxed);
        let all = Arc::clone(all);
        Self { all, bytes }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The threads; they end with this one, each when it has read what it is at.
#[derive(Debug)]
pub(super) struct Readers {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
    bell: OwnedFd,
    held: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(Job, Option<Held>)>,
    devices: HashMap<u64, usize>,
    files: HashMap<FileId, usize>,
    threads: usize,
    idle: usize,
    tickets: u64,
    done: Vec<Done>,
    is_over: bool,
}

impl Readers {
    /// None are started before there is something to read.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub(super) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared = Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            bell: eventfd(0, flags)?,
            held: Arc::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// The number of the next job.
    pub(super) fn ticket(&self) -> u64 {
        let mut state = self.shared.state();
        state.tickets += 1;
        state.tickets
    }

    /// True while there is room to read ahead.
    pub(super) fn has_room(&self) -> bool {
        self.shared.held.load(Ordering::Relaxed) < HELD
    }

    /// Has bytes read.
    ///
    /// # Errors
    /// There is no thread, and none can be started.
    pub(super) fn ask(&self, job: Job) -> io::Result<()> {
        let held = Held::new(&self.shared.held, job.len);
        let mut state = self.shared.state();
        let is_short = state.idle == 0 && state.threads < THREADS && state.may(job.id);
        state.waiting.push_back((job, Some(held)));
        if is_short {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name("samples".to_owned());
            match thread.spawn(move || shared.work(read)) {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    state.waiting.pop_back();
                    return Err(error);
                }
                // The threads that there are do it later.
                Err(_) => {}
            }
        }
        drop(state);
        self.shared.work.notify_one();
        Ok(())
    }

    /// Jobs that were done since the last time; its descriptor can be read when there is some.
    pub(super) fn take(&self) -> Vec<Done> {
        let _ = rustix::io::read(&self.shared.bell, &mut [0; 8]);
        std::mem::take(&mut self.shared.state().done)
    }
}

impl AsFd for Readers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.shared.state().is_over = true;
        self.shared.work.notify_all();
    }
}

impl State {
    /// True where another read of that file may begin.
    fn may(&self, id: FileId) -> bool {
        let of_device = self.devices.get(&id.0).copied().unwrap_or(0);
        let of_file = self.files.get(&id).copied().unwrap_or(0);
        of_device < OF_DEVICE && of_file < OF_FILE
    }

    fn begin(&mut self) -> Option<(Job, Option<Held>)> {
        let next = self.waiting.iter().position(|(job, _)| self.may(job.id))?;
        let next = self.waiting.remove(next)?;
        *self.devices.entry(next.0.id.0).or_default() += 1;
        *self.files.entry(next.0.id).or_default() += 1;
        Some(next)
    }

    fn end(&mut self, id: FileId) {
        less(&mut self.devices, &id.0);
        less(&mut self.files, &id);
    }
}

fn less<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's work.
    fn work(&self, read: impl Fn(&Job) -> Read) {
        let mut state = self.state();
        while !state.is_over {
            let Some((job, held)) = state.begin() else {
                state.idle += 1;
                let (again, waited) = self
                    .work
                    .wait_timeout(state, STAYS)
                    .unwrap_or_else(PoisonError::into_inner);
                state = again;
                state.idle -= 1;
                if waited.timed_out() && state.waiting.is_empty() {
                    break;
                }
                continue;
            };
            drop(state);
            let Read {
                bytes,
                is_end,
                error,
            } = read(&job);
            drop(held);
            let chunk = Chunk {
                id: job.id,
                offset: job.offset,
                _held: Held::new(&self.held, bytes.len()),
                bytes,
                is_end,
                error,
            };
            state = self.state();
            state.end(job.id);
            state.done.push(Done {
                session: job.session,
                ticket: job.ticket,
                chunk,
            });
            // A count that is full wakes, too.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
            // Another read of this file may begin now, which threads without work have passed over.
            self.work.notify_one();
        }
        state.threads -= 1;
    }
}

/// Bytes that were read, and the reason for fewer than were asked for.
#[derive(Default)]
struct Read {
    bytes: Vec<u8>,
    is_end: bool,
    error: Option<io::Error>,
}

/// Reads up to the end of what is asked for, or of the file.
fn read(job: &Job) -> Read {
    let mut all = Read {
        bytes: vec![0; job.len],
        ..Read::default()
    };
    let mut len = 0;
    while len < job.len && !all.is_end && all.error.is_none() {
        let at = job.offset + u64::try_from(len).unwrap_or(0);
        match job.file.read_at(&mut all.bytes[len..], at) {
            Ok(0) => all.is_end = true,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => all.error = Some(error),
        }
    }
    all.bytes.truncate(len);
    // The loop looks at the state of the file that was heard of last.
    let _ = job.file.metadata();
    all
}

#[cfg(test)]
mod tests;
