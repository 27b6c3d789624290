//! The second door: slots that patched sites jump to, and the fast paths behind
//! them. A site may be using 128 bytes below the stack pointer, so those are skipped.

use crate::doors::{CALLS_AT, Door, after, before, by_kind, forget, load_state, path_of};
use crate::pools::{Body, POOLS, body_of};
use crate::threads::Thread;
use crate::{alone, threads, unwind};
use bonsai_calls::{BY_NR, CALLS, CLONE, FORK, NO_CALL, READ_FILE, VFORK, WRITE_FILE};
use std::fmt::Write;

/// Descriptors with a remembered kind: `KINDS` in `src/kind.rs`. Two bytes each.
const KINDS: u32 = 65_536;

/// Below a site's stack: its record, the kind of its descriptor, the entry of the
/// table of threads, a word that fills up, and what the site may be using.
const FRAME: usize = 32 + 128;

/// From the registers at the second door to those of the call, with the record on
/// the stack. What has made sure of the number comes in at `entered`.
fn enter(entered: &str) -> String {
    // `finish` goes back to this for the path that follows.
    format!(
        ".cfi_remember_state
         cmp eax, dword ptr [r11]
         jne bonsai_second_slow
         {entered}"
    ) + &down()
}

/// The frame with the record in it.
fn down() -> String {
    format!(
        "lea rsp, [rsp - {FRAME}]
         .cfi_def_cfa_offset {FRAME}
         mov qword ptr [rsp], r11\n"
    ) + &unwind::on_stack(FRAME)
}

/// What an unwinder has to know where a copy of a path goes on with that frame.
fn entered() -> String {
    format!(".cfi_remember_state\n.cfi_def_cfa_offset {FRAME}\n") + &unwind::on_stack(FRAME)
}

/// The record back in `r11`, and the stack as it was.
fn leave() -> String {
    format!(
        "mov r11, qword ptr [rsp]\n{}lea rsp, [rsp + {FRAME}]\n.cfi_def_cfa_offset 0\n",
        unwind::in_r11(FRAME)
    )
}

/// To the site, with the result compared as there; then the ways out to the slow
/// path: `7` before the call, `8` when bytes that came in by `call` are not due yet, or
/// the descriptor that it gave is one of which the extension knows something.
fn finish(late: Option<u8>) -> String {
    let late = late.map_or_else(String::new, |call| {
        format!("8: {}jmp bonsai_second_leave_late\n", late_by(call))
    });
    format!(
        ".cfi_remember_state
         {}cmp rax, qword ptr [r11 + 16]
         jmp qword ptr [r11 + 8]
         .cfi_restore_state
         7: jmp bonsai_second_leave_slow
         {late}.cfi_restore_state\n",
        leave()
    )
}

/// Says to the slow path that a call is made, and by which number: `mode::LATE`.
pub(crate) fn late_by(call: u8) -> String {
    let nr = u32::from(CALLS[usize::from(call)].nr);
    format!("mov ecx, {}\n", nr << 8 | 1)
}

/// Where the ways out lead.
pub(crate) fn ways_out() -> String {
    let way = |way| {
        format!(
            "bonsai_second_leave_{way}:\n{}{}jmp bonsai_second_{way}\n",
            unwind::on_stack(FRAME),
            leave()
        )
    };
    way("slow") + &way("late")
}

/// A path of the second door with its name: its beginning, and a copy of the rest for each
/// kind of thread.
fn path(name: &str, begin: &str, at: u32, rest: impl Fn(Thread) -> String) -> String {
    let mut text = format!("{name}:\n{begin}");
    let mut path = String::new();
    for thread in threads::of_second() {
        text += &rest(*thread);
        path += &placed(&text, at);
        text = entered();
    }
    path
}

/// The path of a call that moves bytes: all its sites share it.
pub(crate) fn moving(body: Body, call: u8, name: &str) -> String {
    let begin = enter(&format!("bonsai_through_{call}: "));
    path(name, &begin, WITH_BYTES, |thread| {
        let mut t = String::new();
        before(&mut t, thread, body, call);
        t.push_str(if by_kind(body) {
            "mov qword ptr [rsp + 8], r11\nsyscall\n99: mov r11, qword ptr [rsp + 8]\n"
        } else {
            "syscall\n99:\n"
        });
        after(&mut t, thread, body, call);
        t + "5: " + &finish(matches!(body, Body::In { .. }).then_some(call))
    })
}

/// The fast path of all calls without bytes.
pub(crate) fn counted(body: Body, name: &str) -> String {
    let mut begin = enter(&format!("{name}_entered: "));
    if !alone() {
        let place = "mov r11, qword ptr [rsp]\nmovzx r11d, word ptr [r11 + 4]";
        return path(name, &begin, WITHOUT_BYTES, |thread| {
            counted_by(thread, body, place)
        });
    }
    begin += "movzx ecx, word ptr [r11 + 4]\nmov qword ptr [rsp + 8], rcx\n";
    path(name, &begin, WITHOUT_BYTES, |thread| {
        counted_by(thread, body, PLACE)
    })
}

/// To where the counts of a call without bytes stand: once the record is read, before the
/// call.
const PLACE: &str = "mov r11, qword ptr [rsp + 8]";

