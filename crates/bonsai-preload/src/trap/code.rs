//! Memory that becomes executable: libc's `mmap` and `mprotect` tell us. Programs that make
//! code as they run (JIT) get it by these, and the loader by its own.

use super::add;
use crate::attach;
use crate::elf::Object;
use crate::moved::distance;
use crate::state;
use crate::sys::place;
use core::arch::global_asm;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Sites of libc that may make memory executable.
const SITES: usize = 6;

/// A multiple of this is put under the trap at first; four times as much each time after.
const FIRST: usize = 1 << 20;

/// Filters for such memory: every call passes all of them.
const FILTERS: usize = 4;

global_asm!(
    ".pushsection .text.bonsai_code,\"ax\",@progbits",
    ".balign 16",
    "bonsai_code_slots:",
    ".set i, 0",
    ".rept {sites}",
    ".balign 16",
    "lea r11, [rip + bonsai_code_records + 16 * i]",
    "jmp bonsai_code_path",
    ".set i, i + 1",
    ".endr",
    ".balign 16",
    // The site may be using 128 bytes below its stack. All registers stay but rax, rcx, r11
    // and, as this is within a function of libc, those for vectors.
    "bonsai_code_path:",
    "lea rsp, [rsp - 256]",
    "mov qword ptr [rsp], r11",
    "mov qword ptr [rsp + 8], rax",
    "syscall",
    // PROT_EXEC
    "test edx, 4",
    "jz 1f",
    "mov qword ptr [rsp + 16], rax",
    "mov qword ptr [rsp + 24], rdi",
    "mov qword ptr [rsp + 32], rsi",
    "mov qword ptr [rsp + 40], rdx",
    "mov qword ptr [rsp + 48], r8",
    "mov qword ptr [rsp + 56], r9",
    "mov qword ptr [rsp + 64], r10",
    "mov qword ptr [rsp + 72], rbx",
    "mov rbx, rsp",
    "mov rdx, rax",
    "mov rcx, qword ptr [rsp + 8]",
    "and rsp, -16",
    "call {changed}",
    "mov rsp, rbx",
    "mov rax, qword ptr [rsp + 16]",
    "mov rdi, qword ptr [rsp + 24]",
    "mov rsi, qword ptr [rsp + 32]",
    "mov rdx, qword ptr [rsp + 40]",
    "mov r8, qword ptr [rsp + 48]",
    "mov r9, qword ptr [rsp + 56]",
    "mov r10, qword ptr [rsp + 64]",
    "mov rbx, qword ptr [rsp + 72]",
    "1: mov r11, qword ptr [rsp]",
    "lea rsp, [rsp + 256]",
    "cmp rax, qword ptr [r11 + 8]",
    "jmp qword ptr [r11]",
    ".popsection",
    ".pushsection bonsai_code_data,\"aw\",@nobits",
    ".balign 8",
    "bonsai_code_records: .zero 16 * {sites}",
    ".popsection",
    sites = const SITES,
    changed = sym changed,
);

static USED: AtomicUsize = AtomicUsize::new(0);
static FILTERED: AtomicUsize = AtomicUsize::new(0);

/// The jumps to be put into libc: where, and the eight bytes.
pub(crate) fn watch(libc: &Object, write: &mut dyn FnMut(usize, [u8; 8])) {
    for name in [&b"mmap"[..], b"mprotect", b"pkey_mprotect"] {
        let Some(at) = libc.find(name) else {
            continue;
        };
        // No further than such a function is long.
        for at in at..at + 160 {
            if !libc.contains(at + 8) {
                break;
            }
            // SAFETY: within the object.
            let here = unsafe { *(at as *const [u8; 8]) };
            let [0x0f, 0x05, 0x48, 0x3d, low @ (0 | 1), 0xf0, 0xff, 0xff] = here else {
                continue;
            };
            if let Some(jump) = slot(at, low) {
                write(at, jump);
            }
        }
    }
}

fn slot(at: usize, low: u8) -> Option<[u8; 8]> {
    let i = USED.load(Ordering::Relaxed);
    if i >= SITES {
        return None;
    }
    let to = place!("bonsai_code_slots") + 16 * i;
    let d = distance(at + 5, to)?.to_le_bytes();
    let record = (place!("bonsai_code_records") + 16 * i) as *mut [usize; 2];
    // Sign-extended to 64 bits, as cmp does.
    let compared = (isize::from(low) - 4096).cast_unsigned();
    // SAFETY: within the array; nothing jumps there yet, and there is one thread.
    unsafe { record.write([at + 8, compared]) };
    USED.store(i + 1, Ordering::Relaxed);
    Some([0xe9, d[0], d[1], d[2], d[3], 0x0f, 0x1f, 0x00])
}

/// Memory has been made executable, if the call has worked.
extern "C" fn changed(at: usize, len: usize, result: isize, number: usize) {
    const MMAP: usize = 9;
    if (-4095..0).contains(&result) {
        return;
    }
    let from = if number == MMAP {
        result.cast_unsigned()
    } else {
        at
    };
    let exact = from & !4095..from.saturating_add(len).next_multiple_of(4096);
    if super::ranges().any(|known| known.start <= exact.start && exact.end <= known.end) {
        return;
    }
    let filtered = FILTERED.fetch_add(1, Ordering::Relaxed);
    if filtered >= FILTERS {
        FILTERED.store(FILTERS, Ordering::Relaxed);
        super::FAILED.store(true, Ordering::Relaxed);
        return;
    }
    // More of it comes near by.
    let block = FIRST << (2 * filtered);
    add(exact.start & !(block - 1)..exact.end.next_multiple_of(block));
    if let Some(segment) = state::segment() {
        attach::recount(segment);
    }
}
