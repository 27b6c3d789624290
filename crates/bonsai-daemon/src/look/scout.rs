//! Finds out which users have runtime directories, on a thread of its own: a user may have mounted
//! a file system there that keeps whoever opens it waiting, and no period waits for that.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

use bonsai_services::theirs::{Home, homes};

use super::SECOND_NS;

/// Who has not come back for so long is kept waiting, ns.
const LATE_NS: u64 = 5 * SECOND_NS;

/// Why new users are not seen.
const LATE: &str = "which users have services is not known at the moment: a runtime directory \
                    keeps whoever opens it waiting";

/// The same, for a while.
const FAILED: &str =
    "the thread that looks for users with services had failed, and was started again";

/// Looks for them when told to.
#[derive(Debug)]
pub(super) struct Scout {
    places: Vec<PathBuf>,
    own: PathBuf,
    /// The thread had ended by itself, and its successor has not come back yet.
    is_new: bool,
    /// Ends with this.
    go: Sender<()>,
    back: Receiver<Vec<Home>>,
    /// When it was sent out, if it is out.
    since_ns: Option<u64>,
}

impl Scout {
    /// At these places, but for the daemon's own runtime directory.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(super) fn start(places: Vec<PathBuf>, own: PathBuf) -> std::io::Result<Self> {
        let (go, told) = channel();
        let (found, back) = channel();
        let (its, except) = (places.clone(), own.clone());
        thread::Builder::new()
            .name("scout".to_owned())
            .spawn(move || {
                while told.recv().is_ok() {
                    let there = its.iter().flat_map(|place| homes(place, &except));
                    if found.send(there.collect()).is_err() {
                        break;
                    }
                }
            })?;
        Ok(Self {
            places,
            own,
            is_new: false,
            go,
            back,
            since_ns: None,
        })
    }

    /// Sends it out, unless it is.
    pub(super) fn send(&mut self, now_ns: u64) {
        if self.since_ns.is_some() {
            return;
        }
        if self.go.send(()).is_ok() {
            self.since_ns = Some(now_ns);
            return;
        }
        self.is_new = true;
        // Where there is no thread to be had, the next period tries again.
        if let Ok(next) = Self::start(self.places.clone(), self.own.clone()) {
            *self = Self {
                is_new: true,
                ..next
            };
        }
    }

    /// What it has found, once it is back.
    pub(super) fn found(&mut self) -> Option<Vec<Home>> {
        match self.back.try_recv() {
            Ok(homes) => {
                self.since_ns = None;
                self.is_new = false;
                Some(homes)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                self.since_ns = None;
                None
            }
        }
    }

    /// Why new users are not seen, if they are not.
    pub(super) fn problem(&self, now_ns: u64) -> Option<&'static str> {
        let is_late = |since_ns| now_ns.saturating_sub(since_ns) > LATE_NS;
        let late = self.since_ns.is_some_and(is_late).then_some(LATE);
        late.or(self.is_new.then_some(FAILED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn one_that_has_failed_is_started_again_and_said() {
        let own = tempfile::tempdir().expect("a folder");
        let mut scout = Scout::start(Vec::new(), own.path().to_owned()).expect("a thread");
        // The other ends are gone, as with a thread that has panicked.
        (scout.go, scout.back) = (channel().0, channel().1);
        scout.send(1);
        assert_eq!(scout.problem(1), Some(FAILED));
        scout.send(2);
        let start = Instant::now();
        while scout.found().is_none() {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "it never comes back"
            );
            thread::yield_now();
        }
        assert_eq!(scout.problem(3), None);
    }
}
