//! Fig. 5 to 8 of the paper "Guaranteeing QoS of media-based applications in virtualized environment"
//! (DNBA): two tenants with 20 and 30 Mbit/s, of which one is raised to 40; four of a link of 100 Mbit/s
//! that all want more, without limits, with 10, 20, 30 and the rest, and with limits that change hands;
//! and what the link loses by it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::Benchmark;
use super::counted::Counted;
use super::flows::{self, Panel};
use super::stage::{Part, Stage, one_queue, pass, plan, shapers, stop, too_much};
use super::{mbit, shown};
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::net::shaper::{Limits, Make, is_ours};
use crate::net::traffic::{Listen, Outcome, SendSpec, sleep_until};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::monotonic_ns;
use crate::study::{median_or_zero, percent};

/// The benchmark "link-paper".
#[derive(Debug)]
pub(crate) struct Paper;

const TOTAL: u64 = mbit(100);
/// Mbit/s; the last is the rest.
const RATES: [u64; 4] = [10, 20, 30, 40];
/// So much of what the link carries without limits is lost at most.
const MOST_LOST: f64 = 0.001;
const UDP: &str = "UDP";
/// What tells of the limits, and what connections make of them.
const TRAFFICS: [&str; 3] = [UDP, "cubic", "bbr"];
const MANY_PER_SECOND: u64 = 20;
const SETTLING: Duration = Duration::from_secs(1);
/// Where less was measured, the beginnings of connections are more than what is looked for, s.
const LEAST_SECONDS: f64 = 9.0;
/// Bins of the plot, ms.
const BIN_MS: usize = 100;

/// How the link is shared.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Arm {
    /// Two with limits that stay.
    Two,
    /// Two, and the first is raised.
    Raised,
    /// One queue for all four.
    NoLimits,
    /// Limits that stay.
    Static,
    /// Limits that change hands three times.
    Three,
    /// And twenty times a second.
    Many,
    /// Guarantees that do so, with no limits but the link's.
    Borrowing,
}

impl Arm {
    const ALL: [Self; 7] = [
        Self::Two,
        Self::Raised,
        Self::NoLimits,
        Self::Static,
        Self::Three,
        Self::Many,
        Self::Borrowing,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Two => "20 and 30",
            Self::Raised => "20, then 40, and 30",
            Self::NoLimits => "no limits",
            Self::Static => "static",
            Self::Three => "3 reallocations",
            Self::Many => "20 reallocations/s",
            Self::Borrowing => "20/s, guarantees only",
        }
    }

    /// What the paper shows: where, each tenant, what was lost of the total.
    const fn paper(self) -> [&'static str; 3] {
        match self {
            Self::Two => ["Fig. 5", "20.322 / 30.776", ""],
            Self::Raised => ["Fig. 6", "20.090 to 42.239 / 30.744", ""],
            Self::NoLimits => ["", "93.716 in all", ""],
            Self::Static => ["Fig. 7", "9.850 / 19.871 / 29.213 / 35.056", "0.128 %"],
            Self::Three => ["Fig. 8", "93.456 in all", "0.277 %"],
            Self::Many | Self::Borrowing => [""; 3],
        }
    }

    /// Whether it is judged by what the link carries.
    const fn fills_the_link(self) -> bool {
        !matches!(self, Self::Two | Self::Raised)
    }

    /// How long the limits stay, of so much time.
    fn stay(self, length: Duration) -> Option<Duration> {
        match self {
            Self::Two | Self::NoLimits | Self::Static => None,
            // Once, in the middle.
            Self::Raised => Some(length * 5 / 9),
            Self::Three => Some(length / 4),
            Self::Many | Self::Borrowing => Some(Duration::from_millis(1_000 / MANY_PER_SECOND)),
        }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    shaper: String,
    /// `UDP`, or a congestion control of TCP.
    traffic: String,
    round: u32,
    arm: Arm,
    /// Instants of reallocations, ns.
    reallocated: Vec<u64>,
    /// Of all classes together, after settling.
    counted: Counted,
    /// Of each tenant.
    outcomes: Vec<Outcome>,
}

