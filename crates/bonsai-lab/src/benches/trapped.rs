//! What a call costs that is trapped: by the mechanism itself, and by Bonsai's decision.

use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Benchmark;
use crate::child::Running;
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::study::{Pairing, signed_with_interval, with_interval};

/// The benchmark "trapped".
#[derive(Debug)]
pub(crate) struct TrappedCost;

/// Of a handler that makes every call at once, at most so many times the cost.
const MOST: f64 = 1.3;

/// What is measured, and whether it is promised: the last one is not trapped.
const CALLS: [(&str, bool); 4] = [
    ("getppid", true),
    ("pread64, 4 KiB, cached", true),
    ("write, 1 B", true),
    ("getpid, not trapped", false),
];

/// They do not bind.
const LIMITS: [&str; 3] = ["getppid=100000000/s", "read=100GB/s", "write=100GB/s"];

/// ns per call in one round: bare, trapped and made, trapped and decided.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Round([[f64; CALLS.len()]; 3]);

impl Benchmark for TrappedCost {
    fn name(&self) -> &'static str {
        "trapped"
    }

    fn about(&self) -> &'static str {
        "ns per call that is trapped, against a handler that makes every call at once"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        if let Err(error) = bonsai_supervisor::trap_price() {
            return context.skip("all", format!("no seccomp filters: {error}"));
        }
        for _ in 0..context.effort.of(8, 40, 200) {
            let before = Moment::now();
            let mut order = [0, 1, 2];
            context.shuffle(&mut order);
            let mut round = Round([[0.0; CALLS.len()]; 3]);
            for variant in order {
                round.0[variant] = measure(context, variant)?;
            }
            context.sample(before.until_now(), &round)?;
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        study(&record.samples(self.name()), record.run.seed)
    }
}

fn measure(context: &mut Context, variant: usize) -> anyhow::Result<[f64; CALLS.len()]> {
    let file = context.file_in_memory(4096)?;
    let program = context.program_path("trapped")?;
    let mut command = if variant == 2 {
        let bonsai = context.library.with_file_name("bonsai");
        anyhow::ensure!(bonsai.is_file(), "{}: is not there", bonsai.display());
        let mut command = Command::new(bonsai);
        command.args(["run", "--unpatched", "trap"]);
        command.args(LIMITS.iter().flat_map(|limit| ["--limit", limit]));
        command.arg("--").arg(program);
        command
    } else {
        Command::new(program)
    };
    let how = if variant == 1 { "floor" } else { "bare" };
    let mut running = Running::start(command.arg(how).arg(&file))?;
    let patience = Duration::from_secs(20);
    let line = running.line(patience)?;
    running.finish(patience)?;
    Ok(serde_json::from_str(&line)?)
}

fn study(samples: &[Sample<Round>], seed: u64) -> Section {
    let mut section = Section::default();
    let doubt = doubt_of(samples.iter().map(|sample| &sample.conditions));
    section.text(format!(
        "ns per call, {} rounds: bare; trapped and made at once (the floor of the mechanism); \
         trapped and decided by Bonsai, under limits that do not bind.",
        samples.len()
    ));
    let mut table = Table::new(&[
        "call",
        "bare",
        "floor",
        "decided: more",
        "decided / floor",
        "doubt",
    ]);
    for (i, (name, promised)) in CALLS.iter().enumerate() {
        let pairs = |a: usize, b: usize| -> Vec<(f64, f64)> {
            let rounds = samples.iter().map(|sample| sample.data.0);
            rounds.map(|round| (round[a][i], round[b][i])).collect()
        };
        let (Some(floor), Some(decided)) = (
            Pairing::of(&pairs(0, 1), seed),
            Pairing::of(&pairs(1, 2), seed),
        ) else {
            continue;
        };
        table.row(vec![
            (*name).to_owned(),
            with_interval(&floor.base, 0),
            with_interval(&decided.base, 0),
            signed_with_interval(&decided.difference, 0),
            with_interval(&decided.ratio, 2),
            doubt.clone().unwrap_or_default(),
        ]);
        if *promised {
            section.promise(
                format!("{name}, over the floor"),
                format!("{MOST}"),
                with_interval(&decided.ratio, 2),
                Verdict::at_most(&decided.ratio, MOST, doubt.as_ref()),
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
    fn what_is_promised_is_judged_by_the_floor() {
        let rounds = (0..20).map(|i| {
            let i = f64::from(i);
            Sample {
                conditions: Conditions::default(),
                data: Round([
                    [200.0 + i; 4],
                    [5000.0 + i; 4],
                    [5500.0 + i, 7000.0 + i, 5100.0 + i, 9000.0],
                ]),
            }
        });
        let section = study(&rounds.collect::<Vec<_>>(), 1);
        let found: Vec<_> = section
            .promises()
            .iter()
            .map(|p| p.verdict == Verdict::Kept)
            .collect();
        assert_eq!(found, [true, false, true]);
    }
}
