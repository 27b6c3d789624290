//! What holding a service back costs: the CPU time of a program under a limit,
//! less what as many bare calls take.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Benchmark;
use super::exactness::flow::{Flow, Operation, run_flow};
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::Doors;
use crate::study::{self, estimate};

/// The benchmark "wait-cpu".
#[derive(Debug)]
pub(crate) struct WaitCpu;

/// At most such a part of a core.
const MOST: f64 = 0.01;

/// Rates and sizes of calls.
const CELLS: [(u64, u64); 12] = [
    (10_000, 1),
    (10_000, 1448),
    (100_000, 64),
    (100_000, 1448),
    (1_000_000, 64),
    (1_000_000, 4096),
    (10_000_000, 1448),
    (10_000_000, 65_536),
    (100_000_000, 4096),
    (100_000_000, 65_536),
    (1_000_000_000, 65_536),
    (1_000_000_000, 1 << 20),
];

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    rate: u64,
    size: u64,
    threads: u32,
    /// Calls and their CPU time without a limit, ns.
    bare_calls: u64,
    bare_cpu_ns: u64,
    /// Calls and all CPU time under the limit in so many ns.
    calls: u64,
    cpu_ns: u64,
    wall_ns: u64,
}

impl Measured {
    /// Cores spent on waiting.
    fn cores(&self) -> f64 {
        let bare = self.bare_cpu_ns as f64 / self.bare_calls.max(1) as f64;
        (self.cpu_ns as f64 - bare * self.calls as f64) / self.wall_ns as f64
    }
}

impl Benchmark for WaitCpu {
    fn name(&self) -> &'static str {
        "wait-cpu"
    }

    fn about(&self) -> &'static str {
        "CPU that a service spends on being held back"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let (repetitions, length_ms) = context.effort.of((2, 700), (3, 1_200), (7, 3_000));
        let skip = context.effort.of(3, 1, 1);
        for threads in [1, 16] {
            for (rate, size) in CELLS.into_iter().step_by(skip) {
                let what = format!(
                    "{} in calls of {}, {threads} threads",
                    study::rate(rate),
                    study::size(size)
                );
                if !context.is_wanted(&what) {
                    continue;
                }
                context.progress(&what);
                for _ in 0..repetitions {
                    let before = Moment::now();
                    let measured = measure(
                        context,
                        rate,
                        size,
                        threads,
                        Duration::from_millis(length_ms),
                    )?;
                    context.sample(before.until_now(), &measured)?;
                }
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

fn measure(
    context: &mut Context,
    rate: u64,
    size: u64,
    threads: u32,
    length: Duration,
) -> anyhow::Result<Measured> {
    let mut flow = Flow {
        operation: Operation::Write,
        size,
        threads,
        processes: 1,
        warm: Duration::from_millis(30),
        length: Duration::from_millis(100),
        sample: Duration::ZERO,
    };
    let bare = run_flow(context, &flow, None)?;
    let service = context.service(Doors::Both, &[format!("write={rate}B/s")])?;
    flow.warm = Duration::from_millis(100);
    flow.length = length;
    let held = run_flow(context, &flow, Some(&service))?;
    let sum = |of: &[super::exactness::flow::Answer]| {
        of.iter()
            .fold((0, 0), |(n, cpu), a| (n + a.calls, cpu + a.cpu_ns))
    };
    let ((bare_calls, bare_cpu_ns), (calls, cpu_ns)) = (sum(&bare), sum(&held));
    let wall_ns = u64::try_from(length.as_nanos())?;
    Ok(Measured {
        rate,
        size,
        threads,
        bare_calls,
        bare_cpu_ns,
        calls,
        cpu_ns,
        wall_ns,
    })
}

fn report(samples: &[Sample<Measured>], seed: u64) -> Section {
    let mut section = Section::default();
    section.text(
        "CPU time of a writing program under a limit that binds, less what as many calls took it \
         without: percent of a core, median of the repetitions.",
    );
    let mut table = Table::new(&[
        "rate",
        "call",
        "threads",
        "calls/s",
        "bare ns/call",
        "waiting, % of a core",
        "doubt",
    ]);
    let mut worst: Option<(f64, String, Verdict)> = None;
    let mut cells: Vec<(u64, u64, u32)> = samples
        .iter()
        .map(|s| (s.data.rate, s.data.size, s.data.threads))
        .collect();
    cells.dedup();
    for cell in cells {
        let of: Vec<_> = samples
            .iter()
            .filter(|s| (s.data.rate, s.data.size, s.data.threads) == cell)
            .collect();
        let cores: Vec<f64> = of.iter().map(|s| s.data.cores()).collect();
        let (Some(cores), Some(one)) = (estimate(&cores, seed), of.first()) else {
            continue;
        };
        let doubt = doubt_of(of.iter().map(|s| &s.conditions));
        let one = &one.data;
        table.row(vec![
            study::rate(one.rate),
            study::size(one.size),
            one.threads.to_string(),
            format!("{:.0}", one.calls as f64 * 1e9 / one.wall_ns as f64),
            format!(
                "{:.0}",
                one.bare_cpu_ns as f64 / one.bare_calls.max(1) as f64
            ),
            format!(
                "{:.2} [{:.2}, {:.2}]",
                cores.median * 100.0,
                cores.interval.low * 100.0,
                cores.interval.high * 100.0
            ),
            doubt.clone().unwrap_or_default(),
        ]);
        let what = format!(
            "{} in calls of {}, {} threads",
            study::rate(one.rate),
            study::size(one.size),
            one.threads
        );
        let verdict = Verdict::at_most(&cores, MOST, doubt.as_ref());
        let shown = format!("{:.2} %", cores.median * 100.0);
        if verdict != Verdict::Kept {
            section.promise(what, "1 % of a core", shown, verdict);
        } else if worst.as_ref().is_none_or(|(most, ..)| cores.median > *most) {
            worst = Some((cores.median, what, verdict));
        }
    }
    if let Some((cores, what, verdict)) = worst {
        section.promise(
            format!("waiting, the worst of those that keep it: {what}"),
            "1 % of a core",
            format!("{:.2} %", cores * 100.0),
            verdict,
        );
    }
    section.table(table);
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Conditions;

    fn sample(rate: u64, cpu_ns: u64) -> Sample<Measured> {
        let data = Measured {
            rate,
            size: 1000,
            threads: 1,
            bare_calls: 1_000,
            bare_cpu_ns: 200_000,
            calls: 10_000,
            cpu_ns,
            wall_ns: 1_000_000_000,
        };
        Sample {
            conditions: Conditions::default(),
            data,
        }
    }

    #[test]
    fn what_the_calls_take_anyway_is_taken_off() {
        // 2 ms of the CPU time are the calls themselves.
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(near(sample(1, 7_000_000).data.cores(), 0.005));
        let kept = report(&[sample(1, 7_000_000), sample(1, 7_100_000)], 1);
        assert_eq!(kept.promises().len(), 1);
        assert_eq!(kept.promises()[0].verdict, Verdict::Kept);
        let mixed = report(
            &[
                sample(1, 7_000_000),
                sample(1, 7_000_000),
                sample(2, 20_000_000),
                sample(2, 20_000_000),
            ],
            1,
        );
        let verdicts: Vec<_> = mixed.promises().iter().map(|p| p.verdict.clone()).collect();
        assert_eq!(verdicts, [Verdict::Broken, Verdict::Kept]);
    }
}
