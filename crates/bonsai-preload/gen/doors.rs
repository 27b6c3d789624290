//! The fast paths as assembly, for both doors.
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

use crate::pools::{Body, POOLS, VECTORS_FROM};
use crate::unwind;
use bonsai_calls::CALLS;
use std::fmt::Write;

/// Offsets in `Own::entries` and `ThreadPage::counts`.
const CALLS_AT: isize = 64;
const BYTES_AT: isize = 72;
/// Offset of `Entry::piece`.
const PIECE_AT: isize = 92;

/// Descriptors with a remembered kind: `KINDS` in `src/kind.rs`.
const KINDS: u32 = 65_536;

/// `MSG_PEEK | MSG_TRUNC | MSG_ERRQUEUE`.
const ODD_FLAGS: u32 = 0x2022;

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

    /// From the registers at the door to those of the call, with the record on the
    /// stack.
    fn enter(self) -> String {
        let moves = match self {
            Self::First => {
                &format!("mov r10, rcx\nmov r11, rax\n{RECORD}push r11\nmov eax, dword ptr [r11]\n")
            }
            Self::Second => {
                "cmp eax, dword ptr [r11]
                 jne bonsai_second_slow
                 lea rsp, [rsp - 144]
                 .cfi_def_cfa_offset 144
                 mov qword ptr [rsp], r11\n"
            }
        };
        // `finish` goes back to this for the path that follows.
        ".cfi_remember_state\n".to_owned() + moves + &self.entered()
    }

    /// For unwinders: the record is on the stack.
    fn entered(self) -> String {
        match self {
            Self::First => ".cfi_def_cfa_offset 16\n".to_owned(),
            Self::Second => unwind::on_stack(144),
        }
    }

    /// The record back in `r11`, and the stack as it was.
    fn leave(self) -> String {
        match self {
            Self::First => "pop r11\n.cfi_def_cfa_offset 8\n".to_owned(),
            Self::Second => {
                "mov r11, qword ptr [rsp]\n".to_owned()
                    + &unwind::in_r11(144)
                    + "lea rsp, [rsp + 144]\n.cfi_def_cfa_offset 0\n"
            }
        }
    }

    /// To the caller, with the result as it is used to it; then the ways out to the
    /// slow path: `7` before the call, `8` when bytes that came in are not due yet.
    fn finish(self, late: bool) -> String {
        let last = match self {
            Self::First => "cmp rax, -4096\nja bonsai_failed\nret\n",
            Self::Second => "cmp rax, qword ptr [r11 + 16]\njmp qword ptr [r11 + 8]\n",
        };
        let (leave, name) = (self.leave(), self.name());
        let late = if late {
            format!("8: jmp bonsai_{name}_leave_late\n")
        } else {
            String::new()
        };
        format!(
            ".cfi_remember_state\n{leave}{last}.cfi_restore_state
             7: jmp bonsai_{name}_leave_slow\n{late}.cfi_restore_state\n"
        )
    }

    /// Where the ways out lead.
    fn ways_out(self) -> String {
        let (leave, name) = (self.leave(), self.name());
        let entered = self.entered();
        let way =
            |way| format!("bonsai_{name}_leave_{way}:\n{entered}{leave}jmp bonsai_{name}_{way}\n");
        match self {
            Self::First => way("slow"),
            Self::Second => way("slow") + &way("late"),
        }
    }
}

/// From the place of a symbol's target in `r11` to its record.
const RECORD: &str = "lea rcx, [rip + bonsai_targets]
     sub r11, rcx
     lea rcx, [rip + bonsai_symbol_sites]
     add r11, rcx\n";

/// The section of the fast paths.
pub(crate) const PATHS: &str = ".text.bonsai_paths";

/// `rcx` = the thread's state, if its leases belong to the limits in force. Without
/// one it is `NOBODY`, whose epoch never is.
fn load_state(text: &mut String) {
    text.push_str(
        "mov rcx, qword ptr [rip + bonsai_me@gottpoff]
         mov rcx, qword ptr fs:[rcx]
         mov r11, qword ptr [rip + BONSAI_EPOCH]
         mov r11d, dword ptr [r11]
         cmp r11d, dword ptr [rcx]
         jne 7f\n",
    );
}

