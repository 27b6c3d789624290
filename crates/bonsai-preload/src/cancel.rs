//! Cancellation points of glibc (`bonsai_sites::Point`) in waits for limits.
//!
//! A thread that waits for a limit is cancelled as in the kernel's own wait: the sleep is made by the point's own instruction, so that libc's
//! handler takes it for the call. A thread that was cancelled before or after the sleep is known by its word. Its call ends with `EINTR`, and
//! libc ends the thread.

use core::arch::global_asm;
use core::sync::atomic::{AtomicU32, Ordering};

/// A point and the thread in it; no point if `word` is null.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Cancel {
    /// Address of the `syscall; ret`, with the bit of the word above it (0 stands for all bits): addresses have 47 bits.
    at: usize,
    /// The thread's word.
    word: *const AtomicU32,
}

const BIT_AT: u32 = 56;

impl Cancel {
    pub(crate) const NONE: Self = Self {
        at: 0,
        word: core::ptr::null(),
    };

    /// The point at `at`; its thread is cancelled if `word` has the bit.
    pub(crate) const fn new(at: usize, bit: u8, word: *const AtomicU32) -> Self {
        Self {
            at: at | (bit as usize) << BIT_AT,
            word,
        }
    }

    /// True once the thread has been cancelled.
    pub(crate) fn is_cancelled(self) -> bool {
        // SAFETY: a word of the thread's own, there as long as it is.
        let word = unsafe { self.word.as_ref() };
        let bits = match self.at >> BIT_AT {
            0 => u32::MAX,
            bit => u32::try_from(bit).unwrap_or(0),
        };
        word.is_some_and(|word| word.load(Ordering::Relaxed) & bits != 0)
    }

    /// Makes a call by the point's instruction, where there is one: `None` if there is none.
    ///
    /// # Safety
    /// As of the call.
    pub(crate) unsafe fn make(self, nr: usize, a: &[usize; 6]) -> Option<isize> {
        if self.word.is_null() {
            return None;
        }
        let at = self.at & ((1 << BIT_AT) - 1);
        // SAFETY: `syscall; ret` stand there; the caller answers for the call.
        Some(unsafe { bonsai_point(at, nr, a, self.word) })
    }
}

// Makes a call by the `syscall; ret` at rdi: number in rsi, arguments at rdx. rcx, the word's address, goes to where libc's own code has it, as
// the kernel may restart the call after the process was put under limits by another engine, which looks there.
global_asm!(
    ".pushsection .text.bonsai_point,\"ax\",@progbits",
    ".globl bonsai_point",
    ".hidden bonsai_point",
    ".type bonsai_point,@function",
    "bonsai_point:",
    ".cfi_startproc",
    "sub rsp, 24",
    ".cfi_adjust_cfa_offset 24",
    "mov qword ptr [rsp], rcx",
    "mov r11, rdi",
    "mov rax, rsi",
    "mov rdi, qword ptr [rdx]",
    "mov rsi, qword ptr [rdx + 8]",
    "mov r10, qword ptr [rdx + 24]",
    "mov r8, qword ptr [rdx + 32]",
    "mov r9, qword ptr [rdx + 40]",
    "mov rdx, qword ptr [rdx + 16]",
    "call r11",
    "add rsp, 24",
    ".cfi_adjust_cfa_offset -24",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

unsafe extern "C" {
    fn bonsai_point(at: usize, nr: usize, args: &[usize; 6], word: *const AtomicU32) -> isize;
}
