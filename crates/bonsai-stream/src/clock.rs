//! Two clocks: ours, and that of the kernel's receive times; and what wakes by ours.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

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

/// Wakes a thread that waits for sockets (epoll) to the nanosecond, where waiting with a timeout is rounded
/// up to milliseconds.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: OwnedFd,
    at: u64,
}

impl Timer {
    /// One that wakes nobody so far.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn new() -> io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        Ok(Self { fd, at: 0 })
    }

    /// Wakes at that time of [`now`], which is to come; whether it will.
    pub(crate) fn wake_at(&mut self, at: u64) -> bool {
        if at == self.at {
            return true;
        }
        self.at = at;
        let Ok(it_value) = Timespec::try_from(Duration::from_nanos(at)) else {
            return false;
        };
        let value = Itimerspec {
            it_interval: Timespec::default(),
            it_value,
        };
        timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &value).is_ok()
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
