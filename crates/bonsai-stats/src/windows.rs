//! What got through in each window of time, against what should have.

use std::vec::Vec;

/// Units per window: `count` windows of `window_ns` each, the first from
/// `start`. `events` are instants in ns with the units that got through then, in
/// any order; an event on a border belongs to the later window, and one outside
/// all windows to none. Sums saturate. A window of 0 ns holds nothing.
#[must_use]
pub fn windows(events: &[(u64, u64)], start: u64, window_ns: u64, count: usize) -> Vec<u64> {
    let mut sums = std::vec![0_u64; count];
    for (t_ns, units) in events {
        let window = t_ns
            .checked_sub(start)
            .and_then(|since| since.checked_div(window_ns));
        let sum = window
            .and_then(|w| usize::try_from(w).ok())
            .and_then(|w| sums.get_mut(w));
        if let Some(sum) = sum {
            *sum = sum.saturating_add(*units);
        }
    }
    sums
}

/// The largest distance of a window's sum from what `units_per_sec` gives in it,
/// as a part of the latter: 0.01 is 1 % too little or too much.
///
/// `None` without windows, or if nothing is expected in one: a rate or a window
/// that is not above zero, or not finite.
#[must_use]
pub fn max_relative_error(sums: &[u64], window_ns: u64, units_per_sec: f64) -> Option<f64> {
    let expected = units_per_sec * window_ns as f64 / 1e9;
    if !expected.is_finite() || expected <= 0.0 {
        return None;
    }
    sums.iter()
        .map(|sum| (*sum as f64 - expected).abs() / expected)
        .reduce(f64::max)
}
