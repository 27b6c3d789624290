//! LRU hit ratios for every cache size, estimated from a sample of blocks, with an error.
//!
//! # Definitions
//! Of N blocks, n are sampled: each one by a hash of its number, so with probability r = 1/one_in, and with all of its
//! requests (SHARDS: Waldspurger and others, FAST 2015). Distances are counted among sampled blocks, so a cache of C
//! blocks is one of t = (C-1) n/N + 1/2 sampled blocks. For each sampled block b, f is the number of its requests,
//! m those that miss at t, and k is 1 if its first request is of the kind that is counted (reads or writes).
//! A request with no more requests since the last one to its block than the smallest cache has blocks is a *certain hit*: it
//! hits at all sizes. These are counted of all blocks, sampled or not, and are not in f. So no f is large because of
//! requests that come in quick succession.
//!
//! # Estimate
//! The sums F of f and K of k over *all* blocks are counted exactly: that needs no distances. So misses are a regression
//! estimate (Särndal, Swensson and Wretman, Model Assisted Survey Sampling, 1992, chapter 6):
//! `M = Σ m/r + α (K - Σ k/r) + β (F - Σ f/r)`, where α and β fit m = αk + βf in the sample. Hot blocks that are in the
//! sample by chance, or are not, are mostly cancelled by that. At both ends it is exact: a small cache misses f, a large one k.
//!
//! # Error
//! Two things are wrong in a sample, and they are not independent, so their errors are added:
//! 1. Which blocks are in it. The variance of M is that of the residuals m - αk - βf, made larger by what a fit hides of
//!    blocks that it follows (leverage, HC3). As a few hot blocks may be missing in the sample, the variance is also
//!    computed over all blocks by classes of f, and classes with few sampled blocks get the relative residuals of the colder
//!    ones. The larger of both counts.
//! 2. Distances. Of D blocks between two requests a binomial number is sampled, so a threshold t is off by
//!    sqrt(t (1 - t/n)) standard errors. All distances might be off in the same direction (loops are), so the
//!    error is the largest change of the estimate over that range.
//!
//! # Limits
//! Fewer than [`FEWEST`] sampled blocks say nothing: the error is 1 then. A block hotter than all sampled ones together
//! can break the error; `tests/it/sample.rs` counts how often it holds.

use crate::cache::BATCH;
use crate::distance::Distances;
use crate::drive::mix;

/// Standard errors to each side: 95 % of a normal distribution are within 1.96.
const Z: f64 = 2.0;

/// Sampled blocks, of which fewer give no error.
pub const FEWEST: usize = 8;

/// Classes of blocks by the number of bits of their requests.
const CLASSES: usize = 33;

/// The first request of a block is a write; the other bits count writes.
const FIRST_WRITE: u32 = 1 << 31;

const NONE: u32 = u32::MAX;

/// Requests of a block.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    reads: u32,
    writes: u32,
}

impl Count {
    fn of(self, write: bool) -> u32 {
        if write {
            self.writes & !FIRST_WRITE
        } else {
            self.reads
        }
    }

    fn starts_with(self, write: bool) -> bool {
        (self.writes & FIRST_WRITE != 0) == write && self.is_known()
    }

    fn is_known(self) -> bool {
        self.reads | self.writes != 0
    }

    #[inline]
    fn add(&mut self, write: bool) {
        if !write {
            self.reads = self.reads.saturating_add(1);
        } else if !self.is_known() {
            self.writes = FIRST_WRITE | 1;
        } else if self.writes & !FIRST_WRITE != !FIRST_WRITE {
            self.writes += 1;
        }
    }
}

/// A hit ratio and its error, both 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The hit ratio.
    pub ratio: f64,
    /// Half of the 95 % confidence interval around it.
    pub error: f64,
}

impl Estimate {
    const EMPTY: Self = Self {
        ratio: 0.0,
        error: 0.0,
    };
}

/// Hit ratios of a cache of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampledHits {
    /// Of reads.
    pub reads: Estimate,
    /// Of writes.
    pub writes: Estimate,
    /// Of both.
    pub all: Estimate,
}

/// What a sampled request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    CertainHit,
}

/// Takes requests, and estimates hit ratios from those of a sample of the blocks. 16 bytes a block, and 16 to 24 a
/// sampled request.
#[derive(Debug)]
pub struct Shards {
    counts: Vec<Count>,
    /// The last request of each block, by its number modulo 2^32.
    last: Vec<u32>,
    /// Requests so far.
    requests: u64,
    /// Certain hits: reads and writes.
    certain: [u64; 2],
    sampled: Vec<(u32, Kind)>,
    sizes: Vec<u64>,
    /// The smallest of the sizes, blocks.
    smallest: u64,
    seed: u64,
    below: u64,
    rate: f64,
}

