//! What is held (`hold.rs`): a byte for each descriptor that says so, and for each of its
//! ways until when, and for what. No lock: see there.

use crate::identity;
use crate::kept::{Kept, WORDS};
use crate::kind::KINDS;
use crate::seccomp::ask;
use crate::sequence::Sequence;
use crate::sys;
use bonsai_calls::CallId;
use bonsai_ledger::{KEPT, Process, Segment, coverage};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// What a descriptor is ready for; its bit in [`state`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    In = 1,
    Out = 2,
}

/// Bits of a descriptor's state: both ways held, and both ways with credit.
pub(crate) const HELD: u8 = 3;
pub(crate) const CREDIT_SHIFT: u8 = 2;

/// What a forked child does not inherit: whole pages, which the kernel wipes.
#[repr(C, align(4096))]
struct Wiped {
    states: [AtomicU8; KINDS],
    /// The process; 0 in a child that has not noticed yet.
    pid: AtomicU32,
    /// Descriptors below this have been held.
    high: AtomicU32,
    /// Bits of `states` that are set.
    bits: AtomicU32,
    /// The thread that was seen first, and whether there was another one.
    thread: AtomicU32,
    threads: AtomicBool,
    /// What is known of the process's waits: [`SEEN`] or [`UNSEEN`].
    waits: AtomicU8,
    /// Bits of [`coverage`] that the ledger has on event loops of the process.
    said: AtomicU32,
}

static WIPED: Wiped = Wiped {
    states: [const { AtomicU8::new(0) }; KINDS],
    pid: AtomicU32::new(0),
    high: AtomicU32::new(0),
    bits: AtomicU32::new(0),
    thread: AtomicU32::new(0),
    threads: AtomicBool::new(false),
    waits: AtomicU8::new(0),
    said: AtomicU32::new(0),
};

/// One way of a descriptor.
pub(crate) struct Hold {
    sequence: Sequence,
    /// The limits that `until` was computed under.
    pub(crate) epoch: AtomicU32,
    pub(crate) until: AtomicU64,
    since: AtomicU64,
    /// Credit.
    bytes: AtomicU64,
    calls: AtomicU64,
    /// What it was paid under.
    mask: AtomicU64,
    per_stream: AtomicU64,
    call: AtomicU8,
    tickets: [[AtomicU64; 2]; KEPT],
    /// What it draws on of a group.
    shared: [AtomicU64; WORDS],
}

static HOLDS: [[Hold; 2]; KINDS] = [const {
    [const {
        Hold {
            sequence: Sequence::new(),
            epoch: AtomicU32::new(0),
            until: AtomicU64::new(0),
            since: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            mask: AtomicU64::new(0),
            per_stream: AtomicU64::new(0),
            call: AtomicU8::new(0),
            tickets: [const { [const { AtomicU64::new(0) }; 2] }; KEPT],
            shared: [const { AtomicU64::new(0) }; WORDS],
        }
    }; 2]
}; KINDS];

/// What a hold says, at one instant.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(crate) epoch: u32,
    pub(crate) until: u64,
    pub(crate) since: u64,
    pub(crate) bytes: u64,
    pub(crate) calls: u64,
    pub(crate) mask: u64,
    pub(crate) per_stream: u64,
    pub(crate) call: CallId,
    pub(crate) tickets: [[u64; 2]; KEPT],
    pub(crate) shared: Kept,
}

const MADV_WIPEONFORK: usize = 18;

/// Before the first call, and in a child before its first.
pub(crate) fn begin() {
    let at = &raw const WIPED;
    // SAFETY: whole pages of our own.
    unsafe { ask!(Madvise, at, size_of::<Wiped>(), MADV_WIPEONFORK) };
    WIPED.pid.store(sys::getpid(), Ordering::Relaxed);
}

/// Forked children that have been here without being allowed to ask for their number.
static UNNAMED: AtomicU32 = AtomicU32::new(0);