impl Benchmark for Paper {
    fn name(&self) -> &'static str {
        "link-paper"
    }

    fn about(&self) -> &'static str {
        "tenants of a link, and what limits cost it: the paper's Fig. 5 to 8"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let length = Duration::from_secs(context.effort.of(2, 10, 30));
        let rounds = context.effort.of(1, 2, 5);
        let traffics = context
            .effort
            .of(&["UDP", "cubic"][..], &TRAFFICS, &TRAFFICS);
        for make in shapers(context)? {
            for round in 0..rounds {
                for traffic in traffics {
                    let mut arms = Arm::ALL;
                    context.shuffle(&mut arms);
                    for arm in arms {
                        let what = format!("{}, {traffic}, {}", make().name(), arm.name());
                        if context.is_wanted(&what) {
                            context.progress(&what);
                            measure(context, make, (arm, traffic, round), length)?;
                        }
                    }
                }
            }
        }
        if let Some(figure) = context.figure.clone() {
            let record = Record::read(&context.recorder.path)?;
            flows::write(&figure, &panels(&record.samples(self.name())))?;
            context.progress(&format!("figure: {}", figure.display()));
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()))
    }
}

/// The limits after so many reallocations: each passes its own on to the next.
fn limits(arm: Arm, turn: usize) -> Vec<Limits> {
    if !arm.fills_the_link() {
        let first = if turn == 0 { 20 } else { 40 };
        return [first, 30].map(|rate| Limits::exactly(mbit(rate))).into();
    }
    let of = |tenant| {
        let rate = RATES[(tenant + turn) % RATES.len()];
        let mut limits = Limits::exactly(mbit(rate));
        if arm == Arm::Borrowing {
            limits.ceiling = TOTAL;
        }
        limits
    };
    (0..RATES.len()).map(of).collect()
}

/// In which order targets are changed, so that guarantees never exceed the link meanwhile: those that
/// lose first.
fn order(old: &[Limits], new: &[Limits]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..old.len()).collect();
    order.sort_by_key(|i| new[*i].guarantee > old[*i].guarantee);
    order
}

fn measure(
    context: &mut Context,
    make: Make,
    (arm, traffic, round): (Arm, &str, u32),
    length: Duration,
) -> anyhow::Result<()> {
    let plan = if arm == Arm::NoLimits {
        one_queue(TOTAL)
    } else {
        plan(TOTAL, &limits(arm, 0))
    };
    let tenants = u8::try_from(limits(arm, 0).len())?;
    let mut stage = match Stage::new(make, tenants, plan) {
        Ok(stage) => stage,
        Err(error) => return context.skip(make().name(), format!("{error:#}")),
    };
    let before = Moment::now();
    let length_of_all = length + SETTLING * 2;
    let spec = if traffic == UDP {
        too_much(mbit(RATES[3]), length_of_all)
    } else {
        SendSpec::tcp(1, traffic, length_of_all)
    };
    let parts: Vec<Part> = (0..tenants).map(|tenant| (tenant, spec.clone())).collect();
    let running = stage.start(&parts, Listen::default())?;
    pass(context, SETTLING)?;
    let from = monotonic_ns();
    let end = from + u64::try_from(length.as_nanos())?;
    let mut counted = Counted::default();
    let mut reallocated = Vec::new();
    let mut read = |stage: &Stage| -> anyhow::Result<()> {
        let before = monotonic_ns();
        if let Some(bytes) = stage.let_out()? {
            counted.0.push((before.midpoint(monotonic_ns()), bytes));
        }
        Ok(())
    };
    read(&stage)?;
    if let Some(stay) = arm.stay(length) {
        let stay = u64::try_from(stay.as_nanos())?;
        let mut old = limits(arm, 0);
        for turn in 1.. {
            let at = from + turn * stay;
            if at >= end {
                break;
            }
            context.check()?;
            sleep_until(at);
            let new = limits(arm, usize::try_from(turn)?);
            reallocated.push(monotonic_ns());
            let changes = order(&old, &new).into_iter();
            let changes: Vec<_> = changes.map(|target| (target, new[target])).collect();
            stage.change(&changes)?;
            old = new;
        }
    }
    pass(
        context,
        Duration::from_nanos(end.saturating_sub(monotonic_ns())),
    )?;
    read(&stage)?;
    let outcomes = stop(running)?;
    let measured = Measured {
        shaper: stage.shaper.name().to_owned(),
        traffic: traffic.to_owned(),
        round,
        arm,
        reallocated,
        counted,
        outcomes: outcomes.into_iter().map(|o| o.brief(BIN_MS)).collect(),
    };
    context.sample(before.until_now(), &measured)
}

