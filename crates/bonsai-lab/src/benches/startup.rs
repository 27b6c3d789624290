//! What starting a program in a service costs, in time and memory.

use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Benchmark;
use super::programs::busybox;
use crate::child::Running;
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::{Doors, Service};
use crate::study::{Pairing, median_or_zero, signed_with_interval, with_interval};

/// The benchmark "startup".
#[derive(Debug)]
pub(crate) struct Startup;

/// At most so much longer, us.
const FIRST_MOST_US: f64 = 40.0;
const BOTH_MOST_US: f64 = 200.0;
const LIBRARY_MOST: u64 = 64 * 1024;
const SERVICE_MOST: u64 = 256 * 1024;
const THREAD_MOST: f64 = 8.0 * 1024.0;

/// Threads whose memory is measured.
const THREADS: u32 = 64;

/// Rounds of one process of the launcher.
const CHUNK: u32 = 50;

/// A line of the record.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Measured {
    /// Rounds of posix_spawn and wait, ns: bare, first door, both doors.
    Starts(Vec<[u64; 3]>),
    /// The same of busybox's `true`, bare and entered in a service that knows it already: a
    /// median of each.
    Entered { bare: f64, entered: f64 },
    /// Memory of a program with so many threads.
    Memory {
        threads: u32,
        /// Private memory of the bare program and in the service, KiB.
        bare_kib: u64,
        service_kib: u64,
        /// Bytes allocated for the ledger before and with the program.
        ledger_before: u64,
        ledger: u64,
    },
}

impl Benchmark for Startup {
    fn name(&self) -> &'static str {
        "startup"
    }

    fn about(&self) -> &'static str {
        "time to start a program, size of the library, memory of services and threads"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let tiny = context.program_path("tiny")?;
        let chunks = context.effort.of(2, 12, 40);
        let services = [
            context.service::<&str>(Doors::First, &[])?,
            context.service::<&str>(Doors::Both, &[])?,
        ];
        for _ in 0..chunks {
            let before = Moment::now();
            let seed = context.random.below(1 << 30);
            let mut command = context.program("spawn")?;
            command
                .args([CHUNK.to_string(), seed.to_string()])
                .arg(&tiny);
            for service in &services {
                command.arg(&context.library).arg(service.ledger_path());
            }
            let text = Running::start(&mut command)?.finish(Duration::from_secs(30))?;
            let rounds = text
                .lines()
                .map(serde_json::from_str)
                .collect::<Result<_, _>>()?;
            context.sample(before.until_now(), &Measured::Starts(rounds))?;
        }
        let (first, both) = (services[0].attached(), services[1].attached());
        anyhow::ensure!(
            first.0 > 0 && both.0 > 0,
            "the programs did not attach to their services"
        );
        anyhow::ensure!(
            both.1 > 0 && first.1 == 0,
            "patched: {} by the first door, {} by both",
            first.1,
            both.1
        );
        entered(context, chunks)?;
        for threads in [1, THREADS + 1] {
            let before = Moment::now();
            let memory = memory(context, threads)?;
            context.sample(before.until_now(), &memory)?;
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        study(
            &record.samples(self.name()),
            record.run.host.library_bytes,
            record.run.seed,
        )
    }
}

