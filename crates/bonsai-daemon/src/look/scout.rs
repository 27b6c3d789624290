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

/// Looks for them when told to.
#[derive(Debug)]
pub(super) struct Scout {
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
        thread::Builder::new()
            .name("scout".to_owned())
            .spawn(move || {
                while told.recv().is_ok() {
                    let there = places.iter().flat_map(|place| homes(place, &own));
                    if found.send(there.collect()).is_err() {
                        break;
                    }
                }
            })?;
        Ok(Self {
            go,
            back,
            since_ns: None,
        })
    }

    /// Sends it out, unless it is.
    pub(super) fn send(&mut self, now_ns: u64) {
        if self.since_ns.is_none() && self.go.send(()).is_ok() {
            self.since_ns = Some(now_ns);
        }
    }

    /// What it has found, once it is back.
    pub(super) fn found(&mut self) -> Option<Vec<Home>> {
        match self.back.try_recv() {
            Ok(homes) => {
                self.since_ns = None;
                Some(homes)
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    /// Why new users are not seen, if they are not.
    pub(super) fn problem(&self, now_ns: u64) -> Option<&'static str> {
        let is_late = |since_ns| now_ns.saturating_sub(since_ns) > LATE_NS;
        self.since_ns.is_some_and(is_late).then_some(LATE)
    }
}
