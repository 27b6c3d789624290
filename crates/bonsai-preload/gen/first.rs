//! The first door's fast paths: ordinary functions.

use crate::doors::{CALLS_AT, after, before, by_kind, forget, load_state};
use crate::pools::{Body, POOLS};
use crate::second::late_by;
use crate::threads::{self, Thread};
use bonsai_calls::CALLS;
use std::fmt::Write;

/// Places what follows, a path of the first door, so that its system call returns to
/// the middle or the end of a cache line, and the path itself with another: where
/// both are the same, the return is mispredicted, and costs 3 to 5 ns more (seen on
/// Intel's Rocket Lake; libc's own functions have it). The numbers are lengths from
/// `_cancellable` to behind the system call.
pub(crate) fn place(body: Body, call: Option<u8>) -> String {
    let length = match (body, call) {
        (Body::Close, _) => 94,
        (Body::Count | Body::CountFd, _) => 66,
        (_, Some(bonsai_calls::READ_FILE | bonsai_calls::WRITE_FILE)) => 104,
        (_, Some(bonsai_calls::PREAD64)) => 81,
        _ => return String::new(),
    };
    at_the_end_of_a_line(length)
}

/// Places a path whose system call returns `length` bytes behind its beginning.
pub(crate) fn at_the_end_of_a_line(length: u32) -> String {
    format!(".balign 32\n.skip {}, 0xcc\n", (160 + 31 - length) % 32)
}

/// The record of the slot by which the first door uses what belongs to the second:
/// it goes on behind the first door.
fn through(call: u8) -> String {
    let own = POOLS.iter().position(|p| p.call == Some(call));
    let record = 24 * own.expect("a call with a pool of its own");
    format!("lea r11, [rip + bonsai_through + {record}]\n")
}

/// The calls whose symbols have a fast path of their own; those of the others use
/// the second door's.
const HOT: [u8; 3] = [
    bonsai_calls::READ_FILE,
    bonsai_calls::PREAD64,
    bonsai_calls::WRITE_FILE,
];

/// The path of a call that moves bytes.
pub(crate) fn moving(body: Body, call: u8) -> String {
    let number = format!("mov eax, {}\n", CALLS[usize::from(call)].nr);
    let through = through(call);
    if !HOT.contains(&call) {
        return format!("mov r10, rcx\n{number}{through}jmp bonsai_through_{call}\n");
    }
    let mut t = "mov r10, rcx\n".to_owned();
    before(&mut t, Thread::Own, body, call);
    if by_kind(body) {
        t.push_str("push r11\n.cfi_def_cfa_offset 16\n");
    }
    t += &number;
    t.push_str("syscall\n");
    if by_kind(body) {
        t.push_str("pop r11\n.cfi_def_cfa_offset 8\n");
    }
    after(&mut t, Thread::Own, body, call);
    t.push_str("ret\n5: cmp rax, -4096\nja bonsai_failed\nret\n");
    let _ = writeln!(t, "7: {number}{through}jmp bonsai_second_slow");
    if matches!(body, Body::In { .. }) {
        let _ = writeln!(t, "8: {}{through}jmp bonsai_second_late", late_by(call));
    }
    t
}

/// The fast path of all calls without bytes: `rax` is the place of the
/// symbol's target, with its record behind it.
pub(crate) fn counted(body: Body) -> String {
    let mut t = "mov r10, rcx\n".to_owned();
    load_state(&mut t, Thread::Own);
    let _ = writeln!(
        t,
        "movzx r11d, word ptr [rax + 12]
         cmp qword ptr [rcx + r11 + {CALLS_AT}], 0
         jle 7f"
    );
    if body == Body::Close {
        t.push_str(&forget(
            "rcx",
            "rdi",
            "mov edi, edi\ncmp edi, 65535\n",
            "7f",
        ));
    }
    let _ = writeln!(
        t,
        "push r11
         .cfi_def_cfa_offset 16
         mov eax, dword ptr [rax + 8]
         syscall
         pop r11
         .cfi_def_cfa_offset 8
         {}inc qword ptr [r11 + {CALLS_AT}]
         dec qword ptr [r11 + rcx + {CALLS_AT}]",
        threads::counters(Thread::Own, "add")
    );
    let mut given = "";
    if body == Body::CountFd {
        t.push_str(&forget("r11", "rax", "cmp rax, 65535\n", "8f"));
        given = "8: push rax
                 .cfi_def_cfa_offset 16
                 mov rdi, rax
                 call bonsai_given
                 pop rax
                 .cfi_def_cfa_offset 8
                 ret\n";
    }
    t + "cmp rax, -4096\nja bonsai_failed\nret\n7: lea r11, [rax + 8]\njmp bonsai_first_slow\n"
        + given
}
