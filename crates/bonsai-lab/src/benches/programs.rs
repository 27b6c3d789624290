//! Real programs that the engine is put into: how exactly a limit is kept, whether
//! `status` names them as covered, and what they lose by a limit that does not bind.
//!
//! Bytes are counted by whoever gets them: this process at the other end of a pipe or a
//! connection, or Go's client, which says how long its bytes took. For what is lost, a
//! bare program and one under limits are both there, and only the one rests whose
//! bytes nobody takes; the pairs of processes that are started anew are what is
//! independent.

mod flow;
mod make;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::flow::Start;
pub(super) use self::make::busybox;
use self::make::{CASES, Case, SERVED, Way};
use super::Benchmark;
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::study::{Pairing, median_or_zero, percent, with_interval};

/// The benchmark "programs".
#[derive(Debug)]
pub(crate) struct Programs;

/// A rate may be off by such a part.
const OFF_MOST: f64 = 0.01;

/// A byte may take so much longer.
const LONGER_MOST: f64 = 1.01;

/// MB/s that programs are limited to.
const LIMITS: [u64; 2] = [10, 100];

/// Before a rate is measured, and before a turn.
const SETTLE: Duration = Duration::from_millis(500);
const TURN_BEGINS: Duration = Duration::from_millis(20);
const TURN: Duration = Duration::from_millis(80);

/// Bytes of a turn of programs that say themselves how long they took.
const TURN_BYTES: u64 = 200_000_000;

/// A line of the record.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Measured {
    /// Bytes a second, and what was asked for.
    Rate {
        program: String,
        limit: u64,
        rate: f64,
    },
    /// Whether `status` names it as covered, and nothing as not.
    Named { program: String, covered: bool },
    /// Bytes a second of two processes in turns, bare and under a limit that does not bind.
    Speed {
        program: String,
        rounds: Vec<(f64, f64)>,
    },
}

/// What all programs are started with.
struct Bench {
    folder: PathBuf,
    server: u16,
    /// The name of the services.
    name: String,
}

