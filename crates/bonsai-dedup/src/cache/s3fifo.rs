//! S3-FIFO (Yang and others, SOSP 2023), with the parameters that libCacheSim calls `0.1000-2`.
//!
//! As there, until the cache is full the small queue takes all that comes; its share binds from then on. libCacheSim has
//! had another version since December 2024, which begins to fill the main queue before.

use super::queue::{NOWHERE, Queue, Word, flags, tag, warm, with_flags};
use super::{BATCH, Cache, MAX_CAPACITY};

const SMALL: u32 = 0;
const MAIN: u32 = 1;
const GHOST: u32 = 2;

/// Uses in the small queue after which a block goes to the main one.
const PROMOTED_AT: u32 = 2;
const MOST_USES: u32 = 3;

/// A tenth for newcomers, the rest for those that were used twice there or came back soon.
#[derive(Debug)]
pub struct S3Fifo {
    words: Vec<Word>,
    small: Queue,
    main: Queue,
    ghost: Queue,
    capacity: u32,
    main_size: u32,
    ghost_size: u32,
}

impl S3Fifo {
    /// A cache of `capacity` blocks (at most [`MAX_CAPACITY`], at least 1) of `0..ids`.
    #[must_use]
    pub fn new(capacity: u32, ids: u32) -> Self {
        let capacity = capacity.clamp(1, MAX_CAPACITY);
        let ghost_size = u32::try_from(u64::from(capacity) * 9 / 10).unwrap_or(capacity);
        let most = capacity.min(ids);
        Self {
            words: vec![NOWHERE; ids as usize],
            // Until the first eviction it may have all; so may the other, of what comes back.
            small: Queue::new(SMALL, most, 1),
            main: Queue::new(MAIN, most, 1),
            ghost: Queue::new(GHOST, ghost_size.min(ids), 2),
            capacity,
            main_size: capacity - capacity / 10,
            ghost_size,
        }
    }

    fn evict(&mut self) {
        if self.main.len() > self.main_size || self.small.len() == 0 {
            self.evict_main();
        } else {
            self.evict_small();
        }
    }

    fn evict_small(&mut self) {
        while let Some(oldest) = self.small.pop(&self.words) {
            if flags(self.words[oldest as usize]) >= PROMOTED_AT {
                self.main.push(&mut self.words, oldest, 0);
                continue;
            }
            self.remember(oldest);
            return;
        }
    }

    fn remember(&mut self, id: u32) {
        self.words[id as usize] = NOWHERE;
        if self.ghost_size == 0 {
            return;
        }
        if self.ghost.len() == self.ghost_size
            && let Some(oldest) = self.ghost.pop(&self.words)
        {
            self.words[oldest as usize] = NOWHERE;
        }
        self.ghost.push(&mut self.words, id, 0);
    }

    fn evict_main(&mut self) {
        while let Some(oldest) = self.main.pop(&self.words) {
            let uses = flags(self.words[oldest as usize]);
            if uses == 0 {
                self.words[oldest as usize] = NOWHERE;
                return;
            }
            self.main.push(&mut self.words, oldest, uses - 1);
        }
    }

    fn insert(&mut self, id: u32, came_back: bool) {
        // More than once where all of the small queue is promoted.
        while self.len() == self.capacity {
            self.evict();
        }
        if came_back {
            self.main.push(&mut self.words, id, 0);
        } else {
            self.small.push(&mut self.words, id, 0);
        }
    }
}

impl Cache for S3Fifo {
    #[inline]
    fn access(&mut self, id: u32) -> bool {
        let word = self.words[id as usize];
        let came_back = word != NOWHERE && tag(word) == GHOST;
        if word != NOWHERE && !came_back {
            self.words[id as usize] = with_flags(word, (flags(word) + 1).min(MOST_USES));
            return true;
        }
        if came_back {
            self.ghost.leave();
            self.words[id as usize] = NOWHERE;
        }
        self.insert(id, came_back);
        false
    }

    fn holds(&self, id: u32) -> bool {
        let word = self.words[id as usize];
        word != NOWHERE && tag(word) != GHOST
    }

    fn len(&self) -> u32 {
        self.small.len() + self.main.len()
    }

    fn bytes(&self) -> usize {
        let queues = self.small.bytes() + self.main.bytes() + self.ghost.bytes();
        self.words.capacity() * size_of::<Word>() + queues
    }

    fn warm(&self, ids: &[u32]) -> u32 {
        warm(&self.words, ids) ^ self.small.warm(&self.words, BATCH)
    }
}
