//! `fopen` with `m` in its mode: glibc's stdio maps such a file, and reads it without a call (nasm does so). The letter allows that and
//! asks for nothing else, so that stdio reads the file by calls without it.

use crate::elf;
use core::sync::atomic::{AtomicUsize, Ordering};

type Function = unsafe extern "C" fn(usize, *const u8) -> usize;

/// Letters of a mode that glibc looks at, from its second on.
const LETTERS: usize = 7;

/// Maximum length of a mode with an `m`, with its end: `,ccs=` and the name of a character set may follow. A longer one is passed on as it
/// is.
const LONGEST: usize = 128;

/// libc's function, once it was looked for.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// # Safety
/// As `fopen(3)`.
pub(crate) unsafe extern "C" fn bonsai_own_fopen(path: usize, mode: *const u8) -> usize {
    let mut next = NEXT.load(Ordering::Relaxed);
    if next == 0 {
        let Some((at, _)) = elf::next_definition(b"fopen") else {
            return 0;
        };
        next = at;
        NEXT.store(next, Ordering::Relaxed);
    }
    // SAFETY: libc's function of that name.
    let next = unsafe { core::mem::transmute::<usize, Function>(next) };
    let mut other = [0; LONGEST];
    // SAFETY: the program's mode, which ends with a zero.
    let mode = match unsafe { without_maps(mode, &mut other) } {
        true => other.as_ptr(),
        false => mode,
    };
    // SAFETY: the program's arguments, or a mode that is the same but for a letter.
    unsafe { next(path, mode) }
}

/// Copies a mode with `b`, which means nothing, for each `m` that is a letter of it. False where there is none.
///
/// # Safety
/// The mode ends with a zero.
unsafe fn without_maps(mode: *const u8, other: &mut [u8; LONGEST]) -> bool {
    let (mut is_other, mut is_letter) = (false, true);
    for (i, byte) in other.iter_mut().enumerate() {
        // SAFETY: its end has not come.
        *byte = unsafe { *mode.add(i) };
        is_letter &= i < LETTERS && *byte != b',';
        if is_letter && i > 0 && *byte == b'm' {
            (*byte, is_other) = (b'b', true);
        }
        if *byte == 0 {
            return is_other;
        }
        if !is_letter && !is_other {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_letter_that_maps_is_replaced() {
        for (mode, wanted) in [
            (&b"rm\0"[..], Some(&b"rb\0"[..])),
            (b"rmb\0", Some(b"rbb\0")),
            (b"r+em\0", Some(b"r+eb\0")),
            (b"rm,ccs=utf-m\0", Some(b"rb,ccs=utf-m\0")),
            (b"r\0", None),
            (b"\0", None),
            (b"m\0", None),
            (b"r,ccs=m\0", None),
            (b"rbbbbbbm\0", None),
        ] {
            let mut other = [0; LONGEST];
            // SAFETY: it ends with a zero.
            let is_other = unsafe { without_maps(mode.as_ptr(), &mut other) };
            assert_eq!(is_other, wanted.is_some(), "{mode:?}");
            if let Some(wanted) = wanted {
                assert_eq!(&other[..wanted.len()], wanted);
            }
        }
        let mut long = [b'x'; 2 * LONGEST];
        (long[0], long[1], long[2 * LONGEST - 1]) = (b'r', b'm', 0);
        // SAFETY: it ends with a zero.
        assert!(!unsafe { without_maps(long.as_ptr(), &mut [0; LONGEST]) });
    }
}
