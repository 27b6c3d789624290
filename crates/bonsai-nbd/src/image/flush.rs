//! Flushes, and writes that the disk could not take.
//!
//! # Story
//! What is written goes to the page cache, and to the disk some time later. Where the disk cannot take it, the kernel
//! tells each open file description once, with the next fsync(2) or synchronous write (errseq_t in the kernel). An image
//! has one description (see `lease.rs`), and each client is to be told, so a loss is counted here, and each client has
//! a cursor into that count.
//!
//! # Invariants
//! 1. A flush succeeds only if everything that was written before it began is on the disk, and no loss was found since
//!    the same cursor was told the last time.
//! 2. Whoever takes an error from the kernel counts it before any flush that ended after that compares counts: flushes
//!    by the state of [`Flushing`], synchronous writes and probes by `gate`.
//!
//! # Limits
//! The kernel forgets nothing here, but a description that is opened after an error was told to another one is not told.

use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use super::Image;

/// Beyond all data: no page is waited for.
const BEYOND: i64 = 1 << 62;

/// How far a client was told of losses.
#[derive(Debug, Default)]
pub struct LossCursor(AtomicU64);

/// What is known of the way of writes to the disk.
#[derive(Debug)]
pub(super) struct Durability {
    flushing: Mutex<Flushing>,
    ended: Condvar,
    /// Held shared by what may take an error from the kernel, until the error is counted.
    gate: RwLock<()>,
    losses: AtomicU64,
    errno: AtomicI32,
    /// That of the server itself.
    own: LossCursor,
    /// Changes that were begun; what was there at the start counts as one.
    changes: AtomicU64,
    /// Changes before the last flush that succeeded.
    flushed: AtomicU64,
}

/// One flush at a time: those that come meanwhile share the next one.
#[derive(Debug, Default)]
struct Flushing {
    running: bool,
    begun: u64,
    ended: u64,
}

/// What the kernel says of writes that were answered already.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Writeback {
    /// None is known to be lost.
    Sound,
    /// Some are.
    Lost,
    /// It cannot be asked.
    Unknown,
}

impl Default for Durability {
    fn default() -> Self {
        Self {
            flushing: Mutex::default(),
            ended: Condvar::new(),
            gate: RwLock::new(()),
            losses: AtomicU64::new(0),
            errno: AtomicI32::new(0),
            own: LossCursor::default(),
            changes: AtomicU64::new(1),
            flushed: AtomicU64::new(0),
        }
    }
}

impl Durability {
    fn lock(&self) -> MutexGuard<'_, Flushing> {
        self.flushing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    fn count_loss(&self, error: &io::Error) {
        self.errno
            .store(error.raw_os_error().unwrap_or(libc::EIO), Ordering::SeqCst);
        self.losses.fetch_add(1, Ordering::SeqCst);
    }

    /// Does a synchronous write, and counts a loss that it finds.
    pub(super) fn synchronously(&self, write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let _counted = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        let done = write();
        if let Err(error) = &done {
            self.count_loss(error);
        }
        done
    }

    /// Has a flush done that begins after this is called, by this thread or another one.
    fn flush(&self, sync: impl FnOnce() -> io::Result<()>) {
        let mut state = self.lock();
        let wanted = state.begun + 1;
        while state.running && state.ended < wanted {
            state = self
                .ended
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if state.ended >= wanted {
            return;
        }
        state.running = true;
        state.begun += 1;
        let number = state.begun;
        drop(state);
        let changes = self.changes.load(Ordering::SeqCst);
        match sync() {
            Ok(()) => {
                self.flushed.fetch_max(changes, Ordering::SeqCst);
            }
            Err(error) => self.count_loss(&error),
        }
        let mut state = self.lock();
        state.running = false;
        state.ended = number;
        self.ended.notify_all();
    }

    /// Whether a loss was found since this cursor was told.
    fn tell(&self, cursor: &LossCursor) -> io::Result<()> {
        drop(self.gate.write().unwrap_or_else(PoisonError::into_inner));
        let losses = self.losses.load(Ordering::SeqCst);
        if cursor.0.swap(losses, Ordering::SeqCst) == losses {
            return Ok(());
        }
        Err(io::Error::from_raw_os_error(
            self.errno.load(Ordering::SeqCst),
        ))
    }
}

impl Image {
    /// A cursor that is told of losses from now on.
    #[must_use]
    pub fn loss_cursor(&self) -> LossCursor {
        LossCursor(AtomicU64::new(
            self.durability.losses.load(Ordering::SeqCst),
        ))
    }

