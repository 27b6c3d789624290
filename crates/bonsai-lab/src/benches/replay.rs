//! What four guests read, through the block server and through nbdkit's file plugin, on the real page cache.
//!
//! The trace is `debian4`; its images hold byte-true contents, by the rule of the simulated disk: the first access of a block
//! says what it held. Reads of what was written meanwhile are left away, so that images stay as they are. Each turn has a
//! server of its own in a memory control group of its own, with the page cache empty of the images, and `bonsai trace replay`
//! as client. Before the rounds, each server has a turn in which the client compares all that it reads; in those that are
//! timed it does not, as that takes it as long as all else. *Disk* is what the server had the disk read (`read_bytes` of `/proc/PID/io`:
//! readahead is counted in), without what `--scan` reads before it listens.
//!
//! Servers read ahead as they do it: nbdkit as the kernel has it (`read_ahead_kb` of the disk), and once not at all.
//!
//! *Merged* are requests as the guests sent them: their recorder wrote a line for each block of 4096 bytes, all with the time
//! of the request. *As recorded*, each block is a request.

mod images;
mod plot;
mod turn;

use bonsai_stats::MedianEstimate;
use serde::{Deserialize, Serialize};

use super::Benchmark;
use crate::cage::Cage;
use crate::child::is_installed;
use crate::context::{Context, Effort};
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::study::{Pairing, estimate, with_interval};
use images::Images;

/// The benchmark "nbd-replay".
#[derive(Debug)]
pub(crate) struct Replay;

/// A server.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Arm {
    Nbdkit,
    /// With `fadvise=random`: nothing is read ahead.
    Exact,
    /// `bonsai drive serve --plain`.
    Plain,
    /// `--group`: learned as it is read.
    Learn,
    /// `--group --scan`: known from the start.
    Scan,
}

const ARMS: [Arm; 5] = [Arm::Nbdkit, Arm::Exact, Arm::Plain, Arm::Learn, Arm::Scan];

impl Arm {
    const fn name(self) -> &'static str {
        match self {
            Self::Nbdkit => "nbdkit",
            Self::Exact => "nbdkit, random",
            Self::Plain => "plain",
            Self::Learn => "learned",
            Self::Scan => "scanned",
        }
    }
}

/// What is replayed, and in how much memory.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Cell {
    /// Of the server's control group, MiB.
    memory: u64,
    merged: bool,
    /// No block has another's content.
    unique: bool,
    /// What the disk gives at most, MB/s; otherwise as much as it can.
    #[serde(default)]
    disk: Option<u64>,
}

const fn cell(memory: u64, merged: bool, unique: bool) -> Cell {
    Cell {
        memory,
        merged,
        unique,
        disk: None,
    }
}

/// The same on a disk that gives so many MB/s.
const fn on(disk: u64, of: Cell) -> Cell {
    Cell {
        disk: Some(disk),
        ..of
    }
}

/// What a solid-state disk behind SATA gives, MB/s. Where a disk is as quick as memory, as behind a host that caches it, wall time is
/// that of copies.
const SATA: u64 = 500;

/// Cells, from which effort on they are measured, and of the scanned arm at most what part of nbdkit's disk and wall, or
/// without duplicates at least what part of its throughput.
const CELLS: [(Cell, Effort, Promised); 8] = [
    (
        on(SATA, cell(512, true, false)),
        Effort::Quick,
        Promised::Most(0.42, 0.55),
    ),
    (
        on(SATA, cell(256, true, false)),
        Effort::Quick,
        Promised::Most(0.62, 0.65),
    ),
    (
        cell(512, true, false),
        Effort::Quick,
        Promised::Most(0.42, 0.55),
    ),
    (
        cell(256, true, false),
        Effort::Quick,
        Promised::Most(0.62, 0.65),
    ),
    (
        cell(512, true, true),
        Effort::Quick,
        Promised::Throughput(0.97),
    ),
    (
        cell(512, false, false),
        Effort::Full,
        Promised::Most(0.42, 0.55),
    ),
    (
        cell(256, false, false),
        Effort::Full,
        Promised::Most(0.62, 0.65),
    ),
    (
        cell(512, false, true),
        Effort::Full,
        Promised::Throughput(0.97),
    ),
];

#[derive(Clone, Copy, Debug)]
enum Promised {
    Most(f64, f64),
    Throughput(f64),
}

impl Cell {
    fn describe(self) -> String {
        let how = if self.merged { "merged" } else { "as recorded" };
        let what = if self.unique { ", no duplicates" } else { "" };
        let disk = self.disk.map(|disk| format!(", disk of {disk} MB/s"));
        format!(
            "{} MiB, {how}{what}{}",
            self.memory,
            disk.unwrap_or_default()
        )
    }
}

