//! Failures that clients see, for the log: each once, but not more lines than a person can read.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Event, OnEvent, lock};
use crate::protocol::{Command, Request};

/// Lines at once, at most, after a quiet time.
const BURST: u32 = 10;
/// Then one line in this time.
const INTERVAL: Duration = Duration::from_secs(1);

/// Reports failures of one export, limited in rate. What is left out is counted, and the next line says how many.
pub(super) struct Failures {
    export: String,
    tell: Arc<OnEvent>,
    state: Mutex<State>,
}

struct State {
    lines: u32,
    since: Instant,
    omitted: u64,
}

impl std::fmt::Debug for Failures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Failures").finish_non_exhaustive()
    }
}

impl Failures {
    pub(super) fn new(export: &str, tell: &Arc<OnEvent>) -> Arc<Self> {
        Arc::new(Self {
            export: export.to_owned(),
            tell: Arc::clone(tell),
            state: Mutex::new(State {
                lines: BURST,
                since: Instant::now(),
                omitted: 0,
            }),
        })
    }

    /// A request that its client is told has failed.
    pub(super) fn report(&self, request: &Request, error: &io::Error) {
        let Some(omitted) = lock(&self.state).line() else {
            return;
        };
        (self.tell)(&Event::Failed {
            export: &self.export,
            operation: operation(request.command),
            offset: request.offset,
            length: request.length,
            error,
            omitted,
        });
    }

    /// Says how many were left out, once there may be a line again, so that the last ones are not left unsaid; at the
    /// end in any case.
    pub(super) fn settle(&self, end: bool) {
        let mut state = lock(&self.state);
        if state.omitted == 0 || !(state.has_line() || end) {
            return;
        }
        state.lines = state.lines.saturating_sub(1);
        let count = std::mem::take(&mut state.omitted);
        drop(state);
        let export = &self.export;
        (self.tell)(&Event::Omitted { export, count });
    }
}

impl State {
    /// Takes a line, with what was left out before; `None`, and one more left out, where there are too many.
    fn line(&mut self) -> Option<u64> {
        if !self.has_line() {
            self.omitted += 1;
            return None;
        }
        self.lines -= 1;
        Some(std::mem::take(&mut self.omitted))
    }

    fn has_line(&mut self) -> bool {
        let intervals = self.since.elapsed().as_nanos() / INTERVAL.as_nanos();
        if intervals > 0 {
            let more = u32::try_from(intervals).unwrap_or(BURST);
            self.lines = self.lines.saturating_add(more).min(BURST);
            self.since = Instant::now();
        }
        self.lines > 0
    }
}

const fn operation(command: Command) -> &'static str {
    match command {
        Command::Read => "read",
        Command::Write => "write",
        Command::Flush => "flush",
        Command::Trim => "trim",
        Command::Cache => "cache",
        Command::WriteZeroes => "write zeroes",
        Command::BlockStatus => "block status",
        Command::Disconnect | Command::Unknown(_) => "unknown command",
    }
}
