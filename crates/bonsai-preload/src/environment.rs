//! The environment that a program hands on: the next one is told in it where the
//! interposer and the ledger are.

use crate::attach::{ledger_variable, preload_path};
use crate::sys;

pub(crate) type Strings = *const *const u8;

/// Environment variables for which there is room on the stack: a vforked child
/// has little of it, and it may not allocate.
const ROOM: usize = 1024;
/// Room for the value of LD_PRELOAD.
const TEXT: usize = 4096;

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const LEDGER: &[u8] = b"BONSAI_LEDGER=";

/// # Safety
/// `at` is a C string or null.
#[inline(never)]
pub(crate) unsafe fn text<'a>(at: *const u8) -> &'a [u8] {
    if at.is_null() {
        return &[];
    }
    // SAFETY: by the caller.
    unsafe { core::slice::from_raw_parts(at, sys::strlen(at)) }
}

/// Runs `next` with an environment in which the interposer and the ledger are
/// named: the given one where they are in it, a copy with them otherwise.
///
/// # Safety
/// `environment` is an array of C strings that ends in a null pointer, or null.
#[inline(never)]
pub(crate) unsafe fn with_environment(
    environment: Strings,
    next: &mut dyn FnMut(Strings) -> isize,
) -> isize {
    let (path, ledger) = (preload_path(), ledger_variable());
    if path.is_empty() || ledger.is_empty() {
        return next(environment);
    }
    let mut preload: &[u8] = &[];
    let (mut has_ledger, mut n) = (false, 0);
    // SAFETY: by the caller.
    unsafe {
        while !environment.is_null() && !(*environment.add(n)).is_null() {
            let entry = text(*environment.add(n));
            if let Some(value) = entry.strip_prefix(PRELOAD) {
                preload = value;
            } else if entry == ledger {
                has_ledger = true;
            }
            n += 1;
        }
    }
    let has_preload = preload
        .split(|b| *b == b':' || *b == b' ')
        .any(|p| p == path);
    if (has_ledger && has_preload) || n > ROOM - 3 {
        // With more variables than there is room for, better the environment as
        // it is than none of it.
        return next(environment);
    }
    let mut line = [0_u8; TEXT];
    let parts: [&[u8]; 4] = [
        PRELOAD,
        preload,
        if preload.is_empty() { b"" } else { b":" },
        path,
    ];
    let bytes = parts.iter().flat_map(|p| p.iter());
    let mut length = 0;
    for (to, from) in line.iter_mut().zip(bytes) {
        *to = *from;
        length += 1;
    }
    if length >= TEXT {
        return next(environment);
    }
    let mut all = [core::ptr::null::<u8>(); ROOM];
    let mut used = 0;
    let mut add = |entry: *const u8| {
        if let Some(slot) = all.get_mut(used) {
            *slot = entry;
            used += 1;
        }
    };
    for i in 0..n {
        // SAFETY: by the caller.
        let entry = unsafe { *environment.add(i) };
        // SAFETY: as above.
        let known = unsafe { text(entry) };
        let replaced = known.starts_with(LEDGER) || (!has_preload && known.starts_with(PRELOAD));
        if !replaced {
            add(entry);
        }
    }
    if !has_preload {
        add(line.as_ptr());
    }
    add(ledger.as_ptr());
    next(all.as_ptr())
}
