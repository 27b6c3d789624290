//! Wake-ups of threads that sleep in an epoll set (`bonsai_ledger::Sleepers`): an event of our own in the set. The kernel keeps it until a
//! thread that waits there takes it; the program never sees it. It is made when it is needed, and gone when it was taken: a descriptor
//! for less than a millisecond, while two threads of a process wait.
//!
//! Where there can be none (no descriptor is free, or a seccomp filter is on), everything of the set is shown instead: whatever is ready
//! wakes a sleeper, if too early, and what is not ready yet will.

use crate::amount::Args;
use crate::kind::KINDS;
use crate::seccomp::ask;
use crate::set::{self, Set};
use crate::sets::{self, ADD, DEL, Event, MOD, control};
use core::sync::atomic::Ordering;

/// What our events have as data, beside their descriptors: no address of a program, and no number that counts up.
const TAG: u64 = 0xb0a5_a1e7_4c50_0000;
const TAG_MASK: u64 = !0xffff;
const _: () = assert!(KINDS == 1 << 16);

/// `EPOLLIN`, `EPOLLONESHOT`.
const ONCE: u32 = 1 | 1 << 30;

/// Leaves a wake-up in a set, or shows all of it. False for the latter: nothing may be hidden there.
#[cold]
#[inline(never)]
pub(crate) fn leave(slot: usize) -> bool {
    let left = set::at(slot).is_some_and(|set| put(slot, set));
    if !left {
        sets::show_all(slot);
    }
    left
}

fn put(slot: usize, set: &Set) -> bool {
    let there = set.wake_up.load(Ordering::Acquire);
    if let Some(there) = there.checked_sub(1)
        && control(slot, MOD, there as usize, ONCE, TAG | u64::from(there)) == 0
    {
        return true;
    }
    let Some(fd) = set::event(1) else {
        return false;
    };
    // Should the program close all that is open, this is forgotten.
    sets::note(fd);
    let Ok(number @ 0..0xffff) = u32::try_from(fd) else {
        close(fd);
        return false;
    };
    // Before it can be taken.
    let before = set.wake_up.swap(number + 1, Ordering::AcqRel);
    if let Some(before) = before.checked_sub(1) {
        remove(slot, before);
    }
    let added = control(slot, ADD, fd, ONCE, TAG | u64::from(number)) == 0;
    if !added {
        forget(set, number);
        close(fd);
    }
    added
}

/// A wake-up lies in the set no more.
fn forget(set: &Set, number: u32) {
    let word = &set.wake_up;
    // Otherwise another one does.
    let _ = word.compare_exchange(number + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
}

/// Takes wake-ups out of what a wait has brought; what is left of that.
pub(crate) fn take(slot: usize, set: &Set, args: &Args, result: isize) -> isize {
    let Ok(count @ 1..) = usize::try_from(result) else {
        return result;
    };
    let at = args.a[1] as *mut Event;
    let mut left = 0;
    for i in 0..count {
        // SAFETY: the kernel has just written so many.
        let event = unsafe { at.add(i).read_unaligned() };
        let data = event.data;
        if data & TAG_MASK == TAG {
            let number = (data & !TAG_MASK) as u32;
            forget(set, number);
            remove(slot, number);
            continue;
        }
        if left != i {
            // SAFETY: before one that was read.
            unsafe { at.add(left).write_unaligned(event) };
        }
        left += 1;
    }
    left.cast_signed()
}

/// A set is about to be closed.
pub(crate) fn end(slot: usize, set: &Set) {
    if let Some(there) = set.wake_up.swap(0, Ordering::AcqRel).checked_sub(1) {
        remove(slot, there);
    }
}

/// Closes the descriptor of a wake-up, if it still is one: the program may have closed it, and got another one by its number.
fn remove(slot: usize, number: u32) {
    if control(slot, DEL, number as usize, 0, 0) == 0 {
        close(number as usize);
    }
}

fn close(fd: usize) {
    // SAFETY: our own.
    unsafe { ask!(Close, fd) };
}