impl Benchmark for Programs {
    fn name(&self) -> &'static str {
        "programs"
    }

    fn about(&self) -> &'static str {
        "real static and Go programs: rates kept, covered, speed under a limit that does not bind"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let bonsai = context.library.with_file_name("bonsai");
        anyhow::ensure!(bonsai.is_file(), "{}: is not there", bonsai.display());
        let folder = context.scratch().join("served");
        std::fs::create_dir_all(&folder)?;
        // Sparse, and longer than anybody reads.
        std::fs::File::create(folder.join(SERVED))?.set_len(1 << 38)?;
        let bench = Bench {
            folder,
            server: flow::serve()?,
            name: format!("bench-programs-{}", std::process::id()),
        };
        for case in &CASES {
            if !context.is_wanted(case.name) {
                continue;
            }
            match case.make(context) {
                Ok(program) => {
                    context.progress(case.name);
                    bench.rates(context, case, &program)?;
                    bench.speeds(context, case, &program)?;
                }
                Err(why) => context.skip(case.name, why)?,
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

impl Bench {
    fn start<'a>(&'a self, case: &'a Case, program: &'a Path) -> Start<'a> {
        Start {
            case,
            program,
            folder: &self.folder,
            server: self.server,
            service: None,
        }
    }

    /// How exactly it keeps each limit, and what `status` says meanwhile.
    fn rates(&self, context: &mut Context, case: &Case, program: &Path) -> anyhow::Result<()> {
        let seconds = context.effort.of(1, 3, 10);
        for limit in LIMITS {
            let text = format!("{}={limit}MB/s", case.limit);
            let start = Start {
                service: Some((&self.name, &text)),
                ..self.start(case, program)
            };
            let before = Moment::now();
            let mut covered = None;
            let rate = if case.way == Way::Times {
                let bytes = limit * 1_000_000 * seconds;
                bytes as f64 / start.timed(context, bytes)?
            } else {
                let mut flow = start.flow(context)?;
                flow.take(context, SETTLE)?;
                let rate = flow.take(context, Duration::from_secs(seconds))?;
                // Buffers fill up meanwhile.
                covered = Some(self.is_covered(context)?);
                rate
            };
            let conditions = before.until_now();
            let program = case.name.to_owned();
            let rate = Measured::Rate {
                program: program.clone(),
                limit: limit * 1_000_000,
                rate,
            };
            context.sample(conditions.clone(), &rate)?;
            if let Some(covered) = covered {
                context.sample(conditions, &Measured::Named { program, covered })?;
            }
        }
        Ok(())
    }

    fn is_covered(&self, context: &Context) -> anyhow::Result<bool> {
        let bonsai = context.library.with_file_name("bonsai");
        let output = Command::new(bonsai).args(["status", &self.name]).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        // A few sites of glibc's are none that a program at work gets to: docs/05-limits.md.
        let patched = text.lines().any(|line| line.contains("  patched"));
        Ok(patched && !text.contains("not covered"))
    }

    /// What it loses by a limit that does not bind.
    fn speeds(&self, context: &mut Context, case: &Case, program: &Path) -> anyhow::Result<()> {
        let (generations, rounds) = context.effort.of((2, 3), (5, 10), (10, 20));
        let text = format!("{}=100GB/s", case.limit);
        let bare = self.start(case, program);
        let limited = Start {
            service: Some((&self.name, &text)),
            ..bare
        };
        for _ in 0..generations {
            let before = Moment::now();
            let both = [bare, limited];
            let mut flows = Vec::new();
            if case.way != Way::Times {
                for start in both {
                    flows.push(start.flow(context)?);
                }
            }
            let mut measured = Vec::new();
            for _ in 0..rounds {
                let mut order = [0, 1];
                context.shuffle(&mut order);
                let mut rates = [0.0; 2];
                for which in order {
                    rates[which] = if let Some(flow) = flows.get_mut(which) {
                        flow.take(context, TURN_BEGINS)?;
                        flow.take(context, TURN)?
                    } else {
                        TURN_BYTES as f64 / both[which].timed(context, TURN_BYTES)?
                    };
                }
                measured.push((rates[0], rates[1]));
            }
            drop(flows);
            let speed = Measured::Speed {
                program: case.name.to_owned(),
                rounds: measured,
            };
            context.sample(before.until_now(), &speed)?;
        }
        Ok(())
    }
}

/// A pair of processes: ns per byte, bare and under the limit.
fn per_byte(rounds: &[(f64, f64)]) -> (f64, f64) {
    let bare: Vec<f64> = rounds.iter().map(|(bare, _)| 1e9 / bare).collect();
    let ratios: Vec<f64> = rounds
        .iter()
        .map(|(bare, limited)| bare / limited)
        .collect();
    let bare = median_or_zero(&bare);
    (bare, bare * median_or_zero(&ratios))
}

fn report(samples: &[Sample<Measured>], seed: u64) -> Section {
    let mut section = Section::default();
    section.text(
        "How far the rate is from the limit; whether `status` names the program as covered; and under \
         a limit that does not bind, how many times as long a byte takes as bare."
            .to_owned(),
    );
    let mut table = Table::new(&[
        "program",
        "10 MB/s",
        "100 MB/s",
        "covered",
        "bare, MB/s",
        "ratio",
        "doubt",
    ]);
    for case in &CASES {
        study(case.name, samples, seed, &mut section, &mut table);
    }
    section.table(table);
    section
}