/// Starts of a static program, in turns of a launcher that is bare and of one that
/// `bonsai run` has started.
fn entered(context: &mut Context, chunks: usize) -> anyhow::Result<()> {
    let bonsai = context.library.with_file_name("bonsai");
    let busybox = match busybox() {
        Ok(busybox) if bonsai.is_file() => busybox,
        Ok(_) => return context.skip("entered", "bonsai is not there"),
        Err(why) => return context.skip("entered", why),
    };
    let program = context.scratch().join("true");
    std::os::unix::fs::symlink(busybox, &program)?;
    let launcher = context.program_path("spawn")?;
    for _ in 0..chunks {
        let before = Moment::now();
        let mut sides = [0.0; 2];
        let mut order = [0, 1];
        context.shuffle(&mut order);
        for side in order {
            let mut command = Command::new(if side == 0 { &launcher } else { &bonsai });
            if side == 1 {
                command.args(["run", "--limit", "read=100GB/s", "--"]);
                command.arg(&launcher);
            }
            command.args([CHUNK.to_string(), "1".to_owned()]);
            command.arg(&program);
            let text = Running::start(&mut command)?.finish(Duration::from_secs(60))?;
            let starts: Vec<[u64; 1]> = text
                .lines()
                .map(serde_json::from_str)
                .collect::<Result<_, _>>()?;
            let us: Vec<f64> = starts.iter().map(|[ns]| *ns as f64 / 1e3).collect();
            sides[side] = median_or_zero(&us);
        }
        let [bare, entered] = sides;
        context.sample(before.until_now(), &Measured::Entered { bare, entered })?;
    }
    Ok(())
}

/// Bytes allocated for a service's ledger.
fn allocated(service: &Service) -> anyhow::Result<u64> {
    // st_blocks counts 512 bytes, stat(2).
    Ok(std::fs::metadata(service.ledger_path())?.blocks() * 512)
}

#[derive(Deserialize)]
struct Private {
    anonymous_kib: u64,
}

fn memory(context: &mut Context, threads: u32) -> anyhow::Result<Measured> {
    let service = context.service(Doors::Both, &["write=1GB/s"])?;
    let ledger_before = allocated(&service)?;
    let mut private = |service: Option<&Service>| -> anyhow::Result<(Running, u64)> {
        let mut command = context.program("threads")?;
        command.arg(threads.to_string());
        if let Some(service) = service {
            service.enter(&mut command);
        }
        let mut running = Running::start(&mut command)?;
        let answer: Private = serde_json::from_str(&running.line(Duration::from_secs(20))?)?;
        Ok((running, answer.anonymous_kib))
    };
    let (_, bare_kib) = private(None)?;
    let (running, service_kib) = private(Some(&service))?;
    let ledger = allocated(&service)?;
    drop(running);
    Ok(Measured::Memory {
        threads,
        bare_kib,
        service_kib,
        ledger_before,
        ledger,
    })
}

fn study(samples: &[Sample<Measured>], library: u64, seed: u64) -> Section {
    let mut section = Section::default();
    let mut starts: Vec<[u64; 3]> = Vec::new();
    let mut memories = Vec::new();
    let mut entered = Vec::new();
    for sample in samples {
        match &sample.data {
            Measured::Starts(rounds) => starts.extend(rounds),
            Measured::Entered { bare, entered: us } => entered.push((*bare, *us)),
            Measured::Memory {
                threads,
                bare_kib,
                service_kib,
                ledger_before,
                ledger,
            } => {
                memories.push((*threads, *bare_kib, *service_kib, *ledger_before, *ledger));
            }
        }
    }
    let doubt = doubt_of(
        samples
            .iter()
            .filter(|s| matches!(s.data, Measured::Starts(_)))
            .map(|s| &s.conditions),
    );
    section.text(format!(
        "posix_spawn and wait of a program that does nothing, {} rounds, in random order, us.",
        starts.len()
    ));
    let mut table = Table::new(&["variant", "median", "more than bare", "ratio", "doubt"]);
    for (name, index, most) in [
        ("first door", 1, FIRST_MOST_US),
        ("both doors", 2, BOTH_MOST_US),
    ] {
        let us = |ns: u64| ns as f64 / 1e3;
        let rounds: Vec<_> = starts
            .iter()
            .map(|round| (us(round[0]), us(round[index])))
            .collect();
        let Some(pairing) = Pairing::of(&rounds, seed) else {
            continue;
        };
        if index == 1 {
            table.row(vec![
                "bare".to_owned(),
                with_interval(&pairing.base, 1),
                String::new(),
                String::new(),
                String::new(),
            ]);
        }
        let values: Vec<f64> = rounds.iter().map(|(_, variant)| *variant).collect();
        table.row(vec![
            name.to_owned(),
            format!("{:.1}", median_or_zero(&values)),
            signed_with_interval(&pairing.difference, 1),
            with_interval(&pairing.ratio, 3),
            doubt.clone().unwrap_or_default(),
        ]);
        section.promise(
            format!("start, {name}"),
            format!("+{most} us"),
            format!("{} us", signed_with_interval(&pairing.difference, 1)),
            Verdict::at_most(&pairing.difference, most, doubt.as_ref()),
        );
    }
    if let Some(pairing) = Pairing::of(&entered, seed) {
        table.row(vec![
            "busybox, entered".to_owned(),
            format!("{:.1}", pairing.base.median + pairing.difference.median),
            signed_with_interval(&pairing.difference, 1),
            with_interval(&pairing.ratio, 3),
            String::new(),
        ]);
    }
    section.table(table);
    section.promise(
        "size of the library",
        format!("{LIBRARY_MOST} B"),
        format!("{library} B"),
        Verdict::of(library <= LIBRARY_MOST, None),
    );
    study_memory(&mut section, &memories);
    section
}

