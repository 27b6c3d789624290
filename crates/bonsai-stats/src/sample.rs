//! Location and spread of one sample.

use std::vec::Vec;

/// The values in ascending order; `None` if there are none, or one of them is
/// infinite or not a number.
pub(crate) fn sorted(values: &[f64]) -> Option<Vec<f64>> {
    if values.is_empty() || !all_finite(values) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    Some(sorted)
}

/// Whether every value is a finite number.
pub(crate) fn all_finite(values: &[f64]) -> bool {
    values.iter().all(|v| v.is_finite())
}

/// The median of values in ascending order, of which there is at least one.
pub(crate) fn median_of_sorted(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        sorted[half - 1].midpoint(sorted[half])
    } else {
        sorted[half]
    }
}

/// The arithmetic mean. `None` for an empty sample, or a value that is not finite.
#[must_use]
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty() && all_finite(values)).then(|| mean_and_squares(values).0)
}

/// The standard deviation of the population that the sample was drawn from
/// (divisor n - 1). `None` below two values, or for one that is not finite.
#[must_use]
pub fn stddev(values: &[f64]) -> Option<f64> {
    if values.len() < 2 || !all_finite(values) {
        return None;
    }
    let (_, squares) = mean_and_squares(values);
    Some((squares / (values.len() - 1) as f64).sqrt())
}

/// The mean and the sum of squared distances from it, by Welford's recurrence
/// (Technometrics 4, 1962), which loses no digits to a large mean.
fn mean_and_squares(values: &[f64]) -> (f64, f64) {
    let (mut mean, mut squares) = (0.0, 0.0);
    for (i, value) in values.iter().enumerate() {
        let delta = value - mean;
        mean += delta / (i + 1) as f64;
        squares += delta * (value - mean);
    }
    (mean, squares)
}

/// The standard deviation as a part of the mean's magnitude: 0.05 is 5 %.
/// `None` below two values, for one that is not finite, or for a mean of zero.
#[must_use]
pub fn coefficient_of_variation(values: &[f64]) -> Option<f64> {
    let ratio = stddev(values)? / mean(values)?.abs();
    ratio.is_finite().then_some(ratio)
}

/// The median: the middle value, or the mean of the middle two. `None` for an
/// empty sample, or a value that is not finite.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    sorted(values).map(|sorted| median_of_sorted(&sorted))
}

/// The median absolute deviation: the median distance from the median, not
/// scaled (times 1.4826 it estimates the standard deviation of a normal
/// distribution). `None` for an empty sample, or a value that is not finite.
#[must_use]
pub fn mad(values: &[f64]) -> Option<f64> {
    let middle = median(values)?;
    let distances: Vec<f64> = values.iter().map(|v| (v - middle).abs()).collect();
    median(&distances)
}

/// The nearest-rank percentile: the smallest value that at least `percent` of
/// the values do not exceed. Always a value of the sample; 0 gives the least.
/// For latencies, where a value between two measured ones never happened.
///
/// `None` for an empty sample, a value that is not finite, or a `percent`
/// outside 0 to 100.
#[must_use]
pub fn percentile_nearest(values: &[f64], percent: f64) -> Option<f64> {
    let sorted = sorted(values)?;
    if !(0.0..=100.0).contains(&percent) {
        return None;
    }
    // A rank that is whole but for rounding is whole.
    let rank = (percent * sorted.len() as f64 / 100.0 - 1e-9).ceil();
    sorted.get(index(rank).saturating_sub(1)).copied()
}

/// The percentile with linear interpolation between the closest values, rank
/// `percent / 100 * (n - 1)` from zero: definition 7 of Hyndman and Fan (The
/// American Statistician 50, 1996), the default of R and `NumPy`.
///
/// `None` for an empty sample, a value that is not finite, or a `percent`
/// outside 0 to 100.
#[must_use]
pub fn percentile_linear(values: &[f64], percent: f64) -> Option<f64> {
    let sorted = sorted(values)?;
    (0.0..=100.0)
        .contains(&percent)
        .then(|| quantile_of_sorted(&sorted, percent / 100.0))
}

/// [`percentile_linear`] of values in ascending order, of which there is at
/// least one, for a fraction of 0 to 1.
pub(crate) fn quantile_of_sorted(sorted: &[f64], fraction: f64) -> f64 {
    let last = sorted.len() - 1;
    let rank = fraction * last as f64;
    let below = index(rank).min(last);
    let above = (below + 1).min(last);
    let part = rank - below as f64;
    // Clamped: the product may round past the upper value.
    (sorted[below] + (sorted[above] - sorted[below]) * part).clamp(sorted[below], sorted[above])
}

/// The whole part of a rank.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rank is between 0 and a length; a cast from float saturates"
)]
fn index(rank: f64) -> usize {
    rank as usize
}
