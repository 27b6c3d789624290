//! Everything that is written, and what becomes of it while it cannot be.
//!
//! Each of the two databases is by itself in one of two states:
//! ```text
//!            opened                       any fault: the connection is closed
//! off ────────────────────> writing ────────────────────────────────────────> off
//!  └─ tried again after `retry`, twice as long after each failure, at most a minute
//! ```
//! A fault of SQLite that says that the file is damaged moves the file aside and begins a new
//! one at once. Meanwhile points are dropped and counted; audit entries and named bytes wait in
//! memory, entries at most [`Options::audit_queue`] and 8 MiB, the oldest dropped first and counted.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::audit::AuditEntry;
use crate::database::{self, MovedAside};
use crate::error::Error;
use crate::lock::Lock;
use crate::model::Tick;
use crate::options::Options;
use crate::points::Points;
use crate::records::{self, Blob, Records};

/// The longest time between two attempts.
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// Bytes of audit entries that wait in memory; one has less than 200 kB.
const QUEUE_BYTES: usize = 8 << 20;
/// Sentences on files that were moved aside which are kept.
const NOTES: usize = 8;

/// Whether something is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It is.
    #[default]
    Writing,
    /// It is not; the sentence says why. It is tried again.
    Off(String),
}

/// What was not written, or not as it came; since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Ticks that were written.
    pub written_ticks: u64,
    /// Ticks that were dropped, because the file could not be written or the queue was full.
    pub dropped_ticks: u64,
    /// Points that were dropped: those of dropped ticks, and of services that were too many
    /// or had a name that cannot be kept.
    pub dropped_points: u64,
    /// Ticks of a second that was written already (the wall clock was set back): the first
    /// one was kept.
    pub repeated_ticks: u64,
    /// Ticks older than all seconds that are kept.
    pub too_old_ticks: u64,
    /// Damaged blocks that were found and are gaps now.
    pub damaged_blocks: u64,
    /// Audit entries that were dropped from a full queue.
    pub dropped_audit: u64,
    /// Audit entries that wait to be written.
    pub waiting_audit: u64,
}

/// How the history is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether points are written.
    pub points: State,
    /// Whether the audit trail, learned state and overlay are written.
    pub records: State,
    /// What was not.
    pub counters: Counters,
    /// Bytes of `history.sqlite` that are in use, of the file, and of its WAL.
    pub points_bytes: (u64, u64, u64),
    /// The same of `audit.sqlite`.
    pub records_bytes: (u64, u64, u64),
    /// The highest of the numbers that entries were handed in with and are on disk.
    pub stored: u64,
    /// Damaged files that were moved aside since the start, each in a sentence.
    pub notes: Vec<String>,
}

/// A database that may be off.
#[derive(Debug)]
struct Keeper<T> {
    open: Option<T>,
    why: String,
    next: Instant,
    pause: Duration,
}

impl<T> Keeper<T> {
    fn new() -> Self {
        Self {
            open: None,
            why: "it has not been opened".to_owned(),
            next: Instant::now(),
            pause: Duration::ZERO,
        }
    }

    /// The open database; opened, if that is due.
    fn get(
        &mut self,
        retry: Duration,
        open: impl FnOnce() -> Result<(T, Option<MovedAside>), Error>,
        notes: &mut Vec<String>,
    ) -> Option<&mut T> {
        if self.open.is_none() && Instant::now() >= self.next {
            match open() {
                Ok((opened, aside)) => {
                    notes.extend(aside.map(|aside| aside.sentence));
                    let more = notes.len().saturating_sub(NOTES);
                    notes.drain(..more);
                    self.open = Some(opened);
                }
                Err(error) => self.fail(&error, retry),
            }
        }
        self.open.as_mut()
    }

    /// Closes it because of a fault.
    fn fail(&mut self, error: &Error, retry: Duration) {
        self.open = None;
        self.why = error.to_string();
        self.pause = (self.pause * 2).clamp(retry, LONGEST_RETRY.max(retry));
        self.next = Instant::now() + self.pause;
    }

    fn state(&self) -> State {
        match self.open {
            Some(_) => State::Writing,
            None => State::Off(self.why.clone()),
        }
    }
}

