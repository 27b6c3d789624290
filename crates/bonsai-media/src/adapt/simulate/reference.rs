//! What Sabre measures of a run, in its words and units.

use serde::{Deserialize, Serialize};

use super::super::{Ladder, Observer, Session, Settings, Summary};
use super::link::Link;

/// The measures of Sabre, under the names that it prints. "Time average" is for each length of a segment that
/// passed, stalls included; the utility of a quality is the logarithm of its bitrate over the lowest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    /// What the buffer holds at most, milliseconds.
    #[serde(rename = "buffer size")]
    pub buffer_size_ms: f64,
    /// Utility of all segments that were played.
    #[serde(rename = "total played utility")]
    pub utility: f64,
    /// Its time average.
    #[serde(rename = "time average played utility")]
    pub mean_utility: f64,
    /// Sum of the bitrates of all segments that were played, kbit/s.
    #[serde(rename = "total played bitrate")]
    pub kbps: f64,
    /// Its time average, kbit/s.
    #[serde(rename = "time average played bitrate")]
    pub mean_kbps: f64,
    /// From the start to the end, seconds.
    #[serde(rename = "total play time")]
    pub play_s: f64,
    /// The same in lengths of a segment.
    #[serde(rename = "total play time chunks")]
    pub play_segments: f64,
    /// Without anything to play, seconds.
    #[serde(rename = "total rebuffer")]
    pub rebuffer_s: f64,
    /// The same as a part of all time, 0 to 1.
    #[serde(rename = "rebuffer ratio")]
    pub rebuffer_ratio: f64,
    /// Its time average, seconds.
    #[serde(rename = "time average rebuffer")]
    pub mean_rebuffer_s: f64,
    /// How often the buffer ran dry. What rounding leaves after the end counts too.
    #[serde(rename = "total rebuffer events")]
    pub rebuffers: f64,
    /// Its time average.
    #[serde(rename = "time average rebuffer events")]
    pub mean_rebuffers: f64,
    /// Sum of all changes of the bitrate, kbit/s.
    #[serde(rename = "total bitrate change")]
    pub change_kbps: f64,
    /// Its time average, kbit/s.
    #[serde(rename = "time average bitrate change")]
    pub mean_change_kbps: f64,
    /// The same of the bitrate's logarithm.
    #[serde(rename = "total log bitrate change")]
    pub log_change: f64,
    /// Its time average.
    #[serde(rename = "time average log bitrate change")]
    pub mean_log_change: f64,
    /// Utility less gamma p for each length of a segment of stalls: time average.
    #[serde(rename = "time average score")]
    pub mean_score: f64,
    /// How often less came than was estimated,
    #[serde(rename = "over estimate count")]
    pub over_estimates: f64,
    /// and how much less in the mean, kbit/s.
    #[serde(rename = "over estimate")]
    pub over_estimate_kbps: f64,
    /// How often as much came or more,
    #[serde(rename = "leq estimate count")]
    pub leq_estimates: f64,
    /// and how much more in the mean, kbit/s.
    #[serde(rename = "leq estimate")]
    pub leq_estimate_kbps: f64,
    /// Estimate without what came, in the mean, kbit/s.
    #[serde(rename = "estimate")]
    pub estimate_kbps: f64,
    /// Until what the network carries was shown, seconds.
    #[serde(rename = "rampup time")]
    pub rampup_s: f64,
    /// From a better network to a better picture, seconds in all.
    #[serde(rename = "total reaction time")]
    pub reaction_s: f64,
}

/// The network got better, and the viewer has not seen it yet.
#[derive(Clone, Copy, Debug)]
struct Better {
    since_ms: f64,
    quality: usize,
    /// When the viewer saw it, or the network got worse again.
    until_ms: Option<f64>,
}

/// Who watches a run for these measures.
#[derive(Debug)]
pub(super) struct Watch {
    ladder: Ladder,
    utilities: Vec<f64>,
    buffer_ms: f64,
    gamma_p: f64,
    /// What the network carries now.
    carried: usize,
    last: Option<usize>,
    rebuffer_ms: f64,
    rampup_ms: Option<f64>,
    better: Vec<Better>,
    reaction_ms: f64,
    sums: Reference,
}

impl Watch {
    pub(super) fn new(settings: &Settings, ladder: &Ladder) -> Self {
        Self {
            ladder: ladder.clone(),
            utilities: ladder.utilities(0.0),
            buffer_ms: settings.buffer_ms,
            gamma_p: settings.gamma_p,
            carried: 0,
            last: None,
            rebuffer_ms: 0.0,
            rampup_ms: None,
            better: Vec::new(),
            reaction_ms: 0.0,
            sums: Reference::default(),
        }
    }

