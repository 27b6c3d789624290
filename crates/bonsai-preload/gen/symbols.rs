//! The first door: for each exported symbol a record, and what leads from it to
//! its fast path. How a symbol finds out which of fast path and libc it shall use
//! is in `src/symbols.rs`.

use crate::doors::{Door, PATHS, path_of};
use crate::pools::{Body, POOLS, body_of};
use bonsai_calls::CALLS;
use bonsai_calls::symbols::{SYMBOLS, Symbol, Thunk};
use std::fmt::Write;

/// Functions that glibc makes cancellation points: with more than one thread they
/// must go through libc's own.
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
    CANCELLABLE.contains(&plain(symbol))
}

/// The name without underlines and `64`.
fn plain(symbol: &Symbol) -> &'static str {
    symbol.name.trim_start_matches('_').trim_end_matches("64")
}

/// Further cancellation points: symbols with another order of arguments, and symbols after whose decision libc's own function runs.
const POINTS: &[&str] = &[
    "preadv2",
    "preadv64v2",
    "pwritev2",
    "pwritev64v2",
    "ppoll",
    "select",
    "pselect",
    "epoll_pwait",
    "epoll_pwait2",
];

/// True if glibc makes the call by its cancellation point, in versions that have one (from 2.41 on; `getrandom` is one no
/// more there).
fn is_point(symbol: &Symbol) -> bool {
    (cancellable(symbol) && plain(symbol) != "getrandom") || POINTS.contains(&plain(symbol))
}

/// The number of a call's plain symbol.
pub(crate) fn named_as(call: u8) -> usize {
    SYMBOLS
        .iter()
        .position(|s| s.call == call && s.thunk == Thunk::Plain)
        .expect("a symbol of that call")
}

/// What is known of each symbol, as a Rust table: start-up makes `Site`s of it.
pub(crate) fn facts() -> String {
    let fact = |s: &Symbol| {
        let flags = u8::from(s.thunk == Thunk::FlagsLast)
            | u8::from(cancellable(s)) << 1
            | u8::from(s.thunk == Thunk::Own) << 3
            | u8::from(s.thunk == Thunk::Tail) << 4
            | u8::from(s.thunk == Thunk::Plain && body_of(s.call) != Body::Slow) << 5
            | u8::from(is_point(s)) << 7;
        let nr = CALLS[usize::from(s.call)].nr;
        u32::from(nr) | u32::from(s.call) << 16 | u32::from(flags) << 24
    };
    format!(
        "/// By symbol: the number of its system call, the first entry of its call << 16,\n\
         /// and bits of `flag` << 24.\n\
         pub(crate) static SYMBOL_FACTS: [u32; {}] = {:?};\n",
        SYMBOLS.len(),
        SYMBOLS.iter().map(fact).collect::<Vec<_>>()
    )
}

/// Where targets are, and the records of symbols with them.
pub(crate) fn targets() -> String {
    // What start-up writes, and then what first calls write, come first: the loader
    // has written to the page where this begins.
    let through = POOLS.iter().filter(|p| p.call.is_some()).count();
    let mut targets = format!(
        ".pushsection .bss.bonsai_early,\"aw\",@nobits
         .balign 8
         .globl bonsai_through
         .hidden bonsai_through
         bonsai_through: .zero 24 * {through}
         .popsection
         .pushsection .bss.bonsai_targets,\"aw\",@nobits
         .balign 16
         .globl bonsai_targets
         .hidden bonsai_targets
         bonsai_targets:\n",
    );
    for s in SYMBOLS {
        let _ = writeln!(
            targets,
            ".globl bonsai_target_{0}\n.hidden bonsai_target_{0}\nbonsai_target_{0}: .zero 16",
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
    targets + &next
}

/// Where each symbol's way begins: most go to their fast path at once. In the same
/// section as these, so that the distances are known here.
pub(crate) fn doors() -> String {
    let mut code = format!(
        ".pushsection {PATHS},\"ax\",@progbits
         .globl bonsai_doors
         .hidden bonsai_doors
         bonsai_doors:
         .cfi_startproc\n"
    );
    let mut starts = String::from(
        ".pushsection .rodata.bonsai_door_starts,\"a\",@progbits
         .balign 2
         .globl bonsai_door_starts
         .hidden bonsai_door_starts
         bonsai_door_starts:\n",
    );
    code.push_str("bonsai_first_tail: jmp bonsai_tail\n");
    for s in SYMBOLS {
        let (start, door) = door(s);
        let _ = writeln!(starts, ".short {start} - bonsai_doors");
        if let Some(door) = door {
            let _ = writeln!(code, "{start}:\n{door}");
        }
    }
    code + ".cfi_endproc\n.popsection\n" + &starts + ".popsection\n"
}

/// The fast path of a symbol.
fn path(s: &Symbol) -> String {
    let own = POOLS.iter().any(|p| p.call == Some(s.call));
    let path = path_of(Door::First, own.then_some(s.call), body_of(s.call));
    let sent_elsewhere = cancellable(s) && body_of(s.call) != Body::Slow;
    path + if sent_elsewhere { "_cancellable" } else { "" }
}

/// From one symbol to another.
fn instead(name: &str) -> String {
    format!("lea rax, [rip + bonsai_target_{name}]\njmp bonsai_symbol\n")
}

/// Where a symbol's way begins, and what is there if it is not the fast path.
fn door(s: &Symbol) -> (String, Option<String>) {
    let door = match s.thunk {
        Thunk::Plain => return (path(s), None),
        // Decided on, then libc's function runs in our place.
        Thunk::Tail => return ("bonsai_first_tail".to_owned(), None),
        Thunk::Own => format!("jmp bonsai_own_{}\n", s.name),
        Thunk::FlagsLast => format!("mov r9, r8\nxor r8d, r8d\njmp {}\n", path(s)),
        Thunk::Zero => {
            let sends = s.call == bonsai_calls::SENDTO;
            "xor r8d, r8d\nxor r9d, r9d\n".to_owned()
                + &instead(if sends { "sendto" } else { "recvfrom" })
        }
        // libc's fortified functions check and then call their plain ones, which
        // are patched; without patching the check is ours.
        Thunk::Chk => {
            let (length, shift) = match s.name {
                "__recv_chk" => ("rcx", "mov ecx, r8d\nxor r8d, r8d\nxor r9d, r9d\n"),
                "__recvfrom_chk" => (
                    "rcx",
                    "mov ecx, r8d\nmov r8, r9\nmov r9, qword ptr [rsp + 8]\n",
                ),
                "__read_chk" => ("rcx", ""),
                _ => ("r8", ""),
            };
            let plain = match s.name.trim_start_matches('_').trim_end_matches("_chk") {
                "recv" => "recvfrom",
                plain => plain,
            };
            format!(
                "cmp rdx, {length}\nja bonsai_check_failed\n{shift}{}",
                instead(plain)
            )
        }
    };
    (format!("bonsai_first_{}", s.name), Some(door))
}
