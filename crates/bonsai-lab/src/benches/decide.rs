//! What one decision of the policy costs: CPU time of the thread that makes it.
//!
//! All five resources have a capacity; each service uses all of them, every period something
//! else, and one in eight wants more. In mode adaptive all of them are learned, too.

use bonsai_policy::{
    Automatic, Config, Group, Mode, Observation, Policy, Seen, Service, Terms, Usage,
};
use bonsai_stats::{SplitMix64, percentile_nearest};
use bonsai_units::Resource;
use serde::{Deserialize, Serialize};

use super::Benchmark;
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::thread_cpu_ns;
use crate::study::{estimate, median_or_zero, with_interval};

/// The benchmark "policy-cost".
#[derive(Debug)]
pub(crate) struct PolicyCost;

/// 1 GB/s of each resource, thousandths.
const CAPACITY: u64 = 1_000_000_000_000;

const PERIOD_NS: u64 = 100_000_000;

/// Decisions of a sample: as many periods as make a minute, so that everything that is done
/// once a minute is in it.
const DECISIONS: usize = 600;

/// At most so many us a decision for 1,000 services, as issue and design have it.
const MOST_US: f64 = 1_000.0;

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
struct Cell {
    services: u32,
    nested: bool,
    adaptive: bool,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    cell: Cell,
    /// CPU time of each decision, ns.
    cpu_ns: Vec<u64>,
}

impl Benchmark for PolicyCost {
    fn name(&self) -> &'static str {
        "policy-cost"
    }

    fn about(&self) -> &'static str {
        "CPU time of one decision about all services and resources"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let blocks = context.effort.of(2, 5, 15);
        for cell in cells() {
            let what = cell.describe();
            if !context.is_wanted(&what) {
                continue;
            }
            context.progress(&what);
            for _ in 0..blocks {
                let seed = context.random.next_u64();
                let before = Moment::now();
                let measured = measure(&cell, seed)?;
                context.sample(before.until_now(), &measured)?;
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for services in [10, 100, 1_000] {
        for (nested, adaptive) in [(false, false), (true, false), (false, true), (true, true)] {
            cells.push(Cell {
                services,
                nested,
                adaptive,
            });
        }
    }
    cells
}

impl Cell {
    fn describe(&self) -> String {
        let shape = if self.nested { "nested" } else { "flat" };
        let mode = if self.adaptive { "adaptive" } else { "dynamic" };
        format!("{} services, {shape}, {mode}", self.services)
    }

    /// Half of each capacity is guaranteed; weights differ. Nested: in groups of about ten, and
    /// those in groups of about ten.
    fn config(&self) -> Config {
        let groups = if self.nested {
            self.services.div_ceil(10)
        } else {
            0
        };
        let name = |i: u32| format!("g{i:03}").into();
        let group = |i: u32| Group {
            name: name(i),
            parent: (i >= groups.div_ceil(10)).then(|| name(i % groups.div_ceil(10))),
            terms: Default::default(),
        };
        let service = |i: u32| {
            let terms = Terms {
                min: Some(CAPACITY / 2 / u64::from(self.services)),
                weight: Some(1 + i % 7),
                ..Terms::default()
            };
            Service {
                group: self.nested.then(|| name(i % groups)),
                terms: [terms; Resource::COUNT],
                ..Service::named(format!("service-{i:04}"))
            }
        };
        Config {
            capacity: [Some(CAPACITY); Resource::COUNT],
            mode: if self.adaptive {
                Mode::Adaptive
            } else {
                Mode::Dynamic
            },
            automatic: Automatic::On,
            groups: (0..groups).map(group).collect(),
            services: (0..self.services).map(service).collect(),
            ..Config::default()
        }
    }
}

/// A period in which each service uses up to twice its part of the capacity.
fn observe(observation: &mut Observation, random: &mut SplitMix64) {
    observation.now_ns += PERIOD_NS;
    observation.wall_s = observation.now_ns / 1_000_000_000;
    let part = CAPACITY / observation.services.len() as u64;
    for usage in observation
        .services
        .iter_mut()
        .flat_map(|seen| &mut seen.usage)
    {
        *usage = Usage {
            used: random.below(2 * part),
            wanted_more: random.below(8) == 0,
            borrowed: None,
            bound: None,
        };
    }
}

fn measure(cell: &Cell, seed: u64) -> anyhow::Result<Measured> {
    let mut random = SplitMix64::new(seed);
    let sentence = |problems: Vec<bonsai_policy::Problem>| anyhow::anyhow!("{problems:?}");
    let mut policy = Policy::new(cell.config()).map_err(sentence)?;
    let seen = |i: u32| Seen {
        name: format!("service-{i:04}").into(),
        usage: [Usage::default(); Resource::COUNT],
    };
    let mut observation = Observation {
        services: (0..cell.services).map(seen).collect(),
        ..Observation::default()
    };
    // The first decisions make what the others use again, and histories that have something.
    for _ in 0..20 {
        observe(&mut observation, &mut random);
        policy.decide(&observation);
    }
    let mut cpu_ns = Vec::with_capacity(DECISIONS);
    for _ in 0..DECISIONS {
        observe(&mut observation, &mut random);
        let before = thread_cpu_ns();
        policy.decide(&observation);
        cpu_ns.push(thread_cpu_ns() - before);
    }
    Ok(Measured {
        cell: cell.clone(),
        cpu_ns,
    })
}

fn report(samples: &[Sample<Measured>], seed: u64) -> Section {
    let mut section = Section::default();
    section.text(
        "us of CPU time per decision about five resources: the median of a minute of periods with its interval over \
         minutes, and the 99th percentile of all.",
    );
    let mut table = Table::new(&["", "us", "p99, us", "doubt"]);
    for cell in cells() {
        let of: Vec<_> = samples
            .iter()
            .filter(|sample| sample.data.cell == cell)
            .collect();
        let us = |sample: &&Sample<Measured>| -> Vec<f64> {
            sample
                .data
                .cpu_ns
                .iter()
                .map(|&ns| ns as f64 / 1e3)
                .collect()
        };
        let medians: Vec<f64> = of
            .iter()
            .map(|sample| median_or_zero(&us(sample)))
            .collect();
        let Some(median) = estimate(&medians, seed) else {
            continue;
        };
        let mut all: Vec<f64> = of.iter().flat_map(us).collect();
        all.sort_by(f64::total_cmp);
        let p99 = percentile_nearest(&all, 99.0).unwrap_or(0.0);
        let doubt = doubt_of(of.iter().map(|sample| &sample.conditions));
        table.row(vec![
            cell.describe(),
            with_interval(&median, 1),
            format!("{p99:.1}"),
            doubt.clone().unwrap_or_default(),
        ]);
        if cell.services == 1_000 {
            section.promise(
                cell.describe(),
                format!("{MOST_US:.0} us"),
                format!("{} us", with_interval(&median, 1)),
                Verdict::at_most(&median, MOST_US, doubt.as_ref()),
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
    fn every_cell_can_be_measured() {
        for cell in cells().into_iter().filter(|cell| cell.services < 1_000) {
            assert_eq!(cell.config().check(), Ok(()), "{}", cell.describe());
        }
        let small = Cell {
            services: 10,
            nested: true,
            adaptive: true,
        };
        let measured = measure(&small, 1).expect("measured");
        assert_eq!(measured.cpu_ns.len(), DECISIONS);
        let sample = Sample {
            conditions: crate::load::Conditions::default(),
            data: measured,
        };
        let text = report(&[sample.clone(), sample], 1).terminal();
        assert!(text.contains("10 services, nested, adaptive"), "{text}");
    }
}
