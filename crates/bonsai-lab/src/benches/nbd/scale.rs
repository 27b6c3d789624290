//! Whether redirected reads scale with cores: four images at once whose contents a fifth one leads, which the page cache has.
//!
//! Two servers of the same images, one bound to one core and one to two, asked in turns in a random order. The clients of a turn are
//! bound to the same cores, so that the ratio is that of all the work of a read, on both sides of the socket.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::fs::{Advice, fadvise};
use serde::{Deserialize, Serialize};

use crate::benches::Benchmark;
use crate::benches::web::tree_cpu_ms;
use crate::child::{Running, is_installed};
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::study::{Pairing, with_interval};

/// The benchmark "nbd-scale".
#[derive(Debug)]
pub(crate) struct NbdScale;

/// Those that are read; the last image of the server leads all of their blocks.
const READ: [&str; 4] = ["a", "b", "c", "d"];
const LEADS: &str = "lead";
const IMAGE_BYTES: usize = 128 << 20;
const CELLS: [(&str, u32); 2] = [("4k", 16), ("64k", 4)];
/// Throughput on two cores over that on one, at least.
const LEAST: f64 = 1.6;
/// Of the bytes of a turn, so much has to be redirected, or something else was measured.
const REDIRECTED: f64 = 0.9;

/// One turn of each.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Round {
    block: String,
    depth: u32,
    /// Cores, reads a second of all clients, and the part of their bytes that was redirected, in the order of measurement.
    measured: Vec<(u32, f64, f64)>,
}

