//! How each call ends when a signal handler runs while it waits: the one table of that.
//!
//! A wait that is imposed on a call ends as the call's own wait does. Sources: signal(7), and the error that Linux 6.12 returns
//! inside: `ERESTARTSYS` is restarted with `SA_RESTART`; `ERESTARTNOHAND`, `ERESTART_RESTARTBLOCK` and `EINTR` are not.

use crate::{self as calls, CALLS, CallId, Class, Shape};

/// What a signal handler does to a call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// The call goes on waiting.
    Never,
    /// The call ends with `EINTR`, or is restarted if the handler was installed with `SA_RESTART`.
    Restarts,
    /// The same, but a socket's time limit (`SO_RCVTIMEO`, `SO_SNDTIMEO`) makes it [`Self::Ends`] (`sock_intr_errno`).
    RestartsWithoutTimeout,
    /// The call ends with `EINTR`, with `SA_RESTART` as well.
    Ends,
}

/// What a signal handler does to a call of an entry that waits.
#[must_use]
pub const fn interruption(call: CallId) -> Interruption {
    use Interruption::{Ends, Never, Restarts, RestartsWithoutTimeout};
    match call {
        // do_sys_poll, core_sys_select, do_epoll_wait; do_msgrcv and do_msgsnd (ERESTARTNOHAND); io_cqring_wait.
        calls::POLL
        | calls::PPOLL
        | calls::SELECT
        | calls::PSELECT6
        | calls::EPOLL_WAIT
        | calls::EPOLL_PWAIT
        | calls::EPOLL_PWAIT2
        | calls::MSGRCV
        | calls::MSGSND
        | calls::IO_URING_ENTER => Ends,
        // Of a connection, `EINTR` says that it is being made (connect(2)), which it is not while the call waits for its turn. The memory
        // of others is waited for by page faults only.
        calls::CONNECT | calls::PROCESS_VM_READV | calls::PROCESS_VM_WRITEV => Never,
        calls::ACCEPT | calls::ACCEPT4 => RestartsWithoutTimeout,
        calls::FLOCK | calls::GETRANDOM => Restarts,
        // A pipe at one end.
        calls::SENDFILE_OTHER | calls::SPLICE_FILE => Restarts,
        _ => {
            let row = &CALLS[call as usize];
            let on_sockets = row.classes.contains(Class::Send) || row.classes.contains(Class::Recv);
            match row.shape {
                Shape::Count => Never,
                _ if on_sockets => RestartsWithoutTimeout,
                // Files are not waited for where signals are looked at, and few programs expect it.
                _ if row.classes.contains(Class::Disk) => Never,
                _ => Restarts,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn what_the_manual_names_is_never_restarted() {
        let named = [
            "poll",
            "ppoll",
            "select",
            "pselect6",
            "epoll_wait",
            "epoll_pwait",
            "epoll_pwait2",
            "msgrcv",
            "msgsnd",
            "io_uring_enter",
        ];
        let rows = (0..).zip(CALLS);
        let ends = rows.filter(|(call, _)| interruption(*call) == Interruption::Ends);
        let mut ends: Vec<&str> = ends.map(|(_, row)| row.name).collect();
        ends.sort_unstable();
        let mut named = named.to_vec();
        named.sort_unstable();
        assert_eq!(ends, named);
    }

    #[test]
    fn sockets_go_by_their_time_limits_and_files_are_not_interrupted() {
        use Interruption::{Never, Restarts, RestartsWithoutTimeout};
        for (call, wanted) in [
            (calls::RECVMSG, RestartsWithoutTimeout),
            (calls::WRITE_SOCKET, RestartsWithoutTimeout),
            (calls::SENDFILE_SOCKET, RestartsWithoutTimeout),
            (calls::ACCEPT4, RestartsWithoutTimeout),
            (calls::READ_OTHER, Restarts),
            (calls::MQ_TIMEDSEND, Restarts),
            (calls::TEE, Restarts),
            (calls::READ_FILE, Never),
            (calls::PWRITEV2, Never),
            (calls::FSYNC, Never),
            (calls::CLOSE, Never),
            (calls::CLONE, Never),
        ] {
            assert_eq!(interruption(call), wanted, "{call}");
        }
    }
}