/// Some number for this process that none of its ancestors has, where it may not be asked for:
/// no process has one so large.
#[cold]
pub(crate) fn known_process() -> u32 {
    match WIPED.pid.load(Ordering::Relaxed) {
        0 => 1 << 31 | UNNAMED.fetch_add(1, Ordering::Relaxed),
        pid => pid,
    }
}

/// Likewise of a thread: not here.
pub(crate) const fn known_to_libc() -> u32 {
    0
}

/// The process; notices a fork.
pub(crate) fn process() -> u32 {
    match WIPED.pid.load(Ordering::Relaxed) {
        0 => {
            begin();
            WIPED.pid.load(Ordering::Relaxed)
        }
        pid => pid,
    }
}

/// A thread makes a call that is decided on here.
pub(crate) fn meet(tid: u32) {
    let first = WIPED.thread.load(Ordering::Relaxed);
    if first == 0 {
        WIPED.thread.store(tid, Ordering::Relaxed);
    } else if first != tid && !has_threads() {
        // Once: a line that every call of every thread would write costs 16 threads a microsecond each time.
        WIPED.threads.store(true, Ordering::Relaxed);
    }
}

/// Whether several threads have been met.
pub(crate) fn has_threads() -> bool {
    WIPED.threads.load(Ordering::Relaxed)
}

const SEEN: u8 = 1;
const UNSEEN: u8 = 2;

/// Entry of this process in the ledger.
fn entry(segment: &Segment) -> Option<&Process> {
    let word = identity::of(process()).word();
    let own = |p: &&Process| p.id.load(Ordering::Relaxed) == word;
    segment.processes.iter().find(own)
}

/// Whether all calls are seen that wait for readiness: exported symbols are not enough.
pub(crate) fn sees_waits(segment: &Segment) -> bool {
    match WIPED.waits.load(Ordering::Relaxed) {
        0 => {
            let patched = |p: &Process| p.coverage.load(Ordering::Relaxed) & coverage::PATCHED != 0;
            let seen = entry(segment).is_some_and(patched);
            let known = if seen { SEEN } else { UNSEEN };
            WIPED.waits.store(known, Ordering::Relaxed);
            seen
        }
        known => known == SEEN,
    }
}

/// Whether a bit of [`coverage`] has not been said of this process.
pub(crate) fn is_news(bit: u32) -> bool {
    WIPED.said.load(Ordering::Relaxed) & bit == 0
}