impl Measured {
    /// Bytes of layer 2 a second on the link.
    fn total(&self) -> f64 {
        // Whatever shapes without counting is judged by what came.
        self.counted.mean().unwrap_or_else(|| {
            let rates = self.outcomes.iter().map(came);
            rates.sum()
        })
    }

    /// Bytes of payload a second that all tenants got through together.
    fn payload(&self) -> f64 {
        let each = self.outcomes.iter().map(|outcome| {
            let total = outcome.received.total();
            came(outcome) * total.payload as f64 / total.layer2.max(1) as f64
        });
        each.sum()
    }
}

/// Bytes of layer 2 a second that a tenant got through while it sent, but for its first second.
fn came(outcome: &Outcome) -> f64 {
    let sent = &outcome.sent;
    let from = sent.from_ns + 1_000_000_000;
    outcome.received.series.rate(from, sent.to_ns)
}

/// What an arm carried against the link without limits of the same round, as losses: one for each round.
fn judge(all: &[&Measured], arm: Arm) -> Vec<f64> {
    let of = |arm: Arm, round: u32| all.iter().find(|m| m.arm == arm && m.round == round);
    let rounds = all.iter().filter(|m| m.arm == arm).map(|m| m.round);
    rounds
        .filter_map(|round| {
            let base = of(Arm::NoLimits, round)?.total();
            Some(1.0 - of(arm, round)?.total() / base.max(1.0))
        })
        .collect()
}

fn report(samples: &[Sample<Measured>]) -> Section {
    let mut section = Section::default();
    section.text(
        "A link of 100 Mbit/s, tenants that want more, with datagrams or a connection each: two with limits of 20 and 30 \
         Mbit/s, the first raised to 40; four whose 10, 20, 30 and 40 change hands. Totals in Mbit/s of layer 2 as classes \
         count them, medians of all rounds; lost against no limits in the same round. The paper's figures are of payload.",
    );
    let doubt = doubt_of(samples.iter().map(|sample| &sample.conditions));
    let mut table = Table::new(&[
        "shaper",
        "traffic",
        "allocation",
        "total",
        "lost",
        "payload",
        "each",
        "sent again",
        "the paper",
        "each",
        "lost",
    ]);
    let mut groups: Vec<(&str, &str)> = Vec::new();
    for Sample { data, .. } in samples {
        let group = (data.shaper.as_str(), data.traffic.as_str());
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    for (shaper, traffic) in groups {
        let all = samples.iter().map(|sample| &sample.data);
        let all: Vec<&Measured> = all
            .filter(|m| m.shaper == shaper && m.traffic == traffic)
            .collect();
        for arm in Arm::ALL {
            let these: Vec<&&Measured> = all.iter().filter(|m| m.arm == arm).collect();
            let Some(first) = these.first() else { continue };
            let of = |value: fn(&Measured) -> f64| {
                let values: Vec<f64> = these.iter().map(|m| value(m)).collect();
                median_or_zero(&values)
            };
            let lost = median_or_zero(&judge(&all, arm));
            let [figure, their_each, their_loss] = arm.paper();
            table.row(vec![
                shaper.to_owned(),
                traffic.to_owned(),
                arm.name().to_owned(),
                shown(of(Measured::total)),
                match arm.fills_the_link() {
                    true => percent(lost, 3),
                    false => String::new(),
                },
                shown(of(Measured::payload)),
                each(first),
                first
                    .outcomes
                    .iter()
                    .map(|o| o.sent.retransmitted())
                    .sum::<u64>()
                    .to_string(),
                figure.to_owned(),
                their_each.to_owned(),
                their_loss.to_owned(),
            ]);
            let judged = arm.fills_the_link() && arm != Arm::NoLimits;
            if !is_ours(shaper) || !judged || first.counted.seconds() < LEAST_SECONDS {
                continue;
            }
            section.promise(
                format!("{shaper}, {traffic}, {}: lost of the total", arm.name()),
                format!("{:.1} %", MOST_LOST * 100.0),
                percent(lost, 3),
                Verdict::of(lost <= MOST_LOST, doubt.as_ref()),
            );
        }
    }
    section.table(table);
    if let Some(doubt) = doubt {
        section.text(format!("Doubt: {doubt}."));
    }
    section
}

/// Of the first shaper and traffic, the first round of each arm.
fn panels(samples: &[Sample<Measured>]) -> Vec<Panel<'_>> {
    let Some(first) = samples.first().map(|sample| &sample.data) else {
        return Vec::new();
    };
    let found = Arm::ALL.iter().filter_map(|arm| {
        let mut of_it = samples.iter().map(|sample| &sample.data);
        of_it.find(|m| m.arm == *arm && m.shaper == first.shaper && m.traffic == first.traffic)
    });
    let panels = found.map(|measured| {
        let [figure, ..] = measured.arm.paper();
        let between = if figure.is_empty() {
            ""
        } else {
            "; the paper's "
        };
        let (arm, shaper) = (measured.arm.name(), &measured.shaper);
        let outcomes = measured.outcomes.iter().enumerate();
        let flows = outcomes.map(|(i, o)| (format!("tenant {}", i + 1), &o.received.series));
        Panel {
            title: format!("{arm}: {shaper}, {}{between}{figure}", measured.traffic),
            flows: flows.collect(),
            marks: &measured.reallocated,
        }
    });
    panels.collect()
}

