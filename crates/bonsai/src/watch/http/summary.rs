//! What all players saw, in tables.

use std::collections::BTreeMap;

use bonsai_host::tenants::plain;
use bonsai_media::adapt::Settings;
use bonsai_stream::play::{Film, Outcome, PlayerReport, Seen};

use crate::output::{count, finish, table};
use crate::watch::asked::{Asked, Saw, by_video};
use crate::watch::summary::{BUSY, void, was_late};

/// A client that was later than that may have kept a segment waiting: as long as the longest gap of top quality.
const LATE_NS: f64 = 400e6;

/// What all of them saw.
#[derive(Debug)]
pub(super) struct Summary<'a> {
    outcome: &'a Outcome,
    /// Viewers that watched to the end.
    pub(super) watched: usize,
    /// Those with top quality.
    pub(super) top: usize,
}

impl<'a> Summary<'a> {
    pub(super) fn of(outcome: &'a Outcome) -> Self {
        let players = outcome.players.iter();
        Self {
            outcome,
            watched: players.clone().filter(|one| one.failure.is_none()).count(),
            top: players.filter(|one| one.is_top()).count(),
        }
    }

    /// Why it says nothing of the server, if that is so: somebody fell short, and this client was busy all the time,
    /// or was late. A refusal is the server's own.
    pub(super) fn why_void(&self) -> Option<String> {
        let outcome = self.outcome;
        let late_ns = outcome.late_ns as f64;
        // What the server refused is no matter of time.
        let mut others = outcome.players.iter().filter(|player| !player.is_refused);
        match others.any(|player| !player.is_top()) {
            true if outcome.busy > BUSY => {
                Some("this client was too busy: use --threads".to_owned())
            }
            true if late_ns >= LATE_NS => Some(was_late(late_ns)),
            _ => None,
        }
    }

    /// Those that saw something.
    fn seen(&self) -> Vec<&'a Seen> {
        let seen = self
            .outcome
            .players
            .iter()
            .filter_map(|one| one.seen.as_ref());
        seen.filter(|seen| seen.summary.segments > 0).collect()
    }

    pub(super) fn text(&self, asked: &Asked, settings: &Settings) -> String {
        let all = self.outcome.players.len();
        let mut text = format!(
            "{}: {} of {} watched to the end, by {} with a buffer of {}\n",
            asked.title(),
            self.watched,
            count(all as u64, "viewer", "viewers"),
            settings.rule,
            seconds(settings.buffer_ms),
        );
        for (why, times) in self.failures() {
            text.push_str(&format!("  {times} failed: {why}\n"));
        }
        let seen = self.seen();
        if !seen.is_empty() {
            text.push_str(&numbers(&seen));
            text.push_str(&self.qualities(&seen));
            text.push_str(&self.all(&seen));
        }
        let saw: Vec<Saw> = self.outcome.players.iter().map(saw).collect();
        text.push_str(&by_video(&asked.addresses, &saw));
        text.push_str(&self.verdict(all, settings));
        text.push_str(&self.client());
        text
    }

    /// Why some failed, the most frequent reason first.
    fn failures(&self) -> Vec<(String, usize)> {
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        let failures = self.outcome.players.iter();
        for why in failures.filter_map(|one| one.failure.as_deref()) {
            // It has words of the server's.
            *reasons.entry(plain(why)).or_default() += 1;
        }
        let mut reasons: Vec<_> = reasons.into_iter().collect();
        reasons.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
        reasons
    }

    /// What part of the time each quality was shown.
    fn qualities(&self, seen: &[&Seen]) -> String {
        // Several videos have qualities of their own.
        let Some(film) = self
            .outcome
            .film
            .as_ref()
            .filter(|_| self.outcome.films.is_empty())
        else {
            return String::new();
        };
        let shown = |quality: usize| -> f64 {
            let of = seen
                .iter()
                .filter_map(|seen| seen.summary.in_quality_ms.get(quality));
            of.sum()
        };
        let all: f64 = (0..film.qualities.len()).map(shown).sum();
        let mut table = table(&["quality", "kbit/s", "pixels", "shown"], &[0, 1, 2, 3]);
        for (number, of) in film.qualities.iter().enumerate().rev() {
            let size = of.size.map(|(width, height)| format!("{width}x{height}"));
            table.add_row(vec![
                number.to_string(),
                of.kbps
                    .map_or_else(|| "-".to_owned(), |kbps| format!("{kbps:.0}")),
                size.unwrap_or_else(|| "-".to_owned()),
                format!("{:.1} %", shown(number) / all.max(1.0) * 100.0),
            ]);
        }
        finish(&table)
    }

    /// What is of all of them together.
    fn all(&self, seen: &[&Seen]) -> String {
        let outcome = self.outcome;
        let times = &outcome.times;
        let sum = |of: fn(&Seen) -> f64| seen.iter().map(|seen| of(seen)).sum::<f64>();
        let weights = outcome.weights;
        let mut text = format!(
            "segments: {}, p50 {:.1} ms, p95 {:.1} ms, p99 {:.1} ms, max. {:.1} ms; {:.0} given up, {:.0} failed, \
             {:.1} of {:.1} MB wasted\n",
            times.segments,
            times.p50_ms,
            times.p95_ms,
            times.p99_ms,
            times.max_ms,
            sum(|seen| seen.summary.abandoned as f64),
            sum(|seen| seen.summary.failed as f64),
            sum(|seen| seen.summary.wasted_bits) / 8e6,
            sum(|seen| seen.summary.bits) / 8e6,
        );
        if let Some(fairness) = outcome.fairness {
            text.push_str(&format!("fairness of bitrates (Jain): {fairness:.4}\n"));
        }
        if let Some(score) = outcome.score {
            text.push_str(&format!(
                "score: {score:.0} kbit/s a segment (bitrate - {} x changes of bitrate - {} x seconds of stalls - \
                 {} x seconds of start-up)\n",
                weights.switch, weights.stall, weights.startup
            ));
        }
        text
    }

    /// What viewers fell short of, and how many of them.
    pub(super) fn short_of(&self) -> BTreeMap<String, usize> {
        let mut short: BTreeMap<String, usize> = BTreeMap::new();
        for player in self
            .outcome
            .players
            .iter()
            .filter(|one| one.failure.is_none())
        {
            for why in player.seen.iter().flat_map(|seen| &seen.short_of) {
                *short.entry(why.word().to_owned()).or_default() += 1;
            }
        }
        let failed = self.outcome.players.len() - self.watched;
        if failed > 0 {
            short.insert("failed".to_owned(), failed);
        }
        short
    }

    fn verdict(&self, all: usize, settings: &Settings) -> String {
        let short = self.short_of().into_iter();
        let short: Vec<String> = short.map(|(why, times)| format!("{why} {times}")).collect();
        let short = match short.is_empty() {
            true => String::new(),
            false => format!("; short of: {}", short.join(", ")),
        };
        format!(
            "top quality: {} of {all} by no stall, and the highest from its first picture on, within {} of film{short}\n",
            self.top,
            seconds(settings.buffer_ms),
        )
    }

    fn client(&self) -> String {
        let outcome = self.outcome;
        let mut text = format!(
            "this client: {:.1} s of CPU, {:.0} % of a core in its busiest half second, {:.0} % in all, up to {:.1} ms late",
            outcome.cpu_s,
            outcome.busiest * 100.0,
            outcome.busy * 100.0,
            outcome.late_ns as f64 / 1e6,
        );
        match (self.why_void(), outcome.busiest > BUSY) {
            (Some(why), _) => text.push_str(&format!("\n{}", void(&why))),
            (None, true) => text.push_str("; times of segments may be its own: use --threads\n"),
            (None, false) => text.push('\n'),
        }
        text
    }
}

