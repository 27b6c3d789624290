//! How much a thread takes beyond what its call needs.

/// The time that one ticket of a thread that is held back is meant to last, and so
/// the shortest pause between two sleeps of a service: at 20 to 40 us of CPU a sleep,
/// the cost of waiting stays below 1 % of a core.
///
/// A window of 100 ms has 22.5 of them: it sees 22 or 23, an error of 2.2 % at most.
/// A divisor of the window, such as 4 ms, would be off by a whole one (4 %) when the
/// edges of the window meet the ends of quanta.
pub const QUANTUM_NS: u64 = 4_444_444;

/// The longest line whose threads take whole quanta.
const LINE_NS: u64 = 75_000_000;

/// How long a ticket should last that is taken at the end of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Its time, ns.
    pub ns: u64,
    /// Where the part of a call is rounded up that fits into this time, in 2^-32
    /// calls.
    pub round: u32,
}

impl Turn {
    /// In a bucket with nothing before the ticket.
    pub const FIRST: Self = Self {
        ns: QUANTUM_NS,
        round: 1 << 31,
    };

    /// At `now` in a line of `wait_ns`.
    ///
    /// It ends at the multiple of [`QUANTUM_NS`] that is next, or next but one: calls
    /// are whole and quanta are not; rounded to common marks, tickets last a quantum
    /// on average all the same.
    ///
    /// Where the line is long, tickets are shorter, by the sixth power, so that a
    /// round of `n` threads takes `(n * QUANTUM_NS * LINE_NS^6)^(1/7)`: 91 ms for 64,
    /// 135 ms for 1,024. It bounds how long a thread stands still, and how far one
    /// process can get ahead of another: by a round. The price is a sleep per turn.
    /// Calls are rounded up or down by chance there: threads that always met the same
    /// line would otherwise always get the same.
    #[must_use]
    pub const fn after(now: u64, wait_ns: u64) -> Self {
        if wait_ns <= LINE_NS {
            let left = QUANTUM_NS - now.wrapping_add(wait_ns) % QUANTUM_NS;
            let next_but_one = if left < QUANTUM_NS / 2 { QUANTUM_NS } else { 0 };
            return Self {
                ns: left + next_but_one,
                ..Self::FIRST
            };
        }
        let part = (LINE_NS << 16) / wait_ns;
        let square = (part * part) >> 16;
        let fourth = (square * square) >> 16;
        Self {
            ns: (QUANTUM_NS * ((fourth * square) >> 16)) >> 16,
            round: (now.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32,
        }
    }
}

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
    /// Units to take beyond the `need` of a call of `size` units at `now_us`.
    ///
    /// `quantum` is what need and lease together should be: a call that needs as
    /// much has a sleep of its own anyway. Leases double while the thread comes back
    /// quickly, and are given up when it does not, so that a thread that sends one
    /// packet every 20 ms waits for its own packet only.
    ///
    /// Where the bucket is binding, that is, nothing is left in it (`round` says how
    /// to round, see [`Turn::round`]), a thread that comes back quickly takes a whole
    /// quantum at once: with many threads in line, those that began earlier would
    /// otherwise stay ahead for many rounds. It takes whole calls, because what it
    /// had left over would be missing to the others until its next turn.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "a part of the size")]
    pub fn next(self, now_us: u32, need: u64, size: u64, quantum: u64, round: Option<u32>) -> u64 {
        let lasted = now_us.wrapping_sub(self.granted_us);
        let last = u64::from(self.lease);
        let rest = quantum.saturating_sub(need);
        let busy = lasted < BUSY_US || last > 0 && lasted < SLOW_US;
        let lease = if let Some(round) = round.filter(|_| busy) {
            let size = size.max(1);
            // Two calls of three quarters of a quantum are half a quantum too long.
            let coarse = need > quantum / 2 && round == Turn::FIRST.round;
            let round = if coarse { 0 } else { round };
            let up = (u128::from(size) * u128::from(round)) >> 32;
            (rest.saturating_add(up as u64) / size).saturating_mul(size)
        } else if lasted < BUSY_US {
            rest.min(last.max(need).saturating_mul(2))
        } else if lasted < SLOW_US {
            rest.min(last)
        } else if round.is_none() && self == Self::default() {
            // A thread's first call: servers with a thread for each connection make
            // several, and are over.
            rest.min(need.saturating_mul(8))
        } else {
            0
        };
        lease.min(u64::from(u32::MAX))
    }
}
