//! How evenly something was shared.

use crate::sample::all_finite;

/// Jain's fairness index, `(sum x)^2 / (n * sum x^2)`: 1 if all have the same,
/// `k / n` if `k` of `n` share all of it evenly (Jain, Chiu, Hawe, DEC-TR-301,
/// 1984). If nobody has anything, all have the same: 1.
///
/// `None` without shares, or if one is negative or not finite.
#[must_use]
pub fn jain_index(shares: &[f64]) -> Option<f64> {
    let (_, most) = extremes(shares)?;
    if most == 0.0 {
        return Some(1.0);
    }
    // The index does not depend on the unit; this one keeps squares in range.
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), share| {
        let x = share / most;
        (sum + x, squares + x * x)
    });
    Some(sum * sum / (shares.len() as f64 * squares))
}

/// The smallest share as a part of the largest, 0 to 1. If nobody has anything,
/// all have the same: 1.
///
/// `None` without shares, or if one is negative or not finite.
#[must_use]
pub fn min_max_ratio(shares: &[f64]) -> Option<f64> {
    let (least, most) = extremes(shares)?;
    Some(if most == 0.0 { 1.0 } else { least / most })
}

/// The smallest and the largest of shares that are finite and not negative.
fn extremes(shares: &[f64]) -> Option<(f64, f64)> {
    if shares.is_empty() || !all_finite(shares) || shares.iter().any(|s| *s < 0.0) {
        return None;
    }
    Some(
        shares
            .iter()
            .fold((f64::INFINITY, 0.0), |(least, most), s| {
                (s.min(least), s.max(most))
            }),
    )
}
