//! The lock of an image, as QEMU takes it, so that both refuse what the other has.
//!
//! Each right has a byte of its own from 100 on, and a second one from 200 on. Whoever uses a right holds the first
//! one shared; whoever does not let others use it holds the second one shared. Before, one looks whether
//! somebody holds the opposite. Held with the open file, the locks go with it, whatever becomes of the process.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use super::ImageError;

const USED: i64 = 100;
const UNSHARED: i64 = 200;

const CONSISTENT_READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

/// Takes the lock of an image.
///
/// # Errors
/// [`ImageError::InUse`]; [`ImageError::Open`] with what else the system says.
pub(super) fn take(file: &File, path: &Path, read_only: bool) -> Result<(), ImageError> {
    let used: &[i64] = match read_only {
        true => &[CONSISTENT_READ],
        false => &[CONSISTENT_READ, WRITE],
    };
    let unshared = [WRITE, RESIZE];
    let error = |source: io::Error| match source.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => ImageError::InUse {
            path: path.to_owned(),
            whose: "which is taking its lock",
        },
        _ => ImageError::Open {
            path: path.to_owned(),
            source,
        },
    };
    // First taken, then looked: of two that come at once, at least one sees the other.
    let mine = used.iter().map(|right| USED + right);
    for byte in mine.chain(unshared.iter().map(|right| UNSHARED + right)) {
        match lock(file, libc::F_OFD_SETLK, libc::F_RDLCK, byte) {
            // File systems without locks have none that could be held.
            Err(source)
                if matches!(source.raw_os_error(), Some(libc::ENOLCK | libc::EOPNOTSUPP)) =>
            {
                return Ok(());
            }
            done => done.map_err(error)?,
        };
    }
    let refused = used
        .iter()
        .map(|right| (UNSHARED + right, "which wants it for itself"));
    let written = unshared
        .iter()
        .map(|right| (USED + right, "which writes to it"));
    for (byte, whose) in refused.chain(written) {
        // Own locks are not reported: only those of other open files.
        let own = USED + WRITE == byte && !read_only;
        let found = lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, byte).map_err(error)?;
        if found != libc::F_UNLCK {
            let whose = if own { "which writes to it" } else { whose };
            let path = path.to_owned();
            return Err(ImageError::InUse { path, whose });
        }
    }
    Ok(())
}

/// Whether there are such locks at all.
///
/// # Errors
/// What the system says.
pub(super) fn try_one(file: &File) -> io::Result<()> {
    lock(file, libc::F_OFD_SETLK, libc::F_RDLCK, USED).map(drop)
}

fn lock(file: &File, command: i32, kind: i32, byte: i64) -> io::Result<i32> {
    let mut lock = libc::flock {
        l_type: i16::try_from(kind).unwrap_or(0),
        l_whence: 0,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open for as long as the file is borrowed; the kernel reads and
    // writes the structure during the call alone.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(i32::from(lock.l_type)),
    }
}
