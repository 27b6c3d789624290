//! Which limits a call is under.

use bonsai_calls::{CALLS, CallId, Fd};
use bonsai_ledger::Ledger;

use super::filter::entry_of;
use super::threads::entry_on;

/// The kinds that an entry with several stands for.
const KINDS: [Fd; 3] = [Fd::File, Fd::Socket, Fd::Other];

/// Which buckets a call draws on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drawn {
    pub(crate) entry: CallId,
    pub(crate) epoch: u32,
    pub(crate) mask: u64,
    pub(crate) byte_buckets: u64,
    /// Whatever its descriptor is.
    pub(crate) any: bool,
}

impl Drawn {
    pub(crate) fn by(ledger: &Ledger, entry: CallId) -> Self {
        let (epoch, mask, byte_buckets) = ledger.mask(entry);
        Self {
            entry,
            epoch,
            mask,
            byte_buckets,
            any: false,
        }
    }

    /// All buckets that a call draws on, whatever its descriptor is; counted as `entry`.
    pub(crate) fn by_any(ledger: &Ledger, entry: CallId) -> Self {
        let mut drawn = Self::by(ledger, entry);
        if let Some(first) = entry_of(u32::from(CALLS[usize::from(entry)].nr)) {
            for kind in KINDS {
                drawn.mask |= Self::by(ledger, entry_on(first, kind)).mask;
            }
        }
        drawn.any = true;
        drawn
    }

    /// The same under the limits now in force.
    pub(crate) fn again(ledger: &Ledger, entry: CallId, any: bool) -> Self {
        match any {
            true => Self::by_any(ledger, entry),
            false => Self::by(ledger, entry),
        }
    }

    /// The largest charge whose refund is not capped by the burst.
    pub(crate) fn most_at_once(&self, ledger: &Ledger) -> u64 {
        const PAGE: u64 = 4096;
        ledger.burst_of(self.mask, self.byte_buckets).max(PAGE)
    }

    /// Charges bytes that have moved already: the next call waits for them.
    pub(crate) fn owe(&self, ledger: &Ledger, bytes: u64, now: u64) {
        let _ = ledger.take(
            self.mask & self.byte_buckets,
            self.byte_buckets,
            bytes,
            0,
            now,
        );
    }

    pub(crate) fn counts_bytes(&self) -> bool {
        self.mask & self.byte_buckets != 0
    }
}
