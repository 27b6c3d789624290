//! Proof of effect: bytes that the kernel has counted in read-like and write-like calls (`rchar` and `wchar` of `/proc/PID/io`), against
//! those that the ledger has. What was looked for and replaced at the start says nothing of calls that go another way; here they show,
//! whatever the program is and however it came under limits (a loader, the engine, `bonsai attach`, a filter, musl).
//!
//! # Never too much
//! - A process that ends hands its counters to the parent that waits for it, in the end to `bonsai run`, which adopts all orphans. It is
//!   read first, then each parent before its children: a process that ends meanwhile is counted once or not at all. The ledger is read
//!   last. What cannot be read, and processes that no parent waits for, are missing on the kernel's side.
//! - `bonsai run` has its own reads among those of its children; they are those of its threads, and are taken off.
//! - Reads of the kernel and the loader before the library is there, and those of helpers, are in the ledger as overhead, estimated.
//! - Rings and queues are in the ledger and not in the kernel's numbers: they are taken off the ledger's.
//! - A measuring kernel (IMA) reads each file once more on the program's account: nothing is said where it has measured any.
//! - A core dump is written by the process that dies: it counts as written, and not limited.

use std::collections::BTreeMap;
use std::fs;
use std::iter::Sum;
use std::ops::Add;
use std::path::Path;

use bonsai_calls::{CALLS, ProcIo};
use bonsai_host::proc::io;
use bonsai_ledger::{CallTotals, Ledger, ProcessId};
use serde::{Deserialize, Serialize};

use super::waiting::has_crowd;
use crate::service::Service;
use crate::service::members::Member;

/// Unseen bytes up to here may be reads of starts that the estimate leaves out.
const MARGIN: u64 = 256 << 10;

/// Likewise, one part in so many of what the kernel has counted.
const PART: u64 = 50;

/// Bytes read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Moved {
    /// Read.
    pub read: u64,
    /// Written.
    pub written: u64,
}

impl Moved {
    fn with(self, other: Self, each: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            read: each(self.read, other.read),
            written: each(self.written, other.written),
        }
    }

    fn without(self, other: Self) -> Self {
        self.with(other, u64::saturating_sub)
    }
}

impl Add for Moved {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }
}

impl Sum for Moved {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Self::add)
    }
}

/// Counters of a `bonsai run` before it started its program; `bonsai audit` and the proof of effect take them off what the kernel has
/// counted for it since.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Start {
    /// Process id of the `bonsai run`.
    pub pid: u32,
    /// Bytes read, also by children before.
    pub rchar: u64,
    /// Bytes written, likewise.
    pub wchar: u64,
    /// Bytes that it had been handed by children.
    pub handed: Option<Moved>,
}

impl Start {
    /// Counters of this process; `None` where the kernel does not tell.
    #[must_use]
    pub fn now() -> Option<Self> {
        let pid = std::process::id();
        let whole = whole(pid)?;
        Some(Self {
            pid,
            rchar: whole.read,
            wchar: whole.written,
            handed: handed(pid),
        })
    }

    /// Counters that a service has kept, if its `bonsai run` is still the one that wrote it.
    #[must_use]
    pub fn of(service: &Service, keeper: u32) -> Option<Self> {
        let text = fs::read(service.start_path()).ok()?;
        let start: Self = serde_json::from_slice(&text).ok()?;
        (start.pid == keeper).then_some(start)
    }
}

/// Bytes that went by calls which were not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Unseen {
    /// By the kernel, since the service was made.
    pub kernel: Moved,
    /// By Bonsai, with what starts of programs read.
    pub seen: Moved,
    /// Unseen of these, at least: what is within the margin of error is 0.
    pub unseen: Moved,
}

impl Unseen {
    fn of(kernel: Moved, seen: Moved) -> Self {
        let beyond = |kernel: u64, seen: u64| {
            let unseen = kernel.saturating_sub(seen);
            if unseen > MARGIN.max(kernel / PART) {
                unseen
            } else {
                0
            }
        };
        Self {
            kernel,
            seen,
            unseen: kernel.with(seen, beyond),
        }
    }

