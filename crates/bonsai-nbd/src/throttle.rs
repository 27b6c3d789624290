//! An export as a service: what it does and waits for is noted in a ledger of its own, whose limits it keeps.
//!
//! A request takes its place in line when it is read from its connection, and the connection's thread waits until it
//! is due. So what waits is bounded, the next request is not even read, and no thread of another export
//! is held up. Requests of one export's connections go first come, first served.
//!
//! Each connection's thread has a page of counters in the ledger, as threads of programs do, and is the only one to write
//! there: a request costs two additions without a lock. What fails afterwards is taken back in the page that is
//! nobody's.

use std::time::Duration;

use bonsai_calls::{CALLS, CallId};
use bonsai_ledger::sync::{AtomicU64, Ordering};
use bonsai_ledger::{
    Ledger, Owner, ProcessId, Tickets, Unshaped, coverage, flags as of_ledger, own_process,
};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use rustix::thread::{clock_nanosleep_relative, gettid};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// How soon a changed limit is noticed by who waits, ns.
const LOOKS_NS: u64 = 5_000_000;

/// The ledger of an export.
#[derive(Debug)]
pub struct Throttle {
    ledger: Ledger,
    read: CallId,
    write: CallId,
}

/// A place in the lines.
pub(crate) struct Place {
    tickets: Tickets,
    call: CallId,
    bytes: u64,
    from: u64,
}

/// Where the thread of a connection counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Till {
    /// Its page; none where all are taken.
    page: Option<usize>,
    tid: u32,
}

impl Throttle {
    /// By the limits of a ledger, whoever changes them. Reads are `pread64`, and all that changes an image
    /// `pwrite64`, so that the classes of these hold as well. The ledger says from now on that this process
    /// is in it.
    #[must_use]
    pub fn new(ledger: Ledger) -> Self {
        let number = |name| (0..).zip(CALLS).find(|(_, call)| call.name == name);
        let id = |name| number(name).map_or(0, |(id, _)| id);
        declare(&ledger);
        describe(&ledger);
        Self {
            ledger,
            read: id("pread64"),
            write: id("pwrite64"),
        }
    }

    /// The service that it is.
    #[must_use]
    pub fn service(&self) -> String {
        self.ledger.name()
    }

    const fn call(&self, writes: bool) -> CallId {
        if writes { self.write } else { self.read }
    }

    /// A page of counters for the calling thread, as long as it lives.
    pub(crate) fn enter(&self) -> Till {
        let tid = gettid().as_raw_nonzero().get().unsigned_abs();
        let me = Owner::of(own_process(), tid);
        let reserve = |page| self.ledger.reserve_page(page);
        Till {
            page: self.ledger.claim_page(me, is_dead, reserve),
            tid,
        }
    }

    /// Takes a place for a request; `None` where it may go at once.
    pub(crate) fn place(&self, writes: bool, bytes: u64) -> Option<Place> {
        let call = self.call(writes);
        let (_, mask, byte_buckets) = self.ledger.mask(call);
        if mask == 0 {
            return None;
        }
        let from = now();
        let Some(tickets) = self.ledger.take(mask, byte_buckets, bytes, 1, from) else {
            self.ledger.count_unshaped(Unshaped::TooManyLimits);
            return None;
        };
        (self.ledger.due(&tickets, from) > from).then_some(Place {
            tickets,
            call,
            bytes,
            from,
        })
    }

    /// Waits until a place is due, by a `pause` of some time, which says whether somebody still waits for it; false
    /// where nobody does.
    pub(crate) fn wait(
        &self,
        till: Till,
        place: &Place,
        mut pause: impl FnMut(Duration) -> bool,
    ) -> bool {
        // Only in a page of one's own: others would write over it.
        let note = till
            .page
            .and_then(|page| Some(&self.ledger.threads.get(page)?.wait));
        if let Some(note) = note {
            note.begin(place.from);
        }
        let is_due = loop {
            let now = now();
            let (due, bucket) = self.ledger.due_last(&place.tickets, now);
            if due <= now {
                break true;
            }
            if let Some(note) = note {
                note.sleep(place.call, till.tid, bucket, due, now);
            }
            if !pause(Duration::from_nanos((due - now).min(LOOKS_NS))) {
                self.ledger.refund(&place.tickets, place.bytes, 1);
                break false;
            }
        };
        if let Some(note) = note {
            note.end();
        }
        // Nobody's page is the first one's.
        let waited = now().saturating_sub(place.from);
        let shard = till.page.unwrap_or(0);
        self.ledger.record_wait(place.call, shard, waited);
        is_due
    }

    /// A request goes through.
    pub(crate) fn count(&self, till: Till, writes: bool, bytes: u64) {
        let call = usize::from(self.call(writes));
        let own = till.page.and_then(|page| self.ledger.threads.get(page));
        if let Some(count) = own.and_then(|page| page.counts.get(call)) {
            bump(&count.calls, 1);
            bump(&count.bytes, bytes);
        } else if let Some(count) = self.ledger.crowd.counts.get(call) {
            count.calls.fetch_add(1, Ordering::Relaxed);
            count.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// One that went through has failed: its bytes did not move.
    pub(crate) fn failed(&self, writes: bool, bytes: u64) {
        let call = usize::from(self.call(writes));
        if let Some(count) = self.ledger.crowd.counts.get(call) {
            count.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

/// Adds to a counter that only the calling thread writes.
fn bump(counter: &AtomicU64, units: u64) {
    let sum = counter.load(Ordering::Relaxed).wrapping_add(units);
    counter.store(sum, Ordering::Relaxed);
}

/// Says in a ledger which limits it holds: those on `pread64` and `pwrite64`, and classes of them. That has to be there
/// before the first limit is.
pub fn declare(ledger: &Ledger) {
    let flags = &ledger.header.flags;
    flags.fetch_or(of_ledger::REQUESTS, Ordering::Release);
}

/// Says which process is in a ledger.
fn describe(ledger: &Ledger) {
    let gone = |other: ProcessId| is_dead(Owner::of(other, other.pid));
    let Some(entry) = ledger.claim_process(own_process(), gone) else {
        return;
    };
    entry.set_program("bonsai");
    entry.attached_ns.store(now(), Ordering::Relaxed);
    entry.reason.store(0, Ordering::Relaxed);
    entry.coverage.store(coverage::ATTACHED, Ordering::Release);
}

/// True for a thread that has ended. Those of another process are taken to live as long as that does, of
/// another pid namespace for good.
fn is_dead(owner: Owner) -> bool {
    if !owner.is_in(own_process().namespace) {
        return false;
    }
    if owner.pid == std::process::id() {
        let path = format!("/proc/self/task/{}", owner.tid);
        return !std::path::Path::new(&path).exists();
    }
    let pid = i32::try_from(owner.pid).ok().and_then(Pid::from_raw);
    pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

/// Sleeps by the clock that is looked for in whoever waits for a limit.
pub(crate) fn sleep(time: Duration) {
    if let Ok(request) = Timespec::try_from(time) {
        // Who is woken early looks early.
        let _ = clock_nanosleep_relative(ClockId::Monotonic, &request);
    }
}

/// The ledger's clock.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
