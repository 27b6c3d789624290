//! How far a median can be trusted: bootstrap intervals.
//!
//! A bootstrap draws samples of the same size from the sample, with
//! replacement, and looks how much their medians differ (Efron, Annals of
//! Statistics 7, 1979). The interval is the percentile interval: the middle
//! `confidence` of those medians. It assumes nothing about the distribution,
//! and the values to be independent: the rounds of an interleaved benchmark,
//! not consecutive calls.
//!
//! # Limits
//! Below about ten values the interval is somewhat too narrow, and below five it
//! says little: the sample has too few different medians to draw.

use crate::sample::{all_finite, median_of_sorted, quantile_of_sorted, sorted};
use std::vec::Vec;

/// Samples drawn for an interval: the bounds of a 95 % interval then differ from
/// seed to seed by a few percent of its width.
pub const RESAMPLES: usize = 2_000;

/// `SplitMix64` (Steele, Lea, Flood, OOPSLA 2014): a small generator that passes
/// the usual tests of randomness and takes any seed. Not for secrets.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// A generator; equal seeds give equal sequences.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = self.state;
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, or 0 if `n` is 0. Numbers differ in probability by at
    /// most n / 2^64 of it.
    pub const fn below(&mut self, n: u64) -> u64 {
        ((self.next_u64() as u128 * n as u128) >> 64) as u64
    }
}

/// A closed interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Its lower bound.
    pub low: f64,
    /// Its upper bound.
    pub high: f64,
}

impl Interval {
    /// Whether a value lies in it.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// How wide it is.
    #[must_use]
    pub fn width(&self) -> f64 {
        self.high - self.low
    }
}

/// A median and how far to trust it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MedianEstimate {
    /// The median of the sample.
    pub median: f64,
    /// Where the median of what was sampled lies, with the confidence asked for.
    pub interval: Interval,
    /// Values in the sample.
    pub count: usize,
}

impl MedianEstimate {
    /// The median with its bootstrap interval, from [`RESAMPLES`] samples.
    ///
    /// `None` below two values, for a value that is not finite, or a
    /// `confidence` that is not between 0 and 1, such as 0.95.
    #[must_use]
    pub fn of(values: &[f64], confidence: f64, seed: u64) -> Option<Self> {
        let sorted = sorted(values)?;
        let inside = confidence > 0.0 && confidence < 1.0;
        if sorted.len() < 2 || !inside {
            return None;
        }
        let mut random = SplitMix64::new(seed);
        let mut ranks = std::vec![0; sorted.len()];
        let mut medians: Vec<f64> = (0..RESAMPLES)
            .map(|_| resampled_median(&sorted, &mut ranks, &mut random))
            .collect();
        medians.sort_unstable_by(f64::total_cmp);
        let tail = (1.0 - confidence) / 2.0;
        let interval = Interval {
            low: quantile_of_sorted(&medians, tail),
            high: quantile_of_sorted(&medians, 1.0 - tail),
        };
        Some(Self {
            median: median_of_sorted(&sorted),
            interval,
            count: sorted.len(),
        })
    }
}

/// The median of one sample drawn from `sorted` with replacement. Ranks are
/// drawn, not values: they are cheaper to select from. `ranks` is scratch space
/// of the same length.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a rank is below the length of a slice"
)]
fn resampled_median(sorted: &[f64], ranks: &mut [usize], random: &mut SplitMix64) -> f64 {
    let n = sorted.len();
    ranks.fill_with(|| random.below(n as u64) as usize);
    let (lower, &mut middle, _) = ranks.select_nth_unstable(n / 2);
    if !n.is_multiple_of(2) {
        return sorted[middle];
    }
    let before = lower.iter().max().map_or(middle, |rank| *rank);
    sorted[before].midpoint(sorted[middle])
}

/// Two variants measured in turn: what one costs as a multiple of the other.
///
/// The ratio is taken within each round, in which both met the same machine, and
/// the median over the rounds: slow drift and single disturbed rounds cancel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedRatio {
    /// The median of the ratios, with its 95 % interval. 1.02 means 2 % more
    /// than the base.
    pub ratio: MedianEstimate,
}

impl PairedRatio {
    /// Of rounds `(base, subject)`: the median of `subject / base`.
    ///
    /// `None` below two rounds, or for a value that is not finite or a base that
    /// is not above zero.
    #[must_use]
    pub fn of(rounds: &[(f64, f64)], seed: u64) -> Option<Self> {
        if rounds.iter().any(|(base, _)| *base <= 0.0) {
            return None;
        }
        let ratios: Vec<f64> = rounds
            .iter()
            .map(|(base, subject)| subject / base)
            .collect();
        // Infinity over infinity is caught too: it is not a number.
        if !all_finite(&ratios) || rounds.iter().any(|(base, _)| base.is_infinite()) {
            return None;
        }
        MedianEstimate::of(&ratios, 0.95, seed).map(|ratio| Self { ratio })
    }

    /// Whether the interval leaves open that there is no difference.
    #[must_use]
    pub fn may_be_equal(&self) -> bool {
        self.ratio.interval.contains(1.0)
    }

    /// The median difference as a part of the base: 0.02 is 2 % more.
    #[must_use]
    pub fn relative_difference(&self) -> f64 {
        self.ratio.median - 1.0
    }
}
