//! How often which demand was seen: buckets that grow by 5 %, and observations that count half
//! as much after a half-life.
//!
//! Buckets and decay are those of the Vertical Pod Autoscaler's recommender (kubernetes
//! `autoscaler`, `pkg/recommender/util`): what is new weighs `2^(age of the reference /
//! half-life)` more than what was there at the reference time, so that nothing old has to be
//! touched. Only buckets with something in them are kept: a service uses a few dozen.

use core::ops::Range;

/// Each bucket ends 5 % above the one before it (VPA's `HistogramBucketSizeGrowth`).
const GROWTH: f64 = 1.05;

/// The last bucket, of the highest rate there is: `ln(1e11) / ln(1.05)` is 519.1.
pub(crate) const BUCKETS: usize = 522;

/// The reference time moves on when weights have grown by 2 to the power of this.
const RENEW: f64 = 4.0;

/// What weighs less than this part of a new observation is dropped when the reference moves.
const FORGOTTEN: f32 = 1.0 / 256.0;

/// A histogram of rates.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram {
    /// Bucket and weight at the reference time, in the order of buckets.
    entries: Vec<(u16, f32)>,
    /// Seconds of the history's clock.
    reference_s: f64,
}

/// The bucket of a rate, thousandths of a unit per second. Bucket 0 is below one unit per
/// second; bucket `k` ends at `1.05^k`.
pub(crate) fn bucket_of(milli: u64) -> u16 {
    if milli < 1_000 {
        return 0;
    }
    let units = milli as f64 / 1_000.0;
    let bucket = (units.ln() / GROWTH.ln()).floor() + 1.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 1 and BUCKETS"
    )]
    let bucket = bucket.clamp(1.0, (BUCKETS - 1) as f64) as u16;
    bucket
}

/// Where a bucket ends, thousandths of a unit per second.
pub(crate) fn end_of(bucket: usize) -> u64 {
    if bucket == 0 {
        return 0;
    }
    let exponent = i32::try_from(bucket).unwrap_or(i32::MAX);
    milli(GROWTH.powi(exponent) * 1_000.0)
}

/// A rate that came out of floating point.
pub(crate) fn milli(rate: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and NaN is 0"
    )]
    let milli = rate.round() as u64;
    milli.min(crate::fill::UNBOUNDED)
}

impl Histogram {
    /// Notes so many seconds in a bucket at the time `now_s`.
    pub(crate) fn add(&mut self, bucket: u16, seconds: f64, now_s: f64, half_life_s: f64) {
        let weight = self.weight_now(now_s, half_life_s) * narrow(seconds);
        match self.entries.binary_search_by_key(&bucket, |entry| entry.0) {
            Ok(at) => self.entries[at].1 += weight,
            Err(at) => self.entries.insert(at, (bucket, weight)),
        }
    }

    /// What an observation of now weighs against those of the reference time, which is moved
    /// on where that is much.
    fn weight_now(&mut self, now_s: f64, half_life_s: f64) -> f32 {
        if self.entries.is_empty() {
            self.reference_s = now_s;
        }
        let age = (now_s - self.reference_s) / half_life_s;
        if age > RENEW {
            self.move_to(now_s, half_life_s);
            return 1.0;
        }
        narrow(age.exp2())
    }

    /// Moves the reference time.
    fn move_to(&mut self, now_s: f64, half_life_s: f64) {
        let factor = narrow((-(now_s - self.reference_s) / half_life_s).exp2());
        for entry in &mut self.entries {
            entry.1 *= factor;
        }
        self.entries.retain(|entry| entry.1 >= FORGOTTEN);
        self.reference_s = now_s;
    }

    /// How many observations of now all together are worth.
    pub(crate) fn total(&self, now_s: f64, half_life_s: f64) -> f64 {
        let sum: f64 = self.entries.iter().map(|entry| f64::from(entry.1)).sum();
        sum * (-(now_s - self.reference_s) / half_life_s).exp2()
    }

    /// The entries as they are worth now.
    pub(crate) fn worth(
        &self,
        now_s: f64,
        half_life_s: f64,
    ) -> impl Iterator<Item = (u16, f64)> + '_ {
        let factor = (-(now_s - self.reference_s) / half_life_s).exp2();
        let worth = move |&(bucket, weight): &(u16, f32)| (bucket, f64::from(weight) * factor);
        self.entries.iter().map(worth)
    }

    /// What [`Histogram::worth`] said at `now_s`. What no histogram would say is left out.
    pub(crate) fn from_worth(entries: &[(u16, f32)], now_s: f64) -> Self {
        let good = |entry: &&(u16, f32)| {
            usize::from(entry.0) < BUCKETS && entry.1.is_finite() && entry.1 > 0.0
        };
        let mut entries: Vec<(u16, f32)> = entries.iter().filter(good).copied().collect();
        entries.sort_by_key(|entry| entry.0);
        entries.dedup_by_key(|entry| entry.0);
        Self {
            entries,
            reference_s: now_s,
        }
    }
}

pub(crate) fn narrow(weight: f64) -> f32 {
    #[expect(clippy::cast_possible_truncation, reason = "a weight needs few digits")]
    let weight = weight as f32;
    weight
}

