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

/// When what failed is tried again: after a second, and after twice as long with each failure in a row, up to a minute.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Retry {
    failures: u32,
    again: Option<Instant>,
}

/// Longest time between two tries.
const LONGEST_RETRY: Duration = Duration::from_secs(60);

impl Retry {
    /// Notes the result of a try.
    pub(super) fn tried(&mut self, succeeded: bool, now: Instant) {
        if succeeded {
            *self = Self::default();
            return;
        }
        let wait = Duration::from_secs(1 << self.failures.min(6)).min(LONGEST_RETRY);
        self.failures = self.failures.saturating_add(1);
        self.again = Some(now + wait);
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.again.is_none_or(|again| again <= now)
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

    #[test]
    fn what_fails_is_tried_less_and_less_often_until_it_succeeds() {
        let (mut retry, start) = (Retry::default(), Instant::now());
        let mut now = start;
        let mut waits = Vec::new();
        for _ in 0..9 {
            assert!(retry.is_due(now));
            retry.tried(false, now);
            let before = now;
            while !retry.is_due(now) {
                now += Duration::from_secs(1);
            }
            waits.push((now - before).as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        retry.tried(true, now);
        assert!(retry.is_due(now));
    }
}
