//! Work conservation: how long an idle part lies idle, how long its owner waits for it when it comes back,
//! and whether the link is ever idle while somebody waits.

use std::time::Duration;

use bonsai_stats::percentile_nearest;
use serde::{Deserialize, Serialize};

use super::super::Benchmark;
use super::stage::{Part, Stage, finish, pass, plan, shapers, stop, too_much};
use super::{both, mbit};
use crate::context::Context;
use crate::load::Moment;
use crate::net::series::Arrivals;
use crate::net::shaper::{Limits, Make, is_ours};
use crate::net::traffic::{Listen, Outcome};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::study::{median_or_zero, percent};

/// The benchmark "link-idle".
#[derive(Debug)]
pub(crate) struct Idle;

const LINK: u64 = mbit(100);
const GUARANTEE: u64 = mbit(84);
/// A guarantee is there again after so long at most.
const MOST_REGAIN_NS: f64 = 10e6;
/// What is left idle is used after so long at most.
const MOST_REUSE_NS: f64 = 1e6;
/// Of the link, while anybody waits.
const LEAST_USED: f64 = 0.999;
/// Rates are of packets over so long at least.
const STRETCH_NS: u64 = 1_000_000;
const TOLERANCE: f64 = 0.1;
/// What is kept around the owner's coming and going.
const KEPT_NS: u64 = 60_000_000;
const OWNER: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(250);

/// The owner of the guarantee, once there and gone again.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Visit {
    from_ns: u64,
    to_ns: u64,
    /// The owner's packets, around its coming.
    owner: Arrivals,
    /// The last of them.
    last_ns: u64,
    /// The other's, around its going.
    other: Arrivals,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    shaper: String,
    visits: Vec<Visit>,
    /// Of the link, from the first visit to the last: bytes of layer 2 a second.
    together: f64,
    doubt: Option<String>,
}

impl Benchmark for Idle {
    fn name(&self) -> &'static str {
        "link-idle"
    }

    fn about(&self) -> &'static str {
        "a guarantee whose owner comes and goes: who waits how long, and is the link ever idle"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        for make in shapers(context)? {
            let what = make().name();
            if context.is_wanted(what) {
                context.progress(what);
                measure(context, make)?;
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()))
    }
}

fn measure(context: &mut Context, make: Make) -> anyhow::Result<()> {
    let visits = context.effort.of(5, 50, 200);
    let limits = [GUARANTEE, LINK - GUARANTEE].map(|guarantee| Limits {
        guarantee,
        ceiling: LINK,
        weight: 1,
    });
    let stage = match Stage::new(make, 2, plan(LINK, &limits)) {
        Ok(stage) => stage,
        Err(error) => return context.skip(make().name(), format!("{error:#}")),
    };
    let listen = Listen {
        arrivals: true,
        quiet: Duration::from_millis(60),
        ..Listen::default()
    };
    let before = Moment::now();
    let other: [Part; 1] = [(1, too_much(LINK, Duration::from_secs(600)))];
    let owner: [Part; 1] = [(0, too_much(LINK, OWNER))];
    let other = stage.start(&other, listen)?;
    pass(context, PAUSE)?;
    let mut owners: Vec<Outcome> = Vec::new();
    for _ in 0..visits {
        owners.extend(finish(context, stage.start(&owner, listen)?)?);
        pass(context, PAUSE)?;
    }
    let other = stop(other)?.pop().unwrap_or_default();
    let measured = gather(stage.shaper.name(), &owners, &other);
    context.sample(before.until_now(), &measured)
}

/// What a record keeps.
fn gather(shaper: &str, owners: &[Outcome], other: &Outcome) -> Measured {
    let none = Arrivals::default();
    let others = other.received.arrivals.as_ref().unwrap_or(&none);
    let visit = |owner: &Outcome| {
        let own = owner.received.arrivals.as_ref().unwrap_or(&none);
        let from_ns = owner.sent.from_ns;
        let last_ns = own.0.last().map_or(owner.sent.to_ns, |(at, _)| *at);
        let around = |at: u64| (at.saturating_sub(KEPT_NS / 6), at + KEPT_NS);
        let ((a, b), (c, d)) = (around(from_ns), around(last_ns));
        Visit {
            from_ns,
            to_ns: owner.sent.to_ns,
            owner: Arrivals(own.between(a, b).to_vec()),
            last_ns,
            other: Arrivals(others.between(c, d).to_vec()),
        }
    };
    let visits: Vec<Visit> = owners.iter().map(visit).collect();
    let from = visits.first().map_or(0, |visit| visit.from_ns);
    let to = visits.last().map_or(0, |visit| visit.last_ns);
    let bytes = |arrivals: &Arrivals| -> u64 {
        arrivals
            .between(from, to)
            .iter()
            .map(|(_, bytes)| u64::from(*bytes))
            .sum()
    };
    let owned: u64 = owners
        .iter()
        .filter_map(|owner| owner.received.arrivals.as_ref())
        .map(bytes)
        .sum();
    let seconds = to.saturating_sub(from).max(1) as f64 / 1e9;
    let doubts = owners.iter().chain([other]).filter_map(Outcome::doubt);
    Measured {
        shaper: shaper.to_owned(),
        together: (owned + bytes(others)) as f64 / seconds,
        visits,
        doubt: { doubts }.next(),
    }
}