/// What a player's viewer saw of its video.
fn saw(player: &PlayerReport) -> Saw {
    let seen = player.seen.as_ref();
    let short = seen.into_iter().flat_map(|seen| &seen.short_of);
    Saw {
        video: player.video,
        has_watched: player.failure.is_none(),
        is_top: player.is_top(),
        bits_per_sec: seen.map(|seen| seen.summary.mean_kbps * 1e3),
        short_of: match player.failure {
            Some(_) => vec!["failed"],
            None => short.map(|short| short.word()).collect(),
        },
    }
}

/// How viewers differ.
fn numbers(seen: &[&Seen]) -> String {
    let mut table = table(&["", "least", "median", "mean", "most"], &[1, 2, 3, 4]);
    let mut row = |what: &str, digits: usize, of: &dyn Fn(&Seen) -> Option<f64>| {
        let mut values: Vec<f64> = seen.iter().filter_map(|seen| of(seen)).collect();
        values.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (values.first(), values.last()) else {
            return;
        };
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let all = [*least, values[values.len() / 2], mean, *most];
        let numbers = all.map(|value| format!("{value:.digits$}"));
        table.add_row([vec![what.to_owned()], numbers.to_vec()].concat());
    };
    row("start-up, ms", 1, &|seen| seen.summary.startup_ms);
    row("stalls", 0, &|seen| Some(seen.summary.stalls as f64));
    row("stalls, ms", 1, &|seen| Some(seen.summary.stall_ms));
    row("stalls, % of time", 3, &|seen| {
        Some(seen.summary.rebuffer_ratio * 100.0)
    });
    row("bitrate over time, kbit/s", 0, &|seen| {
        Some(seen.summary.mean_kbps)
    });
    row("bitrate of segments, kbit/s", 0, &|seen| {
        Some(seen.mean_segment_kbps)
    });
    row("switches", 0, &|seen| Some(seen.summary.switches() as f64));
    row("change at a switch, kbit/s", 0, &|seen| {
        seen.summary.mean_switch_kbps()
    });
    row("least buffer, ms", 0, &|seen| seen.summary.least_level_ms);
    row("score, kbit/s a segment", 0, &|seen| seen.score);
    finish(&table)
}

/// A line for each player.
pub(super) fn streams(outcome: &Outcome) -> String {
    let header = [
        "viewer", "video", "came", "start-up", "stalls", "stalled", "kbit/s", "up", "down",
        "buffer", "p50", "p99", "given up", "quality", "short of",
    ];
    let mut table = table(&header, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
    let highest = |film: &Film| film.qualities.len().saturating_sub(1);
    let ms = |ms: f64| format!("{ms:.1} ms");
    let maybe = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), ms);
    for (number, player) in outcome.players.iter().enumerate() {
        let Some(seen) = &player.seen else {
            continue;
        };
        let of = &seen.summary;
        let highest = outcome.film_of(player).map_or(0, highest);
        let short: Vec<&str> = seen.short_of.iter().map(|short| short.word()).collect();
        table.add_row(vec![
            number.to_string(),
            player.video.to_string(),
            ms(player.came_ns as f64 / 1e6),
            maybe(of.startup_ms),
            of.stalls.to_string(),
            ms(of.stall_ms),
            format!("{:.0}", of.mean_kbps),
            of.switches_up.to_string(),
            of.switches_down.to_string(),
            maybe(of.least_level_ms),
            ms(seen.times.p50_ms),
            ms(seen.times.p99_ms),
            of.abandoned.to_string(),
            format!("{} of {highest}", seen.quality),
            short.join(", "),
        ]);
    }
    finish(&table)
}

fn seconds(ms: f64) -> String {
    format!("{} s", ms / 1e3)
}