impl Shards {
    /// Of blocks `0..ids`, one in `one_in` (at least 2) is sampled; which ones, `seed` says. Hit ratios are estimated at
    /// some sizes, blocks.
    #[must_use]
    pub fn new(ids: u32, one_in: u32, seed: u64, sizes: &[u64]) -> Self {
        let one_in = u64::from(one_in.max(2));
        Self {
            counts: vec![Count::default(); ids as usize],
            last: vec![0; ids as usize],
            requests: 0,
            certain: [0; 2],
            sampled: Vec::new(),
            sizes: sizes.to_vec(),
            smallest: sizes.iter().copied().min().unwrap_or(0),
            seed: mix(seed ^ 0x5bd1_e995_9e37_79b9),
            below: u64::MAX / one_in,
            rate: 1.0 / one_in as f64,
        }
    }

    /// Blocks that are read or written, one after another.
    pub fn access_all(&mut self, ids: &[u32], is_write: impl Fn(usize) -> bool) {
        for (at, &id) in ids.iter().enumerate() {
            let kind = self.count(id, is_write(at));
            if mix(u64::from(id) ^ self.seed) < self.below {
                self.sampled.push((id, kind));
            }
        }
    }

    #[inline]
    fn count(&mut self, id: u32, write: bool) -> Kind {
        #[expect(clippy::cast_possible_truncation, reason = "modulo 2^32")]
        let now = self.requests as u32;
        self.requests += 1;
        let last = std::mem::replace(&mut self.last[id as usize], now);
        let count = &mut self.counts[id as usize];
        if count.is_known() && u64::from(now.wrapping_sub(last)) <= self.smallest {
            self.certain[usize::from(write)] += 1;
            return Kind::CertainHit;
        }
        count.add(write);
        if write { Kind::Write } else { Kind::Read }
    }

    /// Hit ratios at the sizes, in their order.
    #[must_use]
    pub fn finish(self) -> Vec<SampledHits> {
        let used = self.counts.iter().filter(|of| of.is_known()).count() as f64;
        let (blocks, distances) = self.distances();
        let scale = Scale {
            sampled: blocks.len() as f64,
            all: used,
        };
        let sides = [(Kind::Read, false), (Kind::Write, true)].map(|(kind, write)| {
            let events = distances.iter().zip(&self.sampled);
            let events = events.filter(|(_, (_, of))| *of == kind);
            let events = events.map(|(event, _)| *event).collect();
            let certain = self.certain[usize::from(write)] as f64;
            Side::new(&self.counts, &blocks, write, (events, certain), self.rate)
        });
        let [read, written] = [&sides[0], &sides[1]].map(|side| side.requests + side.certain);
        let [reads, writes] = sides.map(|side| side.estimates(&self.sizes, scale));
        let both = reads.into_iter().zip(writes);
        both.map(|(reads, writes)| {
            let of = |value: fn(Estimate) -> f64| {
                (value(reads) * read + value(writes) * written) / (read + written).max(1.0)
            };
            let all = Estimate {
                ratio: of(|one| one.ratio),
                error: of(|one| one.error),
            };
            SampledHits { reads, writes, all }
        })
        .collect()
    }

    /// The sampled blocks, and of each sampled request its block's number among them and its distance.
    fn distances(&self) -> (Vec<u32>, Vec<(u32, u32)>) {
        let mut numbers = vec![NONE; self.counts.len()];
        let mut blocks = Vec::new();
        for &(id, _) in &self.sampled {
            let number = &mut numbers[id as usize];
            if *number == NONE {
                *number = u32::try_from(blocks.len()).unwrap_or(NONE);
                blocks.push(id);
            }
        }
        let mut distances = Distances::new(u32::try_from(blocks.len()).unwrap_or(NONE));
        let mut events = Vec::with_capacity(self.sampled.len());
        for batch in self.sampled.chunks(BATCH) {
            let mut ids = [0; BATCH];
            for (to, (id, _)) in ids.iter_mut().zip(batch) {
                *to = numbers[*id as usize];
            }
            std::hint::black_box(distances.warm(&ids[..batch.len()]));
            let ids = ids[..batch.len()].iter();
            events.extend(ids.map(|&id| (id, distances.access(id).unwrap_or(NONE))));
        }
        (blocks, events)
    }
}

/// Blocks in the sample, and all.
#[derive(Clone, Copy)]
struct Scale {
    sampled: f64,
    all: f64,
}

