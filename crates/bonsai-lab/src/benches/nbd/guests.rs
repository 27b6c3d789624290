//! Four Debian guests that boot and work, from `qemu-nbd` and from the block server: what the disk of the host
//! has to read.
//!
//! All four at once, in QEMU without KVM, with 160 MB each and no cache of the host's but the servers'. Each
//! boots, compares all files of its packages with their checksums, writes, and reads that back, twice. Servers
//! are counted by what the kernel had read for them (`read_bytes` of `/proc/PID/io`).

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::fs::{Advice, fadvise};
use serde::{Deserialize, Serialize};

use crate::benches::Benchmark;
use crate::cage::Cage;
use crate::child::Running;
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::study::{Pairing, with_interval};

/// The benchmark "nbd-guests".
#[derive(Debug)]
pub(crate) struct NbdGuests;

/// Three of one release, two with the same service: `tests/guests/images.sh`.
const NAMES: [&str; 4] = ["web", "dev", "mail", "next"];

/// Memory of all servers together. The four have 1 GB on their disks, of which 590 MB are different.
const MEMORY: [Option<u64>; 2] = [Some(512 << 20), None];

/// What the disk may have to read, as a part of what it reads for `qemu-nbd`.
const MOST: f64 = 0.5;

const WORDS: [&str; 2] = ["work.rounds=2", "work.write=8"];

/// How long four guests may take: a minute on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(900);

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// One `qemu-nbd` for each guest.
    QemuNbd,
    /// `bonsai drive serve --group`, which knows nothing at the start.
    Learns,
    /// The same with `--scan`.
    Scanned,
}

const KINDS: [Kind; 3] = [Kind::QemuNbd, Kind::Learns, Kind::Scanned];

/// One turn of one kind.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Turn {
    kind: Kind,
    /// Read from the disk for guests.
    disk_bytes: u64,
    /// Read from the disk before the first guest was there.
    before_bytes: u64,
    /// From the first guest's start to the last one's end.
    seconds: f64,
    /// Files whose checksums were right.
    files: u64,
    /// What the server told of its exports in the end.
    status: serde_json::Value,
}

/// One turn of each, in the order of measurement.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Round {
    memory: Option<u64>,
    turns: Vec<Turn>,
}

/// Where things are.
struct Paths {
    /// The scripts.
    scripts: PathBuf,
    /// The kernel, and disks in `disks/`.
    made: PathBuf,
    /// What is served: on the same disk.
    work: tempfile::TempDir,
}