/// The one writer of a folder.
#[derive(Debug)]
pub struct History {
    folder: PathBuf,
    options: Options,
    lock: Option<Lock>,
    points: Keeper<Points>,
    records: Keeper<Records>,
    audit: VecDeque<(Option<u64>, AuditEntry)>,
    stored: u64,
    state: BTreeMap<String, Option<Blob>>,
    counters: Counters,
    notes: Vec<String>,
}

impl History {
    /// Becomes the writer of `folder`, which is made where it is not there.
    ///
    /// A full disk, a folder that cannot be made, a file of a newer version: all that makes
    /// a history that is off and says so ([`Self::status`]), not an error.
    ///
    /// # Errors
    /// Another process writes there, or the options make no sense.
    pub fn open(folder: &Path, options: Options) -> Result<Self, Error> {
        if let Some(why) = options.refusal() {
            return Err(Error::Options(why));
        }
        let mut history = Self {
            folder: folder.to_owned(),
            options,
            lock: None,
            points: Keeper::new(),
            records: Keeper::new(),
            audit: VecDeque::new(),
            stored: 0,
            state: BTreeMap::new(),
            counters: Counters::default(),
            notes: Vec::new(),
        };
        if let Err(error @ Error::Locked { .. }) = history.enter() {
            return Err(error);
        }
        history.attend();
        Ok(history)
    }

    /// The folder and its lock.
    fn enter(&mut self) -> Result<(), Error> {
        if self.lock.is_none() {
            let folder = database::make_folder(&self.folder)?;
            self.lock = Some(Lock::take(&folder)?);
            self.folder = folder;
        }
        Ok(())
    }

    /// Writes what was observed in a second.
    pub fn tick(&mut self, tick: &Tick) {
        let mut result = None;
        // Again at once where the file was damaged: the new one takes the tick.
        for _ in 0..2 {
            let Some(points) = self.points() else { break };
            match points.tick(tick) {
                Ok(outcome) => {
                    result = Some(outcome);
                    break;
                }
                Err(error) => self.points_failed(&error),
            }
        }
        match result {
            Some(outcome) => {
                self.points.pause = Duration::ZERO;
                let counters = &mut self.counters;
                counters.repeated_ticks += u64::from(outcome.repeated);
                counters.too_old_ticks += u64::from(outcome.too_old);
                counters.written_ticks += u64::from(!outcome.repeated && !outcome.too_old);
                counters.dropped_points += outcome.dropped_points;
                counters.damaged_blocks += outcome.damaged;
            }
            None => {
                self.counters.dropped_ticks += 1;
                self.counters.dropped_points += tick.points.len() as u64;
            }
        }
        self.attend();
    }

    fn points_failed(&mut self, error: &Error) {
        self.points.fail(error, self.options.retry);
        if error.is_corrupt() {
            self.set_aside(crate::points::FILE, error);
            self.points.next = Instant::now();
        }
    }

    fn records_failed(&mut self, error: &Error) {
        self.records.fail(error, self.options.retry);
        if error.is_corrupt() {
            self.set_aside(crate::records::FILE, error);
            self.records.next = Instant::now();
        }
    }

    fn set_aside(&mut self, file: &str, error: &Error) {
        match database::move_aside(&self.folder.join(file), &error.to_string()) {
            Ok(aside) => self.notes.push(aside.sentence),
            Err(error) => self.notes.push(error.to_string()),
        }
    }

    fn points(&mut self) -> Option<&mut Points> {
        if let Err(error) = self.enter() {
            self.points.fail(&error, self.options.retry);
            return None;
        }
        let (folder, options) = (&self.folder, &self.options);
        let open = || Points::open(folder, options);
        self.points.get(options.retry, open, &mut self.notes)
    }

    fn records(&mut self) -> Option<&mut Records> {
        if let Err(error) = self.enter() {
            self.records.fail(&error, self.options.retry);
            return None;
        }
        let (folder, options) = (&self.folder, &self.options);
        let open = || Records::open(folder, options);
        self.records.get(options.retry, open, &mut self.notes)
    }

    /// Appends to the audit trail; on disk when this returns, unless [`Status::records`] is off:
    /// then it waits in memory.
    pub fn audit(&mut self, entry: AuditEntry) {
        self.append(None, entry);
    }

