//! What shaping costs: processor time of the whole machine for a Gbit that four tenants send by one uplink,
//! beside HTB as `tc` makes it, in the same minute.

use std::fs;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::Benchmark;
use super::stage::{Part, Stage, pass, plan, shapers, stop};
use super::{both, mbit, shown};
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::net::shaper::{Limits, is_ours};
use crate::net::traffic::{Listen, Outcome, SendSpec};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::monotonic_ns;
use crate::study::{Pairing, with_interval};

/// The benchmark "link-cost".
#[derive(Debug)]
pub(crate) struct Cost;

const TENANTS: u8 = 4;
/// Of plain HTB's.
const MOST: f64 = 1.05;
const SETTLING: Duration = Duration::from_millis(700);
/// Clock ticks of `/proc` in ns: always 100 a second on x86 (`USER_HZ`).
const TICK_NS: u64 = 10_000_000;

/// What is sent.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Traffic {
    /// A connection of each, as fast as it may: few large packets (GSO).
    Tcp,
    /// Datagrams of 1,400 bytes, a little less than they may: each a packet.
    Udp,
}

impl Traffic {
    const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP, 1 Gbit/s",
            Self::Udp => "UDP, 200 Mbit/s",
        }
    }

    /// Of the uplink.
    const fn rate(self) -> u64 {
        match self {
            Self::Tcp => mbit(1_000),
            Self::Udp => mbit(200),
        }
    }

    fn spec(self, length: Duration) -> SendSpec {
        match self {
            Self::Tcp => SendSpec::tcp(1, "cubic", length),
            Self::Udp => {
                let each = self.rate() / u64::from(TENANTS);
                SendSpec::udp(Some(each * 95 / 100), length)
            }
        }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    shaper: String,
    traffic: Traffic,
    round: u32,
    /// Of all processors, whatever they did, ns.
    busy_ns: u64,
    /// Of layer 2.
    bytes: u64,
    wall_ns: u64,
    doubt: Option<String>,
}

impl Measured {
    /// Processor seconds for 10^9 bits.
    fn cost(&self) -> f64 {
        self.busy_ns as f64 / (self.bytes.max(1) as f64 * 8.0)
    }
}

