//! Proof, at the start of each process, that calls of libc's functions and calls inside libc are seen.
//!
//! libc's system call instructions are found by their form, which any release may change. Before there is a segment, every call by a
//! replaced instruction (or a trapped one) comes to the slow path: calls that the kernel refuses, and that change nothing, are made through
//! libc, and each has to come there. A libc that fails is decided on by the names of its functions.

use crate::elf::{self, Object};
use crate::seccomp;
use crate::sys::{self, nr};
use crate::{uncovered, wait};
use bonsai_ledger::{Segment, flags};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Number of the last call that came to the slow path, plus one.
static LAST: AtomicUsize = AtomicUsize::new(0);

/// Set where a call was not seen.
static FAILED: AtomicBool = AtomicBool::new(false);

/// Takes note of a call that came to the slow path before there was a segment.
pub(crate) fn note(nr: usize) {
    LAST.store(nr + 1, Ordering::Relaxed);
}

/// True once a call of libc was not seen.
pub(crate) fn has_failed() -> bool {
    FAILED.load(Ordering::Relaxed)
}

// Numbers of x86-64 (`asm/unistd_64.h`).
const READ: usize = 0;
const WRITE: usize = 1;
const OPEN: usize = 2;
const SENDTO: usize = 44;
const RECVFROM: usize = 45;
const OPENAT: usize = 257;

/// A descriptor that is never open.
const NONE: usize = usize::MAX;

/// As much as a `FILE` of glibc, in words.
type File = [u64; 32];

/// Word of the descriptor and of the second flags in a `FILE` of glibc (`bits/types/struct_FILE.h`).
const FILENO: usize = 14;
/// `_IO_FLAGS2_NOTCANCEL`: reads and writes by instructions of their own.
const NOT_CANCELLED: u64 = 2 << 32;

/// Functions that refuse a descriptor which is not open, and the number by which libcs make the call.
const BY_DESCRIPTOR: [(&[u8], usize); 5] = [
    (b"read", READ),
    (b"write", WRITE),
    (b"send", SENDTO),
    (b"recv", RECVFROM),
    (b"close", nr::CLOSE),
];

/// Functions of glibc by which stdio reads and writes, with the second flags of the `FILE`.
const BY_FILE: [(&[u8], usize, u64); 4] = [
    (b"_IO_file_read", READ, 0),
    (b"_IO_file_read", READ, NOT_CANCELLED),
    (b"_IO_file_write", WRITE, 0),
    (b"_IO_file_write", WRITE, NOT_CANCELLED),
];

/// Makes the calls, and returns false if one of them was not seen. No call is made under a filter, which may end the process for it, nor
/// in valgrind, which complains of them.
pub(crate) fn holds() -> bool {
    seccomp::is_filtered() || wait::is_futex_plain() || are_seen()
}

/// The same once libc is under the trap, which is a filter.
pub(crate) fn is_trapped() -> bool {
    are_seen()
}

fn are_seen() -> bool {
    let Some(libc) = elf::objects().find(|object| elf::is_libc(object)) else {
        return true;
    };
    let errno = sys::errno();
    let by_descriptor = |(name, nr): &(&[u8], usize)| is_seen(libc, name, &[*nr], [NONE, 0, 0, 0]);
    let by_file = |(name, nr, second): &(&[u8], usize, u64)| {
        let mut file: File = [0; 32];
        if let Some(word) = file.get_mut(FILENO) {
            *word = second | 0xffff_ffff;
        }
        is_seen(libc, name, &[*nr], [&raw mut file as usize, 0, 1, 0])
    };
    // A file, refused as no folder; musl makes the call by the older number.
    let path = c"/dev/null".as_ptr() as usize;
    let holds = BY_DESCRIPTOR.iter().all(by_descriptor)
        && BY_FILE.iter().all(by_file)
        && is_seen(libc, b"opendir", &[OPENAT, OPEN], [path, 0, 0, 0]);
    sys::set_errno(errno);
    FAILED.store(!holds, Ordering::Relaxed);
    holds
}

/// Calls a function of libc, and returns false if its call was not seen. A function that is not there makes none.
fn is_seen(libc: &Object, name: &[u8], numbers: &[usize], a: [usize; 4]) -> bool {
    type Function = unsafe extern "C" fn(usize, usize, usize, usize) -> isize;
    let Some(at) = libc.find(name) else {
        return true;
    };
    LAST.store(0, Ordering::Relaxed);
    // SAFETY: libc's function of that name, with arguments that the kernel refuses: no descriptor is open by this number, and
    // "/dev/null" is no folder. `_IO_file_read` and `_IO_file_write` look at the flags and the descriptor of the `FILE` only.
    unsafe { core::mem::transmute::<usize, Function>(at)(a[0], a[1], a[2], a[3]) };
    let last = LAST.load(Ordering::Relaxed);
    numbers.iter().any(|nr| nr + 1 == last)
}

/// Says that calls inside libc are unseen.
pub(crate) fn complain(segment: &Segment, program: &[u8]) {
    uncovered::complain(
        segment,
        flags::UNSEEN,
        program,
        b": calls inside this libc are not seen (stdio): only its functions are limited, by their names\n",
        b": calls inside this libc are not seen, and --strict refuses that\n",
    );
}
