//! The supervisor starts us, before the first instruction of a program without a
//! loader: it has mapped us near the program, and hands over where that begins.

use super::{DONE, LEDGER, PRELOAD, auxiliary_vector, begin, keep, until_zero};
use crate::{elf, patch, sys, threads};
use core::arch::global_asm;
use core::sync::atomic::Ordering;

global_asm!(
    ".pushsection .text.bonsai_entry,\"ax\",@progbits",
    ".globl bonsai_enter",
    ".type bonsai_enter,@function",
    // rdi: where the program begins. The stack is the kernel's, with argc on top, and
    // has to be as it was, with all registers 0, when the program begins.
    "bonsai_enter:",
    "push rdi",
    "push rdi",
    "lea rdi, [rsp + 16]",
    "call {start}",
    "xor eax, eax",
    "xor ecx, ecx",
    "xor edx, edx",
    "xor esi, esi",
    "xor edi, edi",
    "xor r8d, r8d",
    "xor r9d, r9d",
    "xor r10d, r10d",
    "xor r11d, r11d",
    "add rsp, 16",
    "jmp qword ptr [rsp - 8]",
    ".popsection",
    start = sym start,
);

/// The name of the link to the preload library beside a ledger.
const PRELOAD_NAME: &[u8] = b"preload.so";

unsafe extern "C" fn start(stack: *const usize) {
    let from = sys::now_early();
    // SAFETY: the stack of a new process (System V ABI, 3.4.1).
    unsafe {
        let environment = stack.add(*stack + 2).cast::<*const u8>();
        let auxiliary = auxiliary_vector(environment);
        if elf::survey_alone(auxiliary) && threads::prepare() {
            begin(environment, from, |segment| {
                keep_preload();
                patch::program(segment)
            });
        }
    }
    DONE.store(true, Ordering::Release);
}

/// The preload library, for programs that this one runs, stands beside the ledger.
pub(super) fn keep_preload() {
    let ledger = until_zero(&LEDGER);
    let folder = ledger
        .iter()
        .rposition(|b| *b == b'/')
        .map_or(0, |at| at + 1);
    let mut path = [0; super::PATH];
    let len = folder + PRELOAD_NAME.len();
    if let (Some(to), Some(from)) = (path.get_mut(..folder), ledger.get(..folder)) {
        to.copy_from_slice(from);
    }
    if let Some(to) = path.get_mut(folder..len) {
        to.copy_from_slice(PRELOAD_NAME);
    }
    keep(&PRELOAD, path.get(..len).unwrap_or_default());
}
