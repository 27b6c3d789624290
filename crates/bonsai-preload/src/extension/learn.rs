//! Learning of epoll sets that were made and filled before that was looked at, and forgetting them.

use crate::held;
use crate::hold;
use crate::kind;
use crate::known;
use crate::raw;
use crate::set::{self, Set};
use crate::sets::{self, announce, record, registration, tell, withheld};
use crate::sys;
use crate::wakes;
use bonsai_ledger::Segment;
use core::sync::atomic::{AtomicU32, Ordering};

/// The set of a number, and its slot.
pub(crate) fn learn(number: usize) -> Option<(usize, &'static Set)> {
    let process = held::process();
    if let Some(slot) = set::slot_of(number) {
        let set = set::at(slot)?;
        if set.known_to.load(Ordering::Relaxed) == process {
            return Some((slot, set));
        }
        return meet_parents(slot, set, process);
    }
    let (slot, is_new) = set::admit(number)?;
    let set = set::at(slot)?;
    // Those that sleep by this number.
    raw::find(slot);
    if is_new {
        set.known_to.store(process, Ordering::Relaxed);
        if known::can_look() {
            known::read(number, slot, meet);
        }
    }
    Some((slot, set))
}

/// A set of the process that this one is a child of: what that has hidden.
fn meet_parents(slot: usize, set: &'static Set, process: u32) -> Option<(usize, &'static Set)> {
    if set.known_to.swap(process, Ordering::Relaxed) != process {
        // Its sleepers are not ours, nor is its wake-up, whose copy here the next program does not get.
        set.sleepers.reset();
        set.wake_up.store(0, Ordering::Relaxed);
        let of_set = |fd: &usize| registration(*fd).is_some_and(|(_, s)| s == slot);
        for fd in (0..sets::high()).filter(of_set) {
            tell(fd, false);
        }
    }
    Some((slot, set))
}

/// What was in a set before that was looked at: it may be held already.
fn meet(slot: usize, fd: usize, asked: u32, data: u64) {
    record(slot, fd, (asked, 0), data);
    // Whoever waits finds out when it is due.
    if asked & withheld(fd) != 0 && announce(slot, 0) && !raw::sleep(slot) {
        tell(fd, false);
    }
}

/// The process that has looked for all of its sets.
static LOOKED: AtomicU32 = AtomicU32::new(0);

/// Learns of all sets that the process has, once: a descriptor may be in one of which nothing was seen. False where a filter may
/// forbid to look.
#[cold]
#[inline(never)]
pub(crate) fn find_sets() -> bool {
    let process = held::process();
    if !known::can_look() {
        return false;
    }
    if LOOKED.swap(process, Ordering::Relaxed) != process {
        known::each_set(|number| {
            let is_new = set::slot_of(number).is_none();
            if let Some((_, set)) = learn(number).filter(|_| is_new) {
                set.is_believed.store(true, Ordering::Relaxed);
            }
        });
    }
    true
}

/// These numbers are about to mean something else; they still mean what they did if
/// they are about to be closed.
pub(crate) fn forget(segment: &Segment, first: usize, last: usize, closes: bool) {
    // A vforked child closes what is its own, in memory that is its parent's.
    let mut own = None;
    for fd in first..=last.min(sets::high().max(held::high())) {
        let known = held::state(fd) != 0 || sets::is_known(fd) || set::slot_of(fd).is_some();
        if !known && closes {
            // Of a file that is all there is, and `descriptors` forgets what that was about,
            // before the call and after it, in whichever process.
            kind::note(fd, false);
        } else if (known || kind::is_noted(fd))
            && *own.get_or_insert_with(|| held::process() == sys::getpid())
        {
            hold::forget(segment, fd);
            if closes {
                // By another number of the same file, the kernel keeps it.
                tell(fd, false);
            }
            sets::clear(fd);
            forget_set(fd, closes);
            kind::note(fd, false);
        }
    }
}

/// The same of a number that is a set's.
fn forget_set(number: usize, closes: bool) {
    if closes
        && let Some(slot) = set::slot_of(number)
        && let Some(set) = set::at(slot).filter(|set| set.is_ours())
    {
        wakes::end(slot, set);
    }
    if let Some(slot) = set::forget(number)
        && let Some(set) = set::at(slot)
    {
        let of_set = |fd: &usize| registration(*fd).is_some_and(|(_, s)| s == slot);
        (0..sets::high()).filter(of_set).for_each(sets::clear);
        set.end();
    }
}
