//! `SIGXFSZ`, which ends a process that writes beyond the largest file that it may make (`RLIMIT_FSIZE`, setrlimit(2)).
#![expect(unsafe_code, reason = "how a signal is handled")]

/// From now on such a write fails with `EFBIG`, for the programs that this process starts as well.
pub fn ignore_file_size_signal() {
    // SAFETY: no handler, and a number that is one.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
