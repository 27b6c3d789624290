//! The file that `execvp(3)` and `posix_spawnp(3)` run: libc looks for it along `PATH`, by calls that are not seen
//! where libc is not patched.

use super::functions::our_environment;
use crate::environment::text;
use crate::seccomp::ask;
use crate::sys;
use crate::uncovered::AT_FDCWD;

/// `PATH_MAX`: a longer name is no file.
const LONGEST: usize = 4096;

/// Calls `then` with the file that would be run, if there is one.
///
/// # Safety
/// `file` is a C string.
pub(crate) unsafe fn found(file: *const u8, then: &mut dyn FnMut(*const u8)) {
    // SAFETY: by the caller.
    let name = unsafe { text(file) };
    if name.is_empty() {
        return;
    }
    if name.contains(&b'/') {
        return then(file);
    }
    // As confstr(_CS_PATH) says where there is none.
    for folder in path().unwrap_or(b"/bin:/usr/bin").split(|byte| *byte == b':') {
        let mut candidate = [0_u8; LONGEST];
        let slash: &[u8] = if folder.is_empty() { b"" } else { b"/" };
        let mut used = 0;
        for byte in [folder, slash, name].into_iter().flatten() {
            if let Some(to) = candidate.get_mut(used) {
                *to = *byte;
            }
            used += 1;
        }
        // Room for the zero at its end.
        if used < LONGEST && is_run(candidate.as_ptr()) {
            return then(candidate.as_ptr());
        }
    }
}

/// The process's own `PATH`, by which libc goes, whatever environment the program is to have.
fn path() -> Option<&'static [u8]> {
    let mut entries = our_environment();
    // SAFETY: libc's array of C strings, which ends in a null pointer, or null.
    while let Some(entry) = unsafe { entries.as_ref() }.filter(|entry| !entry.is_null()) {
        // SAFETY: likewise.
        if let Some(path) = unsafe { text(*entry) }.strip_prefix(b"PATH=") {
            return Some(path);
        }
        entries = entries.wrapping_add(1);
    }
    None
}

/// Whether the kernel would run a file, rather than have libc look further.
fn is_run(path: *const u8) -> bool {
    const X_OK: usize = 1;
    const AT_EACCESS: usize = 0x200;
    // SAFETY: the path is a C string; asks only.
    let mut answer = unsafe { ask!(Faccessat2, AT_FDCWD, path, X_OK, AT_EACCESS) };
    if matches!(answer, sys::ENOSYS | sys::EPERM) {
        // SAFETY: likewise.
        answer = unsafe { ask!(Faccessat, AT_FDCWD, path, X_OK, 0) };
    }
    if answer != 0 {
        return false;
    }
    // O_PATH | O_DIRECTORY | O_CLOEXEC: folders may be searched, and are not run.
    // SAFETY: the path is a C string.
    let folder = unsafe { ask!(OpenRead, AT_FDCWD, path, 0o12_200_000, 0) };
    if let Ok(fd) = usize::try_from(folder) {
        // SAFETY: opened just now.
        unsafe { ask!(Close, fd) };
    }
    folder < 0
}
