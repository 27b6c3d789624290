//! Viewers: those of `bonsai watch`, by its library, so that what came can be counted over time.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use bonsai_media::meter::Thresholds;
use bonsai_media::rtsp::{Lower, Url};
use bonsai_stream::watch::{Arrivals, Outcome, Plan, Progress, TrackReport, Video, watch};
use serde::{Deserialize, Serialize};

use super::pin;
use crate::net::rooms::Room;
use crate::net::traffic::sleep_until;
use crate::service::monotonic_ns;

/// How long each step of a viewer may take: answers of a server that is held back come late.
const STEP: Duration = Duration::from_secs(20);
/// A client that is busier than that may be what is measured.
const BUSY: f64 = 0.8;
/// Of RTP, before each payload (RFC 3550, 5.1): limits of a server count it.
const HEADER: u64 = 12;
/// Of what is measured, the beginning is left out: from the last viewer's coming on.
const SETTLING_NS: u64 = 1_000_000_000;
/// Less is no rate.
const LEAST_NS: u64 = 1_500_000_000;

/// Who watches what.
#[derive(Debug)]
pub(super) struct Ask<'a> {
    pub(super) url: String,
    pub(super) server: SocketAddr,
    pub(super) viewers: u32,
    /// Within so much time all come, one after the other.
    pub(super) within: Duration,
    /// The first of them after so long.
    pub(super) after: Duration,
    /// Each watches for so long.
    pub(super) length: Duration,
    pub(super) room: Option<&'a Room>,
    pub(super) core: Option<usize>,
}

/// How far they were at an instant.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Point {
    /// Of the monotonic clock.
    pub(super) at_ns: u64,
    /// Those who watched.
    pub(super) playing: u32,
    /// Bytes of RTP that had come for all.
    pub(super) bytes: u64,
}

/// A track as a viewer saw it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Track {
    /// `video` or `audio`.
    pub(super) kind: String,
    pub(super) expected: u64,
    pub(super) received: u64,
    pub(super) lost: u64,
    pub(super) reordered: u64,
    /// Of payload.
    pub(super) bytes: u64,
    pub(super) elapsed_ns: u64,
    /// What all that came plays.
    pub(super) media_ns: f64,
    pub(super) gap_max_ns: u64,
    /// By openRTSP's reading of RFC 3550, which is most likely that of 002.
    pub(super) jitter_mean_ns: f64,
    pub(super) jitter_max_ns: f64,
    pub(super) lag_max_ns: f64,
    pub(super) pace: f64,
    pub(super) late_packets: u64,
    /// What it fell short of for top quality.
    pub(super) broken: Vec<String>,
    /// Whether it is one by 002's four criteria.
    pub(super) paper: bool,
}

/// A viewer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Viewer {
    pub(super) failure: Option<String>,
    pub(super) tracks: Vec<Track>,
}

/// What they saw.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Seen {
    pub(super) viewers: Vec<Viewer>,
    /// Twice a second.
    pub(super) points: Vec<Point>,
    /// How long it took.
    pub(super) elapsed_s: f64,
    /// Of the client: its processor time, s, the part of a core in its busiest half second (of several clips,
    /// in all of the time), and packets that it had no room for.
    pub(super) cpu_s: f64,
    pub(super) busiest: f64,
    pub(super) dropped_here: u64,
}

/// How many have top quality.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Quality {
    pub(super) all: usize,
    /// By 002's four criteria.
    pub(super) paper: usize,
    /// By lag and pace as well.
    pub(super) honest: usize,
}

/// While all watched, without the beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Steady {
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    /// Of RTP, a second, for all.
    pub(super) rate: f64,
}

