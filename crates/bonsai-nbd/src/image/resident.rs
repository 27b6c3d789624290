//! What the page cache has, asked without changing it.

use std::os::fd::{AsRawFd as _, BorrowedFd};

/// The same number on every architecture (Linux 6.5).
const SYS_CACHESTAT: libc::c_long = 451;

#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// The pages of a part of a file that are in the page cache; `None` where the kernel does not say.
/// A read with `RWF_NOWAIT` would not do: it has the disk begin.
pub(super) fn pages(file: BorrowedFd<'_>, offset: u64, length: u64) -> Option<u64> {
    let range = Range { offset, length };
    let mut stat = Cachestat::default();
    // SAFETY: both pointers are to values of this function, of the kernel's layout
    // (`struct cachestat_range` and `struct cachestat` of linux/mman.h); it reads the first and
    // writes the second, and keeps neither.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            &raw const range,
            &raw mut stat,
            0,
        )
    };
    (result == 0).then_some(stat.cached)
}
