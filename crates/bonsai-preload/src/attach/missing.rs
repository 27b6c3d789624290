//! A program whose library has come up and cannot use its ledger: it runs without limits, which it says
//! on standard error itself, for there is no other place. Under `--strict` it ends.

use super::{Failure, HEAD};
use crate::seccomp::{Helper, ask, forbids};
use crate::uncovered::{self, AT_FDCWD};
use bonsai_ledger::{MAGIC, flags};

/// The file is no ledger of this layout; no error of the kernel.
pub(super) const ANOTHER: isize = -4095;

/// Errors of opening and mapping files (`asm-generic/errno-base.h`, `errno.h`), in words.
const ERRORS: [(isize, &[u8]); 9] = [
    (-1, b"operation not permitted"),
    (-2, b"no such file"),
    (-12, b"no memory for it (ulimit -v)"),
    (-13, b"permission denied"),
    (-20, b"no such file"),
    (-23, b"too many open files in the system"),
    (-24, b"too many open files (ulimit -n)"),
    (-30, b"read-only file system"),
    (ANOTHER, b"it is one of another version of bonsai"),
];

/// Flags in the first words of a ledger; none in those of another file.
#[expect(clippy::cast_possible_truncation, reason = "a part of the word")]
pub(super) fn flags_in(head: &[u64; HEAD]) -> u32 {
    match (head.first(), head.last()) {
        (Some(&MAGIC), Some(flags)) => *flags as u32,
        _ => 0,
    }
}

/// Flags of a ledger that cannot be written, where it can be read.
pub(super) fn flags_of(path: *const u8) -> u32 {
    let mut head = [0; HEAD];
    // SAFETY: a C string of the environment; as many bytes as there are.
    unsafe {
        // O_RDONLY | O_CLOEXEC
        let fd = ask!(OpenRead, AT_FDCWD, path, 0o2_000_000, 0);
        if fd >= 0 {
            ask!(Read, fd, head.as_mut_ptr(), size_of_val(&head));
            ask!(Close, fd);
        }
    }
    flags_in(&head)
}

const EACCES: isize = -13;

/// Bytes of a label.
const LABEL: usize = 128;

/// Profile (AppArmor) or context (SELinux) that confines this process, as far as it may be read; empty for none.
fn confinement(label: &mut [u8; LABEL]) -> &[u8] {
    let path = c"/proc/self/attr/current".as_ptr();
    // SAFETY: a C string, and as many bytes as there are.
    let got = unsafe {
        // O_RDONLY | O_CLOEXEC
        let fd = ask!(OpenRead, AT_FDCWD, path, 0o2_000_000, 0);
        let got = ask!(Read, fd, label.as_mut_ptr(), LABEL);
        if fd >= 0 {
            ask!(Close, fd);
        }
        got
    };
    let label = label.get(..usize::try_from(got).unwrap_or(0)).unwrap_or_default();
    let label = label.split(|byte| matches!(byte, 0 | b'\n')).next().unwrap_or_default();
    match label {
        b"unconfined" => b"",
        label => label,
    }
}

/// Says why. A filter that forbids to open it is known to the program before, which has named this one.
pub(super) fn complain(failure: &Failure, program: &[u8]) {
    if forbids(Helper::OpenWrite) || forbids(Helper::Mmap) {
        return;
    }
    let known = ERRORS.iter().find(|(error, _)| *error == failure.error);
    let why = known.map_or(&b"an unknown error"[..], |(_, why)| why);
    let strict = failure.flags & flags::STRICT != 0;
    let end: &[u8] = if strict {
        b": --strict refuses that\n"
    } else {
        b": it runs without limits\n"
    };
    let mut label = [0; LABEL];
    let label = match failure.error {
        EACCES => confinement(&mut label),
        _ => b"",
    };
    let start: &[u8] = b": its ledger cannot be used: ";
    if label.is_empty() {
        uncovered::say(&[b"bonsai: ", program, start, why, end]);
    } else {
        let confined: &[u8] = b" (confined as ";
        let rule: &[u8] = b", which has to allow: ";
        let ledger = super::ledger_path();
        uncovered::say(&[
            b"bonsai: ", program, start, why, confined, label, rule, ledger, b" rw,)", end,
        ]);
    }
    if strict {
        uncovered::end_refused();
    }
}
