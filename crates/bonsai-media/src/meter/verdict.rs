//! Whether a stream is one of top quality.

use serde::Serialize;

use super::StreamReport;

/// What a stream of top quality keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Thresholds {
    /// Lost of what was expected, 0 to 1.
    pub loss: f64,
    /// Between two packets, nanoseconds.
    pub gap_ns: u64,
    /// Jitter of pictures in the order of decoding, nanoseconds.
    pub jitter_ns: f64,
    /// Packets out of order.
    pub reordered: u64,
    /// Behind the media clock, nanoseconds.
    pub lag_ns: f64,
    /// Media time over time, at least.
    pub pace: f64,
}

impl Default for Thresholds {
    /// The first four are those of the paper 002 ("no more than 0.1 % packet loss, max delay under 400
    /// milliseconds, a jitter of no more than 50 ms and no reordering"); the other two see slow motion,
    /// which these do not.
    fn default() -> Self {
        Self {
            loss: 0.001,
            gap_ns: 400_000_000,
            jitter_ns: 50e6,
            reordered: 0,
            lag_ns: 1e9,
            pace: 0.99,
        }
    }
}

/// What a stream can fall short of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Criterion {
    /// Nothing has come.
    Nothing,
    /// Too much was lost.
    Loss,
    /// Too long between two packets.
    Gap,
    /// Too much jitter.
    Jitter,
    /// Out of order.
    Reordering,
    /// Too far behind the media clock.
    Lag,
    /// Less media time than time.
    Pace,
}

impl Criterion {
    /// Whether it is one of the four of the paper. Of nothing, nothing is good.
    #[must_use]
    pub const fn is_of_paper(self) -> bool {
        !matches!(self, Self::Lag | Self::Pace)
    }

    /// In a word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Nothing => "no packets",
            Self::Loss => "loss",
            Self::Gap => "gap",
            Self::Jitter => "jitter",
            Self::Reordering => "reordering",
            Self::Lag => "lag",
            Self::Pace => "pace",
        }
    }
}

/// Whether a stream is one of top quality.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// By the paper's four thresholds.
    pub paper: bool,
    /// By all.
    pub honest: bool,
    /// What it falls short of.
    pub broken: Vec<Criterion>,
}

impl Verdict {
    /// Of a stream that no threshold is for.
    #[must_use]
    pub const fn unjudged() -> Self {
        Self {
            paper: true,
            honest: true,
            broken: Vec::new(),
        }
    }
}

impl Thresholds {
    /// Judges a stream.
    #[must_use]
    pub fn judge(&self, stream: &StreamReport) -> Verdict {
        let checks = [
            (Criterion::Nothing, stream.received == 0),
            (Criterion::Loss, stream.loss > self.loss),
            (Criterion::Gap, stream.gap_max_ns >= self.gap_ns),
            (
                Criterion::Jitter,
                stream.jitter_decoded.max_ns > self.jitter_ns,
            ),
            (Criterion::Reordering, stream.reordered > self.reordered),
            (Criterion::Lag, stream.lag_max_ns > self.lag_ns),
            (
                Criterion::Pace,
                // What may come by jitter alone is a large part of a short stream, and no slow motion.
                stream.pace < self.pace && stream.lag_ns > self.jitter_ns + stream.uncertain_ns,
            ),
        ];
        let broken = checks.into_iter().filter(|(_, is_broken)| *is_broken);
        let broken: Vec<Criterion> = broken.map(|(criterion, _)| criterion).collect();
        Verdict {
            paper: !broken.iter().any(|of| of.is_of_paper()),
            honest: broken.is_empty(),
            broken,
        }
    }
}
