//! SIEVE (Zhang and others, NSDI 2024).

use super::queue::{NOWHERE, Queue, Word, flags, place, warm, with_flags};
use super::{BATCH, Cache, MAX_CAPACITY};

/// A hand goes from the oldest to the newest, spares once what was used, and stays where it took one.
#[derive(Debug)]
pub struct Sieve {
    words: Vec<Word>,
    queue: Queue,
    /// The block that the hand looks at next; none: the oldest.
    hand: Option<u32>,
    capacity: u32,
}

impl Sieve {
    /// A cache of `capacity` blocks (at most [`MAX_CAPACITY`], at least 1) of `0..ids`.
    #[must_use]
    pub fn new(capacity: u32, ids: u32) -> Self {
        let capacity = capacity.clamp(1, MAX_CAPACITY);
        Self {
            words: vec![NOWHERE; ids as usize],
            queue: Queue::new(0, capacity.min(ids), 3),
            hand: None,
            capacity,
        }
    }

    fn evict(&mut self) {
        self.queue.trim(&self.words);
        let start = self.hand.map(|id| place(self.words[id as usize]));
        let mut at = self.queue.next_from(&self.words, start);
        while let Some(here) = at {
            let id = self.queue.at(here);
            let behind = self.queue.behind(here);
            let behind = behind.and_then(|next| self.queue.next_from(&self.words, Some(next)));
            let word = self.words[id as usize];
            if flags(word) == 0 {
                self.hand = behind.map(|next| self.queue.at(next));
                self.words[id as usize] = NOWHERE;
                self.queue.leave();
                return;
            }
            self.words[id as usize] = with_flags(word, 0);
            at = behind.or_else(|| self.queue.next_from(&self.words, None));
        }
    }
}

impl Cache for Sieve {
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
