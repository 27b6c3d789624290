//! LRU.

use super::queue::{NOWHERE, Queue, Word, warm};
use super::{BATCH, Cache, MAX_CAPACITY};

/// The least recently used block goes.
#[derive(Debug)]
pub struct Lru {
    words: Vec<Word>,
    queue: Queue,
    capacity: u32,
}

impl Lru {
    /// A cache of `capacity` blocks (at most [`MAX_CAPACITY`], at least 1) of `0..ids`.
    #[must_use]
    pub fn new(capacity: u32, ids: u32) -> Self {
        let capacity = capacity.clamp(1, MAX_CAPACITY);
        Self {
            words: vec![NOWHERE; ids as usize],
            queue: Queue::new(0, capacity.min(ids), 3),
            capacity,
        }
    }
}

impl Cache for Lru {
    #[inline]
    fn access(&mut self, id: u32) -> bool {
        let hit = self.words[id as usize] != NOWHERE;
        if hit {
            self.queue.leave();
        } else if self.queue.len() == self.capacity
            && let Some(oldest) = self.queue.pop(&self.words)
        {
            self.words[oldest as usize] = NOWHERE;
        }
        self.queue.push(&mut self.words, id, 0);
        hit
    }

    fn holds(&self, id: u32) -> bool {
        self.words[id as usize] != NOWHERE
    }

    fn len(&self) -> u32 {
        self.queue.len()
    }

    fn bytes(&self) -> usize {
        self.words.capacity() * size_of::<Word>() + self.queue.bytes()
    }

    fn warm(&self, ids: &[u32]) -> u32 {
        warm(&self.words, ids) ^ self.queue.warm(&self.words, BATCH)
    }
}
