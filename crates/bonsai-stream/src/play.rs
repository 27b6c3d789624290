//! Players of a film over HTTP, which choose among its qualities.
//!
//! ```text
//!   Plan ──> arrivals ──> player: playlists, segments ──> client (bonsai-media) ──> PlayerReport ──> Outcome
//!                           └── one thread carries all of its players (tokio)
//! ```
//! HLS (RFC 8216) from a master playlist, or from that of one quality, and DASH (ISO/IEC 23009-1) with
//! segments by template; films that end. Sound that is apart is fetched with the pictures that it belongs
//! to. Nothing is decoded.
//!
//! # Invariants
//! 1. Arrivals are an open loop: nobody waits for another's answer.
//! 2. Each step of a player has a deadline: to connect, to the head of an answer, all of a playlist, some of a
//!    segment. Whoever misses one, or of a segment a few in a row, has failed, and says why.
//! 3. What a server can make a player keep is bounded: a head, a playlist, all playlists that come at a time.
//!    Of a segment nothing is kept.
//! 4. All players of a thread have a playlist in common, as long as they are sent the same.

mod dash;
mod engine;
mod fetch;
mod film;
mod hls;
mod meter;
mod player;
pub mod proxy;
mod shared;
mod wire;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bonsai_media::adapt::{Settings, Summary, Weights, fairness};
use hdrhistogram::{Counter, Histogram};
use serde::Serialize;

use crate::watch::{Guest, part};

pub use film::{
    Document, Host, MOST_BYTES, Offer, Piece, Quality, Segment, Sound, Source, Target, Track,
    Unreadable,
};

pub use crate::watch::{Arrivals, Coming, Error, Progress, Video};

/// What is played, by whom.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The playlists or descriptions, addresses of http: viewers watch them in turns, where it is not said
    /// otherwise.
    pub videos: Vec<Video>,
    /// How many watch; of a trace no more than it has.
    pub viewers: u32,
    /// How they come.
    pub arrivals: Arrivals,
    /// How long each watches, at most, from its first picture on, where it is not said otherwise.
    pub length: Duration,
    /// How long a step may take.
    pub step: Duration,
    /// Threads, each with a part of the players.
    pub threads: u32,
    /// Of what is by chance.
    pub seed: u64,
    /// How they adapt.
    pub settings: Settings,
    /// Whether it is kept what each player fetched, and when it stood still.
    pub keeps_log: bool,
}

/// The film, as the first player saw it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Film {
    /// From the lowest bitrate to the highest.
    pub qualities: Vec<Quality>,
    /// If it is apart.
    pub sound: Option<Sound>,
    /// How long a segment is, as a rule, ms.
    pub segment_ms: f64,
    /// How many segments there are.
    pub segments: usize,
}

/// What a player saw.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlayerReport {
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
    /// What it saw, if it came as far as that.
    pub seen: Option<Seen>,
}

impl PlayerReport {
    fn failed(guest: &Guest, (step, why): (&'static str, &str), is_refused: bool) -> Self {
        Self {
            came_ns: guest.at_ns,
            video: guest.video + 1,
            failure: Some(format!("{step}: {why}")),
            failed_at: Some(step),
            is_refused,
            seen: None,
        }
    }

    /// Whether it had the highest quality all the time after its start, and no stall.
    #[must_use]
    pub fn is_top(&self) -> bool {
        let seen = self.seen.as_ref();
        self.failure.is_none() && seen.is_some_and(|seen| seen.short_of.is_empty())
    }
}

/// What the viewer of a player saw.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Seen {
    /// Start, stalls, bitrate over time of play, switches, buffer, downloads.
    #[serde(flatten)]
    pub summary: Summary,
    /// Bitrate, the mean over segments that began to play, kbit/s.
    pub mean_segment_kbps: f64,
    /// What it was worth, by the outcome's weights, for each segment, kbit/s.
    pub score: Option<f64>,
    /// The quality that was fetched last; the lowest is 0.
    pub quality: usize,
    /// How long segments took, from the question to the last byte.
    pub times: Times,
    /// Connections that it took.
    pub connections: u64,
    /// What it falls short of top quality by.
    pub short_of: Vec<Shortfall>,
    /// What it fetched, if that is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<Log>,
}

/// What was fetched and shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Log {
    /// Segments, in order.
    pub segments: Vec<Logged>,
    /// Stalls.
    pub stalls: Vec<Stall>,
}

/// A segment that was fetched.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Logged {
    /// Which, from 0.
    pub segment: usize,
    /// In which quality.
    pub quality: usize,
    /// How long it is, ms.
    pub ms: f64,
    /// Bytes, without those of sound that is apart.
    pub bytes: u64,
    /// Bytes of sound that is apart.
    pub sound_bytes: u64,
}

/// A time in which nothing moved.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Stall {
    /// Where in the film, ms.
    pub at_ms: f64,
    /// How long, ms.
    pub ms: f64,
}

