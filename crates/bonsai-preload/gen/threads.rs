//! How a fast path finds its thread's three words: state, page of counters, and the
//! distance from the latter to the former.
//!
//! In a program with a loader they are thread storage. A static program's storage is
//! laid out already: there they stand in a table, by the thread pointer, which no two
//! threads of a process have in common. Its entries are that pointer, inverted (so
//! that no thread's is 0), and the words (`src/threads/table.rs`).
//!
//! `rdfsbase` would not need the pointer in memory, and takes 4.2 ns instead of 0.5.

use crate::alone;

/// Entries of the table, as a power of two.
const BITS: u32 = 12;

/// Whose words a path uses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thread {
    /// The caller's, in thread storage.
    Own,
    /// The first thread's, in a place of their own: 25 cycles of loads and sums that
    /// depend on each other become 5 before the call, and 10 become 5 after it. Any
    /// other thread goes on with the path that follows.
    First,
    /// Those of the entry in the table, which is kept on the stack.
    Other,
}

/// The copies that a path of the second door has.
pub(crate) fn of_second() -> &'static [Thread] {
    if alone() {
        &[Thread::First, Thread::Other]
    } else {
        &[Thread::Own]
    }
}

/// `rcx` = the thread's state. Where the thread pointer is read is noted: Go has none, and
/// is told apart by the base of `fs`.
pub(crate) fn state(thread: Thread) -> &'static str {
    const _: () = assert!(BITS == 12);
    match thread {
        Thread::Own => {
            "mov rcx, qword ptr [rip + bonsai_me@gottpoff]
             mov rcx, qword ptr fs:[rcx]\n"
        }
        Thread::First => {
            "77: mov rcx, qword ptr fs:[0]
             .pushsection .rodata.bonsai_keys,\"a\",@progbits
             .long 77b - bonsai_paths
             .popsection
             not rcx
             cmp rcx, qword ptr [rip + BONSAI_MAIN]
             jne 76f
             mov rcx, qword ptr [rip + BONSAI_MAIN + 8]\n"
        }
        Thread::Other => {
            "76: imul r11d, ecx, 0x61c88647
             shr r11d, 32 - 12
             shl r11d, 5
             add r11, qword ptr [rip + BONSAI_THREADS]
             cmp rcx, qword ptr [r11]
             jne 7f
             mov qword ptr [rsp + 16], r11
             mov rcx, qword ptr [r11 + 8]\n"
        }
    }
}

/// Around the paths: where they begin, and where thread pointers are read in them.
pub(crate) fn keys() -> [&'static str; 2] {
    if !alone() {
        return ["", ""];
    }
    [
        ".globl bonsai_paths
         .hidden bonsai_paths
         bonsai_paths:
         .pushsection .rodata.bonsai_keys,\"a\",@progbits
         .balign 4
         .globl bonsai_keys
         .hidden bonsai_keys
         bonsai_keys:
         .popsection\n",
        ".pushsection .rodata.bonsai_keys,\"a\",@progbits
         .long 0
         .popsection\n",
    ]
}

/// After the call: `r11` = the page of counters (`mov`), or that much more (`add`),
/// `rcx` = the distance. They are read now: a signal handler, or an attachment, may have
/// changed them.
pub(crate) fn counters(thread: Thread, take: &str) -> String {
    match thread {
        Thread::Own => format!(
            "mov rcx, qword ptr [rip + bonsai_me@gottpoff]
             {take} r11, qword ptr fs:[rcx + 8]
             mov rcx, qword ptr fs:[rcx + 16]\n"
        ),
        Thread::First => format!(
            "{take} r11, qword ptr [rip + BONSAI_MAIN + 16]
             mov rcx, qword ptr [rip + BONSAI_MAIN + 24]\n"
        ),
        Thread::Other => format!(
            "mov rcx, qword ptr [rsp + 16]
             {take} r11, qword ptr [rcx + 16]
             mov rcx, qword ptr [rcx + 24]\n"
        ),
    }
}
