//! CLOCK.

use super::queue::{NOWHERE, Queue, Word, flags, warm, with_flags};
use super::{BATCH, Cache, MAX_CAPACITY};

/// The oldest goes unless it was used since it came or was last spared.
#[derive(Debug)]
pub struct Clock {
    words: Vec<Word>,
    queue: Queue,
    capacity: u32,
}

impl Clock {
    /// A cache of `capacity` blocks (at most [`MAX_CAPACITY`], at least 1) of `0..ids`.
    #[must_use]
    pub fn new(capacity: u32, ids: u32) -> Self {
        let capacity = capacity.clamp(1, MAX_CAPACITY);
        Self {
            words: vec![NOWHERE; ids as usize],
            queue: Queue::new(0, capacity.min(ids), 1),
            capacity,
        }
    }

    fn evict(&mut self) {
        while let Some(oldest) = self.queue.pop(&self.words) {
            if flags(self.words[oldest as usize]) == 0 {
                self.words[oldest as usize] = NOWHERE;
                return;
            }
            self.queue.push(&mut self.words, oldest, 0);
        }
    }
}

impl Cache for Clock {
    #[inline]
    fn access(&mut self, id: u32) -> bool {
        let word = self.words[id as usize];
        if word != NOWHERE {
            self.words[id as usize] = with_flags(word, 1);
            return true;
        }
        if self.queue.len() == self.capacity {
            self.evict();
        }
        self.queue.push(&mut self.words, id, 0);
        false
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
