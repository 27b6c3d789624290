//! One look at services, as a value: what `--json` prints and every view draws.
//!
//! # Schema
//! The JSON forms of these types are the interface for scripts. [`SCHEMA`] is in
//! each document; it changes when a field changes its meaning or goes away, and
//! not when one is added. Times are in ns, or ms where the name says so; rates in
//! bytes/s or calls/s; `null` stands for what is not known or does not exist.
//!
//! Definitions:
//! - *asked*: the rate of a limit. *got*: what the calls under it did in the
//!   interval before the look.
//! - *waits* of a limit: those imposed on the calls that it is on. A call under
//!   two limits waits once and is counted with both.
//!   Of a limit on some descriptors, or per stream, both are those of what it let through.
//! - *streams* of a limit: those that have a bucket of their own, where they are asked
//!   for; one nobody has open any more is not among them.
//! - *waiting*: threads that wait at the moment of the look, with the limit that lets
//!   their call go last.

mod counters;
mod coverage;
mod mapped;
mod mapped_files;
mod sampler;
mod streams;
mod unseen;
mod waiting;

use std::path::PathBuf;

use bonsai_calls::Fd;
use bonsai_stats::{LogHistogram, bucket_bounds};
use serde::Serialize;

use crate::group::GroupView;
use crate::service::Enforced;

pub use counters::{calls_of, classes_of, unshaped_of};
pub use coverage::{Covered, ProcessView, UncoveredView, ended_uncovered, holes, why_uncovered};
pub use mapped::{
    Mapped, of as mapped_by, of_ended as mapped_by_ended, of_service as mapped_by_service,
};
pub use mapped_files::MappedFiles;
pub use sampler::{Sampler, applies, monotonic_ns};
pub use streams::StreamView;
pub use unseen::{
    Moved, Start, Unseen, has_waited, of_ended as unseen_of_ended,
    of_processes as unseen_of_processes, own as moved_by, whole as moved_with_children,
};
pub use waiting::{WaitingView, has_crowd, is_believed};

/// The version of the JSON documents.
pub const SCHEMA: u32 = 1;

/// What all documents begin with.
#[derive(Clone, Debug, Serialize)]
pub struct Head {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The version of this program.
    pub bonsai: &'static str,
    /// When it was looked, ms of the wall clock since 1970.
    pub unix_ms: u64,
}

impl Head {
    /// Of a document made now.
    pub fn now() -> Self {
        Self {
            schema: SCHEMA,
            bonsai: env!("CARGO_PKG_VERSION"),
            unix_ms: unix_ms(),
        }
    }
}

/// The wall clock, ms since 1970.
#[must_use]
pub fn unix_ms() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// All services at one moment: `bonsai status --json`, `bonsai top --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Observation {
    /// Version and time.
    #[serde(flatten)]
    pub head: Head,
    /// The services, by name.
    pub services: Vec<ServiceView>,
}

/// One service.
#[derive(Clone, Debug, Serialize)]
pub struct ServiceView {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// Why nothing more is known, if its ledger cannot be read.
    pub error: Option<String>,
    /// The process id of its `bonsai run`, if that lives.
    pub keeper: Option<u32>,
    /// When it was made, ms of the wall clock since 1970.
    pub created_unix_ms: u64,
    /// The time over which `got` and the `recent` waits were measured, ms; 0 at
    /// the first look.
    pub interval_ms: u64,
    /// Its limits.
    pub limits: Vec<LimitView>,
    /// The group that it is in. What it draws on there is among `limits`, too.
    pub group: Option<GroupView>,
    /// All waits imposed since it was made.
    pub waits: Waits,
    /// The longest single wait, ns.
    pub longest_wait_ns: u64,
    /// The threads that wait for a limit at this moment, the longest first.
    pub waiting: Vec<WaitingView>,
    /// Whether it has threads beyond the pages of the ledger: their waits are counted,
    /// and they are never among `waiting`.
    pub crowded: bool,
    /// Its live processes that the interposer runs in.
    pub processes: Vec<ProcessView>,
    /// Its processes that it does not run in.
    pub uncovered: Vec<UncoveredView>,
    /// Calls that went through without a decision, by reason.
    pub unshaped: Vec<UnshapedView>,
    /// Bytes that it read through mapped memory.
    pub mapped: Mapped,
    /// Files that its programs have mapped into memory under limits.
    pub mapped_files: MappedFiles,
    /// Bytes that went by calls which were not seen; `null` where the kernel does not tell.
    pub unseen: Option<Unseen>,
    /// The same in words, if it is worth a line.
    #[serde(skip)]
    pub unseen_line: Option<String>,
    /// Processes that found no entry in the ledger; they are shaped, but not shown.
    pub processes_lost: u32,
    /// Who enforces its limits from outside, and how; `null` if they are in its processes.
    pub enforced: Option<Enforced>,
    /// What it is, if it is no `bonsai run`: a daemon says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// One limit in force.
#[derive(Clone, Debug, Serialize)]
pub struct LimitView {
    /// The call or class.
    pub name: String,
    /// The limit as it would be written.
    pub setting: String,
    /// What is counted: `bytes` or `calls`.
    pub unit: &'static str,
    /// The rate asked for, units/s.
    pub asked: f64,
    /// The rate measured, units/s; `null` at the first look.
    pub got: Option<f64>,
    /// How far ahead of its rate the service may be, units.
    pub burst: u64,
    /// Units that could go at once; negative while calls wait.
    pub level: i64,
    /// Waits of the calls it is on, since the service was made.
    pub waits: Waits,
    /// The same in the interval.
    pub recent: Waits,
    /// The calls it is on that have waited; not known of one on some descriptors.
    pub waiting_calls: Vec<CallWaits>,
    /// Whether each stream has a bucket of its own; then `asked`, `burst` and `level` are
    /// those of one stream, and `got` is that of all together.
    pub per_stream: bool,
    /// Its streams, the busiest first, where they were asked for (`--streams`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams: Option<Vec<StreamView>>,
    /// Whether people read its rates in bits.
    #[serde(skip)]
    pub network: bool,
}

/// Waits of one call.
#[derive(Clone, Debug, Serialize)]
pub struct CallWaits {
    /// The call.
    pub call: &'static str,
    /// The kind of its descriptor: `file`, `socket`, `other`, or `any`.
    pub kind: &'static str,
    /// The waits.
    pub waits: Waits,
}

/// Waits imposed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Waits {
    /// How many.
    pub count: u64,
    /// Their sum, ns.
    pub total_ns: u64,
    /// The wait that half of them do not exceed, ns.
    pub p50_ns: Option<u64>,
    /// The wait that 99 % of them do not exceed, ns.
    pub p99_ns: Option<u64>,
    /// Their histogram, where it is asked for: only ranges that are not empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub histogram: Vec<Bin>,
}