/// Lets all of them watch at the same time, on one processor.
///
/// # Errors
/// An address makes no sense, or there cannot be as many viewers.
pub(super) fn watch_all(asks: &[Ask<'_>]) -> anyhow::Result<Vec<Seen>> {
    let begin = monotonic_ns();
    std::thread::scope(|scope| {
        let started: Vec<_> = asks
            .iter()
            .map(|ask| scope.spawn(move || ask.watch(begin)))
            .collect();
        started
            .into_iter()
            .map(|thread| thread.join().ok().context("a viewer has panicked")?)
            .collect()
    })
}

impl Ask<'_> {
    fn plan(&self) -> anyhow::Result<Plan> {
        let url = Url::parse(&self.url).with_context(|| format!("{:?} is no address", self.url))?;
        let within = self.within.as_secs_f64().max(1e-3);
        Ok(Plan {
            videos: vec![Video {
                url,
                server: self.server,
            }],
            lower: Lower::Udp,
            viewers: self.viewers,
            arrivals: Arrivals::Even(f64::from(self.viewers) / within),
            length: self.length,
            step: STEP,
            threads: 1,
            seed: 1,
            thresholds: Thresholds::default(),
        })
    }

    fn watch(&self, begin: u64) -> anyhow::Result<Seen> {
        let plan = self.plan()?;
        let points: Mutex<Vec<Point>> = Mutex::default();
        let note = |_thread: usize, progress: Progress| {
            let point = Point {
                at_ns: monotonic_ns(),
                playing: progress.playing,
                bytes: progress.bytes + HEADER * progress.packets,
            };
            let mut points = points.lock().unwrap_or_else(PoisonError::into_inner);
            points.push(point);
        };
        let work = || {
            pin(self.core);
            sleep_until(begin + u64::try_from(self.after.as_nanos()).unwrap_or(0));
            watch(&plan, &note)
        };
        let outcome = match self.room {
            Some(room) => room.within(work)?,
            None => work(),
        }?;
        let points = points.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Seen::of(outcome, points))
    }
}

impl Track {
    fn of(report: TrackReport) -> Self {
        let of = report.stream;
        let broken = report.verdict.broken.iter();
        Self {
            kind: report.kind,
            expected: of.expected,
            received: of.received,
            lost: of.lost,
            reordered: of.reordered,
            bytes: of.bytes,
            elapsed_ns: of.elapsed_ns,
            media_ns: of.covered_ns,
            gap_max_ns: of.gap_max_ns,
            jitter_mean_ns: of.jitter_decoded.mean_ns,
            jitter_max_ns: of.jitter_decoded.max_ns,
            lag_max_ns: of.lag_max_ns,
            pace: of.pace,
            late_packets: of.late_packets,
            broken: broken.map(|of| of.word().to_owned()).collect(),
            paper: report.verdict.paper,
        }
    }

    /// Bytes of RTP.
    fn rtp(&self) -> f64 {
        (self.bytes + HEADER * self.received) as f64
    }
}

impl Seen {
    fn of(outcome: Outcome, points: Vec<Point>) -> Self {
        let viewers = outcome.viewers.into_iter().map(|viewer| Viewer {
            failure: viewer.failure,
            tracks: viewer.tracks.into_iter().map(Track::of).collect(),
        });
        Self {
            viewers: viewers.collect(),
            points,
            elapsed_s: outcome.elapsed_ns as f64 / 1e9,
            cpu_s: outcome.cpu_s,
            busiest: outcome.busiest,
            dropped_here: outcome.dropped_here,
        }
    }

    /// Those of several clips, as one audience on one processor. It is not known over time.
    pub(super) fn of_all(all: Vec<Self>) -> Self {
        let mut sum = Self::default();
        for one in all {
            sum.viewers.extend(one.viewers);
            sum.elapsed_s = sum.elapsed_s.max(one.elapsed_s);
            sum.cpu_s += one.cpu_s;
            sum.dropped_here += one.dropped_here;
        }
        sum.busiest = sum.cpu_s / sum.elapsed_s.max(1e-9);
        sum
    }

    /// All tracks of all viewers.
    pub(super) fn tracks(&self) -> impl Iterator<Item = &Track> {
        self.viewers.iter().flat_map(|viewer| &viewer.tracks)
    }

    /// Packets that did not come.
    pub(super) fn lost(&self) -> u64 {
        self.tracks().map(|track| track.lost).sum()
    }

    /// The longest time between two packets of a stream, ms.
    pub(super) fn gap_ms(&self) -> f64 {
        self.tracks()
            .map(|track| track.gap_max_ns)
            .max()
            .unwrap_or(0) as f64
            / 1e6
    }

    /// The farthest that one was behind the media clock, s.
    pub(super) fn lag_s(&self) -> f64 {
        self.tracks()
            .map(|track| track.lag_max_ns)
            .fold(0.0, f64::max)
            / 1e9
    }

    /// The slowest, media time over time.
    pub(super) fn pace(&self) -> f64 {
        let paces = self.tracks().map(|track| track.pace);
        paces.fold(f64::INFINITY, f64::min)
    }