    /// In words, for the directions that are under limits.
    #[must_use]
    pub fn line(&self, ledger: &Ledger) -> Option<String> {
        let limited = |direction: ProcIo| {
            let mut calls = (0_u8..).zip(CALLS);
            calls.any(|(call, row)| row.proc_io == direction && ledger.is_limited(call))
        };
        let human = |bytes: u64| bonsai_units::Bytes(bytes).human();
        let part = |unseen: u64, kernel: u64, done: &str| {
            format!("{} of {} {done}", human(unseen), human(kernel))
        };
        let mut parts = Vec::new();
        if self.unseen.read > 0 && limited(ProcIo::Read) {
            parts.push(part(self.unseen.read, self.kernel.read, "read"));
        }
        if self.unseen.written > 0 && limited(ProcIo::Write) {
            parts.push(part(self.unseen.written, self.kernel.written, "written"));
        }
        (!parts.is_empty()).then(|| {
            format!(
                "not limited: {} by calls that were not seen, as the kernel counts",
                parts.join(" and ")
            )
        })
    }
}

/// Unseen bytes of a service that has ended, by its `bonsai run`, which this process is.
#[must_use]
pub fn of_ended(ledger: &Ledger, start: &Start) -> Option<Unseen> {
    let kernel = since(start)?;
    (!is_measured()).then(|| Unseen::of(kernel, seen(ledger)))
}

/// Unseen bytes of a service that runs.
#[must_use]
pub(super) fn of_service(
    service: &Service,
    ledger: &Ledger,
    keeper: Option<u32>,
    members: &[Member],
) -> Option<Unseen> {
    if service.enforced().is_some() || members.iter().any(|member| member.serves) || is_measured() {
        return None;
    }
    match keeper.and_then(|keeper| Start::of(service, keeper)) {
        Some(start) => {
            let handed = since(&start)?;
            let live: Moved = parents_first(members).into_iter().filter_map(whole).sum();
            Some(Unseen::of(handed + live, seen(ledger)))
        }
        None => of_processes(ledger, members),
    }
}

/// Unseen bytes of processes that were put under limits as they ran: each by itself, as no parent hands on what they leave.
#[must_use]
pub fn of_processes(ledger: &Ledger, members: &[Member]) -> Option<Unseen> {
    // Calls of threads without a page of their own are in no process's counters.
    if has_crowd(ledger) {
        return None;
    }
    let mut all = Unseen::of(Moved::default(), Moved::default());
    let entered = members.iter().filter(|member| member.entered);
    for member in entered {
        let Some(entry) = &member.entry else { continue };
        let Some(own) = own(member.process.pid) else {
            continue;
        };
        let [read, written] = entry.before;
        let kernel = own.without(Moved { read, written });
        let of = Unseen::of(kernel, seen_of(ledger, member.id));
        all.kernel = all.kernel + of.kernel;
        all.seen = all.seen + of.seen;
        all.unseen = all.unseen + of.unseen;
    }
    Some(all)
}

/// Bytes that a process has read and written itself: all of them while it has waited for no child, else those of the threads that live.
#[must_use]
pub fn own(pid: u32) -> Option<Moved> {
    if has_waited(pid)? {
        of_threads(pid)
    } else {
        whole(pid)
    }
}

/// Bytes of a process and of the children that it has waited for.
#[must_use]
pub fn whole(pid: u32) -> Option<Moved> {
    let io = io(pid).ok()??;
    Some(Moved {
        read: io.rchar,
        written: io.wchar,
    })
}

/// Bytes of the threads of a process that live.
fn of_threads(pid: u32) -> Option<Moved> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let of = |thread: fs::DirEntry| parse(&fs::read_to_string(thread.path().join("io")).ok()?);
    Some(threads.flatten().filter_map(of).sum())
}

fn parse(text: &str) -> Option<Moved> {
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    Some(Moved {
        read: field("rchar:")?,
        written: field("wchar:")?,
    })
}

/// True once a process has waited for a child: no child starts without a page fault, and their sum is handed up together with the
/// bytes.
#[must_use]
pub fn has_waited(pid: u32) -> Option<bool> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, from_third) = stat.rsplit_once(") ")?;
    // cminflt
    let faults = from_third.split_ascii_whitespace().nth(8)?;
    Some(faults != "0")
}

/// Bytes that a process has been handed by children, and by threads that have ended.
fn handed(pid: u32) -> Option<Moved> {
    // In this order: what the threads do meanwhile makes it less.
    let whole = whole(pid)?;
    Some(whole.without(of_threads(pid)?))
}

fn since(start: &Start) -> Option<Moved> {
    Some(handed(start.pid)?.without(start.handed?))
}

