//! The supervisor starts us, before the first instruction of a program without a
//! loader: it has mapped us near the program, and hands over where that begins. Or the
//! preload library does, where Go code makes system calls of its own beside libc's.

use super::{
    BESIDE, DONE, Given, PRELOAD, begin, beside_ledger, keep, map, name_program, read_program,
    value_in,
};
use crate::sys::{self, call, nr};
use crate::uncovered::NOT_EXECUTABLE;
use crate::{elf, entering, identity, patch, threads, uncovered, unfold};
use bonsai_ledger::{Reason, coverage};
use core::arch::global_asm;
use core::sync::atomic::Ordering;

global_asm!(
    ".pushsection .text.bonsai_entry,\"ax\",@progbits",
    ".globl bonsai_enter",
    ".type bonsai_enter,@function",
    // rdi: where the program begins. rsi, rdx, rcx: where only our file has been mapped, see `start`.
    // The stack is the kernel's, with argc on top, and has to be as it was, with all registers 0, when the
    // program begins.
    "bonsai_enter:",
    "test rdi, rdi",
    "jz {beside}",
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
    beside = sym beside,
);

/// The name of the link to the preload library beside a ledger.
const PRELOAD_NAME: &[u8] = b"preload.so";

const AT_HWCAP2: usize = 26;
/// Programs may read the base of `fs` (`asm/hwcap2.h`).
const HWCAP2_FSGSBASE: usize = 2;

/// Beside the preload library, which leaves the program's own system calls to us: how
/// many sites are patched, and in the upper half how many could not be.
unsafe extern "C" fn beside(_: usize, environment: *const *const u8, fd: usize) -> u64 {
    // SAFETY: our own file, and the kernel's environment.
    unsafe {
        if !unfold::unfold(fd, BESIDE) {
            return 1 << 32;
        }
        let given = Given::in_environment(environment);
        if elf::survey_alone(given.auxiliary)
            && threads::make_table()
        {
            enter(&given);
            let (patched, missed) = patch::count();
            if patched > 0 {
                return u64::from(patched) | u64::from(missed) << 32;
            }
        }
    }
    1 << 32
}

/// `file`: descriptor of our file plus one, where it has been mapped as it is in a region of `room` bytes; 0 where all parts are in
/// place. In a `strict` service a program does not run without us.
unsafe extern "C" fn start(stack: *const usize, file: usize, room: usize, strict: usize) {
    // SAFETY: our own file. The stack of a new process (System V ABI, 3.4.1).
    unsafe {
        if file != 0 && !unfold::unfold(file - 1, room) {
            // Nothing that is written is there: not even a note that this is over.
            if strict != 0 {
                call!(nr::EXIT_GROUP, NOT_EXECUTABLE);
            }
            return;
        }
        let environment = stack.add(*stack + 2).cast::<*const u8>();
        let given = Given::in_environment(environment);
        if is_valgrind(environment) {
            stay_out(&given);
        } else if elf::survey_alone(given.auxiliary) && threads::prepare() {
            enter(&given);
        }
    }
    DONE.store(true, Ordering::Release);
}

/// Whether this is one of valgrind's tools, to which its launcher hands over this variable: the
/// program within does not get it.
///
/// # Safety
/// As of [`Given::in_environment`].
unsafe fn is_valgrind(mut environment: *const *const u8) -> bool {
    // SAFETY: an array of C strings that ends in a null pointer.
    unsafe {
        while !(*environment).is_null() {
            if value_in(*environment, b"VALGRIND_LAUNCHER=").is_some() {
                return true;
            }
            environment = environment.add(1);
        }
    }
    false
}

/// Leaves valgrind's own code as it is: by the address of a system call it knows whether a signal
/// came before that call, in it or after it. The library in the program within decides on its
/// calls, and takes this entry of the process over; a static program is named by it.
fn stay_out(given: &Given) {
    let Some(Ok(segment)) = given.ledger.map(map) else {
        return;
    };
    read_program(given.auxiliary);
    identity::begin(segment, given.from);
    let process = identity::of(sys::getpid());
    if let Some(entry) = segment.claim_process(process, identity::has_ended) {
        name_program(entry);
        let reason = Reason::Valgrind as u32;
        entry.reason.store(reason, Ordering::Relaxed);
        entry.coverage.store(coverage::UNCOVERED, Ordering::Release);
        entry.expected_ns.store(0, Ordering::Release);
    }
}

/// # Safety
/// As of [`begin`]; the object to be patched is noted.
unsafe fn enter(given: &Given) {
    // SAFETY: by the caller.
    unsafe {
        let bits = elf::auxiliary(given.auxiliary, AT_HWCAP2);
        begin(given, |segment| {
            keep_preload();
            entering::is_over(segment);
            let reason = patch::program(segment, bits & HWCAP2_FSGSBASE != 0);
            if reason != Reason::None && uncovered::refuses(segment, c"the program".as_ptr().cast(), false) {
                uncovered::end_refused();
            }
            reason
        });
    }
}

/// The preload library, for programs that this one runs, stands beside the ledger.
pub(super) fn keep_preload() {
    let (path, len) = beside_ledger(PRELOAD_NAME);
    keep(&PRELOAD, path.get(..len).unwrap_or_default());
}
