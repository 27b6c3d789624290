//! Names of Unix sockets in messages: paths in the root and the working directory of the thread that sends.

use std::fs::{File, metadata};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};

const FAMILY: usize = 2;

/// The path of a Unix address; `None` for other families, abstract names and no name.
fn path_of(name: &[u8]) -> Option<&[u8]> {
    let (family, path) = name.split_first_chunk::<FAMILY>()?;
    if i32::from(u16::from_ne_bytes(*family)) != libc::AF_UNIX {
        return None;
    }
    let end = path.iter().position(|byte| *byte == 0);
    let path = path.get(..end.unwrap_or(path.len()))?;
    (!path.is_empty()).then_some(path)
}

/// Whether a message names its receiver, so that the kernel looks whether it may be reached.
pub(super) fn is_named(name: &[u8]) -> bool {
    name.len() > FAMILY
}

/// An address for the supervisor in place of a thread's: a path leads to the same socket as long as the descriptor lives.
///
/// # Errors
/// Errors of the lookup; `EXDEV` for a relative path that leaves the working directory of a thread with another root.
pub(super) fn translated(
    tid: u32,
    name: &[u8],
    as_program: impl FnOnce(&dyn Fn() -> io::Result<OwnedFd>) -> io::Result<OwnedFd>,
) -> io::Result<Option<(Vec<u8>, OwnedFd)>> {
    let Some(path) = path_of(name) else {
        return Ok(None);
    };
    let folder = |which: &str| File::open(format!("/proc/{tid}/{which}"));
    let (root, here) = (folder("root")?, folder("cwd")?);
    let is_ours = is_our_root(tid, &root)?;
    let socket = as_program(&|| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let within = |base: &File, how| openat2(base, path, flags, Mode::empty(), how);
        let found = if is_ours {
            openat(&here, path, flags, Mode::empty())
        } else if path.starts_with(b"/") {
            within(&root, ResolveFlags::IN_ROOT)
        } else {
            within(&here, ResolveFlags::BENEATH)
        };
        Ok(found?)
    })?;
    let mut named = name.get(..FAMILY).unwrap_or_default().to_vec();
    named.extend(format!("/proc/self/fd/{}\0", socket.as_raw_fd()).bytes());
    Ok(Some((named, socket)))
}

/// Whether a thread has the root and the mounts of the supervisor.
fn is_our_root(tid: u32, root: &File) -> io::Result<bool> {
    let [theirs, ours] = [root.metadata()?, metadata("/")?].map(|of| (of.dev(), of.ino()));
    let mounts = |folder: String| metadata(format!("{folder}/ns/mnt")).map(|of| of.ino());
    Ok(theirs == ours && mounts(format!("/proc/{tid}"))? == mounts("/proc/self".to_owned())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_from_other_names() {
        assert_eq!(path_of(b"\x01\0/run/log\0tail"), Some(&b"/run/log"[..]));
        assert_eq!(path_of(b"\x01\0log"), Some(&b"log"[..]));
        for other in [
            &b"\x01\0\0abstract"[..],
            b"\x01\0",
            b"\x02\0/run",
            b"\x01",
            b"",
        ] {
            assert_eq!(path_of(other), None, "{other:?}");
        }
        assert!(is_named(b"\x01\0\0abstract") && !is_named(b"\x01\0") && !is_named(b""));
    }
}
