//! What all viewers saw, in a table.

use std::collections::{BTreeMap, BTreeSet};

use bonsai_media::meter::Criterion;
use bonsai_media::rtsp::Lower;
use bonsai_stream::watch::{Outcome, Plan, TrackReport, ViewerReport};
use serde::Serialize;

use bonsai_host::tenants::plain;

use super::asked::{Asked, Saw, by_video};
use crate::output::{count, finish, table};

/// A client that is busier than that may be what is measured.
pub(super) const BUSY: f64 = 0.8;

/// How many are of top quality.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Quality {
    /// By the paper's four thresholds.
    pub(super) paper: usize,
    /// By all.
    pub(super) honest: usize,
}

/// What all of them saw.
#[derive(Debug)]
pub(super) struct Summary<'a> {
    outcome: &'a Outcome,
    plan: &'a Plan,
    /// Viewers that watched to the end.
    pub(super) watched: usize,
    pub(super) quality: Quality,
}

impl<'a> Summary<'a> {
    pub(super) fn of(outcome: &'a Outcome, plan: &'a Plan) -> Self {
        let verdicts = || outcome.viewers.iter().map(|viewer| viewer.verdict());
        let watched = outcome.viewers.iter().filter(|one| one.failure.is_none());
        Self {
            outcome,
            plan,
            watched: watched.count(),
            quality: Quality {
                paper: verdicts().filter(|(paper, _)| *paper).count(),
                honest: verdicts().filter(|(_, honest)| *honest).count(),
            },
        }
    }

    /// Why it says nothing of the server, if that is so: packets came, and were dropped here; or somebody fell short
    /// of something that this client may have done itself. A refusal is the server's own.
    pub(super) fn why_void(&self) -> Option<String> {
        let (outcome, thresholds) = (self.outcome, &self.plan.thresholds);
        if outcome.dropped_here > 0 {
            let dropped = count(outcome.dropped_here, "packet", "packets");
            return Some(format!("{dropped} came and found no room here"));
        }
        // What the server refused is no matter of time.
        let mut others = outcome.viewers.iter().filter(|viewer| !viewer.is_refused);
        if others.all(|viewer| viewer.verdict().1) {
            return None;
        }
        let late_ns = outcome.late_ns as f64;
        match self.plan.lower {
            // Packets have the kernel's times: what is late are arrivals, answers, and the server if it is here.
            Lower::Udp if late_ns >= thresholds.gap_ns as f64 => Some(was_late(late_ns)),
            Lower::Tcp if late_ns >= thresholds.jitter_ns => Some(was_late(late_ns)),
            Lower::Tcp if outcome.busiest > BUSY => Some(
                "this client was too busy, and packets in connections have the time when they were read"
                    .to_owned(),
            ),
            _ => None,
        }
    }

    pub(super) fn text(&self, asked: &Asked) -> String {
        let all = self.outcome.viewers.len();
        let mut text = format!(
            "{}: {} of {} watched to the end\n",
            asked.title(),
            self.watched,
            count(all as u64, "viewer", "viewers")
        );
        for (why, times) in self.failures() {
            text.push_str(&format!("  {times} failed: {why}\n"));
        }
        text.push_str(&self.tracks());
        let saw: Vec<Saw> = self.outcome.viewers.iter().map(saw).collect();
        text.push_str(&by_video(&asked.addresses, &saw));
        text.push_str(&self.verdict(all));
        let (cpu, busiest) = (self.outcome.cpu_s, self.outcome.busiest * 100.0);
        let late = ms(self.outcome.late_ns as f64);
        text.push_str(&format!(
            "this client: {cpu:.1} s of CPU, {busiest:.0} % of a core in its busiest half second, up to {late} late"
        ));
        text.push_str(match self.outcome.dropped_here {
            0 if self.outcome.busiest <= BUSY => ", nothing dropped here\n",
            0 => ", nothing dropped here, but gaps and jitter may be its own: use --threads\n",
            _ => "\n",
        });
        if let Some(why) = self.why_void() {
            text.push_str(&void(&why));
        }
        text
    }

