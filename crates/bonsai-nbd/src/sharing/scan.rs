//! Going over an image beforehand.

use std::io;

use bonsai_dedup::drive::{Content, How, Stamp};

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
    /// Learns all of an image, unless `stop` says before that it is to end: `None` then. Holes are not read, and what was not
    /// in the page cache before does not stay there.
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
        let mut at = 0;
        while at < end {
            if stop() {
                return Ok(None);
            }
            let piece = (at + PIECE - at % PIECE).min(end) - at;
            let (next, hole) = self.image.extent(at, at + piece)?;
            if hole && next >= at + piece {
                self.enter(at, piece, None);
                scanned.holes += piece;
            } else {
                let into = bytes.get_mut(..usize::try_from(piece).unwrap_or(0));
                let into = into.unwrap_or_default();
                // Stamps of before it is read.
                let stamps = self.stamps(at, piece);
                self.image.read_past(into, at)?;
                self.enter(at, piece, Some((into, &stamps)));
                scanned.read += piece;
            }
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

    /// Without bytes, it is a hole, which is taken for zeroes only if it is one still.
    fn enter(&self, at: u64, length: u64, read: Option<(&[u8], &[Option<Stamp>])>) {
        let volume = self.volume();
        let first = at / BLOCK;
        let Some((bytes, stamps)) = read else {
            let stamps = self.stamps(at, length);
            let still = self.image.extent(at, at + length);
            if still.is_ok_and(|(next, hole)| hole && next >= at + length) {
                let mut map = self.sharing.state.map();
                for (block, stamp) in (first..).zip(stamps) {
                    if let Some(stamp) = stamp {
                        map.learned(volume, block, Content::Zero, How::Scan, stamp);
                    }
                }
            }
            return;
        };
        let (blocks, _) = bytes.as_chunks::<4096>();
        let contents: Vec<_> = blocks
            .iter()
            .map(|block| content(&self.key, block))
            .collect();
        let mut map = self.sharing.state.map();
        for ((block, content), stamp) in (first..).zip(contents).zip(stamps) {
            if let Some(stamp) = stamp {
                map.learned(volume, block, content, How::Scan, *stamp);
            }
        }
    }
}
