//! Viewers of a clip.
//!
//! ```text
//!   Plan ──> arrivals ──> Viewer: connect, RTSP, packets ──> Meter ──> ViewerReport ──> Outcome
//!                           └── one thread waits for all of its viewers (epoll)
//! ```
//! # Invariants
//! 1. Arrivals are an open loop: nobody waits for another's answer.
//! 2. Each step of a viewer has a deadline. Whoever misses one, or a track, has failed, and says why.
//! 3. What was dropped in this machine is told apart: a run with such drops says nothing of the server.

mod arrivals;
mod engine;
mod trace;
mod viewer;

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use bonsai_media::meter::{StreamReport, Thresholds, Verdict};
use bonsai_media::rtsp::{Lower, Url};
use bonsai_media::seen::Seen;
use serde::Serialize;

use crate::files;

pub use arrivals::{Arrivals, Coming};
pub(crate) use arrivals::{Guest, part};
pub use trace::{Arrival, Named, TraceError, read as read_trace};

/// What a viewer watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Video {
    /// Its address.
    pub url: Url,
    /// Where its server is.
    pub server: SocketAddr,
}

/// What is watched, by whom.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The clips: viewers watch them in turns, where it is not said otherwise.
    pub videos: Vec<Video>,
    /// How packets come.
    pub lower: Lower,
    /// How many watch; of a trace no more than it has.
    pub viewers: u32,
    /// How they come.
    pub arrivals: Arrivals,
    /// How long each watches, at most, from its first packet on, where it is not said otherwise.
    pub length: Duration,
    /// How long a step may take.
    pub step: Duration,
    /// Threads, each with a part of the viewers.
    pub threads: u32,
    /// Of what is by chance.
    pub seed: u64,
    /// What a stream of top quality keeps to.
    pub thresholds: Thresholds,
}

/// Why there is no outcome at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system does not let as many sockets be open.
    #[error(
        "{viewers} viewers take up to {needed} open files, and {allowed} are allowed (ulimit -n, \
         LimitNOFILE=)"
    )]
    Files {
        /// How many were to watch.
        viewers: u32,
        /// What that takes.
        needed: u64,
        /// What there may be.
        allowed: u64,
    },
    /// The system refuses what viewers wait by.
    #[error("viewers cannot be waited for")]
    System(#[source] io::Error),
}

/// A track as a viewer saw it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrackReport {
    /// `video` or `audio`.
    pub kind: String,
    /// Its codec.
    pub encoding: String,
    /// What the server says that it has, bits a second.
    pub nominal_bits_per_sec: Option<u64>,
    /// What came.
    pub stream: StreamReport,
    /// Whether that is top quality.
    pub verdict: Verdict,
}

/// What a viewer saw.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ViewerReport {
    /// When it came, nanoseconds from the beginning.
    pub came_ns: u64,
    /// Which of the videos it watched, from 1 on.
    pub video: usize,
    /// Why it sees nothing, or no more; `None` if it watched to the end.
    pub failure: Option<String>,
    /// The step it failed in.
    pub failed_at: Option<&'static str>,
    /// Whether the server said no: then it is not this client that was late.
    pub is_refused: bool,
    /// What it saw.
    pub tracks: Vec<TrackReport>,
}

impl ViewerReport {
    /// Whether all of it was of top quality by the paper's four thresholds, and by all.
    #[must_use]
    pub fn verdict(&self) -> (bool, bool) {
        let watched = self.failure.is_none() && !self.tracks.is_empty();
        let all = |of: fn(&Verdict) -> bool| self.tracks.iter().all(|track| of(&track.verdict));
        (
            watched && all(|verdict| verdict.paper),
            watched && all(|verdict| verdict.honest),
        )
    }
}

/// What all of them saw.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Each, in the order that they came.
    pub viewers: Vec<ViewerReport>,
    /// How long it took, nanoseconds.
    pub elapsed_ns: u64,
    /// Processor time of the threads that watched, seconds, and of the busiest.
    pub cpu_s: f64,
    /// Of the busiest thread, the part of the time that it was busy, 0 to 1.
    pub busiest: f64,
    /// Datagrams that came and were dropped in this machine.
    pub dropped_here: u64,
    /// The most that a thread here was too late for something that it had to do at a time, nanoseconds: the system
    /// gave it no processor, or it was stopped.
    pub late_ns: u64,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Viewers that have come so far.
    pub came: u32,
    /// Those that play.
    pub playing: u32,
    /// Those that have watched to the end.
    pub done: u32,
    /// Those that have failed.
    pub failed: u32,
    /// Packets so far; of players over HTTP, segments.
    pub packets: u64,
    /// Bytes of payload so far.
    pub bytes: u64,
    /// What they saw in the last second or so; nothing where it is not a second since it was told.
    pub seen: Seen,
}

/// Lets all of them watch. `progress` is told of each thread now and then, with its number.
///
/// # Errors
/// There cannot be as many.
pub fn watch(plan: &Plan, progress: &(dyn Fn(usize, Progress) + Sync)) -> Result<Outcome, Error> {
    may_open(plan.viewers, SOCKETS)?;
    let threads = plan.threads.clamp(1, plan.viewers.max(1));
    let begin = crate::clock::now();
    let guests = plan
        .arrivals
        .guests(plan.viewers, plan.videos.len(), plan.length, plan.seed);
    let parts: Vec<Result<engine::Part, io::Error>> = thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|thread| {
                let guests = part(&guests, thread, threads);
                let number = usize::try_from(thread).unwrap_or(0);
                scope.spawn(move || engine::run(plan, begin, &guests, number, progress))
            })
            .collect();
        let ended = started.into_iter().map(|thread| match thread.join() {
            Ok(part) => part,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.collect()
    });
    let elapsed_ns = crate::clock::now() - begin;
    let mut outcome = Outcome {
        viewers: Vec::new(),
        elapsed_ns,
        cpu_s: 0.0,
        busiest: 0.0,
        dropped_here: 0,
        late_ns: 0,
    };
    for part in parts {
        let part = part.map_err(Error::System)?;
        let cpu_s = part.cpu_ns as f64 / 1e9;
        outcome.cpu_s += cpu_s;
        outcome.busiest = outcome.busiest.max(part.busiest);
        outcome.late_ns = outcome.late_ns.max(part.late_ns);
        outcome.viewers.extend(part.viewers);
    }
    outcome.viewers.sort_by_key(|viewer| viewer.came_ns);
    let tracks = outcome.viewers.iter().flat_map(|viewer| &viewer.tracks);
    outcome.dropped_here = tracks.map(|track| track.stream.dropped_here).sum();
    Ok(outcome)
}

/// Sockets of a viewer with pictures and sound: one for messages, and two for each track.
const SOCKETS: u64 = 5;

/// Raises the limit of open files as far as it goes, for viewers of so many sockets each.
pub(crate) fn may_open(viewers: u32, sockets: u64) -> Result<(), Error> {
    let needed = u64::from(viewers) * sockets + 64;
    let allowed = files::allow(needed).map_err(|error| Error::System(error.into()))?;
    match allowed >= needed {
        true => Ok(()),
        false => Err(Error::Files {
            viewers,
            needed,
            allowed,
        }),
    }
}
