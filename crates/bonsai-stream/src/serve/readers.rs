//! Reads of samples that may wait for a disk, by threads beside the loop.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{Advice, fadvise};

use super::pool::{FileId, Mailbox, Pool};

/// Bytes that wait to be sent, of all streams, above which nothing is read ahead.
const HELD: usize = 128 << 20;

/// Bytes that are to be read.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) session: usize,
    pub(super) ticket: u64,
    pub(super) file: Arc<File>,
    pub(super) id: FileId,
    pub(super) offset: u64,
    pub(super) len: usize,
    /// Bytes of them that are read even where there is no room to read ahead.
    pub(super) least: usize,
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

/// Has samples read by the threads of a pool.
#[derive(Debug)]
pub(super) struct Readers {
    pool: Arc<Pool>,
    mail: Arc<Mailbox<Done>>,
    held: Arc<AtomicUsize>,
    tickets: Cell<u64>,
}

impl Readers {
    /// # Errors
    /// The system has no descriptor left.
    pub(super) fn new(pool: Arc<Pool>) -> io::Result<Self> {
        Ok(Self {
            pool,
            mail: Arc::new(Mailbox::new()?),
            held: Arc::default(),
            tickets: Cell::new(0),
        })
    }

    /// The number of the next job.
    pub(super) fn ticket(&self) -> u64 {
        self.tickets.set(self.tickets.get() + 1);
        self.tickets.get()
    }

    /// True while there is room to read ahead.
    pub(super) fn has_room(&self) -> bool {
        self.held.load(Ordering::Relaxed) < HELD
    }

    /// Has bytes read.
    ///
    /// # Errors
    /// No thread is there, and none can be started.
    pub(super) fn ask(&self, job: Job) -> io::Result<()> {
        let (mail, all, id) = (Arc::clone(&self.mail), Arc::clone(&self.held), job.id);
        let work = move || {
            // Many may have waited for a disk that hung.
            let len = match all.load(Ordering::Relaxed) < HELD {
                true => job.len,
                false => job.least,
            };
            let held = Held::new(&all, len);
            let read = read(&job, len);
            drop(held);
            let chunk = Chunk {
                id: job.id,
                offset: job.offset,
                _held: Held::new(&all, read.bytes.len()),
                bytes: read.bytes,
                is_end: read.is_end,
                error: read.error,
            };
            mail.put(Done {
                session: job.session,
                ticket: job.ticket,
                chunk,
            });
        };
        self.pool.run(id, Box::new(work))
    }

    /// Has the kernel read bytes into its cache, and waits for none of them; `token` is dropped when it was told.
    pub(super) fn warm(
        &self,
        (file, id): (&Arc<File>, FileId),
        (offset, len): (u64, u64),
        token: Arc<()>,
    ) {
        let file = Arc::clone(file);
        let work = move || {
            // A system that cannot do it reads them when they are due.
            let _ = fadvise(&*file, offset, NonZeroU64::new(len), Advice::WillNeed);
            drop(token);
        };
        let _ = self.pool.run(id, Box::new(work));
    }

    /// Takes jobs that were done since the last time; the descriptor can be read when there is some.
    pub(super) fn take(&self) -> Vec<Done> {
        self.mail.take()
    }
}

impl AsFd for Readers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mail.as_fd()
    }
}

/// Bytes that were read, and the reason for fewer than were asked for.
#[derive(Default)]
struct Read {
    bytes: Vec<u8>,
    is_end: bool,
    error: Option<io::Error>,
}

/// Reads up to `most` bytes, or to the end of the file.
fn read(job: &Job, most: usize) -> Read {
    let mut all = Read {
        bytes: vec![0; most],
        ..Read::default()
    };
    let mut len = 0;
    while len < most && !all.is_end && all.error.is_none() {
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