/// What each tenant got, Mbit/s of layer 2.
fn each(measured: &Measured) -> String {
    let rates = measured.outcomes.iter();
    let rates = rates.map(|outcome| format!("{:.1}", super::in_mbit(came(outcome))));
    rates.collect::<Vec<_>>().join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(arm: Arm, round: u32, bytes: u64) -> Measured {
        Measured {
            shaper: "x".to_owned(),
            traffic: UDP.to_owned(),
            round,
            arm,
            reallocated: Vec::new(),
            counted: Counted(vec![(0, 0), (10_000_000_000, bytes)]),
            outcomes: Vec::new(),
        }
    }

    #[test]
    fn losses_are_against_the_same_round() {
        let all = [
            measured(Arm::NoLimits, 0, 1_000_000),
            measured(Arm::Static, 0, 999_000),
            measured(Arm::NoLimits, 1, 2_000_000),
            measured(Arm::Static, 1, 2_000_000),
            measured(Arm::Static, 2, 1),
        ];
        let all: Vec<&Measured> = all.iter().collect();
        let lost = judge(&all, Arm::Static);
        assert_eq!(lost.len(), 2, "a round without its base says nothing");
        assert!(
            (lost[0] - 0.001).abs() < 1e-9 && lost[1].abs() < 1e-9,
            "{lost:?}"
        );
        assert!(judge(&all, Arm::Many).is_empty());
    }

    #[test]
    fn guarantees_never_exceed_the_link_while_they_change_hands() {
        for turn in 0..8 {
            let (old, new) = (limits(Arm::Many, turn), limits(Arm::Many, turn + 1));
            let mut now = old.clone();
            for target in order(&old, &new) {
                now[target] = new[target];
                let sum: u64 = now.iter().map(|limits| limits.guarantee).sum();
                assert!(sum <= TOTAL, "{turn}");
            }
            assert_eq!(now, new);
            assert_eq!(now.iter().map(|l| l.guarantee).sum::<u64>(), TOTAL);
        }
    }

    #[test]
    fn the_plot_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("figures/a.svg");
        let mut one = measured(Arm::Three, 0, 1_000_000);
        let mut outcome = Outcome::default();
        outcome.received.series = crate::net::series::Series {
            bin_ns: 100_000_000,
            bins: vec![125_000; 40],
            ..Default::default()
        };
        one.outcomes = vec![outcome; 4];
        one.reallocated = vec![1_000_000_000];
        let sample = Sample {
            conditions: crate::load::Conditions::default(),
            data: one,
        };
        flows::write(&path, &panels(&[sample])).expect("a plot");
        let text = std::fs::read_to_string(path).expect("read");
        assert!(
            text.starts_with("<svg") && text.contains("tenant 4"),
            "{text}"
        );
    }
}
