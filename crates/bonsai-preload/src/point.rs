//! Cancellation points of libcs (`bonsai_sites::Point`): calls by the one instruction of a libc for calls that may be cancelled. libc cancels a
//! thread in a call only at that instruction, so its calls are made there. A thread that was cancelled before, in a wait for a limit, makes no
//! call: it gets `EINTR`, and its libc ends it.

use crate::amount::Args;
use crate::cancel::Cancel;
use crate::slots::{Site, Slot, flag};
use crate::sys::{self, nr};
use core::sync::atomic::AtomicU32;

/// Distance from the arguments in the slow path's frame to the stack pointer at the site (`doors.rs`).
const FRAME: usize = 512 - 64;

/// Word of a thread that is not cancelled: musl ends no thread for a `close` that was interrupted.
static NEVER: AtomicU32 = AtomicU32::new(0);

/// Returns the point of a call that has come to the slow path, and its thread.
#[inline]
pub(crate) fn of(args: &Args, site: &Site) -> Cancel {
    if site.flags & flag::IN_PLACE == 0 {
        return Cancel::NONE;
    }
    // SAFETY: only slots have that flag.
    let slot = unsafe { Slot::of(site) };
    // SAFETY: the site's own stack, where its code has put the word's address.
    let word = unsafe { *((&raw const *args as usize + FRAME + 8) as *const usize) };
    let is_whole = slot.bit() == 0 && args.nr == nr::CLOSE;
    let word = if is_whole { &raw const NEVER } else { word as *const _ };
    Cancel::new(slot.at(), slot.bit(), word)
}

/// Makes a call by the point's own instruction, unless the thread has been cancelled.
///
/// # Safety
/// `cancel` is what [`of`] has said of the call.
pub(crate) unsafe fn make(args: &Args, cancel: Cancel) -> isize {
    if cancel.is_cancelled() {
        return sys::EINTR;
    }
    // SAFETY: the program's own call, where it makes it.
    let made = unsafe { cancel.make(args.nr, &args.a) };
    // SAFETY: likewise.
    made.unwrap_or_else(|| unsafe { sys::syscall(args.nr, args.a) })
}
