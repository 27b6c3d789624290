//! Calls that the leases of a thread are not enough for, because their limits are on some descriptors or per stream, and that need no
//! slow path all the same: on a descriptor that none of those is for, or on a stream that has a lease. `src/extension/quick.rs` decides
//! on these, and leaves a word with what is known of the descriptor (`src/extension/descriptors.rs`), by which the calls that follow are
//! made here. Nothing is changed before all has been looked at; whatever is not as the word says goes the slow way.
//!
//! Registers: those of the call, its number in `eax`, and the record of its site in `r11`. `rdi`, `rsi` and `r9` stand on the stack
//! before the call. It is the only path that writes to memory that threads share: to the line of its stream.

use crate::doors::{BYTES_AT, CALLS_AT, ODD_FLAGS};
use crate::threads::{self, Thread};
use crate::{alone, unwind};
use bonsai_calls::{RECVFROM, RECVMSG};
use std::fmt::Write;

/// What a site may be using, and ten words.
const FRAME: usize = 80 + 128;

/// Length of a descriptor's note, as a power of two.
const NOTE_BITS: u32 = 7;
/// In a note: what is kept of each way, and the words for calls of each way. Its state and its number as a stream come first.
const KEPT_AT: usize = 32;
const QUICK_AT: usize = 48;
/// In the line of a stream, which has 64 bytes and begins with its key.
const ISSUED_AT: usize = 8;
const GENERATION_AT: usize = 16;
const USED_AT: usize = 32;
const LINE_LEASE_AT: usize = 56;
/// In the state of a thread: slow paths so far, and a byte that says that the extension has met it.
const ENTERED_AT: usize = 32;
const MET_AT: usize = 21;

// A word: the version of the note in its upper half, and from the lowest bit on the call's first entry (7), `VALID`, how far its own entry
// is from that (2), `LINE`, `LEASE`, the bucket of the line (6), and the line or, without one, what the lease is marked with (13).
const VALID: u32 = 1 << 7;
const DELTA_SHIFT: u32 = 8;
/// The lease of the stream is used.
const LINE: u32 = 1 << 10;
/// The lease of the thread is used (`src/extension/beside.rs`).
const LEASE: u32 = 1 << 11;
const BUCKET_SHIFT: u32 = 12;
const INDEX_SHIFT: u32 = 18;
/// What a thread's lease is of stands above its length.
const MARK_SHIFT: u32 = 25;

/// How the slow path is entered after a call: it is made and counted, and its bytes are not paid (`mode::STREAM`).
const STREAM: u32 = 3;

/// The same for Rust.
pub(crate) fn rust_table() -> String {
    let mut t = String::from(
        "/// What the path of known descriptors goes by (`gen/quick.rs`).\n#[cfg_attr(not(feature = \"extension\"), allow(dead_code))]\npub(crate) mod quick_path {\n",
    );
    for (name, value) in [
        ("NOTE", 1 << NOTE_BITS),
        ("KEPT_AT", KEPT_AT),
        ("QUICK_AT", QUICK_AT),
        ("ISSUED_AT", ISSUED_AT),
        ("GENERATION_AT", GENERATION_AT),
        ("USED_AT", USED_AT),
        ("LEASE_AT", LINE_LEASE_AT),
        ("ENTERED_AT", ENTERED_AT),
        ("MET_AT", MET_AT),
        ("STREAM", STREAM as usize),
    ] {
        let _ = writeln!(t, "pub(crate) const {name}: usize = {value};");
    }
    for (name, value) in [
        ("VALID", VALID),
        ("DELTA_SHIFT", DELTA_SHIFT),
        ("LINE", LINE),
        ("LEASE", LEASE),
        ("BUCKET_SHIFT", BUCKET_SHIFT),
        ("INDEX_SHIFT", INDEX_SHIFT),
        ("MARK_SHIFT", MARK_SHIFT),
    ] {
        let _ = writeln!(t, "pub(crate) const {name}: u64 = {value};");
    }
    t + "}\n"
}

// Words of the frame, behind the record.
const RDI: usize = 8;
/// The thread's three words (`threads::state` writes there, too).
const WORDS: usize = 16;
const R9: usize = 24;
const RSI: usize = 32;
const LINE_WORD: usize = 40;
/// 32 * the entry of the call.
const OFFSET: usize = 48;
const EPOCH: usize = 56;
const FLAGS: usize = 60;
/// Whose the line is, and of which limit's time.
const KEY: usize = 64;
const GENERATION: usize = 72;
/// After the call.
const RESULT: usize = RDI;

/// Offsets of `Entry::lease_bytes`, `Entry::granted_us` and `Entry::lease_calls`.
const BOOKED_AT: isize = CALLS_AT + 16;
const GRANTED_AT: isize = CALLS_AT + 20;
const LEASE_AT: isize = CALLS_AT + 24;

