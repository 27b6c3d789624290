//! Delays of somebody who sends little, beside four that send as much as goes: in one queue, and with a
//! guarantee.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::Benchmark;
use super::stage::{Part, Stage, finish, one_queue, pass, plan, shapers, stop};
use super::{both, mbit, shown};
use crate::context::Context;
use crate::load::Moment;
use crate::net::shaper::{Limits, Make, Plan, is_ours};
use crate::net::traffic::{Listen, Outcome, SendSpec};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};

/// The benchmark "link-delay".
#[derive(Debug)]
pub(crate) struct Delay;

const LINK: u64 = mbit(100);
const GUARANTEE: u64 = mbit(10);
/// What is protected: 200 bytes, a thousand times a second.
const MESSAGE: u32 = 200;
const RATE: u64 = 242_000;
const BULK_FLOWS: u16 = 4;
/// So much later at most, p99.
const MOST_ADDED_MS: f64 = 0.1;

/// What it is beside, and how.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Arm {
    /// Nothing.
    Alone,
    /// Four connections, in the same queue.
    OneQueue,
    /// Four connections, and its guarantee.
    Guarantee,
}

impl Arm {
    const ALL: [Self; 3] = [Self::Alone, Self::OneQueue, Self::Guarantee];

    const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::OneQueue => "one queue",
            Self::Guarantee => "guarantee",
        }
    }

    fn plan(self) -> Plan {
        if self == Self::OneQueue {
            return one_queue(LINK);
        }
        let limits = [GUARANTEE, LINK - GUARANTEE].map(|guarantee| Limits {
            guarantee,
            ceiling: LINK,
            weight: 1,
        });
        plan(LINK, &limits)
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    shaper: String,
    round: u32,
    arm: Arm,
    congestion: String,
    probe: Outcome,
    bulk: Option<Outcome>,
}

