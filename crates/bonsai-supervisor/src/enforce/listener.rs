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

/// The listener of a service.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

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
        Self(fd)
    }

    /// Waits for the next call.
    pub(crate) fn receive(&self) -> Result<Asked, Nothing> {
        // SAFETY: plain numbers; the kernel wants zeros.
        let mut asked: seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the structure that this request fills.
        let got = unsafe {
            libc::ioctl(
                self.0.as_raw_fd(),
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
        let mut poll = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor, and no wait.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
        ready > 0 && poll.revents & libc::POLLHUP != 0
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
                self.0.as_raw_fd(),
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
                self.0.as_raw_fd(),
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
                self.0.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
                &raw const id,
            )
        };
        valid == 0
    }
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