/// Bytes by the ledger of a whole service, as the kernel may have counted them.
fn seen(ledger: &Ledger) -> Moved {
    let totals = ledger.totals();
    let bytes = totals.iter().map(|total: &CallTotals| total.bytes);
    let [read, written] = ledger.overhead();
    by_kernel(bytes).without(beside(ledger, None)) + Moved { read, written }
}

/// The same of one process. The margin has room for its start.
fn seen_of(ledger: &Ledger, process: ProcessId) -> Moved {
    let counts = ledger.process_counts(process);
    by_kernel(counts.iter().map(|(_, bytes)| *bytes)).without(beside(ledger, Some(process)))
}

fn beside(ledger: &Ledger, process: Option<ProcessId>) -> Moved {
    let (read, written) = ledger.beside(process);
    Moved { read, written }
}

/// Bytes by entry of the table, as the kernel counts them.
fn by_kernel(bytes: impl Iterator<Item = u64>) -> Moved {
    let mut moved = Moved::default();
    for (call, bytes) in CALLS.iter().zip(bytes) {
        if matches!(call.proc_io, ProcIo::Read | ProcIo::Both) {
            moved.read = moved.read.saturating_add(bytes);
        }
        if matches!(call.proc_io, ProcIo::Write | ProcIo::Both) {
            moved.written = moved.written.saturating_add(bytes);
        }
    }
    moved
}

/// Numbers of processes, those of parents before those of their children.
fn parents_first(members: &[Member]) -> Vec<u32> {
    let parents: BTreeMap<u32, u32> = members
        .iter()
        .map(|member| (member.process.pid, member.process.ppid))
        .collect();
    let depth = |pid: u32| {
        let above = std::iter::successors(Some(pid), |pid| parents.get(pid).copied());
        above.take(parents.len() + 1).count()
    };
    let mut pids: Vec<u32> = parents.keys().copied().collect();
    pids.sort_by_key(|pid| depth(*pid));
    pids
}

/// True where the kernel measures files as they are opened (IMA): each is read once more then, on the account of the process. The first
/// measurement is that of the boot.
fn is_measured() -> bool {
    let path = Path::new("/sys/kernel/security/ima/runtime_measurements_count");
    let count = fs::read_to_string(path).ok();
    count
        .and_then(|count| count.trim().parse::<u64>().ok())
        .is_some_and(|count| count > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(read: u64, written: u64) -> Moved {
        Moved { read, written }
    }

    #[test]
    fn little_is_within_the_margin_of_error() {
        let of = |kernel: u64, seen: u64| Unseen::of(moved(kernel, 0), moved(seen, 0)).unseen.read;
        assert_eq!(of(MARGIN, 0), 0);
        assert_eq!(of(MARGIN + 1, 0), MARGIN + 1);
        assert_eq!(of(100 << 20, 98 << 20), 0, "2 %");
        assert_eq!(of(100 << 20, 97 << 20), 3 << 20);
        assert_eq!(of(5, 100), 0, "seen and not counted by the kernel");
    }

    #[test]
    fn a_line_is_of_directions_under_limits() {
        let folder = tempfile::tempdir().expect("a folder");
        let ledger = Ledger::create(&folder.path().join("ledger"), "a").expect("a ledger");
        let unseen = Unseen::of(moved(20_000_000, 3_000_000), moved(1_000_000, 0));
        assert_eq!(unseen.line(&ledger), None, "no limits");
        let limit = crate::limits::Limit::parse("read=1MB/s").expect("a limit");
        let now = super::super::monotonic_ns();
        crate::limits::apply(&ledger, &[limit], None, now).expect("applied");
        let line = unseen.line(&ledger).expect("a line");
        let wanted =
            "not limited: 19 MB of 20 MB read by calls that were not seen, as the kernel counts";
        assert_eq!(line, wanted);
    }

    #[test]
    fn a_child_hands_its_bytes_to_the_parent_that_waits() {
        let before = handed(std::process::id()).expect("this process");
        let child = std::process::Command::new("/bin/dd")
            .args(["if=/dev/zero", "of=/dev/null", "bs=1M", "count=3"])
            .stderr(std::process::Stdio::null())
            .status();
        assert!(child.expect("dd").success());
        let after = handed(std::process::id()).expect("this process");
        let got = after.without(before);
        assert!(got.read >= 3 << 20 && got.written >= 3 << 20, "{got:?}");
        assert_eq!(has_waited(std::process::id()), Some(true));
        assert_eq!(parse("rchar: 5\nwchar: 7\nsyscr: 1\n"), Some(moved(5, 7)));
        assert_eq!(parse("rchar: 5\n"), None);
    }
}
