//! What moves through mapped memory: no call is made, so nothing can be shaped, and only
//! the kernel's own numbers tell of it.
//!
//! # What can be said
//! A fault that waits for storage brings a page at least, and at most what the kernel reads
//! ahead for a fault. What a process has had fetched from storage and did not get from a
//! call came for faults, apart from directories. So the number here is *at least*: a
//! process that also reads much from the cache by calls may have moved more. Faults on
//! pages that are in memory already move nothing. What is written to mapped memory goes to
//! storage later, by the kernel, and is in nobody's number here.

use bonsai_host::faults::{Faults, faults};
use bonsai_host::proc::io;
use bonsai_ledger::{Ledger, ProcessId};
use serde::Serialize;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// What the kernel reads at most for one fault: its read-ahead, 128 KiB unless someone
/// has changed it.
const AHEAD: u64 = 128 << 10;

/// From here on it is worth a line for people.
const WORTH_SAYING: u64 = 1 << 20;

/// Reads through mapped memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Mapped {
    /// Page faults that waited for storage.
    pub faults: u64,
    /// Bytes that they brought, at least.
    pub bytes: u64,
}

impl Mapped {
    /// Of so many faults, by a process that had `fetched` bytes from storage and got
    /// `by_calls` from calls.
    fn of(faults: u64, fetched: u64, by_calls: u64) -> Self {
        let unexplained = fetched.saturating_sub(by_calls);
        Self {
            faults,
            bytes: (faults * PAGE).max(unexplained.min(faults * AHEAD)),
        }
    }

    /// Both together.
    fn and(self, other: Self) -> Self {
        Self {
            faults: self.faults + other.faults,
            bytes: self.bytes + other.bytes,
        }
    }

    /// In words, if it is worth a line.
    pub fn line(&self) -> Option<String> {
        (self.bytes >= WORTH_SAYING).then(|| {
            format!(
                "through mapped memory, unshaped: at least {} in {} page faults",
                bonsai_units::Bytes(self.bytes).human(),
                self.faults
            )
        })
    }
}

/// Reads of a live process, by its number in `/proc` and its identity in the ledger.
pub fn of(ledger: &Ledger, pid: u32, id: ProcessId) -> Mapped {
    let Some(Faults { own, .. }) = faults(pid) else {
        return Mapped::default();
    };
    let (fetched, by_calls) = match io(pid) {
        Ok(Some(io)) => (io.read_bytes, io.rchar + ledger.beside(Some(id)).0),
        _ => (0, 0),
    };
    Mapped::of(own, fetched, by_calls)
}

/// Of processes that have ended, by what their `bonsai run` was given of them.
pub fn of_ended(ledger: &Ledger, keeper: u32) -> Mapped {
    let given = faults(keeper).map_or(0, |faults| faults.children);
    // What it has read itself is in there, too: then it is less that no call explains.
    let (fetched, by_calls) = match io(keeper) {
        Ok(Some(io)) => (io.read_bytes, io.rchar + ledger.beside(None).0),
        _ => (0, 0),
    };
    Mapped::of(given, fetched, by_calls)
}

/// Of a service: its live processes, and those that have ended.
pub fn of_service(
    ledger: &Ledger,
    live: impl Iterator<Item = Mapped>,
    keeper: Option<u32>,
) -> Mapped {
    let ended = keeper.map(|keeper| of_ended(ledger, keeper));
    live.fold(ended.unwrap_or_default(), Mapped::and)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_never_more_than_faults_can_bring() {
        let of = |faults, fetched, by_calls| Mapped::of(faults, fetched, by_calls).bytes;
        assert_eq!(of(0, 1 << 30, 0), 0, "directories");
        assert_eq!(of(10, 0, 0), 10 * PAGE);
        assert_eq!(of(10, 1 << 20, 0), 1 << 20);
        assert_eq!(of(1, 1 << 30, 0), AHEAD);
        assert_eq!(of(10, 1 << 20, 1 << 20), 10 * PAGE, "by calls");
    }

    #[test]
    fn little_is_not_worth_a_line() {
        assert_eq!(Mapped::of(10, 0, 0).line(), None);
        let line = Mapped::of(1000, 0, 0).line().expect("4 MB");
        assert!(line.contains("4.1 MB in 1000 page faults"), "{line}");
    }
}
