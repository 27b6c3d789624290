//! ARC, as its paper has it (Megiddo and Modha, FAST 2003, Fig. 4).

use super::queue::{NOWHERE, Queue, Word, tag, warm};
use super::{BATCH, Cache, MAX_CAPACITY};

/// Queues: seen once, seen again, and what went from each of them.
const T1: u32 = 0;
const T2: u32 = 1;
const B1: u32 = 2;
const B2: u32 = 3;

/// Two queues, for blocks seen once and more often, whose sizes follow what was evicted too early.
#[derive(Debug)]
pub struct Arc {
    words: Vec<Word>,
    t1: Queue,
    t2: Queue,
    b1: Queue,
    b2: Queue,
    /// What T1 should have: a real number, as it moves by ratios.
    p: f64,
    /// Whether that moves in whole blocks only.
    whole: bool,
    capacity: u32,
}

impl Arc {
    /// A cache of `capacity` blocks (at most [`MAX_CAPACITY`], at least 1) of `0..ids`.
    #[must_use]
    pub fn new(capacity: u32, ids: u32) -> Self {
        let capacity = capacity.clamp(1, MAX_CAPACITY);
        let most = capacity.min(ids);
        Self {
            words: vec![NOWHERE; ids as usize],
            t1: Queue::new(T1, most, 2),
            t2: Queue::new(T2, most, 2),
            b1: Queue::new(B1, most, 2),
            // With as many more as remember what T2 had before T1 was full.
            b2: Queue::new(B2, capacity.saturating_mul(2).min(ids), 2),
            p: 0.0,
            whole: false,
            capacity,
        }
    }

    /// The same, with ratios rounded down to whole blocks, as programs have it that count in integers: the
    /// content cache of IODEDUP in the thesis' simulator is one.
    #[must_use]
    pub fn in_whole_steps(capacity: u32, ids: u32) -> Self {
        Self {
            whole: true,
            ..Self::new(capacity, ids)
        }
    }

    fn step(&self, ratio: f64) -> f64 {
        let ratio = if self.whole { ratio.floor() } else { ratio };
        ratio.max(1.0)
    }

    /// One block of T1 or T2 goes, and is remembered.
    fn replace(&mut self, in_b2: bool) {
        let t1 = f64::from(self.t1.len());
        if t1 > 0.0 && (t1 > self.p || t1 >= self.p && in_b2) {
            if let Some(id) = self.t1.pop(&self.words) {
                self.b1.push(&mut self.words, id, 0);
            }
        } else if let Some(id) = self.t2.pop(&self.words) {
            self.b2.push(&mut self.words, id, 0);
        }
    }

    fn is_full(&self) -> bool {
        self.t1.len() + self.t2.len() >= self.capacity
    }

    /// It was evicted too early: the queue that it had been in should have more.
    fn recall(&mut self, in_b2: bool) {
        let (b1, b2) = (f64::from(self.b1.len()), f64::from(self.b2.len()));
        if in_b2 {
            self.p = (self.p - self.step(b1 / b2)).max(0.0);
        } else {
            self.p = (self.p + self.step(b2 / b1)).min(self.capacity.into());
        }
        if self.is_full() {
            self.replace(in_b2);
        }
        let from = if in_b2 { &mut self.b2 } else { &mut self.b1 };
        from.leave();
    }

    /// Room for a block that was never seen, or long ago.
    fn make_room(&mut self) {
        let l1 = self.t1.len() + self.b1.len();
        let all = l1 + self.t2.len() + self.b2.len();
        if l1 == self.capacity {
            let oldest = if self.t1.len() < self.capacity {
                let oldest = self.b1.pop(&self.words);
                self.forget(oldest);
                self.replace(false);
                return;
            } else {
                self.t1.pop(&self.words)
            };
            self.forget(oldest);
        } else if self.is_full() {
            if all >= 2 * self.capacity {
                let oldest = self.b2.pop(&self.words);
                self.forget(oldest);
            }
            self.replace(false);
        }
    }

    fn forget(&mut self, id: Option<u32>) {
        if let Some(id) = id {
            self.words[id as usize] = NOWHERE;
        }
    }
}

impl Cache for Arc {
    #[inline]
    fn access(&mut self, id: u32) -> bool {
        let word = self.words[id as usize];
        if word == NOWHERE {
            self.make_room();
            self.t1.push(&mut self.words, id, 0);
            return false;
        }
        let hit = match tag(word) {
            T1 => {
                self.t1.leave();
                true
            }
            T2 => {
                self.t2.leave();
                true
            }
            ghosts => {
                self.recall(ghosts == B2);
                false
            }
        };
        self.t2.push(&mut self.words, id, 0);
        hit
    }

    fn holds(&self, id: u32) -> bool {
        let word = self.words[id as usize];
        word != NOWHERE && tag(word) <= T2
    }

    fn len(&self) -> u32 {
        self.t1.len() + self.t2.len()
    }

    fn bytes(&self) -> usize {
        let queues = [&self.t1, &self.t2, &self.b1, &self.b2];
        let queues: usize = queues.into_iter().map(Queue::bytes).sum();
        self.words.capacity() * size_of::<Word>() + queues
    }

    fn warm(&self, ids: &[u32]) -> u32 {
        let oldest = self.t1.warm(&self.words, BATCH) ^ self.b1.warm(&self.words, BATCH);
        warm(&self.words, ids) ^ oldest
    }
}
