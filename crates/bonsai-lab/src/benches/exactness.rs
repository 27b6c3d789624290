//! Whether a limit is what gets through: over 5 s, in each second, in each 100 ms,
//! and how evenly processes share it.
//!
//! The programs are greedy from the start; what they get in the first half second,
//! which includes the burst that a new bucket holds, is not judged. A measurement
//! that fails on a machine that was starved is made again, at most twice.

pub(super) mod flow;
mod grid;
mod judge;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::flow::{Answer, BIN_NS, Flow, finish_flow, start_flow};
use self::grid::Cell;
use self::judge::{Allowed, Judged, Span};
use super::Benchmark;
use crate::context::Context;
use crate::load::{Control, Moment};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::Doors;
use crate::study::{self, percent};

/// The benchmark "exactness".
#[derive(Debug)]
pub(crate) struct Exactness;

const WARM: Duration = Duration::from_millis(500);
const LENGTH: Duration = Duration::from_secs(5);
const ATTEMPTS: u32 = 3;
/// Burst of the limits, and as much again for a wait that ends late, s.
const AT_HAND_S: f64 = 0.02;
/// Windows of 100 ms in [`LENGTH`], one every 10 ms.
const WINDOWS: u32 = 491;

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    cell: Cell,
    attempt: u32,
    start_ns: u64,
    answers: Vec<Answer>,
    /// Calls that went through without a decision.
    unshaped: u64,
}

/// A measurement, its errors, and what they may be.
struct Found<'a> {
    sample: &'a Sample<Measured>,
    judged: Judged,
    allowed: Allowed,
    doubt: Option<String>,
}

impl Measured {
    fn span(&self) -> Span {
        let points =
            |time: Duration| usize::try_from(time.as_nanos() / u128::from(BIN_NS)).unwrap_or(0);
        Span {
            start_ns: self.start_ns,
            warm: points(WARM),
            length: points(LENGTH),
        }
    }
}

/// One promise.
struct Check {
    name: &'static str,
    /// Whether it holds; `None` if it could not be measured.
    holds: Option<bool>,
    measured: String,
    allowed: String,
    /// How much of what is allowed was used up: above 1 is too much.
    used: f64,
    /// Why it may be the machine's fault if it does not hold.
    excuse: Option<String>,
}

impl<'a> Found<'a> {
    fn of(sample: &'a Sample<Measured>) -> Option<Self> {
        let data = &sample.data;
        let span = data.span();
        let judged = judge::judge(&data.cell, &span, &data.answers, &sample.conditions.gaps)?;
        let allowed = Allowed::of(&data.cell, &span);
        Some(Self {
            sample,
            judged,
            allowed,
            doubt: sample.conditions.doubt(),
        })
    }

    fn checks(&self) -> [Check; 4] {
        let Self {
            judged: j,
            allowed: a,
            ..
        } = self;
        // Windows with gaps are left out already.
        let disturbed = self.sample.conditions.doubt_but_gaps();
        let error = |name, value: Option<f64>, most: f64| Check {
            name,
            holds: value.map(|value| value.abs() <= most),
            measured: value.map_or_else(|| "starved".to_owned(), |value| percent(value, 3)),
            allowed: format!("{:.3} %", most * 100.0),
            used: value.unwrap_or(0.0).abs() / most,
            excuse: disturbed.clone(),
        };
        let fairness = Check {
            name: "fairness",
            holds: Some(j.fairness >= a.fairness),
            measured: format!("{:.3}", j.fairness),
            allowed: format!("{:.3}", a.fairness),
            used: (1.0 - j.fairness) / (1.0 - a.fairness),
            excuse: self.doubt.clone(),
        };
        // What a service misses while it cannot run is no more than it could not
        // run, and what it had at hand when it stopped.
        let gaps: u64 = self
            .sample
            .conditions
            .gaps
            .iter()
            .map(|(_, late)| late)
            .sum();
        let missed = j.total.unwrap_or(0.0).abs() * LENGTH.as_secs_f64();
        let total = Check {
            excuse: self
                .doubt
                .clone()
                .filter(|_| missed <= gaps as f64 / 1e9 + AT_HAND_S),
            ..error("total after 5 s", j.total, a.total)
        };
        [
            total,
            error("worst second", j.second, a.second),
            error("worst 100 ms", j.tenth, a.tenth),
            fairness,
        ]
    }

