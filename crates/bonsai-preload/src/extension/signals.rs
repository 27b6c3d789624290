//! The signal of the trap: it is ours, and the program finds it as it left it.
//!
//! `SIGSYS` must never be blocked, or the kernel ends the process at the next trap: it is
//! taken out of every mask, also of handlers'. A program that blocks it finds it not
//! blocked. Its own handler for it is kept aside, and called for what is not ours.

use crate::amount::{Args, readable};
use crate::extension::OURS;
use crate::seccomp::ask;
use crate::signal::{Context, Handler, Info, SECCOMP};
use crate::sys::{self, nr, place};
use core::arch::global_asm;
use core::sync::atomic::{AtomicUsize, Ordering};

/// What the program wants to be done about `SIGSYS`: `struct sigaction`, as the kernel has it.
static WANTED: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

const SIGSYS: usize = 31;
const MASK: usize = 1 << (SIGSYS - 1);

global_asm!(
    ".pushsection .text.bonsai_trap,\"ax\",@progbits",
    ".globl bonsai_trap_return",
    ".hidden bonsai_trap_return",
    ".cfi_startproc",
    ".cfi_signal_frame",
    "nop",
    "bonsai_trap_return:",
    "mov eax, 15",
    "syscall",
    ".cfi_endproc",
    ".popsection",
);

/// Makes the handler ours. What the program had is what it finds as its own.
pub(crate) extern "C" fn take(handler: Handler) {
    /// `SA_SIGINFO`, `SA_RESTORER`, `SA_RESTART`, `SA_NODEFER`: the handler runs under the
    /// program's own mask, and a call in it may be interrupted as it would be elsewhere.
    const FLAGS: usize = 4 | 0x0400_0000 | 0x1000_0000 | 0x4000_0000;
    let ours = [handler as usize, FLAGS, place!("bonsai_trap_return"), 0];
    let mut before = [0_usize; 4];
    let mask = MASK;
    // SAFETY: as the kernel has `struct sigaction`, and a set of one word.
    unsafe {
        let result = ask!(Sigaction, SIGSYS, ours.as_ptr(), before.as_mut_ptr(), 8);
        if result == 0 && before[0] != ours[0] {
            keep(&before);
        }
        // SIG_UNBLOCK
        ask!(Sigprocmask, 1, &raw const mask, 0, 8);
    }
}

fn keep(action: &[usize; 4]) {
    for (to, from) in WANTED.iter().zip(action) {
        to.store(*from, Ordering::Relaxed);
    }
}

/// Whatever the signal brings but calls to be decided on. `is_own`: memory is the process's
/// own, which is not so in a vforked child.
pub(crate) unsafe extern "C" fn other(
    signal: i32,
    info: &Info,
    context: &mut Context,
    is_own: bool,
) {
    if info.code != SECCOMP || info.errno != OURS {
        others(signal, info, context);
        return;
    }
    let mut args = Args::of(context);
    let result = match args.nr {
        nr::RT_SIGACTION => action(&mut args, is_own),
        _ => mask(&mut args, context),
    };
    context.rax = result.cast_unsigned();
}

/// One of the two calls, as libc makes it. `is_own` as of [`other`].
pub(crate) unsafe extern "C" fn call(args: &mut Args, is_own: bool) -> isize {
    if args.nr == nr::RT_SIGACTION {
        return action(args, is_own);
    }
    without_ours(args)
}

/// `rt_sigaction`: no mask may have `SIGSYS`, and its own handler is kept aside.
fn action(args: &mut Args, is_own: bool) -> isize {
    let [signal, new, old, ..] = args.a;
    let mut copy = [0_usize; 4];
    let given = new != 0 && readable(new, size_of_val(&copy), &mut [0; 2]);
    if given {
        // SAFETY: readable.
        copy = unsafe { (new as *const [usize; 4]).read_unaligned() };
        copy[3] &= !MASK;
    }
    if signal != SIGSYS {
        if given {
            args.a[1] = &raw const copy as usize;
        }
        // SAFETY: the program's own call; a copy of its argument.
        return unsafe { sys::syscall(args.nr, args.a) };
    }
    // The kernel says whether there is room for the old one, which is not ours to tell.
    let ask = [signal, 0, old, args.a[3], 0, 0];
    // SAFETY: asks only.
    let result = unsafe { sys::syscall(args.nr, ask) };
    if result != 0 || new != 0 && !given {
        const EFAULT: isize = -14;
        return if result == 0 { EFAULT } else { result };
    }
    if old != 0 {
        let mut known = [0; 4];
        for (to, from) in known.iter_mut().zip(&WANTED) {
            *to = from.load(Ordering::Relaxed);
        }
        // SAFETY: the kernel has just written there.
        unsafe { (old as *mut [usize; 4]).write_unaligned(known) };
    }
    // A vforked child's handlers are its own, and its memory is not.
    if given && is_own {
        keep(&copy);
    }
    0
}

/// `rt_sigprocmask`. The mask that holds is the one that the handler goes back to.
fn mask(args: &mut Args, context: &mut Context) -> isize {
    let result = without_ours(args);
    let mut now = context.mask;
    // SAFETY: asks only.
    unsafe { ask!(Sigprocmask, 0, 0, &raw mut now, 8) };
    context.mask = now;
    result
}

/// `rt_sigprocmask` of all but `SIGSYS`.
fn without_ours(args: &mut Args) -> isize {
    let new = args.a[1];
    let copy;
    if new != 0 && readable(new, 8, &mut [0; 2]) {
        // SAFETY: readable.
        copy = unsafe { (new as *const usize).read_unaligned() } & !MASK;
        args.a[1] = &raw const copy as usize;
    }
    // SAFETY: the program's own call, with a copy of its argument.
    unsafe { sys::syscall(args.nr, args.a) }
}

/// A `SIGSYS` that is none of ours: as the program wants it.
fn others(signal: i32, info: &Info, context: &mut Context) {
    match WANTED[0].load(Ordering::Relaxed) {
        0 => {
            let default = [0_usize; 4];
            // SAFETY: what would have happened without us.
            unsafe {
                ask!(Sigaction, SIGSYS, default.as_ptr(), 0, 8);
                ask!(Tgkill, sys::getpid(), sys::gettid(), SIGSYS);
            }
        }
        1 => {}
        handler => {
            // SAFETY: the program's own handler; one without SA_SIGINFO does not look at
            // the other arguments.
            unsafe {
                let handler: Handler = core::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
    }
}
