//! The fast paths as assembly: what both doors have in common.
//!
//! Registers: a system call keeps all but `rax`, `rcx` and `r11`, and the code
//! around a patched site counts on the others, so these three are all there is.
//! A path is entered with its site's record in `r11`, or behind the first door with
//! the place of the symbol's target in `rax`. Before the call `rcx` is the
//! thread's state (`Own`), afterwards `r11` is the thread's page of counters and
//! `rcx` the distance from it to the state: entry `c` of both is at `64 + 32 * c`.
//! What has to survive the call goes to the stack.
//!
//! `edi` is extended to 64 bits where it is a descriptor: the kernel and libc
//! look at its lower half only.

use crate::alone;
use crate::pools::{Body, POOLS, VECTORS_FROM};
use crate::threads::Thread;
use crate::{first, quick, second, threads, unwind};
use std::fmt::Write;

/// Offsets in `Own::entries` and `ThreadPage::counts`.
pub(crate) const CALLS_AT: isize = 64;
pub(crate) const BYTES_AT: isize = 72;
/// Offset of `Entry::piece`.
const PIECE_AT: isize = 92;

/// `MSG_PEEK | MSG_TRUNC | MSG_ERRQUEUE`.
pub(crate) const ODD_FLAGS: u32 = 0x2022;

/// The two ways in: an ordinary function call, and a jump from a patched site,
/// which may be using 128 bytes below the stack pointer, so those are skipped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    First,
    Second,
}

impl Door {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Second => "second",
        }
    }
}

/// The section of the fast paths.
pub(crate) const PATHS: &str = ".text.bonsai_paths";

/// `rcx` = the thread's state, if its leases belong to the limits in force. Without
/// one it is `NOBODY`, whose epoch never is.
pub(crate) fn load_state(text: &mut String, thread: Thread) {
    text.push_str(threads::state(thread));
    text.push_str(
        "mov r11, qword ptr [rip + BONSAI_EPOCH]
         mov r11d, dword ptr [r11]
         cmp r11d, dword ptr [rcx]
         jne 7f\n",
    );
}

/// Whether the entry depends on the kind of descriptor.
pub(crate) const fn by_kind(body: Body) -> bool {
    matches!(
        body,
        Body::In { kinds: true, .. } | Body::Out { kinds: true, .. }
    )
}

/// What must hold before a call that moves bytes: `7f` if it does not.
fn checks(t: &mut String, body: Body, base: isize) {
    let at = |field: isize| base + field;
    let _ = writeln!(t, "cmp qword ptr [rcx + {}], 0\njle 7f", at(CALLS_AT));
    let enough = match body {
        Body::In { flags, .. } => {
            if let Some(flags) = flags {
                let _ = writeln!(t, "test {flags}, {ODD_FLAGS}\njnz 7f");
            }
            // Of recvmsg, edx holds the flags.
            if flags != Some("edx") {
                let _ = writeln!(t, "cmp edx, dword ptr [rcx + {}]\nja 7f", at(PIECE_AT));
            }
            "0".to_owned()
        }
        Body::Out { len: Some(len), .. } => len.to_owned(),
        _ => VECTORS_FROM.to_string(),
    };
    let _ = writeln!(t, "cmp qword ptr [rcx + {}], {enough}\njl 7f", at(BYTES_AT));
}

/// Where the counts of a call begin. Kinds count from 1, so that 0 can say unknown.
pub(crate) fn base_of(body: Body, call: u8) -> isize {
    32 * isize::from(call) - if by_kind(body) { 32 } else { 0 }
}

/// Everything before a call that moves bytes. Leaves 32 * (1 + kind) in `r11`, if
/// it depends on that: the number may come to mean another descriptor meanwhile.
pub(crate) fn before(t: &mut String, thread: Thread, body: Body, call: u8) {
    load_state(t, thread);
    if by_kind(body) {
        t.push_str(
            "mov edi, edi
             cmp edi, 65535
             ja 7f
             lea r11, [rip + BONSAI_KINDS]
             movzx r11d, byte ptr [r11 + 2 * rdi]
             test r11d, r11d
             jz 7f
             add rcx, r11\n",
        );
    }
    checks(t, body, base_of(body, call));
}

