//! What all viewers saw, in a table.

use std::collections::{BTreeMap, BTreeSet};

use bonsai_media::meter::{Criterion, Thresholds};
use bonsai_stream::watch::{Outcome, TrackReport};
use serde::Serialize;

use bonsai_host::tenants::plain;

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
    /// Viewers that watched to the end.
    pub(super) watched: usize,
    pub(super) quality: Quality,
}

impl<'a> Summary<'a> {
    pub(super) fn of(outcome: &'a Outcome) -> Self {
        let verdicts = || outcome.viewers.iter().map(|viewer| viewer.verdict());
        let watched = outcome.viewers.iter().filter(|one| one.failure.is_none());
        Self {
            outcome,
            watched: watched.count(),
            quality: Quality {
                paper: verdicts().filter(|(paper, _)| *paper).count(),
                honest: verdicts().filter(|(_, honest)| *honest).count(),
            },
        }
    }

    /// Whether it says nothing of the server: packets came, and were dropped here.
    pub(super) fn is_void(&self) -> bool {
        self.outcome.dropped_here > 0
    }

    pub(super) fn text(&self, address: &str, thresholds: &Thresholds) -> String {
        let all = self.outcome.viewers.len();
        let mut text = format!(
            "{}: {} of {} watched to the end\n",
            address,
            self.watched,
            count(all as u64, "viewer", "viewers")
        );
        for (why, times) in self.failures() {
            text.push_str(&format!("  {times} failed: {why}\n"));
        }
        text.push_str(&self.tracks());
        text.push_str(&self.verdict(all, thresholds));
        let (cpu, busiest) = (self.outcome.cpu_s, self.outcome.busiest * 100.0);
        text.push_str(&format!(
            "this client: {cpu:.1} s of CPU, {busiest:.0} % of a core in its busiest half second"
        ));
        match self.outcome.dropped_here {
            0 if self.outcome.busiest <= BUSY => text.push_str(", nothing dropped here\n"),
            0 => text.push_str(
                ", nothing dropped here, but gaps and jitter may be its own: use --threads\n",
            ),
            dropped => text.push_str(&format!(
                "; VOID: {dropped} packets came and were dropped here, so this says nothing of the server\n"
            )),
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
                ms(mean(|of| of.stream.jitter_pictures.mean_ns)),
                ms(most(|of| of.stream.jitter_pictures.max_ns)),
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

    fn verdict(&self, all: usize, thresholds: &Thresholds) -> String {
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

/// A line for each stream.
pub(super) fn streams(outcome: &Outcome) -> String {
    let header = [
        "viewer",
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
    let mut table = table(&header, &[0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    for (number, viewer) in outcome.viewers.iter().enumerate() {
        for track in &viewer.tracks {
            let of = &track.stream;
            let broken = track.verdict.broken.iter().map(|of| of.word());
            table.add_row(vec![
                number.to_string(),
                plain(&track.kind),
                ms(viewer.came_ns as f64),
                of.startup_ns
                    .map_or_else(|| "-".to_owned(), |ns| ms(ns as f64)),
                of.received.to_string(),
                of.lost.to_string(),
                of.duplicates.to_string(),
                of.reordered.to_string(),
                ms(of.gap_max_ns as f64),
                ms(of.jitter_pictures.mean_ns),
                ms(of.jitter_pictures.max_ns),
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
