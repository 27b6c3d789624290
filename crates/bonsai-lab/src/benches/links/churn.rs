//! Changes in any order, thousands of them, beside traffic that stays under its limits: what is lost,
//! overtaken or sent again because of them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::Benchmark;
use super::mbit;
use super::stage::{Part, Stage, pass, plan, shapers, stop};
use crate::context::Context;
use crate::load::Moment;
use crate::net::shaper::{Limits, Make, is_ours};
use crate::net::tc::Careless;
use crate::net::traffic::{Listen, Outcome, Protocol, SendSpec};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::monotonic_ns;

/// The benchmark "link-churn".
#[derive(Debug)]
pub(crate) struct Churn;

const TOTAL: u64 = mbit(100);
/// What stays under its limit sends so much.
const STEADY: u64 = mbit(5);
/// Limits of what stays under them, Mbit/s: any of these, at any time.
const ABOVE: [u64; 4] = [10, 15, 25, 40];
/// Limits of what always wants more.
const BULK: [u64; 4] = [5, 10, 20, 20];

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Who {
    SteadyUdp,
    SteadyTcp,
    BulkTcp,
}

impl Who {
    const ALL: [Self; 3] = [Self::SteadyUdp, Self::SteadyTcp, Self::BulkTcp];

    const fn name(self) -> &'static str {
        match self {
            Self::SteadyUdp => "UDP under its limit",
            Self::SteadyTcp => "TCP under its limit",
            Self::BulkTcp => "TCP that wants more",
        }
    }

    /// Any of its limits.
    fn limits(self, random: usize) -> Limits {
        let rates = if self == Self::BulkTcp { BULK } else { ABOVE };
        Limits {
            guarantee: mbit(rates[random % rates.len()]),
            ceiling: mbit(rates[random % rates.len()]),
            weight: 1,
        }
    }

    fn spec(self) -> SendSpec {
        // It is ended when all changes are made.
        let length = Duration::from_secs(600);
        match self {
            Self::SteadyUdp => SendSpec::udp(Some(STEADY), length),
            Self::SteadyTcp => SendSpec {
                rate: Some(STEADY),
                ..SendSpec::tcp(1, "cubic", length)
            },
            Self::BulkTcp => SendSpec::tcp(1, "cubic", length),
        }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    shaper: String,
    changes: u64,
    seconds: f64,
    /// In the order of [`Who::ALL`].
    outcomes: Vec<Outcome>,
}

impl Benchmark for Churn {
    fn name(&self) -> &'static str {
        "link-churn"
    }

    fn about(&self) -> &'static str {
        "thousands of changes at an interface, beside traffic under its limits"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let many = context.effort.of(400, 10_000, 10_000);
        let makes = shapers(context)?;
        let runs = makes.iter().flat_map(|make| [(*make, 0), (*make, many)]);
        let mut runs: Vec<(Make, u64)> = runs.collect();
        if !makes.is_empty() {
            // The same as other tools do it. It takes long, and shows at once.
            runs.push((|| Box::new(Careless::default()), many / 10));
        }
        for (make, changes) in runs {
            let what = format!("{}, {changes} changes", make().name());
            if context.is_wanted(&what) {
                context.progress(&what);
                measure(context, make, changes)?;
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()))
    }
}

fn measure(context: &mut Context, make: Make, changes: u64) -> anyhow::Result<()> {
    let limits = Who::ALL.map(|who| who.limits(2));
    let mut stage = match Stage::new(make, 3, plan(TOTAL, &limits)) {
        Ok(stage) => stage,
        Err(error) => return context.skip(make().name(), format!("{error:#}")),
    };
    let before = Moment::now();
    let parts: Vec<Part> = (0..).zip(Who::ALL.map(Who::spec)).collect();
    let running = stage.start(&parts, Listen::default())?;
    pass(context, Duration::from_millis(500))?;
    let from = monotonic_ns();
    for _ in 0..changes {
        context.check()?;
        let target = usize::try_from(context.random.below(3))?;
        let which = usize::try_from(context.random.below(4))?;
        stage.change(&[(target, Who::ALL[target].limits(which))])?;
    }
    if changes == 0 {
        pass(context, Duration::from_secs(context.effort.of(2, 20, 20)))?;
    }
    let seconds = (monotonic_ns() - from) as f64 / 1e9;
    let outcomes = stop(running)?;
    let measured = Measured {
        shaper: stage.shaper.name().to_owned(),
        changes,
        seconds,
        outcomes: outcomes.into_iter().map(|o| o.brief(100)).collect(),
    };
    context.sample(before.until_now(), &measured)
}

/// What became of the traffic of one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Judged {
    lost: u64,
    reordered: u64,
    again: u64,
}

