//! Hit ratios of LRU for every cache size: exact in one pass, or from a sample with an error bound.

use crate::cache::BATCH;
use crate::distance::Distances;
use crate::drive::mix;

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

/// Parts of a sample, each of which gives a curve of its own.
const PARTS: usize = 8;

/// 95 % of what is estimated from eight parts is this many standard errors around the mean at most (Student's t
/// with 7 degrees of freedom).
const T95: f64 = 2.365;

/// A curve from a sample of blocks: fixed-rate SHARDS with its adjustment (Waldspurger and others, FAST 2015).
///
/// All requests for a block are in the sample or none is, by a hash of its number. The sample is made of eight
/// parts by the same hash; how far they differ is the error bound. Misses are divided by the requests that a
/// sample of this rate should have: hot blocks that are in it by chance, or are not, change hits alone.
#[derive(Debug)]
pub struct Shards {
    parts: Vec<(Mattson, Vec<u32>, Vec<bool>)>,
    numbers: Vec<u32>,
    given: [u32; PARTS],
    below: u64,
    rate: f64,
    reads: u64,
    writes: u64,
}

/// A hit ratio and how far from the truth it may be, both 0 to 1: in 19 of 20 cases, where requests of hot
/// blocks do not outweigh all others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The hit ratio.
    pub ratio: f64,
    /// Half of the interval around it.
    pub error: f64,
}

impl Shards {
    /// Of blocks `0..ids`, one in `one_in` (at least 8) is looked at.
    #[must_use]
    pub fn new(ids: u32, one_in: u32) -> Self {
        let one_in = u64::from(one_in.max(8));
        let some = u32::try_from(u64::from(ids) / one_in / 4 + 64).unwrap_or(ids);
        let part = || (Mattson::new(some.min(ids)), Vec::new(), Vec::new());
        Self {
            parts: (0..PARTS).map(|_| part()).collect(),
            numbers: vec![u32::MAX; ids as usize],
            given: [0; PARTS],
            below: u64::MAX / one_in,
            rate: 1.0 / one_in as f64,
            reads: 0,
            writes: 0,
        }
    }

    /// Blocks that are read or written, one after another.
    pub fn access_all(&mut self, ids: &[u32], is_write: impl Fn(usize) -> bool) {
        let mut writes = 0;
        for (at, &id) in ids.iter().enumerate() {
            let write = is_write(at);
            writes += u64::from(write);
            let hash = mix(u64::from(id) ^ 0x5bd1_e995_0000_0000);
            if hash < self.below {
                self.take(id, hash % PARTS as u64, write);
            }
        }
        self.writes += writes;
        self.reads += ids.len() as u64 - writes;
    }

    fn take(&mut self, id: u32, part: u64, write: bool) {
        let part = usize::try_from(part).unwrap_or(0);
        let number = &mut self.numbers[id as usize];
        if *number == u32::MAX {
            *number = self.given[part];
            self.given[part] += 1;
        }
        let (_, ids, writes) = &mut self.parts[part];
        ids.push(*number);
        writes.push(write);
    }

    /// The curve.
    #[must_use]
    pub fn finish(self) -> Sampled {
        let given = self.given;
        let curves = self
            .parts
            .into_iter()
            .zip(given)
            .map(|((_, ids, writes), given)| {
                let mut mattson = Mattson::new(given);
                mattson.access_all(&ids, |at| writes[at]);
                mattson.finish()
            });
        Sampled {
            curves: curves.collect(),
            rate: self.rate / PARTS as f64,
            reads: self.reads,
            writes: self.writes,
        }
    }
}

/// What a sample says of all sizes.
#[derive(Clone, Debug)]
pub struct Sampled {
    curves: Vec<Curve>,
    rate: f64,
    /// Requests that read, in the sample or not.
    pub reads: u64,
    /// Requests that write, in the sample or not.
    pub writes: u64,
}

impl Sampled {
    /// The hit ratio of reads in a cache of `blocks`.
    #[must_use]
    pub fn reads_at(&self, blocks: u64) -> Estimate {
        self.estimate(blocks, self.reads, |curve, hits| curve.reads - hits.reads)
    }

    /// The hit ratio of writes in a cache of `blocks`.
    #[must_use]
    pub fn writes_at(&self, blocks: u64) -> Estimate {
        self.estimate(blocks, self.writes, |curve, hits| {
            curve.writes - hits.writes
        })
    }

    /// The hit ratio of all requests in a cache of `blocks`.
    #[must_use]
    pub fn at(&self, blocks: u64) -> Estimate {
        self.estimate(blocks, self.reads + self.writes, |curve, hits| {
            curve.reads + curve.writes - hits.reads - hits.writes
        })
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a part of a number of blocks"
    )]
    fn estimate(&self, blocks: u64, of: u64, misses: impl Fn(&Curve, Hits) -> u64) -> Estimate {
        let expected = of as f64 * self.rate;
        if expected == 0.0 {
            return Estimate {
                ratio: 0.0,
                error: 0.0,
            };
        }
        let scaled = (blocks as f64 * self.rate).round() as u64;
        let ratios = self.curves.iter().map(|curve| {
            let misses = misses(curve, curve.at(scaled));
            1.0 - misses as f64 / expected
        });
        let ratios: Vec<f64> = ratios.collect();
        let parts = ratios.len() as f64;
        let mean = ratios.iter().sum::<f64>() / parts;
        let squares: f64 = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum();
        let error = T95 * (squares / (parts - 1.0) / parts).sqrt();
        Estimate {
            ratio: mean.clamp(0.0, 1.0),
            error,
        }
    }
}
