//! Changes that survive a restart are written by a thread of its own: a change is in force before a disk has it, and only the answer to it waits
//! for that, for [`PATIENCE`] at most. One write has all changes since the one before.
//!
//! Entries of the audit trail take the same way, so that a change and its entry are one file that is replaced as a whole:
//! ```text
//!   change, entry ──> changes.json: changes, entries that audit.sqlite is not known to have
//!                         └── then ──> audit.sqlite (its own thread)        a start completes it from the file
//! ```
//!
//! # Invariants
//! 1. What is written is all of it as it was at some revision, or what was there before.
//! 2. A write that failed is tried again every [`AGAIN`], with what is wanted then.
//! 3. At the end of the daemon, what was changed last is written, or the answer to it has said that it is not.
//! 4. Of a change that is on the disk the entry is, in the same file or in the database; of one that is not, neither is.
//! 5. No number of an entry is given out twice, for the file says up to which some may have been.
//!
//! # Limits
//! [`MOST`] entries and [`MOST_BYTES`] wait for a database that cannot be written; then the oldest go, which is counted and said.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bonsai_api::{AuditEntry, Revision};
use bonsai_history::Writer;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::desired::Kept;
use crate::files::Files;
use crate::past;
use crate::ring::Saved;

/// The longest that an answer waits for the disk.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

const AGAIN: Duration = Duration::from_secs(5);

/// The longest that the end of the daemon waits for the disk.
const END: Duration = Duration::from_secs(5);

/// Entries that wait for the database, and their bytes.
const MOST: usize = 1000;
const MOST_BYTES: usize = 4 << 20;

/// Numbers of entries that may be given out before the next write.
const RESERVED: u64 = 1000;

/// An entry of the audit trail, and the number of the user that is named in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Noted {
    pub(crate) uid: Option<u32>,
    pub(crate) entry: AuditEntry,
}

/// The part of the audit trail that is written with the changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Trail {
    /// No entry has a higher number.
    pub(crate) ids: u64,
    /// Entries that the database is not known to have, in the order of their numbers.
    pub(crate) entries: VecDeque<Noted>,
}

impl Trail {
    /// The highest number that may have been given out.
    pub(crate) fn last(&self) -> u64 {
        let last = self.entries.back().map_or(0, |noted| noted.entry.id);
        self.ids.max(last)
    }

    /// Makes room; how many entries had to go.
    fn bound(&mut self) -> u64 {
        let mut bytes: usize = self.entries.iter().map(|noted| size(&noted.entry)).sum();
        let mut gone = 0;
        while self.entries.len() > MOST || bytes > MOST_BYTES {
            let Some(oldest) = self.entries.pop_front() else {
                break;
            };
            bytes -= size(&oldest.entry);
            gone += 1;
        }
        gone
    }
}

/// About the bytes that an entry takes.
fn size(entry: &AuditEntry) -> usize {
    let text = |text: &Option<String>| text.as_ref().map_or(8, String::len);
    let differences = entry.differences.iter();
    let each = differences.map(|d| 32 + d.path.len() + text(&d.from) + text(&d.to));
    300 + entry.reason.len() + each.sum::<usize>()
}

/// State of the disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    /// The latest revision that was tried.
    pub(crate) revision: Revision,
    /// Why it is not there, in words.
    pub(crate) problem: Option<String>,
    /// Entries of the trail that were given up, because no file took them.
    pub(crate) dropped: u64,
    /// Why further limits are not known to the next daemon, in words.
    pub(crate) further: Option<String>,
}

#[derive(Debug, Default)]
struct Wanted {
    kept: Option<Kept>,
    noted: Vec<Noted>,
    further: Option<Saved>,
    ends: bool,
}

impl Wanted {
    const fn is_something(&self) -> bool {
        self.kept.is_some() || !self.noted.is_empty() || self.further.is_some() || self.ends
    }
}

#[derive(Debug, Default)]
struct Shared {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way to that thread.
#[derive(Debug)]
pub(crate) struct Keeping {
    shared: Arc<Shared>,
    written: watch::Receiver<Written>,
    thread: Option<JoinHandle<()>>,
}

impl Keeping {
    /// Starts it, with what was there at the start. `history` is where entries go in the end.
    pub(crate) fn start(
        files: Files,
        kept: Kept,
        trail: Trail,
        history: Option<Arc<Writer>>,
    ) -> std::io::Result<Self> {
        let (tell, written) = watch::channel(Written {
            revision: kept.revision(),
            ..Written::default()
        });
        let shared = Arc::new(Shared::default());
        let its = Arc::clone(&shared);
        let keeper = Keeper {
            files,
            history,
            last: trail.last(),
            trail,
            kept,
            // The numbers that will be given out are said before they are.
            is_due: true,
            has_failed: false,
            due: Vec::new(),
            further: None,
            dropped: 0,
        };
        let thread = thread::Builder::new().name("keeping".to_owned());
        let thread = thread.spawn(move || keeper.run(&its, &tell))?;
        Ok(Self {
            shared,
            written,
            thread: Some(thread),
        })
    }