    /// Has on the disk what was written before.
    ///
    /// # Errors
    /// The system's: of this flush, or of writes that were lost since this was called the last time.
    pub fn flush(&self) -> io::Result<()> {
        self.flush_for(&self.durability.own)
    }

    /// The same for a client.
    ///
    /// # Errors
    /// The system's: of this flush, or of writes that were lost since the cursor was told the last time.
    pub fn flush_for(&self, cursor: &LossCursor) -> io::Result<()> {
        self.durability.flush(|| self.file.sync_data());
        self.durability.tell(cursor)
    }

    /// Whether writes that were answered are known to be lost. It costs no I/O, and no system call where all that was
    /// written is on the disk.
    pub(crate) fn writeback(&self) -> Writeback {
        let of = &self.durability;
        if of.flushed.load(Ordering::SeqCst) == of.changes.load(Ordering::SeqCst) {
            return Writeback::Sound;
        }
        let _counted = of.gate.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the descriptor is open while the image is borrowed; all arguments are numbers.
        let asked = unsafe {
            libc::sync_file_range(
                self.file.as_raw_fd(),
                BEYOND,
                1,
                libc::SYNC_FILE_RANGE_WAIT_BEFORE,
            )
        };
        if asked == 0 {
            return Writeback::Sound;
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EIO | libc::ENOSPC | libc::EDQUOT) => {
                of.count_loss(&error);
                Writeback::Lost
            }
            _ => Writeback::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    #[test]
    fn each_cursor_is_told_of_a_loss_once_whoever_found_it() {
        let of = Durability::default();
        let cursors = [LossCursor::default(), LossCursor::default()];
        of.flush(|| Err(io::Error::from_raw_os_error(libc::ENOSPC)));
        for cursor in &cursors {
            let told = of.tell(cursor).expect_err("it is lost");
            assert_eq!(told.raw_os_error(), Some(libc::ENOSPC));
            of.tell(cursor).expect("told once");
        }
        let write = || Err(io::Error::from_raw_os_error(libc::EIO));
        of.synchronously(write).expect_err("it is lost");
        for cursor in &cursors {
            of.tell(cursor).expect_err("it is lost");
        }
    }

    /// The kernel tells one of those that flush at the same time: the others must not believe that all is well.
    #[test]
    fn of_flushes_at_the_same_time_none_hides_a_loss_from_another() {
        for round in 0..200 {
            let of = Arc::new(Durability::default());
            let pending = Arc::new(AtomicBool::new(true));
            let clients: Vec<_> = (0..4)
                .map(|client| {
                    let (of, pending) = (Arc::clone(&of), Arc::clone(&pending));
                    thread::spawn(move || {
                        let cursor = LossCursor::default();
                        let take = || match pending.swap(false, Ordering::SeqCst) {
                            true => {
                                thread::yield_now();
                                Err(io::Error::from_raw_os_error(libc::EIO))
                            }
                            false => Ok(()),
                        };
                        if client == round % 5 {
                            let _ = of.synchronously(take);
                        }
                        of.flush(take);
                        of.tell(&cursor).is_err()
                    })
                })
                .collect();
            for client in clients {
                assert!(client.join().expect("joined"), "round {round}");
            }
        }
    }

    #[test]
    fn a_flush_that_waits_is_one_that_began_later() {
        let of = Arc::new(Durability::default());
        let count = Arc::new(AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        of.begin_change();
                        let mine = of.changes.load(Ordering::SeqCst);
                        of.flush(|| {
                            count.fetch_add(1, Ordering::SeqCst);
                            Ok(())
                        });
                        assert!(of.flushed.load(Ordering::SeqCst) >= mine);
                    }
                });
            }
        });
        assert!(count.load(Ordering::SeqCst) <= 1600);
    }
}
