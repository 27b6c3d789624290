//! What exports are asked for, as a trace.
//!
//! # Story
//! ```text
//! whoever did a request: a note (when, where, contents by number; a mark where none is known) --> notes
//! recorder's thread:     notes --> numbers of what is new --> frames --> a file or a socket
//!                                         '--> so that marks are not made again
//! ```
//! Nobody who answers a client waits for the recorder: what there is no room for is counted, and the trace says where
//! and how much.
//!
//! A request counts when it was done, at the time when the page cache or the disk was first asked for it: limits and the
//! line of workers are behind it. What failed is not recorded, nor are block status and prefetches. Zeroes are writes
//! of zeroes. What is said of durability is lost but for flushes.
//!
//! # Invariants
//! 1. A request is in the trace once, or counted as lost, or it came while the recording began or ended.
//! 2. Contents of a request are those of the bytes that were given or taken. Where there are too many different ones,
//!    or the request has no whole blocks, there are none.
//! 3. Equal contents have equal fingerprints within one recording. They have a random key of the
//!    recording, which is kept nowhere (`print.rs`): nothing is to be learned from them of a group's key, of another
//!    recording, or by guessing what a block holds. Blocks of zeroes have the fingerprint 0. Nobody is ever given a block
//!    because of these; those of [`crate::sharing`] are others.
//! 4. Memory is bounded: notes, marks that wait, numbers of blocks, contents.
//!
//! # Limits
//! Equal contents show also between exports of different groups, if they are recorded together: that is for whoever may
//! read all of these images anyway.

mod begun;
mod keeper;
mod known;
mod print;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use bonsai_trace::Op;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::export::{Export, add};
use crate::sharing::BLOCK;
pub(crate) use begun::Begun;
use known::Known;
use print::Prints;

pub use keeper::{Output, Summary};

/// Notes that wait, at most: 2 MiB, and as much again while those are written that came before.
const MOST_NOTES: usize = 1 << 16;
/// Contents of these, at most: 4 MiB.
const MOST_CONTENTS: usize = 1 << 20;
/// Marks of these, at most: 4 MiB.
const MOST_MARKS: usize = 1 << 17;
/// Pages with the numbers of blocks, of all exports of a recording: 64 MiB, for 64 GiB of disks that are in use.
const MOST_PAGES: usize = 1 << 14;
const BLOCK_BYTES: usize = 4096;

/// Why there is no recording.
#[derive(Debug, Error)]
pub enum RecordError {
    /// There is one.
    #[error("{0}: is recorded already")]
    Taken(String),
    /// No thread, no random bytes.
    #[error("no recording: {0}")]
    System(#[from] io::Error),
    /// It cannot be begun.
    #[error("no recording: {0}")]
    Trace(#[from] bonsai_trace::Error),
}

/// A recording that goes on, of some exports.
#[derive(Debug)]
pub struct Recording {
    shared: Arc<Shared>,
    exports: Vec<Arc<Export>>,
    thread: Option<JoinHandle<()>>,
}

/// What is known of a recording; all from its beginning on.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct RecordingStatus {
    /// Requests that were noted.
    pub requests: u64,
    /// Requests that there was no room for.
    pub lost: u64,
}

impl Recording {
    /// Begins. `ended` is told how it ended, by the recorder's thread: when it was asked to, or when there can be no
    /// more.
    ///
    /// # Errors
    /// [`RecordError`]; then nothing is recorded.
    pub fn start(
        exports: &[Arc<Export>],
        to: impl Output + 'static,
        ended: impl FnOnce(Result<Summary, bonsai_trace::Error>) + Send + 'static,
    ) -> Result<Self, RecordError> {
        let shared = Arc::new(Shared::new()?);
        let left = Arc::new(AtomicUsize::new(MOST_PAGES));
        let taps = exports.iter().zip(0..).map(|(export, volume)| {
            Arc::new(Tap {
                shared: Arc::clone(&shared),
                known: Known::new(export.info().size.div_ceil(BLOCK), Arc::clone(&left)),
                since: AtomicU64::new(0),
                volume,
            })
        });
        let taps: Vec<_> = taps.collect();
        let mut recording = Self {
            shared: Arc::clone(&shared),
            exports: Vec::new(),
            thread: None,
        };
        for (export, tap) in exports.iter().zip(&taps) {
            if !export.record.take(tap) {
                // What was begun is taken back.
                return Err(RecordError::Taken(export.info().name.clone()));
            }
            recording.exports.push(Arc::clone(export));
        }
        let mut keeper = keeper::Keeper::new(exports, (taps, Arc::clone(&shared.prints)), to)?;
        let own = exports.to_vec();
        let thread = std::thread::Builder::new().name("nbd-record".to_owned());
        let thread = thread.spawn(move || {
            let done = keeper.run(&shared);
            // Before the end of the trace is seen, so that whoever sees it may begin another.
            for export in own {
                export.record.leave(&shared);
            }
            ended(done.and_then(|()| keeper.finish(&shared)));
        })?;
        recording.thread = Some(thread);
        Ok(recording)
    }

    /// Whether it has ended by itself: nothing more can be written.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it, and waits until all is written.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        for export in &self.exports {
            export.record.leave(&self.shared);
        }
        self.shared.lock().stopping = true;
        self.shared.more.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic has told itself.
            let _ = thread.join();
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.end();
    }
}

