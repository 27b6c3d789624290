//! Reads that wait for no disk.
#![expect(
    unsafe_code,
    reason = "preadv2 of libc has no safe interface that limits see"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use nix::libc;

/// Reads what is in memory of a file: how many bytes, 0 at its end; `None` where it would have to wait for a disk.
///
/// By the C library and not by the system call itself, so that a limit on reads holds here, too. The kernel begins to
/// read nothing by it (since Linux 5.10 RWF_NOWAIT implies IOCB_NOIO), and refuses now and then what is in memory: where
/// it would read on behind that.
///
/// # Errors
/// The error of the system; `Unsupported` of a file system, or a kernel, that does not know such reads.
pub(crate) fn read_at_once(
    file: &impl AsFd,
    bytes: &mut [u8],
    offset: u64,
) -> io::Result<Option<usize>> {
    let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    let into = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let file = file.as_fd().as_raw_fd();
    loop {
        // SAFETY: the one iovec is of `bytes`, which is borrowed for the call, and the descriptor is open for as long.
        let read = unsafe { libc::preadv2(file, &raw const into, 1, offset, libc::RWF_NOWAIT) };
        if let Ok(read) = usize::try_from(read) {
            return Ok(Some(read));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN) => return Ok(None),
            Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL | libc::EPERM) => {
                return Err(io::ErrorKind::Unsupported.into());
            }
            _ => return Err(error),
        }
    }
}

/// The number of cachestat(2), the same for all architectures (Linux 6.5).
const CACHESTAT: libc::c_long = 451;

/// True where all of these bytes of a file are in the page cache, or are being read into it; `None` where the kernel
/// does not tell. It begins to read none of them.
pub(crate) fn is_cached(file: &impl AsFd, offset: u64, len: usize) -> Option<bool> {
    /// The kernel's `struct cachestat_range` and `struct cachestat` (linux/mman.h).
    #[repr(C)]
    struct Range {
        offset: u64,
        len: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Stat {
        cached: u64,
        others: [u64; 4],
    }
    // A length of 0 would be up to the end of the file.
    let len = u64::try_from(len).ok()?.max(1);
    let (range, mut stat) = (Range { offset, len }, Stat::default());
    let file = file.as_fd().as_raw_fd();
    // SAFETY: both are laid out as the kernel has them, live for the call, and the descriptor is open for as long.
    let done = unsafe { libc::syscall(CACHESTAT, file, &raw const range, &raw mut stat, 0) };
    let page = u64::try_from(rustix::param::page_size()).ok()?;
    let pages = (offset.saturating_add(len) - 1) / page - offset / page + 1;
    (done == 0).then_some(stat.cached >= pages)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn what_is_in_memory_is_read_up_to_the_end_and_a_mistake_is_an_error() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"0123456789").expect("written");
        let mut bytes = [0; 4];
        match read_at_once(&file, &mut bytes, 8) {
            Ok(Some(read)) => assert_eq!(&bytes[..read], b"89"),
            Ok(None) => {}
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported),
        }
        let (_, end) = std::io::pipe().expect("a pipe");
        assert!(read_at_once(&end, &mut bytes, 0).is_err());
    }
}
