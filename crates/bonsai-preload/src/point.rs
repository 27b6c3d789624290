//! musl's cancellation point (`bonsai_sites::is_cancellation_point`): the one instruction by
//! which its functions make calls that may be cancelled. A thread is cancelled in a call if it
//! is at that instruction, so its calls are made by it, and not elsewhere. Whoever was
//! cancelled before, in a wait for a limit, is so instead of the call.

use crate::amount::Args;
use crate::slots::{Site, Slot, flag};
use core::arch::asm;
use core::sync::atomic::{AtomicUsize, Ordering};

/// How far behind its thread pointer a thread's word is that says that it was cancelled; the
/// same for all threads. 0 if not known yet.
static WORD: AtomicUsize = AtomicUsize::new(0);

/// From the arguments in the slow path's frame to the stack pointer at the site (`doors.rs`).
const FRAME: usize = 512 - 64;

/// Takes note of where a thread's word is.
pub(crate) fn note(args: &Args, site: &Site) {
    if site.flags & flag::CANCELLABLE != 0 && WORD.load(Ordering::Relaxed) == 0 {
        let stack = &raw const *args as usize + FRAME;
        // SAFETY: the site's own stack, where its code has put the word's address.
        let word = unsafe { *((stack + 8) as *const usize) };
        WORD.store(word.wrapping_sub(thread()), Ordering::Relaxed);
    }
}

/// The thread pointer, as musl has it in its first word.
fn thread() -> usize {
    let thread;
    // SAFETY: readable in every thread of musl.
    unsafe {
        asm!("mov {}, fs:[0]", out(reg) thread, options(nostack, readonly, preserves_flags));
    }
    thread
}

/// Makes a call by the site's own instruction, unless the thread has been cancelled. Does not
/// come back if it is.
///
/// # Safety
/// `site` is a cancellation point's.
pub(crate) unsafe fn call(args: &Args, site: &Site) -> isize {
    // SAFETY: by contract.
    let at = unsafe { Slot::of(site) }.at();
    let word = thread().wrapping_add(WORD.load(Ordering::Relaxed));
    let [a, b, c, d, e, f] = args.a;
    let result;
    // SAFETY: `syscall; ret` stand at the site, and behind them a jump to musl's function for
    // whoever was cancelled, which answers as the call would if that may not be yet.
    unsafe {
        asm!(
            "cmp dword ptr [r13], 0",
            "je 2f",
            "add r12, 3",
            "2: call r12",
            in("r13") word,
            inlateout("r12") at => _,
            inlateout("rax") args.nr => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            clobber_abi("sysv64"),
        );
    }
    result
}
