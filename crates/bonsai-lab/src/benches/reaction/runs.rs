//! The runs: real services below a real daemon, which note what they have written when.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::super::notes::{self, Notes, at, lag, pauses, together, until_full};
use super::{CAPACITY, GUARANTEE, Measured, Run, Way};
use crate::child::Running;
use crate::context::Context;
use crate::daemon::Daemon;
use crate::service::monotonic_ns;

const MS: u64 = 1_000_000;
/// The bytes of a call: a packet.
const SIZE: &str = "1448";
/// The service that comes and goes does so this often, ms: together no multiple of a period, so
/// that each time is another in it.
const ON_MS: u64 = 400;
const OFF_MS: u64 = 383;
/// How long a return, or what is left, is looked at; less than a pause.
const LOOK: u64 = 350 * MS;
/// A greedy service under a limit goes in steps of 4 ms.
const WINDOW: u64 = 20 * MS;
/// The start of a service, until all is as it stays.
const SETTLING: u64 = 1_000 * MS;
/// The four of the paper, and the ceilings of three of them in tenths of what there is.
const GREEDY: [&str; 4] = ["a", "b", "c", "d"];
const TENTHS: [[u64; 3]; 4] = [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]];

/// Services that write, below a daemon.
struct Members {
    daemon: Daemon,
    running: Vec<(Running, PathBuf)>,
    /// How long they run.
    ms: u64,
}

impl Members {
    /// Starts them, by name and arguments, and waits until the daemon has them.
    fn start(
        context: &mut Context,
        (way, config): (Way, &str),
        members: &[(&str, &[u64])],
        seconds: u64,
    ) -> anyhow::Result<Self> {
        let pool = way == Way::Pool;
        let daemon = Daemon::start(
            context,
            &format!("[daemon]\npool = {pool}\n[capacity]\nwrite = \"{CAPACITY}B/s\"\n{config}"),
        )?;
        let ms = seconds * 1_000;
        let program = context.program_path("member")?;
        let mut running = Vec::new();
        for (name, times) in members {
            let path = context.scratch().join(format!("notes-{name}"));
            fs::write(&path, "")?;
            let words = daemon.service(name);
            let mut command = Command::new(&words[0]);
            command.envs(daemon.environment());
            command.args(&words[1..]).arg(&program).arg(&path);
            command.args([SIZE, &ms.to_string()]);
            command.args(times.iter().map(u64::to_string));
            running.push((Running::start_silent(&mut command)?, path));
        }
        let names: Vec<&str> = members.iter().map(|(name, _)| *name).collect();
        let how = if pool { "pool" } else { "limit" };
        daemon.settled(&names, "write", how)?;
        Ok(Self {
            daemon,
            running,
            ms,
        })
    }

    /// Waits for their end: what each has noted.
    fn finish(self) -> anyhow::Result<Vec<Notes>> {
        let mut all = Vec::new();
        for (program, path) in self.running {
            program.wait_for(Duration::from_millis(self.ms + 20_000))?;
            all.push(notes::read(&path)?);
        }
        Ok(all)
    }
}

/// The time in which all run, and things are as they stay.
fn common(all: &[Notes]) -> (u64, u64) {
    let firsts = all.iter().filter_map(|notes| notes.first());
    let lasts = all.iter().filter_map(|notes| notes.last());
    let from = firsts.map(|note| note.0).max().unwrap_or(0) + SETTLING;
    (from, lasts.map(|note| note.0).min().unwrap_or(0).max(from))
}

fn run(all: &[Notes], (from, to): (u64, u64)) -> Run {
    let windows = |notes: &Notes| -> Vec<u64> {
        let starts = (0..(to - from) / WINDOW).map(|i| from + i * WINDOW);
        starts
            .map(|start| at(notes, start + WINDOW) - at(notes, start))
            .collect()
    };
    Run {
        together: together(all, from, to),
        got: all.iter().map(windows).collect(),
    }
}

/// A guaranteed service that comes and goes beside a greedy one.
pub(super) fn alternating(
    context: &mut Context,
    way: Way,
    seconds: u64,
) -> anyhow::Result<Measured> {
    let config = format!("[services.media.write]\nmin = \"{GUARANTEE}B/s\"\n");
    let members: [(&str, &[u64]); 2] = [("media", &[ON_MS, OFF_MS]), ("bulk", &[])];
    let all = Members::start(context, (way, &config), &members, seconds)?.finish()?;
    let (from, to) = common(&all);
    let [media, bulk] = &all[..] else {
        anyhow::bail!("two members");
    };
    let pauses = pauses(media, OFF_MS).into_iter();
    let pauses: Vec<(u64, u64)> = pauses
        .filter(|(gone, back)| *gone > from && back + LOOK < to)
        .collect();
    anyhow::ensure!(!pauses.is_empty(), "the service has not paused");
    let looks = (WINDOW, LOOK);
    let back = |look: &dyn Fn(u64) -> u64| pauses.iter().map(|(_, back)| look(*back)).collect();
    Ok(Measured::Alternating {
        way,
        return_ns: back(&|back| until_full(media, back, GUARANTEE, looks)),
        behind_ns: back(&|back| lag(media, back, GUARANTEE, LOOK)),
        lent_ns: pauses
            .iter()
            .map(|(gone, _)| until_full(bulk, *gone, CAPACITY, looks))
            .collect(),
        run: run(&all, (from, to)),
    })
}

/// Four greedy services; the ceilings of three go round.
pub(super) fn reallocated(
    context: &mut Context,
    way: Way,
    seconds: u64,
) -> anyhow::Result<Measured> {
    let ceiling = |tenths: u64| format!("{}B/s", CAPACITY * tenths / 10);
    let config: String = GREEDY
        .iter()
        .zip(TENTHS[0])
        .map(|(name, tenths)| format!("[services.{name}.write]\nmax = \"{}\"\n", ceiling(tenths)))
        .collect();
    let members = GREEDY.map(|name| (name, [].as_slice()));
    let members = Members::start(context, (way, &config), &members, seconds)?;
    // The changes are within the time that is measured.
    let step = (seconds * 1_000 * MS - SETTLING) / TENTHS.len() as u64;
    let start = monotonic_ns() + SETTLING;
    for (number, tenths) in (1..).zip(&TENTHS[1..]) {
        let wait = (start + number * step).saturating_sub(monotonic_ns() + SETTLING / 2);
        std::thread::sleep(Duration::from_nanos(wait));
        context.check()?;
        for (name, tenths) in GREEDY.iter().zip(tenths) {
            let change = format!("write={}", ceiling(*tenths));
            members.daemon.say(&["set", name, &change])?;
        }
    }
    let all = members.finish()?;
    let within = common(&all);
    Ok(Measured::Reallocated {
        way,
        run: run(&all, within),
    })
}
