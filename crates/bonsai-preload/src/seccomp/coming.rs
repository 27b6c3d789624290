//! A filter that comes: by the program's own call, from the program before, or from whoever has
//! started it.

use super::{FILTERED, Helper, UNKNOWN, ask, forbid, is_filtered};
use crate::state::{self, Own};
use crate::sys::nr;
use crate::{blocks, extension, kind, pay, vdso, wait};
use bonsai_ledger::{Segment, flags};
use core::sync::atomic::Ordering;

/// The variable by which a program tells the next one what is forbidden.
pub(crate) const VARIABLE: &[u8] = b"BONSAI_FILTER=";

/// Descriptors that are looked at when a filter comes that forbids to do it later.
pub(crate) const LOOKED_AT: usize = 256;

/// `PR_SET_SECCOMP`
const SET_SECCOMP: usize = 22;
/// `PR_GET_SECCOMP`, and what it answers under a filter.
const GET_SECCOMP: usize = 21;
const MODE_FILTER: isize = 2;

/// `prctl` or `seccomp` with its first three arguments, before the program makes the call.
pub(crate) extern "C" fn bonsai_filter_comes(
    number: usize,
    first: usize,
    second: usize,
    program: usize,
) {
    // Strict mode, or a filter.
    let is_strict = match (number, first, second) {
        (nr::PRCTL, SET_SECCOMP, mode @ 1..=2) => mode == 1,
        // With flags or a program the kernel refuses strict mode: libseccomp asks so whether there is such a call.
        (nr::SECCOMP, 0, 0) if program == 0 => true,
        (nr::SECCOMP, 1, _) => false,
        _ => return,
    };
    let Some(segment) = state::segment() else {
        return;
    };
    if is_strict {
        vdso::stop();
        forbid(u64::MAX);
        return;
    }
    // SAFETY: this thread's own state.
    let Some(own) = (unsafe { state::me(segment).as_mut() }) else {
        forbid(UNKNOWN);
        return;
    };
    own.within(|own| {
        let forbidden = match extension::get(segment) {
            // SAFETY: as it is to be called.
            Some(extension) => unsafe { (extension.judge)(segment, own, program) },
            None => UNKNOWN,
        };
        if forbidden & FILTERED != 0 {
            prepare(own, forbidden);
            forbid(forbidden);
        }
    });
}

/// `prctl`, likewise.
#[cfg(not(feature = "alone"))]
pub(crate) extern "C" fn bonsai_prctl_comes(option: usize, mode: usize, program: usize) {
    bonsai_filter_comes(nr::PRCTL, option, mode, program);
}

/// Does what will be forbidden.
fn prepare(own: &mut Own, forbidden: u64) {
    let any = |helpers: &[Helper]| helpers.iter().any(|h| forbidden & h.bit() != 0);
    if any(&[Helper::Mmap, Helper::Madvise]) {
        blocks::reserve();
    }
    if any(&[Helper::Sigaction]) {
        wait::note_handlers();
    }
    if any(&[Helper::Fstat]) {
        (0..LOOKED_AT).for_each(|fd| {
            kind::look(fd);
        });
        // From now on calls that give descriptors are all decided on.
        pay::start_anew(own);
    }
}

/// What the program before has said: 16 digits, `a` for 0 to `p` for 15.
pub(crate) fn hear(digits: &[u8]) {
    let digit = |all, digit: &u8| all << 4 | u64::from(digit.wrapping_sub(b'a') & 15);
    forbid(digits.iter().fold(0, digit));
}

/// What the next program is to be told.
pub(crate) fn digits(forbidden: u64) -> [u8; 16] {
    let mut left = forbidden;
    [(); 16].map(|()| {
        left = left.rotate_left(4);
        b'a' + (left & 15) as u8
    })
}

/// At start-up: whether there is a filter that nobody has told of.
pub(crate) fn look_around(segment: &Segment) {
    // SAFETY: asks only.
    if is_filtered() || unsafe { ask!(Prctl, GET_SECCOMP) } != MODE_FILTER {
        return;
    }
    // Around `bonsai run` itself, which has tried; or of our own, from the program before.
    let known = flags::FILTER_ALLOWS | flags::TRAP;
    let is_known = segment.header.flags.load(Ordering::Relaxed) & known != 0;
    forbid(if is_known { 0 } else { UNKNOWN });
}