/// What one turn came to.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Turn {
    arm: Arm,
    /// Bytes that the disk was read, and before it listened.
    disk: u64,
    scan: u64,
    wall_s: f64,
    requests: u64,
    /// Bytes that clients read.
    read: u64,
    /// As `bonsai drive status` says, of all exports.
    redirected: u64,
    p50_us: f64,
    p99_us: f64,
}

/// One turn of each.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Round {
    cell: Cell,
    /// Records of the trace that are replayed, and requests under way.
    records: u64,
    depth: u32,
    /// In the order of measurement.
    turns: Vec<Turn>,
}

impl Benchmark for Replay {
    fn name(&self) -> &'static str {
        "nbd-replay"
    }

    fn about(&self) -> &'static str {
        "disk and wall time of what four guests read, block server over nbdkit's file plugin, in little memory"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        if !is_installed("nbdkit") {
            return context.skip("all", "nbdkit is not installed");
        }
        let Some(trace) = images::trace() else {
            let why = "no traces/debian4.fiu.zst in BONSAI_DATA or ../shared/data";
            return context.skip("all", why);
        };
        let cage =
            Cage::new(512 << 20).and_then(|cage| cage.disk(context.scratch(), SATA * 1_000_000));
        // Each turn makes one of the same name: this one goes at once.
        if let Some(error) = cage.err() {
            return context.skip("all", format!("no control groups: {error:#}"));
        }
        let rounds = context.effort.of(2, 5, 9);
        let mut rounds_of = Vec::new();
        for unique in [false, true] {
            let cells: Vec<Cell> = CELLS
                .iter()
                .filter(|(cell, from, _)| cell.unique == unique && *from <= context.effort)
                .map(|(cell, _, _)| *cell)
                .filter(|cell| context.is_wanted(&cell.describe()))
                .collect();
            if cells.is_empty() {
                continue;
            }
            context.progress("images");
            // Images of the other kind have gone by then.
            let images = Images::make(context, &trace, unique)?;
            for cell in &cells {
                check(context, &images, *cell)?;
            }
            for _ in 0..rounds {
                for cell in &cells {
                    rounds_of.push(round(context, &images, *cell)?);
                }
            }
        }
        match &context.figure {
            Some(path) => plot::write(path, &rounds_of),
            None => Ok(()),
        }
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

/// The servers that are measured in a cell.
fn arms(cell: Cell, effort: Effort) -> impl Iterator<Item = Arm> {
    ARMS.into_iter().filter(move |arm| match arm {
        // It finds nothing there that reads do not.
        Arm::Scan => !cell.unique,
        Arm::Exact => !cell.unique && effort > Effort::Quick,
        _ => true,
    })
}

/// Sees to it that what each server answers is right.
fn check(context: &mut Context, images: &Images, cell: Cell) -> anyhow::Result<()> {
    for arm in arms(cell, context.effort) {
        context.check()?;
        turn::measure(context, images, cell, arm, true)?;
        context.progress(&format!("{}, {}: checked", cell.describe(), arm.name()));
    }
    Ok(())
}

fn round(context: &mut Context, images: &Images, cell: Cell) -> anyhow::Result<Sample<Round>> {
    let before = Moment::now();
    let mut order: Vec<Arm> = arms(cell, context.effort).collect();
    context.shuffle(&mut order);
    let mut turns = Vec::new();
    for arm in order {
        context.check()?;
        let turn = turn::measure(context, images, cell, arm, false)?;
        context.progress(&format!(
            "{}, {}: {:.0} MB from disk, {:.1} s",
            cell.describe(),
            arm.name(),
            turn.disk as f64 / 1e6,
            turn.wall_s
        ));
        turns.push(turn);
    }
    let round = Round {
        cell,
        records: images.records,
        depth: turn::DEPTH,
        turns,
    };
    let conditions = before.until_now();
    context.sample(conditions.clone(), &round)?;
    Ok(Sample {
        conditions,
        data: round,
    })
}

/// The rounds of a cell.
struct Of<'a>(Vec<&'a Sample<Round>>);

impl<'a> Of<'a> {
    fn new(all: &'a [Sample<Round>], cell: Cell) -> Self {
        Self(
            all.iter()
                .filter(|sample| sample.data.cell == cell)
                .collect(),
        )
    }

    fn values(&self, arm: Arm, value: impl Fn(&Turn) -> f64) -> Vec<f64> {
        let of = |sample: &&Sample<Round>| {
            let turn = sample.data.turns.iter().find(|turn| turn.arm == arm);
            turn.map(&value)
        };
        self.0.iter().filter_map(of).collect()
    }

    fn ratio(&self, arm: Arm, value: impl Fn(&Turn) -> f64, seed: u64) -> Option<MedianEstimate> {
        let bases = self.values(Arm::Nbdkit, &value);
        let pairs: Vec<(f64, f64)> = bases.into_iter().zip(self.values(arm, &value)).collect();
        Pairing::of(&pairs, seed).map(|pairing| pairing.ratio)
    }
}

