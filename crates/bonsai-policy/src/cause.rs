//! Why a guarantee was changed automatically, or would be.

use core::fmt;

use bonsai_units::Resource;

use crate::allocation::rate;

/// What clients report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Part of packets lost.
    Loss,
    /// Delay.
    Delay,
    /// Jitter.
    Jitter,
    /// Stalls.
    Stalls,
}

/// Why a guarantee was changed automatically, or would be. `Display` is a sentence in plain
/// words. Rates are thousandths of a unit per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cause {
    /// Of what.
    pub resource: Resource,
    /// Why.
    pub kind: CauseKind,
}

/// The cases of a [`Cause`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum CauseKind {
    /// Demand at this time of day, as it was learned.
    Learned {
        /// The percentile, thousandths.
        percentile: u32,
        /// The hour of the day.
        hour: usize,
        /// What it was.
        demand: u64,
        /// So much more is guaranteed, thousandths.
        margin: u32,
        /// How long the history is.
        days: f64,
    },
    /// Demand of the last half hour or so.
    Lately {
        /// The percentile, thousandths.
        percentile: u32,
        /// What it was.
        demand: u64,
        /// So much more is guaranteed, thousandths.
        margin: u32,
    },
    /// Demand of a second was above the guarantee.
    Surpassed {
        /// What it was.
        demand: u64,
        /// So much more is guaranteed, thousandths.
        margin: u32,
    },
    /// Demand is lower than it was.
    Lowered {
        /// Where to.
        towards: u64,
        /// By at most so much a minute, thousandths.
        per_minute: u32,
    },
    /// There was less room than wanted.
    Short {
        /// What was wanted.
        wanted: u64,
        /// What all guarantees may come to.
        most: u64,
    },
    /// The service takes whatever is free.
    Elastic {
        /// Part of the time in which it wanted more.
        hunger: f64,
    },
    /// Clients saw worse than the target.
    Missed {
        /// What.
        metric: Metric,
        /// What they saw.
        seen: f64,
        /// What they may see.
        target: f64,
    },
    /// The target has held.
    Held {
        /// For so many seconds.
        seconds: u64,
    },
    /// It was so before a restart.
    Remembered,
    /// Automatic changes, or the mode, were switched off.
    SwitchedOff,
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Loss => "loss",
            Self::Delay => "delay",
            Self::Jitter => "jitter",
            Self::Stalls => "stalls",
        })
    }
}

impl Metric {
    /// A value with its unit.
    fn value(self, value: f64) -> String {
        match self {
            Self::Loss => format!("{:.2} %", value * 100.0),
            Self::Delay | Self::Jitter => format!("{value:.0} ms"),
            Self::Stalls => format!("{value:.0} in a report"),
        }
    }
}

/// Thousandths in percent, without a needless fraction.
fn percent(thousandths: u32) -> String {
    if thousandths.is_multiple_of(10) {
        (thousandths / 10).to_string()
    } else {
        format!("{}.{}", thousandths / 10, thousandths % 10)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |milli| rate(self.resource, milli);
        match self.kind {
            CauseKind::Learned {
                percentile,
                hour,
                demand,
                margin,
                days,
            } => write!(
                f,
                "p{} of demand between {hour}:00 and {}:00 (local time) is {} by a history of {days:.1} days, and {} % more is kept",
                percent(percentile),
                hour + 1,
                rate(demand),
                percent(margin)
            ),
            CauseKind::Lately {
                percentile,
                demand,
                margin,
            } => write!(
                f,
                "p{} of demand was lately {}, and {} % more is kept",
                percent(percentile),
                rate(demand),
                percent(margin)
            ),
            CauseKind::Surpassed { demand, margin } => write!(
                f,
                "demand was {}, above the guarantee, and {} % more is kept",
                rate(demand),
                percent(margin)
            ),
            CauseKind::Lowered {
                towards,
                per_minute,
            } => write!(
                f,
                "demand is lower than it was: towards {}, by {} % a minute",
                rate(towards),
                percent(per_minute)
            ),
            CauseKind::Short { wanted, most } => write!(
                f,
                "{} would be right, but all guarantees may come to no more than {}",
                rate(wanted),
                rate(most)
            ),
            CauseKind::Elastic { hunger } => write!(
                f,
                "it takes whatever is free (wanted more in {:.0} % of the time), which says nothing of what it needs",
                hunger * 100.0
            ),
            CauseKind::Missed {
                metric,
                seen,
                target,
            } => write!(
                f,
                "clients report {metric} of {}, above the target of {}",
                metric.value(seen),
                metric.value(target)
            ),
            CauseKind::Held { seconds } => {
                write!(f, "the target has held for {seconds} s: it may need less")
            }
            CauseKind::Remembered => f.write_str("it was so before the restart"),
            CauseKind::SwitchedOff => f.write_str("automatic changes were switched off"),
        }
    }
}
