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
use std::sync::atomic::{AtomicUsize, Ordering};

const SIGPIPE: c_int = 13;
const SIG_IGN: usize = 1;

/// What was to be done about it when this process started.
static AT_START: AtomicUsize = AtomicUsize::new(0);

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
    AT_START.store(before, Ordering::Relaxed);
}

/// Lets a command's program find SIGPIPE as this process has found it.
pub fn inherit_sigpipe(command: &mut Command) {
    let restore = || {
        // SAFETY: async-signal-safe, and a value that the kernel has given.
        unsafe { signal(SIGPIPE, AT_START.load(Ordering::Relaxed)) };
        Ok(())
    };
    // SAFETY: one system call, which may be made between fork and exec.
    unsafe { command.pre_exec(restore) };
}
