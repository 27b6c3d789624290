//! Bonsai beside what Debian packages for the same purpose, on the same work:
//! trickle, the kernel's queue `tbf`, and its block throttle.
//!
//! A tool is given the work that it is made for, and what it cannot do is left out.
//! What a client takes to start, measured with nothing to move, is taken off its time.

mod tool;
mod work;

use serde::{Deserialize, Serialize};

use self::tool::Tool;
use self::work::Bench;
use super::Benchmark;
use crate::context::{Context, Effort};
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::study::{median_or_zero, percent, rate};

/// The benchmark "peers".
#[derive(Debug)]
pub(crate) struct Peers;

/// 10 MB/s.
const RATE: u64 = 10_000_000;
/// A whole program with its start and its sockets' buffers: more than the limit
/// alone is promised.
const MOST: f64 = 0.02;
/// Or so much sooner or later: what starting a program takes is not always the same.
const MOST_S: f64 = 0.03;

/// What is done under the limit.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
enum Work {
    /// A client fetches a file.
    Wget,
    Curl,
    /// Four clients under one limit.
    FourWgets,
    /// One client with 16 threads.
    SixteenThreads,
    /// A server sends a file.
    PythonServer,
    NginxServer,
    /// A file is read from the disk, past the page cache.
    DirectRead,
    /// A file is read from the page cache.
    CachedRead,
    /// A file is written, through the page cache.
    Write,
}

const WORKS: [Work; 9] = [
    Work::Wget,
    Work::Curl,
    Work::FourWgets,
    Work::SixteenThreads,
    Work::PythonServer,
    Work::NginxServer,
    Work::DirectRead,
    Work::CachedRead,
    Work::Write,
];

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    work: Work,
    tool: Tool,
    bytes: u64,
    ns: u64,
    /// CPU of what was limited, ms.
    cpu_ms: u64,
    /// How programs ended that did not end well.
    failures: Vec<String>,
}

impl Work {
    const fn name(self) -> &'static str {
        match self {
            Self::Wget => "wget",
            Self::Curl => "curl",
            Self::FourWgets => "4 wgets, one limit",
            Self::SixteenThreads => "client with 16 threads",
            Self::PythonServer => "python http.server sends",
            Self::NginxServer => "nginx sends",
            Self::DirectRead => "dd reads from disk",
            Self::CachedRead => "dd reads from the page cache",
            Self::Write => "dd writes a file",
        }
    }

    const fn tools(self) -> &'static [Tool] {
        match self {
            Self::DirectRead | Self::CachedRead | Self::Write => &[Tool::Bonsai, Tool::Blkio],
            _ => &[Tool::Bonsai, Tool::Trickle, Tool::Tc],
        }
    }

    const fn is_quick(self) -> bool {
        matches!(
            self,
            Self::Wget | Self::Curl | Self::NginxServer | Self::DirectRead
        )
    }
}

