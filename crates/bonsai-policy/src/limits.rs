//! Hysteresis: limits and weights move when it matters, and not for every flutter of demand.

/// A limit that is to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// What it was.
    pub(crate) before: Option<u64>,
    /// What it would be now; then, what it is.
    pub(crate) now: u64,
    /// What the service is to get: its limit may be less by the hysteresis.
    pub(crate) share: u64,
    /// The most it may be.
    pub(crate) ceiling: u64,
    /// What of the service's guarantee it demands.
    pub(crate) guaranteed: u64,
    /// Whether a group above it has a ceiling, so that another's limit may depend on it.
    pub(crate) in_bounds: bool,
}

impl Bound {
    /// The limit of before, if the service gets with it what it is to get, and at least half of
    /// what it could have.
    fn serves(&self, hysteresis: u32) -> Option<u64> {
        let before = self.before?;
        let less = self.share.saturating_sub(before);
        let enough = before >= self.guaranteed && before >= self.now / 2;
        (enough && less <= part(before, hysteresis)).then_some(before)
    }

    /// What the limit of before is too high by, where it may stay all the same: not where a
    /// group's ceiling makes another's limit depend on it.
    fn excess(&self) -> u64 {
        match self.before {
            Some(before) if before <= self.ceiling && !self.in_bounds => {
                before.saturating_sub(self.now)
            }
            _ => 0,
        }
    }
}

/// Keeps limits that serve, as long as all together stay within `capacity`: a limit that is
/// higher than it has to be takes nothing from anybody who needs it. What brings a service up to
/// its guarantee is done at once. If they do not fit, the highest excesses go first.
pub(crate) fn settle(bounds: &mut [Bound], capacity: u64, hysteresis: u32) {
    for bound in bounds.iter_mut() {
        if let Some(before) = bound.serves(hysteresis) {
            bound.now = bound.now.min(before);
        }
    }
    let sum: u128 = bounds.iter().map(|bound| u128::from(bound.now)).sum();
    let mut spare = u128::from(capacity).saturating_sub(sum);
    // By the number of digits of the excess: as good as sorted, and as fast as adding up.
    let mut sums = [0_u128; 65];
    for excess in bounds.iter().map(Bound::excess) {
        sums[digits(excess)] += u128::from(excess);
    }
    let fits = sums.iter().position(|sum| {
        let over = *sum > spare;
        spare = spare.saturating_sub(*sum);
        over
    });
    let fits = fits.unwrap_or(sums.len());
    for bound in bounds.iter_mut() {
        let excess = bound.excess();
        if excess > 0 && digits(excess) < fits {
            bound.now += excess;
        }
    }
}

fn digits(of: u64) -> usize {
    (u64::BITS - of.leading_zeros()) as usize
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
