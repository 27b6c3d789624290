//! Whose time limits a wait respects.

use crate::seccomp::ask;

/// Whose own time limit a wait has to respect.
#[derive(Clone, Copy)]
pub(crate) enum Patience {
    /// None.
    Endless,
    /// `SO_SNDTIMEO` or `SO_RCVTIMEO` of a socket.
    Socket(usize, Timeout),
}

/// Which of a socket's time limits.
#[derive(Clone, Copy)]
pub(crate) enum Timeout {
    Send = 21,
    Receive = 20,
}

impl Patience {
    /// The instant at which it ends.
    #[inline(never)]
    pub(crate) fn limit(self, now: u64) -> u64 {
        let Self::Socket(fd, which) = self else {
            return u64::MAX;
        };
        let mut time = [0_u64; 2];
        let mut len = 16_u32;
        // SAFETY: struct timeval has 16 bytes; SOL_SOCKET is 1.
        let got = unsafe {
            ask!(
                Getsockopt,
                fd,
                1,
                which as usize,
                time.as_mut_ptr(),
                &raw mut len
            )
        };
        if got != 0 || time == [0, 0] {
            return u64::MAX;
        }
        now.saturating_add(time[0].saturating_mul(1_000_000_000))
            .saturating_add(time[1].saturating_mul(1_000))
    }
}