/// `place`: to where its call stands, in `r11`.
fn counted_by(thread: Thread, body: Body, place: &str) -> String {
    let mut t = String::new();
    load_state(&mut t, thread);
    let _ = writeln!(
        t,
        "{place}
         cmp qword ptr [rcx + r11 + {CALLS_AT}], 0
         jle 7f"
    );
    if body == Body::Close {
        t.push_str(&forget(
            "r11",
            "rdi",
            "mov edi, edi\ncmp edi, 65535\n",
            "7f",
        ));
    }
    let _ = writeln!(
        t,
        "syscall
         99: {place}
         {}inc qword ptr [r11 + {CALLS_AT}]
         dec qword ptr [r11 + rcx + {CALLS_AT}]",
        threads::counters(thread, "add")
    );
    if body == Body::CountFd {
        t.push_str(&forget("r11", "rax", "cmp rax, 65535\n", "8f"));
        // The result of any of them is a new descriptor.
        return t + &finish(Some(bonsai_calls::OPEN));
    }
    t + &finish(None)
}

/// Where moved sites with one number come in, a stub of [`KNOWN`] bytes for each pool:
/// what comes with another number, as code may jump to the middle of a site, is looked up.
pub(crate) fn known() -> String {
    let mut text = format!(
        ".globl bonsai_known
         .hidden bonsai_known
         .balign {KNOWN}
         bonsai_known:\n"
    );
    for pool in POOLS {
        let path = match (pool.call, pool.body) {
            (_, Body::Slow) => "bonsai_second_slow".to_owned(),
            (Some(call), _) => format!("bonsai_through_{call}"),
            (None, body) => format!("{}_entered", path_of(Door::Second, None, body)),
        };
        let _ = writeln!(
            text,
            "cmp eax, dword ptr [r11]
             je {path}
             jmp bonsai_second_any
             .balign {KNOWN}, 0xcc"
        );
    }
    text
}

/// The length of a stub: `moved.rs`.
const KNOWN: usize = 16;

/// For a site that may be reached with any number: from the number in `eax` to the
/// path of its call, where it moves bytes. A static program has no other sites, if its
/// libc is musl; a library with such sites makes few calls by them.
pub(crate) fn by_number() -> String {
    let to = |call: u8| {
        let nr = CALLS[usize::from(call)].nr;
        format!("cmp eax, {nr}\nje bonsai_through_{call}\n")
    };
    let own = POOLS.iter().filter_map(|pool| pool.call);
    // Go makes these more often than all others.
    let (often, rest): (Vec<u8>, Vec<u8>) =
        own.partition(|call| [READ_FILE, WRITE_FILE].contains(call));
    let all = |calls: Vec<u8>| calls.into_iter().map(to).collect::<String>();
    if alone() {
        all(often) + &counted_by_number() + &all(rest)
    } else {
        String::new()
    }
}

/// Calls without bytes by number: how a path says which, and their bodies.
const BY_NUMBER: [(u16, &str, Body); 3] = [
    (0, "bonsai_any_count", Body::Count),
    (1, "bonsai_any_fd", Body::CountFd),
    (2, "bonsai_any_close", Body::Close),
];

/// Places a copy of a path of the engine, so that its system call, at whose end the label
/// `99` is, returns to byte `at` of a cache line. What follows is fetched from there, so
/// the sooner the better; but a jump back to a site that stands in that line, or on its
/// edge, is mispredicted each time, which costs 15 ns (Rocket Lake).
fn placed(text: &str, at: u32) -> String {
    if !alone() {
        return format!(".balign 8\n{text}");
    }
    format!(".balign 64\n.skip ({at} - (99f - 98f)) & 63, 0xcc\n98:\n{text}")
}

/// Where those with bytes return to, whose jump back is 70 bytes behind or more; and those
/// without, with 44.
const WITH_BYTES: u32 = 8;
const WITHOUT_BYTES: u32 = 40;

/// What [`by_number`] asks then: whether the call has no bytes, by a table of its place
/// and its body; 0 for what is decided on elsewhere.
fn counted_by_number() -> String {
    "mov eax, eax
     cmp eax, 511
     ja 6f
     lea rcx, [rip + bonsai_countable]
     movzx ecx, word ptr [rcx + 2 * rax]
     test ecx, ecx
     jz 5f
     test cl, 3
     jz bonsai_any_count
     test cl, 1
     jnz bonsai_any_fd
     jmp bonsai_any_close
     5:\n"
        .to_owned()
}

/// The paths that this leads to, with the place in `ecx`, and its table.
pub(crate) fn paths_by_number() -> String {
    let begin = ".cfi_remember_state\n".to_owned()
        + &down()
        + "and ecx, -32\nmov qword ptr [rsp + 8], rcx\n";
    let mut text = String::new();
    for (_, name, body) in BY_NUMBER {
        text += &path(name, &begin, WITHOUT_BYTES, |thread| {
            counted_by(thread, body, PLACE)
        });
    }
    text.push_str(
        ".pushsection .rodata.bonsai_countable,\"a\",@progbits
         .balign 2
         bonsai_countable:\n",
    );
    for call in BY_NR {
        let place = match usize::from(call) {
            _ if matches!(call, NO_CALL | FORK | VFORK | CLONE) => 0,
            i if CALLS[i].moves_bytes() => 0,
            i => {
                let body = body_of(call);
                let of = BY_NUMBER.iter().find(|(_, _, known)| *known == body);
                of.map_or(0, |(bits, ..)| u16::try_from(32 * i).expect("short") | bits)
            }
        };
        let _ = writeln!(text, ".short {place}");
    }
    text + ".popsection\n"
}

/// The slots, all of them alike and
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
         BONSAI_KINDS: .zero 2 * {KINDS}
         .popsection\n",
        24 * slot
    )
}