/// The path of both doors.
pub(crate) fn path() -> String {
    let mut t = format!(
        ".globl bonsai_quick
         .hidden bonsai_quick
         bonsai_quick:
         .cfi_remember_state
         lea rsp, [rsp - {FRAME}]
         .cfi_def_cfa_offset {FRAME}
         mov qword ptr [rsp], r11
         {on_stack}
         mov qword ptr [rsp + {RDI}], rdi
         mov qword ptr [rsp + {RSI}], rsi
         mov qword ptr [rsp + {R9}], r9\n",
        on_stack = unwind::on_stack(FRAME)
    );
    state(&mut t);
    // Nothing is held of the descriptor; then which way the call is.
    let _ = writeln!(
        t,
        "mov rsi, qword ptr [rsp]
         movzx esi, word ptr [rsi + 4]
         mov r11, qword ptr [rip + BONSAI_EPOCH]
         mov r11d, dword ptr [r11]
         cmp r11d, dword ptr [rcx]
         jne 7f
         cmp byte ptr [rcx + {MET_AT}], 0
         je 7f
         mov edi, edi
         cmp edi, 65535
         ja 7f
         mov rax, qword ptr [rip + BONSAI_QUICK + 8]
         cmp byte ptr [rax + rdi], 0
         jne 7f
         shl rdi, {NOTE_BITS}
         add rdi, qword ptr [rip + BONSAI_QUICK]
         shr esi, 5
         or esi, {VALID}
         mov r9d, esi
         cmp byte ptr [rdi + {QUICK_AT}], sil
         je 85f
         cmp byte ptr [rdi + {QUICK_AT} + 8], sil
         jne 7f"
    );
    known(&mut t, true);
    taken(&mut t, true);
    made(&mut t);
    returned(&mut t);
    leave(&mut t);
    t.push_str("85:\n");
    known(&mut t, false);
    // What these flags say of the bytes is looked at elsewhere.
    for (call, flags) in [(RECVFROM, "r10d"), (RECVMSG, "edx")] {
        let _ = writeln!(
            t,
            "mov eax, esi
             and eax, {most}
             cmp eax, {call}
             jne 3f
             test {flags}, {ODD_FLAGS}
             jnz 7f
             3:",
            most = VALID - 1,
        );
    }
    taken(&mut t, false);
    made(&mut t);
    paid(&mut t);
    leave(&mut t);
    let _ = writeln!(
        t,
        "7: mov rdi, qword ptr [rsp + {RDI}]
         mov rsi, qword ptr [rsp + {RSI}]
         mov r9, qword ptr [rsp + {R9}]
         mov r11, qword ptr [rsp]
         mov eax, dword ptr [r11]
         {up}xor ecx, ecx
         jmp bonsai_second_late
         .cfi_restore_state",
        up = up(),
    );
    t
}

/// The stack as it was, with the record in `r11`.
fn up() -> String {
    let in_r11 = unwind::in_r11(FRAME);
    format!("{in_r11}lea rsp, [rsp + {FRAME}]\n         .cfi_def_cfa_offset 0\n         ")
}

/// `rcx` = the state of the thread, whose three words are noted.
fn state(t: &mut String) {
    if !alone() {
        // Functions that are cancellation points are libc's own where there are threads.
        let _ = writeln!(
            t,
            "test byte ptr [r11 + 6], {SLOT}
             jnz 1f
             mov rcx, qword ptr [rip + BONSAI_SINGLE]
             cmp byte ptr [rcx], 0
             je 7f
             1: mov rcx, qword ptr [rip + bonsai_me@gottpoff]
             add rcx, qword ptr fs:[0]
             mov qword ptr [rsp + {WORDS}], rcx
             mov rcx, qword ptr [rcx]"
        );
        return;
    }
    let _ = writeln!(
        t,
        "{first}lea r11, [rip + BONSAI_MAIN + 8]
         jmp 75f
         {other}add r11, 8
         75: mov qword ptr [rsp + {WORDS}], r11",
        first = threads::state(Thread::First),
        other = threads::state(Thread::Other),
    );
}

/// `flag::SLOT`
const SLOT: u8 = 4;

