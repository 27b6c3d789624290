//! In initial-exec thread storage.

use super::{NOBODY, Words};
use core::arch::{asm, global_asm};

global_asm!(
    ".pushsection .tdata,\"awT\",@progbits",
    ".balign 8",
    ".hidden bonsai_me",
    ".globl bonsai_me",
    ".type bonsai_me,@object",
    ".size bonsai_me,24",
    "bonsai_me: .quad {nobody}, 0, 0",
    ".popsection",
    nobody = sym NOBODY,
);

/// Makes this thread's words fit for a fast path before the loader has filled them
/// in: functions that choose an implementation run that early.
pub(crate) fn too_early() {
    // SAFETY: our own thread storage.
    let words = unsafe { &mut *words() };
    if words[0] == 0 {
        words[0] = &raw const NOBODY as usize;
    }
}

/// The address of this thread's words.
pub(crate) fn words() -> *mut Words {
    let words: *mut Words;
    // SAFETY: reads the thread pointer and adds the offset of our own variable.
    unsafe {
        asm!("mov {w}, qword ptr fs:[0]", "add {w}, qword ptr [rip + bonsai_me@gottpoff]",
            w = out(reg) words, options(nostack, readonly));
    }
    words
}

/// The thread that libc says this is; 0 if it is not known where it says that. glibc's `struct
/// pthread` has the number right before the list of robust mutexes, whose head points at itself
/// as long as there are none.
#[cold]
pub(crate) fn known_to_libc() -> u32 {
    const TID: usize = 0x2d0;
    const ROBUST: usize = TID + 16;
    let Some(_) = crate::elf::first_definition(b"gnu_get_libc_version") else {
        return 0;
    };
    let (base, head, tid): (usize, usize, u32);
    // SAFETY: within glibc's description of a thread, which is larger in all of its versions.
    unsafe {
        asm!("mov {b}, qword ptr fs:[0x10]", "mov {h}, qword ptr fs:[{at}]", "mov {t:e}, dword ptr fs:[{tid}]",
            b = out(reg) base, h = out(reg) head, t = out(reg) tid, at = const ROBUST, tid = const TID,
            options(nostack, readonly, preserves_flags));
    }
    if head == base + ROBUST { tid } else { 0 }
}

/// The process as it was known last. A forked child that has not been here has one thread.
#[cold]
pub(crate) fn known_process() -> u32 {
    match crate::blocks::pid() {
        0 => known_to_libc(),
        pid => pid,
    }
}

/// Where the table's own stacks are told of (`table.rs`), there are none.
pub(crate) const PROBES: u32 = 0;
/// Likewise.
pub(crate) const STACK_BITS: u32 = 0;

/// Runs `f`, which may not come back.
pub(crate) fn left_alone<T>(f: impl FnOnce() -> T) -> T {
    f()
}
