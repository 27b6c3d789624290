//! The seccomp filter under which we run ourselves, a container's or a unit's: whether the
//! interposer may make its calls there.

use bonsai_calls::helpers::HELPERS;
use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{Ledger, flags};

/// Says in a ledger whether there is a filter around this process that ends nobody who makes the
/// calls of the interposer. One that answers them with an error does no harm: whoever asks does without.
pub fn note_filter(ledger: &Ledger) {
    if is_filtered() && all_survived() {
        let flags = &ledger.header.flags;
        flags.fetch_or(flags::FILTER_ALLOWS, Ordering::Relaxed);
    }
}

fn is_filtered() -> bool {
    /// `SECCOMP_MODE_FILTER`
    const FILTER: &str = "2";
    std::fs::read_to_string("/proc/thread-self/status").is_ok_and(|status| {
        let mut lines = status.lines();
        lines.any(|line| {
            line.strip_prefix("Seccomp:")
                .is_some_and(|mode| mode.trim() == FILTER)
        })
    })
}

/// Has a child make each of them.
fn all_survived() -> bool {
    // SAFETY: the child makes system calls only, without memory that a lock of another thread
    // could keep from it, and ends.
    let child = unsafe { libc::fork() };
    match child {
        0 => {
            // SAFETY: ends this process, should one of them wait all the same.
            unsafe { libc::alarm(5) };
            for number in HELPERS {
                harmlessly(i64::from(*number));
            }
            // SAFETY: ends this process.
            unsafe { libc::_exit(0) }
        }
        1.. => {
            let mut status = 0;
            loop {
                // SAFETY: waits for our own child.
                let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
                if ended == child {
                    return status == 0;
                }
                let error = std::io::Error::last_os_error().raw_os_error();
                if error != Some(libc::EINTR) {
                    return false;
                }
            }
        }
        _ => false,
    }
}

/// Makes a call that does nothing: with a descriptor, addresses and a length that are none.
fn harmlessly(number: i64) {
    // Of `prctl` that one asks; of `kill` and `tgkill` that the process has no such number, and
    // signal 0 would do nothing to it.
    let first: i64 = match number {
        libc::SYS_prctl => 30,
        libc::SYS_kill | libc::SYS_tgkill => 0x40_0000,
        libc::SYS_rt_sigaction | libc::SYS_clock_gettime => 1,
        _ => -1,
    };
    let second: i64 = match number {
        libc::SYS_tgkill => 0x40_0000,
        // More than there can be; of none it would wait.
        libc::SYS_ppoll | libc::SYS_poll => -1,
        _ => 0,
    };
    // SAFETY: nothing is read or written: there are no addresses.
    unsafe { libc::syscall(number, first, second, 0, 0, 0, 0) };
}