    /// The same for an entry that has its number already: one that is there is left alone.
    pub fn audit_as(&mut self, id: u64, entry: AuditEntry) {
        self.append(Some(id), entry);
    }

    pub(crate) fn append(&mut self, id: Option<u64>, entry: AuditEntry) {
        self.audit.push_back((id, entry.shortened()));
        let bytes = |audit: &VecDeque<(Option<u64>, AuditEntry)>| {
            audit.iter().map(|(_, entry)| entry.bytes()).sum::<usize>()
        };
        while self.audit.len() > self.options.audit_queue || bytes(&self.audit) > QUEUE_BYTES {
            self.audit.pop_front();
            self.counters.dropped_audit += 1;
        }
        self.attend();
    }

    /// Replaces the named bytes by these, as a whole; none removes them. On disk when this
    /// returns, unless [`Status::records`] is off: then they wait in memory.
    ///
    /// # Errors
    /// They are too many: nothing is changed.
    pub fn put(&mut self, key: &str, blob: Option<Blob>) -> Result<(), Error> {
        if let Some(blob) = &blob {
            records::refuse(key, blob, self.options.state_bytes)?;
        }
        self.state.insert(key.to_owned(), blob);
        self.write_records()
    }

    /// Named bytes: those that wait, or those on disk.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn get(&self, key: &str) -> Result<Option<Blob>, Error> {
        match self.state.get(key) {
            Some(waiting) => Ok(waiting.clone()),
            None => crate::Reader::new(&self.folder).get(key),
        }
    }

    /// Reads both databases as a whole and moves aside what is damaged: for when a reader has
    /// met damage that the writer does not come across. Takes seconds for a large file.
    pub fn check(&mut self) {
        if let Some(Err(error)) = self.points().map(|points| points.check()) {
            self.points_failed(&error);
        }
        if let Some(Err(error)) = self.records().map(|records| records.check()) {
            self.records_failed(&error);
        }
        self.attend();
    }

    /// Tries again what failed, if it is time; to be called now and then while nothing else is.
    pub fn attend(&mut self) {
        let _ = self.points();
        // What is refused for good was refused by `put`, which said so.
        let _ = self.write_records();
    }

    /// Writes what waits.
    fn write_records(&mut self) -> Result<(), Error> {
        for _ in 0..2 {
            let mut audit = std::mem::take(&mut self.audit);
            let mut state = std::mem::take(&mut self.state);
            let last = audit.iter().filter_map(|(id, _)| *id).max();
            let done = match self.records() {
                Some(records) => write(records, &mut audit, &mut state),
                None => Ok(()),
            };
            if audit.is_empty() {
                self.stored = self.stored.max(last.unwrap_or(0));
            }
            self.audit = audit;
            self.state = state;
            match done {
                Ok(()) if self.records.open.is_some() => self.records.pause = Duration::ZERO,
                Ok(()) => {}
                Err(error @ Error::TooLarge(_)) => return Err(error),
                Err(error) => {
                    self.records_failed(&error);
                    if error.is_corrupt() {
                        continue;
                    }
                }
            }
            break;
        }
        Ok(())
    }

    /// How it is.
    #[must_use]
    pub fn status(&self) -> Status {
        let mut counters = self.counters;
        counters.waiting_audit = self.audit.len() as u64;
        Status {
            points: self.points.state(),
            records: self.records.state(),
            counters,
            points_bytes: self.points.open.as_ref().map_or((0, 0, 0), Points::bytes),
            stored: self.stored,
            records_bytes: self.records.open.as_ref().map_or((0, 0, 0), Records::bytes),
            notes: self.notes.clone(),
        }
    }

    /// The folder that is written to.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Writes all that waits; what was not reached stays.
fn write(
    records: &mut Records,
    audit: &mut VecDeque<(Option<u64>, AuditEntry)>,
    state: &mut BTreeMap<String, Option<Blob>>,
) -> Result<(), Error> {
    if !audit.is_empty() {
        records.append(&*audit)?;
        audit.clear();
    }
    while let Some((key, blob)) = state.first_key_value() {
        let done = records.put(key, blob.as_ref());
        if matches!(done, Ok(()) | Err(Error::TooLarge(_))) {
            state.pop_first();
        }
        done?;
    }
    Ok(())
}