/// A mixture of histograms, of which percentiles are taken.
#[derive(Clone, Debug)]
pub(crate) struct Mixture {
    weights: Vec<f64>,
    /// Nothing is in other buckets than these.
    used: Range<usize>,
}

impl Default for Mixture {
    fn default() -> Self {
        Self {
            weights: vec![0.0; BUCKETS],
            used: 0..0,
        }
    }
}

impl Mixture {
    /// Nothing in it.
    pub(crate) fn clear(&mut self) {
        self.weights[self.used.clone()].fill(0.0);
        self.used = 0..0;
    }

    /// Adds a histogram's entries, each `factor` times.
    pub(crate) fn add(&mut self, entries: impl Iterator<Item = (u16, f64)>, factor: f64) {
        for (bucket, weight) in entries {
            let bucket = usize::from(bucket);
            self.weights[bucket] += weight * factor;
            self.used = if self.used.is_empty() {
                bucket..bucket + 1
            } else {
                self.used.start.min(bucket)..self.used.end.max(bucket + 1)
            };
        }
    }

    /// The end of the bucket below which so many thousandths of the weight are; `None` where
    /// nothing is known.
    pub(crate) fn percentile(&self, thousandths: u32) -> Option<u64> {
        let total = self.total();
        if total <= 0.0 {
            return None;
        }
        let below = total * f64::from(thousandths) / 1_000.0;
        let mut sum = 0.0;
        let mut last = 0;
        for (bucket, weight) in self.entries() {
            sum += weight;
            last = bucket;
            if sum >= below {
                break;
            }
        }
        Some(end_of(last))
    }

    /// Rate and probability of each bucket with something in it, the rate in its middle.
    pub(crate) fn distribution(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let total = self.total();
        let middle = |bucket: usize| end_of(bucket) as f64 / GROWTH.sqrt();
        self.entries()
            .map(move |(bucket, weight)| (middle(bucket), weight / total))
    }

    fn total(&self) -> f64 {
        self.weights[self.used.clone()].iter().sum()
    }

    /// Buckets with something in them.
    fn entries(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        let entries = self
            .used
            .clone()
            .map(|bucket| (bucket, self.weights[bucket]));
        entries.filter(|entry| entry.1 > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_S: f64 = 86_400.0;

    fn add(histogram: &mut Histogram, milli: u64, now_s: f64) {
        histogram.add(bucket_of(milli), 1.0, now_s, DAY_S);
    }

    fn mixture(histogram: &Histogram, now_s: f64) -> Mixture {
        let mut mixture = Mixture::default();
        mixture.add(histogram.worth(now_s, DAY_S), 1.0);
        mixture
    }

    #[test]
    fn a_rate_is_in_its_bucket() {
        let mut milli = 1_000_u64;
        while milli < crate::fill::UNBOUNDED {
            let bucket = usize::from(bucket_of(milli));
            // A rate that is a bucket's end to the digit may be in either.
            assert!(
                end_of(bucket) + 1 >= milli && end_of(bucket - 1) <= milli + 1,
                "{milli}"
            );
            milli += milli / 7 + 1;
        }
        assert_eq!(bucket_of(999), 0);
        assert_eq!(usize::from(bucket_of(crate::fill::UNBOUNDED)), BUCKETS - 2);
        assert_eq!(usize::from(bucket_of(u64::MAX)), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_within_a_bucket() {
        let mut histogram = Histogram::default();
        for value in 1..=1_000_u64 {
            add(&mut histogram, value * 1_000_000, 0.0);
        }
        let mixture = mixture(&histogram, 0.0);
        for (thousandths, exact) in [(500, 500_u64), (900, 900), (950, 950), (1_000, 1_000)] {
            let found = mixture.percentile(thousandths).expect("known") as f64 / 1e6;
            let part = found / exact as f64;
            assert!((1.0..=1.051).contains(&part), "{thousandths}: {found}");
        }
        assert_eq!(Mixture::default().percentile(500), None);
    }

    #[test]
    fn an_observation_counts_half_after_a_half_life() {
        let mut histogram = Histogram::default();
        add(&mut histogram, 1_000_000, 0.0);
        add(&mut histogram, 2_000_000, DAY_S);
        let worth: Vec<f64> = histogram.worth(DAY_S, DAY_S).map(|entry| entry.1).collect();
        assert_eq!(worth, [0.5, 1.0]);
        assert_eq!(histogram.total(2.0 * DAY_S, DAY_S), 0.75);
        // Also when the reference has moved.
        add(&mut histogram, 3_000_000, 6.0 * DAY_S);
        let worth: Vec<f64> = histogram
            .worth(6.0 * DAY_S, DAY_S)
            .map(|entry| entry.1)
            .collect();
        assert_eq!(worth, [1.0 / 64.0, 1.0 / 32.0, 1.0]);
        // What is nearly forgotten makes room.
        add(&mut histogram, 3_000_000, 12.0 * DAY_S);
        assert_eq!(histogram.entries.len(), 1);
    }

    #[test]
    fn nonsense_from_outside_is_left_out() {
        let entries = [
            (3, 1.0),
            (2, f32::NAN),
            (600, 1.0),
            (1, -1.0),
            (3, 2.0),
            (1, 0.5),
        ];
        let histogram = Histogram::from_worth(&entries, 0.0);
        assert_eq!(histogram.entries, [(1, 0.5), (3, 1.0)]);
    }
}
