//! The fast paths as assembly.
//!
//! Registers: a system call keeps all but `rax`, `rcx` and `r11`, and the code
//! around a patched site counts on the others, so these three are all there is.
//! Before the call `rcx` is the thread's state (`Own`), afterwards `r11` is the
//! thread's page of counters and `rcx` the distance from it to the state: entry
//! `c` of both is at `64 + 32 * c`.
//!
//! `edi` is extended to 64 bits where it is a descriptor: the kernel and libc
//! look at its lower half only.

use crate::pools::{Body, POOLS, VECTORS_FROM, body_of};
use bonsai_calls::CALLS;
use bonsai_calls::symbols::{SYMBOLS, Thunk};
use std::fmt::Write;

/// Offsets in `Own::entries` and `ThreadPage::counts`.
const CALLS_AT: isize = 64;
const BYTES_AT: isize = 72;
/// Offset of `Entry::piece`.
const PIECE_AT: isize = 92;

/// `MSG_PEEK | MSG_TRUNC | MSG_ERRQUEUE`.
const ODD_FLAGS: u32 = 0x2022;

/// `rcx` = the thread's state, if its leases belong to the limits in force.
fn load_state(text: &mut String) {
    text.push_str(
        "mov rcx, qword ptr [rip + bonsai_me@gottpoff]
         mov rcx, qword ptr fs:[rcx]
         test rcx, rcx
         jz 7f
         mov r11, qword ptr [rip + BONSAI_EPOCH]
         mov r11d, dword ptr [r11]
         cmp r11d, dword ptr [rcx]
         jne 7f\n",
    );
}

/// `r11` = 32 * (1 + kind) of the descriptor in `edi`.
fn load_kind(text: &mut String, unknown: &str) {
    let _ = writeln!(
        text,
        "lea r11, [rip + BONSAI_KINDS]
         movzx r11d, byte ptr [r11 + rdi]
         test r11d, r11d
         jz {unknown}"
    );
}

/// The whole fast path of a call that moves bytes, up to the place where the
/// result is in `rax`: falls through when done, goes to `7f` for the slow path
/// before the call, to `8f` when bytes that came in are not due yet, to `9f` when
/// the descriptor's kind got lost during the call.
fn body(body: Body, call: u8) -> String {
    let mut t = String::new();
    load_state(&mut t);
    let kinds = matches!(
        body,
        Body::In { kinds: true, .. } | Body::Out { kinds: true, .. }
    );
    // Kinds count from 1, so that 0 can say unknown.
    let base = 32 * isize::from(call) - if kinds { 32 } else { 0 };
    let at = |field: isize| base + field;
    if kinds {
        t.push_str("mov edi, edi\ncmp edi, 65535\nja 7f\n");
        load_kind(&mut t, "7f");
        t.push_str("add rcx, r11\n");
    }
    let _ = writeln!(t, "cmp qword ptr [rcx + {}], 0\njle 7f", at(CALLS_AT));
    match body {
        Body::In { flags, .. } => {
            let _ = writeln!(t, "cmp qword ptr [rcx + {}], 0\njl 7f", at(BYTES_AT));
            if let Some(flags) = flags {
                let _ = writeln!(t, "test {flags}, {ODD_FLAGS}\njnz 7f");
            }
            // Of recvmsg, edx holds the flags.
            if flags != Some("edx") {
                let _ = writeln!(t, "cmp edx, dword ptr [rcx + {}]\nja 7f", at(PIECE_AT));
            }
        }
        Body::Out { len: Some(len), .. } => {
            let _ = writeln!(t, "cmp qword ptr [rcx + {}], {len}\njl 7f", at(BYTES_AT));
        }
        _ => {
            let _ = writeln!(
                t,
                "cmp qword ptr [rcx + {}], {VECTORS_FROM}\njl 7f",
                at(BYTES_AT)
            );
        }
    }
    t.push_str("syscall\n");
    if kinds {
        load_kind(&mut t, "9f");
    }
    t.push_str("mov rcx, qword ptr [rip + bonsai_me@gottpoff]\n");
    t.push_str(if kinds {
        "add r11, qword ptr fs:[rcx + 8]\n"
    } else {
        "mov r11, qword ptr fs:[rcx + 8]\n"
    });
    let _ = writeln!(
        t,
        "mov rcx, qword ptr fs:[rcx + 16]
         inc qword ptr [r11 + {calls}]
         dec qword ptr [r11 + rcx + {calls}]
         test rax, rax
         jle 5f
         add qword ptr [r11 + {bytes}], rax
         sub qword ptr [r11 + rcx + {bytes}], rax",
        calls = at(CALLS_AT),
        bytes = at(BYTES_AT)
    );
    if matches!(body, Body::In { .. }) {
        t.push_str("js 8f\n");
    }
    t.push_str("5:\n");
    t
}

