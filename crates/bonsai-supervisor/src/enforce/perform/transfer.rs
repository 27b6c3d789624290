//! `sendfile`, `splice`, `tee` and `copy_file_range`, without waiting.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};

use bonsai_calls::whole;
use rustix::fs::FileType;

use super::attempt::{Came, Ends, checked, is_later, ready, would_wait};
use super::local::NOWHERE;
use crate::enforce::amount;
use crate::enforce::memory::{self, write_exactly};

impl Ends<'_> {
    /// Whether the kernel refuses a transfer before it waits for anything (`do_splice` in `fs/splice.c`, `do_sendfile` in
    /// `fs/read_write.c`).
    fn is_refused(&self, to: RawFd, at: [u64; 2], asked: u64) -> bool {
        let pipes = [self.kind, self.other_kind].map(|kind| kind == FileType::Fifo);
        if self.nr == 276 {
            return pipes != [true, true];
        }
        if self.nr != 275 {
            return !amount::is_count(asked);
        }
        let sockets = [self.kind, self.other_kind].map(|kind| kind == FileType::Socket);
        let no_place = |end: usize| at[end] != 0 && (pipes[end] || sockets[end]);
        let none = pipes == [false, false];
        let counted = pipes == [true, true] || amount::is_count(asked);
        none || no_place(0) || no_place(1) || !counted || !pipes[1] && is_append(to)
    }

    /// Whether `copy_file_range` copies a part of a file onto itself.
    fn is_onto_itself(&self, offsets: [Option<i64>; 2], asked: u64) -> bool {
        let Some(to) = self.other.filter(|_| self.nr == 326) else {
            return false;
        };
        let (Ok(from_stat), Ok(to_stat)) = (rustix::fs::fstat(self.fd), rustix::fs::fstat(to))
        else {
            return false;
        };
        if (from_stat.st_dev, from_stat.st_ino) != (to_stat.st_dev, to_stat.st_ino) {
            return false;
        }
        let number = |of: u64| usize::try_from(of).unwrap_or(usize::MAX);
        whole::is_onto_itself(
            number(start(self.fd, offsets[0])),
            number(start(to, offsets[1])),
            number(asked),
            number(from_stat.st_size.cast_unsigned()),
        )
    }

    /// Where a transfer begins in a file, if the call says so by memory that is there.
    fn offset(&self, at: u64) -> io::Result<Option<i64>> {
        match memory::read_exactly(self.tid, at) {
            _ if at == 0 => Ok(None),
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(None),
            offset => offset.map(i64::from_le_bytes).map(Some),
        }
    }

    /// `sendfile`, `splice`, `tee`, `copy_file_range`: from `fd` to `other`.
    pub(super) fn transfer(
        &self,
        at: [u64; 2],
        flags: u32,
        (len, asked): (u64, u64),
        denied: bool,
    ) -> io::Result<Came> {
        let from = self.fd.as_raw_fd();
        let to = self.other.map_or(-1, OwnedFd::as_raw_fd);
        let [first, second] = at.map(|at| self.offset(at));
        let before = [first?, second?];
        let [mut first, mut second] = before;
        let given = |at: u64, offset: &mut Option<i64>| match offset {
            None if at == 0 => std::ptr::null_mut(),
            None => NOWHERE.cast(),
            Some(offset) => std::ptr::from_mut(offset),
        };
        // Whatever the kernel refuses is for it to refuse; between pipes any length is one.
        let is_refused = denied
            || self.is_refused(to, at, asked)
            || self.is_onto_itself(before, asked)
            || overflows(self.fd, before[0], asked)
            || self.other.is_some_and(|to| overflows(to, before[1], asked));
        let mut len = usize::try_from(if is_refused { asked } else { len }).unwrap_or(0);
        // Pipes say so themselves; sockets would wait.
        // `sendfile` refuses files without a name of their own (eventfd, signalfd and the like: no `splice_write`).
        let sends = self.nr == 40 && self.other_kind != FileType::Unknown;
        let waits = (self.other_kind == FileType::Socket || sends) && !is_refused;
        if len > 0 && self.nr != 326 && waits && would_wait(to, libc::POLLOUT) {
            return Ok(Came::NotYet(to, libc::POLLOUT));
        }
        let receives = self.nr == 275 && self.kind == FileType::Socket && !is_refused;
        if len > 0 && receives && would_wait(from, libc::POLLIN) {
            return Ok(Came::NotYet(from, libc::POLLIN));
        }
        if let Some(to) = self.other
            && self.other_kind == FileType::RegularFile
            && !is_refused
        {
            len = self.room(to, before[1], len)?;
        }
        let moved = self.as_program(|| {
            // SAFETY: the offsets live during the calls.
            checked(unsafe {
                match self.nr {
                    40 => libc::sendfile(to, from, given(at[0], &mut first), len),
                    275 => libc::splice(
                        from,
                        given(at[0], &mut first),
                        to,
                        given(at[1], &mut second),
                        len,
                        flags | libc::SPLICE_F_NONBLOCK,
                    ),
                    276 => libc::tee(from, to, len, flags | libc::SPLICE_F_NONBLOCK),
                    _ => libc::copy_file_range(
                        from,
                        given(at[0], &mut first),
                        to,
                        given(at[1], &mut second),
                        len,
                        flags,
                    ),
                }
            })
        });
        let moved = match moved {
            Err(error) if is_later(&error) => {
                let empty = self.nr != 40 && !ready(from, libc::POLLIN);
                return Ok(if empty {
                    Came::NotYet(from, libc::POLLIN)
                } else {
                    Came::NotYet(to, libc::POLLOUT)
                });
            }
            moved => moved?,
        };
        for ((offset, before), at) in [first, second].into_iter().zip(before).zip(at) {
            if let Some(offset) = offset.filter(|_| offset != before) {
                write_exactly(self.tid, at, &offset.to_le_bytes())?;
            }
        }
        Ok(Came::Bytes(moved))
    }
}

/// Whether the end of a range is no offset.
fn overflows(fd: &OwnedFd, offset: Option<i64>, len: u64) -> bool {
    !amount::is_count(start(fd, offset).saturating_add(len))
}

/// Where a range begins: at the offset, or at the file's position, if it has one.
fn start(fd: &OwnedFd, offset: Option<i64>) -> u64 {
    let own = || rustix::fs::seek(fd, rustix::fs::SeekFrom::Current(0));
    offset.map_or_else(|| own().unwrap_or(0), i64::cast_unsigned)
}

fn is_append(fd: RawFd) -> bool {
    // SAFETY: a plain number.
    unsafe { libc::fcntl(fd, libc::F_GETFL) & libc::O_APPEND != 0 }
}
