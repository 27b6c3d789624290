//! The block server beside nbdkit's file plugin, by fio's client.
//!
//! Both serve the same image at the same time, and are asked in turns in a random order. *Hot*: the page
//! cache has all of it. *Cold*: it is emptied of the image before each turn.

mod guests;
mod record;
mod scale;
mod zeroes;

pub(super) use guests::NbdGuests;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::fs::{Advice, fadvise};
use serde::{Deserialize, Serialize};

use super::Benchmark;
use super::web::tree_cpu_ms;
use crate::child::{Running, is_installed};
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::study::{Pairing, with_interval};

pub(crate) use record::NbdRecord;
pub(crate) use scale::NbdScale;
pub(crate) use zeroes::NbdZeroes;

/// The benchmark "nbd-hot".
#[derive(Debug)]
pub(crate) struct NbdHot;

const IMAGE_BYTES: u64 = 1 << 30;

/// What is measured, and at least what part of nbdkit's throughput it has to be.
const CELLS: [(&str, u32, bool, f64); 4] = [
    ("4k", 32, false, 1.0),
    ("128k", 8, false, 1.0),
    ("4k", 32, true, 0.97),
    ("128k", 8, true, 0.97),
];

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Nbdkit,
    /// `bonsai drive serve --plain`.
    Plain,
    /// `bonsai drive serve`.
    Drive,
}

const KINDS: [Kind; 3] = [Kind::Nbdkit, Kind::Plain, Kind::Drive];

/// One turn of each.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Round {
    block: String,
    depth: u32,
    cold: bool,
    /// Reads a second, in the order of measurement.
    measured: Vec<(Kind, f64)>,
}