/// The fast path that all calls without bytes share, with their record in `r11`.
/// The record has to survive the call, so it goes to the stack: with `red_zone`,
/// below what the code around a patched site may be using.
fn counted(name: &str, body: Body, red_zone: bool) -> String {
    let (down, up) = if red_zone {
        ("lea rsp, [rsp - 136]", "lea rsp, [rsp + 136]")
    } else {
        ("lea rsp, [rsp - 8]", "lea rsp, [rsp + 8]")
    };
    let mut t = format!(".balign 32\nbonsai_{name}:\n");
    if red_zone {
        t.push_str("cmp eax, dword ptr [r11 + 16]\njne bonsai_second_slow\n");
    }
    let _ = writeln!(t, "{down}\nmov qword ptr [rsp], r11");
    load_state(&mut t);
    let _ = writeln!(
        t,
        "mov r11, qword ptr [rsp]
         mov r11d, dword ptr [r11 + 24]
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
         mov r11d, dword ptr [r11 + 24]
         mov rcx, qword ptr [rip + bonsai_me@gottpoff]
         add r11, qword ptr fs:[rcx + 8]
         mov rcx, qword ptr fs:[rcx + 16]
         inc qword ptr [r11 + {CALLS_AT}]
         dec qword ptr [r11 + rcx + {CALLS_AT}]"
    );
    if body == Body::CountFd {
        t.push_str("cmp rax, 65535\nja 5f\nlea r11, [rip + BONSAI_KINDS]\nmov byte ptr [r11 + rax], 0\n5:\n");
    }
    let _ = writeln!(t, "mov r11, qword ptr [rsp]\n{up}");
    if red_zone {
        t.push_str("cmp rax, qword ptr [r11 + 8]\njmp qword ptr [r11]\n");
        let _ = writeln!(
            t,
            "7: mov r11, qword ptr [rsp]\n{up}\njmp bonsai_second_slow"
        );
    } else {
        t.push_str("cmp rax, -4096\nja bonsai_failed\nret\n");
        let _ = writeln!(
            t,
            "7: mov r11, qword ptr [rsp]\n{up}\njmp bonsai_first_slow"
        );
    }
    t
}

/// The shared fast paths of both doors.
fn shared() -> String {
    [
        ("count", Body::Count),
        ("fd", Body::CountFd),
        ("close", Body::Close),
    ]
    .into_iter()
    .map(|(name, body)| {
        counted(&format!("first_all_{name}"), body, false)
            + &counted(&format!("second_all_{name}"), body, true)
    })
    .collect()
}

/// Which shared fast path a call without bytes has.
fn shared_name(body: Body) -> &'static str {
    match body {
        Body::CountFd => "all_fd",
        Body::Close => "all_close",
        Body::Slow => "slow",
        _ => "all_count",
    }
}

