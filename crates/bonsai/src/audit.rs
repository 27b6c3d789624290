//! `bonsai audit`: the ledger against the kernel, which counts by itself what
//! read-like and write-like calls move (`rchar` and `wchar` of `/proc/PID/io`).
//!
//! # What the two sides mean
//! - A process keeps its counters over an exec, and gets those of each child that
//!   it has waited for. So the service as a whole is its live processes and what
//!   its `bonsai run`, which adopts all orphans, has been given; a process by
//!   itself is the sum of its threads, once it has waited for a child.
//! - The ledger is read before and after the kernel's counters. *Seen* is what it
//!   said in between, as near to the kernel's number as the two readings allow.
//! - What goes through rings and queues is in the ledger's numbers and not in the
//!   kernel's: here it is in neither, and said beside them.
//! - What a program reads before the library is in it always goes unseen: the
//!   kernel reads the program's headers, the loader those of each library.

mod kernel;
mod text;

use bonsai_calls::{CALLS, Call, ProcIo};
use bonsai_ledger::Ledger;
use bonsai_services::observe::{Head, Mapped, kind, mapped_by, mapped_by_service, why_uncovered};
use bonsai_services::refusal::Refusal;
use bonsai_services::service::members::{self, Member};
use bonsai_services::service::{Service, Services, creator};
use serde::Serialize;

use self::kernel::Moved;
use crate::cli::Audit;
use crate::output::{Paint, print, print_json};

/// What `bonsai audit --json` prints.
#[derive(Clone, Debug, Serialize)]
struct Document {
    #[serde(flatten)]
    head: Head,
    service: String,
    /// The service as a whole.
    total: Compared,
    /// Whether `total` has in it what ended processes did. It has not when
    /// `bonsai run` ended before them.
    total_includes_ended: bool,
    /// Its live processes.
    processes: Vec<ProcessAudit>,
    /// Bytes that the ledger counted and `/proc` has no counter for.
    unknown_to_kernel: u64,
    /// What was read through mapped memory, which neither side counts.
    mapped: Mapped,
    /// What one of the sides does not count.
    limits: &'static str,
}

const LIMITS: &str = "/proc counts neither send, recv and their relatives nor splice nor rings and \
     queues (io_uring, libaio), which the ledger counts";

/// One process.
#[derive(Clone, Debug, Serialize)]
struct ProcessAudit {
    pid: u32,
    program: String,
    /// Whether the interposer runs in it.
    covered: bool,
    /// Why it does not, as far as that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(flatten)]
    compared: Compared,
    /// What reading its program and libraries takes before the interposer is in
    /// it, by the number of its libraries; an estimate.
    start_estimate: u64,
    /// Bytes that went through rings and queues; not in the comparison.
    ring_bytes: u64,
    /// What it read through mapped memory.
    mapped: Mapped,
    /// Whether the kernel's side leaves out threads that have ended, because it
    /// cannot be told from that of children.
    without_ended_threads: bool,
    /// The ledger's side by call.
    calls: Vec<CallBytes>,
}

/// Bytes of one call.
#[derive(Clone, Debug, Serialize)]
struct CallBytes {
    call: &'static str,
    kind: &'static str,
    calls: u64,
    bytes: u64,
    /// Whether they are counted as read, written, or both.
    counted_as: &'static str,
}

/// Both directions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Compared {
    read: Side,
    written: Side,
}

/// One direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Side {
    /// By the ledger, bytes.
    seen: u64,
    /// By the kernel, bytes; `null` if it does not tell us.
    kernel: Option<u64>,
    /// What went unseen, bytes.
    unseen: Option<u64>,
    /// The same in % of the kernel's.
    unseen_percent: Option<f64>,
}