/// What follows from a visit, ns; `None`: not in the time that was looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Judged {
    /// Until the guarantee was there again.
    regained: Option<f64>,
    /// Until the other had what it left.
    reused: Option<f64>,
}

fn judge(visit: &Visit) -> Judged {
    let rate = |arrivals: &Arrivals, from: u64, rate: u64| {
        let settled = arrivals.settled(from, rate as f64, TOLERANCE, STRETCH_NS);
        settled.map(|ns| ns as f64)
    };
    Judged {
        regained: rate(&visit.owner, visit.from_ns, GUARANTEE),
        reused: rate(&visit.other, visit.last_ns, LINK),
    }
}

fn report(samples: &[Sample<Measured>]) -> Section {
    let mut section = Section::default();
    section.text(
        "A link of 100 Mbit/s. One wants all of it all the time; the other, with a guarantee of 84, comes for 300 ms and \
         goes, and wants all while it is there. Regained: until the owner's packets come at its guarantee. Used again: \
         from the owner's last packet until the other's come at the rate of the link. Within 10 %, over 1 ms. ms.",
    );
    let mut table = Table::new(&[
        "shaper",
        "visits",
        "regained p50 / p99",
        "used again p50 / p99",
        "of the link",
        "doubt",
    ]);
    for sample in samples {
        let measured = &sample.data;
        let judged: Vec<_> = measured.visits.iter().map(judge).collect();
        let doubt = both(sample.conditions.doubt(), measured.doubt.clone());
        // One that never was is as long as can be.
        let values = |of: fn(&Judged) -> Option<f64>| -> Vec<f64> {
            judged.iter().map(|j| of(j).unwrap_or(1e12)).collect()
        };
        let (regained, reused) = (values(|j| j.regained), values(|j| j.reused));
        let p99 = |values: &[f64]| percentile_nearest(values, 99.0).unwrap_or(f64::NAN);
        let shown = |values: &[f64]| {
            format!(
                "{:.2} / {:.2}",
                median_or_zero(values) / 1e6,
                p99(values) / 1e6
            )
        };
        let used = measured.together / LINK as f64;
        table.row(vec![
            measured.shaper.clone(),
            judged.len().to_string(),
            shown(&regained),
            shown(&reused),
            percent(used - 1.0, 3),
            doubt.clone().unwrap_or_default(),
        ]);
        if !is_ours(&measured.shaper) {
            continue;
        }
        for (what, value, most) in [
            ("a guarantee is regained", p99(&regained), MOST_REGAIN_NS),
            ("an idle part is used", p99(&reused), MOST_REUSE_NS),
        ] {
            section.promise(
                format!("{}: {what}, p99", measured.shaper),
                format!("{:.0} ms", most / 1e6),
                format!("{:.2} ms", value / 1e6),
                Verdict::of(value <= most, doubt.as_ref()),
            );
        }
        section.promise(
            format!("{}: of the link, while somebody waits", measured.shaper),
            format!("{:.1} %", LEAST_USED * 100.0),
            format!("{:.2} %", used * 100.0),
            Verdict::of(used >= LEAST_USED, doubt.as_ref()),
        );
    }
    section.table(table);
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_visit_is_judged_by_both_flows() {
        // 1250 bytes each 100 us are 100 Mbit/s.
        let steady = |from: u64, to: u64, step: u64| {
            let count = (to - from) / step;
            Arrivals((0..count).map(|i| (from + i * step, 1_250)).collect())
        };
        let visit = |owner: Arrivals, other: Arrivals| Visit {
            from_ns: 100 * MS,
            to_ns: 390 * MS,
            owner,
            last_ns: 400 * MS,
            other,
        };
        // 119 us: 84 Mbit/s.
        let good = visit(
            steady(103 * MS, 200 * MS, 119_000),
            steady(400 * MS, 450 * MS, 100_000),
        );
        let judged = judge(&good);
        assert_eq!((judged.regained, judged.reused), (Some(3e6), Some(0.0)));
        let slow = visit(
            steady(100 * MS, 200 * MS, 200_000),
            steady(400 * MS, 450 * MS, 150_000),
        );
        let judged = judge(&slow);
        assert_eq!((judged.regained, judged.reused), (None, None));
    }

    #[test]
    fn all_that_came_between_the_first_visit_and_the_last_counts() {
        let outcome = |from: u64, to: u64| {
            let mut outcome = Outcome::default();
            (outcome.sent.from_ns, outcome.sent.to_ns) = (from, to);
            let count = (to - from) / MS;
            let arrivals = (0..=count).map(|i| (from + i * MS, 1_000)).collect();
            outcome.received.arrivals = Some(Arrivals(arrivals));
            outcome
        };
        let owners = [outcome(100 * MS, 200 * MS), outcome(300 * MS, 400 * MS)];
        let measured = gather("x", &owners, &outcome(0, 500 * MS));
        assert_eq!(measured.visits.len(), 2);
        // 300 ms of the other, and twice 100 ms of the owner, but for the very last packet.
        let bytes = measured.together * 0.3;
        assert!(
            (bytes - (300.0 + 101.0 + 100.0) * 1_000.0).abs() < 1.0,
            "{bytes}"
        );
    }
}
