//! Hysteresis: limits and weights move when it matters, and not for every flutter of demand.
//!
//! A limit that serves stays, as long as all together stay within the capacity: one that is
//! higher than it has to be takes nothing from anybody who needs it. What brings a service up to
//! its guarantee is done at once. If they do not fit, the highest excesses go first.

/// The limit of whoever has none. All conditions here hold for it as for one that serves and
/// has no excess, so that it asks for no branch of its own.
pub(crate) const NONE: u64 = u64::MAX;

/// A limit that is to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// What it was, or [`NONE`].
    pub(crate) before: u64,
    /// What it would be now.
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

/// What a limit is at least, and what it is too high by if it stays where it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) least: u64,
    excess: u64,
}

impl Bound {
    pub(crate) fn settle(self, hysteresis: u32) -> Limit {
        let least = if self.serves(hysteresis) {
            self.now.min(self.before)
        } else {
            self.now
        };
        // Not where a group's ceiling makes another's limit depend on it.
        let may_stay = (self.before <= self.ceiling) & !self.in_bounds;
        let excess = self.before.saturating_sub(least);
        Limit {
            least,
            excess: if may_stay { excess } else { 0 },
        }
    }

    /// Whether the service gets with the limit of before what it is to get, and at least half of
    /// what it could have.
    fn serves(&self, hysteresis: u32) -> bool {
        let less = self.share.saturating_sub(self.before);
        let enough = (self.before >= self.guaranteed) & (self.before >= self.now / 2);
        enough & (less <= part(self.before, hysteresis))
    }
}

impl Limit {
    /// What it is, where excesses up to `most` stay.
    pub(crate) fn with_excess(self, most: u64) -> u64 {
        self.least + if self.excess <= most { self.excess } else { 0 }
    }
}

/// The sums of all limits of a resource. One that is beyond 64 bits is beyond any capacity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sums {
    least: u64,
    /// Excesses by their number of digits: as good as sorted, and as fast as adding up.
    excess: [u64; 65],
}

impl Default for Sums {
    fn default() -> Self {
        Self {
            least: 0,
            excess: [0; 65],
        }
    }
}

impl Sums {
    pub(crate) fn add(&mut self, limit: Limit) {
        self.least = self.least.saturating_add(limit.least);
        let digits = u64::BITS - limit.excess.leading_zeros();
        let sum = &mut self.excess[digits as usize];
        *sum = sum.saturating_add(limit.excess);
    }

    /// The highest excess that may stay, so that all limits are within `capacity`.
    pub(crate) fn highest_excess(&self, capacity: u64) -> u64 {
        let mut spare = capacity.saturating_sub(self.least);
        let mut highest = 0;
        // Of none, then of one digit and more.
        for (digits, sum) in (0_u32..).zip(&self.excess) {
            if *sum > spare {
                break;
            }
            spare -= sum;
            highest = u64::MAX.unbounded_shr(u64::BITS - digits);
        }
        highest
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