    /// Why some failed, the most frequent reason first.
    fn failures(&self) -> Vec<(String, usize)> {
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for why in self
            .outcome
            .viewers
            .iter()
            .filter_map(|one| one.failure.as_deref())
        {
            // It has words of the server's.
            *reasons.entry(plain(why)).or_default() += 1;
        }
        let mut reasons: Vec<_> = reasons.into_iter().collect();
        reasons.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
        reasons
    }

    /// A line for pictures and one for sound.
    fn tracks(&self) -> String {
        let mut kinds: BTreeMap<&str, Vec<&TrackReport>> = BTreeMap::new();
        for track in self
            .outcome
            .viewers
            .iter()
            .flat_map(|viewer| &viewer.tracks)
        {
            kinds.entry(&track.kind).or_default().push(track);
        }
        if kinds.is_empty() {
            return String::new();
        }
        let header = [
            "",
            "streams",
            "Mbit/s",
            "lost",
            "max. loss",
            "max. gap",
            "avg. jitter",
            "max. jitter",
            "reordered",
            "max. lag",
            "min. pace",
        ];
        let mut table = table(&header, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        // Pictures come first.
        for (kind, tracks) in kinds.into_iter().rev() {
            let all = tracks.len();
            let mean = |of: fn(&TrackReport) -> f64| {
                tracks.iter().map(|track| of(track)).sum::<f64>() / all as f64
            };
            let most = |of: fn(&TrackReport) -> f64| {
                tracks
                    .iter()
                    .map(|track| of(track))
                    .fold(f64::MIN, f64::max)
            };
            let sum =
                |of: fn(&TrackReport) -> u64| tracks.iter().map(|track| of(track)).sum::<u64>();
            let (lost, expected) = (sum(|of| of.stream.lost), sum(|of| of.stream.expected));
            let least = -most(|of| -of.stream.pace);
            table.add_row(vec![
                plain(kind),
                all.to_string(),
                format!("{:.3}", mean(|of| of.stream.bits_per_sec) / 1e6),
                format!("{:.3} %", lost as f64 / expected.max(1) as f64 * 100.0),
                format!("{:.3} %", most(|of| of.stream.loss) * 100.0),
                ms(most(|of| of.stream.gap_max_ns as f64)),
                ms(mean(|of| of.stream.jitter_decoded.mean_ns)),
                ms(most(|of| of.stream.jitter_decoded.max_ns)),
                sum(|of| of.stream.reordered).to_string(),
                ms(most(|of| of.stream.lag_max_ns)),
                format!("{least:.3}"),
            ]);
        }
        finish(&table)
    }

    /// What viewers fell short of, and how many of them.
    fn broken(&self) -> BTreeMap<Criterion, usize> {
        let mut times = BTreeMap::new();
        for viewer in self
            .outcome
            .viewers
            .iter()
            .filter(|one| one.failure.is_none())
        {
            let tracks = viewer.tracks.iter();
            let broken: BTreeSet<_> = tracks.flat_map(|of| &of.verdict.broken).collect();
            for criterion in broken {
                *times.entry(*criterion).or_default() += 1;
            }
        }
        times
    }

    /// The same in words, with those that failed.
    pub(super) fn short_of(&self) -> BTreeMap<String, usize> {
        let broken = self.broken().into_iter();
        let mut short: BTreeMap<String, usize> = broken
            .map(|(of, times)| (of.word().to_owned(), times))
            .collect();
        let failed = self.outcome.viewers.len() - self.watched;
        if failed > 0 {
            short.insert("failed".to_owned(), failed);
        }
        short
    }

    fn verdict(&self, all: usize) -> String {
        let thresholds = &self.plan.thresholds;
        let broken = self.broken();
        let short = |is_of_paper: bool| {
            let broken = broken
                .iter()
                .filter(|(of, _)| of.is_of_paper() == is_of_paper);
            let words: Vec<String> = broken
                .map(|(of, times)| format!("{} {times}", of.word()))
                .collect();
            match words.is_empty() {
                true => String::new(),
                false => format!("; short of: {}", words.join(", ")),
            }
        };
        format!(
            "top quality: {} of {all} by loss <= {} %, gap < {}, jitter <= {}, no reordering{}\n\
             top quality: {} of {all} also by lag <= {}, pace >= {}{}\n",
            self.quality.paper,
            thresholds.loss * 100.0,
            ms(thresholds.gap_ns as f64),
            ms(thresholds.jitter_ns),
            short(true),
            self.quality.honest,
            ms(thresholds.lag_ns),
            thresholds.pace,
            short(false),
        )
    }
}

/// What a viewer saw of its video.
fn saw(viewer: &ViewerReport) -> Saw {
    let tracks = viewer.tracks.iter();
    let broken: BTreeSet<_> = tracks.flat_map(|of| &of.verdict.broken).collect();
    let rates = viewer.tracks.iter().map(|of| of.stream.bits_per_sec);
    Saw {
        video: viewer.video,
        has_watched: viewer.failure.is_none(),
        is_top: viewer.verdict().1,
        bits_per_sec: (!viewer.tracks.is_empty()).then(|| rates.sum()),
        short_of: match viewer.failure {
            Some(_) => vec!["failed"],
            None => broken.into_iter().map(|of| of.word()).collect(),
        },
    }
}

/// That a client was late by so much.
pub(super) fn was_late(late_ns: f64) -> String {
    let seconds = late_ns / 1e9;
    format!(
        "this client was late by {seconds:.2} s (it got no processor, was stopped, or had too much to do)"
    )
}

/// That a run says nothing.
pub(super) fn void(why: &str) -> String {
    format!("VOID: {why}, so this says nothing of the server\n")
}

/// A line for each stream.
pub(super) fn streams(outcome: &Outcome) -> String {
    let header = [
        "viewer",
        "video",
        "track",
        "came",
        "start",
        "packets",
        "lost",
        "again",
        "reordered",
        "max. gap",
        "jitter",
        "max. jitter",
        "lag",
        "pace",
        "short of",
    ];
    let mut table = table(&header, &[0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
    for (number, viewer) in outcome.viewers.iter().enumerate() {
        for track in &viewer.tracks {
            let of = &track.stream;
            let broken = track.verdict.broken.iter().map(|of| of.word());
            table.add_row(vec![
                number.to_string(),
                viewer.video.to_string(),
                plain(&track.kind),
                ms(viewer.came_ns as f64),
                of.startup_ns
                    .map_or_else(|| "-".to_owned(), |ns| ms(ns as f64)),
                of.received.to_string(),
                of.lost.to_string(),
                of.duplicates.to_string(),
                of.reordered.to_string(),
                ms(of.gap_max_ns as f64),
                ms(of.jitter_decoded.mean_ns),
                ms(of.jitter_decoded.max_ns),
                ms(of.lag_ns),
                format!("{:.3}", of.pace),
                broken.collect::<Vec<_>>().join(", "),
            ]);
        }
    }
    finish(&table)
}

/// Milliseconds, as the papers have them.
pub(super) fn ms(ns: f64) -> String {
    format!("{:.2} ms", ns / 1e6)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bonsai_media::meter::Thresholds;
    use bonsai_stream::watch::Arrivals;

    use super::*;

    #[test]
    fn a_viewer_that_was_refused_does_not_void_a_run_of_a_late_client() {
        let plan = |lower| Plan {
            videos: Vec::new(),
            lower,
            viewers: 1,
            arrivals: Arrivals::Crowd,
            length: Duration::from_secs(1),
            step: Duration::from_secs(1),
            threads: 1,
            seed: 0,
            thresholds: Thresholds::default(),
        };
        for (lower, is_refused) in [
            (Lower::Udp, true),
            (Lower::Udp, false),
            (Lower::Tcp, true),
            (Lower::Tcp, false),
        ] {
            let outcome = Outcome {
                viewers: vec![ViewerReport {
                    came_ns: 0,
                    video: 1,
                    failure: Some("SETUP: it failed".to_owned()),
                    failed_at: Some("SETUP"),
                    is_refused,
                    tracks: Vec::new(),
                }],
                elapsed_ns: 1,
                cpu_s: 0.0,
                busiest: 0.0,
                dropped_here: 0,
                late_ns: 1_000_000_000,
            };
            let plan = plan(lower);
            let why = Summary::of(&outcome, &plan).why_void();
            assert_eq!(why.is_none(), is_refused, "{lower:?}: {why:?}");
        }
    }
}
