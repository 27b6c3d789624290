//! What was charged for entries under way, by what their results are known again by.
//!
//! A table of fixed size without locks: an entry is looked for in [`PROBES`] places. Where
//! all of them are in use it is not recorded, and stays charged as asked for.

use crate::seccomp::ask;
use bonsai_calls::CallId;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const PROBES: usize = 8;

/// Places of a table at most.
const MOST: usize = 1 << 16;

/// An entry under way.
#[derive(Clone, Copy)]
pub(crate) struct Record {
    pub(crate) call: CallId,
    pub(crate) fd: u32,
    /// The epoch of the limits that it was charged under.
    pub(crate) epoch: u32,
    /// Bytes that it asks for.
    pub(crate) asked: u32,
    /// Bits of [`is`].
    pub(crate) is: u64,
}

/// What is known of an entry under way.
pub(crate) mod is {
    /// It was charged when it entered.
    pub(crate) const PAID: u64 = 1 << 61;
    /// Another one has the same key and asks for something else.
    pub(crate) const UNSURE: u64 = 1 << 60;
    /// It has several results.
    pub(crate) const MANY: u64 = 1 << 59;
    /// Its result is a descriptor.
    pub(crate) const GIVES: u64 = 1 << 58;
    /// Its result is a place in the ring's table of files.
    pub(crate) const PLACE: u64 = 1 << 57;
}

const LIVE: u64 = 1 << 63;
const TAKEN: u64 = 1 << 62;

/// A place of the table.
struct Slot {
    /// [`LIVE`] or [`TAKEN`], bits of [`is`], the call, the bytes; 0 for free.
    state: AtomicU64,
    key: AtomicU64,
    /// The descriptor, and the epoch.
    more: AtomicU64,
}

/// A table, made when it is first used.
pub(crate) struct Records {
    at: AtomicUsize,
    /// Places: a power of two.
    places: AtomicUsize,
}

impl Records {
    pub(crate) const fn none() -> Self {
        Self {
            at: AtomicUsize::new(0),
            places: AtomicUsize::new(0),
        }
    }

    /// Makes room for `entries` at a time.
    pub(crate) fn make(&self, entries: usize) {
        if self.at.load(Ordering::Acquire) != 0 {
            return;
        }
        let places = (2 * entries).clamp(2 * PROBES, MOST).next_power_of_two();
        let len = places * size_of::<Slot>();
        // PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS
        // SAFETY: memory of our own.
        let at = unsafe { ask!(Mmap, 0, len, 3, 0x22, -1_isize, 0) };
        let Ok(at) = usize::try_from(at) else {
            return;
        };
        // Whoever is second has found the same number of places.
        self.places.store(places, Ordering::Relaxed);
        let first = self
            .at
            .compare_exchange(0, at, Ordering::AcqRel, Ordering::Relaxed);
        if first.is_err() {
            // SAFETY: just mapped, and nobody knows of it.
            unsafe { ask!(Munmap, at, len) };
        }
    }

    /// Gives the memory back. Nobody may be using it.
    pub(crate) fn free(&self) {
        let at = self.at.swap(0, Ordering::AcqRel);
        if at != 0 {
            let len = self.places.load(Ordering::Relaxed) * size_of::<Slot>();
            // SAFETY: what `make` has mapped.
            unsafe { ask!(Munmap, at, len) };
        }
    }

    /// Forgets all of them.
    pub(crate) fn clear(&self) {
        let at = self.at.load(Ordering::Acquire);
        if at != 0 {
            let len = self.places.load(Ordering::Relaxed) * size_of::<Slot>();
            // MADV_DONTNEED: zero when next looked at.
            // SAFETY: what `make` has mapped.
            unsafe { ask!(Madvise, at, len, 4) };
        }
    }

    fn slots(&self, key: u64) -> impl Iterator<Item = &'static Slot> {
        let at = self.at.load(Ordering::Acquire);
        let places = self.places.load(Ordering::Relaxed);
        let all = match at {
            0 => &[],
            // SAFETY: mapped with so many places, until `free`.
            at => unsafe { core::slice::from_raw_parts(at as *const Slot, places) },
        };
        let start = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
        (0..PROBES).filter_map(move |i| all.get(start.wrapping_add(i) & places.wrapping_sub(1)))
    }

    /// Keeps a record; false where there is no room.
    pub(crate) fn put(&self, key: u64, record: &Record) -> bool {
        let mut state = LIVE | record.is | u64::from(record.call) << 32 | u64::from(record.asked);
        let more = u64::from(record.fd) << 32 | u64::from(record.epoch);
        let mut free = None;
        for slot in self.slots(key) {
            let seen = slot.state.load(Ordering::Acquire);
            if seen == 0 {
                free = free.or(Some(slot));
            } else if seen & LIVE != 0
                && slot.key.load(Ordering::Relaxed) == key
                && (seen != state || slot.more.load(Ordering::Relaxed) >> 32 != more >> 32)
            {
                let both = seen | is::UNSURE;
                let _ =
                    slot.state
                        .compare_exchange(seen, both, Ordering::AcqRel, Ordering::Relaxed);
                state |= is::UNSURE;
            }
        }
        let Some(slot) = free else {
            return false;
        };
        let won = slot
            .state
            .compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed);
        if won.is_err() {
            return false;
        }
        slot.key.store(key, Ordering::Relaxed);
        slot.more.store(more, Ordering::Relaxed);
        slot.state.store(state, Ordering::Release);
        true
    }

    /// The record with a key; it is forgotten unless it has several results and this was
    /// not the last.
    #[expect(clippy::cast_possible_truncation, reason = "the parts of a word")]
    pub(crate) fn take(&self, key: u64, last: bool) -> Option<Record> {
        for slot in self.slots(key) {
            let state = slot.state.load(Ordering::Acquire);
            if state & LIVE == 0 || slot.key.load(Ordering::Relaxed) != key {
                continue;
            }
            let more = slot.more.load(Ordering::Relaxed);
            if last || state & is::MANY == 0 {
                let won =
                    slot.state
                        .compare_exchange(state, 0, Ordering::AcqRel, Ordering::Relaxed);
                if won.is_err() {
                    continue;
                }
            }
            return Some(Record {
                call: (state >> 32) as u8,
                fd: (more >> 32) as u32,
                epoch: more as u32,
                asked: state as u32,
                is: state & (is::PAID | is::UNSURE | is::MANY | is::GIVES | is::PLACE),
            });
        }
        None
    }
}
