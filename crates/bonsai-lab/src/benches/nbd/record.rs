//! What a recording costs the clients of the block server.
//!
//! One server, asked in turns in a random order: while nothing is recorded, while a recording has seen nothing yet, so that
//! it makes a fingerprint for nearly each read, and while it knows what all blocks hold, as it does
//! once it has gone on for a while.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::{Kind, ask, prepare, random, serve};
use crate::benches::Benchmark;
use crate::benches::web::tree_cpu_ms;
use crate::child::{Running, is_installed};
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::study::{Pairing, with_interval};

/// The benchmark "nbd-record".
#[derive(Debug)]
pub(crate) struct NbdRecord;

const CELLS: [(&str, u32); 2] = [("4k", 32), ("128k", 8)];
/// Of the throughput, what has to be left.
const LEAST: f64 = 0.9;

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Off,
    /// Nothing is known of any block.
    First,
    /// All blocks are known.
    Known,
}

const MODES: [Mode; 3] = [Mode::Off, Mode::First, Mode::Known];

/// One turn of each.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Round {
    block: String,
    depth: u32,
    /// Reads a second, and how many of all that were recorded were lost, in the order of measurement.
    measured: Vec<(Mode, f64, Recorded)>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
struct Recorded {
    requests: u64,
    lost: u64,
}

impl Benchmark for NbdRecord {
    fn name(&self) -> &'static str {
        "nbd-record"
    }

    fn about(&self) -> &'static str {
        "throughput of the block server while it is recorded, over that while it is not"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        if !is_installed("fio") {
            return context.skip("all", "fio is not installed".to_owned());
        }
        let image = context.scratch().join("image.raw");
        random(&image)?;
        let (socket, server) = serve(context, Kind::Drive, &image)?;
        prepare(&image, false)?;
        for (block, depth) in CELLS {
            let what = describe(block, depth);
            if !context.is_wanted(&what) {
                continue;
            }
            context.progress(&what);
            for _ in 0..context.effort.of(3, 15, 25) {
                let (before, used_before) = (Moment::now(), tree_cpu_ms(server.pid()));
                let mut order = MODES;
                context.shuffle(&mut order);
                let mut measured = Vec::new();
                for mode in order {
                    let recorder = match mode {
                        Mode::Off => None,
                        Mode::First | Mode::Known => Some(begin(context)?),
                    };
                    if mode == Mode::Known {
                        go_through(context.scratch(), &socket)?;
                    }
                    let rate = ask(context.scratch(), &socket, (block, depth, false))?;
                    let recorded = status(context)?.unwrap_or_default();
                    drop(recorder);
                    measured.push((mode, rate, recorded));
                }
                let round = Round {
                    block: block.to_owned(),
                    depth,
                    measured,
                };
                let used = tree_cpu_ms(server.pid()).saturating_sub(used_before);
                context.sample(before.until_now().less(used), &round)?;
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

fn describe(block: &str, depth: u32) -> String {
    format!("{block}, depth {depth}, hot")
}

fn bonsai(context: &Context, args: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(context.bonsai()?);
    command.args(args);
    command.env("BONSAI_RUNTIME_DIR", context.scratch().join("runtime"));
    Ok(command)
}

/// Begins a recording.
fn begin(context: &Context) -> anyhow::Result<Running> {
    let deadline = Instant::now() + Duration::from_secs(10);
    // The last one may not have ended yet.
    while status(context)?.is_some() {
        anyhow::ensure!(Instant::now() < deadline, "a recording does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    let file = context.scratch().join("live.btr");
    match std::fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut command = bonsai(context, &["trace", "record", "--nbd", "image", "-o"])?;
    let running = Running::start_silent(command.arg(&file))?;
    while status(context)?.is_none() {
        anyhow::ensure!(Instant::now() < deadline, "no recording begins");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(running)
}

/// What is recorded now.
fn status(context: &Context) -> anyhow::Result<Option<Recorded>> {
    let output = bonsai(context, &["drive", "status", "--json"])?.output()?;
    let said: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let of = &said["servers"][0]["exports"][0]["recording"];
    Ok(serde_json::from_value(of.clone())?)
}

/// Reads each block once.
fn go_through(folder: &Path, socket: &Path) -> anyhow::Result<()> {
    let mut fio = Command::new("fio");
    fio.current_dir(folder)
        .args(["--name=all", "--ioengine=nbd", "--rw=read", "--bs=128k"]);
    // Slow enough for the recorder: whoever is too quick leaves blocks that are not known.
    fio.args(["--size=1g", "--iodepth=4", "--rate=400m"]);
    fio.arg(format!("--uri=nbd+unix:///?socket={}", socket.display()));
    let output = fio.output().context("fio")?;
    anyhow::ensure!(
        output.status.success(),
        "fio: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

fn report(samples: &[Sample<Round>], seed: u64) -> Section {
    let mut section = Section::default();
    let mut table = Table::new(&[
        "reads",
        "not recorded, reads/s",
        "recorded, all known",
        "recorded, nothing known",
        "lost, %",
        "doubt",
    ]);
    for (block, depth) in CELLS {
        let of: Vec<_> = samples
            .iter()
            .filter(|s| (s.data.block.as_str(), s.data.depth) == (block, depth))
            .collect();
        let find = |round: &Round, mode| {
            let found = round.measured.iter().find(|(of, ..)| *of == mode);
            found.map(|(_, rate, _)| *rate)
        };
        let pair = |mode| {
            let both = |s: &&Sample<Round>| Some((find(&s.data, Mode::Off)?, find(&s.data, mode)?));
            Pairing::of(&of.iter().filter_map(both).collect::<Vec<_>>(), seed)
        };
        let (Some(known), Some(first)) = (pair(Mode::Known), pair(Mode::First)) else {
            continue;
        };
        let all = of.iter().flat_map(|s| &s.data.measured);
        let (lost, noted) = all.fold((0, 0), |(lost, noted), (_, _, of)| {
            (lost + of.lost, noted + of.requests)
        });
        let doubt = doubt_of(of.iter().map(|s| &s.conditions));
        let what = describe(block, depth);
        table.row(vec![
            what.clone(),
            with_interval(&known.base, 0),
            with_interval(&known.ratio, 3),
            with_interval(&first.ratio, 3),
            format!("{:.2}", lost as f64 * 100.0 / (lost + noted).max(1) as f64),
            doubt.clone().unwrap_or_default(),
        ]);
        section.promise(
            what,
            format!("ratio {LEAST}"),
            with_interval(&known.ratio, 3),
            Verdict::at_least(&known.ratio, LEAST, doubt.as_ref()),
        );
    }
    section.text(
        "An image of 1 GiB without duplicates; ratios of reads/s within a round. Clients, server and recorder share the machine.",
    );
    section.table(table);
    section
}
