//! The kernel's side of it: receiving and answering notifications.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use super::amount::arguments;
use libc::{seccomp_notif, seccomp_notif_resp};

/// Wakes whoever waits for the answer on the CPU of the one who gives it: a third of
/// the cost where both would sleep on different ones.
const SYNC_WAKE_UP: u64 = 1;

/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`.
const GO_ON: u32 = 1;

/// A call that waits for an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// What the answer has to name.
    pub(crate) id: u64,
    /// The thread.
    pub(crate) tid: u32,
    /// The call as it stood in the registers: what the kernel executes if it goes on.
    pub(crate) arch: u32,
    pub(crate) nr: u32,
    pub(crate) args: [u64; 6],
}

/// The first kernel whose `SECCOMP_IOCTL_NOTIF_RECV` returns when the last process behind the listener ends. On older ones it waits for ever,
/// and only poll(2) tells of that end (from 5.9 on).
const RECEIVING_ENDS_FROM: (u32, u32) = (6, 11);

/// Interval at which the receiver looks around, as nothing tells of that end before 5.9; ms.
const LOOK_AROUND_MS: i32 = 1000;

/// The listener of a service.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: OwnedFd,
    /// True if poll(2) has to wait instead of the receiving itself.
    polls: bool,
}

/// What came instead of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nothing {
    /// It was taken back before it could be read.
    Gone,
    /// No process of the service is left.
    End,
}

impl Listener {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        // Kernels before 6.6 do not know it, and are slower.
        // SAFETY: the argument is a plain number.
        unsafe {
            libc::ioctl(
                fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS,
                SYNC_WAKE_UP,
            )
        };
        Self {
            fd,
            polls: release().is_none_or(|release| release < RECEIVING_ENDS_FROM),
        }
    }

    /// Waits for the next call.
    pub(crate) fn receive(&self) -> Result<Asked, Nothing> {
        if self.polls {
            let ready = self.poll(LOOK_AROUND_MS);
            if ready & libc::POLLIN == 0 {
                return Err(if ready & libc::POLLHUP == 0 {
                    Nothing::Gone
                } else {
                    Nothing::End
                });
            }
        }
        // SAFETY: plain numbers; the kernel wants zeros.
        let mut asked: seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the structure that this request fills.
        let got = unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_RECV,
                &raw mut asked,
            )
        };
        if got != 0 {
            return Err(if self.is_abandoned() {
                Nothing::End
            } else {
                Nothing::Gone
            });
        }
        Ok(Asked {
            id: asked.id,
            tid: asked.pid,
            arch: asked.data.arch,
            nr: asked.data.nr.cast_unsigned(),
            args: arguments(asked.data.nr.cast_unsigned(), asked.data.args),
        })
    }

    fn is_abandoned(&self) -> bool {
        self.poll(0) & libc::POLLHUP != 0
    }

    /// Events that poll(2) reports of the listener; none if a signal or the time has ended the wait.
    fn poll(&self, timeout_ms: i32) -> i16 {
        let mut poll = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor.
        let ready = unsafe { libc::poll(&raw mut poll, 1, timeout_ms) };
        if ready > 0 { poll.revents } else { 0 }
    }

    /// Lets the call go on, as it stood in the registers. False if nobody waits for it
    /// any more.
    pub(crate) fn go_on(&self, id: u64) -> bool {
        self.send(id, 0, 0, GO_ON)
    }

    /// Ends the call with a result or, below zero, an error.
    pub(crate) fn end_with(&self, id: u64, result: i64) -> bool {
        if result < 0 {
            self.send(id, 0, i32::try_from(result).unwrap_or(-libc::EINVAL), 0)
        } else {
            self.send(id, result, 0, 0)
        }
    }

    fn send(&self, id: u64, val: i64, error: i32, flags: u32) -> bool {
        let mut answer = seccomp_notif_resp {
            id,
            val,
            error,
            flags,
        };
        // SAFETY: the structure that this request reads.
        let sent = unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SEND,
                &raw mut answer,
            )
        };
        sent == 0
    }

    /// Gives a descriptor of ours to the thread that waits; its number there.
    pub(crate) fn give(&self, id: u64, ours: &OwnedFd, closes: bool) -> io::Result<i32> {
        let gift = libc::seccomp_notif_addfd {
            id,
            flags: 0,
            srcfd: ours.as_raw_fd().cast_unsigned(),
            newfd: 0,
            newfd_flags: if closes {
                libc::O_CLOEXEC.cast_unsigned()
            } else {
                0
            },
        };
        // SAFETY: the structure that this request reads.
        let theirs = unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_ADDFD,
                &raw const gift,
            )
        };
        if theirs < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(theirs)
        }
    }

    /// Whether somebody still waits for the answer.
    pub(crate) fn is_valid(&self, id: u64) -> bool {
        // SAFETY: the number that this request reads.
        let valid = unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
                &raw const id,
            )
        };
        valid == 0
    }
}

/// The first two numbers of the kernel's release.
fn release() -> Option<(u32, u32)> {
    let uname = rustix::system::uname();
    let mut numbers = uname.release().to_str().ok()?.splitn(3, ['.', '-']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether this kernel has listeners.
///
/// # Errors
/// What it says.
pub fn probe() -> io::Result<()> {
    let action: u32 = 0x7fc0_0000;
    // SAFETY: SECCOMP_GET_ACTION_AVAIL reads one word.
    let known = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const action,
        )
    };
    if known == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::{Listener, Nothing};
    use crate::enforce::filter;

    const GETPPID: u32 = 110;

    #[test]
    fn the_end_of_the_last_caller_is_heard_where_receiving_would_wait_for_ever() {
        let (made, listener) = channel();
        let caller = std::thread::spawn(move || {
            let installed = rustix::thread::set_no_new_privs(true)
                .map_err(std::io::Error::from)
                .and_then(|()| filter::install(&[GETPPID]));
            made.send(installed).expect("a test that waits");
            rustix::process::getppid()
        });
        let fd = match listener.recv().expect("a thread") {
            Ok(fd) => fd,
            Err(error) => return eprintln!("SKIP: no listener here: {error}"),
        };
        // As on a kernel before 6.11, whichever this one is.
        let listener = Listener {
            polls: true,
            ..Listener::new(fd)
        };
        let next = || loop {
            match listener.receive() {
                Err(Nothing::Gone) => {}
                other => break other,
            }
        };
        let asked = next().expect("a call");
        assert_eq!(asked.nr, GETPPID);
        assert!(listener.go_on(asked.id));
        caller.join().expect("no failure");
        assert_eq!(next().map(|asked| asked.nr), Err(Nothing::End));
    }
}
