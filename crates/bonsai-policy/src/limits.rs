//! Hysteresis: limits and weights move when it matters, and not for every flutter of demand.

/// A limit that is to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// What it was.
    pub(crate) before: Option<u64>,
    /// What it would be now; then, what it is.
    pub(crate) now: u64,
    /// The most it may be.
    pub(crate) ceiling: u64,
    /// What of the service's guarantee it demands.
    pub(crate) guaranteed: u64,
    /// Whether a group above it has a ceiling, so that another's limit may depend on it.
    pub(crate) in_bounds: bool,
}

/// Keeps limits that would move by no more than `hysteresis` thousandths, as long as all
/// together stay within `capacity`. What brings a service up to its guarantee is done at once.
pub(crate) fn settle(bounds: &mut [Bound], capacity: u64, hysteresis: u32) {
    let sum: u128 = bounds.iter().map(|bound| u128::from(bound.now)).sum();
    let mut spare = u128::from(capacity).saturating_sub(sum);
    for bound in bounds.iter_mut() {
        let Some(before) = bound.before else { continue };
        let more = bound.now.saturating_sub(before);
        if more > 0 && before >= bound.guaranteed && more <= part(before, hysteresis) {
            spare += u128::from(more);
            bound.now = before;
        }
    }
    for bound in bounds.iter_mut() {
        if spare == 0 {
            return;
        }
        let Some(before) = bound.before else { continue };
        let less = before.saturating_sub(bound.now);
        let fits = before <= bound.ceiling && !bound.in_bounds && u128::from(less) <= spare;
        if less > 0 && fits && less <= part(before, hysteresis) {
            spare -= u128::from(less);
            bound.now = before;
        }
    }
}

/// The weight to use, which was `before`.
pub(crate) fn weight(before: u32, now: u32, hysteresis: u32) -> u32 {
    let flutter = u64::from(before.abs_diff(now)) <= part(u64::from(before), hysteresis);
    if flutter { before } else { now }
}

fn part(of: u64, thousandths: u32) -> u64 {
    // Rates are at most 1e14 and parts 500: far below 2^64.
    of.saturating_mul(u64::from(thousandths)) / 1_000
}
