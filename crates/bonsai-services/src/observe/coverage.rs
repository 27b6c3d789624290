//! Which processes of a service are covered, how far, and why not further.

use std::path::Path;

use bonsai_calls::CALLS;
use bonsai_host::elf;
use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{Ledger, Numbers, ProcessId, ProcessReport, Reason, coverage, flags};
use serde::Serialize;

use super::mapped::{self, Mapped};
use super::sampler::monotonic_ns;
use crate::confinement;
use crate::harmless;
use crate::service::Service;
use crate::service::members::{Member, variable};

/// A process younger than this may be on its way into the library.
const STARTING_S: f64 = 0.3;

/// Clock ticks of `/proc/PID/stat` per second (`USER_HZ`, the same everywhere).
const TICKS_PER_S: f64 = 100.0;

/// How far the calls of a process are covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Covered {
    /// Exported symbols and libc's own system call sites.
    Patched,
    /// Exported symbols only.
    SymbolsOnly,
    /// Entered, but without an entry in the ledger that says how far.
    Entered,
    /// From outside: all its system calls, whoever makes them.
    Enforced,
    /// By itself: the server of an export counts requests of its clients, and none of its own calls.
    Serves,
}

impl Covered {
    /// In words.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Patched => "patched",
            Self::SymbolsOnly => "symbols only",
            Self::Entered => "entered",
            Self::Enforced => "enforced",
            Self::Serves => "serves: requests of clients",
        }
    }
}

/// A process that the interposer runs in.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessView {
    /// Process id.
    pub pid: u32,
    /// File name of its program.
    pub program: String,
    /// How far it is covered.
    pub covered: Covered,
    /// Why not further.
    pub reason: Option<&'static str>,
    /// Whether it runs under a seccomp filter.
    pub guarded: bool,
    /// Whether it submits through rings or queues, which is charged as it enters.
    pub rings: bool,
    /// Whether it asked for a ring that a kernel thread polls, and enters it by calls.
    pub unpolled: bool,
    /// Whether a kernel thread polls a ring of it: what goes through that is not seen.
    pub polled: bool,
    /// Why calls of its event loops are delayed where they must not block.
    pub loops: Vec<&'static str>,
    /// Bytes that went through rings and queues: they are among `bytes`.
    pub ring_bytes: u64,
    /// What it read through mapped memory.
    pub mapped: Mapped,
    /// System call sites patched.
    pub sites: u32,
    /// System call sites of libraries that could not be patched.
    pub sites_missed: u64,
    /// System calls under limits of which a site could not be patched: they go unlimited there.
    pub holes: Vec<&'static str>,
    /// Whether calls of code that cannot be patched are trapped.
    pub trapping: bool,
    /// Whether there is code that could be neither patched nor put under the trap.
    pub untrapped: bool,
    /// Calls that came by a trap.
    pub trapped: u64,
    /// Threads.
    pub threads: u32,
    /// Threads that have counters of their own.
    pub threads_counted: usize,
    /// What entering it took, ns.
    pub attach_cost_ns: u64,
    /// Calls counted.
    pub calls: u64,
    /// Bytes counted.
    pub bytes: u64,
}

/// A process that the interposer does not run in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UncoveredView {
    /// Process id; of one that has ended, in the pid namespace that it was in.
    pub pid: u32,
    /// File name of its program.
    pub program: String,
    /// Why.
    pub reason: String,
    /// Whether it has ended meanwhile.
    pub ended: bool,
}

/// What is covered of a service, and what is not.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    pub(super) processes: Vec<ProcessView>,
    pub(super) uncovered: Vec<UncoveredView>,
}

/// The coverage of a service with these members.
pub(super) fn of(service: &Service, ledger: &Ledger, members: Vec<Member>) -> Coverage {
    let mut found = Coverage::default();
    let living: Vec<ProcessId> = members.iter().map(|member| member.id).collect();
    let uptime = uptime_s();
    for member in members {
        if member.entered {
            found.processes.push(entered(ledger, &member));
        } else if let Some(reason) = why_not(service, &member, uptime) {
            found.uncovered.push(UncoveredView {
                pid: member.process.pid,
                program: member.program(),
                reason,
                ended: false,
            });
        }
    }
    let ended = entries_uncovered(ledger).filter(|entry| !living.contains(&entry.id));
    found
        .uncovered
        .extend(ended.map(|entry| ended_view(&entry)));
    found
}