impl Benchmark for Delay {
    fn name(&self) -> &'static str {
        "link-delay"
    }

    fn about(&self) -> &'static str {
        "delays of a protected flow beside four that send as much as goes"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let length = Duration::from_secs(context.effort.of(2, 10, 20));
        let rounds = context.effort.of(1, 2, 5);
        let congestions = context
            .effort
            .of(&["cubic"][..], &["cubic", "bbr"], &["cubic", "bbr"]);
        for make in shapers(context)? {
            for round in 0..rounds {
                for congestion in congestions {
                    let mut arms = Arm::ALL;
                    context.shuffle(&mut arms);
                    for arm in arms {
                        let what = format!("{}, {congestion}, {}", make().name(), arm.name());
                        if context.is_wanted(&what) {
                            context.progress(&what);
                            measure(context, make, (arm, congestion, round), length)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()))
    }
}

fn measure(
    context: &mut Context,
    make: Make,
    (arm, congestion, round): (Arm, &str, u32),
    length: Duration,
) -> anyhow::Result<()> {
    let stage = match Stage::new(make, 2, arm.plan()) {
        Ok(stage) => stage,
        Err(error) => return context.skip(make().name(), format!("{error:#}")),
    };
    let before = Moment::now();
    let settling = Duration::from_secs(1);
    let bulk: Part = (
        1,
        SendSpec::tcp(BULK_FLOWS, congestion, length + settling * 3),
    );
    let bulk: &[Part] = if arm == Arm::Alone { &[] } else { &[bulk] };
    let bulk = stage.start(bulk, Listen::default())?;
    pass(context, settling)?;
    let mut probe = SendSpec::udp(Some(RATE), length);
    probe.message = MESSAGE;
    let probe = stage.start(&[(0, probe)], Listen::default())?;
    let probe = finish(context, probe)?.pop().unwrap_or_default();
    let bulk = stop(bulk)?.pop();
    let measured = Measured {
        shaper: stage.shaper.name().to_owned(),
        round,
        arm,
        congestion: congestion.to_owned(),
        probe: probe.brief(100),
        bulk: bulk.map(|bulk| bulk.brief(100)),
    };
    context.sample(before.until_now(), &measured)
}

/// Of one arm, the delays of all rounds; and what bulk got, bytes of layer 2 a second.
struct Judged {
    /// p50, p99 and the most, ms.
    delays: [f64; 3],
    lost: u64,
    bulk: f64,
}

fn judge(all: &[&Measured], arm: Arm) -> Option<Judged> {
    let these: Vec<_> = all.iter().filter(|m| m.arm == arm).collect();
    let first = these.first()?.probe.received.delays.clone();
    let together = these
        .iter()
        .skip(1)
        .fold(first, |sum, m| sum.and(&m.probe.received.delays));
    let bulk = these.iter().filter_map(|m| m.bulk.as_ref()).map(|bulk| {
        let sent = &bulk.sent;
        bulk.received
            .series
            .rate(sent.from_ns + 1_000_000_000, sent.to_ns)
    });
    Some(Judged {
        delays: [50.0, 99.0, 100.0].map(|p| together.ms(p)),
        lost: these.iter().map(|m| m.probe.lost()).sum(),
        bulk: bulk.sum::<f64>() / these.len() as f64,
    })
}

fn report(samples: &[Sample<Measured>]) -> Section {
    let mut section = Section::default();
    section.text(format!(
        "A link of 100 Mbit/s; {MESSAGE} bytes 1000 times a second beside {BULK_FLOWS} connections that send as much \
         as goes. One-way delays of all rounds, ms."
    ));
    let mut table = Table::new(&[
        "shaper",
        "beside",
        "",
        "p50",
        "p99",
        "most",
        "p99 more than alone",
        "lost",
        "bulk, Mbit/s",
        "doubt",
    ]);
    let mut groups: Vec<(&str, &str)> = Vec::new();
    for Sample { data, .. } in samples {
        let group = (data.shaper.as_str(), data.congestion.as_str());
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    for (shaper, congestion) in groups {
        let of_it = samples.iter().filter(|sample| {
            (sample.data.shaper.as_str(), sample.data.congestion.as_str()) == (shaper, congestion)
        });
        let of_it: Vec<&Sample<Measured>> = of_it.collect();
        let all: Vec<&Measured> = of_it.iter().map(|sample| &sample.data).collect();
        let doubt = both(
            crate::load::doubt_of(of_it.iter().map(|sample| &sample.conditions)),
            all.iter().find_map(|m| m.probe.doubt()),
        );
        let alone = judge(&all, Arm::Alone);
        for arm in Arm::ALL {
            let Some(judged) = judge(&all, arm) else {
                continue;
            };
            let [p50, p99, most] = judged.delays;
            let added = alone.as_ref().map(|alone| p99 - alone.delays[1]);
            table.row(vec![
                shaper.to_owned(),
                format!("TCP {congestion}"),
                arm.name().to_owned(),
                format!("{p50:.3}"),
                format!("{p99:.3}"),
                format!("{most:.3}"),
                added.map_or(String::new(), |added| format!("{added:+.3}")),
                judged.lost.to_string(),
                if arm == Arm::Alone {
                    String::new()
                } else {
                    shown(judged.bulk)
                },
                doubt.clone().unwrap_or_default(),
            ]);
            let Some(added) = added.filter(|_| arm == Arm::Guarantee && is_ours(shaper)) else {
                continue;
            };
            section.promise(
                format!("{shaper}, beside TCP {congestion}: p99 more than alone"),
                format!("{MOST_ADDED_MS} ms"),
                format!("{added:.3} ms"),
                Verdict::of(added <= MOST_ADDED_MS, doubt.as_ref()),
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
    use crate::net::meter::Delays;
    use crate::net::shaper::OURS;
    use bonsai_stats::LogHistogram;

    fn sample(arm: Arm, us: u64) -> Sample<Measured> {
        let mut histogram = LogHistogram::default();
        for _ in 0..1_000 {
            histogram.record(us * 1_000);
        }
        let mut probe = Outcome::default();
        probe.received.delays = Delays::new(&histogram, us * 1_000);
        Sample {
            conditions: Conditions::default(),
            data: Measured {
                shaper: OURS.to_owned(),
                round: 0,
                arm,
                congestion: "cubic".to_owned(),
                probe,
                bulk: None,
            },
        }
    }

    #[test]
    fn what_counts_is_the_delay_beyond_that_alone() {
        let verdict = |us: u64| {
            let all = [sample(Arm::Alone, 30), sample(Arm::Guarantee, us)];
            report(&all).promises()[0].verdict.clone()
        };
        assert_eq!(verdict(60), Verdict::Kept);
        assert_eq!(verdict(120), Verdict::Kept);
        assert_eq!(verdict(200), Verdict::Broken);
        assert!(report(&[sample(Arm::Guarantee, 9)]).promises().is_empty());
    }
}