/// Where an export has its recording, if any.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// So that nothing is locked while nothing is recorded.
    on: AtomicBool,
    tap: RwLock<Option<Arc<Tap>>>,
}

impl Recorder {
    fn tap(&self) -> Option<Arc<Tap>> {
        if !self.on.load(Ordering::Relaxed) {
            return None;
        }
        let tap = self.tap.read().unwrap_or_else(PoisonError::into_inner);
        tap.clone()
    }

    fn take(&self, with: &Arc<Tap>) -> bool {
        let mut tap = self.tap.write().unwrap_or_else(PoisonError::into_inner);
        if tap.is_some() {
            return false;
        }
        *tap = Some(Arc::clone(with));
        self.on.store(true, Ordering::Relaxed);
        true
    }

    fn leave(&self, shared: &Arc<Shared>) {
        let mut tap = self.tap.write().unwrap_or_else(PoisonError::into_inner);
        if tap
            .as_ref()
            .is_some_and(|tap| Arc::ptr_eq(&tap.shared, shared))
        {
            self.on.store(false, Ordering::Relaxed);
            *tap = None;
        }
    }

    /// A request begins; `None` while nothing is recorded. `since` says from when on nobody else can have changed the image, if
    /// nobody can now.
    pub(crate) fn begin(
        &self,
        op: Op,
        (offset, length): (u64, u64),
        since: impl FnOnce() -> Option<u64>,
    ) -> Option<Begun> {
        let tap = self.tap()?;
        let at = Instant::now();
        let since = since();
        // What became known before may have been changed between.
        if let Some(since) = since.filter(|since| tap.since.load(Ordering::SeqCst) != *since) {
            tap.known.forget_all();
            tap.since.store(since, Ordering::SeqCst);
        }
        Some(Begun::new(tap, (at, since), op, (offset, length)))
    }

    /// Somebody else wrote to the image.
    pub(crate) fn forget(&self) {
        if let Some(tap) = self.tap() {
            tap.known.forget_all();
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// What was recorded, while something is.
    pub(crate) fn status(&self) -> Option<RecordingStatus> {
        let shared = Arc::clone(&self.tap()?.shared);
        Some(RecordingStatus {
            requests: shared.noted.load(Ordering::Relaxed),
            lost: shared.lost.load(Ordering::Relaxed),
        })
    }
}

/// One export's part of a recording.
#[derive(Debug)]
pub(crate) struct Tap {
    shared: Arc<Shared>,
    known: Known,
    /// From when on the image was guarded, as far as `known` goes.
    since: AtomicU64,
    volume: u32,
}

/// What all taps and the recorder have in common.
#[derive(Debug)]
struct Shared {
    notes: Mutex<Notes>,
    more: Condvar,
    prints: Arc<Prints>,
    noted: AtomicU64,
    lost: AtomicU64,
    start: (Instant, Duration),
}

#[derive(Debug, Default)]
struct Notes {
    notes: Vec<Note>,
    /// Of all notes, one after the other.
    words: Vec<u32>,
    /// For each word that is 0 what it stands for.
    marks: Vec<Mark>,
    /// Requests since the last look that there was no room for.
    lost: u64,
    stopping: bool,
}

impl Notes {
    /// Whether they are to be written now, before there is no room for more.
    fn are_many(&self) -> bool {
        self.notes.len() >= MOST_NOTES / 2
            || self.words.len() >= MOST_CONTENTS / 2
            || self.marks.len() >= MOST_MARKS / 2
    }
}

/// A request.
#[derive(Clone, Copy, Debug)]
struct Note {
    time_ns: u64,
    offset: u64,
    length: u32,
    volume: u32,
    op: Op,
    /// How many of the words are its own: as many as it has blocks, or none.
    words: u32,
}

/// A block's mark, and its ticket if the number of that is to be kept.
#[derive(Clone, Copy, Debug)]
struct Mark {
    mark: u128,
    block: u64,
    ticket: Option<u32>,
}

impl Shared {
    fn new() -> io::Result<Self> {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Ok(Self {
            notes: Mutex::default(),
            more: Condvar::new(),
            prints: Arc::new(Prints::random()?),
            noted: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            start: (Instant::now(), wall.unwrap_or_default()),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nanoseconds since 1970, by a clock that is never set.
    fn time_ns(&self, at: Instant) -> u64 {
        let (start, wall) = self.start;
        let since = wall + at.saturating_duration_since(start);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    fn push(&self, note: Note, words: &[u32], marks: &[Mark]) {
        let mut notes = self.lock();
        if notes.notes.len() >= MOST_NOTES
            || notes.words.len() + words.len() > MOST_CONTENTS
            || notes.marks.len() + marks.len() > MOST_MARKS
        {
            notes.lost += 1;
            drop(notes);
            add(&self.lost, 1);
            return;
        }
        let were_many = notes.are_many();
        notes.notes.push(note);
        notes.words.extend_from_slice(words);
        notes.marks.extend_from_slice(marks);
        let much = !were_many && notes.are_many();
        drop(notes);
        add(&self.noted, 1);
        if much {
            self.more.notify_one();
        }
    }
}
