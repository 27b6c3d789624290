//! The environment that a program hands on: the next one is told in it where the
//! interposer and the ledger are.
//!
//! What a program did not give is added at its exec, and noted in `BONSAI_ADDED`. The
//! next one takes it out again before its own code runs, and so sees what it was
//! given, unless it may run programs in a way that is not seen here: then all that
//! it starts has to inherit the variables from it.

use crate::attach::{ledger_path, preload_path};
use crate::seccomp;
use crate::sys::{self, nr};
use crate::uncovered::library_opens;
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
#[inline(never)]
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
pub(crate) unsafe fn text<'a>(at: *const u8) -> &'a [u8] {
    if at.is_null() {
        return &[];
    }
    // SAFETY: by the caller.
    unsafe { core::slice::from_raw_parts(at, sys::strlen(at)) }
}

/// A copy of an environment, on the stack.
#[repr(C)]
struct Copy {
    used: usize,
    written: usize,
    entries: [*const u8; ROOM],
    text: [u8; TEXT],
}

impl Copy {
    fn push(&mut self, entry: *const u8) {
        if let Some(slot) = self.entries.get_mut(self.used) {
            *slot = entry;
        }
        self.used += 1;
    }

    /// Adds a variable whose value is `before`, if there is anything, and `value`.
    fn set(&mut self, variable: usize, before: &[u8], value: &[u8]) {
        let colon: &[u8] = if before.is_empty() { b"" } else { b":" };
        self.add(&[name(variable), before, colon, value, b"\0"]);
    }

    /// Adds an entry, which ends with a zero.
    fn add(&mut self, parts: &[&[u8]]) {
        self.push(self.text.as_ptr().wrapping_add(self.written));
        for part in parts {
            for byte in *part {
                if let Some(to) = self.text.get_mut(self.written) {
                    *to = *byte;
                }
                self.written += 1;
            }
        }
    }

    /// Copies an environment with what the next program has to find in it. For a user
    /// who cannot open the interposer it is taken out: the loader would complain.
    /// Returns whether it is another one now, and complete.
    ///
    /// # Safety
    /// `environment` is an array of C strings that ends in a null pointer, or null.
    unsafe fn fill(&mut self, mut environment: Strings) -> bool {
        let values = values();
        if values.iter().any(|value| value.is_empty()) {
            return false;
        }
        let opens = library_opens();
        let mut noted = [if opens { ABSENT } else { AS_GIVEN }; NOTED];
        // SAFETY: by the caller.
        while let Some(entry) = unsafe { environment.as_ref() }.filter(|entry| !entry.is_null()) {
            environment = environment.wrapping_add(1);
            // SAFETY: by the caller.
            let Some((i, given)) = (unsafe { variable(*entry) }) else {
                // SAFETY: by the caller.
                if !unsafe { text(*entry) }.starts_with(seccomp::VARIABLE) {
                    self.push(*entry);
                }
                continue;
            };
            let (Some(value), Some(note)) = (values.get(i), noted.get_mut(i)) else {
                continue;
            };
            // These are lists, but for the ledger's, which has neither colons nor blanks.
            let mut parts = given.split(|b| *b == b':' || *b == b' ');
            if !opens && let (0, Some(before)) = (i, without(given, value)) {
                if !before.is_empty() {
                    self.set(i, b"", before);
                }
            } else if !opens || parts.any(|part| part == *value) {
                *note = AS_GIVEN;
                self.push(*entry);
            } else if i != LEDGER {
                *note = LENGTHENED;
                self.set(i, given, value);
            }
        }
        for (i, (value, note)) in values.into_iter().zip(noted).enumerate() {
            if note == ABSENT {
                self.set(i, b"", value);
            }
        }
        let forbidden = seccomp::word();
        let changed = !opens || noted != [AS_GIVEN; NOTED] || forbidden != 0;
        if forbidden != 0 {
            self.add(&[seccomp::VARIABLE, &seccomp::digits(forbidden), b"\0"]);
        }
        if opens {
            self.set(NOTED, b"", &noted);
        }
        changed && self.used < ROOM && self.written <= TEXT
    }
}

/// Runs `next` with an environment in which the interposer and the ledger are
/// named: the given one where they are in it, a copy with them otherwise. With more
/// than there is room for, better the environment as it is than none of it.
///
/// # Safety
/// As for [`Copy::fill`].
pub(crate) unsafe fn with_environment(
    environment: Strings,
    next: &mut dyn FnMut(Strings) -> isize,
) -> isize {
    let mut copy = Copy {
        used: 0,
        written: 0,
        entries: [core::ptr::null(); ROOM],
        text: [0; TEXT],
    };
    // SAFETY: by the caller.
    let filled = unsafe { copy.fill(environment) };
    next(if filled {
        copy.entries.as_ptr()
    } else {
        environment
    })
}

/// A list without its last element, if that is `value`.
fn without<'a>(list: &'a [u8], value: &[u8]) -> Option<&'a [u8]> {
    let before = list.strip_suffix(value)?;
    if before.is_empty() {
        return Some(before);
    }
    before.strip_suffix(b":")
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
    let (mut kept, mut shift, mut end) = (0, 0, core::ptr::null_mut());
    for i in 0..n {
        // SAFETY: within the array, and within its strings.
        unsafe {
            let entry = core::mem::replace(&mut *environment.add(i), core::ptr::null_mut());
            let len = text(entry).len();
            let (mut stays, mut new) = (true, len);
            match variable(entry) {
                Some((NOTED, _)) => stays = false,
                Some((i, given)) => {
                    let value = values().get(i).copied().unwrap_or_default();
                    match (without(given, value), noted.get(i)) {
                        (None, _) | (_, None | Some(&AS_GIVEN)) => {}
                        (Some([]), Some(&ABSENT)) => stays = false,
                        (Some(before), _) => new = len - (given.len() - before.len()),
                    }
                }
                None => stays = !text(entry).starts_with(seccomp::VARIABLE),
            }
            // Programs that put their title there expect each string where the one
            // before it ends.
            if entry != end {
                shift = 0;
            }
            end = entry.add(len + 1);
            let to = entry.sub(shift);
            core::ptr::copy(entry, to, new);
            *to.add(new) = 0;
            shift += len - new;
            if stays {
                *environment.add(kept) = to;
                kept += 1;
            }
        }
    }
}

/// Whether this program makes its execs through libc alone, all of whose sites are
/// patched. The runtimes of Go and of sanitizers make system calls of their own; Go's
/// own linker makes programs whose symbols cannot be looked up here.
fn every_exec_is_seen() -> bool {
    patch::all_patched(nr::EXECVE, false)
        && elf::objects().next().is_some_and(elf::Object::has_hash)
        && elf::first_definition(b"crosscall2").is_none()
        && elf::first_definition(b"__sanitizer_set_report_path").is_none()
}
