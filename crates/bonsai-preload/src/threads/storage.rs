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

/// Where the table's own stacks are told of (`table.rs`), there are none.
pub(crate) const PROBES: u32 = 0;
/// Likewise.
pub(crate) const STACK_BITS: u32 = 0;

/// Runs `f`, which may not come back.
pub(crate) fn left_alone<T>(f: impl FnOnce() -> T) -> T {
    f()
}
