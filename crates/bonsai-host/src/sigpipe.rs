//! SIGPIPE, as our caller has left it to us. Rust's runtime ignores the signal before
//! `main`, and lets started programs have the default; a caller that ignores it on
//! purpose means the program to ignore it, too.
#![expect(
    unsafe_code,
    reason = "what comes before the runtime, and before an exec"
)]

use std::ffi::c_int;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const SIGPIPE: c_int = 13;
const SIG_IGN: usize = 1;

/// Whether it was ignored when this process started.
static IGNORED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn signal(number: c_int, handler: usize) -> usize;
}

// SAFETY: a constructor that needs nothing of the runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

extern "C" fn note() {
    // SAFETY: the runtime is about to set the same.
    let before = unsafe { signal(SIGPIPE, SIG_IGN) };
    IGNORED.store(before == SIG_IGN, Ordering::Relaxed);
}

/// Lets a command's program ignore SIGPIPE if this process was started so.
///
/// Where it was not, nothing is to be done: with what happens between fork and exec the
/// standard library would have libc search for the program, and a shell run what the
/// kernel does not.
pub fn inherit_sigpipe(command: &mut Command) {
    if !IGNORED.load(Ordering::Relaxed) {
        return;
    }
    let ignore = || {
        // SAFETY: async-signal-safe.
        unsafe { signal(SIGPIPE, SIG_IGN) };
        Ok(())
    };
    // SAFETY: one system call, which may be made between fork and exec.
    unsafe { command.pre_exec(ignore) };
}