impl Side {
    /// From two readings of the ledger with one of the kernel's between.
    fn of(before: u64, after: u64, kernel: Option<u64>) -> Self {
        let after = after.max(before);
        let seen = kernel.map_or(after, |kernel| kernel.clamp(before, after));
        let unseen = kernel.map(|kernel| kernel.saturating_sub(seen));
        let share = |unseen: u64, kernel: u64| match kernel {
            0 => 0.0,
            _ => unseen as f64 / kernel as f64 * 100.0,
        };
        Self {
            seen,
            kernel,
            unseen,
            unseen_percent: unseen.zip(kernel).map(|(u, k)| share(u, k)),
        }
    }
}

impl Compared {
    fn of(before: Moved, after: Moved, kernel: Option<Moved>) -> Self {
        Self {
            read: Side::of(before.read, after.read, kernel.map(|moved| moved.read)),
            written: Side::of(
                before.written,
                after.written,
                kernel.map(|moved| moved.written),
            ),
        }
    }
}

/// Compares and prints.
///
/// # Errors
/// There is no such service, or its ledger cannot be read.
pub(crate) fn run(args: &Audit) -> anyhow::Result<u8> {
    let service = Services::open()?.find(&args.service)?;
    let document = document(&service, &service.ledger()?)?;
    if args.json {
        print_json(&document, false)?;
    } else {
        print(&text::text(&document, Paint::stdout()))?;
    }
    Ok(0)
}

fn document(service: &Service, ledger: &Ledger) -> anyhow::Result<Document> {
    let keeper = service.has_keeper()?.then(|| creator(ledger)).flatten();
    let members = members::all(service, ledger, keeper)?;
    if members.iter().any(|member| member.serves) {
        return Err(Refusal::input(format!(
            "{}: is an export, whose server counts requests of its clients and not its own calls: bonsai drive status has both",
            service.name
        )));
    }
    let before = moved_in_all(ledger);
    let start = keeper.and_then(|keeper| kernel::start(service, keeper));
    let given = keeper
        .zip(start)
        .and_then(|(keeper, start)| kernel::since(keeper, start));
    let whole: Option<Moved> = members
        .iter()
        .map(|member| kernel::whole(member.process.pid))
        .sum::<Option<Moved>>()
        .zip(given)
        .map(|(live, given)| live + given);
    let after = moved_in_all(ledger);
    let processes: Vec<ProcessAudit> = members
        .iter()
        .map(|member| process_audit(service, ledger, member))
        .collect();
    let total = match whole {
        Some(whole) => Compared::of(before, after, Some(whole)),
        None => sum(&processes),
    };
    let unknown = ledger.totals().into_iter().filter(|total| {
        let call = &CALLS[total.call];
        call.moves_bytes() && call.proc_io == ProcIo::None
    });
    let beside = ledger.beside(None);
    let live = processes.iter().map(|process| process.mapped);
    let mapped = mapped_by_service(ledger, live, keeper);
    Ok(Document {
        head: Head::now(),
        service: service.name.clone(),
        total,
        total_includes_ended: whole.is_some(),
        processes,
        unknown_to_kernel: unknown
            .map(|total| total.bytes)
            .chain([beside.0, beside.1])
            .fold(0, u64::saturating_add),
        mapped,
        limits: LIMITS,
    })
}

/// The sum over processes whose kernel side is known.
fn sum(processes: &[ProcessAudit]) -> Compared {
    let side = |of: fn(&ProcessAudit) -> Side| {
        let known = || {
            processes
                .iter()
                .map(of)
                .filter(|side| side.kernel.is_some())
        };
        let all = |of: &dyn Fn(&Side) -> u64| {
            known().fold(0, |sum: u64, side| of(&side).saturating_add(sum))
        };
        let seen = all(&|side| side.seen);
        Side::of(seen, seen, Some(all(&|side| side.kernel.unwrap_or(0))))
    };
    Compared {
        read: side(|p| p.compared.read),
        written: side(|p| p.compared.written),
    }
}