/// A number of a turn.
type Value = fn(&Turn) -> f64;

fn disk(turn: &Turn) -> f64 {
    turn.disk as f64 / 1e6
}

fn wall(turn: &Turn) -> f64 {
    turn.wall_s
}

fn throughput(turn: &Turn) -> f64 {
    turn.read as f64 / turn.wall_s.max(1e-9)
}

fn report(samples: &[Sample<Round>], seed: u64) -> Section {
    let mut section = Section::default();
    let mut table = Table::new(&[
        "memory, requests",
        "server",
        "disk, MB",
        "of nbdkit's",
        "wall, s",
        "of nbdkit's",
        "answered after p50, p99, us",
        "redirected, MB",
        "scan, MB",
        "doubt",
    ]);
    for (cell, _, promised) in CELLS {
        let of = Of::new(samples, cell);
        let doubt = doubt_of(of.0.iter().map(|sample| &sample.conditions));
        for arm in ARMS {
            let middle = |value: &dyn Fn(&Turn) -> f64| estimate(&of.values(arm, value), seed);
            let (Some(disks), Some(walls)) = (middle(&disk), middle(&wall)) else {
                continue;
            };
            let ratio = |value: fn(&Turn) -> f64| match arm {
                Arm::Nbdkit => String::new(),
                _ => of
                    .ratio(arm, value, seed)
                    .map_or(String::new(), |of| with_interval(&of, 3)),
            };
            let number = |value: &dyn Fn(&Turn) -> f64| {
                middle(value).map_or(String::new(), |of| format!("{:.0}", of.median))
            };
            table.row(vec![
                cell.describe(),
                arm.name().to_owned(),
                with_interval(&disks, 0),
                ratio(disk),
                with_interval(&walls, 1),
                ratio(wall),
                format!(
                    "{}, {}",
                    number(&|turn| turn.p50_us),
                    number(&|turn| turn.p99_us)
                ),
                number(&|turn| turn.redirected as f64 / 1e6),
                number(&|turn| turn.scan as f64 / 1e6),
                doubt.clone().unwrap_or_default(),
            ]);
        }
        promises(&mut section, &of, (cell, promised), (seed, doubt.as_ref()));
    }
    if let Some(first) = samples.first() {
        section.text(format!(
            "Four guests' {} reads of 4096 bytes, {} requests under way. Ratios within a round. Disk is the server's read_bytes, \
             without its scan.",
            first.data.records, first.data.depth
        ));
    }
    section.table(table);
    section
}

fn promises(
    section: &mut Section,
    of: &Of<'_>,
    (cell, promised): (Cell, Promised),
    (seed, doubt): (u64, Option<&String>),
) {
    let what = cell.describe();
    match promised {
        Promised::Most(of_disk, of_wall) => {
            let both = [("disk", disk as Value, of_disk), ("wall", wall, of_wall)];
            for (name, value, most) in both {
                if let Some(ratio) = of.ratio(Arm::Scan, value, seed) {
                    section.promise(
                        format!("{what}, scanned: {name}"),
                        format!("ratio {most}"),
                        with_interval(&ratio, 3),
                        Verdict::at_most(&ratio, most, doubt),
                    );
                }
            }
        }
        Promised::Throughput(least) => {
            for arm in [Arm::Plain, Arm::Learn] {
                if let Some(ratio) = of.ratio(arm, throughput, seed) {
                    section.promise(
                        format!("{what}, {}: bytes/s", arm.name()),
                        format!("ratio {least}"),
                        with_interval(&ratio, 3),
                        Verdict::at_least(&ratio, least, doubt),
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Conditions;

    fn sample(cell: Cell, disks: [u64; 5]) -> Sample<Round> {
        let turns = ARMS.into_iter().zip(disks).map(|(arm, disk)| Turn {
            arm,
            disk: disk * 1_000_000,
            scan: 0,
            wall_s: disk as f64 / 10.0,
            requests: 10,
            read: 1_000_000,
            redirected: 0,
            p50_us: 1.0,
            p99_us: 2.0,
        });
        Sample {
            conditions: Conditions::default(),
            data: Round {
                cell,
                records: 977_551,
                depth: 4,
                turns: turns.collect(),
            },
        }
    }

    #[test]
    fn promises_are_of_the_scanned_arm_within_rounds() {
        let cell = CELLS[0].0;
        let samples = [
            sample(cell, [1000, 900, 1000, 600, 380]),
            sample(cell, [2000, 1800, 2000, 1200, 760]),
        ];
        let text = report(&samples, 1).terminal();
        let promised = format!("{}, scanned: disk", cell.describe());
        assert!(text.contains(&promised), "{text}");
        assert!(text.contains("0.380 [0.380, 0.380]"), "{text}");
        assert!(text.contains("0.600 [0.600, 0.600]"), "{text}");
        assert!(text.contains("977551"), "{text}");
    }
}
