//! Epoll sets by their open file descriptions: all numbers of a set (`dup`, `fcntl(F_DUPFD)`, handed over by another process) are one.
//!
//! # Invariants
//! 1. Numbers of one set have one slot, whichever was seen first. Where that cannot be found out (no descriptor is free, or a seccomp
//!    filter is on), each has one of its own, and is a set that other instructions wait for: it is not served.
//! 2. A slot belongs to a set until the last of its numbers that are known is closed.

use crate::held;
use crate::kind::KINDS;
use crate::seccomp::{Helper, ask, forbids};
use crate::sets::{self, ADD, DEL, Event};
use bonsai_ledger::Sleepers;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// An epoll set.
pub(crate) struct Set {
    pub(crate) sleepers: Sleepers,
    /// The process that has looked at it; 0 for none.
    pub(crate) known_to: AtomicU32,
    /// Counts threads that have come back from waiting for it.
    pub(crate) returns: AtomicU32,
    /// Somebody has waited for it where that is seen.
    pub(crate) waited_for: AtomicBool,
    /// It was filled before that was looked at, and is believed to be waited for where that is seen, once.
    pub(crate) is_believed: AtomicBool,
    /// One more than the descriptor of the wake-up that lies in it; 0 for none.
    pub(crate) wake_up: AtomicU32,
    /// One more than a number of it; 0 for a slot that is free.
    number: AtomicU32,
    /// How many numbers of it are known.
    numbers: AtomicU32,
}

static SETS: [Set; KINDS] = [const {
    Set {
        sleepers: Sleepers::new(),
        known_to: AtomicU32::new(0),
        returns: AtomicU32::new(0),
        waited_for: AtomicBool::new(false),
        is_believed: AtomicBool::new(false),
        wake_up: AtomicU32::new(0),
        number: AtomicU32::new(0),
        numbers: AtomicU32::new(0),
    }
}; KINDS];

/// By number: one more than its slot; 0 for none.
static SLOTS: [AtomicU32; KINDS] = [const { AtomicU32::new(0) }; KINDS];

/// Whether any set is known.
static ANY: AtomicBool = AtomicBool::new(false);

pub(crate) fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// The set in a slot.
pub(crate) fn at(slot: usize) -> Option<&'static Set> {
    SETS.get(slot)
}

/// The slot of a number that is known as a set's.
pub(crate) fn slot_of(number: usize) -> Option<usize> {
    (SLOTS.get(number)?.load(Ordering::Acquire) as usize).checked_sub(1)
}

/// A number of a set.
pub(crate) fn number_of(slot: usize) -> Option<usize> {
    (at(slot)?.number.load(Ordering::Relaxed) as usize).checked_sub(1)
}

/// All numbers of a set; most have one.
pub(crate) fn numbers(slot: usize) -> impl Iterator<Item = usize> {
    let one = at(slot).is_some_and(|set| set.numbers.load(Ordering::Relaxed) <= 1);
    let first = number_of(slot).unwrap_or(KINDS);
    let all = if one {
        first..first + 1
    } else {
        0..sets::high()
    };
    all.filter(move |number| slot_of(*number) == Some(slot))
}

/// The sets that a set is in.
pub(crate) fn outer(slot: usize) -> Option<usize> {
    numbers(slot).find_map(|number| sets::registration(number).map(|(_, outer)| outer))
}

/// A number of a set that was not known: its slot, and whether the set is new.
#[expect(clippy::cast_possible_truncation, reason = "there are 65,536")]
pub(crate) fn admit(number: usize) -> Option<(usize, bool)> {
    let own = SLOTS.get(number)?;
    sets::note(number);
    let (slot, is_new) = match same(number) {
        Some(slot) => (slot, false),
        None => (free(number)?, true),
    };
    let set = at(slot)?;
    let taken = own.compare_exchange(0, slot as u32 + 1, Ordering::AcqRel, Ordering::Acquire);
    if let Err(other) = taken {
        // Another thread was faster.
        if is_new {
            set.number.store(0, Ordering::Release);
        }
        return Some((other as usize - 1, false));
    }
    set.numbers.fetch_add(1, Ordering::Relaxed);
    ANY.store(true, Ordering::Relaxed);
    Some((slot, is_new))
}