fn process_audit(service: &Service, ledger: &Ledger, member: &Member) -> ProcessAudit {
    let (pid, id) = (member.process.pid, member.id);
    let beside = ledger.beside(Some(id));
    let before = without(moved(&ledger.process_counts(id)), beside);
    let own = kernel::own(pid);
    let after = ledger.process_counts(id);
    let beside = ledger.beside(Some(id));
    let calls = CALLS
        .iter()
        .zip(&after)
        .filter(|(call, _)| call.proc_io != ProcIo::None);
    ProcessAudit {
        pid,
        program: member.program(),
        covered: member.entered,
        reason: why_uncovered(service, member),
        compared: Compared::of(
            before,
            without(moved(&after), beside),
            own.map(|own| own.moved),
        ),
        ring_bytes: beside.0.saturating_add(beside.1),
        mapped: mapped_by(ledger, pid, id),
        start_estimate: kernel::start_estimate(pid, member.process.ppid),
        without_ended_threads: own.is_some_and(|own| own.without_ended_threads),
        calls: calls
            .filter(|(_, (_, bytes))| *bytes > 0)
            .map(|(call, (calls, bytes))| CallBytes {
                call: call.name,
                kind: kind(call.fd),
                calls: *calls,
                bytes: *bytes,
                counted_as: counted_as(call),
            })
            .collect(),
    }
}

const fn counted_as(call: &Call) -> &'static str {
    match call.proc_io {
        ProcIo::None => "neither",
        ProcIo::Read => "read",
        ProcIo::Write => "written",
        ProcIo::Both => "both",
    }
}

fn moved_in_all(ledger: &Ledger) -> Moved {
    let totals: Vec<(u64, u64)> = ledger
        .totals()
        .iter()
        .map(|total| (total.calls, total.bytes))
        .collect();
    without(moved(&totals), ledger.beside(None))
}

/// What the ledger counted and the kernel can have counted, too.
fn without(moved: Moved, (read, written): (u64, u64)) -> Moved {
    Moved {
        read: moved.read.saturating_sub(read),
        written: moved.written.saturating_sub(written),
    }
}

/// What `/proc` would say of calls and bytes by entry.
fn moved(counts: &[(u64, u64)]) -> Moved {
    let mut moved = Moved::default();
    for (call, (_, bytes)) in CALLS.iter().zip(counts) {
        if matches!(call.proc_io, ProcIo::Read | ProcIo::Both) {
            moved.read = bytes.saturating_add(moved.read);
        }
        if matches!(call.proc_io, ProcIo::Write | ProcIo::Both) {
            moved.written = bytes.saturating_add(moved.written);
        }
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonsai_calls::{READ_FILE, SENDFILE_SOCKET, SENDTO, WRITE_OTHER};

    #[test]
    fn what_moved_between_the_readings_is_not_unseen() {
        let side = |before, after, kernel| {
            let side = Side::of(before, after, Some(kernel));
            (side.seen, side.unseen, side.unseen_percent)
        };
        assert_eq!(side(100, 200, 150), (150, Some(0), Some(0.0)));
        assert_eq!(side(100, 200, 400), (200, Some(200), Some(50.0)));
        assert_eq!(
            side(100, 200, 50),
            (100, Some(0), Some(0.0)),
            "counted early"
        );
        assert_eq!(side(0, 0, 0), (0, Some(0), Some(0.0)));
        assert_eq!(
            Side::of(1, 2, None),
            Side {
                seen: 2,
                kernel: None,
                unseen: None,
                unseen_percent: None
            }
        );
    }

    #[test]
    fn only_what_proc_counts_is_compared() {
        let mut counts = vec![(0, 0); CALLS.len()];
        counts[usize::from(READ_FILE)] = (1, 1);
        counts[usize::from(WRITE_OTHER)] = (1, 10);
        counts[usize::from(SENDFILE_SOCKET)] = (1, 100);
        counts[usize::from(SENDTO)] = (1, 1000);
        assert_eq!(
            moved(&counts),
            Moved {
                read: 101,
                written: 110
            }
        );
    }
}
