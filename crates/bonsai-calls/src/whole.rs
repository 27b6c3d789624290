//! Checks that the kernel makes of a whole I/O call, before the first byte moves.
//!
//! A call that is made in pieces, or that is paid for beforehand, must not pass these checks where the call as it came would not:
//! of `read(fd, buffer, -1)` a piece would be a real transfer behind the end of the buffer. So whatever is not plainly
//! accepted here is made as it came, and what it moves is paid for afterwards.
//!
//! Sources: `vfs_read`, `rw_verify_area` and `do_pwritev` in `fs/read_write.c`, `__import_iovec` in `lib/iov_iter.c` and `access_ok`
//! in `arch/x86/include/asm/uaccess_64.h` of Linux 6.12; read(2), readv(2).

use crate::{self as calls, CallId};

/// Bytes that the kernel moves in one call, at most (`MAX_RW_COUNT`).
pub const MOST_BYTES: usize = 0x7fff_f000;

/// Vectors and messages of a call, at most (`UIO_MAXIOV`).
pub const MOST_VECTORS: usize = 1024;

/// The end of a program's memory with page tables of four levels (`TASK_SIZE_MAX`).
const USER_END: usize = 0x7fff_ffff_f000;

/// Whether a count is valid: not negative as `ssize_t`.
#[must_use]
pub const fn is_count(count: usize) -> bool {
    count <= isize::MAX as usize
}

/// Whether a buffer lies within user memory.
#[must_use]
pub const fn is_range(at: usize, count: usize) -> bool {
    is_within(at, count, USER_END)
}

/// Whether a buffer lies before the end of user memory, which depends on the levels of page tables.
#[must_use]
pub const fn is_within(at: usize, count: usize, user_end: usize) -> bool {
    is_count(count)
        && match at.checked_add(count) {
            Some(end) => end <= user_end,
            None => false,
        }
}

/// Whether a range of a file has valid offsets (`loff_t`).
#[must_use]
pub const fn is_place(offset: usize, count: usize) -> bool {
    // Two such cannot wrap.
    is_count(offset) && is_count(count) && is_count(offset.wrapping_add(count))
}

/// Whether `copy_file_range` within one file of `size` bytes copies a range onto a part of itself, which the kernel refuses
/// (`generic_copy_file_checks` in `fs/read_write.c`).
#[must_use]
pub const fn is_onto_itself(from: usize, to: usize, count: usize, size: usize) -> bool {
    let left = size.saturating_sub(from);
    let count = if left < count { left } else { count };
    to.saturating_add(count) > from && to < from.saturating_add(count)
}

/// The offset of a call after some of its bytes were moved, where a register has it; `None` where the kernel moves on by itself.
/// `preadv2` and `pwritev2` take -1 for the file's own position.
#[must_use]
pub const fn offset_after(call: CallId, offset: usize, done: usize) -> Option<usize> {
    match call {
        calls::PREADV2 | calls::PWRITEV2 if offset == usize::MAX => None,
        calls::PREAD64
        | calls::PREADV
        | calls::PREADV2
        | calls::PWRITE64
        | calls::PWRITEV
        | calls::PWRITEV2 => Some(offset.wrapping_add(done)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_refuses_is_no_count_and_no_range() {
        assert!(is_count(0) && is_count(MOST_BYTES) && is_count(isize::MAX as usize));
        assert!(!is_count(usize::MAX) && !is_count(1 << 63));
        assert!(is_range(4096, 100) && is_range(USER_END - 1, 1) && is_range(0, 0));
        assert!(!is_range(USER_END, 1) && !is_range(usize::MAX, 1) && !is_range(4096, usize::MAX));
        assert!(!is_range(1 << 62, 1 << 62));
        assert!(is_place(0, MOST_BYTES) && !is_place(usize::MAX, 0));
        assert!(!is_place(isize::MAX as usize, 1) && is_place(isize::MAX as usize - 1, 1));
    }

    #[test]
    fn a_range_is_not_copied_onto_itself() {
        assert!(is_onto_itself(0, 10, 20, 100) && is_onto_itself(10, 0, 20, 100));
        assert!(is_onto_itself(5, 5, 1, 100));
        assert!(!is_onto_itself(0, 20, 20, 100) && !is_onto_itself(20, 0, 20, 100));
        // No more than there is.
        assert!(!is_onto_itself(90, 0, 200, 100) && !is_onto_itself(200, 190, 20, 100));
    }

    #[test]
    fn an_offset_moves_on_where_the_call_has_one() {
        assert_eq!(offset_after(calls::PWRITEV2, usize::MAX, 7), None);
        assert_eq!(offset_after(calls::PWRITEV2, 3, 7), Some(10));
        assert_eq!(offset_after(calls::PWRITEV, 3, 7), Some(10));
        assert_eq!(offset_after(calls::PREAD64, 3, 7), Some(10));
        assert_eq!(offset_after(calls::WRITE_FILE, 3, 7), None);
    }
}
