//! Guarantees that follow what clients report.
//!
//! ```text
//!   guarantee
//!      │      missed: raised by a quarter, at most once in `settle`
//!      │    ┌──┐
//!      │  ┌─┘  └──┐   held: lowered by 2 % each `hold`, until it is missed again
//!      │ ─┘       └──┐  ┌──┐
//!      │             └──┘  └── and then not to there for `AVOID_HOLDS` holds
//!      └──────────────────────────── time
//! ```
//!
//! Fast up and slowly down to the least that holds, as senpai probes memory: the loss of a
//! second of video is dear, bandwidth that is kept a minute too long is lent anyway.
//!
//! # Invariants
//! 1. Between the configured guarantee and `most` times that, the ceiling and the capacity
//!    without its reserve.
//! 2. Raised only while the service uses what it has: where something else is the bottleneck,
//!    more would not help.
//! 3. One client of many is no reason: the target is missed when more than a tenth of the
//!    reports of a service miss it, or the only one.

use crate::adaptive::{Range, Wanted, more};
use crate::cause::{CauseKind, Metric};
use crate::config::{Qos, Target};
use crate::fill::narrow;
use crate::observation::ClientReport;

/// A guarantee at which the target was missed is not tried again for so many `hold`s.
const AVOID_HOLDS: f64 = 20.0;

/// A service uses what it has from this part on, thousandths: the rest is room for its peaks.
const USED: u128 = 800;

/// What is remembered of a service's reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Reports {
    /// Since it was last decided: how many came, how many missed, and the worst of these.
    came: u32,
    missed: u32,
    worst: Option<(Metric, f64, f64)>,
    /// When the target was missed last, the guarantee was changed last, the first report came.
    missed_s: Option<f64>,
    changed_s: f64,
    first_s: Option<f64>,
    last_s: f64,
    /// The guarantee at which it was missed last.
    failed: u64,
}

impl Target {
    /// Whether a report is within it.
    #[must_use]
    pub fn holds(&self, report: &ClientReport) -> bool {
        self.missed(report).next().is_none()
    }

    /// What a report is above, with what was seen and what may be.
    fn missed(&self, report: &ClientReport) -> impl Iterator<Item = (Metric, f64, f64)> {
        let stalls = report.stalls.map(|stalls| stalls as f64);
        let pairs = [
            (Metric::Loss, report.loss, self.loss),
            (Metric::Delay, report.delay_ms, self.delay_ms),
            (Metric::Jitter, report.jitter_ms, self.jitter_ms),
            (Metric::Stalls, stalls, self.stalls),
        ];
        pairs.into_iter().filter_map(|(metric, seen, target)| {
            let (seen, target) = (seen?, target?);
            (seen > target).then_some((metric, seen, target))
        })
    }
}

impl Reports {
    /// Takes a report in.
    pub(crate) fn take(&mut self, report: &ClientReport, target: &Target, now_s: f64) {
        self.first_s.get_or_insert(now_s);
        self.last_s = now_s;
        self.came += 1;
        let missed = target.missed(report);
        // The worst is what is most above its target, in proportion.
        let part = |missed: &(Metric, f64, f64)| missed.1 / missed.2.max(f64::MIN_POSITIVE);
        let worst = missed.max_by(|a, b| part(a).total_cmp(&part(b)));
        if let Some(worst) = worst {
            self.missed += 1;
            if self.worst.is_none_or(|before| part(&worst) > part(&before)) {
                self.worst = Some(worst);
            }
        }
    }

    /// The next guarantee, if it is to be changed from `from`. Without reports it stays.
    pub(crate) fn decide(
        &mut self,
        from: u64,
        range: Range,
        used: u64,
        wanted_more: bool,
        config: &Qos,
        now_s: f64,
    ) -> Option<Wanted> {
        let settled = now_s - self.changed_s >= f64::from(config.settle_ms) / 1_000.0;
        if self.came == 0 || !settled {
            return None;
        }
        let missed = self.missed * 10 > self.came;
        let worst = self.worst.take().filter(|_| missed);
        (self.came, self.missed) = (0, 0);
        if let Some((metric, seen, target)) = worst {
            self.missed_s = Some(now_s);
            let full = wanted_more || u128::from(used) * 1_000 >= u128::from(from) * USED;
            if !full {
                return None;
            }
            self.failed = self.failed.max(from);
            let rate = more(from.max(used), config.raise).min(range.most);
            let why = CauseKind::Missed {
                metric,
                seen,
                target,
            };
            return (rate > from).then_some(Wanted { rate, why });
        }
        let hold_s = f64::from(config.hold_ms) / 1_000.0;
        let since = self.missed_s.or(self.first_s).unwrap_or(now_s);
        let held_s = now_s - since.max(self.changed_s);
        if held_s < hold_s {
            return None;
        }
        if now_s - since > AVOID_HOLDS * hold_s {
            self.failed = 0;
        }
        let less = narrow(u128::from(from) * u128::from(1_000 - config.lower.min(1_000)) / 1_000);
        let rate = less.max(range.least);
        let good = rate < from && rate > self.failed;
        let seconds = crate::histogram::milli(now_s - since);
        let why = CauseKind::Held { seconds };
        good.then_some(Wanted { rate, why })
    }

    /// Notes that the guarantee was changed.
    pub(crate) fn changed(&mut self, now_s: f64) {
        self.changed_s = now_s;
    }
}
