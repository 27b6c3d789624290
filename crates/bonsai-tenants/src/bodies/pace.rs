//! How often something may be done that costs more than it is worth at each look.

use std::time::{Duration, Instant};

/// Between two times is so many times what the last one took: a hundredth of a processor.
const CALM: u32 = 100;
/// The same where something has changed.
const HASTE: u32 = 25;
/// It is done at least so often, and not more often than that, whatever it costs.
const BOUNDS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];
/// The same where something has changed.
const HASTY: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// When it is done again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    done: Option<(Instant, Duration)>,
}

impl Pace {
    /// Whether it is to be done now; sooner, if it is known that something has changed.
    pub(super) fn is_due(&self, now: Instant, changed: bool) -> bool {
        let Some((at, took)) = self.done else {
            return true;
        };
        let (times, [least, most]) = match changed {
            true => (HASTE, HASTY),
            false => (CALM, BOUNDS),
        };
        now.saturating_duration_since(at) >= took.saturating_mul(times).clamp(least, most)
    }

    /// It was done, and took so long.
    pub(super) fn done(&mut self, took: Duration) {
        self.done = Some((Instant::now(), took));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_costs_much_is_done_seldom() {
        let mut pace = Pace::default();
        let start = Instant::now();
        assert!(pace.is_due(start, false), "never done before");
        pace.done(Duration::from_millis(30));
        let at = |ms| Instant::now() + Duration::from_millis(ms);
        assert!(!pace.is_due(at(2900), false) && pace.is_due(at(3001), false));
        assert!(!pace.is_due(at(700), true) && pace.is_due(at(751), true));
        pace.done(Duration::ZERO);
        assert!(!pace.is_due(at(0), true) && pace.is_due(at(51), true));
        pace.done(Duration::from_secs(10));
        assert!(pace.is_due(at(10_001), false));
    }
}