impl Scale {
    /// A cache of so many blocks, in sampled ones.
    fn threshold(self, blocks: u64) -> f64 {
        (blocks as f64 - 1.0).max(0.0) * self.sampled / self.all.max(1.0) + 0.5
    }

    /// How far off that may be, downwards and upwards (after Wilson's interval).
    fn around(self, threshold: f64) -> (f64, f64) {
        let rest = (1.0 - threshold / self.sampled).max(0.0);
        let deviation = Z * ((threshold - 0.5).max(0.0) * rest).sqrt();
        (
            (threshold - deviation).max(0.0),
            threshold + deviation + Z * Z / 2.0 * rest,
        )
    }
}

/// A sampled block.
#[derive(Clone, Copy)]
struct Block {
    requests: f64,
    /// 1 if its first request is of the kind that is counted.
    first: f64,
    class: usize,
    /// What its squared residual is multiplied with.
    weight: f64,
    misses: f64,
}

/// Sums over sampled blocks of products of requests (f), first requests (k) and misses (m).
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    ff: f64,
    fk: f64,
    kk: f64,
    fm: f64,
    km: f64,
    mm: f64,
}

impl Sums {
    fn add(&mut self, of: &Block, weight: f64) {
        self.ff += weight * of.requests * of.requests;
        self.fk += weight * of.requests * of.first;
        self.kk += weight * of.first * of.first;
        self.fm += weight * of.requests * of.misses;
        self.km += weight * of.first * of.misses;
        self.mm += weight * of.misses * of.misses;
    }

    /// A request that missed hits.
    fn hit(&mut self, of: &Block, weight: f64) {
        self.fm -= weight * of.requests;
        self.km -= weight * of.first;
        self.mm -= weight * (2.0 * of.misses - 1.0);
    }

    fn determinant(&self) -> Option<f64> {
        let found = self.ff * self.kk - self.fk * self.fk;
        (found > 1e-6 * self.ff * self.kk).then_some(found)
    }

    /// Coefficients of k and f that fit m best.
    fn fit(&self) -> (f64, f64) {
        match self.determinant() {
            Some(of) => (
                (self.km * self.ff - self.fm * self.fk) / of,
                (self.kk * self.fm - self.fk * self.km) / of,
            ),
            None if self.ff > 0.0 => (0.0, self.fm / self.ff),
            None => (0.0, 0.0),
        }
    }

    /// How much the fit follows one block, 0 to 1.
    fn leverage(&self, of: &Block) -> f64 {
        let (k, f) = (of.first, of.requests);
        match self.determinant() {
            Some(by) => (k * k * self.ff - 2.0 * k * f * self.fk + f * f * self.kk) / by,
            None if self.ff > 0.0 => f * f / self.ff,
            None => 0.0,
        }
    }

    /// The sum of squared residuals.
    fn residuals(&self, (alpha, beta): (f64, f64)) -> f64 {
        let squares = self.mm - 2.0 * (alpha * self.km + beta * self.fm)
            + alpha * alpha * self.kk
            + 2.0 * alpha * beta * self.fk
            + beta * beta * self.ff;
        squares.max(0.0)
    }
}

/// All blocks of a class, and the sampled ones.
#[derive(Clone, Copy, Default)]
struct Class {
    blocks: f64,
    squares: f64,
    sampled: f64,
    sampled_squares: f64,
    /// Weighted sums of the sampled ones.
    sums: Sums,
}

/// Reads, or writes.
struct Side {
    /// Requests of all blocks that are no certain hits, those that are, and first requests.
    requests: f64,
    certain: f64,
    first: f64,
    classes: [Class; CLASSES],
    blocks: Vec<Block>,
    sums: Sums,
    /// Requests and first requests of sampled blocks.
    sampled: f64,
    sampled_first: f64,
    /// Block and distance of sampled requests that are not a block's first, by their distances.
    events: Vec<(u32, u32)>,
    rate: f64,
    /// Whether enough blocks are sampled for an error.
    has_error: bool,
}

const fn class(requests: u32) -> usize {
    (u32::BITS - requests.leading_zeros()) as usize
}

