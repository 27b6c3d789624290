//! What all receivers share: one clock, one link if need be, and the counts.

use std::io::{self, Read};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::link::{Link, TURN};
use crate::record::BIN_NS;

/// The longest measurement.
pub(crate) const LONGEST: Duration = Duration::from_secs(150);

/// The most that is read at once where a real link sets the pace, bytes.
const READ: usize = 64 << 10;

/// Bytes by bin.
#[derive(Debug)]
pub(crate) struct Series(Vec<AtomicU64>);

impl Series {
    fn new() -> Self {
        let bins = LONGEST.as_nanos() / u128::from(BIN_NS);
        Self((0..bins).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts bytes that arrived at `now`.
    pub(crate) fn add(&self, now: u64, bytes: usize) {
        let bin = usize::try_from(now / BIN_NS)
            .ok()
            .and_then(|bin| self.0.get(bin));
        if let Some(bin) = bin {
            bin.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// The bins that end until `end`.
    pub(crate) fn until(&self, end: u64) -> Vec<u64> {
        let count = usize::try_from(end / BIN_NS).unwrap_or(usize::MAX);
        self.0
            .iter()
            .take(count)
            .map(|bin| bin.load(Ordering::Relaxed))
            .collect()
    }
}

/// What all receivers share.
#[derive(Debug)]
pub(crate) struct Meter {
    start: Instant,
    link: Option<Link>,
    /// What the players received.
    pub(crate) video: Series,
    /// What the relay received.
    pub(crate) bulk: Series,
    stop: AtomicBool,
    failure: Mutex<Option<String>>,
}

impl Meter {
    /// A meter whose clock begins now.
    pub(crate) fn new(link: Option<Link>) -> Self {
        Self {
            start: Instant::now(),
            link,
            video: Series::new(),
            bulk: Series::new(),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// ns since the beginning.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Makes the players end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The first thing that went wrong, once.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Something went wrong.
    pub(crate) fn fail(&self, what: String) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(what);
    }

    /// Whether the players are to end.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether what arrives takes turns on a link.
    pub(crate) fn takes_turns(&self) -> bool {
        self.link.is_some()
    }

    /// One read's worth, bytes.
    pub(crate) fn chunk(&self) -> usize {
        if self.takes_turns() { TURN } else { READ }
    }

    /// Reads what is there, and returns when it has come over the link.
    pub(crate) fn read(&self, stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = stream.read(buffer)?;
        if let Some(link) = &self.link {
            link.pass(bytes);
        }
        Ok(bytes)
    }
}
