//! Limits of an export, in a ledger of its own: the same buckets as those of a service.
//!
//! A request takes its place in line when it is read from its connection, and the connection's thread waits until it
//! is due. So what waits is bounded, the next request is not even read, and no thread of another export
//! is held up. Requests of one export's connections go first come, first served.

use std::time::Duration;

use bonsai_calls::{CALLS, CallId};
use bonsai_ledger::{Ledger, Tickets};
use rustix::time::{ClockId, clock_gettime};

/// How soon a changed limit is noticed by who waits.
const LOOKS: Duration = Duration::from_millis(5);

/// The limits of an export.
#[derive(Debug)]
pub struct Throttle {
    ledger: Ledger,
    read: CallId,
    write: CallId,
}

/// A place in the lines.
pub(crate) struct Place {
    tickets: Tickets,
    mask: u64,
    byte_buckets: u64,
    bytes: u64,
    from: u64,
}

impl Throttle {
    /// By the limits of a ledger, whoever changes them. Reads are `pread64`, and all that changes an image
    /// `pwrite64`, so that the classes of these hold as well.
    #[must_use]
    pub fn new(ledger: Ledger) -> Self {
        let number = |name| (0..).zip(CALLS).find(|(_, call)| call.name == name);
        let id = |name| number(name).map_or(0, |(id, _)| id);
        Self {
            ledger,
            read: id("pread64"),
            write: id("pwrite64"),
        }
    }

    /// Takes a place for a request; `None` where it may go at once.
    pub(crate) fn place(&self, writes: bool, bytes: u64) -> Option<Place> {
        let call = if writes { self.write } else { self.read };
        let (_, mask, byte_buckets) = self.ledger.mask(call);
        if mask == 0 {
            return None;
        }
        let from = now();
        let tickets = self.ledger.take(mask, byte_buckets, bytes, 1, from)?;
        let place = Place {
            tickets,
            mask,
            byte_buckets,
            bytes,
            from,
        };
        if self.ledger.due(&place.tickets, from) <= from {
            self.note(&place, 0);
            return None;
        }
        Some(place)
    }

    /// Waits until a place is due, by a `pause` of some time, which says whether somebody still waits for it; false
    /// where nobody does.
    pub(crate) fn wait(&self, place: &Place, mut pause: impl FnMut(Duration) -> bool) -> bool {
        loop {
            let now = now();
            let left = self.ledger.due(&place.tickets, now) - now;
            if left == 0 {
                self.note(place, now.saturating_sub(place.from));
                return true;
            }
            if !pause(Duration::from_nanos(left).min(LOOKS)) {
                self.ledger.refund(&place.tickets, place.bytes, 1);
                return false;
            }
        }
    }

    /// What went through, for whoever shows it.
    fn note(&self, place: &Place, waited_ns: u64) {
        for (at, line) in self.ledger.lines.iter().enumerate() {
            if place.mask >> at & 1 != 0 {
                let bytes = place.byte_buckets >> at & 1 != 0;
                line.note(if bytes { place.bytes } else { 1 }, waited_ns);
            }
        }
    }
}

/// The ledger's clock.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