impl Benchmark for Peers {
    fn name(&self) -> &'static str {
        "peers"
    }

    fn about(&self) -> &'static str {
        "trickle, tc and cgroup throttling on the same work"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let effort = context.effort;
        let repetitions = effort.of(1, 2, 10);
        let mut bench = Bench::new(context)?;
        for work in WORKS {
            if effort == Effort::Quick && !work.is_quick() {
                continue;
            }
            // trickle's crashes are counted: those need more runs.
            let times = if work == Work::SixteenThreads {
                repetitions * 4
            } else {
                repetitions
            };
            for tool in work.tools() {
                let what = format!("{} under {}", work.name(), tool.name());
                if !bench.context.is_wanted(&what) {
                    continue;
                }
                bench.context.progress(&what);
                for _ in 0..times {
                    let before = Moment::now();
                    match bench.measure(work, *tool) {
                        Ok((measured, own_cpu_ms)) => {
                            let conditions = before.until_now().less(own_cpu_ms);
                            bench.context.sample(conditions, &measured)?;
                        }
                        Err(error) => {
                            bench.context.check()?;
                            bench.context.skip(what, format!("{error:#}"))?;
                            break;
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

fn report(samples: &[Sample<Measured>]) -> Section {
    let mut section = Section::default();
    section.text(format!(
        "Limit {}. Got: bytes over time, median of the runs that ended well. trickle limits sockets, the \
         blkio throttle a block device, tbf an interface: its rate counts the headers of packets, which \
         are 4 % of full ones. CPU is that of the limited program.",
        rate(RATE)
    ));
    let mut table = Table::new(&[
        "work",
        "tool",
        "runs",
        "got, MB/s",
        "error",
        "CPU, ms",
        "failures",
        "doubt",
    ]);
    for work in WORKS {
        for tool in work.tools() {
            let of: Vec<_> = samples
                .iter()
                .filter(|s| s.data.work == work && s.data.tool == *tool)
                .collect();
            if of.is_empty() {
                continue;
            }
            let well: Vec<_> = of.iter().filter(|s| s.data.failures.is_empty()).collect();
            let got: Vec<f64> = well
                .iter()
                .map(|s| s.data.bytes as f64 * 1e9 / s.data.ns.max(1) as f64)
                .collect();
            let cpu: Vec<f64> = well.iter().map(|s| s.data.cpu_ms as f64).collect();
            let (got, error) = match bonsai_stats::median(&got) {
                Some(got) => (format!("{:.2}", got / 1e6), got / RATE as f64 - 1.0),
                None => ("nothing".to_owned(), -1.0),
            };
            let failures: Vec<String> = of.iter().flat_map(|s| s.data.failures.clone()).collect();
            let doubt = doubt_of(of.iter().map(|s| &s.conditions));
            table.row(vec![
                work.name().to_owned(),
                tool.name().to_owned(),
                of.len().to_string(),
                got.clone(),
                percent(error, 1),
                format!("{:.0}", median_or_zero(&cpu)),
                if failures.is_empty() {
                    String::new()
                } else {
                    format!("{}: {}", failures.len(), failures[0])
                },
                doubt.clone().unwrap_or_default(),
            ]);
            if *tool == Tool::Bonsai {
                let asked_s = of
                    .first()
                    .map_or(0.0, |s| s.data.bytes as f64 / RATE as f64);
                let holds = error.abs() <= MOST.max(MOST_S / asked_s.max(MOST_S));
                section.promise(
                    format!("{} at {}", work.name(), rate(RATE)),
                    "within 2 % or 30 ms, no failure",
                    format!(
                        "{} in {} runs, {} failures",
                        percent(error, 2),
                        of.len(),
                        failures.len()
                    ),
                    Verdict::of(holds && failures.is_empty(), doubt.as_ref()),
                );
            }
        }
    }
    section.table(table);
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Conditions;
    use std::time::Duration;

    fn sample(tool: Tool, seconds: f64, failures: &[&str]) -> Sample<Measured> {
        let ns = Duration::from_secs_f64(seconds).as_nanos();
        let data = Measured {
            work: Work::Curl,
            tool,
            bytes: 30_000_000,
            ns: u64::try_from(ns).expect("small"),
            cpu_ms: 10,
            failures: failures.iter().map(|text| (*text).to_owned()).collect(),
        };
        Sample {
            conditions: Conditions::default(),
            data,
        }
    }

    #[test]
    fn errors_are_those_of_the_tool_and_judged_for_bonsai() {
        let section = report(&[
            sample(Tool::Bonsai, 3.01, &[]),
            sample(Tool::Trickle, 12.0, &[]),
        ]);
        assert_eq!(section.promises().len(), 1);
        assert_eq!(section.promises()[0].verdict, Verdict::Kept);
        let text = section.markdown();
        assert!(
            text.contains("| curl | trickle | 1 | 2.50 | -75.0 % |"),
            "{text}"
        );
    }

    #[test]
    fn a_crash_breaks_the_promise() {
        let section = report(&[
            sample(Tool::Bonsai, 3.0, &[]),
            sample(Tool::Bonsai, 3.0, &["signal 11"]),
        ]);
        assert_eq!(section.promises()[0].verdict, Verdict::Broken);
    }
}
