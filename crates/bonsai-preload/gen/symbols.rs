//! The first door: for each exported symbol a record, and what leads from it to
//! its fast path. How a symbol finds out which of fast path and libc it shall use
//! is in `src/symbols.rs`.

use crate::doors::{Door, path_of};
use crate::pools::{POOLS, body_of};
use bonsai_calls::CALLS;
use bonsai_calls::symbols::{SYMBOLS, Symbol, Thunk};
use std::fmt::Write;

/// Functions that glibc makes cancellation points: with more than one thread and
/// libc unpatched, they must go through libc's own.
const CANCELLABLE: &[&str] = &[
    "read",
    "pread",
    "readv",
    "preadv",
    "recv",
    "recvfrom",
    "recvmsg",
    "recvmmsg",
    "write",
    "pwrite",
    "writev",
    "pwritev",
    "send",
    "sendto",
    "sendmsg",
    "sendmmsg",
    "splice",
    "tee",
    "vmsplice",
    "copy_file_range",
    "mq_timedreceive",
    "mq_timedsend",
    "msgrcv",
    "msgsnd",
    "open",
    "openat",
    "creat",
    "close",
    "fsync",
    "fdatasync",
    "msync",
    "sync_file_range",
    "fallocate",
    "connect",
    "accept",
    "accept4",
    "poll",
    "epoll_wait",
    "getrandom",
];

fn cancellable(symbol: &Symbol) -> bool {
    let plain = symbol.name.trim_start_matches('_').trim_end_matches("64");
    CANCELLABLE.contains(&plain)
}

/// The records: `Site` in `src/slots.rs`.
pub(crate) fn records() -> String {
    let mut sites = String::from(
        ".pushsection .rodata.bonsai_symbol_sites,\"a\",@progbits
         .balign 8
         .globl bonsai_symbol_sites
         .hidden bonsai_symbol_sites
         bonsai_symbol_sites:\n",
    );
    // What start-up writes, and then what first calls write, come first: the loader
    // has written to the page where this begins.
    let mut targets = String::from(
        ".pushsection .bss.bonsai_early,\"aw\",@nobits
         .popsection
         .pushsection .bss.bonsai_targets,\"aw\",@nobits
         .balign 8
         .globl bonsai_targets
         .hidden bonsai_targets
         bonsai_targets:\n",
    );
    for (k, s) in SYMBOLS.iter().enumerate() {
        let flags = u8::from(s.thunk == Thunk::FlagsLast)
            | u8::from(cancellable(s)) << 1
            | u8::from(s.thunk == Thunk::Own) << 3
            | u8::from(s.thunk == Thunk::Tail) << 4;
        let _ = writeln!(
            sites,
            ".long {}\n.short {}\n.byte {flags}, {k}",
            CALLS[usize::from(s.call)].nr,
            32 * u32::from(s.call)
        );
        let _ = writeln!(
            targets,
            ".globl bonsai_target_{0}\n.hidden bonsai_target_{0}\nbonsai_target_{0}: .zero 8",
            s.name
        );
    }
    let next = format!(
        ".popsection
         .pushsection .bss.bonsai_paths,\"aw\",@nobits
         .popsection
         .pushsection .bss.bonsai_objects,\"aw\",@nobits
         .popsection
         .pushsection .bss.bonsai_symbol_next,\"aw\",@nobits
         .balign 8
         .globl bonsai_symbol_next
         .hidden bonsai_symbol_next
         bonsai_symbol_next: .zero {}\n.popsection\n",
        8 * SYMBOLS.len()
    );
    sites + ".popsection\n" + &targets + &next
}

/// Where each symbol's fast path begins, and what stands there.
pub(crate) fn doors() -> String {
    let mut code = String::from(
        ".pushsection .text.bonsai_doors,\"ax\",@progbits
         .globl bonsai_doors
         .hidden bonsai_doors
         bonsai_doors:\n",
    );
    let mut starts = String::from(
        ".pushsection .rodata.bonsai_door_starts,\"a\",@progbits
         .balign 2
         .globl bonsai_door_starts
         .hidden bonsai_door_starts
         bonsai_door_starts:\n",
    );
    for (k, s) in SYMBOLS.iter().enumerate() {
        let first = first_name(s);
        let _ = writeln!(starts, ".short bonsai_first_{} - bonsai_doors", first.name);
        if first.name == s.name {
            let _ = writeln!(code, "bonsai_first_{}:\n{}", s.name, door(k, s));
        }
    }
    code + ".popsection\n" + &starts + ".popsection\n"
}

/// The first of the names that mean the same.
fn first_name(symbol: &'static Symbol) -> &'static Symbol {
    if matches!(symbol.thunk, Thunk::Own | Thunk::Tail | Thunk::Chk) {
        return symbol;
    }
    let same = |s: &&Symbol| {
        s.call == symbol.call && s.thunk == symbol.thunk && cancellable(s) == cancellable(symbol)
    };
    SYMBOLS.iter().find(same).unwrap_or(symbol)
}

fn door(k: usize, s: &'static Symbol) -> String {
    let record = format!("lea r11, [rip + bonsai_symbol_sites + {}]", 8 * k);
    let named = |name: &str| {
        let symbol = SYMBOLS.iter().find(|s| s.name == name);
        first_name(symbol.expect("a symbol of that name")).name
    };
    match s.thunk {
        Thunk::Own => return format!("jmp bonsai_own_{}\n", s.name),
        // Decided on, then libc's function runs in our place.
        Thunk::Tail => return format!("{record}\njmp bonsai_tail\n"),
        // libc's fortified functions check and then call their plain ones, which
        // are patched; without patching the check is ours.
        Thunk::Chk => {
            let length = if s.name.starts_with("__pread") {
                "r8"
            } else {
                "rcx"
            };
            let shift = match s.name {
                "__recv_chk" => "mov ecx, r8d\n",
                "__recvfrom_chk" => "mov ecx, r8d\nmov r8, r9\nmov r9, qword ptr [rsp + 8]\n",
                _ => "",
            };
            let plain = named(s.name.trim_start_matches('_').trim_end_matches("_chk"));
            return format!(
                "cmp rdx, {length}\nja 2f\n{shift}jmp bonsai_first_{plain}\n2: {record}\njmp bonsai_real\n"
            );
        }
        Thunk::Zero => {
            let full = if s.call == bonsai_calls::SENDTO {
                "sendto"
            } else {
                "recvfrom"
            };
            return format!("xor r8d, r8d\nxor r9d, r9d\njmp bonsai_first_{full}\n");
        }
        Thunk::Plain | Thunk::FlagsLast => {}
    }
    let body = body_of(s.call);
    let own = POOLS.iter().any(|p| p.call == Some(s.call));
    let path = path_of(Door::First, own.then_some(s.call), body);
    let shift = if s.thunk == Thunk::FlagsLast {
        "mov r9, r8\nxor r8d, r8d\n"
    } else {
        ""
    };
    let way = if cancellable(s) { "_cancellable" } else { "" };
    format!("{shift}{record}\njmp {path}{way}\n")
}