/// The word holds, of the note in `rdi`, under the limits of the epoch in `r11d`, for the call in `r9d`: it comes to `rsi`, where other
/// threads may have written another one since it was looked at. Once in 256 calls the slow path looks whether the descriptor is still the
/// one that it was.
fn known(t: &mut String, out: bool) {
    let way = 8 * usize::from(out);
    let _ = writeln!(
        t,
        "mov rax, qword ptr [rdi]
         cmp eax, r11d
         jne 7f
         mov rsi, qword ptr [rdi + {quick}]
         cmp sil, r9b
         jne 7f
         xor rax, rsi
         shr rax, 32
         jnz 7f
         cmp qword ptr [rdi + {kept}], 0
         jne 7f
         mov eax, dword ptr [rcx + {ENTERED_AT}]
         inc eax
         test al, al
         jz 7f
         mov dword ptr [rcx + {ENTERED_AT}], eax
         mov eax, esi
         and eax, {first}
         shl eax, 5
         mov qword ptr [rsp + {OFFSET}], rax
         mov eax, esi
         shr eax, {DELTA_SHIFT} - 5
         and eax, 3 << 5
         add qword ptr [rsp + {OFFSET}], rax
         mov dword ptr [rsp + {FLAGS}], esi",
        quick = QUICK_AT + way,
        kept = KEPT_AT + way,
        first = VALID - 1,
    );
}

/// The leases are enough for what the call asks for; what goes out is taken.
fn taken(t: &mut String, out: bool) {
    let _ = writeln!(
        t,
        "test esi, {LINE} | {LEASE}
         jz 4f
         test rdx, rdx
         jz 7f
         mov dword ptr [rsp + {EPOCH}], r11d
         test esi, {LEASE}
         jz 5f
         add rcx, qword ptr [rsp + {OFFSET}]"
    );
    its_lease(t, "r11d", "esi", ["eax", "r9d"], "7f");
    let _ = writeln!(
        t,
        "mov r9d, dword ptr [rcx + {LEASE_AT}]
         cmp r9, rdx
         jb 7f"
    );
    if out {
        let _ = writeln!(
            t,
            "sub dword ptr [rcx + {LEASE_AT}], edx
             jb 2f"
        );
    }
    let _ = writeln!(
        t,
        "test esi, {LINE}
         jz 4f
         5: mov eax, esi
         shr eax, {INDEX_SHIFT}
         shl rax, 6
         add rax, qword ptr [rip + BONSAI_QUICK + 16]
         mov r9, qword ptr [rdi + 8]
         shl r9, 6
         shr esi, {BUCKET_SHIFT}
         and esi, 63
         or r9, rsi
         bts r9, 63
         cmp r9, qword ptr [rax]
         jne 2f
         mov qword ptr [rsp + {KEY}], r9
         mov rdi, rax
         mov qword ptr [rsp + {LINE_WORD}], rdi
         mov eax, dword ptr [rdi + {GENERATION_AT}]
         mov dword ptr [rsp + {GENERATION}], eax
         mov rax, qword ptr [rdi + {LINE_LEASE_AT}]
         6: mov rsi, rax
         shr rsi, 32
         cmp esi, r11d
         jne 2f
         mov esi, eax
         cmp rsi, rdx
         jb 2f"
    );
    if out {
        let _ = writeln!(
            t,
            "mov rsi, rax
             sub rsi, rdx
             lock cmpxchg qword ptr [rdi + {LINE_LEASE_AT}], rsi
             jne 6b"
        );
    }
    t.push_str("jmp 4f\n2:\n");
    if out {
        // The line has not as much.
        let _ = writeln!(
            t,
            "test dword ptr [rsp + {FLAGS}], {LEASE}
             jz 7f
             add dword ptr [rcx + {LEASE_AT}], edx"
        );
    }
    t.push_str("jmp 7f\n4:\n");
}

/// The lease in the entry at `rcx` is of the limits of `epoch`, and of what the word in `flags` says; otherwise goes to `other`. A signal
/// handler may have taken another one. What it then has of this one is changed by one instruction each.
fn its_lease(t: &mut String, epoch: &str, flags: &str, [scratch, second]: [&str; 2], other: &str) {
    let _ = writeln!(
        t,
        "cmp {epoch}, dword ptr [rcx + {GRANTED_AT}]
         jne {other}
         mov {scratch}, dword ptr [rcx + {BOOKED_AT}]
         shr {scratch}, {MARK_SHIFT}
         test {flags}, {LINE}
         jnz 3f
         mov {second}, {flags}
         shr {second}, {INDEX_SHIFT}
         xor {scratch}, {second}
         3: test {scratch}, {scratch}
         jnz {other}"
    );
}

/// Makes the call and counts it.
fn made(t: &mut String) {
    let _ = writeln!(
        t,
        "mov rdi, qword ptr [rsp + {RDI}]
         mov rsi, qword ptr [rsp + {RSI}]
         mov r9, qword ptr [rsp + {R9}]
         mov r11, qword ptr [rsp]
         mov eax, dword ptr [r11]
         syscall
         mov rcx, qword ptr [rsp + {WORDS}]
         mov r11, qword ptr [rcx + 8]
         mov rcx, qword ptr [rcx]
         add r11, qword ptr [rsp + {OFFSET}]
         inc qword ptr [r11 + {CALLS_AT}]
         test rax, rax
         jle 3f
         add qword ptr [r11 + {BYTES_AT}], rax
         3: test dword ptr [rsp + {FLAGS}], {LINE} | {LEASE}
         jz 9f
         add rcx, qword ptr [rsp + {OFFSET}]"
    );
}