/// Processes that ran a program that could not be entered, according to the
/// ledger, all taken as ended.
pub fn ended_uncovered(ledger: &Ledger) -> Vec<UncoveredView> {
    let entries = entries_uncovered(ledger).filter(|entry| !is_coming(entry));
    entries.map(|entry| ended_view(&entry)).collect()
}

fn entries_uncovered(ledger: &Ledger) -> impl Iterator<Item = ProcessReport> {
    let table = ledger.process_table().into_iter();
    table.filter(|entry| entry.coverage & coverage::UNCOVERED != 0 || entry.expected_ns != 0)
}

/// Why nothing of what the process runs is covered.
fn reason(entry: &ProcessReport) -> Reason {
    match entry.expected_ns {
        0 => entry.reason,
        _ => Reason::NotArrived,
    }
}

/// True for a process that lives and has been about to run a program for a moment only.
fn is_coming(entry: &ProcessReport) -> bool {
    let is_new = entry.expected_ns != 0 && !is_late(entry);
    let number = || Numbers::of([entry.id].into_iter()).number(entry.id);
    let lives = |pid: u32| {
        Path::new(&format!("/proc/{pid}/exe"))
            .symlink_metadata()
            .is_ok()
    };
    is_new && number().is_some_and(lives)
}

/// True once the library has had the time to come up.
fn is_late(entry: &ProcessReport) -> bool {
    monotonic_ns().saturating_sub(entry.expected_ns) > EXPECTED_NS
}

fn ended_view(entry: &ProcessReport) -> UncoveredView {
    UncoveredView {
        pid: entry.id.pid,
        reason: reason(entry).about().to_owned(),
        program: harmless(&entry.program),
        ended: true,
    }
}

/// Why event loops are not served, by bits of a process's coverage.
const LOOPS: [(u32, &str); 3] = [
    (
        coverage::LOOPS_UNSEEN,
        "readiness is waited for by calls that are not seen",
    ),
    (
        coverage::LOOPS_SEVERAL,
        "a descriptor is in several epoll sets",
    ),
    (
        coverage::LOOPS_BEYOND,
        "a descriptor is above 65,535, or under more than five limits",
    ),
];

fn entered(ledger: &Ledger, member: &Member) -> ProcessView {
    let pid = member.process.pid;
    let entry = member.entry.as_ref();
    let bit = |bit: u32| entry.is_some_and(|entry| entry.coverage & bit != 0);
    let enforced = ledger.header.flags.load(Ordering::Relaxed) & flags::ENFORCED != 0;
    let covered = match entry {
        _ if enforced => Covered::Enforced,
        _ if member.serves => Covered::Serves,
        None => Covered::Entered,
        Some(_) if bit(coverage::PATCHED) => Covered::Patched,
        Some(_) => Covered::SymbolsOnly,
    };
    let reason = entry
        .map(|entry| entry.reason)
        .filter(|reason| *reason != Reason::None);
    let beside = ledger.beside(Some(member.id));
    let (mut calls, mut bytes) = (0_u64, 0_u64);
    for (c, b) in ledger.process_counts(member.id) {
        // A member can write anything there.
        calls = c.saturating_add(calls);
        bytes = b.saturating_add(bytes);
    }
    ProcessView {
        pid,
        program: member.program(),
        covered,
        reason: reason.map(Reason::about),
        guarded: bit(coverage::GUARDED),
        rings: bit(coverage::RINGS),
        unpolled: bit(coverage::UNPOLLED),
        polled: bit(coverage::POLLED),
        loops: LOOPS
            .iter()
            .filter(|(of, _)| bit(*of))
            .map(|(_, reason)| *reason)
            .collect(),
        ring_bytes: beside.0.saturating_add(beside.1),
        // What a server maps is its own.
        mapped: match member.serves {
            true => Mapped::default(),
            false => mapped::of(ledger, pid, member.id),
        },
        sites: entry.map_or(0, |entry| entry.sites),
        sites_missed: entry.map_or(0, |entry| entry.missed),
        holes: match (entry, covered) {
            (Some(entry), Covered::Patched) if !bit(coverage::TRAPPED) => {
                holes(ledger, entry.unseen)
            }
            _ => Vec::new(),
        },
        trapping: bit(coverage::TRAPPED),
        untrapped: bit(coverage::UNTRAPPED),
        trapped: entry.map_or(0, |entry| entry.trapped),
        threads: member.process.threads,
        threads_counted: ledger.threads_of(member.id),
        attach_cost_ns: entry.map_or(0, |entry| entry.attach_cost_ns),
        calls,
        bytes,
    }
}

