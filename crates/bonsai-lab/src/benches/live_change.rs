//! How fast a change of a limit is in force.
//!
//! - *Raised*: threads sleep in waits under 1 kB/s, one call each. Then the limit is
//!   raised, and each says when its call returned.
//! - *Lowered*: threads write as fast as they are let. What gets through after the
//!   limit was lowered, beyond what the new one gives, is the overshoot; at the old
//!   rate it would have taken so many ms.

use std::time::Duration;

use bonsai_stats::percentile_nearest;
use serde::{Deserialize, Serialize};

use super::Benchmark;
use super::exactness::flow::{Answer, Flow, Operation, finish_flow, start_flow};
use crate::child::Running;
use crate::context::Context;
use crate::load::{Control, Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::{Doors, Service, monotonic_ns};

/// The benchmark "live-change".
#[derive(Debug)]
pub(crate) struct LiveChange;

const THREADS: u32 = 64;

/// In force for the next byte within so much, 99 of 100 times.
const MOST_MS: f64 = 10.0;

const LOW: &str = "write=1kB/s";
const RAISED: &str = "write=100MB/s";
const CALL: u64 = 1_000;

const FAST: u64 = 100_000_000;
const SLOW: u64 = 1_000_000;
/// What a new limit may give at once: its burst, 10 ms by default.
const BURST_S: f64 = 0.01;
/// How long after a change its bytes are counted, ns.
const AFTER_NS: u64 = 100_000_000;

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Measured {
    /// Instants, ns: just before and after the change, and of each return.
    Raised {
        before: u64,
        after: u64,
        returned: Vec<u64>,
    },
    /// A flow, when it started, and when the limit was lowered and raised.
    Lowered {
        start: u64,
        changes: Vec<Change>,
        answers: Vec<Answer>,
    },
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Change {
    /// Just before and after, ns.
    before: u64,
    after: u64,
    /// The new limit, bytes/s.
    rate: u64,
}

impl Benchmark for LiveChange {
    fn name(&self) -> &'static str {
        "live-change"
    }

    fn about(&self) -> &'static str {
        "time from a change of a limit until it is in force, with 64 threads asleep"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let changes = context.effort.of(15, 50, 200);
        context.progress("raised, threads asleep");
        raise(context, changes)?;
        context.progress("lowered, threads running");
        lower(context, changes)
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()))
    }
}

fn raise(context: &mut Context, changes: u32) -> anyhow::Result<()> {
    let patience = Duration::from_secs(30);
    let service = context.service(Doors::Both, &[LOW])?;
    let mut command = context.program("sleepers")?;
    command.args([THREADS.to_string(), CALL.to_string()]);
    service.enter(&mut command);
    let mut sleepers = Running::start(&mut command)?;
    for _ in 0..changes {
        let moment = Moment::now();
        let control = Control::start();
        sleepers.tell("go")?;
        let word = sleepers.line(patience)?;
        anyhow::ensure!(word == "asleep", "the sleepers said {word:?}");
        // The first would be let through after a second.
        let pause = 20 + context.random.below(100);
        std::thread::sleep(Duration::from_millis(pause));
        let (before, after) = service.set(&[RAISED])?;
        let returned: Vec<u64> = serde_json::from_str(&sleepers.line(patience)?)?;
        service.set(&[LOW])?;
        let mut conditions = moment.until_now();
        conditions.gaps = control.finish();
        context.sample(
            conditions,
            &Measured::Raised {
                before,
                after,
                returned,
            },
        )?;
    }
    Ok(())
}

