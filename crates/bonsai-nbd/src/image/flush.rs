//! Flushes, and writes that the disk could not take.
//!
//! # Story
//! A write goes to the page cache, and to the disk some time later. Where the disk cannot take it, the kernel reports
//! that once to each open file description, with the next fsync(2) or synchronous write (errseq_t in the kernel). An image
//! has one description (see `lease.rs`), and each client is to be told, so losses are counted here, and each client has
//! a cursor into the count. After a loss the page cache has bytes that the disk has not, and looks clean: these are dropped,
//! and the image leads no other one's reads until it is opened anew.
//!
//! # Invariants
//! 1. A flush or synchronous write succeeds only if everything that was written before it began is on the disk, and no loss
//!    was counted that its client was not told of.
//! 2. A call that may take an error from the kernel counts it before any flush or synchronous write that ends later compares
//!    counts: each of them is among `calls` until then.
//! 3. A flush vouches for the changes that had ended when it began, and for no other.
//! 4. What another program may have written counts as a change, which no flush of before vouches for: it can be lost as well.
//! 5. A client that connects is told of losses that no client was told of.
//!
//! # Limits
//! What was lost before the image was opened is reported only if no other program was told of it.

use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::Image;
use super::calls::Calls;

/// Beyond all data: no page is waited for.
const BEYOND: i64 = 1 << 62;

/// Losses that a client was told of.
#[derive(Debug, Default)]
pub struct LossCursor(AtomicU64);

/// The way of an image's writes to the disk.
#[derive(Debug)]
pub(super) struct Durability {
    flushing: Mutex<Flushing>,
    ended: Condvar,
    /// Calls that may take an error from the kernel, each until its error is counted.
    calls: Calls,
    /// One probe at a time, so that none misses what another one takes.
    probing: Mutex<()>,
    losses: AtomicU64,
    /// Losses that some client was told of.
    told: AtomicU64,
    errno: AtomicI32,
    /// The cursor of the server itself.
    own: LossCursor,
    /// Changes that began, and that ended; what was there at the start counts as one.
    changes_begun: AtomicU64,
    changes_ended: AtomicU64,
    /// Changes that had ended before the last flush that succeeded.
    flushed: AtomicU64,
}

/// One flush at a time: those that come meanwhile share the next one.
#[derive(Debug, Default)]
struct Flushing {
    running: bool,
    begun: u64,
    ended: u64,
}

/// The kernel's word on writes that were answered already.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Writeback {
    /// None is known to be lost.
    Sound,
    /// Some are.
    Lost,
    /// The kernel cannot be asked now.
    Unknown,
}

impl Default for Durability {
    fn default() -> Self {
        Self {
            flushing: Mutex::default(),
            ended: Condvar::new(),
            calls: Calls::default(),
            probing: Mutex::new(()),
            losses: AtomicU64::new(0),
            told: AtomicU64::new(0),
            errno: AtomicI32::new(0),
            own: LossCursor::default(),
            changes_begun: AtomicU64::new(1),
            changes_ended: AtomicU64::new(1),
            flushed: AtomicU64::new(0),
        }
    }
}

impl Durability {
    fn lock(&self) -> MutexGuard<'_, Flushing> {
        self.flushing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin_change(&self) {
        self.changes_begun.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn end_change(&self) {
        self.changes_ended.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }

    fn count_loss(&self, error: &io::Error) {
        self.errno
            .store(error.raw_os_error().unwrap_or(libc::EIO), Ordering::SeqCst);
        self.losses.fetch_add(1, Ordering::SeqCst);
    }

    /// Makes a call that may take an error of earlier writes from the kernel, and counts it.
    pub(super) fn counting(&self, call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let _under_way = self.calls.begin();
        let done = call();
        if let Err(error) = &done {
            self.count_loss(error);
        }
        done
    }

    /// Waits until errors that were taken from the kernel before this are counted.
    fn await_counts(&self) {
        self.calls.await_begun();
    }

    /// Makes a synchronous write. It fails also if another call was given the error that is this one's.
    pub(super) fn synchronously(&self, write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let before = self.losses();
        self.counting(write)?;
        self.await_counts();
        match self.losses() == before {
            true => Ok(()),
            false => Err(self.error()),
        }
    }

    fn error(&self) -> io::Error {
        io::Error::from_raw_os_error(self.errno.load(Ordering::SeqCst))
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
        let changes = self.changes_ended.load(Ordering::SeqCst);
        if self.counting(sync).is_ok() {
            self.flushed.fetch_max(changes, Ordering::SeqCst);
        }
        let mut state = self.lock();
        state.running = false;
        state.ended = number;
        self.ended.notify_all();
    }

    /// Whether a loss was counted since this cursor was told.
    fn tell(&self, cursor: &LossCursor) -> io::Result<()> {
        self.await_counts();
        let losses = self.losses();
        if cursor.0.swap(losses, Ordering::SeqCst) == losses {
            return Ok(());
        }
        Err(self.error())
    }
}

impl Image {
    /// A cursor of a client that connects: it is told of losses that no client was told of, and of later ones.
    #[must_use]
    pub fn loss_cursor(&self) -> LossCursor {
        LossCursor(AtomicU64::new(self.durability.told.load(Ordering::SeqCst)))
    }