/// Functions that glibc makes cancellation points: with more than one thread and
/// libc unpatched, they must go through libc's own.
fn cancellable(name: &str) -> bool {
    let plain = name.trim_start_matches('_').trim_end_matches("64");
    matches!(
        plain,
        "read"
            | "pread"
            | "readv"
            | "preadv"
            | "recv"
            | "recvfrom"
            | "recvmsg"
            | "recvmmsg"
            | "write"
            | "pwrite"
            | "writev"
            | "pwritev"
            | "send"
            | "sendto"
            | "sendmsg"
            | "sendmmsg"
            | "splice"
            | "tee"
            | "vmsplice"
            | "copy_file_range"
            | "mq_timedreceive"
            | "mq_timedsend"
            | "msgrcv"
            | "msgsnd"
            | "open"
            | "openat"
            | "creat"
            | "close"
            | "fsync"
            | "fdatasync"
            | "msync"
            | "sync_file_range"
            | "fallocate"
            | "connect"
            | "accept"
            | "accept4"
            | "poll"
            | "epoll_wait"
            | "getrandom"
    )
}

/// The first door: for each exported symbol a record, a fast path, and a way to
/// find out at the first call which of fast path and libc it shall use.
pub(crate) fn symbols() -> String {
    let mut code = String::from(".pushsection .text.bonsai_doors,\"ax\",@progbits\n");
    let mut targets = String::from(
        ".pushsection .data.bonsai_targets,\"aw\",@progbits\n.balign 16\n.globl bonsai_targets\n.hidden bonsai_targets\nbonsai_targets:\n",
    );
    let mut records = String::from(
        ".balign 32\n.globl bonsai_symbol_sites\n.hidden bonsai_symbol_sites\nbonsai_symbol_sites:\n",
    );
    let mut starts = String::from(
        ".pushsection .rodata.bonsai_first_doors,\"a\",@progbits\n.balign 4\n.globl bonsai_first_doors\n.hidden bonsai_first_doors\nbonsai_first_doors:\n",
    );
    for (k, s) in SYMBOLS.iter().enumerate() {
        let record = format!("bonsai_symbol_sites + {}", 32 * k);
        let nr = CALLS[usize::from(s.call)].nr;
        let flags = u8::from(s.thunk == Thunk::FlagsLast) | u8::from(cancellable(s.name)) << 1;
        let _ = writeln!(
            targets,
            ".hidden bonsai_target_{0}\n.globl bonsai_target_{0}\nbonsai_target_{0}: .quad 0",
            s.name
        );
        let _ = writeln!(
            records,
            ".quad 0, -4096\n.long {nr}\n.byte {}, {flags}, 0, 0\n.long {}, {k}",
            s.call,
            32 * usize::from(s.call)
        );
        let _ = writeln!(starts, ".long bonsai_first_{} - bonsai_first_doors", s.name);
        let _ = writeln!(
            code,
            "bonsai_find_{}:\nlea r11, [rip + {record}]\njmp bonsai_find",
            s.name
        );
        let _ = writeln!(code, "bonsai_first_{}:", s.name);
        code += &first_door(s.name, s.call, s.thunk, &record);
    }
    code + &shared()
        + ".popsection\n"
        + &targets
        + &records
        + ".popsection\n"
        + &starts
        + ".popsection\n"
}