/// What a viewer falls short of top quality by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shortfall {
    /// It stood still.
    Stall,
    /// It went down from a quality.
    Lower,
    /// The highest quality did not come before a buffer's worth of media was shown.
    Late,
}

impl Shortfall {
    /// In a word or some.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Stall => "stalls",
            Self::Lower => "lower quality",
            Self::Late => "slow to the highest",
        }
    }
}

/// How long segments took, ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    /// How many there were.
    pub segments: u64,
    /// The median,
    pub p50_ms: f64,
    /// the 95th percentile,
    pub p95_ms: f64,
    /// the 99th,
    pub p99_ms: f64,
    /// and the longest.
    pub max_ms: f64,
}

/// From 1 us on, as far as it has to go, within 1 %.
fn times<T: Counter>() -> Histogram<T> {
    Histogram::new(2).expect("two digits of a histogram")
}

impl Times {
    fn of<T: Counter>(times: &Histogram<T>) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "microseconds of a download")]
        let ms = |us: u64| us as f64 / 1e3;
        Self {
            segments: times.len(),
            p50_ms: ms(times.value_at_quantile(0.5)),
            p95_ms: ms(times.value_at_quantile(0.95)),
            p99_ms: ms(times.value_at_quantile(0.99)),
            max_ms: ms(times.max()),
        }
    }
}

/// What all of them saw.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The film, if somebody came to know it; of several videos the first.
    pub film: Option<Film>,
    /// Of several videos each, if somebody came to know it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub films: Vec<Option<Film>>,
    /// Each, in the order that they came.
    pub players: Vec<PlayerReport>,
    /// How long it took, nanoseconds.
    pub elapsed_ns: u64,
    /// How long segments took, those of all players.
    pub times: Times,
    /// How evenly bitrates are shared (Jain), of those who saw something: 1 is evenly.
    pub fairness: Option<f64>,
    /// The mean score of those who saw something, for each segment, kbit/s.
    pub score: Option<f64>,
    /// What scores rest on.
    pub weights: Weights,
    /// Processor time of the threads that watched, seconds.
    pub cpu_s: f64,
    /// Of the busiest thread, the part of the time that it was busy, 0 to 1, in its busiest half second.
    pub busiest: f64,
    /// The same in all the time.
    pub busy: f64,
    /// The most that this client was too late for something of its own, nanoseconds.
    pub late_ns: u64,
}

impl Outcome {
    /// What a player watched, if somebody came to know it.
    #[must_use]
    pub fn film_of(&self, player: &PlayerReport) -> Option<&Film> {
        match self.films.is_empty() {
            true => self.film.as_ref(),
            false => self.films.get(player.video.checked_sub(1)?)?.as_ref(),
        }
    }
}

/// Lets all of them play. `progress` is told of each thread now and then, with its number; its packets are
/// segments.
///
/// # Errors
/// There cannot be as many.
pub fn play(plan: &Plan, progress: &(dyn Fn(usize, Progress) + Sync)) -> Result<Outcome, Error> {
    crate::watch::may_open(plan.viewers, 1)?;
    let plan = &Arc::new(plan.clone());
    let threads = plan.threads.clamp(1, plan.viewers.max(1));
    let begin = crate::clock::now();
    let guests = plan
        .arrivals
        .guests(plan.viewers, plan.videos.len(), plan.length, plan.seed);
    let parts: Vec<_> = thread::scope(|scope| {
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
        film: None,
        films: Vec::new(),
        players: Vec::new(),
        elapsed_ns,
        times: Times::default(),
        fairness: None,
        score: None,
        weights: Weights::default(),
        cpu_s: 0.0,
        busiest: 0.0,
        busy: 0.0,
        late_ns: 0,
    };
    let mut films = vec![None; plan.videos.len()];
    let mut all: Histogram<u64> = self::times();
    for part in parts {
        let part = part.map_err(Error::System)?;
        outcome.cpu_s += Duration::from_nanos(part.cpu_ns).as_secs_f64();
        outcome.busiest = outcome.busiest.max(part.busiest);
        outcome.busy = outcome.busy.max(part.busy);
        outcome.late_ns = outcome.late_ns.max(part.late_ns);
        for (known, film) in films.iter_mut().zip(part.films) {
            *known = known.take().or(film);
        }
        outcome.players.extend(part.players);
        // Both grow as they have to.
        let _ = all.add(&part.times);
    }
    outcome.film = films.first().cloned().flatten();
    if films.len() > 1 {
        outcome.films = films;
    }
    outcome.players.sort_by_key(|player| player.came_ns);
    outcome.times = Times::of(&all);
    let seen = || {
        let seen = outcome
            .players
            .iter()
            .filter_map(|player| player.seen.as_ref());
        seen.filter(|seen| seen.summary.segments > 0)
    };
    outcome.fairness = fairness(seen().map(|seen| &seen.summary));
    let scores: Vec<f64> = seen().filter_map(|seen| seen.score).collect();
    outcome.score = bonsai_stats::mean(&scores);
    Ok(outcome)
}
