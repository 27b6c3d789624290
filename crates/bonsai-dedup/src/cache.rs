//! Caches of blocks, by replacement policy.
//!
//! Blocks are dense numbers, so that everything about one is in an array. Each policy is made of queues
//! from which blocks may go at any place: a queue is a ring of numbers with one word for each block that
//! says where its entry is. An entry is dead when its block's word says otherwise, so moving a block writes
//! one word and one entry at the end, and no neighbour. Dead entries go when they come to the front, and all
//! at once when the ring is full. An access costs about one memory access that the processor cannot guess, where
//! doubly linked lists have three or four.
//!
//! Memory: 4 bytes for each block of the trace, and for each that the cache can hold 4 (CLOCK), 12 (LRU, SIEVE), 15
//! (S3-FIFO) or at most 40 (ARC, which remembers as many blocks as it holds).

mod adaptive;
mod clock;
mod lru;
mod queue;
mod s3fifo;
mod sieve;

use std::fmt;
use std::str::FromStr;

pub use adaptive::Arc;
pub use clock::Clock;
pub use lru::Lru;
pub use s3fifo::S3Fifo;
pub use sieve::Sieve;

/// Blocks that a cache can hold at most: 256 GiB of 4 KiB.
pub const MAX_CAPACITY: u32 = 1 << 26;

/// A cache of blocks `0..ids`, of one policy.
pub trait Cache {
    /// A block is read or written: whether it was there. It is afterwards.
    ///
    /// # Panics
    /// When there is no such block.
    fn access(&mut self, id: u32) -> bool;

    /// Whether a block is there.
    fn holds(&self, id: u32) -> bool;

    /// Blocks that are there.
    fn len(&self) -> u32;

    /// Whether none is.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that it takes.
    fn bytes(&self) -> usize;

    /// Loads what accesses to these blocks will want, all at once: the sum of it, to be kept alive.
    fn warm(&self, ids: &[u32]) -> u32;

    /// Blocks one after another; `seen` gets each place in `ids` and whether it was a hit.
    fn access_all(&mut self, ids: &[u32], mut seen: impl FnMut(usize, bool))
    where
        Self: Sized,
    {
        for (batch, start) in ids.chunks(BATCH).zip((0..).step_by(BATCH)) {
            std::hint::black_box(self.warm(batch));
            for (at, &id) in batch.iter().enumerate() {
                seen(start + at, self.access(id));
            }
        }
    }
}

/// Accesses whose memory is asked for at once; more than a core can wait for, and few enough to be
/// in its first cache still when their turn comes.
pub const BATCH: usize = 64;

/// A replacement policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Policy {
    /// The least recently used goes.
    Lru,
    /// Megiddo and Modha, FAST 2003: recency and frequency, balanced by what was evicted too early.
    Arc,
    /// Second chance: a queue whose oldest stays once for a use.
    Clock,
    /// Yang and others, SOSP 2023: a small queue before the main one.
    S3Fifo,
    /// Zhang and others, NSDI 2024: a hand over a queue that keeps its order.
    Sieve,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Lru, Self::Arc, Self::Clock, Self::S3Fifo, Self::Sieve];

    /// Its name, as it is read.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Arc => "arc",
            Self::Clock => "clock",
            Self::S3Fifo => "s3fifo",
            Self::Sieve => "sieve",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no such policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy `{0}`: it is one of lru, arc, clock, s3fifo, sieve")]
pub struct NoSuchPolicy(String);

impl FromStr for Policy {
    type Err = NoSuchPolicy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| NoSuchPolicy(text.to_owned()))
    }
}

/// Runs the same code with a cache of whichever policy: `$cache` is its name in there.
macro_rules! with_cache {
    ($policy:expr, $capacity:expr, $ids:expr, |$cache:ident| $body:expr) => {{
        use $crate::cache::{Arc, Clock, Lru, Policy, S3Fifo, Sieve};
        let (capacity, ids) = ($capacity, $ids);
        match $policy {
            Policy::Lru => {
                let $cache = Lru::new(capacity, ids);
                $body
            }
            Policy::Arc => {
                let $cache = Arc::new(capacity, ids);
                $body
            }
            Policy::Clock => {
                let $cache = Clock::new(capacity, ids);
                $body
            }
            Policy::S3Fifo => {
                let $cache = S3Fifo::new(capacity, ids);
                $body
            }
            Policy::Sieve => {
                let $cache = Sieve::new(capacity, ids);
                $body
            }
        }
    }};
}
pub(crate) use with_cache;

/// Hits of a sequence of blocks.
#[must_use]
pub fn hits(policy: Policy, capacity: u32, blocks: u32, ids: &[u32]) -> u64 {
    with_cache!(policy, capacity, blocks, |cache| {
        let mut cache = cache;
        let mut hits = 0;
        cache.access_all(ids, |_, hit| hits += u64::from(hit));
        hits
    })
}
