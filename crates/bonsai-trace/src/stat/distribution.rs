//! How often which value came.

use serde::Serialize;

/// Values up to here have a bin each; above, an octave has as many, which is 1.6 % of a value.
const EXACT: u64 = 64;
const BITS: u32 = EXACT.trailing_zeros();

/// A distribution of whole numbers, in bins of at most 1.6 % of their value.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    bins: Vec<u64>,
    count: u64,
    max: u64,
}

fn bin(value: u64) -> usize {
    if value < EXACT {
        return usize::try_from(value).unwrap_or(0);
    }
    let octave = value.ilog2() - BITS;
    let within = (value >> octave) - EXACT;
    usize::try_from(u64::from(octave + 1) * EXACT + within).unwrap_or(usize::MAX)
}

/// The least value of a bin.
fn least(bin: usize) -> u64 {
    let bin = bin as u64;
    if bin < EXACT {
        return bin;
    }
    let octave = bin / EXACT - 1;
    let within = bin % EXACT + EXACT;
    u32::try_from(octave)
        .ok()
        .and_then(|octave| within.checked_mul(1_u64.checked_shl(octave)?))
        .unwrap_or(u64::MAX)
}

impl Distribution {
    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        let bin = bin(value);
        if self.bins.len() <= bin {
            self.bins.resize(bin + 1, 0);
        }
        self.bins[bin] += 1;
        self.count += 1;
        self.max = self.max.max(value);
    }

    /// How many values there are.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The largest one.
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// How many values are below `limit`, to the bin.
    pub fn below(&self, limit: u64) -> u64 {
        let end = bin(limit).min(self.bins.len());
        self.bins[..end].iter().sum()
    }

    /// The least value such that a part of all, 0 to 1, is up to it, to the bin.
    pub fn percentile(&self, part: f64) -> u64 {
        let wanted = part * self.count as f64;
        let mut sum = 0;
        for (n, count) in self.bins.iter().enumerate() {
            sum += count;
            if sum as f64 >= wanted && sum > 0 {
                return least(n).min(self.max);
            }
        }
        self.max
    }

    /// Values at which the distribution grows, and how many are up to there: least value of the bin, and all up
    /// to its end.
    pub fn steps(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut sum = 0;
        self.bins
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(move |(n, count)| {
                sum += count;
                (least(n), sum)
            })
    }

    /// The largest difference between two distributions: 0 to 1 (Kolmogorov and Smirnov).
    pub fn distance(&self, other: &Self) -> f64 {
        let (mut own, mut others, mut most) = (0, 0, 0.0_f64);
        let of = |of: &Self, n: usize| of.bins.get(n).copied().unwrap_or(0);
        for n in 0..self.bins.len().max(other.bins.len()) {
            own += of(self, n);
            others += of(other, n);
            let part = |sum: u64, all: u64| sum as f64 / all.max(1) as f64;
            most = most.max((part(own, self.count) - part(others, other.count)).abs());
        }
        most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_hold_their_values() {
        for value in (0..10_000).chain([1 << 40, u64::MAX / 3, u64::MAX]) {
            let low = least(bin(value));
            assert!(
                low <= value && (value - low) as f64 <= value as f64 / 60.0,
                "{value}"
            );
            assert_eq!(bin(low), bin(value));
        }
    }

    #[test]
    fn parts_and_distances() {
        let of = |values: std::ops::Range<u64>| {
            let mut all = Distribution::default();
            values.for_each(|value| all.add(value));
            all
        };
        let (one, other) = (of(0..50), of(25..75));
        assert_eq!(one.below(10), 10);
        assert_eq!((one.percentile(0.5), one.max()), (24, 49));
        assert!(one.distance(&one) < 1e-12);
        assert!((one.distance(&other) - 0.5).abs() < 1e-9);
    }
}
