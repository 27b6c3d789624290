//! The second door: slots that patched sites jump to, and the fast paths behind
//! them. A site may be using 128 bytes below the stack pointer, so those are skipped.

use crate::doors::{CALLS_AT, Door, after, before, by_kind, forget, load_state, path_of};
use crate::first::at_the_end_of_a_line;
use crate::pools::{Body, POOLS, body_of};
use crate::{alone, threads, unwind};
use bonsai_calls::{BY_NR, CALLS, CLONE, FORK, NO_CALL, VFORK};
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
         {entered}lea rsp, [rsp - {FRAME}]
         .cfi_def_cfa_offset {FRAME}
         mov qword ptr [rsp], r11\n"
    ) + &unwind::on_stack(FRAME)
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

/// The path of a call that moves bytes: all its sites share it.
pub(crate) fn moving(body: Body, call: u8) -> String {
    let mut t = enter(&format!("bonsai_through_{call}: "));
    before(&mut t, body, call);
    t.push_str(if by_kind(body) {
        "mov qword ptr [rsp + 8], r11\nsyscall\nmov r11, qword ptr [rsp + 8]\n"
    } else {
        "syscall\n"
    });
    after(&mut t, body, call);
    t + "5: " + &finish(matches!(body, Body::In { .. }).then_some(call))
}

/// The fast path of all calls without bytes.
pub(crate) fn counted(body: Body) -> String {
    counted_by(
        body,
        &enter(""),
        "mov r11, qword ptr [rsp]
         movzx r11d, word ptr [r11 + 4]",
    )
}

/// `begin`: from the registers at the door to the record on the stack. `place`: to where
/// its call stands, in `r11`.
fn counted_by(body: Body, begin: &str, place: &str) -> String {
    let mut t = begin.to_owned();
    load_state(&mut t);
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
         {place}
         {}inc qword ptr [r11 + {CALLS_AT}]
         dec qword ptr [r11 + rcx + {CALLS_AT}]",
        threads::counters("add")
    );
    if body == Body::CountFd {
        t.push_str(&forget("r11", "rax", "cmp rax, 65535\n", "8f"));
        // The result of any of them is a new descriptor.
        return t + &finish(Some(bonsai_calls::OPEN));
    }
    t + &finish(None)
}

/// For a site that may be reached with any number: from the number in `eax` to the
/// path of its call, where it moves bytes. A static program has no other sites, if its
/// libc is musl; a library with such sites makes few calls by them.
pub(crate) fn by_number() -> String {
    let own = POOLS.iter().filter_map(|pool| pool.call);
    let moving: String = own
        .filter(|_| alone())
        .map(|call| {
            let nr = CALLS[usize::from(call)].nr;
            format!("cmp eax, {nr}\nje bonsai_through_{call}\n")
        })
        .collect();
    if alone() {
        moving + &counted_by_number()
    } else {
        moving
    }
}

/// Calls without bytes by number: how a path says which, their bodies, and lengths as in
/// [`place`].
const BY_NUMBER: [(u16, &str, Body, u32); 3] = [
    (0, "bonsai_any_count", Body::Count, 110),
    (1, "bonsai_any_fd", Body::CountFd, 110),
    (2, "bonsai_any_close", Body::Close, 140),
];

/// Places what follows, a path of the engine, as `first::place` does: the jump back to a
/// site is mispredicted like a return. Behind the call, the paths of those with bytes are
/// longer than a line, or nearly.
pub(crate) fn place(body: Body) -> String {
    match body {
        Body::Close if alone() => at_the_end_of_a_line(145),
        Body::Count | Body::CountFd if alone() => at_the_end_of_a_line(115),
        _ => ".balign 8\n".to_owned(),
    }
}

/// What [`by_number`] goes on with where the call has no bytes: by a table of its
/// place and its body; 0 for what is decided on elsewhere.
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
    let begin = format!(
        ".cfi_remember_state
         lea rsp, [rsp - {FRAME}]
         .cfi_def_cfa_offset {FRAME}
         mov qword ptr [rsp], r11
         and ecx, -32
         mov qword ptr [rsp + 8], rcx\n"
    ) + &unwind::on_stack(FRAME);
    let mut text = String::new();
    for (_, name, body, length) in BY_NUMBER {
        let path = counted_by(body, &begin, "mov r11, qword ptr [rsp + 8]");
        let _ = writeln!(text, "{}{name}:\n{path}", at_the_end_of_a_line(length));
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
                let of = BY_NUMBER.iter().find(|(_, _, known, _)| *known == body);
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
