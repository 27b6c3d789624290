//! Each policy beside a model of plain vectors, written from its definition.

use bonsai_dedup::cache::{Arc, Cache, Clock, Lru, S3Fifo, Sieve};
use proptest::prelude::*;

/// A policy in vectors: the newest is last.
trait Naive {
    fn access(&mut self, id: u32) -> bool;
}

fn take(list: &mut Vec<u32>, id: u32) -> bool {
    let found = list.iter().position(|&other| other == id);
    if let Some(at) = found {
        list.remove(at);
    }
    found.is_some()
}

struct NaiveLru(usize, Vec<u32>);

impl Naive for NaiveLru {
    fn access(&mut self, id: u32) -> bool {
        let hit = take(&mut self.1, id);
        if !hit && self.1.len() == self.0 {
            self.1.remove(0);
        }
        self.1.push(id);
        hit
    }
}

/// CLOCK and SIEVE: blocks with a mark, and a hand.
struct Marked {
    size: usize,
    list: Vec<(u32, bool)>,
    hand: usize,
    reinserts: bool,
}

impl Marked {
    fn evict(&mut self) {
        loop {
            if self.hand >= self.list.len() || self.reinserts {
                self.hand = 0;
            }
            let (id, marked) = self.list[self.hand];
            if !marked {
                self.list.remove(self.hand);
                return;
            }
            self.list[self.hand].1 = false;
            if self.reinserts {
                self.list.remove(0);
                self.list.push((id, false));
            } else {
                self.hand += 1;
            }
        }
    }
}

impl Naive for Marked {
    fn access(&mut self, id: u32) -> bool {
        if let Some(found) = self.list.iter_mut().find(|(other, _)| *other == id) {
            found.1 = true;
            return true;
        }
        if self.list.len() == self.size {
            self.evict();
            // A hand behind the newest is at the oldest, before the next one comes.
            if self.hand >= self.list.len() {
                self.hand = 0;
            }
        }
        self.list.push((id, false));
        false
    }
}

#[derive(Default)]
struct NaiveArc {
    c: usize,
    p: f64,
    whole: bool,
    t1: Vec<u32>,
    t2: Vec<u32>,
    b1: Vec<u32>,
    b2: Vec<u32>,
}

impl NaiveArc {
    fn ratio(&self, of: usize, to: usize) -> f64 {
        if self.whole {
            (of / to).max(1) as f64
        } else {
            (of as f64 / to as f64).max(1.0)
        }
    }

    fn replace(&mut self, in_b2: bool) {
        let t1 = self.t1.len() as f64;
        if t1 >= 1.0 && (t1 > self.p || in_b2 && t1 >= self.p) {
            self.b1.push(self.t1.remove(0));
        } else if !self.t2.is_empty() {
            self.b2.push(self.t2.remove(0));
        }
    }
}

impl Naive for NaiveArc {
    fn access(&mut self, id: u32) -> bool {
        if take(&mut self.t1, id) || take(&mut self.t2, id) {
            self.t2.push(id);
            return true;
        }
        if self.b1.contains(&id) {
            let ratio = self.ratio(self.b2.len(), self.b1.len());
            self.p = (self.p + ratio).min(self.c as f64);
            self.replace(false);
            take(&mut self.b1, id);
            self.t2.push(id);
        } else if self.b2.contains(&id) {
            let ratio = self.ratio(self.b1.len(), self.b2.len());
            self.p = (self.p - ratio).max(0.0);
            self.replace(true);
            take(&mut self.b2, id);
            self.t2.push(id);
        } else {
            let l1 = self.t1.len() + self.b1.len();
            let l2 = self.t2.len() + self.b2.len();
            if l1 == self.c {
                if self.t1.len() < self.c {
                    self.b1.remove(0);
                    self.replace(false);
                } else {
                    self.t1.remove(0);
                }
            } else if l1 + l2 >= self.c {
                if l1 + l2 == 2 * self.c {
                    self.b2.remove(0);
                }
                self.replace(false);
            }
            self.t1.push(id);
        }
        false
    }
}

