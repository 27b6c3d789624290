//! What groups move of disks, and whether they wait for their limits.
//!
//! A group is a file to read, 10 us each, so of many not all are read at each look: those that move
//! something are, and a few of the others.

use bonsai_cgroup::disk::{moved_of, pressure_of};
use bonsai_cgroup::{Cgroup, DeviceNumber, Hierarchies};

use super::meter::Spread;

/// So long after it moved something one is read at each look, ns.
const BUSY_NS: u64 = 2_000_000_000;

/// Over so long it is judged whether one waits for its limit, ns: the kernel lets bytes through in
/// slices of up to 100 ms.
const JUDGED_NS: u64 = 500_000_000;

/// Whoever moves so much of its limit waits for it, in hundredths: version 1 counts no waits, and
/// version 2 not whether they were for the limit or for the disk.
const NEAR: u64 = 90;

/// What is counted of a group.
#[derive(Clone, Debug, Default)]
pub(super) struct Disks {
    moved: [Spread; 2],
    /// The look at which it was read last.
    read: u64,
    /// When it moved something last, ns.
    busy_ns: u64,
    /// When it was judged last, ns, and what had been moved then.
    judged_ns: u64,
    judged: [u64; 2],
    /// How long it had waited for anything then, us.
    pressure: Option<u64>,
    waits: [bool; 2],
}

impl Disks {
    /// Whether it is to be read at each look.
    pub(super) fn is_busy(&self, now_ns: u64, limits: [Option<u64>; 2]) -> bool {
        self.read == 0
            || limits.iter().any(Option::is_some)
            || now_ns.saturating_sub(self.busy_ns) < BUSY_NS
    }

    /// Reads it. `false` if the group is not there any more.
    pub(super) fn read(
        &mut self,
        group: &Cgroup,
        disks: &[DeviceNumber],
        look: u64,
        now_ns: u64,
    ) -> bool {
        let (read, written) = match moved_of(group, disks) {
            Ok(moved) => moved,
            Err(bonsai_cgroup::Error::Vanished { .. }) => return false,
            Err(_) => return true,
        };
        let looks = look - self.read;
        let mut any = false;
        for (one, now) in self.moved.iter_mut().zip([read, written]) {
            any |= one.count(now, looks);
        }
        if any && self.read > 0 {
            self.busy_ns = now_ns;
        }
        self.read = look;
        true
    }

    /// Bytes read and written, at a look.
    pub(super) fn give(&mut self) -> [Option<u64>; 2] {
        self.moved.each_mut().map(Spread::give)
    }

    /// Whether it waits for its limits.
    pub(super) fn waits(
        &mut self,
        group: &Cgroup,
        hierarchies: &Hierarchies,
        limits: [Option<u64>; 2],
        totals: [Option<u64>; 2],
        now_ns: u64,
    ) -> [bool; 2] {
        if limits == [None; 2] {
            self.judged_ns = 0;
            self.waits = [false; 2];
            return self.waits;
        }
        let past_ns = now_ns.saturating_sub(self.judged_ns);
        if past_ns < JUDGED_NS {
            return self.waits;
        }
        let totals = totals.map(Option::unwrap_or_default);
        let pressure = pressure_of(hierarchies, group).map(|of| of.some_us);
        let is_first = self.judged_ns == 0;
        let waited = match (pressure, self.pressure) {
            (Some(now), Some(before)) => now > before,
            _ => true,
        };
        for place in 0..2 {
            let moved = totals[place].saturating_sub(self.judged[place]);
            self.waits[place] = !is_first
                && waited
                && limits[place].is_some_and(|limit| is_near(moved, limit, past_ns));
        }
        (self.judged_ns, self.judged, self.pressure) = (now_ns, totals, pressure);
        self.waits
    }
}

/// Whether so many bytes in so long are nearly what a limit allows.
fn is_near(moved: u64, limit: u64, past_ns: u64) -> bool {
    let allowed = u128::from(limit) * u128::from(past_ns) / 1_000_000_000;
    u128::from(moved) * 100 >= allowed * u128::from(NEAR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_moves_nearly_its_limit_waits_for_it() {
        assert!(is_near(45, 100, 500_000_000));
        assert!(!is_near(44, 100, 500_000_000));
        assert!(is_near(u64::MAX, u64::MAX, 1_000_000_000));
        assert!(!is_near(0, 4096, 1_000_000_000));
    }
}