fn lower(context: &mut Context, changes: u32) -> anyhow::Result<()> {
    const EACH: u32 = 10;
    const TURN: Duration = Duration::from_millis(250);
    for _ in 0..changes.div_ceil(EACH) {
        let service = context.service(Doors::Both, &[format!("write={FAST}B/s")])?;
        let flow = Flow {
            operation: Operation::Write,
            size: 4096,
            threads: THREADS,
            processes: 1,
            warm: TURN,
            length: TURN * (2 * EACH + 1),
            sample: Duration::from_millis(1),
        };
        let moment = Moment::now();
        let (start, running) = start_flow(context, &flow, Some(&service))?;
        let control = Control::start();
        let changes = toggle(&service, start, TURN, EACH)?;
        let answers = finish_flow(&flow, running)?;
        let mut conditions = moment.until_now();
        conditions.gaps = control.finish();
        conditions.gaps.retain(|(since, late)| since + late > start);
        context.sample(
            conditions,
            &Measured::Lowered {
                start,
                changes,
                answers,
            },
        )?;
    }
    Ok(())
}

/// Lowers and raises the limit, one change a `turn`.
fn toggle(
    service: &Service,
    start: u64,
    turn: Duration,
    times: u32,
) -> anyhow::Result<Vec<Change>> {
    let turn = u64::try_from(turn.as_nanos())?;
    let mut changes = Vec::new();
    for i in 0..2 * times {
        let at = start + u64::from(i + 1) * turn;
        std::thread::sleep(Duration::from_nanos(at.saturating_sub(monotonic_ns())));
        let rate = if i % 2 == 0 { SLOW } else { FAST };
        let (before, after) = service.set(&[format!("write={rate}B/s")])?;
        changes.push(Change {
            before,
            after,
            rate,
        });
    }
    Ok(changes)
}

/// Bytes that got through within [`AFTER_NS`] of a change, beyond what the new
/// rate and its burst give. Counted from the last look before the change, so at
/// most 1 ms of the old rate too many.
fn overshoot(start: u64, change: &Change, answer: &Answer) -> Option<f64> {
    let after = change.after.checked_sub(start)?;
    let since = answer.kernel.iter().rfind(|(t, _)| *t <= after)?;
    let until = answer.kernel.iter().find(|(t, _)| *t >= after + AFTER_NS)?;
    let seconds = until.0.saturating_sub(since.0) as f64 / 1e9;
    let allowed = change.rate as f64 * (seconds + BURST_S);
    Some(until.1.saturating_sub(since.1) as f64 - allowed)
}

