//! What the proxy has done.

use bonsai_media::adapt::{Summary, Weights};
use serde::Serialize;

use super::super::Film;

/// A segment that was fetched.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fetched {
    /// Which, from 0.
    pub segment: usize,
    /// In which quality; the lowest is 0.
    pub quality: usize,
    /// Bytes of pictures, and of sound that is in the same files.
    pub bytes: u64,
    /// Bytes of sound that is apart and came with it.
    pub sound_bytes: u64,
    /// From the question to the last byte, ms.
    pub time_ms: f64,
    /// Which server it is from, from 0.
    pub server: usize,
    /// How long the player waited for it, ms; `None` if it was not given to one.
    pub waited_ms: Option<f64>,
}

impl Fetched {
    pub(super) fn new(
        (segment, quality): (usize, usize),
        (bytes, sound_bytes): (u64, u64),
        took_ns: u64,
        server: usize,
    ) -> Self {
        Self {
            segment,
            quality,
            bytes,
            sound_bytes,
            time_ms: ms(took_ns),
            server,
            waited_ms: None,
        }
    }

    /// A player was given it after such a wait.
    pub(super) fn given(&mut self, waited_ns: u64) {
        self.waited_ms.get_or_insert(ms(waited_ns));
    }
}

/// How players waited for segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Waits {
    /// Segments that were given.
    pub given: u64,
    /// Those that a player waited for, 10 ms or more.
    pub waited: u64,
    /// How long in all, ms.
    pub waited_ms: f64,
    /// The longest, ms.
    pub longest_ms: f64,
}

impl Waits {
    pub(super) fn add(&mut self, waited_ns: u64, has_waited: bool) {
        let waited_ms = ms(waited_ns);
        self.given += 1;
        self.waited += u64::from(has_waited);
        self.waited_ms += waited_ms;
        self.longest_ms = self.longest_ms.max(waited_ms);
    }
}

/// What a server did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Server {
    /// Where its list is.
    pub url: String,
    /// Segments that came from it.
    pub segments: u64,
    /// All bytes that came from it.
    pub bytes: u64,
    /// How fast it was last, kbit/s.
    pub kbps: Option<f64>,
    /// How often it did not do what was asked of it.
    pub failures: u64,
    /// Why, the last time.
    pub last_failure: Option<String>,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The film.
    pub film: Film,
    /// The servers, as they were named.
    pub servers: Vec<Server>,
    /// What was fetched, in that order.
    pub segments: Vec<Fetched>,
    /// How players waited.
    pub waits: Waits,
    /// How often a player went elsewhere.
    pub seeks: u64,
    /// What a viewer saw, as far as that is known here: what was given to the player is played at the media's pace, and
    /// whoever waits with nothing left stands still.
    pub seen: Summary,
    /// Bitrate, the mean over segments that began to play, kbit/s.
    pub mean_segment_kbps: f64,
    /// What it was worth for each segment, kbit/s; `None` if nothing was played.
    pub score: Option<f64>,
    /// What the score rests on.
    pub weights: Weights,
    /// How long it went on, s.
    pub elapsed_s: f64,
}

impl Report {
    pub(super) fn of(
        film: Film,
        servers: Vec<Server>,
        (mut seen, segments, waits, seeks): (Summary, Vec<Fetched>, Waits, u64),
        elapsed_ns: u64,
    ) -> Self {
        if film.qualities.iter().any(|quality| quality.kbps.is_none()) {
            measured(&mut seen, &film, &segments);
        }
        #[expect(clippy::cast_precision_loss, reason = "segments of a film")]
        let count = seen.segments.max(1) as f64;
        let weights = Weights::default();
        Self {
            mean_segment_kbps: seen.kbps_sum / count,
            score: weights.score(&seen).map(|score| score.per_segment),
            film,
            servers,
            segments,
            waits,
            seeks,
            seen,
            weights,
            elapsed_s: ms(elapsed_ns) / 1e3,
        }
    }
}

/// Of a list that stands alone it is known at the end what it carries.
#[expect(
    clippy::cast_precision_loss,
    reason = "segments of a film, and their bytes"
)]
fn measured(seen: &mut Summary, film: &Film, segments: &[Fetched]) {
    let bytes: u64 = segments.iter().map(|of| of.bytes + of.sound_bytes).sum();
    let came_ms = segments.len() as f64 * film.segment_ms;
    if came_ms > 0.0 {
        let kbps = bytes as f64 * 8.0 / came_ms;
        seen.kbps_sum = seen.segments as f64 * kbps;
        if seen.played_ms > 0.0 {
            seen.mean_kbps = kbps;
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of a film")]
pub(super) fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}