    /// Has on the disk what was written before.
    ///
    /// # Errors
    /// The system's: of this flush, or of writes that were lost since this was called the last time.
    pub fn flush(&self) -> io::Result<()> {
        self.flush_and_tell(&self.durability.own)
    }

    /// The same for a client.
    ///
    /// # Errors
    /// The system's: of this flush, or of writes that were lost since the cursor was told the last time.
    pub fn flush_for(&self, cursor: &LossCursor) -> io::Result<()> {
        let losses = self.durability.losses();
        let done = self.flush_and_tell(cursor);
        if done.is_err() {
            let told = cursor.0.load(Ordering::SeqCst).max(losses);
            self.durability.told.fetch_max(told, Ordering::SeqCst);
        }
        done
    }

    fn flush_and_tell(&self, cursor: &LossCursor) -> io::Result<()> {
        let before = self.durability.losses();
        self.durability.flush(|| self.file.sync_data());
        let told = self.durability.tell(cursor);
        if self.durability.losses() != before {
            self.drop_lost();
        }
        told
    }

    /// Whether a write to the image was lost since it was opened. Its page cache may have had, or have, bytes that the disk has
    /// not, so that it leads nobody any more.
    #[must_use]
    pub fn has_lost_writes(&self) -> bool {
        self.durability.losses() > 0
    }

    /// Whether a flush that succeeded vouches for every change.
    pub(super) fn is_flushed(&self) -> bool {
        let of = &self.durability;
        of.flushed.load(Ordering::SeqCst) == of.changes_begun.load(Ordering::SeqCst)
    }

    /// Another program may have changed the image, so that it has writes that no flush vouches for.
    pub(crate) fn note_foreign_change(&self) {
        self.durability.begin_change();
        self.durability.end_change();
    }

    /// Drops clean pages: among them are those whose write was lost.
    pub(super) fn drop_lost(&self) {
        // Pages in use stay; the image is not believed all the same.
        let _ = self.forget(0, self.size);
    }

    /// Whether writes that were answered are known to be lost. It costs no I/O, waits for none, and costs no system call where
    /// all that was written is on the disk.
    pub(crate) fn writeback(&self) -> Writeback {
        let of = &self.durability;
        if self.has_lost_writes() {
            return Writeback::Lost;
        }
        if self.is_flushed() {
            return Writeback::Sound;
        }
        let _only = of.probing.lock().unwrap_or_else(PoisonError::into_inner);
        let probe = of.calls.begin();
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
            // A call that was given the error before has counted it, or is under way.
            return match (probe.is_alone(), self.has_lost_writes()) {
                (true, false) => Writeback::Sound,
                (_, true) => Writeback::Lost,
                _ => Writeback::Unknown,
            };
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EIO | libc::ENOSPC | libc::EDQUOT) => {
                of.count_loss(&error);
                self.drop_lost();
                Writeback::Lost
            }
            _ => Writeback::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

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
                        of.end_change();
                        let mine = of.changes_ended.load(Ordering::SeqCst);
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

    #[test]
    fn a_flush_vouches_for_no_change_that_is_under_way() {
        let of = Durability::default();
        of.begin_change();
        of.flush(|| Ok(()));
        let [begun, flushed] = [&of.changes_begun, &of.flushed].map(|of| of.load(Ordering::SeqCst));
        assert!(flushed < begun, "the change may have been written after it");
        of.end_change();
        of.flush(|| Ok(()));
        assert_eq!(of.flushed.load(Ordering::SeqCst), begun);
    }

    /// Of writes to the disk at the same time, the kernel gives one the error; the bytes of all may be lost.
    #[test]
    fn of_synchronous_writes_at_the_same_time_none_succeeds_beside_an_error() {
        let of = Durability::default();
        let (inside, go) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                of.synchronously(|| {
                    inside.wait();
                    go.wait();
                    Err(io::Error::from_raw_os_error(libc::EIO))
                })
            });
            let second = scope.spawn(|| {
                inside.wait();
                of.synchronously(|| {
                    go.wait();
                    Ok(())
                })
            });
            assert!(first.join().expect("joined").is_err());
            assert!(second.join().expect("joined").is_err());
        });
    }

    /// A write that has ended waits for one that was under way beside it; the next one does not wait for either to begin.
    #[test]
    fn a_synchronous_write_begins_while_others_wait_for_each_other() {
        let of = &Durability::default();
        let (first_began, wait_for_first) = mpsc::channel();
        let (third_began, wait_for_third) = mpsc::channel();
        thread::scope(|scope| {
            let first = scope.spawn(move || {
                of.synchronously(|| {
                    first_began.send(()).expect("awaited");
                    let limit = Duration::from_secs(20);
                    wait_for_third.recv_timeout(limit).map_err(io::Error::other)
                })
            });
            wait_for_first.recv().expect("it begins");
            let second = scope.spawn(|| of.synchronously(|| Ok(())));
            // Until it waits for the first one.
            thread::sleep(Duration::from_millis(100));
            assert!(!second.is_finished(), "the first one may have its error");
            of.counting(|| third_began.send(()).map_err(io::Error::other))
                .expect("begins");
            first.join().expect("joined").expect("nothing failed");
            second.join().expect("joined").expect("nothing failed");
        });
    }
}