impl Benchmark for Cost {
    fn name(&self) -> &'static str {
        "link-cost"
    }

    fn about(&self) -> &'static str {
        "processor time for a Gbit through guarantees, beside plain HTB"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let length = Duration::from_secs(context.effort.of(1, 3, 3));
        let rounds = context.effort.of(2, 12, 25);
        for traffic in Traffic::ALL {
            if !context.is_wanted(traffic.name()) {
                continue;
            }
            let each = traffic.rate() / u64::from(TENANTS);
            let limits = Limits {
                guarantee: each,
                ceiling: traffic.rate(),
                weight: 1,
            };
            let limits = [limits; TENANTS as usize];
            let mut stages = Vec::new();
            for make in shapers(context)? {
                match Stage::new(make, TENANTS, plan(traffic.rate(), &limits)) {
                    Ok(stage) => stages.push(stage),
                    Err(error) => context.skip(make().name(), format!("{error:#}"))?,
                }
            }
            for round in 0..rounds {
                context.progress(&format!("{}, round {round}", traffic.name()));
                context.shuffle(&mut stages);
                for stage in &stages {
                    measure(context, stage, traffic, round, length)?;
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
    stage: &Stage,
    traffic: Traffic,
    round: u32,
    length: Duration,
) -> anyhow::Result<()> {
    let before = Moment::now();
    let spec = traffic.spec(length + SETTLING * 2);
    let parts: Vec<Part> = (0..TENANTS).map(|tenant| (tenant, spec.clone())).collect();
    let running = stage.start(&parts, Listen::default())?;
    pass(context, SETTLING)?;
    let read = || anyhow::Ok((monotonic_ns(), stage.let_out()?.unwrap_or(0), idle_ns()?));
    let first = read()?;
    pass(context, length)?;
    let last = read()?;
    let outcomes = stop(running)?;
    let wall_ns = last.0 - first.0;
    let all_ns = wall_ns * std::thread::available_parallelism()?.get() as u64;
    let measured = Measured {
        shaper: stage.shaper.name().to_owned(),
        traffic,
        round,
        busy_ns: all_ns.saturating_sub(last.2 - first.2),
        bytes: last.1 - first.1,
        wall_ns,
        doubt: outcomes.iter().find_map(Outcome::doubt),
    };
    context.sample(before.until_now(), &measured)
}

/// How long all processors together had nothing to do so far. The kernel counts that by its clock, not
/// by its ticks; proc(5).
fn idle_ns() -> anyhow::Result<u64> {
    let stat = fs::read_to_string("/proc/stat")?;
    // cpu user nice system idle iowait ...
    let words = stat.split_ascii_whitespace().skip(4).take(2);
    let ticks: u64 = words.map(str::parse::<u64>).sum::<Result<_, _>>()?;
    Ok(ticks * TICK_NS)
}

fn report(samples: &[Sample<Measured>]) -> Section {
    let mut section = Section::default();
    section.text(
        "Four tenants with guarantees share an uplink. Processor seconds of the whole machine, senders, receivers \
         and all, for each Gbit (10^9 bits of layer 2) that goes through; medians over rounds with their 95 % \
         interval, and the ratio to HTB as tc makes it, with a filter by address, round by round.",
    );
    let mut table = Table::new(&[
        "traffic",
        "shaper",
        "rounds",
        "Mbit/s",
        "s per Gbit",
        "of plain HTB's",
        "doubt",
    ]);
    for traffic in Traffic::ALL {
        let of = |ours: bool| -> Vec<&Sample<Measured>> {
            let of = |s: &&Sample<Measured>| {
                s.data.traffic == traffic && is_ours(&s.data.shaper) == ours
            };
            let mut found: Vec<_> = samples.iter().filter(of).collect();
            found.sort_by_key(|sample| sample.data.round);
            found
        };
        let (plain, ours) = (of(false), of(true));
        let rounds: Vec<(f64, f64)> = plain
            .iter()
            .zip(&ours)
            .map(|(plain, ours)| (plain.data.cost(), ours.data.cost()))
            .collect();
        let pairing = Pairing::of(&rounds, 1);
        let all = || plain.iter().chain(&ours);
        let doubt = both(
            doubt_of(all().map(|sample| &sample.conditions)),
            all().find_map(|sample| sample.data.doubt.clone()),
        );
        for group in [&plain, &ours] {
            let Some(first) = group.first() else {
                continue;
            };
            let costs: Vec<f64> = group.iter().map(|sample| sample.data.cost()).collect();
            let bytes: u64 = group.iter().map(|sample| sample.data.bytes).sum();
            let wall: u64 = group.iter().map(|sample| sample.data.wall_ns).sum();
            let cost = crate::study::estimate(&costs, 1);
            let ratio = pairing.filter(|_| is_ours(&first.data.shaper));
            table.row(vec![
                traffic.name().to_owned(),
                first.data.shaper.clone(),
                group.len().to_string(),
                shown(bytes as f64 * 1e9 / wall.max(1) as f64),
                cost.map_or_else(String::new, |cost| with_interval(&cost, 3)),
                ratio.map_or_else(String::new, |pairing| with_interval(&pairing.ratio, 3)),
                doubt.clone().unwrap_or_default(),
            ]);
        }
        if let Some(pairing) = pairing {
            section.promise(
                format!(
                    "{}: processor time for a Gbit, of plain HTB's",
                    traffic.name()
                ),
                format!("{MOST:.2} x"),
                with_interval(&pairing.ratio, 3),
                Verdict::at_most(&pairing.ratio, MOST, doubt.as_ref()),
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

    #[test]
    fn costs_are_compared_round_by_round() {
        let sample = |shaper: &str, round, busy_ns| Sample {
            conditions: Conditions::default(),
            data: Measured {
                shaper: shaper.to_owned(),
                traffic: Traffic::Tcp,
                round,
                busy_ns,
                bytes: 125_000_000,
                wall_ns: 1_000_000_000,
                doubt: None,
            },
        };
        let rounds = (0..6).flat_map(|round| {
            // The machine becomes slower; the ratio stays.
            let base = 100_000_000 * (u64::from(round) + 1);
            [
                sample("bonsai-link", round, base * 11 / 10),
                sample("tc", round, base),
            ]
        });
        let text = report(&rounds.collect::<Vec<_>>()).markdown();
        assert!(text.contains("1.100 [1.100, 1.100]"), "{text}");
    }

    #[test]
    fn processors_are_idle_by_the_clock() {
        let before = idle_ns().expect("proc");
        std::thread::sleep(Duration::from_millis(300));
        assert!(idle_ns().expect("proc") >= before);
    }
}
