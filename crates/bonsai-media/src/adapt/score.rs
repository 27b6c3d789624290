//! What a viewer saw, and what it is worth.

use bonsai_stats::jain_index;
use serde::{Deserialize, Serialize};

use super::Accuracy;

/// What a viewer saw, and what it cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// From the start to the first picture, milliseconds; none if nothing was shown.
    pub startup_ms: Option<f64>,
    /// Media that was played, milliseconds.
    pub played_ms: f64,
    /// How often play stood still for want of segments,
    pub stalls: u64,
    /// and for how long in all, milliseconds.
    pub stall_ms: f64,
    /// Time of stalls over time of stalls and play, 0 to 1.
    pub rebuffer_ratio: f64,
    /// From seeks to pictures, milliseconds.
    pub seek_ms: f64,
    /// Paused, milliseconds.
    pub paused_ms: f64,
    /// Bitrate, the mean over time of play, kbit/s.
    pub mean_kbps: f64,
    /// Segments that began to play,
    pub segments: u64,
    /// the sum of their bitrates, kbit/s,
    pub kbps_sum: f64,
    /// how often the next one was of a higher quality,
    pub switches_up: u64,
    /// how often of a lower one,
    pub switches_down: u64,
    /// and the sum of the differences of bitrates then, kbit/s.
    pub switch_kbps_sum: f64,
    /// Switches that went back on the one before, within 30 s of media.
    pub oscillations: u64,
    /// The least that there was in the buffer from the first picture until all was there, milliseconds.
    pub least_level_ms: Option<f64>,
    /// Time of play in each quality, milliseconds.
    pub in_quality_ms: Vec<f64>,
    /// Downloads that came to their end,
    pub fetched: u64,
    /// that were given up for one of a lower quality,
    pub abandoned: u64,
    /// that failed.
    pub failed: u64,
    /// Segments that were left out.
    pub skipped: u64,
    /// All bits that came,
    pub bits: f64,
    /// and those of them that were not played: of downloads that were given up, cancelled, or failed.
    pub wasted_bits: f64,
    /// How right the estimates of throughput were.
    pub accuracy: Accuracy,
}

impl Summary {
    /// How often the quality changed.
    #[must_use]
    pub const fn switches(&self) -> u64 {
        self.switches_up + self.switches_down
    }

    /// By how much the bitrate changed at a switch, in the mean, kbit/s.
    #[must_use]
    pub fn mean_switch_kbps(&self) -> Option<f64> {
        let switches = self.switches();
        (switches > 0).then(|| self.switch_kbps_sum / switches as f64)
    }
}

/// What a linear score takes off: sum of bitrates, less sum of switches, less stalls, less start-up (Yin et
/// al., equation 5, where quality is bitrate in kbit/s).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Weights {
    /// For a kbit/s that the bitrate changes by from one segment to the next (lambda).
    pub switch: f64,
    /// For a second of stalls, kbit/s (mu).
    pub stall: f64,
    /// For a second of start-up, kbit/s (mu s).
    pub startup: f64,
}

impl Default for Weights {
    /// "Balanced" of Yin et al., 7.1.
    fn default() -> Self {
        Self {
            switch: 1.0,
            stall: 3_000.0,
            startup: 3_000.0,
        }
    }
}

/// A score, with the weights that made it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Of all, kbit/s.
    pub total: f64,
    /// For each segment, kbit/s.
    pub per_segment: f64,
    /// By these.
    pub weights: Weights,
}

impl Weights {
    /// What this was worth; nothing, if nothing was shown.
    #[must_use]
    pub fn score(self, summary: &Summary) -> Option<Score> {
        let startup_ms = summary.startup_ms?;
        if summary.segments == 0 {
            return None;
        }
        let total = summary.kbps_sum
            - self.switch * summary.switch_kbps_sum
            - self.stall * summary.stall_ms / 1e3
            - self.startup * startup_ms / 1e3;
        Some(Score {
            total,
            per_segment: total / summary.segments as f64,
            weights: self,
        })
    }
}

/// How evenly viewers were served: Jain's index of their mean bitrates, from 1 over their number to 1. None
/// without viewers.
#[must_use]
pub fn fairness<'a>(viewers: impl IntoIterator<Item = &'a Summary>) -> Option<f64> {
    let shares: Vec<f64> = viewers.into_iter().map(|viewer| viewer.mean_kbps).collect();
    jain_index(&shares)
}
