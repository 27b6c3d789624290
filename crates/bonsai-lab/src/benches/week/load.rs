//! What the services of the week want.
//!
//! Day and night, working days and weekend, better and worse days, the minutes' ups and downs
//! and the seconds' noise: a shape over the hours, times factors that are drawn.

use std::f64::consts::TAU;

use bonsai_stats::SplitMix64;

/// Seconds of an hour, a day, and the week.
pub(super) const HOUR_S: u64 = 3_600;
pub(super) const DAY_S: u64 = 24 * HOUR_S;
pub(super) const WEEK_S: u64 = 7 * DAY_S;

/// How a service's demand comes about.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Viewers: so many Mbit/s at night, so many more at this hour.
    Viewers { night: f64, evening: f64, hour: f64 },
    /// A programme from one hour to another, a constant rate.
    Programme { rate: f64, from: u64, to: u64 },
    /// People at work, in bursts.
    Pages { night: f64, day: f64, hour: f64 },
    /// Always more than there is.
    Hungry,
    /// So many Mbit/s for so many seconds from every full hour on.
    Jobs { rate: f64, seconds: u64 },
}

/// A service of the week.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    /// Its class in the configuration.
    pub(super) class: &'static str,
    kind: Kind,
    /// From when on it runs, seconds of the week.
    pub(super) from_s: u64,
}

/// Those of class `media` are the ones whose guarantee is promised.
pub(super) const SERVICES: [Shape; 6] = [
    Shape {
        name: "vod",
        class: "media",
        kind: Kind::Viewers {
            night: 4.0,
            evening: 36.0,
            hour: 21.0,
        },
        from_s: 0,
    },
    Shape {
        name: "live",
        class: "media",
        kind: Kind::Programme {
            rate: 6.0,
            from: 18,
            to: 22,
        },
        from_s: 0,
    },
    Shape {
        name: "web",
        class: "pages",
        kind: Kind::Pages {
            night: 0.5,
            day: 9.0,
            hour: 14.0,
        },
        from_s: 0,
    },
    Shape {
        name: "backup",
        class: "bulk",
        kind: Kind::Hungry,
        from_s: 0,
    },
    Shape {
        name: "cron",
        class: "bulk",
        kind: Kind::Jobs {
            rate: 30.0,
            seconds: 240,
        },
        from_s: 0,
    },
    // Wednesday noon.
    Shape {
        name: "newcomer",
        class: "media",
        kind: Kind::Viewers {
            night: 2.0,
            evening: 12.0,
            hour: 20.5,
        },
        from_s: 2 * DAY_S + DAY_S / 2,
    },
];

/// More than the machine has.
const HUNGER: f64 = 1_000.0;

/// The minutes' ups and downs: their standard deviation, and how long they last.
const DRIFT: f64 = 0.06;
const DRIFT_S: f64 = 90.0;
/// A second's noise, and how much one day differs from another.
const NOISE: f64 = 0.04;
const DAYS: f64 = 0.05;
/// More at weekends.
const WEEKEND: f64 = 1.15;

/// Draws the demands of the week, step by step.
#[derive(Debug)]
pub(super) struct Load {
    random: SplitMix64,
    drift: [f64; SERVICES.len()],
    day: [f64; SERVICES.len()],
    step_s: u64,
}

impl Load {
    pub(super) fn new(seed: u64, step_s: u64) -> Self {
        Self {
            random: SplitMix64::new(seed),
            drift: [0.0; SERVICES.len()],
            day: [1.0; SERVICES.len()],
            step_s,
        }
    }

    /// A number between 0 and 1.
    fn uniform(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Normally distributed (Box and Muller).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (TAU * self.uniform()).cos()
    }

    /// What each service wants at a second of the week, Mbit/s; the week begins on a Monday.
    pub(super) fn at(&mut self, second: u64) -> [f64; SERVICES.len()] {
        let kept = (-(self.step_s as f64) / DRIFT_S).exp();
        core::array::from_fn(|i| {
            if second.is_multiple_of(DAY_S) {
                self.day[i] = 1.0 + DAYS * self.normal();
            }
            let shock = self.normal() * (1.0 - kept * kept).sqrt();
            self.drift[i] = kept * self.drift[i] + shock;
            let factor = self.day[i] * (DRIFT * self.drift[i] + NOISE * self.normal()).exp();
            let shape = &SERVICES[i];
            if second < shape.from_s {
                return 0.0;
            }
            self.wants(shape.kind, second, factor)
        })
    }

    fn wants(&mut self, kind: Kind, second: u64, factor: f64) -> f64 {
        let hour = (second % DAY_S) as f64 / HOUR_S as f64;
        let weekend = if second / DAY_S >= 5 { WEEKEND } else { 1.0 };
        match kind {
            Kind::Viewers {
                night,
                evening,
                hour: peak,
            } => (night + evening * bell(hour, peak, 2.8)) * weekend * factor,
            Kind::Programme { rate, from, to } => {
                let runs = (from as f64..to as f64).contains(&hour);
                if runs { rate } else { 0.0 }
            }
            Kind::Pages {
                night,
                day,
                hour: peak,
            } => {
                let people = (night + day * bell(hour, peak, 3.5)) * factor / weekend;
                // Half of the seconds are a burst: what comes is up to twice the mean.
                people * 2.0 * self.uniform()
            }
            Kind::Hungry => HUNGER,
            Kind::Jobs { rate, seconds } => {
                if second % HOUR_S < seconds {
                    rate * factor
                } else {
                    0.0
                }
            }
        }
    }
}

/// 1 at its hour of the day, less around it.
fn bell(hour: f64, peak: f64, width: f64) -> f64 {
    let away = (hour - peak + 36.0).rem_euclid(24.0) - 12.0;
    (-(away / width).powi(2) / 2.0).exp()
}