/// Takes a slot that is free: that of the number, if possible.
#[expect(clippy::cast_possible_truncation, reason = "there are 65,536")]
fn free(number: usize) -> Option<usize> {
    let take = |slot: &usize| {
        at(*slot).is_some_and(|set| {
            let word = &set.number;
            let taken =
                word.compare_exchange(0, number as u32 + 1, Ordering::AcqRel, Ordering::Relaxed);
            taken.is_ok()
        })
    };
    core::iter::once(number).chain((0..KINDS).rev()).find(take)
}

/// The set that a number is another one of. Of one file, the kernel takes a registration once: one is tried in both.
fn same(number: usize) -> Option<usize> {
    const EEXIST: isize = -17;
    let process = held::process();
    let is_known =
        |slot: &usize| at(*slot).is_some_and(|set| set.known_to.load(Ordering::Relaxed) == process);
    let mut known = (0..sets::high())
        .filter(|other| *other != number)
        .filter_map(slot_of)
        .filter(is_known)
        .peekable();
    known.peek()?;
    let probe = event(0)?;
    let quiet = Event { events: 0, data: 0 };
    // SAFETY: an event of our own, on a descriptor of our own.
    let ctl = |set: usize, operation: usize| unsafe {
        ask!(EpollCtl, set, operation, probe, &raw const quiet)
    };
    let mut found = None;
    if ctl(number, ADD) == 0 {
        found = known.find(|slot| {
            number_of(*slot).is_some_and(|other| {
                let added = ctl(other, ADD);
                if added == 0 {
                    ctl(other, DEL);
                }
                added == EEXIST
            })
        });
        ctl(number, DEL);
    }
    // SAFETY: our own.
    unsafe { ask!(Close, probe) };
    found
}

/// A descriptor of an event that has come so often; none where a filter might forbid it, or none is free.
pub(crate) fn event(count: usize) -> Option<usize> {
    /// `EFD_CLOEXEC`, `EFD_NONBLOCK`.
    const FLAGS: usize = 0o2_004_000;
    if [Helper::EpollCtl, Helper::Close].into_iter().any(forbids) {
        return None;
    }
    // SAFETY: plain numbers.
    usize::try_from(unsafe { ask!(Eventfd, count, FLAGS) }).ok()
}

/// A number is about to mean something else. The slot that nobody has a number of any more.
#[expect(clippy::cast_possible_truncation, reason = "there are 65,536")]
pub(crate) fn forget(number: usize) -> Option<usize> {
    let slot = slot_of(number)?;
    let set = at(slot)?;
    SLOTS.get(number)?.store(0, Ordering::Release);
    if set.numbers.fetch_sub(1, Ordering::AcqRel) == 1 {
        return Some(slot);
    }
    if number_of(slot) == Some(number)
        && let Some(other) = numbers(slot).next()
    {
        set.number.store(other as u32 + 1, Ordering::Relaxed);
    }
    None
}

impl Set {
    /// It is free again.
    pub(crate) fn end(&self) {
        self.sleepers.reset();
        self.known_to.store(0, Ordering::Relaxed);
        self.waited_for.store(false, Ordering::Relaxed);
        self.is_believed.store(false, Ordering::Relaxed);
        self.wake_up.store(0, Ordering::Relaxed);
        self.number.store(0, Ordering::Release);
    }

    /// Whether it is waited for by instructions that are seen.
    pub(crate) fn is_seen(&self) -> bool {
        self.waited_for.load(Ordering::Relaxed) || self.is_believed.swap(false, Ordering::Relaxed)
    }

    /// Whether it is this process's own, and not its parent's.
    pub(crate) fn is_ours(&self) -> bool {
        self.known_to.load(Ordering::Relaxed) == held::process()
    }
}