    /// Whether all played at the speed that the clip is played with, and nothing was lost.
    pub(super) fn is_at_full_rate(&self) -> bool {
        let slow = ["lag", "pace", "nothing"];
        let is_slow = |track: &Track| {
            track
                .broken
                .iter()
                .any(|word| slow.contains(&word.as_str()))
        };
        self.lost() == 0 && self.failures().is_none() && !self.tracks().any(is_slow)
    }

    pub(super) fn quality(&self) -> Quality {
        let watched = |viewer: &&Viewer| viewer.failure.is_none() && !viewer.tracks.is_empty();
        let count = |is_good: fn(&Track) -> bool| {
            let viewers = self.viewers.iter().filter(watched);
            viewers
                .filter(|viewer| viewer.tracks.iter().all(is_good))
                .count()
        };
        Quality {
            all: self.viewers.len(),
            paper: count(|track| track.paper),
            honest: count(|track| track.broken.is_empty()),
        }
    }

    /// What tracks fell short of, each with how many did.
    pub(super) fn short_of(&self) -> String {
        let mut found: Vec<(&str, usize)> = Vec::new();
        for word in self.tracks().flat_map(|track| &track.broken) {
            match found.iter_mut().find(|(known, _)| known == word) {
                Some((_, count)) => *count += 1,
                None => found.push((word, 1)),
            }
        }
        let words = found.iter().map(|(word, count)| format!("{word} {count}"));
        words.collect::<Vec<_>>().join(", ")
    }

    /// How many failed, and why the first did.
    pub(super) fn failures(&self) -> Option<String> {
        let mut whys = self
            .viewers
            .iter()
            .filter_map(|viewer| viewer.failure.as_ref());
        let first = whys.next()?;
        Some(format!(
            "{} of {} viewers failed: {first}",
            whys.count() + 1,
            self.viewers.len()
        ))
    }

    /// Bytes of RTP a second that a viewer gets of a server that holds nothing back: by the media clock.
    pub(super) fn full_rate(&self) -> Option<f64> {
        let of = |kind: &str| {
            let tracks = || {
                self.tracks()
                    .filter(|track| track.kind == kind && track.media_ns > 0.0)
            };
            let media: f64 = tracks().map(|track| track.media_ns / 1e9).sum();
            (media > 0.0).then(|| tracks().map(Track::rtp).sum::<f64>() / media)
        };
        let video = of("video")?;
        Some(video + of("audio").unwrap_or(0.0))
    }

    /// Bytes of RTP a second that each viewer got of all that it watched: the least and the most.
    pub(super) fn spread(&self) -> (f64, f64) {
        let rates = self
            .viewers
            .iter()
            .filter(|viewer| !viewer.tracks.is_empty())
            .map(|viewer| {
                let rate = |track: &Track| track.rtp() * 1e9 / track.elapsed_ns.max(1) as f64;
                viewer.tracks.iter().map(rate).sum::<f64>()
            });
        rates.fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), rate| {
            (least.min(rate), most.max(rate))
        })
    }

    /// From a second after the last viewer's coming until the first leaves.
    pub(super) fn steady(&self) -> Option<Steady> {
        steady(&self.points, u32::try_from(self.viewers.len()).ok()?)
    }

    /// Why the client may be at fault.
    pub(super) fn own_fault(&self) -> Option<String> {
        if self.dropped_here > 0 {
            let dropped = self.dropped_here;
            return Some(format!(
                "void: {dropped} packets came, and the client had no room for them"
            ));
        }
        (self.busiest > BUSY).then(|| {
            let part = self.busiest * 100.0;
            format!("the client was busy for {part:.0} % of a core")
        })
    }
}

fn steady(points: &[Point], viewers: u32) -> Option<Steady> {
    let is_complete = |point: &&Point| point.playing == viewers;
    let first = points.iter().find(is_complete)?;
    let begin = first.at_ns + SETTLING_NS;
    let mut whole = points.iter().skip_while(|point| point.at_ns < begin);
    let from = whole.next().filter(is_complete)?;
    let to = whole.take_while(is_complete).last()?;
    let length = to.at_ns - from.at_ns;
    (length >= LEAST_NS).then(|| Steady {
        from_ns: from.at_ns,
        to_ns: to.at_ns,
        rate: (to.bytes - from.bytes) as f64 * 1e9 / length as f64,
    })
}

#[cfg(test)]
pub(super) mod tests;