impl Benchmark for NbdGuests {
    fn name(&self) -> &'static str {
        "nbd-guests"
    }

    fn about(&self) -> &'static str {
        "what the disk reads for four guests that boot and work, beside qemu-nbd (15 minutes, root)"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        for program in ["qemu-nbd", "qemu-system-x86_64", "busybox", "mmdebstrap"] {
            let there = Command::new(program).arg("--help").output();
            if there.is_err() {
                return context.skip(
                    "all",
                    format!("{program} is not installed (make deps-guests)"),
                );
            }
        }
        let paths = prepare(context)?;
        for name in NAMES {
            let disk = paths.original(name);
            if !disk.exists() {
                return context.skip("all", format!("{} could not be made", disk.display()));
            }
        }
        for memory in MEMORY {
            let what = describe(memory);
            if !context.is_wanted(&what) {
                continue;
            }
            for round in 0..context.effort.of(2, 3, 5) {
                let before = Moment::now();
                let mut order = KINDS;
                context.shuffle(&mut order);
                let mut turns = Vec::new();
                for kind in order {
                    context.progress(&format!("{what}, round {}: {kind:?}", round + 1));
                    let cage = memory.map(Cage::new).transpose();
                    let cage = match cage {
                        Ok(cage) => cage,
                        Err(error) => return context.skip(what, format!("{error:#}")),
                    };
                    turns.push(turn(context, &paths, kind, cage.as_ref())?);
                }
                context.sample(before.until_now(), &Round { memory, turns })?;
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

fn describe(memory: Option<u64>) -> String {
    match memory {
        Some(bytes) => format!("{} MiB for the servers", bytes >> 20),
        None => "all of the machine's memory".to_owned(),
    }
}

/// Makes the kernel and the disks, where they are not there yet.
fn prepare(context: &Context) -> anyhow::Result<Paths> {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let made = target
        .map_or_else(|| tree.join("target"), PathBuf::from)
        .join("guests");
    let scripts = tree.join("tests/guests");
    context.progress("a kernel and four disks are made if they are not there yet: five minutes");
    for (script, folder) in [
        ("kernel.sh", made.clone()),
        ("images.sh", made.join("disks")),
    ] {
        let done = Command::new("bash")
            .arg(scripts.join(script))
            .arg(folder)
            .status();
        done.with_context(|| format!("{script}: cannot be run"))?;
    }
    fs::create_dir_all(&made)?;
    let work = tempfile::Builder::new().prefix("bench-").tempdir_in(&made);
    let work = work.with_context(|| format!("{}: cannot be written to", made.display()))?;
    Ok(Paths {
        scripts,
        made,
        work,
    })
}

impl Paths {
    fn original(&self, name: &str) -> PathBuf {
        self.made.join("disks").join(format!("{name}.raw"))
    }

    fn disk(&self, name: &str) -> PathBuf {
        self.work.path().join(format!("{name}.raw"))
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.work.path().join(format!("{name}.sock"))
    }

    /// Disks as they were made, of which the page cache has nothing.
    fn renew(&self) -> anyhow::Result<()> {
        for name in NAMES {
            let copied = Command::new("cp")
                .arg("--sparse=always")
                .args([self.original(name), self.disk(name)])
                .status()?;
            anyhow::ensure!(copied.success(), "{name}: no room for a copy of the disk");
            let disk = File::open(self.disk(name))?;
            disk.sync_all()?;
            fadvise(&disk, 0, None, Advice::DontNeed)?;
        }
        Ok(())
    }
}

fn turn(context: &Context, paths: &Paths, kind: Kind, cage: Option<&Cage>) -> anyhow::Result<Turn> {
    paths.renew()?;
    let servers = serve(context, paths, kind, cage)?;
    let before_bytes = disk_bytes(&servers)?;
    let start = Instant::now();
    let files = boot(paths, kind)?;
    let seconds = start.elapsed().as_secs_f64();
    let disk_bytes = disk_bytes(&servers)? - before_bytes;
    anyhow::ensure!(
        disk_bytes > 0,
        "{}: nothing was read from a disk: is it in memory?",
        paths.made.display()
    );
    let status = match kind {
        Kind::QemuNbd => serde_json::Value::Null,
        Kind::Learns | Kind::Scanned => {
            let mut status = Command::new(context.bonsai()?);
            status.args(["drive", "status", "--json"]);
            let output = status.env("BONSAI_RUNTIME_DIR", runtime(paths)).output()?;
            serde_json::from_slice(&output.stdout).context("no status")?
        }
    };
    for server in servers {
        server.end(Duration::from_secs(60))?;
    }
    for name in NAMES {
        let checked = Command::new("e2fsck")
            .arg("-fn")
            .arg(paths.disk(name))
            .output()?;
        anyhow::ensure!(
            checked.status.success(),
            "{kind:?}: {name} is not whole: {}",
            String::from_utf8_lossy(&checked.stdout)
        );
    }
    Ok(Turn {
        kind,
        disk_bytes,
        before_bytes,
        seconds,
        files,
        status,
    })
}

fn runtime(paths: &Paths) -> PathBuf {
    paths.work.path().join("runtime")
}

/// Starts what serves, and waits until it listens.
fn serve(
    context: &Context,
    paths: &Paths,
    kind: Kind,
    cage: Option<&Cage>,
) -> anyhow::Result<Vec<Running>> {
    let mut commands = Vec::new();
    let mut sockets = Vec::new();
    match kind {
        Kind::QemuNbd => {
            for name in NAMES {
                let mut command = Command::new("qemu-nbd");
                command.args([
                    "--format=raw",
                    "--persistent",
                    "--shared=4",
                    "--export-name",
                ]);
                command.arg(name).arg("--socket").arg(paths.socket(name));
                command.arg(paths.disk(name));
                commands.push(command);
                sockets.push(paths.socket(name));
            }
        }
        Kind::Learns | Kind::Scanned => {
            let mut command = Command::new(context.bonsai()?);
            command.args(["drive", "serve", "--group", "lab", "--socket"]);
            command
                .arg(paths.socket("all"))
                .args(NAMES.map(|name| paths.disk(name)));
            command.args((kind == Kind::Scanned).then_some("--scan"));
            command.env("BONSAI_RUNTIME_DIR", runtime(paths));
            commands.push(command);
            sockets.push(paths.socket("all"));
        }
    }
    let mut servers = Vec::new();
    for mut command in commands {
        if let Some(cage) = cage {
            command = cage.holds(&command);
        }
        servers.push(Running::start(&mut command)?);
    }
    let deadline = Instant::now() + PATIENCE;
    for socket in sockets {
        while !answers(&socket) {
            anyhow::ensure!(Instant::now() < deadline, "{kind:?} does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    if kind == Kind::Scanned {
        for server in &mut servers {
            while !server.line(PATIENCE)?.contains("all images are scanned") {}
        }
    }
    Ok(servers)
}

/// Whether a server lists its exports there.
fn answers(socket: &Path) -> bool {
    let mut list = Command::new("timeout");
    list.args(["5", "qemu-nbd", "--list", "--socket"])
        .arg(socket);
    socket.exists() && list.output().is_ok_and(|output| output.status.success())
}

/// Boots all guests, and waits until all have switched themselves off. Says how many files were right.
fn boot(paths: &Paths, kind: Kind) -> anyhow::Result<u64> {
    let mut guests = Vec::new();
    for name in NAMES {
        let folder = paths.work.path().join(format!("guest-{name}"));
        fs::create_dir_all(&folder)?;
        let socket = match kind {
            Kind::QemuNbd => paths.socket(name),
            Kind::Learns | Kind::Scanned => paths.socket("all"),
        };
        let mut command = Command::new("bash");
        command
            .arg(paths.scripts.join("boot-disk.sh"))
            .arg(name)
            .arg(&folder)
            .arg(format!("nbd+unix:///{name}?socket={}", socket.display()))
            .args(WORDS)
            .env("BONSAI_GUEST_KERNEL", &paths.made);
        guests.push((name, folder, Running::start(&mut command)?));
    }
    let mut files = 0;
    let deadline = Instant::now() + PATIENCE;
    for (name, folder, guest) in guests {
        let left = deadline.saturating_duration_since(Instant::now());
        let console = folder.join("console");
        guest
            .finish(left)
            .with_context(|| format!("{name}: {}", tail(&console)))?;
        files += right(&console).with_context(|| format!("{name}: {}", tail(&console)))?;
    }
    Ok(files)
}

/// How many files were compared, of all lines `guest: packages N files 0 bad`.
fn right(console: &Path) -> Option<u64> {
    let text = String::from_utf8_lossy(&fs::read(console).ok()?).into_owned();
    text.contains("guest: done").then_some(())?;
    let mut files = 0;
    for line in text.lines().filter(|line| line.ends_with(" bad")) {
        let words: Vec<_> = line.split(' ').collect();
        let [.., count, "files", "0", "bad"] = words[..] else {
            return None;
        };
        files += count.parse::<u64>().ok()?;
    }
    Some(files)
}

fn tail(console: &Path) -> String {
    let text = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

fn disk_bytes(servers: &[Running]) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for server in servers {
        let path = format!("/proc/{}/io", server.pid());
        let io = fs::read_to_string(&path).with_context(|| path.clone())?;
        let read = io
            .lines()
            .find_map(|line| line.strip_prefix("read_bytes: "));
        bytes += read.with_context(|| path.clone())?.parse::<u64>()?;
    }
    Ok(bytes)
}

fn report(samples: &[Sample<Round>], seed: u64) -> Section {
    let mut section = Section::default();
    section.text(
        "Read from the disk for four guests at once, MB; ratios within a round. What a scan read before the first \
         guest came is not part of it.",
    );
    let mut table = Table::new(&[
        "memory",
        "server",
        "disk, MB",
        "ratio",
        "scan, MB",
        "guests, s",
        "doubt",
    ]);
    let mut promises = Vec::new();
    for memory in MEMORY {
        let of: Vec<_> = samples
            .iter()
            .filter(|sample| sample.data.memory == memory)
            .collect();
        let doubt = doubt_of(of.iter().map(|sample| &sample.conditions));
        for kind in KINDS {
            let pair = |sample: &&Sample<Round>| {
                let find = |kind| sample.data.turns.iter().find(|turn| turn.kind == kind);
                Some((find(Kind::QemuNbd)?.clone(), find(kind)?.clone()))
            };
            let both: Vec<_> = of.iter().filter_map(pair).collect();
            let over = |value: fn(&Turn) -> f64| {
                let values: Vec<_> = both.iter().map(|(a, b)| (value(b), value(a))).collect();
                Pairing::of(&values, seed)
            };
            let ratios: Vec<_> = both
                .iter()
                .map(|(base, turn)| (megabytes(base.disk_bytes), megabytes(turn.disk_bytes)))
                .collect();
            let (Some(disk), Some(own)) = (
                Pairing::of(&ratios, seed),
                over(|turn| megabytes(turn.disk_bytes)),
            ) else {
                continue;
            };
            let seconds = over(|turn| turn.seconds);
            let scan = both.first().map_or(0, |(_, turn)| turn.before_bytes);
            table.row(vec![
                describe(memory),
                format!("{kind:?}"),
                with_interval(&own.base, 0),
                with_interval(&disk.ratio, 3),
                format!("{:.0}", megabytes(scan)),
                seconds.map_or_else(String::new, |seconds| with_interval(&seconds.base, 0)),
                doubt.clone().unwrap_or_default(),
            ]);
            if kind == Kind::Scanned && memory.is_some() {
                promises.push((describe(memory), disk.ratio, doubt.clone()));
            }
        }
    }
    section.table(table);
    for (what, ratio, doubt) in promises {
        section.promise(
            format!("disk reads over those of qemu-nbd, {what}, scanned"),
            format!("at most {MOST}"),
            with_interval(&ratio, 3),
            Verdict::at_most(&ratio, MOST, doubt.as_ref()),
        );
    }
    section
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
