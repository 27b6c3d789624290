//! Signals that a thread is to take while one of its calls waits for an answer.
//!
//! Where calls wait so that no signal interrupts them (`SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`, Linux 5.19), signals wait, too. So threads that
//! wait for long are looked at, and a call that a handler would have ended, or that is to be stopped, is answered with one of the kernel's own
//! errors: it runs the handler, and then makes the call again or ends it, as bare (`handle_signal` in arch/x86/kernel/signal.c of 6.12).
//!
//! # Which signals
//! Those errors must not reach a program, so they are given only to a thread that the kernel has told to look at its signals
//! (`complete_signal` in kernel/signal.c): one that a signal was sent to, and the first one of a process for those of the process. A
//! signal that another thread takes is none of its.

use bonsai_calls::signals::{Interruption, interruption};
use bonsai_calls::{CallId, Fd};

use super::filter::entry_of;
use super::interruption;
use super::listener::Asked;
use super::look;
use super::names::text_of;
use super::threads::entry_on;

/// Made again after the handler, whatever it was installed with.
const AGAIN: i64 = -513;
/// Made again with `SA_RESTART`.
const RESTARTED: i64 = -512;
/// Made again only where there was no handler.
const ENDED: i64 = -514;

/// Signals whose default action stops a process or has it write its core, so that its thread has to take them. Others end it at
/// once.
const TAKEN: [i32; 14] = [
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGSYS,
    libc::SIGSTOP,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
];

/// Answer to a call whose thread is to take a signal now; `None` without a signal. `entry` gives the entry of the call.
pub(super) fn answer(asked: &Asked, pid: u32, entry: impl FnOnce() -> CallId) -> Option<i64> {
    let status = text_of(&format!("/proc/{pid}/task/{}/status", asked.tid)).ok()?;
    if !takes_one(&status, pid == asked.tid) {
        return None;
    }
    Some(match interruption(entry()) {
        _ if interruption::ends(asked, pid) => ENDED,
        Interruption::Never => AGAIN,
        _ => RESTARTED,
    })
}

/// The entry of a call by what its descriptor is: where all kinds are under the same limits, it was not looked at.
pub(super) fn by_kind(asked: &Asked, pid: u32, entry: CallId) -> CallId {
    let Some(first) = entry_of(asked.nr).filter(|first| entry_on(*first, Fd::Other) != *first)
    else {
        return entry;
    };
    #[expect(clippy::cast_possible_truncation, reason = "the kernel takes 32 bits")]
    let number = asked.args[0] as u32;
    // Not by its name: that of a FIFO is one of a file.
    let found = look::type_at(&format!("/proc/{pid}/task/{}/fd/{number}", asked.tid));
    found.map_or(entry, |found| entry_on(first, look::kind_of(found)))
}

/// Whether a thread is to take a signal, by its status (proc_pid_status(5)).
fn takes_one(status: &str, is_first: bool) -> bool {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| u64::from_str_radix(value.trim(), 16).ok())
    };
    let masks = ["SigPnd:", "ShdPnd:", "SigBlk:", "SigIgn:", "SigCgt:"].map(mask);
    let [
        Some(own),
        Some(shared),
        Some(blocked),
        Some(ignored),
        Some(caught),
    ] = masks
    else {
        return false;
    };
    let taken = TAKEN.iter().fold(0, |all, number| all | 1 << (number - 1));
    let wanted = (caught | taken) & !blocked & !ignored;
    let pending = if is_first { own | shared } else { own };
    pending & wanted != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pending_and_neither_blocked_nor_ignored_is_taken() {
        let of = |own: u64, shared: u64, blocked: u64, ignored: u64, caught: u64| {
            format!(
                "Name:\tx\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
            )
        };
        let (usr1, stop, chld) = (1 << 9, 1 << 18, 1 << 16);
        for (status, first, other) in [
            (of(0, 0, 0, 0, usr1), false, false),
            (of(usr1, 0, 0, 0, usr1), true, true),
            (of(0, usr1, 0, 0, usr1), true, false),
            (of(usr1, usr1, usr1, 0, usr1), false, false),
            (of(usr1, 0, 0, 0, 0), false, false),
            (of(0, stop, 0, 0, 0), true, false),
            (of(chld, 0, 0, chld, 0), false, false),
            ("SigPnd:\t0".to_owned(), false, false),
        ] {
            let found = (takes_one(&status, true), takes_one(&status, false));
            assert_eq!(found, (first, other), "{status}");
        }
    }
}
