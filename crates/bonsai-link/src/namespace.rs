//! Network namespaces: entered by a thread of their own, which ends.
//!
//! A thread enters nothing but the network: `ip netns exec` mounts `/sys` anew, which hides the
//! hierarchies of control groups.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::{io, thread};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::error::Error;

/// Does something in a network namespace. Sockets stay in it, and programs that are started are in
/// it.
///
/// # Errors
/// If it cannot be entered: `CAP_SYS_ADMIN` there and here is needed.
pub fn inside<T: Send>(
    namespace: BorrowedFd<'_>,
    what: impl FnOnce() -> T + Send,
) -> Result<T, Error> {
    apart(|| {
        move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))
            .map_err(|errno| Error::Enter(errno.into()))?;
        Ok(what())
    })
}

/// Makes one that lasts as long as the descriptor, or what is in it.
///
/// # Errors
/// If it cannot be made: `CAP_SYS_ADMIN` is needed.
pub fn make() -> Result<OwnedFd, Error> {
    apart(|| {
        // SAFETY: of what a thread may cease to share, descriptors and memory are not the network.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
            .map_err(|errno| Error::Enter(errno.into()))?;
        current()
    })
}

/// The one of the calling thread.
///
/// # Errors
/// If `/proc` is not mounted.
pub fn current() -> Result<OwnedFd, Error> {
    let path = "/proc/thread-self/ns/net";
    let file = File::open(path).map_err(|source| Error::File {
        path: path.into(),
        source,
    })?;
    Ok(file.into())
}

/// Whether two are the same.
///
/// # Errors
/// If one cannot be looked at.
pub fn same(one: impl AsFd, other: impl AsFd) -> Result<bool, Error> {
    let stat =
        |of: BorrowedFd<'_>| rustix::fs::fstat(of).map_err(|errno| Error::Enter(errno.into()));
    let (one, other) = (stat(one.as_fd())?, stat(other.as_fd())?);
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

fn apart<T: Send>(what: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    thread::scope(|scope| {
        let named = thread::Builder::new().name("bonsai-netns".into());
        let thread = named
            .spawn_scoped(scope, what)
            .map_err(|error: io::Error| Error::Socket(error))?;
        match thread.join() {
            Ok(answer) => answer,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
