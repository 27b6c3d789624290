//! What a call costs that a supervisor is asked about: by its mechanism itself, and by
//! Bonsai's decision.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bonsai_ledger::Ledger;
use bonsai_supervisor::enforce::{Enforcer, do_the_least, let_all_go};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde::{Deserialize, Serialize};

use super::Benchmark;
use crate::child::Running;
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::set_limits;
use crate::study::{Pairing, signed_with_interval, with_interval};

/// The benchmark "enforced".
#[derive(Debug)]
pub(crate) struct EnforcedCost;

/// Of the floor of its mechanism, a decision costs at most so many times as much.
const MOST: f64 = 1.3;

/// getppid, pread64, write, writev; and the descriptors of their data.
const ASKED: &str = "110,17,1,20";

/// What is measured, and the least that its mechanism has to do.
const CALLS: [(&str, &str); 4] = [
    ("getppid", "let go"),
    ("pread64, 4 KiB, cached", "let go"),
    (
        "write, 1 B, by the kind of its descriptor",
        "looked at, let go",
    ),
    ("writev, 2 B, made by the supervisor", "copied, made"),
];

/// They do not bind.
const LIMITS: [&str; 3] = ["getppid=100000000/s", "read=100GB/s", "write=100GB/s"];

/// Who answers.
const BARE: usize = 0;
const LET_GO: usize = 1;
const LEAST: usize = 2;
const DECIDED: usize = 3;

/// ns per call in one round: bare, asked and let go, with the least that the mechanism
/// does, and decided.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Round([[f64; CALLS.len()]; 4]);

impl Benchmark for EnforcedCost {
    fn name(&self) -> &'static str {
        "enforced"
    }

    fn about(&self) -> &'static str {
        "ns per call in enforced mode, against the least that each mechanism takes"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        if let Err(error) = bonsai_supervisor::enforce::probe() {
            return context.skip("all", format!("no seccomp listener: {error}"));
        }
        for _ in 0..context.effort.of(8, 40, 200) {
            let before = Moment::now();
            let mut order = [BARE, LET_GO, LEAST, DECIDED];
            context.shuffle(&mut order);
            let mut round = Round([[0.0; CALLS.len()]; 4]);
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
    let mut command = context.program("asked")?;
    command
        .arg(if variant == BARE { "bare" } else { ASKED })
        .arg(&file);
    let mut running = Running::start(&mut command)?;
    let patience = Duration::from_secs(20);
    if variant != BARE {
        let number: i32 = running.line(patience)?.trim().parse()?;
        let listener = listener(running.pid(), number)?;
        if variant == LET_GO {
            std::thread::spawn(move || let_all_go(listener));
        } else if variant == LEAST {
            std::thread::spawn(move || do_the_least(listener));
        } else {
            let ledger = Ledger::create_unnamed("bench")?;
            set_limits(&ledger, &LIMITS)?;
            // It ends with the program.
            Enforcer::start(Arc::new(ledger), listener)?;
        }
    }
    let line = running.line(patience)?;
    running.finish(patience)?;
    Ok(serde_json::from_str(&line)?)
}

/// The listener that a program is about to make.
fn listener(pid: u32, number: i32) -> anyhow::Result<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid)?).context("no process")?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let start = Instant::now();
    loop {
        match pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) {
            Ok(listener) => return Ok(listener),
            Err(error) if start.elapsed() > Duration::from_secs(5) => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_micros(100)),
        }
    }
}

fn study(samples: &[Sample<Round>], seed: u64) -> Section {
    let mut section = Section::default();
    let doubt = doubt_of(samples.iter().map(|sample| &sample.conditions));
    section.text(format!(
        "ns per call, {} rounds: bare; asked about and let go at once; the floor, a supervisor \
         that decides nothing and does the least that the mechanism takes; asked about and \
         decided by Bonsai, under limits that do not bind.",
        samples.len()
    ));
    let mut table = Table::new(&[
        "call",
        "bare",
        "let go",
        "mechanism",
        "floor",
        "decided: more",
        "decided / floor",
        "decided / let go",
        "doubt",
    ]);
    for (i, (name, mechanism)) in CALLS.iter().enumerate() {
        let pair = |a: usize, b: usize| {
            let rounds = samples.iter().map(|sample| sample.data.0);
            let pairs: Vec<(f64, f64)> = rounds.map(|round| (round[a][i], round[b][i])).collect();
            Pairing::of(&pairs, seed)
        };
        let (Some(bare), Some(let_go), Some(floor)) = (
            pair(BARE, LET_GO),
            pair(LET_GO, DECIDED),
            pair(LEAST, DECIDED),
        ) else {
            continue;
        };
        table.row(vec![
            (*name).to_owned(),
            with_interval(&bare.base, 0),
            with_interval(&let_go.base, 0),
            (*mechanism).to_owned(),
            with_interval(&floor.base, 0),
            signed_with_interval(&floor.difference, 0),
            with_interval(&floor.ratio, 2),
            with_interval(&let_go.ratio, 2),
            doubt.clone().unwrap_or_default(),
        ]);
        section.promise(
            format!("{name}, over the floor of its mechanism"),
            format!("{MOST}"),
            with_interval(&floor.ratio, 2),
            Verdict::at_most(&floor.ratio, MOST, doubt.as_ref()),
        );
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
                    [5000.0 + i, 5000.0 + i, 6000.0, 9000.0],
                    [5500.0 + i, 7000.0 + i, 9000.0, 9000.0 + i],
                ]),
            }
        });
        let section = study(&rounds.collect::<Vec<_>>(), 1);
        let found: Vec<_> = section
            .promises()
            .iter()
            .map(|p| p.verdict == Verdict::Kept)
            .collect();
        assert_eq!(found, [true, false, false, true]);
    }
}
