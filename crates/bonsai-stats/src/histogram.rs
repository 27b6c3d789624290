//! A histogram of delays with fixed buckets on a logarithmic scale.
//!
//! # Buckets
//! ```text
//! index   0      1       2       3     4     5     6     ...  62              63
//! from    0      1 us    1.5 us  2 us  3 us  4 us  6 us  ...  1610.612736 s   2147.483648 s
//! ```
//! Two buckets per power of two, cut at 1 and 1.5 times 2^k microseconds, so a
//! bucket is half or a third as wide as its lower bound. The bounds are fixed:
//! histograms of different processes, versions and machines can be added.

/// Buckets of a histogram.
pub const BUCKETS: usize = 64;

/// The last bucket, which has no upper bound.
const TOP: usize = BUCKETS - 1;

/// Half the lower bound of bucket 1: the grain in which both cuts of an octave
/// are whole.
const GRAIN_NS: u64 = 500;

/// The bucket of a delay in ns, 0 to 63.
#[must_use]
pub const fn bucket_of(ns: u64) -> usize {
    let grains = ns / GRAIN_NS;
    if grains < 2 {
        return 0;
    }
    // The octave, counted from 1 us, and the bit below the leading one.
    let octave = grains.ilog2() - 1;
    let upper = (grains >> octave) & 1;
    let index = 2 * octave as usize + upper as usize + 1;
    if index < TOP { index } else { TOP }
}

/// The bounds of a bucket in ns, the lower one inside and the upper one outside.
/// The top bucket ends at `u64::MAX`, which stands for no bound and is inside;
/// an index above it counts as the top.
#[must_use]
pub const fn bucket_bounds(index: usize) -> (u64, u64) {
    match index {
        0 => (0, lower(1)),
        1..TOP => (lower(index), lower(index + 1)),
        _ => (lower(TOP), u64::MAX),
    }
}

/// The lower bound of a bucket from 1 to [`TOP`], ns.
const fn lower(index: usize) -> u64 {
    let step = index - 1;
    let sub = (step % 2) as u64;
    ((2 + sub) * GRAIN_NS) << (step / 2)
}

/// How many delays fell into each bucket. Counts saturate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogHistogram {
    counts: [u64; BUCKETS],
}

impl LogHistogram {
    /// A histogram of these counts.
    #[must_use]
    pub const fn from_counts(counts: [u64; BUCKETS]) -> Self {
        Self { counts }
    }

    /// The counts by bucket.
    #[must_use]
    pub const fn counts(&self) -> &[u64; BUCKETS] {
        &self.counts
    }

    /// Counts `n` more delays in a bucket; an index above the top counts there.
    pub fn add(&mut self, index: usize, n: u64) {
        let count = &mut self.counts[index.min(TOP)];
        *count = count.saturating_add(n);
    }

    /// Counts one delay of `ns`.
    pub fn record(&mut self, ns: u64) {
        self.add(bucket_of(ns), 1);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (index, n) in other.counts.iter().enumerate() {
            self.add(index, *n);
        }
    }

    /// What was counted since `earlier`, a reading of the same histogram. A
    /// count that went down, because the histogram was made anew, gives zero.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut counts = self.counts;
        for (count, before) in counts.iter_mut().zip(earlier.counts) {
            *count = count.saturating_sub(before);
        }
        Self { counts }
    }

    /// All delays counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts
            .iter()
            .fold(0, |sum: u64, n| sum.saturating_add(*n))
    }

    /// Whether nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts == [0; BUCKETS]
    }

    /// The delay in ns that `percent` of the delays do not exceed, interpolated
    /// linearly in its bucket: off by less than the bucket is wide, half of the
    /// value at most (and 1 us in bucket 0). In the top bucket it is that
    /// bucket's lower bound, as the least that is known.
    ///
    /// `None` for an empty histogram, or a `percent` outside 0 to 100.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Option<u64> {
        if self.is_empty() || !(0.0..=100.0).contains(&percent) {
            return None;
        }
        // The same sum of floats as below: 100 % is reached in the last bucket
        // in use, whatever the rounding.
        let total: f64 = self.counts.iter().map(|n| *n as f64).sum();
        let rank = percent / 100.0 * total;
        let mut before = 0.0;
        for (index, n) in self.counts.iter().enumerate().filter(|(_, n)| **n > 0) {
            let n = *n as f64;
            if rank <= before + n {
                let (lo, hi) = bucket_bounds(index);
                let width = if index < TOP { hi - lo } else { 0 };
                return Some(lo + part_of(width, (rank - before) / n));
            }
            before += n;
        }
        None
    }

    /// The upper bound of the highest bucket in use, ns: no delay was as long,
    /// or `u64::MAX` if some fell into the top bucket, which has no bound.
    /// `None` for an empty histogram.
    #[must_use]
    pub fn max_bound(&self) -> Option<u64> {
        let highest = self.counts.iter().rposition(|n| *n > 0)?;
        Some(bucket_bounds(highest).1)
    }
}

impl Default for LogHistogram {
    /// An empty histogram.
    fn default() -> Self {
        Self::from_counts([0; BUCKETS])
    }
}

/// `width * fraction`, rounded down, for a fraction of 0 to 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative, and at most the width of a bucket below the top, 2^40"
)]
fn part_of(width: u64, fraction: f64) -> u64 {
    (width as f64 * fraction) as u64
}