fn report(samples: &[Sample<Measured>]) -> Section {
    let mut section = Section::default();
    let (mut latencies, mut each_change, mut early) = (Vec::new(), Vec::new(), 0);
    let mut overshoots = Vec::new();
    for sample in samples {
        match &sample.data {
            Measured::Raised {
                before, returned, ..
            } => {
                early += returned.iter().filter(|at| *at < before).count();
                let ms: Vec<f64> = returned
                    .iter()
                    .map(|at| at.saturating_sub(*before) as f64 / 1e6)
                    .collect();
                each_change.extend(ms.iter().copied().reduce(f64::max));
                latencies.extend(ms);
            }
            Measured::Lowered {
                start,
                changes,
                answers,
            } => {
                let lowered = changes.iter().filter(|change| change.rate == SLOW);
                overshoots.extend(
                    lowered.filter_map(|change| overshoot(*start, change, answers.first()?)),
                );
            }
        }
    }
    let is_raised = |sample: &&Sample<Measured>| matches!(sample.data, Measured::Raised { .. });
    let doubt = |raised: bool| {
        doubt_of(
            samples
                .iter()
                .filter(|s| is_raised(s) == raised)
                .map(|s| &s.conditions),
        )
    };
    let at = |values: &[f64], percent| percentile_nearest(values, percent).unwrap_or(0.0);
    let mut table = Table::new(&["change", "changes", "p50", "p99", "max", "doubt"]);
    let mut row = |what: &str, n: usize, values: &[f64], unit: &str, doubt: Option<String>| {
        let show = |percent| format!("{:.3} {unit}", at(values, percent));
        table.row(vec![
            what.to_owned(),
            n.to_string(),
            show(50.0),
            show(99.0),
            show(100.0),
            doubt.unwrap_or_default(),
        ]);
    };
    if !latencies.is_empty() {
        row(
            "raised: each thread's return",
            each_change.len(),
            &latencies,
            "ms",
            doubt(true),
        );
        row(
            "raised: the last thread's return",
            each_change.len(),
            &each_change,
            "ms",
            doubt(true),
        );
        let p99 = at(&latencies, 99.0);
        section.promise(
            "raised: in force for the next byte, p99",
            format!("{MOST_MS} ms"),
            format!("{p99:.3} ms"),
            Verdict::of(p99 <= MOST_MS, doubt(true).as_ref()),
        );
        section.promise(
            "raised: returns before the change",
            "0",
            early.to_string(),
            Verdict::of(early == 0, doubt(true).as_ref()),
        );
    }
    if !overshoots.is_empty() {
        let kilobytes: Vec<f64> = overshoots.iter().map(|bytes| bytes / 1e3).collect();
        let ms: Vec<f64> = overshoots
            .iter()
            .map(|bytes| bytes / FAST as f64 * 1e3)
            .collect();
        row(
            "lowered: bytes beyond the new limit",
            ms.len(),
            &kilobytes,
            "kB",
            doubt(false),
        );
        row(
            "lowered: as time at the old rate",
            ms.len(),
            &ms,
            "ms",
            doubt(false),
        );
        let p99 = at(&ms, 99.0);
        section.promise(
            "lowered: time for which the old limit went on, p99",
            format!("{MOST_MS} ms"),
            format!("{p99:.3} ms"),
            Verdict::of(p99 <= MOST_MS, doubt(false).as_ref()),
        );
    }
    section.text(format!(
        "{THREADS} threads. Raised from 1 kB/s to 100 MB/s while all of them sleep in a call of {CALL} bytes; \
         lowered from 100 MB/s to 1 MB/s while they write 4 KiB at a time."
    ));
    section.table(table);
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Conditions;

    fn sample(data: Measured) -> Sample<Measured> {
        Sample {
            conditions: Conditions::default(),
            data,
        }
    }

    #[test]
    fn late_and_early_returns_are_found() {
        let raised = |late: u64| {
            let mut returned = vec![1_100_000; 63];
            returned.push(late);
            sample(Measured::Raised {
                before: 1_000_000,
                after: 1_050_000,
                returned,
            })
        };
        let verdicts = |late| -> Vec<Verdict> {
            report(&[raised(late)])
                .promises()
                .iter()
                .map(|p| p.verdict.clone())
                .collect()
        };
        assert_eq!(verdicts(1_200_000), [Verdict::Kept, Verdict::Kept]);
        assert_eq!(verdicts(12_000_000), [Verdict::Broken, Verdict::Kept]);
        assert_eq!(verdicts(900_000), [Verdict::Kept, Verdict::Broken]);
    }

    #[test]
    fn bytes_beyond_the_new_limit_are_the_overshoot() {
        // 100 MB/s for 500 ms, 20 ms more after the change, then 1 MB/s.
        let bytes = |ms: u64| {
            if ms <= 520 {
                ms * 100_000
            } else {
                52_000_000 + (ms - 520) * 1_000
            }
        };
        let kernel = (0..800).map(|ms| (ms * 1_000_000, bytes(ms))).collect();
        let answer = Answer {
            calls: 0,
            cpu_ns: 0,
            nivcsw: 0,
            late_ns: 0,
            bins: Vec::new(),
            kernel,
        };
        let change = Change {
            before: 7 + 500_000_000,
            after: 7 + 500_000_000,
            rate: SLOW,
        };
        let beyond = overshoot(7, &change, &answer).expect("bytes");
        // 2 MB and 80 kB in 100 ms, of which 110 kB are allowed.
        assert!((beyond - 1_970_000.0).abs() < 1.0, "{beyond}");
        let lowered = sample(Measured::Lowered {
            start: 7,
            changes: vec![change],
            answers: vec![answer],
        });
        assert_eq!(report(&[lowered]).promises()[0].verdict, Verdict::Broken);
    }
}
