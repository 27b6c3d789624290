//! How long somebody is waited for.

use std::time::{Duration, Instant};

/// What passes at most between two looks. Sleeps between them are shorter: if more has
/// passed, the machine stood still, or had no processor for us, and whoever is waited for
/// may have had none either.
const TURN: Duration = Duration::from_millis(200);

/// A time that passes by turns.
#[derive(Debug)]
pub(crate) struct Patience {
    left: Duration,
    last: Instant,
}

impl Patience {
    pub(crate) fn of(time: Duration) -> Self {
        Self {
            left: time,
            last: Instant::now(),
        }
    }

    /// Whether it is over; to be asked each time that there was nothing to be seen.
    pub(crate) fn is_over(&mut self) -> bool {
        self.is_over_at(Instant::now())
    }

    fn is_over_at(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.last).min(TURN);
        (self.left, self.last) = (self.left.saturating_sub(passed), now);
        self.left.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_passes_by_turns() {
        let mut patience = Patience::of(Duration::from_secs(1));
        let mut now = patience.last;
        let mut after = |time| {
            now += time;
            patience.is_over_at(now)
        };
        assert!(!after(Duration::from_secs(3600)), "the machine stood still");
        for _ in 0..7 {
            assert!(!after(Duration::from_millis(100)));
        }
        assert!(after(Duration::from_millis(100)));
        assert!(after(Duration::ZERO));
    }
}