/// Gives back what a call did not send: to what it was taken from, if that is still the same.
fn returned(t: &mut String) {
    let flags = format!("dword ptr [rsp + {FLAGS}]");
    let _ = writeln!(
        t,
        "cmp rax, rdx
         je 9f
         mov qword ptr [rsp + {RESULT}], rax
         mov r11, rdx
         test rax, rax
         jle 3f
         sub r11, rax
         3: mov qword ptr [rsp + {RSI}], r11
         test {flags}, {LEASE}
         jz 5f
         mov eax, dword ptr [rsp + {EPOCH}]"
    );
    its_lease(t, "eax", &flags, ["r11d", "eax"], "5f");
    let _ = writeln!(
        t,
        "mov r11, qword ptr [rsp + {RSI}]
         mov eax, dword ptr [rcx + {LEASE_AT}]
         add eax, r11d
         jc 5f
         mov dword ptr [rsp + {EPOCH}], eax
         mov eax, dword ptr [rcx + {BOOKED_AT}]
         and eax, {booked}
         cmp eax, dword ptr [rsp + {EPOCH}]
         jb 5f
         add dword ptr [rcx + {LEASE_AT}], r11d
         5: test {flags}, {LINE}
         jz 3f
         mov rcx, qword ptr [rsp + {LINE_WORD}]
         mov rax, qword ptr [rsp + {KEY}]
         cmp rax, qword ptr [rcx]
         jne 3f
         mov eax, dword ptr [rsp + {GENERATION}]
         cmp eax, dword ptr [rcx + {GENERATION_AT}]
         jne 3f
         mov r11, qword ptr [rsp + {RSI}]
         lock sub qword ptr [rcx + {ISSUED_AT}], r11
         lock sub qword ptr [rcx + {USED_AT}], r11
         3: mov rax, qword ptr [rsp + {RESULT}]",
        booked = (1 << MARK_SHIFT) - 1,
    );
}

/// Pays for what a call has received, from the lease of the thread and from that of the stream; the slow path does where either has gone.
fn paid(t: &mut String) {
    let flags = format!("dword ptr [rsp + {FLAGS}]");
    let _ = writeln!(
        t,
        "test rax, rax
         jle 9f
         mov qword ptr [rsp + {RESULT}], rax
         test {flags}, {LEASE}
         jz 5f
         mov eax, dword ptr [rsp + {EPOCH}]"
    );
    its_lease(t, "eax", &flags, ["r11d", "eax"], "8f");
    let _ = writeln!(
        t,
        "mov eax, dword ptr [rsp + {RESULT}]
         sub dword ptr [rcx + {LEASE_AT}], eax
         jb 2f
         5: test {flags}, {LINE}
         jz 3f
         mov r11, qword ptr [rsp + {LINE_WORD}]
         mov rax, qword ptr [rsp + {KEY}]
         cmp rax, qword ptr [r11]
         jne 2f
         mov rax, qword ptr [r11 + {LINE_LEASE_AT}]
         6: mov rcx, rax
         shr rcx, 32
         cmp ecx, dword ptr [rsp + {EPOCH}]
         jne 2f
         mov ecx, eax
         sub rcx, qword ptr [rsp + {RESULT}]
         jb 2f
         mov rcx, rax
         sub rcx, qword ptr [rsp + {RESULT}]
         lock cmpxchg qword ptr [r11 + {LINE_LEASE_AT}], rcx
         jne 6b
         3: mov rax, qword ptr [rsp + {RESULT}]
         jmp 9f
         2: test {flags}, {LEASE}
         jz 8f
         mov rcx, qword ptr [rsp + {WORDS}]
         mov rcx, qword ptr [rcx]
         add rcx, qword ptr [rsp + {OFFSET}]
         mov eax, dword ptr [rsp + {RESULT}]
         add dword ptr [rcx + {LEASE_AT}], eax
         .cfi_remember_state
         8: mov rax, qword ptr [rsp + {RESULT}]
         mov r11, qword ptr [rsp]
         {up}mov ecx, dword ptr [r11]
         shl ecx, 8
         or ecx, {STREAM}
         jmp bonsai_second_late
         .cfi_restore_state",
        up = up(),
    );
}

/// Back to the site.
fn leave(t: &mut String) {
    let _ = writeln!(
        t,
        ".cfi_remember_state
         9: mov r11, qword ptr [rsp]
         {up}cmp rax, qword ptr [r11 + 16]
         jmp qword ptr [r11 + 8]
         .cfi_restore_state",
        up = up(),
    );
}