fn study_memory(section: &mut Section, memories: &[(u32, u64, u64, u64, u64)]) {
    if let Some((_, _, _, before, _)) = memories.first() {
        section.promise(
            "memory of a service",
            format!("{SERVICE_MOST} B"),
            format!("{before} B"),
            Verdict::of(*before <= SERVICE_MOST, None),
        );
    }
    let [
        (few, few_bare, few_service, _, few_ledger),
        (many, many_bare, many_service, _, many_ledger),
    ] = memories
    else {
        return;
    };
    let threads = f64::from(many.saturating_sub(*few).max(1));
    let signed = |kib: u64| kib as f64 * 1024.0;
    let private =
        (signed(*many_service) - signed(*few_service)) - (signed(*many_bare) - signed(*few_bare));
    let shared = (*many_ledger as f64) - (*few_ledger as f64);
    let per_thread = (private + shared) / threads;
    section.text(format!(
        "{many} threads against {few}: {:.0} bytes of private memory and {:.0} of the ledger a thread. \
         A process with one thread has {} KiB of private memory more than bare.",
        private / threads,
        shared / threads,
        few_service.saturating_sub(*few_bare)
    ));
    section.promise(
        "memory of a thread",
        format!("{THREAD_MOST:.0} B"),
        format!("{per_thread:.0} B"),
        Verdict::of(per_thread <= THREAD_MOST, None),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Conditions;

    #[test]
    fn time_and_memory_are_judged() {
        let starts = Measured::Starts(
            (0..40)
                .map(|i| [500_000 + i, 530_000 + i, 750_000 + i])
                .collect(),
        );
        let few = Measured::Memory {
            threads: 1,
            bare_kib: 100,
            service_kib: 300,
            ledger_before: 200_000,
            ledger: 204_096,
        };
        let many = Measured::Memory {
            threads: 65,
            bare_kib: 400,
            service_kib: 856,
            ledger_before: 200_000,
            ledger: 466_240,
        };
        let samples: Vec<_> = [starts, few, many]
            .into_iter()
            .map(|data| Sample {
                conditions: Conditions::default(),
                data,
            })
            .collect();
        let section = study(&samples, 65_537, 1);
        let found: Vec<_> = section
            .promises()
            .iter()
            .map(|p| (p.what.as_str(), p.verdict == Verdict::Kept))
            .collect();
        assert_eq!(
            found,
            [
                ("start, first door", true),
                ("start, both doors", false),
                ("size of the library", false),
                ("memory of a service", true),
                // 256 KiB of private memory and of the ledger for 64 threads.
                ("memory of a thread", true),
            ]
        );
        assert_eq!(section.promises()[4].measured, "8192 B");
    }
}
