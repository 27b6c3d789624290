//! Going over an image beforehand.

use std::io;

use bonsai_dedup::drive::{How, Stamp};

use super::{BLOCK, Member, content};

/// Bytes that are read together.
const PIECE: u64 = 1 << 20;

/// What a scan has seen.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Scanned {
    /// Bytes that were read.
    pub read: u64,
    /// Bytes of holes, which need not be.
    pub holes: u64,
}

impl Member {
    /// Learns all of an image, unless `stop` says before that it is to end: `None` then. What was not in the page cache before does
    /// not stay there. Of holes that are larger than a piece nothing is learned: to read them costs no disk, and a large
    /// image has more of them than the map has room for.
    ///
    /// # Errors
    /// Those of the system.
    pub fn scan(&self, stop: impl Fn() -> bool) -> io::Result<Option<Scanned>> {
        self.image.read_ahead(true);
        let scanned = self.go_over(stop);
        self.image.read_ahead(false);
        scanned
    }

    fn go_over(&self, stop: impl Fn() -> bool) -> io::Result<Option<Scanned>> {
        let mut scanned = Scanned::default();
        let end = self.image.size() / BLOCK * BLOCK;
        let mut bytes = vec![0; usize::try_from(PIECE).unwrap_or(0)];
        let (mut at, mut data_until) = (0, 0);
        while at < end {
            if stop() {
                return Ok(None);
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
            let into = into.unwrap_or_default();
            // Stamps of before it is read.
            let stamps = self.stamps(at, piece);
            self.image.read_past(into, at)?;
            self.enter(at, into, &stamps);
            scanned.read += piece;
            at += piece;
        }
        Ok(Some(scanned))
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
