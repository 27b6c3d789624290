//! Which blocks were learned, or given to the learner: a bit each, so that reads of what is known need no lock.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Words of a piece: 128 MiB of an image.
const WORDS: usize = 512;
const BITS: u64 = 64 * WORDS as u64;

/// Blocks that the map can have of a volume. What is beyond is never learned.
const MOST: u64 = 1 << 32;

/// A piece is of the time that it was used in last: at another time, none of its bits counts.
#[derive(Debug)]
struct Piece {
    time: AtomicU32,
    words: [AtomicU64; WORDS],
}

/// A bit for each block of an image: 32 MiB for a tebibyte, of which pieces are made when they are used, as an image may be
/// large and nearly empty.
#[derive(Debug)]
pub(super) struct Seen {
    pieces: Box<[OnceLock<Box<Piece>>]>,
    /// How often all was cleared.
    time: AtomicU32,
}

impl Seen {
    pub(super) fn new(blocks: u64) -> Self {
        let pieces = usize::try_from(blocks.min(MOST).div_ceil(BITS)).unwrap_or(0);
        Self {
            pieces: (0..pieces).map(|_| OnceLock::new()).collect(),
            time: AtomicU32::new(0),
        }
    }

    pub(super) fn has(&self, block: u64) -> bool {
        self.piece(block).is_none_or(|piece| {
            let now = self.time.load(Ordering::Acquire);
            let piece = piece.get();
            let piece = piece.filter(|piece| piece.time.load(Ordering::Acquire) == now);
            let word = piece.and_then(|piece| piece.words.get(word(block)));
            word.is_some_and(|word| word.load(Ordering::Relaxed) >> (block % 64) & 1 != 0)
        })
    }

    pub(super) fn all(&self, blocks: &Range<u64>) -> bool {
        blocks.clone().all(|block| self.has(block))
    }

    pub(super) fn add(&self, block: u64) {
        self.add_bits(block, 1 << (block % 64));
    }

    /// Adds blocks, a word of them at a time.
    pub(super) fn add_all(&self, blocks: &Range<u64>) {
        let mut at = blocks.start;
        while at < blocks.end {
            let next = blocks.end.min((at / 64 + 1) * 64);
            self.add_bits(at, u64::MAX >> (64 - (next - at)) << (at % 64));
            at = next;
        }
    }

    /// Adds blocks of the word that has `block`.
    fn add_bits(&self, block: u64, bits: u64) {
        let Some(piece) = self.piece(block) else {
            return;
        };
        let now = self.time.load(Ordering::Acquire);
        let piece = piece.get_or_init(|| {
            Box::new(Piece {
                time: AtomicU32::new(now),
                words: [const { AtomicU64::new(0) }; WORDS],
            })
        });
        if piece.time.load(Ordering::Acquire) != now {
            // Of two that do so at once, the later may clear the other's bit: that block is learned once more.
            for word in &piece.words {
                word.store(0, Ordering::Relaxed);
            }
            piece.time.store(now, Ordering::Release);
        }
        if let Some(word) = piece.words.get(word(block)) {
            word.fetch_or(bits, Ordering::Relaxed);
        }
    }

    /// Takes as long however large the image is.
    pub(super) fn clear(&self) {
        self.time.fetch_add(1, Ordering::AcqRel);
    }

    fn piece(&self, block: u64) -> Option<&OnceLock<Box<Piece>>> {
        self.pieces.get(usize::try_from(block / BITS).ok()?)
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
            self.changed.add_all(blocks);
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
        assert!(size_of_val(&*seen.pieces) < 4 << 20);
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
        let made = seen.pieces.iter().filter(|piece| piece.get().is_some());
        assert_eq!(made.count(), 3);
    }

    #[test]
    fn blocks_that_are_added_together_are_those() {
        let ends = [0, 1, 5, 63, 64, 65, 127, 128, 130, 256];
        let starts = [0, BITS - 128];
        for start in starts {
            for (first, end) in ends
                .iter()
                .flat_map(|a| ends.map(|b| (start + a, start + b)))
            {
                let seen = Seen::new(2 * BITS);
                seen.add_all(&(first..end));
                let around = start..start + 300;
                let has: Vec<u64> = around.filter(|block| seen.has(*block)).collect();
                assert_eq!(has, (first..end).collect::<Vec<_>>());
            }
        }
    }
}
