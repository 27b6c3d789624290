//! What the tests of segments share.
#![allow(dead_code, reason = "each test program uses a part of it")]

use bonsai_calls::{Selection, WRITE_FILE};
use bonsai_ledger::{Ledger, Tickets};
use std::io::Write;
use std::path::PathBuf;
use tempfile::TempDir;

/// A second, ns.
pub(crate) const S: u64 = 1_000_000_000;

/// A segment in a folder of its own, which goes with the value.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) ledger: Ledger,
    pub(crate) path: PathBuf,
    _folder: TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let path = folder.path().join("vod");
        let ledger = Ledger::create(&path, "vod").expect("a new segment");
        Self {
            ledger,
            path,
            _folder: folder,
        }
    }

    /// A second mapping of the same segment.
    pub(crate) fn open(&self) -> Ledger {
        Ledger::open(&self.path).expect("an intact segment")
    }

    /// Sets one limit in bytes at `now`; `rate` in units per second.
    pub(crate) fn set_bytes(&self, name: &str, rate: u64, burst: u64, now: u64) -> u32 {
        let mut editor = self.ledger.edit(now).expect("the lock");
        editor
            .set(name, select(name), true, rate * 1000, burst)
            .expect("a limit in bytes");
        editor.commit()
    }

    /// Lifts the limits of a name at `now`.
    pub(crate) fn clear(&self, name: &str, now: u64) -> u32 {
        let mut editor = self.ledger.edit(now).expect("the lock");
        assert!(editor.clear(name), "{name} has a limit");
        editor.commit()
    }
}

/// Takes a ticket for `bytes` of one file write.
pub(crate) fn write(ledger: &Ledger, bytes: u64, now: u64) -> Tickets {
    let (_, mask, byte_buckets) = ledger.mask(WRITE_FILE);
    ledger
        .take(mask, byte_buckets, bytes, 1, now)
        .expect("few limits")
}

/// The calls of a name that the table knows.
pub(crate) fn select(name: &str) -> Selection {
    bonsai_calls::select(name).unwrap_or_else(|| panic!("{name} is in the table"))
}

/// The monotonic clock, ns.
pub(crate) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let field = |n: i64| u64::try_from(n).expect("no time before the start");
    field(time.tv_sec) * S + field(time.tv_nsec)
}

/// Says that a test cannot run here, and why.
pub(crate) fn skip(test: &str, why: &str) {
    eprintln!("SKIP: {test}: {why}");
    if let Some(log) = std::env::var_os("BONSAI_SKIP_LOG") {
        let mut log = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(log)
            .expect("the log of skipped tests");
        writeln!(log, "{test}: {why}").expect("the log of skipped tests");
    }
}

/// Numbers that look random: splitmix64.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}