    /// Writes, as they happen.
    pub(crate) fn written(&self) -> watch::Receiver<Written> {
        self.written.clone()
    }

    /// The outcome of the last write.
    pub(crate) fn last(&self) -> Written {
        self.written.borrow().clone()
    }

    /// Has it written soon, together with entries about it.
    pub(crate) fn keep(&self, kept: Kept, noted: Vec<Noted>) {
        let mut wanted = self.shared.lock();
        wanted.kept = Some(kept);
        wanted.noted.extend(noted);
        drop(wanted);
        self.shared.changed.notify_one();
    }

    /// Has further limits written soon, for the next daemon.
    pub(crate) fn further(&self, saved: Saved) {
        self.shared.lock().further = Some(saved);
        self.shared.changed.notify_one();
    }

    /// Has entries kept that are about no change: they go to the database.
    pub(crate) fn note(&self, noted: Vec<Noted>) {
        if noted.is_empty() {
            return;
        }
        self.shared.lock().noted.extend(noted);
        self.shared.changed.notify_one();
    }

    /// Waits until what was changed last is written, for [`END`] at most.
    pub(crate) fn end(&mut self) {
        self.shared.lock().ends = true;
        self.shared.changed.notify_one();
        // Without a look at the clock, which may be what has failed.
        for _ in 0..END.as_millis() {
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.thread = None;
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.end();
    }
}

/// The thread's own.
struct Keeper {
    files: Files,
    history: Option<Arc<Writer>>,
    kept: Kept,
    trail: Trail,
    /// The highest number of an entry.
    last: u64,
    /// A write is due now.
    is_due: bool,
    /// The last write failed, and is to be tried again.
    has_failed: bool,
    /// Entries that the history has not been given yet.
    due: Vec<Noted>,
    /// Further limits that the next daemon has to know, and does not.
    further: Option<Saved>,
    dropped: u64,
}

impl Keeper {
    fn run(mut self, shared: &Shared, tell: &watch::Sender<Written>) {
        loop {
            let ends = self.wait(shared);
            if ends {
                // The next daemon goes on where this one ended.
                self.is_due |= self.has_failed || self.trail.ids != self.last;
            } else if self.last + RESERVED / 2 > self.trail.ids && !self.has_failed {
                self.is_due = true;
            }
            if self.is_due {
                self.write(tell, if ends { 0 } else { RESERVED });
            }
            self.hand_over();
            self.write_further(tell);
            if ends {
                return;
            }
        }
    }