fn judge(outcome: &Outcome, who: Who) -> Judged {
    let is_udp = who.spec().protocol == Protocol::Udp;
    Judged {
        lost: if is_udp { outcome.lost() } else { 0 },
        reordered: outcome.received.total().reordered,
        again: outcome.sent.retransmitted(),
    }
}

fn report(samples: &[Sample<Measured>]) -> Section {
    let mut section = Section::default();
    section.text(
        "Three tenants of a link of 100 Mbit/s. Two send 5 Mbit/s each, and may have 10 to 40; one wants more than its \
         5 to 20. Any of the three is changed, one change after the other.",
    );
    let mut table = Table::new(&[
        "shaper",
        "changes",
        "changes/s",
        "traffic",
        "lost",
        "reordered",
        "sent again",
        "delay p99, ms",
    ]);
    for sample in samples {
        let Measured {
            shaper,
            changes,
            seconds,
            outcomes,
        } = &sample.data;
        for (who, outcome) in Who::ALL.into_iter().zip(outcomes) {
            let judged = judge(outcome, who);
            let per_second = *changes as f64 / seconds.max(1e-9);
            table.row(vec![
                shaper.clone(),
                changes.to_string(),
                format!("{per_second:.0}"),
                who.name().to_owned(),
                judged.lost.to_string(),
                judged.reordered.to_string(),
                judged.again.to_string(),
                if who == Who::SteadyUdp {
                    format!("{:.3}", outcome.received.delays.ms(99.0))
                } else {
                    String::new()
                },
            ]);
            // What wants more loses what its queue has no room for, changes or not.
            if !is_ours(shaper) || who == Who::BulkTcp || *changes == 0 {
                continue;
            }
            let Judged {
                lost,
                reordered,
                again,
            } = judged;
            // A busy machine loses nothing: only the receiver's own socket excuses it.
            let fault = outcome.received.dropped_at_socket;
            let doubt = (fault > 0).then(|| format!("{fault} at the receiver's socket"));
            section.promise(
                format!(
                    "{shaper}, {changes} changes, {}: lost, reordered, sent again",
                    who.name()
                ),
                "0",
                format!("{lost}, {reordered}, {again}"),
                Verdict::of(lost + reordered + again == 0, doubt.as_ref()),
            );
        }
    }
    section.table(table);
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Conditions;
    use crate::net::meter::Counts;
    use crate::net::shaper::OURS;
    use crate::net::tcp::Connection;
    use crate::net::traffic::{Received, Sent};

    fn outcome(sent: u64, came: u64, again: u64) -> Outcome {
        let connection = Connection {
            retransmitted: again,
            acknowledged: 0,
            rtt_us: 0,
            least_rtt_us: 0,
            segment: 1_448,
        };
        Outcome {
            sent: Sent {
                flows: vec![sent],
                connections: vec![connection],
                ..Sent::default()
            },
            received: Received {
                flows: vec![Counts {
                    packets: came,
                    ..Counts::default()
                }],
                ..Received::default()
            },
        }
    }

    #[test]
    fn nothing_under_its_limit_may_be_lost_or_sent_again() {
        let kept = |shaper: &str, outcomes: [Outcome; 3]| -> Vec<bool> {
            let data = Measured {
                shaper: shaper.to_owned(),
                changes: 100,
                seconds: 1.0,
                outcomes: outcomes.to_vec(),
            };
            let sample = Sample {
                conditions: Conditions::default(),
                data,
            };
            let section = report(&[sample]);
            let promises = section.promises().iter();
            promises.map(|p| p.verdict == Verdict::Kept).collect()
        };
        let good = || outcome(10, 10, 0);
        assert_eq!(
            kept(OURS, [good(), good(), outcome(5, 5, 99)]),
            [true, true]
        );
        assert_eq!(
            kept(OURS, [outcome(10, 9, 0), good(), good()]),
            [false, true]
        );
        // Bytes of a connection are no packets that could be lost.
        assert_eq!(
            kept(OURS, [good(), outcome(9_999, 0, 0), good()]),
            [true, true]
        );
        assert_eq!(
            kept(OURS, [good(), outcome(9, 9, 1), good()]),
            [true, false]
        );
        assert!(kept(Careless::NAME, [good(), good(), good()]).is_empty());
    }

    #[test]
    fn what_is_steady_stays_under_all_its_limits() {
        for who in [Who::SteadyUdp, Who::SteadyTcp] {
            for i in 0..4 {
                assert!(who.limits(i).guarantee >= 2 * STEADY);
            }
        }
        let most = |who: Who| (0..4).map(|i| who.limits(i).guarantee).max();
        let all: u64 = Who::ALL.into_iter().filter_map(most).sum();
        assert!(all <= TOTAL, "guarantees are never overcommitted");
    }
}
