//! Guarantees and weights: who gets how much of a link that all want all of.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::Benchmark;
use super::stage::{Part, Stage, pass, plan, shapers, stop, too_much};
use super::{both, in_mbit, mbit};
use crate::context::Context;
use crate::load::Moment;
use crate::net::shaper::{Limits, Make, is_ours};
use crate::net::traffic::{Listen, Outcome, SendSpec};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::monotonic_ns;
use crate::study::percent;

/// The benchmark "link-parts".
#[derive(Debug)]
pub(crate) struct Parts;

const LINK: u64 = mbit(100);
/// Nobody is further from its part than this.
const MOST_OFF: f64 = 0.01;
const SETTLING: Duration = Duration::from_secs(1);

/// What each has, Mbit/s and weight, and who of them is there.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Case {
    name: String,
    guarantees: Vec<u64>,
    ceilings: Vec<u64>,
    weights: Vec<u32>,
    active: Vec<bool>,
    /// `UDP`, or a congestion control of TCP, for each.
    traffic: Vec<String>,
}

impl Case {
    fn new(name: &str, guarantees: &[u64], traffic: &[&str]) -> Self {
        let n = guarantees.len();
        let traffic = traffic.iter().cycle().take(n);
        Self {
            name: name.to_owned(),
            guarantees: guarantees.to_vec(),
            ceilings: vec![100; n],
            weights: vec![1; n],
            active: vec![true; n],
            traffic: traffic.map(|text| (*text).to_owned()).collect(),
        }
    }

    fn weighted(mut self, weights: &[u32]) -> Self {
        self.weights = weights.to_vec();
        self
    }

    fn limits(&self) -> Vec<Limits> {
        let of = |i: usize| Limits {
            guarantee: mbit(self.guarantees[i]),
            ceiling: mbit(self.ceilings[i]),
            weight: self.weights[i],
        };
        (0..self.guarantees.len()).map(of).collect()
    }

    /// What each is to get, bytes a second: its guarantee, and of what is left as much as its weight among
    /// those below their ceilings.
    fn expected(&self) -> Vec<f64> {
        let limits = self.limits();
        let mut rates: Vec<f64> = limits
            .iter()
            .zip(&self.active)
            .map(|(l, active)| if *active { l.guarantee as f64 } else { 0.0 })
            .collect();
        loop {
            let open: Vec<usize> = (0..rates.len())
                .filter(|i| self.active[*i] && rates[*i] + 1.0 < limits[*i].ceiling as f64)
                .collect();
            let left = LINK as f64 - rates.iter().sum::<f64>();
            let weights: f64 = open.iter().map(|i| f64::from(limits[*i].weight)).sum();
            if open.is_empty() || left < 1.0 {
                return rates;
            }
            // As far as the first of them reaches its ceiling, or all is given.
            let until = open
                .iter()
                .map(|i| (limits[*i].ceiling as f64 - rates[*i]) / f64::from(limits[*i].weight));
            let step = until.fold(left / weights, f64::min);
            for i in open {
                rates[i] += step * f64::from(limits[i].weight);
            }
        }
    }
}

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for traffic in [&["UDP"][..], &["cubic"], &["cubic", "bbr"]] {
        let name = traffic.join(" and ");
        let four = Case::new(&format!("guarantees, {name}"), &[10, 20, 30, 40], traffic);
        all.push(four);
        let two = Case::new(&format!("weights 1:2, {name}"), &[1, 1], traffic);
        all.push(two.weighted(&[1, 2]));
    }
    let mut one_idle = Case::new("guarantees, one idle, UDP", &[10, 20, 30, 40], &["UDP"]);
    one_idle.active[3] = false;
    all.push(one_idle);
    let mut ceiling = Case::new("a ceiling of 20, UDP", &[10, 10], &["UDP"]);
    ceiling.ceilings[0] = 20;
    all.push(ceiling);
    all
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    shaper: String,
    case: Case,
    /// Bytes a second that the classes have let out, or else that came.
    rates: Vec<f64>,
    outcomes: Vec<Option<Outcome>>,
}

impl Benchmark for Parts {
    fn name(&self) -> &'static str {
        "link-parts"
    }

    fn about(&self) -> &'static str {
        "guarantees, weights and ceilings of those who share a link"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let length = Duration::from_secs(context.effort.of(1, 10, 10));
        for make in shapers(context)? {
            for case in cases() {
                let what = format!("{}, {}", make().name(), case.name);
                if context.is_wanted(&what) {
                    context.progress(&what);
                    measure(context, make, case, length)?;
                }
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()))
    }
}

