//! Calls that the kernel refuses as a whole: a list that is none, a count below zero, an offset where there is none, a
//! descriptor that is not open for it. Which of several errors it is, depends on the kernel; so it is asked, with what is wrong as it
//! was, and with no memory of ours where there would be bytes.

use std::io;
use std::os::fd::AsRawFd as _;

use super::attempt::{Came, Ends, checked};
use super::local::NOWHERE;
use crate::enforce::amount;
use crate::enforce::memory::{self, word};

const SENDS: [u32; 2] = [46, 307];
const MESSAGES: [u32; 4] = [46, 47, 299, 307];

/// A list of vectors, as it was; `None` where it is no memory.
struct List(Option<Vec<libc::iovec>>);

impl List {
    fn read(tid: u32, at: u64, count: u64) -> io::Result<Self> {
        let is_empty = count == 0 || count > memory::MOST_SPANS as u64;
        let spans = match memory::listed(tid, at, if is_empty { 0 } else { count }) {
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                // The kernel looks at one after the other, and no further than at one that it refuses.
                let there = Self::beginning(tid, at, count);
                if there.iter().all(|span| amount::is_count(span.len)) {
                    return Ok(Self(None));
                }
                there
            }
            spans => spans?,
        };
        let vectors = spans.into_iter().map(|span| libc::iovec {
            iov_base: match amount::is_memory(span.at, span.len) {
                true => NOWHERE,
                false => std::ptr::without_provenance_mut(usize::try_from(span.at).unwrap_or(0)),
            },
            iov_len: usize::try_from(span.len).unwrap_or(usize::MAX),
        });
        Ok(Self(Some(vectors.collect())))
    }

    /// Those that can be read.
    fn beginning(tid: u32, at: u64, count: u64) -> Vec<memory::Span> {
        let list = memory::Span {
            at,
            len: 16 * count,
        };
        let there = memory::reachable(tid, &[list], 0, list.len).unwrap_or(0) / 16;
        memory::listed(tid, at, there).unwrap_or_default()
    }

    fn at(&self) -> *const libc::iovec {
        match &self.0 {
            Some(vectors) => vectors.as_ptr(),
            None => NOWHERE.cast(),
        }
    }
}

impl Ends<'_> {
    /// Makes the call so that the kernel refuses it for the same reason; if there is none any more, as nothing can be read
    /// or written.
    pub(super) fn refused(&self) -> io::Result<Came> {
        let (fd, a) = (self.fd.as_raw_fd(), &self.args);
        let call = |second: u64, third: u64, rest: [u64; 3]| {
            let nr = libc::c_long::from(self.nr);
            let made = self.as_program(|| {
                // SAFETY: what the kernel would read or write is no memory, or not by these arguments.
                let made =
                    unsafe { libc::syscall(nr, fd, second, third, rest[0], rest[1], rest[2]) };
                checked(isize::try_from(made).unwrap_or(-1))
            });
            made.map(Came::Bytes)
        };
        if MESSAGES.contains(&self.nr) {
            return self.refused_message();
        }
        match self.nr {
            0 | 1 => {
                let at = nowhere(a[1], a[2]);
                call(at, a[2], [0; 3])
            }
            44 | 45 => {
                let flags = a[3] | u64::from(libc::MSG_DONTWAIT.cast_unsigned());
                let len = a[2].min(amount::MOST);
                let name = if a[4] == 0 || a[5] == 0 {
                    0
                } else {
                    NOWHERE as u64
                };
                call(nowhere(a[1], len), a[2], [flags, name, a[5]])
            }
            _ => {
                let list = List::read(self.tid, a[1], a[2])?;
                let rest = match self.nr {
                    278 => [a[3] | u64::from(libc::SPLICE_F_NONBLOCK), 0, 0],
                    295 | 296 => [a[3], a[4], 0],
                    _ => [a[3], a[4], a[5]],
                };
                call(list.at() as u64, a[2], rest)
            }
        }
    }

    /// Reads a name, of at most [`NAME`] bytes; false where a part of it is no memory.
    fn reads_name(&self, at: u64, len: u32, name: &mut [u8; NAME]) -> io::Result<bool> {
        let len = usize::try_from(len).map_or(NAME, |len| len.min(NAME));
        let span = memory::Span {
            at,
            len: len as u64,
        };
        match memory::read(self.tid, &[span], 0, &mut name[..len]) {
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(false),
            got => Ok(got? == len),
        }
    }

    fn refused_message(&self) -> io::Result<Came> {
        let (fd, sends) = (self.fd.as_raw_fd(), SENDS.contains(&self.nr));
        let flags = self.args[if matches!(self.nr, 46 | 47) { 2 } else { 3 }];
        #[expect(clippy::cast_possible_truncation, reason = "the kernel takes 32 bits")]
        let flags = (flags as u32).cast_signed() | libc::MSG_DONTWAIT;
        let made = |header: *mut libc::msghdr| {
            self.as_program(|| {
                // SAFETY: the header lives during the call, or is no memory; what it points to is none.
                checked(unsafe {
                    match sends {
                        true => libc::sendmsg(fd, header, flags | libc::MSG_NOSIGNAL),
                        false => libc::recvmsg(fd, header, flags),
                    }
                })
            })
        };
        let header: [u8; 56] = match memory::read_exactly(self.tid, self.args[1]) {
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                return made(NOWHERE.cast()).map(Came::Bytes);
            }
            header => header?,
        };
        let list = List::read(self.tid, word(&header, 16), word(&header, 24))?;
        // SAFETY: plain numbers and null pointers.
        let mut copy: libc::msghdr = unsafe { std::mem::zeroed() };
        copy.msg_iov = list.at().cast_mut();
        copy.msg_iovlen = usize::try_from(word(&header, 24)).unwrap_or(usize::MAX);
        #[expect(clippy::cast_possible_truncation, reason = "the kernel takes 32 bits")]
        let name_len = word(&header, 8) as u32;
        // The kernel reads the name of a message that is sent before all else.
        let mut name = [0_u8; NAME];
        if word(&header, 0) != 0 {
            let is_there = sends && self.reads_name(word(&header, 0), name_len, &mut name)?;
            copy.msg_name = match is_there {
                true => name.as_mut_ptr().cast(),
                false => NOWHERE,
            };
            copy.msg_namelen = name_len;
        }
        if sends && word(&header, 40) != 0 {
            copy.msg_control = NOWHERE;
            copy.msg_controllen = usize::try_from(word(&header, 40)).unwrap_or(usize::MAX);
        }
        made(&raw mut copy).map(Came::Bytes)
    }
}

/// The most that the kernel reads of a name (`struct sockaddr_storage`).
const NAME: usize = 128;

/// Where a buffer is, if it is refused for that; otherwise nowhere.
fn nowhere(at: u64, len: u64) -> u64 {
    match amount::is_memory(at, len) {
        true => NOWHERE as u64,
        false => at,
    }
}