struct NaiveS3 {
    size: usize,
    small: Vec<(u32, u32)>,
    main: Vec<(u32, u32)>,
    ghost: Vec<u32>,
}

impl NaiveS3 {
    fn evict(&mut self) {
        let small_size = self.size / 10;
        if self.main.len() > self.size - small_size || self.small.is_empty() {
            loop {
                let (id, uses) = self.main.remove(0);
                if uses == 0 {
                    return;
                }
                self.main.push((id, uses - 1));
            }
        }
        while !self.small.is_empty() {
            let (id, uses) = self.small.remove(0);
            if uses < 2 {
                self.ghost.push(id);
                if self.ghost.len() > self.size * 9 / 10 {
                    self.ghost.remove(0);
                }
                return;
            }
            self.main.push((id, 0));
        }
    }
}

impl Naive for NaiveS3 {
    fn access(&mut self, id: u32) -> bool {
        let both = self.small.iter_mut().chain(&mut self.main);
        if let Some(found) = both.into_iter().find(|(other, _)| *other == id) {
            found.1 = (found.1 + 1).min(3);
            return true;
        }
        let came_back = take(&mut self.ghost, id);
        while self.small.len() + self.main.len() >= self.size {
            self.evict();
        }
        if came_back {
            self.main.push((id, 0));
        } else {
            self.small.push((id, 0));
        }
        false
    }
}

fn all_of(mut cache: impl Cache, size: u32) -> impl FnMut(&[u32]) -> Vec<bool> {
    move |ids| {
        let mut seen = Vec::new();
        for &id in ids {
            let held = cache.holds(id);
            let hit = cache.access(id);
            assert_eq!(held, hit);
            assert!(cache.holds(id) && cache.len() <= size);
            seen.push(hit);
        }
        seen
    }
}

fn check(size: u32, ids: &[u32], blocks: u32) {
    let c = size as usize;
    let wanted = |mut naive: Box<dyn Naive>| -> Vec<bool> {
        ids.iter().map(|&id| naive.access(id)).collect()
    };
    let marked = |reinserts| {
        Box::new(Marked {
            size: c,
            list: Vec::new(),
            hand: 0,
            reinserts,
        })
    };
    assert_eq!(
        all_of(Lru::new(size, blocks), size)(ids),
        wanted(Box::new(NaiveLru(c, Vec::new()))),
        "LRU"
    );
    assert_eq!(
        all_of(Clock::new(size, blocks), size)(ids),
        wanted(marked(true)),
        "CLOCK"
    );
    assert_eq!(
        all_of(Sieve::new(size, blocks), size)(ids),
        wanted(marked(false)),
        "SIEVE"
    );
    for whole in [false, true] {
        let arc = NaiveArc {
            c,
            whole,
            ..NaiveArc::default()
        };
        let make = if whole { Arc::in_whole_steps } else { Arc::new };
        assert_eq!(
            all_of(make(size, blocks), size)(ids),
            wanted(Box::new(arc)),
            "ARC"
        );
    }
    let s3 = NaiveS3 {
        size: c,
        small: Vec::new(),
        main: Vec::new(),
        ghost: Vec::new(),
    };
    assert_eq!(
        all_of(S3Fifo::new(size, blocks), size)(ids),
        wanted(Box::new(s3)),
        "S3-FIFO"
    );
}

/// All sequences of seven of four blocks, in caches of one to four.
#[test]
fn all_short_sequences() {
    for number in 0..4_u32.pow(7) {
        let ids: Vec<u32> = (0..7).map(|n| number / 4_u32.pow(n) % 4).collect();
        for size in 1..=4 {
            check(size, &ids, 4);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Long enough for rings to be full many times.
    #[test]
    fn as_defined(size in 1_u32..40, ids in prop::collection::vec(prop_oneof![0_u32..60, 0_u32..12], 1..1500)) {
        check(size, &ids, 60);
    }
}