fn first_door(name: &str, call: u8, thunk: Thunk, record: &str) -> String {
    match thunk {
        Thunk::Own => return format!("jmp bonsai_own_{name}\n"),
        // Decided on, then libc's function runs in our place.
        Thunk::Tail => return format!("lea r11, [rip + {record}]\njmp bonsai_tail\n"),
        // libc's fortified functions check and then call their plain ones, which
        // are patched; without patching the check is ours.
        Thunk::Chk => {
            let length = if name.starts_with("__pread") {
                "r8"
            } else {
                "rcx"
            };
            let shift = match name {
                "__recv_chk" => "mov ecx, r8d\n",
                "__recvfrom_chk" => "mov ecx, r8d\nmov r8, r9\nmov r9, qword ptr [rsp + 8]\n",
                _ => "",
            };
            let plain = name.trim_start_matches('_').trim_end_matches("_chk");
            return format!(
                "cmp rdx, {length}\nja 2f\n{shift}jmp bonsai_first_{plain}\n2: lea r11, [rip + {record}]\njmp bonsai_real\n"
            );
        }
        Thunk::Plain | Thunk::Zero | Thunk::FlagsLast => {}
    }
    // Another name for the same: the first of them does.
    let first = SYMBOLS
        .iter()
        .find(|s| s.call == call && s.thunk == thunk && cancellable(s.name) == cancellable(name));
    if let Some(first) = first.filter(|s| s.name != name) {
        return format!("jmp bonsai_first_{}\n", first.name);
    }
    if thunk == Thunk::Zero {
        let full = if call == bonsai_calls::SENDTO {
            "sendto"
        } else {
            "recvfrom"
        };
        return format!("xor r8d, r8d\nxor r9d, r9d\njmp bonsai_first_{full}\n");
    }
    let mut t = String::from("mov r10, rcx\n");
    if thunk == Thunk::FlagsLast {
        t.push_str("mov r9, r8\nxor r8d, r8d\n");
    }
    let _ = writeln!(t, "mov eax, {}", CALLS[usize::from(call)].nr);
    if cancellable(name) {
        t.push_str("mov r11, qword ptr [rip + BONSAI_SINGLE]\ncmp byte ptr [r11], 0\nje 7f\n");
    }
    let kind = body_of(call);
    if !matches!(kind, Body::In { .. } | Body::Out { .. }) {
        let _ = writeln!(
            t,
            "7: lea r11, [rip + {record}]\njmp bonsai_first_{}",
            shared_name(kind)
        );
        if cancellable(name) {
            // The check above must not end in the fast path.
            t = t.replace("je 7f", "je 6f");
            let _ = writeln!(t, "6: lea r11, [rip + {record}]\njmp bonsai_first_slow");
        }
        return t;
    }
    t += &body(kind, call);
    t.push_str("cmp rax, -4096\nja bonsai_failed\nret\n");
    let _ = writeln!(t, "7: lea r11, [rip + {record}]\njmp bonsai_first_slow");
    let _ = writeln!(t, "8: lea r11, [rip + {record}]\njmp bonsai_first_late");
    let _ = writeln!(t, "9: lea r11, [rip + {record}]\njmp bonsai_first_lost");
    t
}

/// The second door: the slots that patched sites jump to.
pub(crate) fn slots() -> String {
    let mut code = String::from(".pushsection .text.bonsai_slots,\"ax\",@progbits\n");
    let mut starts = String::from(
        ".pushsection .rodata.bonsai_slot_starts,\"a\",@progbits\n.balign 4\n.globl bonsai_slot_starts\n.hidden bonsai_slot_starts\nbonsai_slot_starts:\n",
    );
    let mut k = 0;
    for pool in POOLS {
        for _ in 0..pool.count {
            let record = format!("bonsai_slot_sites + {}", 32 * k);
            let _ = writeln!(code, ".balign 16\nbonsai_slot_{k}:");
            if let Some(call) = pool.call {
                let _ = writeln!(code, "cmp eax, dword ptr [rip + {record} + 16]\njne 7f");
                code += &body(pool.body, call);
                let _ = writeln!(
                    code,
                    "cmp rax, qword ptr [rip + {record} + 8]\njmp qword ptr [rip + {record}]"
                );
                let _ = writeln!(code, "7: lea r11, [rip + {record}]\njmp bonsai_second_slow");
                let _ = writeln!(code, "8: lea r11, [rip + {record}]\njmp bonsai_second_late");
                let _ = writeln!(code, "9: lea r11, [rip + {record}]\njmp bonsai_second_lost");
            } else {
                let _ = writeln!(
                    code,
                    "lea r11, [rip + {record}]\njmp bonsai_second_{}",
                    shared_name(pool.body)
                );
            }
            let _ = writeln!(starts, ".long bonsai_slot_{k} - bonsai_slot_starts");
            k += 1;
        }
    }
    let records = format!(
        ".pushsection .bss.bonsai_slot_sites,\"aw\",@nobits\n.balign 32\n.globl bonsai_slot_sites\n.hidden bonsai_slot_sites\nbonsai_slot_sites: .zero {}\n.popsection\n",
        32 * k
    );
    code + ".popsection\n" + &starts + ".popsection\n" + &records
}