/// Counts what a call has moved; goes to `5f` if that is nothing.
pub(crate) fn after(t: &mut String, thread: Thread, body: Body, call: u8) {
    let base = base_of(body, call);
    let _ = writeln!(
        t,
        "{counters}inc qword ptr [r11 + {calls}]
         dec qword ptr [r11 + rcx + {calls}]
         test rax, rax
         jle 5f
         add qword ptr [r11 + {bytes}], rax
         sub qword ptr [r11 + rcx + {bytes}], rax",
        counters = threads::counters(thread, if by_kind(body) { "add" } else { "mov" }),
        calls = base + CALLS_AT,
        bytes = base + BYTES_AT,
    );
    if matches!(body, Body::In { .. }) {
        t.push_str("js 8f\n");
    }
}

/// Forgets the kind of the descriptor in `fd`, which `compare` has compared with the
/// largest that is remembered. Goes to `noted` if the extension knows something of it.
pub(crate) fn forget(scratch: &str, fd: &str, compare: &str, noted: &str) -> String {
    format!(
        "{compare}ja 4f
         lea {scratch}, [rip + BONSAI_KINDS]
         cmp byte ptr [{scratch} + 2 * {fd} + 1], 0
         mov byte ptr [{scratch} + 2 * {fd}], 0
         jne {noted}
         4:\n"
    )
}

/// The label of a pool's fast path behind a door.
pub(crate) fn path_of(door: Door, call: Option<u8>, body: Body) -> String {
    let name = match (call, body) {
        (Some(call), _) => format!("call_{call}"),
        (None, Body::CountFd) => "all_fd".to_owned(),
        (None, Body::Close) => "all_close".to_owned(),
        // At the first door, the arguments have to be moved.
        (None, Body::Slow) if door == Door::First => "all_slow".to_owned(),
        (None, Body::Slow) => "slow".to_owned(),
        (None, _) => "all_count".to_owned(),
    };
    format!("bonsai_{}_{name}", door.name())
}

/// Every fast path, once for each door.
pub(crate) fn paths() -> String {
    let [begin, end] = threads::keys();
    let mut text = format!(".pushsection {PATHS},\"ax\",@progbits\n{begin}");
    let doors = [Door::First, Door::Second];
    for door in doors.into_iter().skip(usize::from(alone())) {
        text.push_str(".cfi_startproc\n");
        if door == Door::Second {
            text += &second::ways_out();
            text += &unwind::in_r11(0);
            text += &quick::path();
        } else {
            text.push_str(
                ".globl bonsai_first_return
                 .hidden bonsai_first_return
                 bonsai_first_return: ja bonsai_failed\nret\n",
            );
        }
        for pool in POOLS {
            let name = path_of(door, pool.call, pool.body);
            let path = match (pool.body, pool.call) {
                (Body::Slow, _) if door == Door::Second => continue,
                (Body::Slow, _) => {
                    "mov r10, rcx\nlea r11, [rax + 8]\njmp bonsai_first_slow\n".to_owned()
                }
                (body, Some(call)) if door == Door::First => first::moving(body, call),
                (body, Some(call)) => second::moving(body, call, &name),
                (body, None) if door == Door::First => first::counted(body),
                (body, None) => second::counted(body, &name),
            };
            if door == Door::First && pool.body != Body::Slow {
                // Functions that are cancellation points come in here: at the first
                // call with more than one thread, they are sent elsewhere for good.
                let _ = writeln!(
                    text,
                    "{}{name}_cancellable:
                     mov r11, qword ptr [rip + BONSAI_SINGLE]
                     cmp byte ptr [r11], 0
                     je bonsai_find",
                    first::place(pool.body, pool.call)
                );
            }
            if door == Door::First {
                let _ = writeln!(text, "{name}:");
            }
            text += &path;
        }
        if door == Door::Second && alone() {
            text += &second::paths_by_number();
            text += &second::known();
        }
        text.push_str(".cfi_endproc\n");
    }
    text + end + ".popsection\n"
}