fn measure(context: &mut Context, make: Make, case: Case, length: Duration) -> anyhow::Result<()> {
    let limits = case.limits();
    let tenants = u8::try_from(limits.len())?;
    let stage = match Stage::new(make, tenants, plan(LINK, &limits)) {
        Ok(stage) => stage,
        Err(error) => return context.skip(case.name, format!("{error:#}")),
    };
    let before = Moment::now();
    let expected = case.expected();
    let part = |tenant: u8| -> Option<Part> {
        let i = usize::from(tenant);
        let all = length + SETTLING * 2;
        let spec = match case.traffic[i].as_str() {
            "UDP" => too_much(wanted(expected[i], limits[i].ceiling), all),
            congestion => SendSpec::tcp(1, congestion, all),
        };
        case.active[i].then_some((tenant, spec))
    };
    let parts: Vec<Part> = (0..tenants).filter_map(part).collect();
    let running = stage.start(&parts, Listen::default())?;
    pass(context, SETTLING)?;
    let read = || -> anyhow::Result<(u64, Option<Vec<u64>>)> {
        let now = monotonic_ns();
        let of = |target| stage.shaper.let_out(&stage.house.host, target);
        let all = (0..limits.len()).map(of).collect::<anyhow::Result<_>>()?;
        Ok((now, all))
    };
    let first = read()?;
    pass(context, length)?;
    let last = read()?;
    let mut outcomes = stop(running)?.into_iter();
    let outcomes: Vec<Option<Outcome>> = case
        .active
        .iter()
        .map(|active| active.then(|| outcomes.next()).flatten())
        .collect();
    let seconds = (last.0 - first.0) as f64 / 1e9;
    let rates = match (first.1, last.1) {
        (Some(first), Some(last)) => first
            .iter()
            .zip(last)
            .map(|(first, last)| (last - first) as f64 / seconds)
            .collect(),
        _ => outcomes
            .iter()
            .map(|outcome| {
                let series = outcome.as_ref().map(|o| &o.received.series);
                series.map_or(0.0, |series| series.rate(first.0, last.0))
            })
            .collect(),
    };
    let measured = Measured {
        shaper: stage.shaper.name().to_owned(),
        case,
        rates,
        outcomes: outcomes
            .into_iter()
            .map(|o| o.map(|o| o.brief(100)))
            .collect(),
    };
    context.sample(before.until_now(), &measured)
}

/// Half as much again as somebody is to get: more would only cost the senders' time.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part of the link's rate"
)]
fn wanted(expected: f64, ceiling: u64) -> u64 {
    ceiling.min((expected * 1.5) as u64)
}

/// Of those who are there, how far each is from its part.
fn judge(measured: &Measured) -> Vec<f64> {
    let expected = measured.case.expected();
    let pairs = measured.rates.iter().zip(expected);
    pairs
        .filter(|(_, expected)| *expected > 0.0)
        .map(|(rate, expected)| rate / expected - 1.0)
        .collect()
}

fn report(samples: &[Sample<Measured>]) -> Section {
    let mut section = Section::default();
    section.text(
        "A link of 100 Mbit/s whose tenants all want all of it. Mbit/s of layer 2. Each is to get its guarantee, and \
         what is left by weight.",
    );
    let mut table = Table::new(&["shaper", "case", "got", "to get", "furthest off", "doubt"]);
    for sample in samples {
        let measured = &sample.data;
        let off = judge(measured);
        let worst = off.into_iter().fold(
            0.0,
            |worst: f64, off| {
                if off.abs() > worst.abs() { off } else { worst }
            },
        );
        let senders = measured.outcomes.iter().flatten();
        let sender = senders
            .filter(|outcome| outcome.sent.achieved().is_some_and(|part| part < 0.9))
            .find_map(Outcome::doubt);
        let doubt = both(sample.conditions.doubt(), sender);
        let list = |rates: &[f64]| {
            let each = rates.iter().map(|rate| format!("{:.2}", in_mbit(*rate)));
            each.collect::<Vec<_>>().join(" / ")
        };
        table.row(vec![
            measured.shaper.clone(),
            measured.case.name.clone(),
            list(&measured.rates),
            list(&measured.case.expected()),
            percent(worst, 2),
            doubt.clone().unwrap_or_default(),
        ]);
        if is_ours(&measured.shaper) {
            section.promise(
                format!("{}, {}", measured.shaper, measured.case.name),
                format!("within {:.0} %", MOST_OFF * 100.0),
                percent(worst, 2),
                Verdict::of(worst.abs() <= MOST_OFF, doubt.as_ref()),
            );
        }
    }
    section.table(table);
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_guarantees_weights_and_ceilings() {
        let expected =
            |case: &Case| -> Vec<f64> { case.expected().into_iter().map(in_mbit).collect() };
        let near = |case: &Case, parts: &[f64]| {
            let found = expected(case);
            let off = found.iter().zip(parts).map(|(a, b)| (a - b).abs());
            assert!(off.fold(0.0, f64::max) < 0.01, "{case:?}: {found:?}");
        };
        let four = Case::new("", &[10, 20, 30, 40], &["UDP"]);
        near(&four, &[10.0, 20.0, 30.0, 40.0]);
        let two = Case::new("", &[1, 1], &["UDP"]).weighted(&[1, 2]);
        near(&two, &[1.0 + 98.0 / 3.0, 1.0 + 196.0 / 3.0]);
        let mut idle = four;
        idle.active[3] = false;
        near(
            &idle,
            &[10.0 + 40.0 / 3.0, 20.0 + 40.0 / 3.0, 30.0 + 40.0 / 3.0, 0.0],
        );
        let mut ceiling = Case::new("", &[10, 10], &["UDP"]);
        ceiling.ceilings[0] = 20;
        near(&ceiling, &[20.0, 80.0]);
        ceiling.ceilings[1] = 30;
        near(&ceiling, &[20.0, 30.0]);
    }

    #[test]
    fn those_who_are_not_there_are_not_judged() {
        let mut case = Case::new("", &[50, 50], &["UDP"]);
        case.active[1] = false;
        let measured = Measured {
            shaper: "x".to_owned(),
            rates: vec![mbit(99) as f64, 0.0],
            outcomes: Vec::new(),
            case,
        };
        let off = judge(&measured);
        assert!(off.len() == 1 && (off[0] + 0.01).abs() < 1e-9, "{off:?}");
    }
}