    /// Time passes in the session, which the network has already seen, or is to see.
    pub(super) fn pass(&mut self, session: &mut Session, link: &Link<'_>, ms: f64) {
        self.carried = link.carried();
        let dry = session.pass(ms, self);
        self.rebuffer_ms += dry.ms;
        self.sums.rebuffers += f64::from(u8::from(dry.began));
    }

    /// The network has changed.
    pub(super) fn changes(&mut self, session: &Session, link: &mut Link<'_>) {
        for change in link.take_changes() {
            self.see_late(change.at_ms);
            for better in &mut self.better {
                if better.quality > change.now {
                    better.until_ms.get_or_insert(change.at_ms);
                }
            }
            let is_better = change.now > change.before
                && session
                    .player()
                    .qualities()
                    .all(|quality| change.now > quality)
                && self.better.iter().all(|better| change.now > better.quality);
            if is_better {
                self.better.push(Better {
                    since_ms: change.at_ms,
                    quality: change.now,
                    until_ms: None,
                });
            }
        }
    }

    /// What is longer ago than a buffer lasts is settled.
    fn see_late(&mut self, now_ms: f64) {
        let buffer_ms = self.buffer_ms;
        let before_ms = now_ms - buffer_ms;
        let late = self
            .better
            .iter()
            .take_while(|better| better.since_ms < before_ms)
            .count();
        for better in self.better.drain(..late) {
            let until = better.until_ms.map(|until_ms| until_ms - better.since_ms);
            self.reaction_ms += until.map_or(buffer_ms, |reaction_ms| buffer_ms.min(reaction_ms));
        }
    }

    pub(super) fn reference(&self, session: &Session, summary: &Summary) -> Reference {
        let sums = &self.sums;
        let segment_ms = self.ladder.segment_ms();
        let play_ms = session.player().clock_ms();
        let mean = 1.0 / (play_ms / segment_ms);
        let accuracy = summary.accuracy;
        let whole_ms = self.ladder.segments().unwrap_or(0) as f64 * segment_ms;
        Reference {
            buffer_size_ms: self.buffer_ms,
            utility: sums.utility,
            mean_utility: sums.utility * mean,
            kbps: sums.kbps,
            mean_kbps: sums.kbps * mean,
            play_s: play_ms / 1e3,
            play_segments: play_ms / segment_ms,
            rebuffer_s: self.rebuffer_ms / 1e3,
            rebuffer_ratio: self.rebuffer_ms / play_ms,
            mean_rebuffer_s: self.rebuffer_ms / 1e3 * mean,
            rebuffers: sums.rebuffers,
            mean_rebuffers: sums.rebuffers * mean,
            change_kbps: sums.change_kbps,
            mean_change_kbps: sums.change_kbps * mean,
            log_change: sums.log_change,
            mean_log_change: sums.log_change * mean,
            mean_score: mean * (sums.utility - self.gamma_p * self.rebuffer_ms / segment_ms),
            over_estimates: accuracy.over as f64,
            over_estimate_kbps: accuracy.over_kbps,
            leq_estimates: accuracy.under as f64,
            leq_estimate_kbps: accuracy.under_kbps,
            estimate_kbps: accuracy.mean_kbps,
            rampup_s: self.rampup_ms.unwrap_or(whole_ms) / 1e3,
            reaction_s: self.reaction_ms / 1e3,
        }
    }
}

impl Observer for Watch {
    fn starts(&mut self, quality: usize, at_ms: f64) {
        let kbps = self.ladder.kbps(quality);
        self.sums.utility += self.utilities[quality];
        self.sums.kbps += kbps;
        if let Some(last) = self.last
            && last != quality
        {
            let last_kbps = self.ladder.kbps(last);
            self.sums.change_kbps += (kbps - last_kbps).abs();
            self.sums.log_change += (kbps / last_kbps).ln().abs();
        }
        self.last = Some(quality);
        if quality >= self.carried {
            self.rampup_ms.get_or_insert(at_ms);
        }
        for better in &mut self.better {
            if quality >= better.quality {
                better.until_ms.get_or_insert(at_ms);
            }
        }
    }

    fn settled(&mut self, at_ms: f64) {
        self.see_late(at_ms);
    }
}