/// Whether the entry depends on the kind of descriptor.
const fn by_kind(body: Body) -> bool {
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

/// The first door's way to the path of a call that moves bytes: it is the second
/// door's, with the record of a slot that goes on behind this.
fn through(call: u8) -> String {
    let nr = CALLS[usize::from(call)].nr;
    let own = POOLS.iter().position(|p| p.call == Some(call));
    let record = 24 * own.expect("a call with a pool of its own");
    let path = path_of(Door::Second, Some(call), Body::Slow);
    format!("mov r10, rcx\nmov eax, {nr}\nlea r11, [rip + bonsai_through + {record}]\njmp {path}\n")
}

/// The fast path of a call that moves bytes: all sites of a call share it.
fn moving(body: Body, call: u8) -> String {
    // Kinds count from 1, so that 0 can say unknown.
    let kinds = by_kind(body);
    let base = 32 * isize::from(call) - if kinds { 32 } else { 0 };
    let mut t = Door::Second.enter();
    load_state(&mut t);
    if kinds {
        // r11 = 32 * (1 + kind)
        t.push_str(
            "mov edi, edi
             cmp edi, 65535
             ja 7f
             lea r11, [rip + BONSAI_KINDS]
             movzx r11d, byte ptr [r11 + rdi]
             test r11d, r11d
             jz 7f
             add rcx, r11\n",
        );
    }
    checks(&mut t, body, base);
    // The number may come to mean another descriptor during the call.
    t += if kinds {
        "mov qword ptr [rsp + 8], r11
         syscall
         mov r11, qword ptr [rsp + 8]\n"
    } else {
        "syscall\n"
    };
    let _ = writeln!(
        t,
        "mov rcx, qword ptr [rip + bonsai_me@gottpoff]
         {take} r11, qword ptr fs:[rcx + 8]
         mov rcx, qword ptr fs:[rcx + 16]
         inc qword ptr [r11 + {calls}]
         dec qword ptr [r11 + rcx + {calls}]
         test rax, rax
         jle 5f
         add qword ptr [r11 + {bytes}], rax
         sub qword ptr [r11 + rcx + {bytes}], rax",
        take = if kinds { "add" } else { "mov" },
        calls = base + CALLS_AT,
        bytes = base + BYTES_AT,
    );
    let incoming = matches!(body, Body::In { .. });
    t + if incoming { "js 8f\n" } else { "" } + "5: " + &Door::Second.finish(incoming)
}

/// The fast path of all calls without bytes.
fn counted(door: Door, body: Body) -> String {
    let mut t = door.enter();
    load_state(&mut t);
    let _ = writeln!(
        t,
        "mov r11, qword ptr [rsp]
         movzx r11d, word ptr [r11 + 4]
         cmp qword ptr [rcx + r11 + {CALLS_AT}], 0
         jle 7f"
    );
    if body == Body::Close {
        t.push_str("mov edi, edi\ncmp edi, 65535\nja 4f\n");
        t.push_str("lea r11, [rip + BONSAI_KINDS]\nmov byte ptr [r11 + rdi], 0\n4:\n");
    }
    let _ = writeln!(
        t,
        "syscall
         mov r11, qword ptr [rsp]
         movzx r11d, word ptr [r11 + 4]
         mov rcx, qword ptr [rip + bonsai_me@gottpoff]
         add r11, qword ptr fs:[rcx + 8]
         mov rcx, qword ptr fs:[rcx + 16]
         inc qword ptr [r11 + {CALLS_AT}]
         dec qword ptr [r11 + rcx + {CALLS_AT}]"
    );
    if body == Body::CountFd {
        t.push_str("cmp rax, 65535\nja 5f\nlea r11, [rip + BONSAI_KINDS]\nmov byte ptr [r11 + rax], 0\n5:\n");
    }
    t + &door.finish(false)
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
    let mut text = format!(".pushsection {PATHS},\"ax\",@progbits\n");
    for door in [Door::First, Door::Second] {
        text.push_str(".cfi_startproc\n");
        text += &door.ways_out();
        if door == Door::Second {
            text += &unwind::in_r11(0);
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
                    format!("mov r10, rcx\nmov r11, rax\n{RECORD}jmp bonsai_first_slow\n")
                }
                (_, Some(call)) if door == Door::First => through(call),
                (body, Some(call)) => moving(body, call),
                (body, None) => counted(door, body),
            };
            if door == Door::First {
                // Functions that are cancellation points come in here: with more
                // than one thread they go through libc's own.
                let _ = writeln!(
                    text,
                    "{name}_cancellable:
                     mov r11, qword ptr [rip + BONSAI_SINGLE]
                     cmp byte ptr [r11], 0
                     je bonsai_first_all_slow"
                );
            } else {
                text.push_str(".balign 8\n");
            }
            let _ = writeln!(text, "{name}:\n{path}");
        }
        text.push_str(".cfi_endproc\n");
    }
    text + ".popsection\n"
}

/// The second door: the slots that patched sites jump to, all of them alike and
/// so long that their places can be counted.
pub(crate) fn slots() -> String {
    let mut code = String::from(
        ".pushsection .text.bonsai_slots,\"ax\",@progbits
         .balign 16
         .globl bonsai_slots
         .hidden bonsai_slots
         bonsai_slots:
         .cfi_startproc\n",
    ) + &unwind::slots();
    let mut slot = 0;
    for pool in POOLS {
        let path = path_of(Door::Second, pool.call, pool.body);
        for _ in 0..pool.count {
            let _ = writeln!(
                code,
                "lea r11, [rip + bonsai_slot_sites + {}]\njmp {path}",
                24 * slot
            );
            slot += 1;
        }
    }
    code + &format!(
        ".cfi_endproc
         .popsection
         .pushsection bonsai_tables,\"aw\",@nobits
         .balign 8
         .globl bonsai_slot_sites
         .hidden bonsai_slot_sites
         bonsai_slot_sites: .zero {}
         .globl BONSAI_KINDS
         .hidden BONSAI_KINDS
         BONSAI_KINDS: .zero {KINDS}
         .popsection\n",
        24 * slot
    )
}