impl Benchmark for NbdScale {
    fn name(&self) -> &'static str {
        "nbd-scale"
    }

    fn about(&self) -> &'static str {
        "redirected reads of four images on two cores, over those on one"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        for program in ["fio", "taskset"] {
            if !is_installed(program) {
                return context.skip("all", format!("{program} is not installed"));
            }
        }
        if std::thread::available_parallelism()?.get() < 2 {
            return context.skip("all", "there is one core".to_owned());
        }
        let folder = context.scratch().to_owned();
        make(&folder, context.random.next_u64())?;
        let servers = [serve(context, 1)?, serve(context, 2)?];
        for (block, depth) in CELLS {
            let what = describe(block, depth);
            if !context.is_wanted(&what) {
                continue;
            }
            context.progress(&what);
            for _ in 0..context.effort.of(5, 15, 31) {
                let used =
                    || -> u64 { servers.iter().map(|of| tree_cpu_ms(of.server.pid())).sum() };
                let (before, used_before) = (Moment::now(), used());
                let mut order = [0, 1];
                context.shuffle(&mut order);
                let mut measured = Vec::new();
                for server in order.map(|at| &servers[at]) {
                    prepare(&folder)?;
                    let redirected = server.redirected(context)?;
                    let (rate, bytes) = ask(&folder, server, (block, depth))?;
                    let redirected = server.redirected(context)? - redirected;
                    measured.push((server.cores, rate, redirected / bytes));
                }
                let round = Round {
                    block: block.to_owned(),
                    depth,
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

fn describe(block: &str, depth: u32) -> String {
    format!("{block}, depth {depth}, four images")
}

fn image(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.raw"))
}

/// Five images with the same contents, no two blocks of one alike.
fn make(folder: &Path, seed: u64) -> anyhow::Result<()> {
    let words = (0..IMAGE_BYTES as u64 / 8).map(|word| (word ^ seed).wrapping_mul(0x9e37_79b9));
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    for name in READ.into_iter().chain([LEADS]) {
        let path = image(folder, name);
        std::fs::write(&path, &bytes).with_context(|| format!("{}: no room", path.display()))?;
        File::open(&path)?.sync_all()?;
    }
    Ok(())
}

struct Bound {
    cores: u32,
    server: Running,
    socket: PathBuf,
    runtime: PathBuf,
}

fn on(cores: u32, program: &Path) -> Command {
    let mut command = Command::new("taskset");
    let list = if cores == 1 { "0" } else { "0,1" };
    command.args(["-c", list]).arg(program);
    command
}

fn serve(context: &Context, cores: u32) -> anyhow::Result<Bound> {
    let folder = context.scratch();
    let (socket, runtime) = (
        folder.join(format!("{cores}.sock")),
        folder.join(format!("runtime-{cores}")),
    );
    let mut command = on(cores, &context.bonsai()?);
    command.args(["drive", "serve", "--read-only", "--scan", "--group", "lab"]);
    command.arg("--socket").arg(&socket);
    // What is gone over last leads.
    command.args(
        READ.into_iter()
            .chain([LEADS])
            .map(|name| image(folder, name)),
    );
    command.env("BONSAI_RUNTIME_DIR", &runtime);
    command.env("BONSAI_STATE_DIR", folder.join(format!("state-{cores}")));
    let server = Running::start(&mut command)?;
    let bound = Bound {
        cores,
        server,
        socket,
        runtime,
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while bound
        .status(context)
        .is_none_or(|of| of.known_blocks < IMAGE_BYTES as u64 / 4096 * 5)
    {
        anyhow::ensure!(
            Instant::now() < deadline,
            "the server does not know its images"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(bound)
}

struct Status {
    known_blocks: u64,
    redirected_bytes: f64,
}

impl Bound {
    fn status(&self, context: &Context) -> Option<Status> {
        let mut status = Command::new(context.bonsai().ok()?);
        status.args(["drive", "status", "--json"]);
        let output = status
            .env("BONSAI_RUNTIME_DIR", &self.runtime)
            .output()
            .ok()?;
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        let exports = value["servers"][0]["exports"].as_array()?;
        let redirected = exports
            .iter()
            .map(|of| of["sharing"]["redirected_bytes"].as_f64());
        Some(Status {
            known_blocks: exports.first()?["sharing"]["known_blocks"].as_u64()?,
            redirected_bytes: redirected.map(|of| of.unwrap_or(0.0)).sum(),
        })
    }

    fn redirected(&self, context: &Context) -> anyhow::Result<f64> {
        let status = self.status(context).context("the server has no status")?;
        Ok(status.redirected_bytes)
    }
}

/// The page cache has the leaders, and nothing else.
fn prepare(folder: &Path) -> anyhow::Result<()> {
    for name in READ {
        fadvise(File::open(image(folder, name))?, 0, None, Advice::DontNeed)?;
    }
    let mut leads = File::open(image(folder, LEADS))?;
    std::io::copy(&mut leads, &mut std::io::sink())?;
    Ok(())
}

/// Reads a second of all clients, and their bytes.
fn ask(folder: &Path, server: &Bound, (block, depth): (&str, u32)) -> anyhow::Result<(f64, f64)> {
    let mut fio = on(server.cores, Path::new("fio"));
    fio.current_dir(folder);
    fio.args(["--output-format=json", "--ioengine=nbd", "--rw=randread"]);
    fio.args(["--randrepeat=1", "--time_based", "--runtime=2"]);
    fio.args([format!("--bs={block}"), format!("--iodepth={depth}")]);
    for name in READ {
        fio.arg(format!("--name={name}"));
        fio.arg(format!(
            "--uri=nbd+unix:///{name}?socket={}",
            server.socket.display()
        ));
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
    let jobs = value["jobs"].as_array().context("fio gave no jobs")?;
    let sum = |field: &str| {
        jobs.iter()
            .map(|job| job["read"][field].as_f64().unwrap_or(0.0))
            .sum()
    };
    Ok((sum("iops"), sum("io_bytes")))
}

fn report(samples: &[Sample<Round>], seed: u64) -> Section {
    let mut section = Section::default();
    section.text(
        "Four images of 128 MiB whose blocks a fifth one leads, which is in the page cache; one client each; servers and clients \
         on the same cores. Ratios of reads/s within a round.",
    );
    let mut table = Table::new(&[
        "reads",
        "one core, reads/s",
        "two cores",
        "redirected",
        "doubt",
    ]);
    for (block, depth) in CELLS {
        let of: Vec<_> = samples
            .iter()
            .filter(|s| (s.data.block.as_str(), s.data.depth) == (block, depth))
            .collect();
        let find = |round: &Round, cores| {
            let found = round.measured.iter().find(|(of, ..)| *of == cores);
            found.map(|(_, rate, _)| *rate)
        };
        let both = |s: &&Sample<Round>| Some((find(&s.data, 1)?, find(&s.data, 2)?));
        let pairs: Vec<_> = of.iter().filter_map(both).collect();
        let Some(pairing) = Pairing::of(&pairs, seed) else {
            continue;
        };
        let parts = of
            .iter()
            .flat_map(|s| &s.data.measured)
            .map(|(.., part)| *part);
        let least = parts.fold(f64::INFINITY, f64::min);
        let doubt = doubt_of(of.iter().map(|s| &s.conditions));
        let other = (least < REDIRECTED).then(|| "not all was redirected".to_owned());
        let doubt = other.or(doubt);
        let what = describe(block, depth);
        table.row(vec![
            what.clone(),
            with_interval(&pairing.base, 0),
            with_interval(&pairing.ratio, 3),
            format!("{least:.3}"),
            doubt.clone().unwrap_or_default(),
        ]);
        section.promise(
            what,
            format!("ratio {LEAST}"),
            with_interval(&pairing.ratio, 3),
            Verdict::at_least(&pairing.ratio, LEAST, doubt.as_ref()),
        );
    }
    section.table(table);
    section
}
