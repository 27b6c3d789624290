//! What turns a process into one of an enforced service: no new privileges, a domain,
//! the filter, and then the program.
//!
//! # Who sends the listener
//! Whoever is under the filter may not be able to send anything. So a second thread goes
//! under it, which is the one that becomes the program; the first, which does not, shares
//! its descriptors, sends the listener to the supervisor, waits until that listens, and
//! ends with the `execve` of the other.

use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::{domain, filter};

/// As whom the program runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// The home folder.
    pub home: std::path::PathBuf,
}

/// The user of that name.
#[must_use]
pub fn user(name: &str) -> Option<User> {
    let found = nix::unistd::User::from_name(name).ok().flatten()?;
    let text = std::ffi::CString::new(name).ok()?;
    let groups = nix::unistd::getgrouplist(&text, found.gid).unwrap_or_default();
    Some(User {
        uid: found.uid.as_raw(),
        gid: found.gid.as_raw(),
        groups: groups.iter().map(|group| group.as_raw()).collect(),
        home: found.dir,
    })
}

/// Why a program could not be put under the filter.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// A step that the system refuses.
    #[error("{what}: {source}")]
    Step {
        /// What was wanted.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// The supervisor has gone.
    #[error("the supervisor has ended")]
    Abandoned,
    /// The program cannot be executed.
    #[error("{0}")]
    Exec(io::Error),
}

fn step(what: &'static str) -> impl Fn(io::Error) -> ConfineError {
    move |source| ConfineError::Step { what, source }
}

/// A socket that was inherited under a number.
///
/// # Errors
/// There is no such descriptor.
pub fn inherited(number: i32) -> io::Result<UnixStream> {
    // SAFETY: looks at a number, which need not be a descriptor.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: open, and nobody else's: it was left open for us.
    Ok(unsafe { OwnedFd::from_raw_fd(number) }.into())
}

/// Becomes `command` under the filter, after the supervisor at the other end of `socket`
/// has got the listener; or `text`, if the kernel does not know what kind of program that
/// is. Returns only if it cannot.
#[must_use]
pub fn become_program(
    mut command: Command,
    mut text: Command,
    asked: Vec<u32>,
    user: Option<User>,
    socket: &UnixStream,
) -> ConfineError {
    let (made, listener) = channel::<OwnedFd>();
    let (go, told) = channel::<()>();
    let thread = std::thread::Builder::new().spawn(move || {
        if let Err(error) = confine(&asked, user.as_ref(), &made, &told) {
            return error;
        }
        let error = command.exec();
        let is_text = error.raw_os_error() == Some(libc::ENOEXEC);
        ConfineError::Exec(if is_text { text.exec() } else { error })
    });
    let thread = match thread {
        Ok(thread) => thread,
        Err(error) => return step("a thread")(error),
    };
    let sent = listener.recv().map(|listener| send(socket, &listener));
    match sent {
        Ok(Err(error)) => return error,
        Ok(Ok(())) => drop(go.send(())),
        // It says itself what went wrong.
        Err(_) => {}
    }
    thread.join().unwrap_or(ConfineError::Abandoned)
}

fn confine(
    asked: &[u32],
    user: Option<&User>,
    made: &Sender<OwnedFd>,
    told: &Receiver<()>,
) -> Result<(), ConfineError> {
    if let Some(user) = user {
        become_user(user).map_err(step("the user cannot be changed"))?;
    }
    rustix::thread::set_no_new_privs(true)
        .map_err(|errno| step("new privileges cannot be given up")(errno.into()))?;
    domain::enter().map_err(step("the Landlock domain cannot be entered"))?;
    let listener = filter::install(asked).map_err(step("the seccomp filter is refused"))?;
    // Sent by number: the other thread drops it, and it is closed at exec in any case.
    made.send(listener).map_err(|_| ConfineError::Abandoned)?;
    told.recv().map_err(|_| ConfineError::Abandoned)
}

/// Concerns this thread only, which is the one that is left after its exec.
fn become_user(user: &User) -> io::Result<()> {
    let ok = |result: libc::c_long| {
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    };
    let (uid, gid) = (user.uid, user.gid);
    // SAFETY: the list lives during the call, which gets its length.
    ok(unsafe { libc::syscall(libc::SYS_setgroups, user.groups.len(), user.groups.as_ptr()) })?;
    // SAFETY: plain numbers.
    ok(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
    // SAFETY: plain numbers.
    ok(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })
}

fn send(socket: &UnixStream, listener: &OwnedFd) -> Result<(), ConfineError> {
    let fds = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(
        socket,
        &[IoSlice::new(b"l")],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .map_err(|errno| step("the listener cannot be sent")(errno.into()))?;
    let mut answer = [0];
    match rustix::io::read(socket, &mut answer) {
        Ok(1) => Ok(()),
        _ => Err(ConfineError::Abandoned),
    }
}

/// Waits for the listener of a program that is being confined; `None` if there will be
/// none, because that has ended.
///
/// # Errors
/// What the system says.
pub(crate) fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    }))
}
