//! How much a thread takes beyond what its call needs.

/// The time that one lease is meant to last a thread that is held back, and so
/// the shortest pause between two of its sleeps: at about 20 us of CPU a sleep,
/// 4 ms keep the cost of waiting near 0.5 % of a core.
pub const QUANTUM_NS: u64 = 4_000_000;

/// A thread that used its last lease up in less than this is asking for more.
const BUSY_US: u32 = 1_000;

/// A thread that took longer than this does not need a lease.
const SLOW_US: u32 = 8_000;

/// What a thread remembers between two tickets of the same call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// Units of its last lease.
    pub lease: u32,
    /// When that was granted, us, modulo 2^32.
    pub granted_us: u32,
}

impl Pace {
    /// Units to take beyond the `need` of a call at `now_us`; `quantum` is what
    /// the bucket gives in [`QUANTUM_NS`]. Leases double while the thread comes
    /// back quickly, and are given up when it does not, so that a thread that
    /// sends one packet every 20 ms waits for its own packet only.
    ///
    /// Where the bucket is `binding`, that is, nothing is left in it, a thread that
    /// comes back quickly takes a whole quantum at once: with many threads in line,
    /// those that began earlier would otherwise stay ahead for many rounds.
    #[must_use]
    pub fn next(self, now_us: u32, need: u64, quantum: u64, binding: bool) -> u64 {
        let lasted = now_us.wrapping_sub(self.granted_us);
        let last = u64::from(self.lease);
        let wanted = if lasted < BUSY_US && binding {
            quantum
        } else if lasted < BUSY_US {
            last.saturating_mul(2).max(need.saturating_mul(2))
        } else if lasted < SLOW_US {
            last
        } else {
            0
        };
        wanted.min(quantum).min(u64::from(u32::MAX))
    }

    /// The state after a grant at `now_us`.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "next() never exceeds u32::MAX"
    )]
    pub fn granted(lease: u64, now_us: u32) -> Self {
        Self {
            lease: lease as u32,
            granted_us: now_us,
        }
    }
}
