//! Which blocks were learned, or given to the learner: a bit each, so that reads of what is known need no lock.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Words of a piece: 128 MiB of an image.
const WORDS: usize = 512;
const BITS: u64 = 64 * WORDS as u64;

/// Blocks that the map can have of a volume. What is beyond is never learned.
const MOST: u64 = 1 << 32;

type Piece = Box<[AtomicU64]>;

/// A bit for each block of an image: 32 MiB for a tebibyte, of which pieces are made when they are used, as an image may be
/// large and nearly empty.
#[derive(Debug)]
pub(super) struct Seen(Box<[OnceLock<Piece>]>);

impl Seen {
    pub(super) fn new(blocks: u64) -> Self {
        let pieces = usize::try_from(blocks.min(MOST).div_ceil(BITS)).unwrap_or(0);
        Self((0..pieces).map(|_| OnceLock::new()).collect())
    }

    pub(super) fn has(&self, block: u64) -> bool {
        self.piece(block).is_none_or(|piece| {
            let word = piece.get().and_then(|words| words.get(word(block)));
            word.is_some_and(|word| word.load(Ordering::Relaxed) >> (block % 64) & 1 != 0)
        })
    }

    pub(super) fn all(&self, blocks: &Range<u64>) -> bool {
        blocks.clone().all(|block| self.has(block))
    }

    pub(super) fn add(&self, block: u64) {
        let Some(piece) = self.piece(block) else {
            return;
        };
        let words = piece.get_or_init(|| (0..WORDS).map(|_| AtomicU64::new(0)).collect());
        if let Some(word) = words.get(word(block)) {
            word.fetch_or(1 << (block % 64), Ordering::Relaxed);
        }
    }

    pub(super) fn clear(&self) {
        for word in self.0.iter().filter_map(OnceLock::get).flatten() {
            word.store(0, Ordering::Relaxed);
        }
    }

    fn piece(&self, block: u64) -> Option<&OnceLock<Piece>> {
        self.0.get(usize::try_from(block / BITS).ok()?)
    }
}

/// Blocks that were changed since the server opened the image, until what was kept of it is loaded: that is not true of them.
#[derive(Debug)]
pub(super) struct Recalling {
    on: AtomicBool,
    changed: Seen,
}

impl Recalling {
    pub(super) fn new(blocks: u64) -> Self {
        Self {
            on: AtomicBool::new(true),
            changed: Seen::new(blocks),
        }
    }

    /// A change of these blocks begins; to be called before the map hears of it.
    pub(super) fn note(&self, blocks: &Range<u64>) {
        if self.on.load(Ordering::SeqCst) {
            blocks.clone().for_each(|block| self.changed.add(block));
        }
    }

    pub(super) fn is_changed(&self, block: u64) -> bool {
        !self.on.load(Ordering::SeqCst) || self.changed.has(block)
    }

    /// Nothing that was kept is loaded after this.
    pub(super) fn end(&self) {
        self.on.store(false, Ordering::SeqCst);
        self.changed.clear();
    }
}

fn word(block: u64) -> usize {
    usize::try_from(block % BITS / 64).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_image_costs_what_was_seen_of_it() {
        let seen = Seen::new(u64::MAX / 4096);
        assert!(size_of_val(&*seen.0) < 4 << 20);
        let blocks = [0, 1, 63, 64, BITS - 1, BITS, MOST - 1];
        for block in blocks {
            assert!(!seen.has(block));
            seen.add(block);
            assert!(seen.has(block));
        }
        assert!(seen.all(&(0..2)) && !seen.all(&(0..3)));
        seen.add(MOST);
        assert!(seen.has(MOST), "what the map cannot have is not learned");
        seen.clear();
        assert!(blocks.iter().all(|block| !seen.has(*block)));
        let made = seen.0.iter().filter(|piece| piece.get().is_some());
        assert_eq!(made.count(), 3);
    }
}