    /// Waits for something to do, and takes it in; whether it is the last.
    fn wait(&mut self, shared: &Shared) -> bool {
        let mut wanted = shared.lock();
        while !wanted.is_something() && !self.is_due {
            if self.has_failed {
                let waited = shared.changed.wait_timeout(wanted, AGAIN);
                let (again, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                wanted = again;
                self.is_due = waited.timed_out();
            } else {
                let waited = shared.changed.wait(wanted);
                wanted = waited.unwrap_or_else(PoisonError::into_inner);
            }
        }
        self.further = wanted.further.take().or(self.further.take());
        if let Some(kept) = wanted.kept.take() {
            self.kept = kept;
            self.is_due = true;
        }
        for noted in wanted.noted.drain(..) {
            self.last = self.last.max(noted.entry.id);
            self.due.push(noted.clone());
            self.trail.entries.push_back(noted);
        }
        wanted.ends
    }

    /// Writes all of it, and says how that went.
    fn write(&mut self, tell: &watch::Sender<Written>, reserved: u64) {
        match &self.history {
            Some(history) => {
                let stored = history.status().stored;
                let is_stored = |noted: &Noted| noted.entry.id <= stored;
                while self
                    .trail
                    .entries
                    .pop_front_if(|noted| is_stored(noted))
                    .is_some()
                {}
                self.dropped += self.trail.bound();
            }
            // Nothing will ever take them.
            None => self.trail.entries.clear(),
        }
        self.trail.ids = self.last + reserved;
        let result = self.files.keep(&self.kept, &self.trail);
        self.is_due = false;
        self.has_failed = result.is_err();
        let problem = result
            .err()
            .map(|error| bonsai_host::sentence(error.as_ref()));
        tell.send_modify(|written| {
            written.revision = self.kept.revision();
            written.problem = problem;
            written.dropped = self.dropped;
        });
    }

    /// Tells the next daemon of further limits. What fails is tried again with the next ones, or with the next write of all.
    fn write_further(&mut self, tell: &watch::Sender<Written>) {
        let Some(further) = self.further.take() else {
            return;
        };
        let problem = self.files.keep_further(&further).err();
        if problem.is_some() {
            (self.further, self.has_failed) = (Some(further), true);
        }
        let problem = problem.map(|error| error.to_string());
        tell.send_modify(|written| written.further = problem);
    }

    /// Gives the history the entries that are on the disk by now, or that the disk has refused: they are of what was done.
    fn hand_over(&mut self) {
        for Noted { uid, entry } in self.due.drain(..) {
            if let Some(history) = &self.history {
                history.audit_as(entry.id, past::kept(&entry, uid));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &std::path::Path) -> Files {
        Files::of_test(folder)
    }

    fn start(folder: &std::path::Path, history: Option<Arc<Writer>>) -> Keeping {
        Keeping::start(files(folder), Kept::at(0), Trail::default(), history).expect("a thread")
    }

    fn noted(id: u64) -> Noted {
        let entry = serde_json::json!({
            "id": id, "unix_ms": 1, "actor": "root", "via": "socket", "pid": null, "action": "change",
            "revision": id, "service": null, "differences": [], "reason": ""
        });
        Noted {
            uid: Some(0),
            entry: serde_json::from_value(entry).expect("an entry"),
        }
    }

    fn until(keeping: &Keeping, so: impl Fn(&Written) -> bool) {
        while !so(&keeping.last()) {
            thread::yield_now();
        }
    }

    #[test]
    fn the_last_of_many_changes_is_there_at_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let keeping = start(folder.path(), None);
        for revision in 1..=500 {
            keeping.keep(Kept::at(revision), vec![noted(revision)]);
        }
        drop(keeping);
        let (kept, trail, _) = files(folder.path()).kept().expect("read");
        assert_eq!(kept, Some(Kept::at(500)));
        // Without a history nothing waits for one.
        assert_eq!((trail.ids, trail.entries.len()), (500, 0));
    }

    #[test]
    fn a_write_that_fails_is_said_and_the_next_one_has_all() {
        let folder = tempfile::tempdir().expect("a folder");
        let blocked = folder.path().join("changes.json");
        std::fs::create_dir(&blocked).expect("a folder in its way");
        let keeping = start(folder.path(), None);
        keeping.keep(Kept::at(7), Vec::new());
        until(&keeping, |written| written.revision == 7);
        let problem = keeping.last().problem.expect("a problem");
        assert!(problem.contains("changes.json"), "{problem}");
        std::fs::remove_dir(&blocked).expect("it is out of the way");
        keeping.keep(Kept::at(8), Vec::new());
        until(&keeping, |written| written.revision == 8);
        assert_eq!(keeping.last().problem, None);
        assert_eq!(
            files(folder.path()).kept().expect("read").0,
            Some(Kept::at(8))
        );
    }

    #[test]
    fn an_entry_is_in_the_file_until_the_database_has_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let history = Writer::start(folder.path(), bonsai_history::Options::default());
        let history = Arc::new(history.expect("a history"));
        let keeping = start(folder.path(), Some(Arc::clone(&history)));
        keeping.keep(Kept::at(1), vec![noted(1)]);
        until(&keeping, |written| written.revision == 1);
        let (_, trail, _) = files(folder.path()).kept().expect("read");
        assert_eq!(trail.entries, [noted(1)], "before the answer");
        assert_eq!(trail.ids, 1 + RESERVED);
        while history.status().stored < 1 {
            thread::yield_now();
        }
        keeping.keep(Kept::at(2), vec![noted(2)]);
        until(&keeping, |written| written.revision == 2);
        let (_, trail, _) = files(folder.path()).kept().expect("read");
        assert_eq!(trail.entries, [noted(2)]);
    }

    #[test]
    fn entries_that_nothing_takes_are_bounded_and_counted() {
        let mut trail = Trail::default();
        trail.entries.extend((1..=1200).map(noted));
        assert_eq!(trail.bound(), 200);
        assert_eq!((trail.entries[0].entry.id, trail.last()), (201, 1200));
        for noted in &mut trail.entries {
            noted.entry.reason = "x".repeat(16 << 10);
        }
        assert!(trail.bound() > 700);
    }
}
