//! Hit ratios of LRU for every cache size, exact in one pass; [`crate::sample`] has them from a sample.

use crate::cache::BATCH;
use crate::distance::Distances;

/// Hits of reads and of writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Of reads.
    pub reads: u64,
    /// Of writes.
    pub writes: u64,
}

/// Requests, and for each size how many of them hit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Curve {
    /// Requests that read.
    pub reads: u64,
    /// Requests that write.
    pub writes: u64,
    /// Hits in a cache of as many blocks as the place says, plus one; after the last nothing changes.
    hits: Vec<Hits>,
}

impl Curve {
    /// Hits in a cache of `blocks`.
    #[must_use]
    pub fn at(&self, blocks: u64) -> Hits {
        let last = self
            .hits
            .len()
            .min(usize::try_from(blocks).unwrap_or(usize::MAX));
        last.checked_sub(1)
            .map(|at| self.hits[at])
            .unwrap_or_default()
    }

    /// The size from which on nothing changes: blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.hits.len() as u64
    }
}

/// Takes requests, and makes a curve of them.
#[derive(Debug)]
pub struct Mattson {
    distances: Distances,
    /// Reads and writes.
    requests: [u64; 2],
    /// Of both, how many had each distance: 4 bytes a block, and what did not fit.
    counts: [Vec<u32>; 2],
    carried: Vec<(usize, usize)>,
}

impl Mattson {
    /// For blocks `0..ids`.
    #[must_use]
    pub fn new(ids: u32) -> Self {
        Self {
            distances: Distances::new(ids),
            requests: [0; 2],
            counts: [vec![0; ids as usize], vec![0; ids as usize]],
            carried: Vec::new(),
        }
    }

    /// Blocks that are read or written, one after another.
    pub fn access_all(&mut self, ids: &[u32], is_write: impl Fn(usize) -> bool) {
        for (batch, start) in ids.chunks(BATCH).zip((0..).step_by(BATCH)) {
            std::hint::black_box(self.distances.warm(batch));
            for (at, &id) in batch.iter().enumerate() {
                self.access(id, is_write(start + at));
            }
        }
    }

    #[inline]
    fn access(&mut self, id: u32, is_write: bool) {
        let kind = usize::from(is_write);
        self.requests[kind] += 1;
        let Some(distance) = self.distances.access(id) else {
            return;
        };
        let count = &mut self.counts[kind][distance as usize];
        *count = count.wrapping_add(1);
        if *count == 0 {
            self.carried.push((kind, distance as usize));
        }
    }

    /// The curve.
    #[must_use]
    pub fn finish(self) -> Curve {
        drop(self.distances);
        let [read, written] = self.counts;
        let most = |counts: &[u32]| {
            counts
                .iter()
                .rposition(|&count| count > 0)
                .map_or(0, |at| at + 1)
        };
        let carried = self.carried.iter().map(|(_, at)| at + 1).max();
        let sizes = most(&read).max(most(&written)).max(carried.unwrap_or(0));
        let pairs = read.iter().zip(&written).take(sizes);
        let mut hits: Vec<Hits> = pairs
            .map(|(&reads, &writes)| Hits {
                reads: reads.into(),
                writes: writes.into(),
            })
            .collect();
        for (kind, at) in self.carried {
            let of = &mut hits[at];
            *(if kind == 0 {
                &mut of.reads
            } else {
                &mut of.writes
            }) += 1 << 32;
        }
        let mut sum = Hits::default();
        for hits in &mut hits {
            sum.reads += hits.reads;
            sum.writes += hits.writes;
            *hits = sum;
        }
        Curve {
            reads: self.requests[0],
            writes: self.requests[1],
            hits,
        }
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let counts: usize = self.counts.iter().map(Vec::capacity).sum();
        self.distances.bytes() + counts * size_of::<u32>()
    }
}
