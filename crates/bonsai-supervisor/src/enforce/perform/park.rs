//! Jobs that wait: until they are due, or a descriptor is ready, or nobody waits for them any more.

use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;

use super::{LOOK, Performers, locked};
use crate::enforce::serve::{Enforcer, first_of_all, monotonic_ns};
use crate::enforce::upkeep::MOST_HEARD;

impl Performers {
    /// Looks after parked jobs.
    pub(crate) fn park(&self, own: &Arc<Enforcer>) {
        first_of_all();
        // SAFETY: concerns this thread only.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        let (mut looked, mut turn) = (0, 0_usize);
        let busy = &own.parking;
        while !own.has_ended() {
            // Left by a thread that was held up.
            loop {
                let due = locked(&self.due).pop_front();
                let Some(job) = due else { break };
                self.dispatch(own, job);
                busy.count();
            }
            if busy.is_replaced() {
                return;
            }
            let now = monotonic_ns();
            let mut polled = vec![poll_of(self.bell.as_raw_fd(), libc::POLLIN)];
            let mut next = now + u64::try_from(LOOK.as_nanos()).unwrap_or(0);
            for parked in locked(&self.parked).iter() {
                next = next.min(parked.at);
                let (fd, events) = parked.fd.unwrap_or((-1, 0));
                polled.push(poll_of(fd, events));
            }
            busy.idle(|| wait(&mut polled, next.saturating_sub(now)));
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.bell, &mut count);
            let now = monotonic_ns();
            let look = u128::from(now - looked) >= LOOK.as_nanos();
            if look {
                looked = now;
                turn += MOST_HEARD;
            }
            // New ones come at the end; only this thread takes any away, but for one that was held up: then one may be tried in
            // vain.
            let mut parked = locked(&self.parked);
            let known = polled.len() - 1;
            let rung = polled[0].revents != 0;
            let all = std::mem::take(&mut *parked);
            let mut due = locked(&self.due);
            let count = all.len().max(1);
            for (i, it) in all.into_iter().enumerate() {
                let is_ready = i < known && polled[i + 1].revents != 0;
                // The others at a later look.
                let is_looked_at = look && (i + count - turn % count) % count < MOST_HEARD;
                let gone = is_looked_at && own.is_left(&it.job);
                if is_ready || it.at <= now || gone || (rung && it.fd.is_none()) {
                    due.push_back(it.job);
                } else {
                    parked.push(it);
                }
            }
        }
    }
}

fn poll_of(fd: RawFd, events: i16) -> libc::pollfd {
    libc::pollfd {
        fd,
        events,
        revents: 0,
    }
}

fn wait(polled: &mut [libc::pollfd], ns: u64) {
    let time = libc::timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(0),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    };
    // SAFETY: the list and the time live during the call.
    unsafe {
        libc::ppoll(
            polled.as_mut_ptr(),
            polled.len() as libc::nfds_t,
            &raw const time,
            std::ptr::null(),
        )
    };
}
