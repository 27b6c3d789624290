//! What a call costs in programs that the engine is put into, under a limit that does
//! not bind: the same program bare and under `bonsai run`, in turn. As in `call-cost`,
//! the processes that are started anew are what is independent.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Benchmark;
use crate::child::Running;
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::study::{Pairing, median_or_zero, signed_with_interval, with_interval};

/// The benchmark "injected".
#[derive(Debug)]
pub(crate) struct Injected;

/// At most such a part of the bare call.
const MOST: f64 = 1.01;

/// How a program is linked.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Form {
    Glibc,
    Musl,
    Go,
    GoWithLibc,
}

const FORMS: [Form; 4] = [Form::Glibc, Form::Musl, Form::Go, Form::GoWithLibc];

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Glibc => "static glibc",
            Self::Musl => "static musl",
            Self::Go => "Go",
            Self::GoWithLibc => "Go with libc",
        })
    }
}

impl Form {
    /// What makes the program.
    fn compiler(self, context: &Context, program: &Path) -> Command {
        let go = matches!(self, Self::Go | Self::GoWithLibc);
        let mut command = Command::new(match self {
            Self::Glibc => "cc",
            Self::Musl => "musl-gcc",
            Self::Go | Self::GoWithLibc => "go",
        });
        if go {
            let cgo = if self == Self::Go { "0" } else { "1" };
            command.args(["build", "-o"]).envs([
                ("CGO_ENABLED", cgo),
                ("GO111MODULE", "off"),
                ("GOFLAGS", ""),
            ]);
            command.arg(program).arg(context.source("calls.go"));
        } else {
            command.args(["-O2", "-static", "-pthread", "-o"]);
            command.arg(program).arg(context.source("calls.c"));
        }
        command
    }
}

/// Operations of `calls.c` and `calls.go`, and the limits that they are under.
const OPERATIONS: [(&str, &[&str]); 8] = [
    ("getppid", &["getppid=100000000/s"]),
    ("empty", &["close=100000000/s"]),
    ("read-1", &["read=100GB/s"]),
    ("pread-4k", &["read=100GB/s"]),
    ("write-4k", &["write=100GB/s"]),
    ("pwrite-4k", &["write=100GB/s"]),
    ("pread-64k", &["read=100GB/s"]),
    ("tcp-1448", &["send=100GB/s", "recv=100GB/s"]),
];

/// The same call where it stands, and by a jump to another page and back that decides
/// nothing: no site that is replaced can cost less. Both are bare.
const FLOOR: (&str, [&str; 2]) = ("floor", ["here", "there"]);

const BATCHES: usize = 5;
const PATIENCE: Duration = Duration::from_secs(30);

/// One start of both programs: of each round, ns of the bare call and of the other.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Generation {
    form: Form,
    operation: String,
    rounds: Vec<(f64, f64)>,
}

