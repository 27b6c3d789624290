//! A thread that writes, so that nobody else waits for the disk.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::audit::AuditEntry;
use crate::error::Error;
use crate::history::{History, Status};
use crate::model::Tick;
use crate::options::Options;
use crate::records::{self, Blob};

/// While there is nothing to write, what failed is looked after this often.
const ATTENTION: Duration = Duration::from_secs(1);

/// What waits for the thread.
#[derive(Debug, Default)]
struct Inbox {
    ticks: VecDeque<Tick>,
    audit: VecDeque<(Option<u64>, AuditEntry)>,
    state: BTreeMap<String, Option<Blob>>,
    /// Ticks, their points and audit entries that found no room.
    dropped: (u64, u64, u64),
    status: Status,
    /// Requests that were taken in, and that were done.
    taken: u64,
    done: u64,
    check: bool,
    end: bool,
}

#[derive(Debug)]
struct Shared {
    inbox: Mutex<Inbox>,
    /// For the thread: there is something to do.
    work: Condvar,
    /// For who waits for it: something was done.
    progress: Condvar,
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // Nothing that holds it can panic; a history goes on in any case.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A [`History`] on a thread of its own. No call waits for the disk, but [`Writer::flush`] and drop.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    options: Options,
    folder: PathBuf,
}

impl Writer {
    /// Becomes the writer of the folder and starts the thread.
    ///
    /// # Errors
    /// As [`History::open`]; or the thread cannot be started.
    pub fn start(folder: &Path, options: Options) -> Result<Self, Error> {
        let history = History::open(folder, options.clone())?;
        let folder = history.folder().to_owned();
        let inbox = Inbox {
            status: history.status(),
            ..Inbox::default()
        };
        let shared = Arc::new(Shared {
            inbox: Mutex::new(inbox),
            work: Condvar::new(),
            progress: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("history".to_owned());
        let thread = builder.spawn(move || work(history, &theirs));
        Ok(Self {
            shared,
            thread: Some(thread.map_err(|error| Error::file(&folder, error))?),
            options,
            folder,
        })
    }

    /// The folder that is written to; a [`Reader`](crate::Reader) of it sees what was written.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The thread has ended before this, so that nothing is written any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Hands in a tick; `false` where the queue was full: it is dropped and counted.
    pub fn try_send(&self, tick: Tick) -> bool {
        let mut inbox = self.shared.inbox();
        if inbox.ticks.len() >= self.options.tick_queue {
            inbox.dropped.0 += 1;
            inbox.dropped.1 += tick.points.len() as u64;
            return false;
        }
        inbox.ticks.push_back(tick);
        inbox.taken += 1;
        drop(inbox);
        self.shared.work.notify_one();
        true
    }

    /// Hands in an audit entry; where the queue is full, the oldest is dropped and counted.
    pub fn audit(&self, entry: AuditEntry) {
        self.append(None, entry);
    }

    /// The same for an entry that has its number already, see [`History::audit_as`].
    pub fn audit_as(&self, id: u64, entry: AuditEntry) {
        self.append(Some(id), entry);
    }

    fn append(&self, id: Option<u64>, entry: AuditEntry) {
        let mut inbox = self.shared.inbox();
        if inbox.audit.len() >= self.options.audit_queue {
            inbox.audit.pop_front();
            inbox.dropped.2 += 1;
        }
        inbox.audit.push_back((id, entry.shortened()));
        inbox.taken += 1;
        drop(inbox);
        self.shared.work.notify_one();
    }

    /// Replaces named bytes as a whole; none removes them.
    ///
    /// # Errors
    /// They are too many. (Many small ones may be so together; that is found when they are
    /// written, and the old ones stay.)
    pub fn put(&self, key: &str, blob: Option<Blob>) -> Result<(), Error> {
        if let Some(blob) = &blob {
            records::refuse(key, blob, self.options.state_bytes)?;
        }
        let mut inbox = self.shared.inbox();
        inbox.state.insert(key.to_owned(), blob);
        inbox.taken += 1;
        drop(inbox);
        self.shared.work.notify_one();
        Ok(())
    }

    /// Has [`History::check`] made: for when a reader has met damage.
    pub fn check(&self) {
        let mut inbox = self.shared.inbox();
        inbox.check = true;
        inbox.taken += 1;
        drop(inbox);
        self.shared.work.notify_one();
    }

    /// How the history is, as of the last thing that was written.
    #[must_use]
    pub fn status(&self) -> Status {
        let inbox = self.shared.inbox();
        let mut status = inbox.status.clone();
        let (ticks, points, audit) = inbox.dropped;
        status.counters.dropped_ticks += ticks;
        status.counters.dropped_points += points;
        status.counters.dropped_audit += audit;
        status.counters.waiting_audit += inbox.audit.len() as u64;
        status
    }

    /// Waits until all that was handed in before has been written, or dropped and counted;
    /// `false` where that takes longer.
    #[must_use]
    pub fn flush(&self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        let mut inbox = self.shared.inbox();
        let taken = inbox.taken;
        while inbox.done < taken {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.shared.progress.wait_timeout(inbox, left);
            inbox = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.inbox().end = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread: takes what waits, writes it, and ends when it is asked to and nothing waits.
fn work(mut history: History, shared: &Shared) {
    loop {
        let mut inbox = shared.inbox();
        let idle = |inbox: &Inbox| {
            let nothing =
                inbox.ticks.is_empty() && inbox.audit.is_empty() && inbox.state.is_empty();
            nothing && !inbox.check
        };
        if idle(&inbox) && !inbox.end {
            let waited = shared.work.wait_timeout(inbox, ATTENTION);
            inbox = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if idle(&inbox) && inbox.end {
            return;
        }
        let upto = inbox.taken;
        let audit = std::mem::take(&mut inbox.audit);
        let state = std::mem::take(&mut inbox.state);
        let ticks = std::mem::take(&mut inbox.ticks);
        let check = std::mem::take(&mut inbox.check);
        drop(inbox);

        // What people did first.
        for (id, entry) in audit {
            history.append(id, entry);
        }
        for (key, blob) in state {
            let _ = history.put(&key, blob);
        }
        for tick in &ticks {
            history.tick(tick);
        }
        if check {
            history.check();
        }
        history.attend();

        let status = history.status();
        let mut inbox = shared.inbox();
        inbox.status = status;
        inbox.done = upto;
        drop(inbox);
        shared.progress.notify_all();
    }
}
