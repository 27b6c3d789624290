//! Guarantees that follow demand.
//!
//! # How it decides
//! *Wanted* is the highest of: the percentile of demand at this hour of the day, the same a
//! quarter of an hour from now, and that of lately; and the margin. A history of `d` days is
//! trusted by `d / (d + 1)`: what it would lower, it lowers only by that part from where the
//! service's class begins. A service that wanted more in most of its time says nothing of its
//! needs, and stays where its class begins.
//!
//! It is looked once a minute, and at once when a second's demand was above the guarantee.
//! Raised is at once, as far as there is room; lowered by a per cent a minute, as Autopilot and
//! senpai do: a guarantee too much costs nothing at the moment, since it is lent.
//!
//! # Invariants
//! 1. Never below what the service's own configuration says, nor above its ceiling.
//! 2. All guarantees come to no more than the capacity without its reserve, except those that
//!    a person configured.

use crate::cause::CauseKind;
use crate::config::Config;
use crate::fill::narrow;
use crate::histogram::Mixture;
use crate::history::{AHEAD_S, Clock, History};

/// In more of its time than this, a service that wanted more takes whatever is free.
pub(crate) const ELASTIC: f64 = 0.5;

/// It is looked so often.
pub(crate) const EVERY_S: f64 = 60.0;

/// Within what a guarantee may be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// Never below this.
    pub(crate) least: u64,
    /// Where it begins.
    pub(crate) start: u64,
    /// Never above this.
    pub(crate) most: u64,
}

/// A guarantee that would be right.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) rate: u64,
    pub(crate) why: CauseKind,
}

/// So many thousandths more.
pub(crate) fn more(rate: u64, thousandths: u32) -> u64 {
    narrow(u128::from(rate) * u128::from(1_000 + thousandths) / 1_000)
}

/// What would be right by what is known; `second` is the demand of the last one.
pub(crate) fn wanted(
    history: &History,
    clock: &Clock,
    config: &Config,
    range: Range,
    second: Option<u64>,
    mixture: &mut Mixture,
) -> Wanted {
    let hunger = history.hunger;
    if hunger > ELASTIC {
        return Wanted {
            rate: range.start.clamp(range.least, range.most),
            why: CauseKind::Elastic { hunger },
        };
    }
    let mut wanted = by_history(history, clock, config, mixture);
    let margin = config.adaptive.margin;
    if let Some(found) = &mut wanted
        && found.rate < range.start
    {
        let days = history.days();
        let trust = days / (days + 1.0);
        let less = (range.start - found.rate) as f64 * trust;
        found.rate = range.start - crate::histogram::milli(less).min(range.start);
    }
    let mut wanted = wanted.unwrap_or(Wanted {
        rate: range.start,
        why: CauseKind::Lowered {
            towards: range.start,
            per_minute: config.adaptive.lower_per_minute,
        },
    });
    if let Some(demand) = second {
        wanted = Wanted {
            rate: wanted.rate.max(more(demand, margin)),
            why: CauseKind::Surpassed { demand, margin },
        };
    }
    wanted.rate = wanted.rate.clamp(range.least, range.most);
    wanted
}

/// What would be right by the history alone.
fn by_history(
    history: &History,
    clock: &Clock,
    config: &Config,
    mixture: &mut Mixture,
) -> Option<Wanted> {
    let (percentile, margin) = (config.adaptive.percentile, config.adaptive.margin);
    let days = history.days();
    let mut best: Option<Wanted> = None;
    let mut consider = |demand: Option<u64>, why: &dyn Fn(u64) -> CauseKind| {
        let Some(demand) = demand else { return };
        let rate = more(demand, margin);
        if best.is_none_or(|best| rate > best.rate) {
            best = Some(Wanted {
                rate,
                why: why(demand),
            });
        }
    };
    for ahead in [0, AHEAD_S] {
        let hour = clock.hour(ahead);
        history.at_hour(hour, clock, mixture);
        consider(mixture.percentile(percentile), &|demand| {
            CauseKind::Learned {
                percentile,
                hour,
                demand,
                margin,
                days,
            }
        });
    }
    history.lately(clock, mixture);
    consider(mixture.percentile(percentile), &|demand| {
        CauseKind::Lately {
            percentile,
            demand,
            margin,
        }
    });
    best
}

/// How a guarantee moves towards what is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Motion {
    /// What it is.
    pub(crate) from: u64,
    /// For so long, seconds.
    pub(crate) since_s: f64,
    /// By how much it may grow.
    pub(crate) room: u64,
    /// What all guarantees may come to.
    pub(crate) most_of_all: u64,
}

impl Motion {
    /// The next guarantee, if it is to be changed.
    pub(crate) fn towards(self, wanted: Wanted, config: &Config) -> Option<Wanted> {
        let flutter = more(self.from, config.hysteresis) - self.from;
        if wanted.rate > self.from {
            let rate = wanted.rate.min(self.from.saturating_add(self.room));
            let why = if rate < wanted.rate {
                CauseKind::Short {
                    wanted: wanted.rate,
                    most: self.most_of_all,
                }
            } else {
                wanted.why
            };
            // What was surpassed is raised for however little.
            let least = match wanted.why {
                CauseKind::Surpassed { .. } if rate == wanted.rate => 0,
                _ => flutter,
            };
            return (rate - self.from > least).then_some(Wanted { rate, why });
        }
        let per_minute = config.adaptive.lower_per_minute;
        let kept = 1.0 - f64::from(per_minute) / 1_000.0;
        let lowest = self.from as f64 * kept.powf(self.since_s / 60.0);
        let rate = wanted.rate.max(crate::histogram::milli(lowest));
        let why = match wanted.why {
            CauseKind::Elastic { .. } => wanted.why,
            _ => CauseKind::Lowered {
                towards: wanted.rate,
                per_minute,
            },
        };
        (self.from.saturating_sub(rate) > flutter).then_some(Wanted { rate, why })
    }
}
