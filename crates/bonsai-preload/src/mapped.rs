//! Files that a program maps into memory: what it reads and writes there makes no call, so that no limit sees it.
//!
//! Seen are the program's calls of libc's `mmap`, and of `syscall(2)`; in programs without a loader, and of Go, their instructions. Not
//! those that libc and the loader make for themselves (locales, character sets, libraries), which go by no exported symbol: a program that
//! merely starts maps nothing here. Counted is what of the file lies in the mapping, where a limit is on reads of that file, or on writes
//! for a shared mapping that may be written. Executable mappings are code.

use crate::amount::Args;
use crate::attach;
use crate::extension;
use crate::identity;
use crate::seccomp::ask;
use crate::state;
use crate::sys;
use bonsai_calls::{self as calls, CallId};
use bonsai_ledger::Segment;
use bonsai_ledger::sync::{AtomicU64, Ordering};

/// Arguments of mmap(2).
const PROT_READ: usize = 1;
const PROT_WRITE: usize = 2;
const PROT_EXEC: usize = 4;
const MAP_SHARED: usize = 1;
const MAP_TYPE: usize = 0xf;
pub(crate) const MAP_ANONYMOUS: usize = 0x20;
/// Set by glibc's loader, and by no other.
const MAP_DENYWRITE: usize = 0x800;

/// Takes note of a mapping as it stands in the registers of the call.
#[cold]
pub(crate) fn note(args: &Args) {
    let [_, length, protection, flags, fd, offset] = args.a;
    let has_data = protection & (PROT_READ | PROT_WRITE) != 0 && protection & PROT_EXEC == 0;
    if flags & (MAP_ANONYMOUS | MAP_DENYWRITE) != 0 || !has_data {
        return;
    }
    let Some(segment) = state::segment() else {
        return;
    };
    let is_written = flags & MAP_TYPE & MAP_SHARED != 0 && protection & PROT_WRITE != 0;
    let sides = [
        is_limited(segment, calls::READ_FILE, fd),
        is_written && is_limited(segment, calls::WRITE_FILE, fd),
    ];
    if sides == [false, false] {
        return;
    }
    let bytes = bytes_of(fd, length, offset);
    if bytes == 0 {
        return;
    }
    let pid = sys::getpid();
    // A forked child may not be in the ledger yet.
    attach::register(segment, pid);
    let process = identity::of(pid);
    for (side, _) in sides.iter().enumerate().filter(|(_, is)| **is) {
        segment.count_mapped(process, side, bytes);
    }
}

/// True where a limit is on such a call of the descriptor.
fn is_limited(segment: &'static Segment, call: CallId, fd: usize) -> bool {
    let (_, (is_plain, is_narrowed)) = segment.with_config(|config| {
        let is_set = |masks: &[AtomicU64]| {
            let mask = masks.get(usize::from(call));
            mask.is_some_and(|mask| mask.load(Ordering::Relaxed) != 0)
        };
        (is_set(&config.masks) || config.grouped(call) != 0, is_set(&config.narrowed))
    });
    let is_under = || extension::get(segment).is_none_or(|known| (known.covers)(segment, call, fd));
    is_plain || is_narrowed && is_under()
}

/// Bytes of a regular file, or a block device, in a mapping. None of a file without a name: it is memory that processes share.
fn bytes_of(fd: usize, length: usize, offset: usize) -> u64 {
    const S_IFMT: u64 = 0o170_000;
    const S_IFREG: u64 = 0o100_000;
    const S_IFBLK: u64 = 0o060_000;
    let mut stat = [0_u64; 18];
    // SAFETY: struct stat has 144 bytes.
    let answer = unsafe { ask!(Fstat, fd, stat.as_mut_ptr()) };
    let [_, _, links, mode, _, _, size, ..] = stat;
    match mode & S_IFMT {
        // A filter forbids to ask.
        _ if answer == sys::EPERM => length as u64,
        S_IFREG if answer == 0 && links > 0 => {
            size.saturating_sub(offset as u64).min(length as u64)
        }
        S_IFBLK if answer == 0 => length as u64,
        _ => 0,
    }
}

#[cfg(not(feature = "alone"))]
pub(crate) use function::*;

/// libc's functions.
#[cfg(not(feature = "alone"))]
mod function {
    use super::{MAP_ANONYMOUS, note};
    use crate::amount::Args;
    use crate::resolve;
    use crate::slots::Symbol;
    use crate::symbols::MMAP;
    use crate::sys::{self, nr, place};
    use core::arch::global_asm;

    type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;

    /// `mmap` of a file, and before the next definition of it is known. What that answers is the answer.
    unsafe extern "C" fn mapping(
        at: usize,
        length: usize,
        protection: usize,
        flags: usize,
        fd: usize,
        offset: usize,
    ) -> usize {
        let a = [at, length, protection, flags, fd, offset];
        let symbols = place!("bonsai_targets") as *const Symbol;
        // SAFETY: a record of a symbol, which is there for good.
        let symbol = unsafe { &*symbols.add(MMAP) };
        let result = match resolve::real_early(symbol.site()) {
            // SAFETY: the program's own call.
            0 => sys::to_errno(unsafe { sys::syscall(nr::MMAP, a) }).cast_unsigned(),
            // SAFETY: the function of that name, with the program's arguments.
            real => unsafe {
                core::mem::transmute::<usize, Function>(real)(at, length, protection, flags, fd, offset)
            },
        };
        // MAP_FAILED is -1.
        if result != usize::MAX && flags & MAP_ANONYMOUS == 0 {
            note(&Args { a, nr: nr::MMAP });
        }
        result
    }

    /// Before `syscall(SYS_mmap, ...)`, with the arguments of that but the last, which is on the stack.
    pub(crate) extern "C" fn by_number(
        _: usize,
        at: usize,
        length: usize,
        protection: usize,
        flags: usize,
        fd: usize,
    ) {
        let a = [at, length, protection, flags, fd, 0];
        note(&Args { a, nr: nr::MMAP });
    }

    global_asm!(
        ".pushsection .text.bonsai_indirect,\"ax\",@progbits",
        // The two names are one function in glibc, and allocators call it often: anonymous memory passes.
        ".globl bonsai_own_mmap",
        ".hidden bonsai_own_mmap",
        ".globl bonsai_own_mmap64",
        ".hidden bonsai_own_mmap64",
        "bonsai_own_mmap:",
        "bonsai_own_mmap64:",
        ".cfi_startproc",
        "test cl, {anonymous}",
        "jz {mapping}",
        "mov r11, qword ptr [rip + bonsai_symbol_next + 8 * {mmap}]",
        "test r11, r11",
        "jz {mapping}",
        "jmp r11",
        ".cfi_endproc",
        ".popsection",
        anonymous = const MAP_ANONYMOUS,
        mmap = const MMAP,
        mapping = sym mapping,
    );
}
