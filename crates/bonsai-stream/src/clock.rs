//! Two clocks: ours, and that of the kernel's receive times.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// How often the two are compared, nanoseconds: a wall clock is set now and then.
const AGAIN: u64 = 100_000_000;

/// CLOCK_MONOTONIC, nanoseconds.
pub(crate) fn now() -> u64 {
    ns(clock_gettime(ClockId::Monotonic))
}

/// A length of time, nanoseconds.
pub(crate) fn nanos(of: Duration) -> u64 {
    u64::try_from(of.as_nanos()).unwrap_or(u64::MAX)
}

/// From times of CLOCK_REALTIME to those of CLOCK_MONOTONIC.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    compared: u64,
    ahead: u64,
}

impl Clocks {
    /// Compares the two, if that is due.
    pub(crate) fn compare(&mut self, now_ns: u64) {
        if self.compared != 0 && now_ns < self.compared + AGAIN {
            return;
        }
        self.compared = now_ns;
        // Whoever is interrupted between two readings reads again.
        let mut closest = u64::MAX;
        for _ in 0..3 {
            let before = now();
            let real = ns(clock_gettime(ClockId::Realtime));
            let between = now() - before;
            if between < closest {
                closest = between;
                self.ahead = real.saturating_sub(before + between / 2);
            }
        }
    }

    /// A time of the wall clock, by ours.
    pub(crate) const fn ours(&self, real_ns: u64) -> u64 {
        real_ns.saturating_sub(self.ahead)
    }
}

pub(crate) fn ns(at: Timespec) -> u64 {
    let seconds = u64::try_from(at.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(at.tv_nsec).unwrap_or(0)
}
