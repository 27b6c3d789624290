//! How long it takes until a new rate is on the wire: a flow of datagrams that always wants more, and the
//! distances between its packets.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::Benchmark;
use super::stage::{pass, shapers};
use super::{both, mbit};
use crate::context::Context;
use crate::load::{Conditions, Moment};
use crate::net::rooms::{ENDPOINT, Pair, Wire};
use crate::net::series::Arrivals;
use crate::net::shaper::{Limits, Make, Plan, is_ours};
use crate::net::traffic::{Listen, SendSpec, Traffic};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::monotonic_ns;
use bonsai_stats::percentile_nearest;

/// The benchmark "link-change".
#[derive(Debug)]
pub(crate) struct Change;

const MS: u64 = 1_000_000;
/// A new rate is on the wire so long after the call at most, p99.
const MOST_NS: f64 = 5e6;
/// Where fewer changes were made, there is no such percentile.
const LEAST_CHANGES: usize = 100;
/// Packets are as far apart as the rate says, within so much.
const TOLERANCE: f64 = 0.1;
/// Over so much time at least.
const STRETCH_NS: u64 = MS;
/// What is kept around a change.
const BEFORE_NS: u64 = 2 * MS;
const AFTER_NS: u64 = 60 * MS;
/// What a socket may have waiting: less than any leaf, so that nothing is lost where all wait.
const QUEUE: u32 = 48 << 10;
/// Mbit/s.
const RATES: [u64; 9] = [40, 10, 100, 10, 30, 300, 10, 500, 20];

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    shaper: String,
    /// Mbit/s.
    from: u64,
    to: u64,
    /// The call, and its return.
    called_ns: u64,
    returned_ns: u64,
    arrivals: Arrivals,
}

/// All changes in a row.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Row {
    shaper: String,
    changes: usize,
    packets: u64,
    lost: u64,
    reordered: u64,
    doubt: Option<String>,
}

impl Benchmark for Change {
    fn name(&self) -> &'static str {
        "link-change"
    }

    fn about(&self) -> &'static str {
        "a new rate at an interface: until it is on the wire"
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
        report(&record.samples(self.name()), &record.samples(self.name()))
    }
}

fn measure(context: &mut Context, make: Make) -> anyhow::Result<()> {
    let changes = context.effort.of(45, 450, 1_800);
    let pair = match Pair::new(Wire::default()) {
        Ok(pair) => pair,
        Err(error) => return context.skip(make().name(), format!("{error:#}")),
    };
    let mut shaper = make();
    let mut from = 20;
    shaper.apply(&pair.client, &Plan::one(ENDPOINT, mbit(from)))?;
    let mut spec = SendSpec::udp(None, Duration::from_secs(600));
    spec.queue = Some(QUEUE);
    let listen = Listen {
        arrivals: true,
        ..Listen::default()
    };
    let mut made = Vec::new();
    let mut left = changes;
    while left > 0 {
        // In rows: what is kept of single packets is bounded.
        let before = Moment::now();
        let traffic = Traffic::start(&pair.client, pair.server(), &spec, listen)?;
        pass(context, Duration::from_millis(200))?;
        let mut row = Vec::new();
        for to in RATES.into_iter().cycle().take(left.min(RATES.len() * 5)) {
            let called_ns = monotonic_ns();
            shaper.change(&pair.client, &[(0, Limits::exactly(mbit(to)))])?;
            let returned_ns = monotonic_ns();
            row.push((from, to, called_ns, returned_ns));
            from = to;
            let more = context.random.below(40);
            pass(context, Duration::from_millis(80 + more))?;
        }
        left -= row.len();
        traffic.ask_to_end();
        let outcome = traffic.wait()?;
        let total = outcome.received.total();
        let conditions = before.until_now();
        let measured = Row {
            shaper: shaper.name().to_owned(),
            changes: row.len(),
            packets: total.packets,
            lost: outcome.lost(),
            reordered: total.reordered,
            doubt: outcome.doubt(),
        };
        context.sample(conditions.clone(), &measured)?;
        let arrivals = outcome.received.arrivals.unwrap_or_default();
        made.extend(row.into_iter().map(|(from, to, called_ns, returned_ns)| {
            let kept = arrivals.between(called_ns - BEFORE_NS, returned_ns + AFTER_NS);
            let measured = Measured {
                shaper: shaper.name().to_owned(),
                from,
                to,
                called_ns,
                returned_ns,
                arrivals: Arrivals(kept.to_vec()),
            };
            (conditions.clone(), measured)
        }));
    }
    for (conditions, measured) in &made {
        context.sample(conditions.clone(), measured)?;
    }
    Ok(())
}

/// What follows from a change, ns.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Judged {
    /// Until the call returned.
    call: f64,
    /// Until the new rate was on the wire; `None`: not in the time that was looked at.
    wire: Option<f64>,
    /// The longest time without a packet around it.
    gap: f64,
}

