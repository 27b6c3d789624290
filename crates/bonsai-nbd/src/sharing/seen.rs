//! Which blocks were learned, or given to the learner: a bit each, so that reads of what is known need no lock.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// A bit for each block of an image; 32 MiB for a tebibyte, of which the system gives what is used.
#[derive(Debug)]
pub(super) struct Seen(Box<[AtomicU64]>);

impl Seen {
    pub(super) fn new(blocks: u64) -> Self {
        let words = usize::try_from(blocks.div_ceil(64)).unwrap_or(0);
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    pub(super) fn has(&self, block: u64) -> bool {
        self.word(block)
            .is_none_or(|word| word.load(Ordering::Relaxed) >> (block % 64) & 1 != 0)
    }

    pub(super) fn all(&self, blocks: &Range<u64>) -> bool {
        blocks.clone().all(|block| self.has(block))
    }

    pub(super) fn add(&self, block: u64) {
        if let Some(word) = self.word(block) {
            word.fetch_or(1 << (block % 64), Ordering::Relaxed);
        }
    }

    pub(super) fn clear(&self) {
        for word in &self.0 {
            word.store(0, Ordering::Relaxed);
        }
    }

    fn word(&self, block: u64) -> Option<&AtomicU64> {
        self.0.get(usize::try_from(block / 64).ok()?)
    }
}
