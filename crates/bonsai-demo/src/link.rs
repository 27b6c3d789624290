//! A link that several connections share, for machines on which no real one can
//! be made: what arrives takes its turn, first come, first served.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The most that one turn is for, bytes: so that many connections get equal
/// shares, as they do of a real link.
pub(crate) const TURN: usize = 16 << 10;

/// How far behind the link may fall because nobody was there in time, before
/// that time is lost: what a real link would have had in its queue.
const SLACK: Duration = Duration::from_millis(5);

/// The link.
#[derive(Debug)]
pub(crate) struct Link {
    bytes_per_s: u64,
    /// When it is free again.
    free: Mutex<Instant>,
}

impl Link {
    /// A link of `bytes_per_s`, at least 1.
    pub(crate) fn new(bytes_per_s: u64) -> Self {
        Self {
            bytes_per_s: bytes_per_s.max(1),
            free: Mutex::new(Instant::now()),
        }
    }

    /// Returns once `bytes` have gone over the link, behind whatever was there before.
    pub(crate) fn pass(&self, bytes: usize) {
        let through = self.reserve(Instant::now(), bytes);
        std::thread::sleep(through.saturating_duration_since(Instant::now()));
    }

    /// When `bytes` that come at `now` have gone over the link.
    fn reserve(&self, now: Instant, bytes: usize) -> Instant {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s);
        let takes = Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
        // Whoever panicked while holding it had not changed it yet.
        let mut free = self
            .free
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let start = (*free).max(now.checked_sub(SLACK).unwrap_or(now));
        *free = start + takes;
        *free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_together_goes_one_after_the_other() {
        let link = Link::new(1_000_000);
        let now = Instant::now() + Duration::from_secs(1);
        let first = link.reserve(now, 10_000);
        assert_eq!(first, now - SLACK + Duration::from_millis(10));
        assert_eq!(link.reserve(now, 5_000) - first, Duration::from_millis(5));
        // An idle link gives nothing away but the slack.
        let later = now + Duration::from_secs(1);
        assert_eq!(
            link.reserve(later, 10_000),
            later - SLACK + Duration::from_millis(10)
        );
    }

    #[test]
    fn passing_takes_the_time_of_the_link() {
        let link = Link::new(1_000_000);
        let start = Instant::now();
        for _ in 0..10 {
            link.pass(5_000);
        }
        assert!(
            start.elapsed() >= Duration::from_millis(50) - SLACK,
            "{:?}",
            start.elapsed()
        );
    }
}
