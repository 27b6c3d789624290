//! The seccomp filter under which we run ourselves, a container's or a unit's: whether the
//! interposer may make its calls there, and the supervisor its own.

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
    // A filter of one's own is for `--unpatched trap` alone, and not among the calls that systemd allows a service
    // (`@system-service`): nothing else depends on it.
    let tried = HELPERS.iter().map(|number| i64::from(*number));
    let all = tried.filter(|number| *number != libc::SYS_seccomp);
    in_child(|| {
        all.for_each(harmlessly);
        0
    }) == Some(0)
}

/// Result of `tried` in a child; `None` if the child ends before.
fn in_child(tried: impl FnOnce() -> i32) -> Option<i32> {
    // SAFETY: the child makes system calls only, without memory that a lock of another thread
    // could keep from it, and ends.
    let child = unsafe { libc::fork() };
    match child {
        0 => {
            // SAFETY: ends this process, should one of them wait all the same.
            unsafe { libc::alarm(5) };
            // SAFETY: ends this process.
            unsafe { libc::_exit(tried()) }
        }
        1.. => {
            let mut status = 0;
            loop {
                // SAFETY: waits for our own child.
                let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
                if ended == child {
                    return libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
                }
                let error = std::io::Error::last_os_error().raw_os_error();
                if error != Some(libc::EINTR) {
                    return None;
                }
            }
        }
        _ => None,
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

/// A way to decide calls that needs more of the kernel than a program usually does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `bonsai run --unpatched trap`.
    Trap,
    /// `bonsai run --enforce`.
    Enforce,
}

/// A call that a seccomp filter around this process denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The filter kills its caller.
    #[error(
        "a seccomp filter that bonsai runs under (a container's, or SystemCallFilter= of a unit) kills any process \
         that calls {0}(2)"
    )]
    Deadly(&'static str),
    /// The filter answers it with an error.
    #[error(
        "a seccomp filter that bonsai runs under (a container's, or SystemCallFilter= of a unit) refuses {0}(2): {error}",
        error = std::io::Error::from_raw_os_error(*.1)
    )]
    Refused(&'static str, i32),
}

/// A call, made so that it does nothing.
struct Need {
    name: &'static str,
    number: i64,
    args: [i64; 4],
    /// Answers of the kernel itself (0 for success); empty where they do not matter.
    says: &'static [i32],
}

const fn need(name: &'static str, number: i64, args: [i64; 4], says: &'static [i32]) -> Need {
    Need {
        name,
        number,
        args,
        says,
    }
}

const SET_FILTER: i64 = libc::SECCOMP_SET_MODE_FILTER as i64;
#[expect(clippy::cast_possible_wrap, reason = "a flag")]
const LISTENER: i64 = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER as i64;
/// Number of no process.
const NONE: i64 = 0x40_0000;

const GIVE_UP: Need = need(
    "prctl",
    libc::SYS_prctl,
    [libc::PR_SET_NO_NEW_PRIVS as i64, 1, 0, 0],
    &[0],
);

/// Calls for a trapped program.
const TRAP: &[Need] = &[
    GIVE_UP,
    need(
        "seccomp",
        libc::SYS_seccomp,
        [SET_FILTER, 0, 0, 0],
        &[libc::EFAULT],
    ),
];

/// Calls for a supervisor, and for its program under the filter.
#[rustfmt::skip]
const ENFORCE: &[Need] = &[
    GIVE_UP,
    need("seccomp", libc::SYS_seccomp, [SET_FILTER, LISTENER, 0, 0], &[libc::EFAULT, libc::EINVAL]),
    need("ioctl", libc::SYS_ioctl, [-1, 0, 0, 0], &[libc::EBADF]),
    need("landlock_create_ruleset", libc::SYS_landlock_create_ruleset, [0, 0, 1, 0], &[]),
    need("landlock_restrict_self", libc::SYS_landlock_restrict_self, [-1, 0, 0, 0], &[]),
    need("pidfd_open", libc::SYS_pidfd_open, [-1, 0, 0, 0], &[libc::EINVAL]),
    need("pidfd_getfd", libc::SYS_pidfd_getfd, [-1, 0, 0, 0], &[libc::EBADF]),
    need("process_vm_readv", libc::SYS_process_vm_readv, [NONE, 0, 0, 0], &[0, libc::ESRCH, libc::EINVAL]),
    need("process_vm_writev", libc::SYS_process_vm_writev, [NONE, 0, 0, 0], &[0, libc::ESRCH, libc::EINVAL]),
    need("preadv2", libc::SYS_preadv2, [-1, 0, 0, 0], &[libc::EBADF]),
    need("pwritev2", libc::SYS_pwritev2, [-1, 0, 0, 0], &[libc::EBADF]),
    need("prlimit64", libc::SYS_prlimit64, [NONE, 0, 0, 0], &[]),
    need("setpriority", libc::SYS_setpriority, [0, NONE, 0, 0], &[]),
];

/// Further calls for a supervisor with rights that its program lacks.
#[rustfmt::skip]
const ENFORCE_WITH_RIGHTS: &[Need] = &[
    need("setresuid", libc::SYS_setresuid, [-1, -1, -1, 0], &[]),
    need("setresgid", libc::SYS_setresgid, [-1, -1, -1, 0], &[]),
    need("setgroups", libc::SYS_setgroups, [-1, 0, 0, 0], &[]),
    need("setfsuid", libc::SYS_setfsuid, [-1, 0, 0, 0], &[]),
    need("setfsgid", libc::SYS_setfsgid, [-1, 0, 0, 0], &[]),
    need("capset", libc::SYS_capset, [0, 0, 0, 0], &[]),
];

impl Need {
    /// Makes it, in a child. Returns 0, or the error that is not the kernel's own; a kernel without the call says `ENOSYS`.
    fn try_it(&self) -> i32 {
        let [a, b, c, d] = self.args;
        // SAFETY: nothing is read or written: there are no addresses, descriptors and processes of such numbers.
        let result = unsafe { libc::syscall(self.number, a, b, c, d, 0, 0) };
        let error = match result {
            -1 => std::io::Error::last_os_error().raw_os_error().unwrap_or(0),
            _ => 0,
        };
        if self.says.is_empty() || error == libc::ENOSYS || self.says.contains(&error) {
            0
        } else {
            error
        }
    }

    fn denied(&self) -> Option<Denied> {
        match in_child(|| self.try_it()) {
            Some(0) => None,
            Some(error) => Some(Denied::Refused(self.name, error)),
            None => Some(Denied::Deadly(self.name)),
        }
    }
}

/// Returns the call that a filter around this process denies to a way to decide calls. Asked before the way begins, as a filter may kill.
///
/// # Errors
/// The first such call.
pub fn is_allowed(way: Way) -> Result<(), Denied> {
    if !is_filtered() {
        return Ok(());
    }
    let is_root = rustix::process::geteuid().is_root();
    let (needs, more) = match way {
        Way::Trap => (TRAP, &[][..]),
        Way::Enforce if is_root => (ENFORCE, ENFORCE_WITH_RIGHTS),
        Way::Enforce => (ENFORCE, &[][..]),
    };
    let mut needs = needs.iter().chain(more);
    needs.find_map(Need::denied).map_or(Ok(()), Err)
}
