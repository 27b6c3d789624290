//! The environment that a program hands on: the next one is told in it where the
//! interposer and the ledger are.
//!
//! What a program did not give is added at its exec, and noted in `BONSAI_ADDED`. The
//! next one takes it out again before its own code runs, and so sees what it was
//! given, unless it may run programs in a way that is not seen here: then all that
//! it starts has to inherit the variables from it.

use crate::attach::{ledger_path, preload_path};
use crate::sys::{self, nr};
use crate::{elf, patch};

pub(crate) type Strings = *const *const u8;

/// Environment variables for which there is room on the stack: a vforked child
/// has little of it, and it may not allocate.
const ROOM: usize = 1024;
/// Room for the values that are changed.
const TEXT: usize = 4096;

/// The variables of a shaped program, and the one that says what an exec did to
/// each of them, a byte each in this order.
const NAMES: &[u8] = b"LD_PRELOAD=BONSAI_LEDGER=ASAN_OPTIONS=BONSAI_ADDED=";
/// Where each name starts, and where the last one ends.
const STARTS: [u8; 5] = [0, 11, 25, 38, 51];
const LEDGER: usize = 1;
const NOTED: usize = 3;

const AS_GIVEN: u8 = b'-';
const ABSENT: u8 = b'a';
const LENGTHENED: u8 = b'l';

/// What the values have to contain. AddressSanitizer ends a program whose first
/// library is another one, unless it is told not to look; nothing else reads that
/// variable.
fn values() -> [&'static [u8]; NOTED] {
    [preload_path(), ledger_path(), b"verify_asan_link_order=0"]
}

fn name(variable: usize) -> &'static [u8] {
    let at = |i: usize| STARTS.get(i).map_or(0, |at| usize::from(*at));
    NAMES
        .get(at(variable)..at(variable + 1))
        .unwrap_or_default()
}

/// Which of the variables this entry sets, and its value.
///
/// # Safety
/// `entry` is a C string.
unsafe fn variable<'a>(entry: *const u8) -> Option<(usize, &'a [u8])> {
    // SAFETY: by the caller.
    let entry = unsafe { text(entry) };
    (0..=NOTED).find_map(|i| Some((i, entry.strip_prefix(name(i))?)))
}

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

/// C strings on the stack.
struct Lines {
    text: [u8; TEXT],
    used: usize,
}

impl Lines {
    /// Adds a variable whose value is `before`, if there is anything, and `value`.
    /// Beyond the room it is cut, and `used` says so.
    fn add(&mut self, variable: usize, before: &[u8], value: &[u8]) -> *const u8 {
        let at = self.text.as_ptr().wrapping_add(self.used);
        let colon: &[u8] = if before.is_empty() { b"" } else { b":" };
        for part in [name(variable), before, colon, value, b"\0"] {
            for byte in part {
                if let Some(to) = self.text.get_mut(self.used) {
                    *to = *byte;
                }
                self.used += 1;
            }
        }
        at
    }
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
    let values = values();
    if values.iter().any(|value| value.is_empty()) {
        return next(environment);
    }
    let mut lines = Lines {
        text: [0; TEXT],
        used: 0,
    };
    let mut all = [core::ptr::null::<u8>(); ROOM];
    let mut used = 0;
    let mut add = |entry: *const u8| {
        if let Some(slot) = all.get_mut(used) {
            *slot = entry;
        }
        used += 1;
    };
    let mut noted = [ABSENT; NOTED];
    let mut rest = environment;
    // SAFETY: by the caller.
    while let Some(&(mut entry)) = unsafe { rest.as_ref() }.filter(|entry| !entry.is_null()) {
        rest = rest.wrapping_add(1);
        // SAFETY: by the caller.
        if let Some((i, given)) = unsafe { variable(entry) } {
            let (Some(value), Some(note)) = (values.get(i), noted.get_mut(i)) else {
                continue;
            };
            // These are lists, but for the ledger's, which has neither.
            *note = AS_GIVEN;
            if !given
                .split(|b| *b == b':' || *b == b' ')
                .any(|part| part == *value)
            {
                if i == LEDGER {
                    *note = ABSENT;
                    continue;
                }
                *note = LENGTHENED;
                entry = lines.add(i, given, value);
            }
        }
        add(entry);
    }
    for (i, (value, note)) in values.into_iter().zip(noted).enumerate() {
        if note == ABSENT {
            add(lines.add(i, b"", value));
        }
    }
    if noted == [AS_GIVEN; NOTED] {
        return next(environment);
    }
    add(lines.add(NOTED, b"", &noted));
    // With more than there is room for, better the environment as it is than none
    // of it.
    let fits = used < ROOM && lines.used <= TEXT;
    next(if fits { all.as_ptr() } else { environment })
}

/// Takes out of a new program's environment what the exec has added to it, if it
/// will be added again whatever the program runs. What stands behind the array
/// stays where it is; whoever looks for it behind the array's new end finds an empty
/// list.
///
/// # Safety
/// `environment` is the array that the kernel has made, and nobody else uses it yet.
pub(crate) unsafe fn restore(environment: *mut *mut u8) {
    let (mut n, mut noted) = (0, None);
    // SAFETY: by the caller.
    unsafe {
        while !(*environment.add(n)).is_null() {
            if let Some((NOTED, value)) = variable(*environment.add(n)) {
                noted = Some(value);
            }
            n += 1;
        }
    }
    let Some(noted) = noted.filter(|_| every_exec_is_seen()) else {
        return;
    };
    let mut kept = 0;
    for i in 0..n {
        // SAFETY: within the array, and within its strings.
        unsafe {
            let entry = core::mem::replace(&mut *environment.add(i), core::ptr::null_mut());
            if let Some((i, given)) = variable(entry) {
                let (Some(value), Some(note)) = (values().get(i).copied(), noted.get(i)) else {
                    continue;
                };
                match (given.strip_suffix(value), *note) {
                    (None, _) | (_, AS_GIVEN) => {}
                    (Some([]), ABSENT) => continue,
                    // With the colon before it.
                    (Some(rest), _) => {
                        let end = rest.as_ptr().add(rest.len().saturating_sub(1));
                        *end.cast_mut() = 0;
                    }
                }
            }
            *environment.add(kept) = entry;
            kept += 1;
        }
    }
}

/// Whether this program makes its execs through libc alone, all of whose sites are
/// patched. The runtimes of Go and of sanitizers make system calls of their own; Go's
/// own linker makes programs whose symbols cannot be looked up here.
fn every_exec_is_seen() -> bool {
    patch::all_patched(nr::EXECVE)
        && elf::objects().next().is_some_and(elf::Object::has_hash)
        && elf::first_definition(b"crosscall2").is_none()
        && elf::first_definition(b"__sanitizer_set_report_path").is_none()
}