impl Benchmark for NbdHot {
    fn name(&self) -> &'static str {
        "nbd-hot"
    }

    fn about(&self) -> &'static str {
        "throughput of the block server over that of nbdkit's file plugin, hot and cold"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        for program in ["nbdkit", "fio"] {
            if !is_installed(program) {
                return context.skip("all", format!("{program} is not installed"));
            }
        }
        let image = context.scratch().join("image.raw");
        random(&image)?;
        let servers: Vec<_> = KINDS
            .into_iter()
            .map(|kind| serve(context, kind, &image).map(|server| (kind, server)))
            .collect::<Result<_, _>>()?;
        let rounds = context.effort.of(3, 9, 25);
        for (block, depth, cold, _) in CELLS {
            let what = describe(block, depth, cold);
            if !context.is_wanted(&what) {
                continue;
            }
            context.progress(&what);
            for _ in 0..rounds {
                let used = || -> u64 {
                    let pids = servers.iter().map(|(_, (_, server))| server.pid());
                    pids.map(tree_cpu_ms).sum()
                };
                let (before, used_before) = (Moment::now(), used());
                let mut order: Vec<usize> = (0..servers.len()).collect();
                context.shuffle(&mut order);
                let mut measured = Vec::new();
                for index in order {
                    let (kind, (socket, _)) = &servers[index];
                    prepare(&image, cold)?;
                    measured.push((*kind, ask(context.scratch(), socket, (block, depth, cold))?));
                }
                let round = Round {
                    block: block.to_owned(),
                    depth,
                    cold,
                    measured,
                };
                let conditions = before.until_now().less(used().saturating_sub(used_before));
                context.sample(conditions, &round)?;
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

/// The value of one server within a round.
fn of_kind(measured: &[(Kind, f64)], kind: Kind) -> Option<f64> {
    let found = measured.iter().find(|(of, _)| *of == kind);
    found.map(|(_, value)| *value)
}

fn describe(block: &str, depth: u32, cold: bool) -> String {
    let cache = if cold { "cold" } else { "hot" };
    format!("{block}, depth {depth}, {cache}")
}

/// No block of it is another's duplicate.
fn random(path: &Path) -> anyhow::Result<()> {
    let mut source = File::open("/dev/urandom")?.take(IMAGE_BYTES);
    let mut image = File::create(path)?;
    std::io::copy(&mut source, &mut image).context("no room for the image")?;
    image.flush()?;
    Ok(image.sync_all()?)
}

fn serve(context: &Context, kind: Kind, image: &Path) -> anyhow::Result<(PathBuf, Running)> {
    let read_only = if kind == Kind::Nbdkit {
        "-r"
    } else {
        "--read-only"
    };
    serve_as(context, kind, image, &[read_only])
}

fn serve_as(
    context: &Context,
    kind: Kind,
    image: &Path,
    options: &[&str],
) -> anyhow::Result<(PathBuf, Running)> {
    let socket = context.scratch().join(format!("{kind:?}.sock"));
    // Of an earlier server.
    if socket.exists() {
        std::fs::remove_file(&socket)?;
    }
    let mut command = match kind {
        Kind::Nbdkit => {
            let mut command = Command::new("nbdkit");
            command.args(["-f", "-U"]).arg(&socket);
            command.args(options).arg("file").arg(image);
            command
        }
        Kind::Plain | Kind::Drive => {
            let mut command = Command::new(context.bonsai()?);
            command.args(["drive", "serve", "--socket"]).arg(&socket);
            command.args(options).arg(image);
            command.args((kind == Kind::Plain).then_some("--plain"));
            command.env("BONSAI_RUNTIME_DIR", context.scratch().join("runtime"));
            command
        }
    };
    let running = Running::start(&mut command)?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while !socket.exists() {
        anyhow::ensure!(Instant::now() < deadline, "{kind:?} does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok((socket, running))
}

fn prepare(image: &Path, cold: bool) -> anyhow::Result<()> {
    let mut file = File::open(image)?;
    if cold {
        fadvise(&file, 0, None, Advice::DontNeed)?;
    } else {
        std::io::copy(&mut file, &mut std::io::sink())?;
    }
    Ok(())
}

/// Reads a second. Cold reads are of a part of the image, each once.
fn ask(
    folder: &Path,
    socket: &Path,
    (block, depth, cold): (&str, u32, bool),
) -> anyhow::Result<f64> {
    let mut fio = Command::new("fio");
    fio.current_dir(folder)
        .args(["--name=read", "--ioengine=nbd", "--rw=randread"]);
    fio.args([format!("--bs={block}"), format!("--iodepth={depth}")]);
    fio.arg(format!("--uri=nbd+unix:///?socket={}", socket.display()));
    fio.args(["--output-format=json", "--randrepeat=1"]);
    if cold {
        let part = if block == "4k" { "128m" } else { "1g" };
        fio.args([format!("--io_size={part}"), "--size=1g".to_owned()]);
    } else {
        fio.args(["--time_based", "--runtime=2"]);
    }
    let output = fio.output()?;
    anyhow::ensure!(
        output.status.success(),
        "fio: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout)?;
    let start = text.find('{').context("fio gave no JSON")?;
    let value: serde_json::Value = serde_json::from_str(&text[start..])?;
    value["jobs"][0]["read"]["iops"]
        .as_f64()
        .context("fio gave no rate")
}

fn report(samples: &[Sample<Round>], seed: u64) -> Section {
    let mut section = Section::default();
    let mut table = Table::new(&["reads", "nbdkit, reads/s", "plain", "drive", "doubt"]);
    for (block, depth, cold, least) in CELLS {
        let of: Vec<_> = samples
            .iter()
            .filter(|s| (s.data.block.as_str(), s.data.depth, s.data.cold) == (block, depth, cold))
            .collect();
        let pair = |kind| {
            let both = |s: &&Sample<Round>| {
                Some((
                    of_kind(&s.data.measured, Kind::Nbdkit)?,
                    of_kind(&s.data.measured, kind)?,
                ))
            };
            Pairing::of(&of.iter().filter_map(both).collect::<Vec<_>>(), seed)
        };
        let (Some(plain), Some(drive)) = (pair(Kind::Plain), pair(Kind::Drive)) else {
            continue;
        };
        let doubt = doubt_of(of.iter().map(|s| &s.conditions));
        let what = describe(block, depth, cold);
        table.row(vec![
            what.clone(),
            with_interval(&plain.base, 0),
            with_interval(&plain.ratio, 3),
            with_interval(&drive.ratio, 3),
            doubt.clone().unwrap_or_default(),
        ]);
        for (name, pairing) in [("plain", plain), ("drive", drive)] {
            section.promise(
                format!("{what}, {name}"),
                format!("ratio {least}"),
                with_interval(&pairing.ratio, 3),
                Verdict::at_least(&pairing.ratio, least, doubt.as_ref()),
            );
        }
    }
    section.text("An image of 1 GiB without duplicates; ratios of reads/s within a round.");
    section.table(table);
    section
}