/// Sets a bit of [`coverage`] of this process.
pub(crate) fn say(segment: &Segment, bit: u32) {
    if let Some(entry) = entry(segment) {
        entry.coverage.fetch_or(bit, Ordering::Relaxed);
        WIPED.said.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Descriptors below this may be held.
pub(crate) fn high() -> usize {
    (WIPED.high.load(Ordering::Relaxed) as usize).min(KINDS)
}

/// What is held of a descriptor, and of what there is credit.
pub(crate) fn state(fd: usize) -> u8 {
    WIPED.states.get(fd).map_or(0, |s| s.load(Ordering::SeqCst))
}

/// Where the states are.
pub(crate) fn place() -> usize {
    WIPED.states.as_ptr() as usize
}

/// Eight states from `fd` on, which eight divides: 0 where nothing is known of any.
pub(crate) fn eight(fd: usize) -> u64 {
    let states = WIPED.states.get(fd..fd + 8);
    states.map_or(0, |s| {
        // SAFETY: eight bytes that eight divides the address of; nobody writes more than
        // one at a time, and what is read is looked at once more.
        unsafe { s.as_ptr().cast::<u64>().read_volatile() }
    })
}

pub(crate) fn hold(fd: usize, way: Way) -> Option<&'static Hold> {
    HOLDS
        .get(fd)
        .map(|ways| &ways[usize::from(way == Way::Out)])
}

impl Hold {
    /// Writes, if nobody else does just now.
    pub(crate) fn write(&self, held: &Held) -> bool {
        self.change(|there| *there = *held)
    }

    /// Changes what is there, if nobody else writes just now.
    pub(crate) fn change(&self, by: impl FnOnce(&mut Held)) -> bool {
        self.sequence.write(|| {
            let mut held = self.load();
            by(&mut held);
            self.store(&held);
        })
    }

    /// Reads; `None` while it is written.
    pub(crate) fn read(&self) -> Option<Held> {
        self.sequence.read(|| self.load())
    }

    /// Whether it is of a group, and may be due, or later or earlier than it was.
    pub(crate) fn is_to_be_looked_at(&self, until: u64, now: u64) -> bool {
        let [head, ..] = &self.shared;
        Kept::is_to_be_looked_at(head.load(Ordering::Relaxed), until, now)
    }

    fn store(&self, held: &Held) {
        self.epoch.store(held.epoch, Ordering::Relaxed);
        self.until.store(held.until, Ordering::Relaxed);
        self.since.store(held.since, Ordering::Relaxed);
        self.bytes.store(held.bytes, Ordering::Relaxed);
        self.calls.store(held.calls, Ordering::Relaxed);
        self.mask.store(held.mask, Ordering::Relaxed);
        self.per_stream.store(held.per_stream, Ordering::Relaxed);
        self.call.store(held.call, Ordering::Relaxed);
        let tickets = self.tickets.iter().flatten();
        store(tickets, held.tickets.iter().flatten());
        store(self.shared.iter(), held.shared.to_words().iter());
    }

    fn load(&self) -> Held {
        let mut tickets = [[0; 2]; KEPT];
        load(tickets.iter_mut().flatten(), self.tickets.iter().flatten());
        let mut shared = [0; WORDS];
        load(shared.iter_mut(), self.shared.iter());
        Held {
            epoch: self.epoch.load(Ordering::Relaxed),
            until: self.until.load(Ordering::Relaxed),
            since: self.since.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            calls: self.calls.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
            per_stream: self.per_stream.load(Ordering::Relaxed),
            call: self.call.load(Ordering::Relaxed),
            tickets,
            shared: Kept::from_words(&shared),
        }
    }
}

fn store<'a>(to: impl Iterator<Item = &'a AtomicU64>, from: impl Iterator<Item = &'a u64>) {
    for (to, from) in to.zip(from) {
        to.store(*from, Ordering::Relaxed);
    }
}

fn load<'a>(to: impl Iterator<Item = &'a mut u64>, from: impl Iterator<Item = &'a AtomicU64>) {
    for (to, from) in to.zip(from) {
        *to = from.load(Ordering::Relaxed);
    }
}

/// Says that a way is held from now on, and whether there is credit.
pub(crate) fn set(fd: usize, way: Way, credit: bool) {
    #[expect(clippy::cast_possible_truncation, reason = "there are 65,536")]
    WIPED.high.fetch_max(fd as u32 + 1, Ordering::Relaxed);
    if let Some(state) = WIPED.states.get(fd) {
        let wanted = way as u8 | (way as u8 * u8::from(credit)) << CREDIT_SHIFT;
        let before = state.fetch_or(wanted, Ordering::SeqCst);
        WIPED
            .bits
            .fetch_add((wanted & !before).count_ones(), Ordering::Relaxed);
    }
}

/// Takes these bits of a descriptor's state away; which of them it had.
pub(crate) fn clear(fd: usize, bits: u8) -> u8 {
    let state = WIPED.states.get(fd);
    let had = state.map_or(0, |s| s.fetch_and(!bits, Ordering::SeqCst) & bits);
    WIPED.bits.fetch_sub(had.count_ones(), Ordering::Relaxed);
    had
}

/// Whether nothing is held of any descriptor, and there is no credit.
pub(crate) fn nothing() -> bool {
    WIPED.bits.load(Ordering::Relaxed) == 0
}