    fn holds(&self) -> bool {
        self.checks().iter().all(|check| check.holds == Some(true))
    }
}

impl Benchmark for Exactness {
    fn name(&self) -> &'static str {
        "exactness"
    }

    fn about(&self) -> &'static str {
        "what a limit lets through, against what it says"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let (mut cells, refused) = grid::cells(context.effort);
        cells.retain(|cell| context.is_wanted(&cell.describe()));
        let attempts = context.effort.of(1, ATTEMPTS, ATTEMPTS);
        for (what, why) in refused {
            context.skip(what, why)?;
        }
        for (number, cell) in cells.iter().enumerate() {
            for attempt in 1..=attempts {
                context.progress(&format!(
                    "{} of {}: {}",
                    number + 1,
                    cells.len(),
                    cell.describe()
                ));
                let sample = measure(context, cell, attempt)?;
                context.sample(sample.conditions.clone(), &sample.data)?;
                let again =
                    Found::of(&sample).is_some_and(|found| !found.holds() && found.doubt.is_some());
                if !again {
                    break;
                }
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()))
    }
}

fn measure(context: &mut Context, cell: &Cell, attempt: u32) -> anyhow::Result<Sample<Measured>> {
    let flow = Flow {
        operation: cell.operation,
        size: cell.size,
        threads: cell.threads,
        processes: cell.processes,
        warm: WARM,
        length: LENGTH,
        sample: Duration::from_nanos(BIN_NS),
    };
    let service = context.service(
        Doors::Both,
        &[format!("{}={}B/s", cell.operation.class(), cell.rate)],
    )?;
    let before = Moment::now();
    let (start_ns, running) = start_flow(context, &flow, Some(&service))?;
    let control = Control::start();
    let answers = finish_flow(&flow, running)?;
    let mut conditions = before.until_now();
    conditions.gaps = control.finish();
    // Before the start, processes are made; that is no flow yet.
    conditions
        .gaps
        .retain(|(since, late)| since + late > start_ns);
    let data = Measured {
        cell: *cell,
        attempt,
        start_ns,
        answers,
        unshaped: service.unshaped(),
    };
    Ok(Sample { conditions, data })
}

/// The measurement of each cell that counts: the last one.
fn last_attempts(samples: &[Sample<Measured>]) -> Vec<&Sample<Measured>> {
    let mut last: Vec<&Sample<Measured>> = Vec::new();
    for sample in samples {
        match last.last_mut() {
            Some(before) if sample.data.attempt > 1 && before.data.cell == sample.data.cell => {
                *before = sample;
            }
            _ => last.push(sample),
        }
    }
    last
}

fn report(samples: &[Sample<Measured>]) -> Section {
    let mut section = Section::default();
    section.text(
        "Errors of what got through, as parts of the limit. Writes go to /dev/null, those of more than 4 KiB to a file in memory (pwrite), and are counted by \
         the kernel, reads count when the program gets them. 100 ms windows begin every 10 ms; those \
         during which the machine was starved (a control thread or the program's sampler woke up \
         more than 2 ms late) are left out and counted. Allowed where it is more than the plain \
         promise: one call, or the piece of it that is in hand.",
    );
    let mut table = Table::new(&[
        "limit",
        "call",
        "threads x processes",
        "first 0.5 s",
        "total",
        "worst 1 s",
        "worst 100 ms",
        "starved included",
        "fairness",
        "left out",
        "attempts",
        "doubt",
    ]);
    let found: Vec<Found<'_>> = last_attempts(samples)
        .into_iter()
        .filter_map(Found::of)
        .collect();
    for one in &found {
        let cell = &one.sample.data.cell;
        let checks = one.checks();
        let [total, second, tenth, fairness] = checks.each_ref().map(|check| match check.holds {
            Some(false) => format!("{} (allowed {})", check.measured, check.allowed),
            _ => check.measured.clone(),
        });
        table.row(vec![
            study::rate(cell.rate),
            format!("{} {}", cell.operation, study::size(cell.size)),
            format!("{} x {}", cell.threads, cell.processes),
            percent(one.judged.warm, 1),
            total,
            second,
            tenth,
            percent(one.judged.tenth_of_all, 1),
            if cell.processes > 1 {
                fairness
            } else {
                String::new()
            },
            format!("{} of {WINDOWS}", one.judged.starved),
            one.sample.data.attempt.to_string(),
            one.doubt.clone().unwrap_or_default(),
        ]);
        for check in checks.iter().filter(|check| check.holds != Some(true)) {
            let verdict = match check.holds {
                None => Verdict::Doubtful("the machine was starved throughout".to_owned()),
                Some(holds) => Verdict::of(holds, check.excuse.as_ref()),
            };
            section.promise(
                format!("{}, {}", check.name, cell.describe()),
                check.allowed.clone(),
                check.measured.clone(),
                verdict,
            );
        }
        if one.sample.data.unshaped > 0 {
            section.promise(
                format!("undecided, {}", cell.describe()),
                "0 calls",
                format!("{} calls", one.sample.data.unshaped),
                Verdict::Broken,
            );
        }
    }
    summarise(&mut section, &found);
    section.table(table);
    section
}