impl Benchmark for Injected {
    fn name(&self) -> &'static str {
        "injected"
    }

    fn about(&self) -> &'static str {
        "ns per call in static programs and in Go's, under a limit that does not bind"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let file = context.file(1 << 20)?;
        let bonsai = context.library.with_file_name("bonsai");
        anyhow::ensure!(bonsai.is_file(), "{}: is not there", bonsai.display());
        let (generations, rounds) = context.effort.of((3, 4), (20, 6), (60, 10));
        for form in FORMS {
            let Some(program) = make(context, form)? else {
                continue;
            };
            for (operation, limits) in OPERATIONS {
                let arguments = |operation: &str| {
                    let file = file.display().to_string();
                    [operation, "1", "1", &file].map(str::to_owned)
                };
                let mut bare = Command::new(&program);
                bare.args(arguments(operation));
                let mut entered = Command::new(&bonsai);
                entered.arg("run");
                for limit in limits {
                    entered.args(["--limit", limit]);
                }
                entered.arg("--").arg(&program).args(arguments(operation));
                let both = [bare, entered];
                compare(context, form, operation, both, (generations, rounds))?;
            }
            if form == Form::Glibc {
                let (name, sides) = FLOOR;
                let both = sides.map(|side| {
                    let mut command = Command::new(&program);
                    command.args([side, "1", "1"]).arg(&file);
                    command
                });
                compare(context, form, name, both, (generations, rounds))?;
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

/// So many starts of both, with so many rounds each.
fn compare(
    context: &mut Context,
    form: Form,
    operation: &str,
    mut both: [Command; 2],
    (generations, rounds): (usize, usize),
) -> anyhow::Result<()> {
    if !context.is_wanted(&format!("{form}, {operation}")) {
        return Ok(());
    }
    context.progress(&format!("{form}, {operation}"));
    for _ in 0..generations {
        let before = Moment::now();
        let [first, second] = &mut both;
        let mut running = [Running::start(first)?, Running::start(second)?];
        let generation = Generation {
            form,
            operation: operation.to_owned(),
            rounds: measure(context, &mut running, rounds)?,
        };
        drop(running);
        context.sample(before.until_now(), &generation)?;
    }
    Ok(())
}

/// The program in that form; none, which is noted, where it cannot be made.
fn make(context: &mut Context, form: Form) -> anyhow::Result<Option<PathBuf>> {
    let program = context.scratch().join(format!("calls-{form:?}"));
    let cache = context.scratch().join("go-cache");
    let made = form
        .compiler(context, &program)
        .env("GOCACHE", cache)
        .output();
    let why = match made {
        Ok(output) if output.status.success() => return Ok(Some(program)),
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    context.skip(form.to_string(), format!("cannot be made: {why}"))?;
    Ok(None)
}

/// ns per operation of both, in so many rounds of about half a millisecond a batch.
fn measure(
    context: &mut Context,
    both: &mut [Running; 2],
    rounds: usize,
) -> anyhow::Result<Vec<(f64, f64)>> {
    // The first of a process's batches fill its caches.
    let ns = batch(&mut both[0], 2_000)?.max(0.1);
    batch(&mut both[1], 2_000)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "some thousands"
    )]
    let count = (500_000.0 / ns) as u64;
    let mut measured = Vec::new();
    for _ in 0..rounds {
        let mut order = [0, 1];
        context.shuffle(&mut order);
        let mut times = [0.0; 2];
        for which in order {
            times[which] = batch(&mut both[which], count)?;
        }
        measured.push((times[0], times[1]));
        context.check()?;
    }
    Ok(measured)
}

/// CPU time of an operation, ns: the median of some batches.
fn batch(running: &mut Running, count: u64) -> anyhow::Result<f64> {
    running.tell(&format!("{count} {BATCHES}"))?;
    let batches: Vec<(u64, u64)> = serde_json::from_str(&running.line(PATIENCE)?)?;
    let times: Vec<f64> = batches.iter().map(|(_, cpu)| *cpu as f64).collect();
    Ok(median_or_zero(&times) / count as f64)
}

fn report(samples: &[Sample<Generation>], seed: u64) -> Section {
    let mut section = Section::default();
    section.text(
        "CPU time per call, ns, of the bare program, and what being entered adds: medians over \
         processes started anew."
            .to_owned(),
    );
    let mut table = Table::new(&["program", "call", "bare", "more", "ratio", "doubt"]);
    for form in FORMS {
        let operations = OPERATIONS.map(|(operation, _)| operation);
        for operation in operations.into_iter().chain([FLOOR.0]) {
            let of: Vec<&Sample<Generation>> = samples
                .iter()
                .filter(|s| s.data.form == form && s.data.operation == operation)
                .collect();
            let pairs: Vec<(f64, f64)> = of.iter().map(|s| middle(&s.data.rounds)).collect();
            let Some(pairing) = Pairing::of(&pairs, seed) else {
                continue;
            };
            let doubt = doubt_of(of.iter().map(|s| &s.conditions));
            table.row(vec![
                form.to_string(),
                operation.to_owned(),
                format!("{:.1}", pairing.base.median),
                signed_with_interval(&pairing.difference, 2),
                with_interval(&pairing.ratio, 4),
                doubt.clone().unwrap_or_default(),
            ]);
            // Nobody has promised anything of the floor.
            if operation == FLOOR.0 {
                continue;
            }
            section.promise(
                format!("{form}, {operation}"),
                format!("ratio {MOST}"),
                with_interval(&pairing.ratio, 4),
                Verdict::at_most(&pairing.ratio, MOST, doubt.as_ref()),
            );
        }
    }
    section.table(table);
    section
}

/// A generation's bare call, and that with the median difference of its rounds.
fn middle(rounds: &[(f64, f64)]) -> (f64, f64) {
    let bares: Vec<f64> = rounds.iter().map(|(bare, _)| *bare).collect();
    let added: Vec<f64> = rounds.iter().map(|(bare, other)| other - bare).collect();
    let bare = median_or_zero(&bares);
    (bare, bare + median_or_zero(&added))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Conditions;

    #[test]
    fn what_is_added_is_judged() {
        let generation = |form, added: f64| Sample {
            conditions: Conditions::default(),
            data: Generation {
                form,
                operation: "read-1".to_owned(),
                rounds: (0..5)
                    .map(|i| (200.0 + f64::from(i), 200.0 + f64::from(i) + added))
                    .collect(),
            },
        };
        let samples: Vec<_> = (0..10)
            .flat_map(|_| [generation(Form::Glibc, 1.0), generation(Form::Go, 9.0)])
            .collect();
        let section = report(&samples, 1);
        let verdicts: Vec<_> = section
            .promises()
            .iter()
            .map(|p| p.verdict.clone())
            .collect();
        assert_eq!(verdicts, [Verdict::Kept, Verdict::Broken]);
    }

    #[test]
    fn both_programs_know_the_operations() {
        let c = include_str!("../../../../bench/calls.c");
        let go = include_str!("../../../../bench/calls.go");
        for (operation, _) in OPERATIONS {
            assert!(c.contains(&format!("{{\"{operation}\"")), "{operation}");
            assert!(go.contains(&format!("case \"{operation}\"")), "{operation}");
        }
        for side in FLOOR.1 {
            assert!(c.contains(&format!("{{\"{side}\"")), "{side}");
        }
    }
}