fn study(
    name: &str,
    samples: &[Sample<Measured>],
    seed: u64,
    section: &mut Section,
    table: &mut Table,
) {
    let (mut offs, mut named, mut pairs, mut of) = ([None; 2], Vec::new(), Vec::new(), Vec::new());
    for sample in samples {
        match &sample.data {
            Measured::Rate {
                program,
                limit,
                rate,
            } if program == name => {
                let which = LIMITS.iter().position(|mb| mb * 1_000_000 == *limit);
                if let Some(off) = which.and_then(|which| offs.get_mut(which)) {
                    *off = Some(rate / *limit as f64 - 1.0);
                }
            }
            Measured::Named { program, covered } if program == name => named.push(*covered),
            Measured::Speed { program, rounds } if program == name => pairs.push(per_byte(rounds)),
            _ => continue,
        }
        of.push(&sample.conditions);
    }
    if of.is_empty() {
        return;
    }
    let doubt = doubt_of(of.into_iter());
    let off = |off: Option<f64>| off.map_or_else(String::new, |off| percent(off, 2));
    for (off, mb) in offs.iter().zip(LIMITS) {
        if let Some(off) = off {
            section.promise(
                format!("{name}, {mb} MB/s"),
                percent(OFF_MOST, 0),
                percent(*off, 2),
                Verdict::of(off.abs() <= OFF_MOST, doubt.as_ref()),
            );
        }
    }
    let covered = named.iter().all(|covered| *covered);
    let said = match (named.is_empty(), covered) {
        (true, _) => "",
        (false, true) => "yes",
        (false, false) => "no",
    };
    if !named.is_empty() {
        let what = format!("{name}, covered");
        section.promise(
            what,
            "yes".to_owned(),
            said.to_owned(),
            Verdict::of(covered, None),
        );
    }
    let pairing = Pairing::of(&pairs, seed);
    if let Some(pairing) = &pairing {
        section.promise(
            format!("{name}, not bound"),
            format!("ratio {LONGER_MOST}"),
            with_interval(&pairing.ratio, 4),
            Verdict::at_most(&pairing.ratio, LONGER_MOST, doubt.as_ref()),
        );
    }
    table.row(vec![
        name.to_owned(),
        off(offs[0]),
        off(offs[1]),
        said.to_owned(),
        pairing
            .as_ref()
            .map_or_else(String::new, |p| format!("{:.0}", 1e3 / p.base.median)),
        pairing
            .as_ref()
            .map_or_else(String::new, |p| with_interval(&p.ratio, 4)),
        doubt.unwrap_or_default(),
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Conditions;

    #[test]
    fn rates_names_and_speeds_are_judged() {
        let program = || "busybox cat".to_owned();
        let rate = |limit, rate| Measured::Rate {
            program: program(),
            limit,
            rate,
        };
        let speed = Measured::Speed {
            program: program(),
            rounds: vec![(1e9, 0.9e9); 5],
        };
        let all = [
            rate(10_000_000, 10.05e6),
            rate(100_000_000, 98e6),
            Measured::Named {
                program: program(),
                covered: true,
            },
            speed.clone(),
            speed,
        ];
        let samples = all.map(|data| Sample {
            conditions: Conditions::default(),
            data,
        });
        let section = report(&samples, 1);
        let verdicts: Vec<_> = section
            .promises()
            .iter()
            .map(|p| p.verdict.clone())
            .collect();
        let (kept, broken) = (Verdict::Kept, Verdict::Broken);
        assert_eq!(verdicts, [kept.clone(), broken.clone(), kept, broken]);
    }

    #[test]
    fn bytes_are_counted_where_they_arrive() {
        let port = flow::serve().expect("a server");
        let mut client = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        std::io::Write::write_all(&mut client, b"GET /give?100000 HTTP/1.1\r\n\r\n")
            .expect("asked");
        let mut answer = Vec::new();
        std::io::Read::read_to_end(&mut client, &mut answer).expect("answered");
        let head = answer
            .windows(4)
            .position(|end| end == b"\r\n\r\n")
            .expect("a head");
        assert_eq!(answer.len() - head - 4, 100_000);
    }
}