/// One line per promise for the combinations that keep it, with the one that
/// comes closest to what it is allowed.
fn summarise(section: &mut Section, found: &[Found<'_>]) {
    for index in 0..4 {
        let checks = found
            .iter()
            .map(|one| (one, one.checks().into_iter().nth(index)));
        let kept: Vec<(&Found<'_>, Check)> = checks
            .filter_map(|(one, check)| Some((one, check?)))
            .filter(|(_, check)| check.holds == Some(true))
            .collect();
        let closest = kept
            .iter()
            .max_by(|(_, a), (_, b)| a.used.total_cmp(&b.used));
        if let Some((one, check)) = closest {
            section.promise(
                format!(
                    "{}, {} of {} combinations; closest: {}",
                    check.name,
                    kept.len(),
                    found.len(),
                    one.sample.data.cell.describe()
                ),
                check.allowed.clone(),
                check.measured.clone(),
                Verdict::Kept,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::flow::Operation;
    use super::*;
    use crate::load::Conditions;

    fn sample(attempt: u32, bytes: u64, gaps: Vec<(u64, u64)>) -> Sample<Measured> {
        let cell = Cell {
            rate: 1_000_000,
            size: 1_000,
            threads: 1,
            processes: 1,
            operation: Operation::Read,
        };
        let bins = vec![bytes; 551];
        let answer = Answer {
            calls: 0,
            cpu_ns: 0,
            nivcsw: 0,
            late_ns: 0,
            bins,
            kernel: Vec::new(),
        };
        let data = Measured {
            cell,
            attempt,
            start_ns: 0,
            answers: vec![answer],
            unshaped: 0,
        };
        Sample {
            conditions: Conditions {
                gaps,
                ..Conditions::default()
            },
            data,
        }
    }

    #[test]
    fn a_limit_that_is_kept() {
        let section = report(&[sample(1, 10_000, Vec::new())]);
        assert_eq!(section.promises().len(), 4);
        assert!(
            section
                .promises()
                .iter()
                .all(|p| p.verdict == Verdict::Kept),
            "{:?}",
            section.promises()
        );
    }

    #[test]
    fn a_limit_that_is_not_kept() {
        let section = report(&[sample(1, 10_500, Vec::new())]);
        let broken = section
            .promises()
            .iter()
            .filter(|p| p.verdict == Verdict::Broken)
            .count();
        assert_eq!(broken, 3, "5 % too much in every window");
    }

    #[test]
    fn only_the_last_attempt_counts() {
        let gap = vec![(1_000_000_000, 5_000_000)];
        let section = report(&[
            sample(1, 10_500, gap.clone()),
            sample(2, 10_000, Vec::new()),
        ]);
        assert!(
            section
                .promises()
                .iter()
                .all(|p| p.verdict == Verdict::Kept)
        );
        let disturbed = report(&[sample(1, 10_500, gap)]);
        let broken = disturbed
            .promises()
            .iter()
            .filter(|p| p.verdict == Verdict::Broken);
        let names: Vec<_> = broken.map(|p| p.what.as_str()).collect();
        // A gap of 5 ms explains the windows that it is in, which are left out, but
        // neither 250 ms too much in 5 s nor the other windows.
        assert_eq!(names.len(), 3, "{names:?}");
    }
}
