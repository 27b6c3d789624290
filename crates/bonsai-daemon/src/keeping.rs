//! Changes that survive a restart are written by a thread of its own: a change is in force before a disk has it, and only the answer to it waits
//! for that, for [`PATIENCE`] at most. One write has all changes since the one before.
//!
//! # Invariants
//! 1. What is written is all of it as it was at some revision, or what was there before.
//! 2. A write that failed is tried again every [`AGAIN`], with what is wanted then.
//! 3. At the end of the daemon, what was changed last is written, or the answer to it has said that it is not.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bonsai_api::Revision;
use tokio::sync::watch;

use crate::desired::Kept;
use crate::files::Files;

/// The longest that an answer waits for the disk.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

const AGAIN: Duration = Duration::from_secs(5);

/// The longest that the end of the daemon waits for the disk.
const END: Duration = Duration::from_secs(5);

/// State of the disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    /// The latest revision that was tried.
    pub(crate) revision: Revision,
    /// Why it is not there, in words.
    pub(crate) problem: Option<String>,
}

#[derive(Debug, Default)]
struct Wanted {
    kept: Option<Kept>,
    ends: bool,
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
    /// Starts it. What was there at the start counts as written.
    pub(crate) fn start(files: Files, revision: Revision) -> std::io::Result<Self> {
        let (tell, written) = watch::channel(Written {
            revision,
            problem: None,
        });
        let shared = Arc::new(Shared::default());
        let its = Arc::clone(&shared);
        let thread = thread::Builder::new().name("keeping".to_owned());
        let thread = thread.spawn(move || write(&files, &its, &tell))?;
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

    /// Why the last write failed, in words.
    pub(crate) fn problem(&self) -> Option<String> {
        self.written.borrow().problem.clone()
    }

    /// Has it written soon.
    pub(crate) fn keep(&self, kept: Kept) {
        self.shared.lock().kept = Some(kept);
        self.shared.changed.notify_one();
    }
}

/// Waits until what was changed last is written, for [`END`] at most.
impl Drop for Keeping {
    fn drop(&mut self) {
        self.shared.lock().ends = true;
        self.shared.changed.notify_one();
        // Without a look at the clock, which may be what has failed.
        for _ in 0..END.as_millis() {
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn write(files: &Files, shared: &Shared, tell: &watch::Sender<Written>) {
    // Changes that could not be written.
    let mut left: Option<Kept> = None;
    loop {
        let mut wanted = shared.lock();
        while wanted.kept.is_none() && !wanted.ends {
            if left.is_none() {
                wanted = shared
                    .changed
                    .wait(wanted)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (again, waited) = shared
                .changed
                .wait_timeout(wanted, AGAIN)
                .unwrap_or_else(PoisonError::into_inner);
            wanted = again;
            if waited.timed_out() {
                break;
            }
        }
        let ends = wanted.ends;
        let kept = wanted.kept.take().or_else(|| left.take());
        drop(wanted);
        let Some(kept) = kept else {
            return;
        };
        let result = files.keep(&kept);
        tell.send_replace(Written {
            revision: kept.revision(),
            problem: result
                .as_ref()
                .err()
                .map(|error| bonsai_host::sentence(error.as_ref())),
        });
        left = result.is_err().then_some(kept);
        if ends {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &std::path::Path) -> Files {
        let mut config = bonsai_api::Config::default();
        config.daemon.state = Some(folder.to_owned());
        Files::new(None, &config).expect("files")
    }

    #[test]
    fn the_last_of_many_changes_is_there_at_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let keeping = Keeping::start(files(folder.path()), 0).expect("a thread");
        for revision in 1..=500 {
            keeping.keep(Kept::at(revision));
        }
        drop(keeping);
        assert_eq!(
            files(folder.path()).kept(),
            (Some(Kept::at(500)), Vec::new())
        );
    }

    #[test]
    fn a_write_that_fails_is_said_and_the_next_one_has_all() {
        let folder = tempfile::tempdir().expect("a folder");
        let blocked = folder.path().join("changes.json.new");
        let keeping = Keeping::start(files(folder.path()), 0).expect("a thread");
        std::fs::create_dir(&blocked).expect("a folder in its way");
        keeping.keep(Kept::at(7));
        let until = |so: fn(&Written) -> bool| {
            while !so(&keeping.written.borrow()) {
                thread::yield_now();
            }
        };
        until(|written| written.revision == 7);
        assert!(
            keeping
                .problem()
                .expect("a problem")
                .contains("changes.json")
        );
        std::fs::remove_dir(&blocked).expect("it is out of the way");
        keeping.keep(Kept::at(8));
        until(|written| written.revision == 8);
        assert_eq!(keeping.problem(), None);
        assert_eq!(files(folder.path()).kept().0, Some(Kept::at(8)));
    }
}
