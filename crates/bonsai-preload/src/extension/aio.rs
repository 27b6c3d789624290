//! Queues (libaio): `io_submit` takes descriptions of calls as `io_uring_enter` does, and
//! their results are in memory of the program too, where the kernel keeps them until they
//! are overwritten. All that is queued is paid for beforehand.
//!
//! # Limits
//! [`QUEUES`] queues of a process at a time, the others' results correct nothing; nor do
//! those that come after a program's last `io_submit`.

use crate::amount::{self, Args};
use crate::facts::Site;
use crate::own::Own;
use crate::rings::done::{Debts, Done};
use crate::rings::records::Records;
use crate::rings::toll::{self, Group};
use crate::rings::walk::{self, Entries};
use crate::slow::make;
use crate::sys;
use crate::wait::Wait;
use bonsai_calls::ring::{Meaning, Together, Words, queued};
use bonsai_calls::{self as calls, Fd};
use bonsai_ledger::{Segment, Unshaped};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

const QUEUES: usize = 16;

/// `AIO_RING_MAGIC`, and the size of the head of a ring (Linux, `fs/aio.c`).
const MAGIC: u32 = 0xa10a_10a1;
const HEAD: usize = 32;
/// `struct io_event`.
const EVENT: usize = 32;
/// More than a queue can have (`/proc/sys/fs/aio-max-nr` is far below).
const MOST_EVENTS: u32 = 1 << 24;

struct Queue {
    /// `aio_context_t`, the address of its ring; 0 for free.
    context: AtomicUsize,
    /// Results up to here have been looked at.
    seen: AtomicU32,
    records: Records,
}

static ALL: [Queue; QUEUES] = [const {
    Queue {
        context: AtomicUsize::new(0),
        seen: AtomicU32::new(0),
        records: Records::none(),
    }
}; QUEUES];

/// Which place is given to another queue next, where none is free.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// For queues that there is no room for: nothing is ever kept in it.
static NO_RECORDS: Records = Records::none();

/// The queue of a context; a place that was used by one before where there is no other.
fn queue(context: usize) -> Option<&'static Queue> {
    let of = |context: usize| {
        ALL.iter()
            .find(|q| q.context.load(Ordering::Acquire) == context)
    };
    of(context).or_else(|| {
        let next = NEXT.fetch_add(1, Ordering::Relaxed) % QUEUES;
        let place = of(0).or_else(|| ALL.get(next))?;
        let before = place.context.load(Ordering::Acquire);
        let won =
            place
                .context
                .compare_exchange(before, context, Ordering::AcqRel, Ordering::Relaxed);
        if won.is_ok() && before != 0 {
            place.records.clear();
        }
        won.is_ok().then_some(place)
    })
}

/// The arguments of a call: pointers to what is to be queued.
struct List {
    at: usize,
    records: &'static Records,
}

impl List {
    fn address(&self, i: u32) -> usize {
        // SAFETY: found readable.
        unsafe { *(self.at as *const usize).add(i as usize) }
    }
}

impl Entries for List {
    fn entry(&self, at: u32) -> Option<Words> {
        // SAFETY: found readable; a control block has 64 bytes.
        let entry = unsafe { (self.address(at) as *const Words).read_unaligned() };
        Some(entry)
    }

    fn read(&self, at: u32, entry: &Words) -> (Meaning, Together) {
        let together = Together {
            linked: false,
            silent: false,
            key: self.address(at) as u64,
        };
        (queued(entry), together)
    }

    fn width(&self, _: &Words) -> u32 {
        1
    }

    fn file(&self, _: u32) -> Fd {
        Fd::File
    }

    fn set_file(&self, _: u32, _: Fd) {}

    fn records(&self) -> &Records {
        self.records
    }
}

/// How many of the list can be read; the kernel will refuse the next.
fn readable(own: &mut Own, at: usize, n: usize) -> usize {
    if !amount::readable(at, 8 * n, &mut own.readable) {
        return 0;
    }
    let list = List {
        at,
        records: &NO_RECORDS,
    };
    let is = |i: &usize| {
        let address = list.address(u32::try_from(*i).unwrap_or(u32::MAX));
        amount::readable(address, 64, &mut own.readable)
    };
    (0..n).take_while(is).count()
}