fn judge(measured: &Measured) -> Judged {
    let Measured {
        to,
        called_ns,
        returned_ns,
        arrivals,
        ..
    } = measured;
    let settled = arrivals.settled(*called_ns, mbit(*to) as f64, TOLERANCE, STRETCH_NS);
    Judged {
        call: returned_ns.saturating_sub(*called_ns) as f64,
        wire: settled.map(|ns| ns as f64),
        gap: arrivals.longest_gap(0, u64::MAX) as f64,
    }
}

fn report(changes: &[Sample<Measured>], rows: &[Sample<Row>]) -> Section {
    let mut section = Section::default();
    section.text(
        "A flow of datagrams that always wants more, while its rate changes between 10 and 500 Mbit/s. On the wire: \
         from the call to the first packet from which on distances agree with the new rate within 10 %, over 1 ms and \
         four packets at least. ms.",
    );
    let mut table = Table::new(&[
        "shaper",
        "changes",
        "call p50 / p99",
        "on the wire p50 / p99 / most",
        "wire after the call, p99",
        "longest gap",
        "never",
        "lost",
        "reordered",
        "doubt",
    ]);
    let mut names: Vec<&str> = rows.iter().map(|row| row.data.shaper.as_str()).collect();
    names.dedup();
    for name in names {
        let of_it = changes.iter().filter(|c| c.data.shaper == name);
        let all: Vec<Judged> = of_it.map(|c| judge(&c.data)).collect();
        let rows: Vec<_> = rows.iter().filter(|r| r.data.shaper == name).collect();
        let conditions: Vec<&Conditions> = rows.iter().map(|row| &row.conditions).collect();
        let sender = rows.iter().find_map(|row| row.data.doubt.clone());
        let doubt = both(crate::load::doubt_of(conditions.into_iter()), sender);
        let ms = |values: &[f64], p: f64| percentile_nearest(values, p).unwrap_or(f64::NAN) / 1e6;
        let calls: Vec<f64> = all.iter().map(|j| j.call).collect();
        // One that never settles is as slow as can be.
        let wire: Vec<f64> = all.iter().map(|j| j.wire.unwrap_or(1e12)).collect();
        let behind: Vec<f64> = wire
            .iter()
            .zip(&calls)
            .map(|(w, c)| (w - c).max(0.0))
            .collect();
        let gap = all.iter().map(|j| j.gap).fold(0.0, f64::max);
        let never = all.iter().filter(|j| j.wire.is_none()).count();
        let (lost, reordered) = rows.iter().fold((0, 0), |(lost, reordered), row| {
            (lost + row.data.lost, reordered + row.data.reordered)
        });
        let p99 = ms(&wire, 99.0);
        table.row(vec![
            name.to_owned(),
            all.len().to_string(),
            format!("{:.2} / {:.2}", ms(&calls, 50.0), ms(&calls, 99.0)),
            format!(
                "{:.2} / {p99:.2} / {:.2}",
                ms(&wire, 50.0),
                ms(&wire, 100.0)
            ),
            format!("{:.2}", ms(&behind, 99.0)),
            format!("{:.1}", gap / 1e6),
            never.to_string(),
            lost.to_string(),
            reordered.to_string(),
            doubt.clone().unwrap_or_default(),
        ]);
        if !is_ours(name) {
            continue;
        }
        if all.len() >= LEAST_CHANGES {
            section.promise(
                format!("{name}: a change is on the wire, p99"),
                "5 ms",
                format!("{p99:.2} ms"),
                Verdict::of(p99 * 1e6 <= MOST_NS, doubt.as_ref()),
            );
        }
        section.promise(
            format!("{name}: lost and reordered by {} changes", all.len()),
            "0",
            (lost + reordered).to_string(),
            Verdict::of(lost + reordered == 0, sender_fault(&rows).as_ref()),
        );
    }
    section.table(table);
    section
}

/// A busy machine loses no packets: only the generator's own fault excuses a loss.
fn sender_fault(rows: &[&Sample<Row>]) -> Option<String> {
    let doubts = rows.iter().filter_map(|row| row.data.doubt.clone());
    doubts.into_iter().find(|doubt| doubt.contains("socket"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_judged_by_the_packets_behind_it() {
        // 1250 bytes each: 10 Mbit/s are 1 ms apart, 100 Mbit/s 100 us.
        let mut arrivals = Arrivals::default();
        for i in 0..20 {
            arrivals.add(i * MS, 1_250);
        }
        for i in 1..200 {
            arrivals.add(19 * MS + i * MS / 10, 1_250);
        }
        let measured = |called_ns, to| Measured {
            shaper: "x".to_owned(),
            from: 10,
            to,
            called_ns,
            returned_ns: called_ns + 1_000,
            arrivals: arrivals.clone(),
        };
        let judged = judge(&measured(17 * MS, 100));
        assert_eq!(judged.wire, Some(2e6));
        assert_eq!((judged.call, judged.gap), (1_000.0, 1e6));
        assert_eq!(judge(&measured(17 * MS, 300)).wire, None);
        assert_eq!(judge(&measured(5 * MS, 10)).wire, Some(0.0));
    }
}
