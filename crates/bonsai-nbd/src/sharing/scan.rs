//! Fingerprints of a whole image, beside serving it.
//!
//! # Story
//! Fingerprints that were kept are loaded; an image without them is read. It can be served meanwhile, and guests come first:
//! after each piece the scan rests three times as long as the piece took, if a request needed the disk meanwhile.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bonsai_dedup::drive::{How, Stamp};
use serde::{Deserialize, Serialize};

use super::{BLOCK, Member, content};

/// Bytes that are read together.
const PIECE: u64 = 1 << 20;
/// How long the disk is left to guests after a piece, by the time that the piece took; and at most.
const REST: u32 = 3;
const LONGEST_REST: Duration = Duration::from_millis(200);

/// What a scan has seen.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Scanned {
    /// Bytes that were read.
    pub read: u64,
    /// Bytes of holes, which need not be.
    pub holes: u64,
}

/// What is being done to know an image.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScanPhase {
    /// No scan was asked for.
    #[default]
    None,
    /// Its turn has not come.
    Queued,
    /// Another program has the image open.
    Waiting,
    /// Fingerprints that were kept are loaded.
    Loading,
    /// The image is read.
    Reading,
    /// All of it is known, or was too much for the map.
    Done,
    /// It could not be read.
    Failed,
}

/// How far a scan is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct ScanProgress {
    /// What is being done.
    pub phase: ScanPhase,
    /// Bytes of the image that are done.
    pub done_bytes: u64,
    /// Bytes of the image.
    pub total_bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Progress {
    phase: AtomicU64,
    done: AtomicU64,
}

impl Progress {
    /// Bytes from the image's start that are known, or were too much for the map.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    pub(super) fn set_done(&self, bytes: u64) {
        self.done.store(bytes, Ordering::Relaxed);
    }
}

const PHASES: [ScanPhase; 7] = [
    ScanPhase::None,
    ScanPhase::Queued,
    ScanPhase::Waiting,
    ScanPhase::Loading,
    ScanPhase::Reading,
    ScanPhase::Done,
    ScanPhase::Failed,
];

impl Member {
    /// How far the scan of the image is.
    #[must_use]
    pub fn scan_progress(&self) -> ScanProgress {
        let phase = self.known.progress.phase.load(Ordering::Relaxed);
        let phase = usize::try_from(phase).ok().and_then(|at| PHASES.get(at));
        ScanProgress {
            phase: phase.copied().unwrap_or_default(),
            done_bytes: self.known.progress.done(),
            total_bytes: self.image.size(),
        }
    }

    /// Says that a scan will come, or how it ended.
    pub fn set_scan_phase(&self, phase: ScanPhase) {
        self.known
            .progress
            .phase
            .store(phase as u64, Ordering::Relaxed);
    }

    /// Whether all of the image was scanned.
    #[must_use]
    pub fn is_scanned(&self) -> bool {
        self.known.progress.done() >= self.image.size() / BLOCK * BLOCK
    }

    /// Learns all of an image, from where an earlier scan ended. `None` if it was not finished: `stop` said so, or another program has the image open, so that
    /// what was learned may be forgotten. What was not in the page cache before does not stay there. Of holes that are
    /// larger than a piece nothing is learned: to read them costs no disk, and a large image has more of them than the map
    /// has room for.
    ///
    /// # Errors
    /// Those of the system.
    pub fn scan(&self, stop: impl Fn() -> bool) -> io::Result<Option<Scanned>> {
        self.set_scan_phase(ScanPhase::Reading);
        let scanned = self.read_all(stop);
        self.image.read_ahead(false);
        self.set_scan_phase(match &scanned {
            Ok(Some(_)) => ScanPhase::Done,
            Ok(None) => ScanPhase::Waiting,
            Err(_) => ScanPhase::Failed,
        });
        scanned
    }

    fn read_all(&self, stop: impl Fn() -> bool) -> io::Result<Option<Scanned>> {
        let began = self.sharing.state.clock.now();
        let mut scanned = Scanned::default();
        let end = self.image.size() / BLOCK * BLOCK;
        let mut bytes = vec![0; usize::try_from(PIECE).unwrap_or(0)];
        if stop() {
            return Ok(None);
        }
        let (mut at, mut data_until) = (self.known.progress.done() / PIECE * PIECE, 0);
        while at < end {
            self.known.progress.set_done(at);
            if stop() {
                return Ok(None);
            }
            if !self.known.guard.is_up_since(began) {
                return Ok(self.start_again());
            }
            if at >= data_until {
                let (next, hole) = self.image.extent(at, end)?;
                let whole = if next == end {
                    end
                } else {
                    next / PIECE * PIECE
                };
                if hole && whole > at {
                    scanned.holes += whole - at;
                    at = whole;
                    continue;
                }
                data_until = next;
            }
            let piece = (at + PIECE).min(end) - at;
            let into = bytes.get_mut(..usize::try_from(piece).unwrap_or(0));
            self.read_piece(into.unwrap_or_default(), at)?;
            scanned.read += piece;
            at += piece;
        }
        self.known.progress.set_done(self.image.size());
        match self.known.guard.is_up_since(began) {
            true => Ok(Some(scanned)),
            false => Ok(self.start_again()),
        }
    }

    /// What was learned may be forgotten.
    fn start_again(&self) -> Option<Scanned> {
        self.known.progress.set_done(0);
        None
    }

    fn read_piece(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        let requests = self.sharing.disk_reads();
        let start = Instant::now();
        // Stamps of before it is read.
        let stamps = self.stamps(at, into.len() as u64);
        self.image.read_past(into, at)?;
        self.enter(at, into, &stamps);
        match self.sharing.disk_reads() == requests {
            // Plans for guests say otherwise.
            true => self.image.read_ahead(true),
            false => thread::sleep((start.elapsed() * REST).min(LONGEST_REST)),
        }
        Ok(())
    }

    fn stamps(&self, at: u64, length: u64) -> Vec<Option<Stamp>> {
        let volume = self.volume();
        let map = self.sharing.state.map();
        let blocks = at / BLOCK..(at + length) / BLOCK;
        blocks.map(|block| map.stamp(volume, block)).collect()
    }

    fn enter(&self, at: u64, bytes: &[u8], stamps: &[Option<Stamp>]) {
        let volume = self.volume();
        let first = at / BLOCK;
        let (blocks, _) = bytes.as_chunks::<4096>();
        let contents: Vec<_> = blocks
            .iter()
            .map(|block| content(&self.key, block))
            .collect();
        let mut map = self.sharing.state.map_mut();
        for ((block, content), stamp) in (first..).zip(contents).zip(stamps) {
            if let Some(stamp) = stamp {
                map.learned(volume, block, content, How::Scan, *stamp);
            }
        }
    }
}