/// Decides on `io_submit`, and makes it.
pub(crate) fn submit(
    segment: &'static Segment,
    own: &mut Own,
    args: &mut Args,
    site: &Site,
) -> isize {
    if toll::begin(segment, own) {
        // The kernel does not hand queues on to children.
        for queue in &ALL {
            queue.records.clear();
            queue.context.store(0, Ordering::Release);
        }
    }
    let mut call = Group::new(segment, own, calls::IO_SUBMIT, args);
    call.calls = 1;
    call.pay(segment, own, false);
    let start = *args;
    let [context, n, at, ..] = start.a;
    let queue = queue(context);
    if let Some(queue) = queue {
        queue.records.make(256);
        look(segment, own, queue);
    }
    let all = readable(own, at, n.min(u16::MAX.into()));
    if all < n && n <= isize::MAX.cast_unsigned() {
        segment.count_unshaped(Unshaped::Ring);
    }
    let entries = List {
        at,
        records: queue.map_or(&NO_RECORDS, |queue| &queue.records),
    };
    let mut left = u32::try_from(all).unwrap_or(0);
    let mut done = 0_u32;
    let result = loop {
        let (part, end) = walk::part(segment, own, &entries, (done, left), false, false);
        let last = part == left || end != Wait::Due;
        args.a[1] = if last {
            n - done as usize
        } else {
            part as usize
        };
        args.a[2] = at + 8 * done as usize;
        let result = make(args, site);
        let taken = u32::try_from(result).unwrap_or(0).min(part);
        if taken < part {
            walk::undo(segment, own, &entries, done + taken, part - taken);
        }
        if result < 0 && done == 0 {
            break result;
        }
        done += u32::try_from(result).unwrap_or(0);
        if last || taken < part {
            break isize::try_from(done).unwrap_or(0);
        }
        left -= part;
    };
    *args = start;
    if let Some(queue) = queue {
        look(segment, own, queue);
    }
    if result == sys::EAGAIN {
        call.undo(segment, own);
        toll::count(segment, own, calls::IO_SUBMIT, 1, 0);
    }
    result
}

/// Looks at the results that have come since.
fn look(segment: &Segment, own: &mut Own, queue: &'static Queue) {
    let at = queue.context.load(Ordering::Acquire);
    if !amount::readable(at, HEAD, &mut own.readable) {
        return;
    }
    let word = |i: usize| {
        // SAFETY: readable, eight words; the kernel may change them at any time.
        unsafe { (*(at as *const AtomicU32).add(i)).load(Ordering::Acquire) }
    };
    let (size, tail) = (word(1), word(3));
    if word(4) != MAGIC || size > MOST_EVENTS || tail >= size || word(7) as usize != HEAD {
        return;
    }
    let entries = List {
        at: 0,
        records: &queue.records,
    };
    let mut debts = Debts::NONE;
    loop {
        let seen = queue.seen.load(Ordering::Acquire);
        let from = if seen < size { seen } else { tail };
        let next = if from + 1 == size { 0 } else { from + 1 };
        let next = if from == tail { tail } else { next };
        let event = at + HEAD + EVENT * from as usize;
        if from != tail && !amount::readable(event, EVENT, &mut own.readable) {
            return;
        }
        let won = queue
            .seen
            .compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed);
        if from == tail {
            break;
        }
        if won.is_err() {
            continue;
        }
        // SAFETY: readable; the second word is the control block, the third the result.
        let (key, result) = unsafe {
            let event = event as *const u64;
            (event.add(1).read_volatile(), event.add(2).read_volatile())
        };
        let done = Done {
            key,
            result: isize::try_from(result.cast_signed()).unwrap_or(0),
            more: false,
        };
        debts.take(segment, own, &entries, done);
    }
    debts.pay(segment, own);
}