/// Names of the limited system calls of which a site could not be replaced.
#[must_use]
pub fn holes(ledger: &Ledger, unseen: [u64; 2]) -> Vec<&'static str> {
    let rows = ledger.limited_of(unseen);
    let mut names: Vec<&str> = rows.map(|call| CALLS[usize::from(call)].name).collect();
    names.dedup();
    names
}

/// Why a process of a service that lives is not covered; `None` where it is, or may still be.
#[must_use]
pub fn why_uncovered(service: &Service, member: &Member) -> Option<String> {
    match member.entered {
        true => None,
        false => why_not(service, member, uptime_s()),
    }
}

/// Time that the library may take to come up in a program, ns.
const EXPECTED_NS: u64 = 1_000_000_000;

/// Reason that keeps the library out of a process that lives, or the ledger from the library, as far as `/proc`
/// says it: the view of the file system, and the limit of memory.
fn missing(service: &Service, member: &Member) -> Option<String> {
    let pid = member.process.pid;
    let root = format!("/proc/{pid}/root");
    let within = |path: &Path| Path::new(&root).join(path.strip_prefix("/").unwrap_or(path));
    let ledger = within(&service.ledger_path());
    if let Err(error) = std::fs::metadata(&ledger)
        && error.kind() == std::io::ErrorKind::NotFound
    {
        return Some(Reason::NoFile.about().to_owned());
    }
    let is_read_only = rustix::fs::statvfs(&ledger)
        .is_ok_and(|of| of.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
    if is_read_only {
        return Some(Reason::ReadOnly.about().to_owned());
    }
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let most = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max address space"))?;
    let most: usize = most.split_ascii_whitespace().next()?.parse().ok()?;
    (most < 4 * bonsai_ledger::TOTAL_LEN).then(|| {
        format!(
            "its address space is limited to {} (ulimit -v): there is no room for the ledger and the library",
            bonsai_units::Bytes(most as u64).human()
        )
    })
}

/// Why a member is not entered; `None` if it may still be.
fn why_not(service: &Service, member: &Member, uptime: Option<f64>) -> Option<String> {
    if let Some(entry) = member
        .entry
        .as_ref()
        .filter(|entry| entry.coverage & coverage::UNCOVERED != 0)
    {
        return Some(entry.reason.about().to_owned());
    }
    if let Some(entry) = member.entry.as_ref().filter(|entry| entry.expected_ns != 0) {
        // Until then it may be on its way.
        let reason = missing(service, member)
            .or_else(|| confinement::of_process(service, member.process.pid))
            .unwrap_or_else(|| Reason::NotArrived.about().to_owned());
        return is_late(entry).then_some(reason);
    }
    let pid = member.process.pid;
    if let Some(other) = member
        .named
        .as_ref()
        .filter(|named| **named != service.ledger_path())
    {
        return Some(format!("belongs to the service {}", service_of(other)));
    }
    match elf::inspect(Path::new(&format!("/proc/{pid}/exe"))) {
        Ok(program) if !program.cover.is_enterable() => Some(program.cover.to_string()),
        Ok(_) => {
            let young = uptime.is_some_and(|now| {
                now - member.process.start_ticks as f64 / TICKS_PER_S < STARTING_S
            });
            let told = variable(pid, "LD_PRELOAD")
                .is_some_and(|value| value.to_string_lossy().contains("/preload.so"));
            match (told, young) {
                (_, true) => None,
                (true, _) => Some(
                    "the loader did not load the library into it: it changed its user, or the \
                     library cannot be opened"
                        .to_owned(),
                ),
                (false, _) => Some("was started without LD_PRELOAD in its environment".to_owned()),
            }
        }
        // It ended meanwhile, or belongs to another user.
        Err(_) => member
            .process
            .exe
            .is_none()
            .then(|| "runs as another user".to_owned()),
    }
}

/// The name of the service whose ledger this is.
fn service_of(ledger: &Path) -> String {
    let folder = ledger.parent().and_then(Path::file_name);
    folder.map_or_else(
        || ledger.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    )
}

/// How long the machine has been up, s.
fn uptime_s() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}