/// One range of a histogram.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bin {
    /// From here, ns.
    pub from_ns: u64,
    /// To below here, ns; `null` for no end.
    pub to_ns: Option<u64>,
    /// How many.
    pub count: u64,
}

impl Waits {
    /// Of a histogram and the sum of its waits.
    pub fn of(delays: &LogHistogram, total_ns: u64) -> Self {
        Self {
            count: delays.count(),
            total_ns,
            p50_ns: delays.percentile(50.0),
            p99_ns: delays.percentile(99.0),
            histogram: Vec::new(),
        }
    }

    /// The same, knowing that no wait was longer: a range of the histogram may reach
    /// beyond that.
    pub fn at_most(mut self, longest_ns: u64) -> Self {
        for percentile in [&mut self.p50_ns, &mut self.p99_ns].into_iter().flatten() {
            *percentile = longest_ns.min(*percentile);
        }
        self
    }

    /// The same with the histogram itself.
    pub fn with_histogram(delays: &LogHistogram, total_ns: u64) -> Self {
        let histogram = delays
            .counts()
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(bucket, count)| {
                let (from_ns, to_ns) = bucket_bounds(bucket);
                Bin {
                    from_ns,
                    to_ns: (to_ns != u64::MAX).then_some(to_ns),
                    count: *count,
                }
            })
            .collect();
        Self {
            histogram,
            ..Self::of(delays, total_ns)
        }
    }
}

/// One entry of the table of calls: `bonsai stats --json`.
#[derive(Clone, Debug, Serialize)]
pub struct CallView {
    /// The call.
    pub call: &'static str,
    /// The kind of its descriptor: `file`, `socket`, `other`, or `any`.
    pub kind: &'static str,
    /// Its number on x86-64.
    pub number: u16,
    /// Calls made.
    pub calls: u64,
    /// Bytes moved; `null` for calls that move none.
    pub bytes: Option<u64>,
    /// Waits imposed.
    pub waits: Waits,
}

/// Totals of a class.
#[derive(Clone, Debug, Serialize)]
pub struct ClassView {
    /// The class.
    pub class: &'static str,
    /// Calls made.
    pub calls: u64,
    /// Bytes moved; `null` for classes that move none.
    pub bytes: Option<u64>,
    /// Waits imposed.
    pub waits: Waits,
}

/// Calls that went through without a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnshapedView {
    /// Why, as a word for scripts.
    pub reason: &'static str,
    /// Why, in words.
    pub about: &'static str,
    /// How many.
    pub calls: u64,
}

/// The kind of descriptor of an entry, as a word.
pub const fn kind(fd: Fd) -> &'static str {
    match fd {
        Fd::Any => "any",
        Fd::File => "file",
        Fd::Socket => "socket",
        Fd::Other => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_of_a_histogram() {
        let mut delays = LogHistogram::default();
        assert_eq!(Waits::of(&delays, 0), Waits::default());
        for _ in 0..99 {
            delays.record(1_000_000);
        }
        delays.record(u64::MAX);
        let waits = Waits::with_histogram(&delays, 5);
        assert_eq!((waits.count, waits.total_ns), (100, 5));
        assert_eq!(waits.clone().at_most(9).p99_ns, Some(9));
        let p50 = waits.p50_ns.expect("a median");
        assert!((768_000..=1_536_000).contains(&p50), "{p50}");
        let ends: Vec<_> = waits
            .histogram
            .iter()
            .map(|bin| (bin.to_ns.is_some(), bin.count))
            .collect();
        assert_eq!(ends, [(true, 99), (false, 1)]);
    }
}