impl Side {
    fn new(
        counts: &[Count],
        ids: &[u32],
        write: bool,
        (mut events, certain): (Vec<(u32, u32)>, f64),
        rate: f64,
    ) -> Self {
        events.retain(|(_, distance)| *distance != NONE);
        events.sort_unstable_by_key(|(_, distance)| *distance);
        let mut side = Self {
            requests: 0.0,
            certain,
            first: 0.0,
            classes: [Class::default(); CLASSES],
            blocks: Vec::with_capacity(ids.len()),
            sums: Sums::default(),
            sampled: 0.0,
            sampled_first: 0.0,
            events,
            rate,
            has_error: false,
        };
        let first = |count: Count| f64::from(u8::from(count.starts_with(write)));
        for &count in counts {
            let requests = f64::from(count.of(write));
            side.requests += requests;
            side.first += first(count);
            let class = &mut side.classes[class(count.of(write))];
            class.blocks += 1.0;
            class.squares += requests * requests;
        }
        for &id in ids {
            let count = counts[id as usize];
            let requests = f64::from(count.of(write));
            let block = Block {
                requests,
                first: first(count),
                class: class(count.of(write)),
                weight: 1.0,
                misses: requests,
            };
            side.sampled += requests;
            side.sampled_first += block.first;
            side.sums.add(&block, 1.0);
            side.blocks.push(block);
        }
        side.weigh();
        let requested = side.blocks.iter().filter(|of| of.requests > 0.0);
        side.has_error = requested.count() >= FEWEST;
        side
    }

    /// Weights of squared residuals, which the fit does not change.
    fn weigh(&mut self) {
        for block in &mut self.blocks {
            let rest = (1.0 - self.sums.leverage(block)).max(0.05);
            block.weight = 1.0 / (rest * rest);
            let class = &mut self.classes[block.class];
            class.sampled += 1.0;
            class.sampled_squares += block.requests * block.requests;
            class.sums.add(block, block.weight);
        }
    }

    fn estimates(mut self, sizes: &[u64], scale: Scale) -> Vec<Estimate> {
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        order.sort_unstable_by_key(|at| sizes[*at]);
        let mut estimates = vec![Estimate::EMPTY; sizes.len()];
        let mut hit = 0;
        for at in order {
            let threshold = scale.threshold(sizes[at]);
            while let Some(&(block, distance)) = self.events.get(hit)
                && f64::from(distance) < threshold.round()
            {
                let block = &mut self.blocks[block as usize];
                self.sums.hit(block, 1.0);
                self.classes[block.class].sums.hit(block, block.weight);
                block.misses -= 1.0;
                hit += 1;
            }
            estimates[at] = self.estimate(sizes[at], threshold, scale);
        }
        estimates
    }

    fn estimate(&self, blocks: u64, threshold: f64, scale: Scale) -> Estimate {
        let all = self.requests + self.certain;
        if all == 0.0 || blocks == 0 {
            return Estimate::EMPTY;
        }
        let most = 1.0 - self.first / all;
        if blocks as f64 >= scale.all {
            return Estimate {
                ratio: most,
                error: 0.0,
            };
        }
        let fit = self.sums.fit();
        let hits = self.hits(threshold);
        let misses = (self.sampled - hits) / self.rate
            + fit.0 * (self.first - self.sampled_first / self.rate)
            + fit.1 * (self.requests - self.sampled / self.rate);
        let (low, high) = scale.around(threshold);
        let apart = (self.hits(high) - hits).max(hits - self.hits(low)) / self.rate;
        let error = (apart + Z * self.variance(fit).sqrt()) / all;
        Estimate {
            ratio: (1.0 - misses / all).clamp(0.0, most),
            error: if self.has_error { error.min(1.0) } else { 1.0 },
        }
    }

    /// Sampled requests with less than a distance; between whole ones, in proportion.
    fn hits(&self, threshold: f64) -> f64 {
        let below = |whole: f64| {
            let found = self
                .events
                .partition_point(|(_, distance)| f64::from(*distance) < whole);
            found as f64
        };
        let part = threshold.fract();
        below(threshold.floor()) * (1.0 - part) + below(threshold.floor() + 1.0) * part
    }

    /// The variance of estimated misses.
    fn variance(&self, fit: (f64, f64)) -> f64 {
        // One more block with one hit: what is rare may be in no sample.
        let (mut sampled, mut modelled) = (1.0, 1.0 / self.rate);
        // Residuals and requests of the colder classes, squared.
        let (mut residuals, mut squares) = (0.0, 0.0);
        for class in &self.classes[1..] {
            let own = class.sums.residuals(fit);
            sampled += own;
            if class.sampled >= FEWEST as f64 {
                modelled += class.blocks * own / class.sampled;
                (residuals, squares) = (own, class.sampled_squares);
                continue;
            }
            residuals += own;
            squares += class.sampled_squares;
            // What nothing is known of may miss always.
            let relative = if squares > 0.0 {
                residuals / squares
            } else {
                1.0
            };
            modelled += class.squares * relative;
        }
        let rest = (1.0 - self.rate) / self.rate;
        (sampled / self.rate * rest).max(modelled * rest)
    }
}
