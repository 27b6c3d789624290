//! What a measurement writes, and a page is made from: raw counts, nothing derived.

use std::path::Path;

use anyhow::Context;
use bonsai_units::Rate;
use serde::{Deserialize, Serialize};

/// The version of [`Record`] as a file.
pub(crate) const SCHEMA: u32 = 1;

/// How fine the counts are, ns.
pub(crate) const BIN_NS: u64 = 10_000_000;

/// One measurement. Times are ns since it began, counts are bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// [`SCHEMA`].
    pub(crate) schema: u32,
    /// When it began, ms of the wall clock since 1970.
    pub(crate) unix_ms: u64,
    /// [`BIN_NS`].
    pub(crate) bin_ns: u64,
    /// The rate of the film, bytes/s.
    pub(crate) film_rate: u64,
    /// What happened when, in order; before the first the players filled up.
    pub(crate) phases: Vec<Phase>,
    /// When the last phase ended.
    pub(crate) end_ns: u64,
    /// What all players received, by bin.
    pub(crate) video: Vec<u64>,
    /// What the relay received from the bulk copier, by bin.
    pub(crate) bulk: Vec<u64>,
    /// What each player saw.
    pub(crate) players: Vec<PlayerRecord>,
}

/// A stretch of the measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Phase {
    /// A word for scripts.
    pub(crate) key: String,
    /// A few words for people.
    pub(crate) title: String,
    /// What holds for the bulk copier.
    pub(crate) bulk: Bulk,
    /// The command that began it.
    pub(crate) command: String,
    /// When that command was given.
    pub(crate) start_ns: u64,
}

/// What the bulk copier does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bulk {
    /// It does not run.
    Absent,
    /// It runs without a limit.
    Unlimited,
    /// It runs under a limit, bytes/s.
    Limit(u64),
}

/// What one player saw.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PlayerRecord {
    /// When its picture stood still: from, to.
    pub(crate) freezes: Vec<(u64, u64)>,
    /// When a frame arrived, and how long after the frame before it.
    pub(crate) frames: Vec<(u64, u64)>,
}

impl Bulk {
    /// Reads `absent`, `unlimited` or a rate such as `40Mbit/s`.
    ///
    /// # Errors
    /// Whatever is none of these.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(match text {
            "absent" => Self::Absent,
            "unlimited" => Self::Unlimited,
            rate => {
                let rate: Rate = rate.parse()?;
                Self::Limit(rate.milli() / 1_000)
            }
        })
    }

    /// The limit, bytes/s.
    pub(crate) const fn limit(self) -> Option<u64> {
        match self {
            Self::Limit(rate) => Some(rate),
            Self::Absent | Self::Unlimited => None,
        }
    }
}

impl Record {
    /// Reads one.
    ///
    /// # Errors
    /// The file cannot be read, or is no record of this version.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        let record: Self = serde_json::from_slice(&text)
            .with_context(|| format!("{}: is no record of a measurement", path.display()))?;
        anyhow::ensure!(
            record.schema == SCHEMA && record.bin_ns == BIN_NS && !record.phases.is_empty(),
            "{}: is a record of another version or without phases",
            path.display()
        );
        Ok(record)
    }

    /// From when to when a phase went, ns.
    pub(crate) fn span(&self, phase: usize) -> (u64, u64) {
        let start = self
            .phases
            .get(phase)
            .map_or(self.end_ns, |phase| phase.start_ns);
        let end = self
            .phases
            .get(phase + 1)
            .map_or(self.end_ns, |next| next.start_ns);
        (start, end)
    }
}

/// Rates over the whole windows of `window_ns` between `from` and `to`: when each
/// begins, ns, and bytes/s in it. Windows are made of whole bins; `bins` is one
/// of the record's series.
pub(crate) fn rates(bins: &[u64], from: u64, to: u64, window_ns: u64) -> Vec<(u64, f64)> {
    let per_window = (window_ns / BIN_NS).max(1);
    let first = from.div_ceil(BIN_NS);
    let count = (to / BIN_NS).saturating_sub(first) / per_window;
    let seconds = (per_window * BIN_NS) as f64 / 1e9;
    (0..count)
        .map(|window| {
            let start = first + window * per_window;
            let sum: u64 = (start..start + per_window).map(|bin| at(bins, bin)).sum();
            (start * BIN_NS, sum as f64 / seconds)
        })
        .collect()
}

/// The mean between `from` and `to`, bytes/s, over whole bins; 0 without any.
pub(crate) fn mean_rate(bins: &[u64], from: u64, to: u64) -> f64 {
    let (first, end) = (from.div_ceil(BIN_NS), to / BIN_NS);
    if end <= first {
        return 0.0;
    }
    let sum: u64 = (first..end).map(|bin| at(bins, bin)).sum();
    sum as f64 / ((end - first) * BIN_NS) as f64 * 1e9
}

fn at(bins: &[u64], bin: u64) -> u64 {
    usize::try_from(bin)
        .ok()
        .and_then(|bin| bins.get(bin))
        .copied()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_whole_and_inside() {
        let bins: Vec<u64> = (0..30).collect();
        // From 15 ms: bins 2 to 11 and 12 to 21; the rest is no whole window.
        let found = rates(&bins, 15_000_000, 290_000_000, 100_000_000);
        assert_eq!(found, [(20_000_000, 650.0), (120_000_000, 1_650.0)]);
        assert_eq!(rates(&bins, 0, 90_000_000, 100_000_000), []);
        // What was not counted is nothing.
        assert_eq!(
            rates(&[1], 0, 20_000_000, BIN_NS),
            [(0, 100.0), (BIN_NS, 0.0)]
        );
    }

    #[test]
    fn means_are_over_whole_bins() {
        assert_eq!(mean_rate(&[9, 10, 20, 9], 1, 35_000_000), 1_500.0);
        assert_eq!(mean_rate(&[9], 5, 5), 0.0);
    }

    #[test]
    fn what_the_bulk_copier_does() {
        assert_eq!(
            Bulk::parse("40Mbit/s").expect("a rate"),
            Bulk::Limit(5_000_000)
        );
        assert_eq!(Bulk::parse("absent").expect("a word"), Bulk::Absent);
        assert_eq!(Bulk::parse("unlimited").expect("a word").limit(), None);
        Bulk::parse("40").expect_err("no unit");
    }
}
