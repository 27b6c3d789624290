//! Our memory in the place of a program's.

use std::io;

use crate::enforce::memory::{self, Span};

/// Our memory that stands for what a program named, and how much of that is no memory there.
///
/// As vectors, what is missing there is missing here: what comes of that depends on the file, and the kernel knows.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) bytes: Aligned,
    pub(super) missing: usize,
}

/// Nothing is ever mapped there (`vm.mmap_min_addr`).
pub(super) const NOWHERE: *mut libc::c_void = std::ptr::without_provenance_mut(1);

impl Local {
    /// At most `len` bytes of what is to be written, `done` bytes further on.
    pub(super) fn copied(tid: u32, spans: &[Span], done: u64, len: u64) -> io::Result<Self> {
        let mut bytes = buffer(len);
        let got = match memory::read(tid, spans, done, &mut bytes) {
            _ if len == 0 => 0,
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => 0,
            got => got?,
        };
        let missing = bytes.len() - got;
        bytes.truncate(got);
        Ok(Self { bytes, missing })
    }

    /// Room for at most `len` bytes that are to go there: what is no memory is none here, so that nothing comes that has no
    /// place.
    pub(super) fn room(tid: u32, spans: &[Span], done: u64, len: u64) -> io::Result<Self> {
        let there = memory::reachable(tid, spans, done, len)?;
        Ok(Self {
            bytes: buffer(there),
            missing: usize::try_from(len - there).unwrap_or(0),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() + self.missing
    }

    /// At most so many bytes, `done` bytes further on, to be read alone.
    pub(super) fn vectors(&self, done: usize, most: usize) -> ([libc::iovec; 2], i32) {
        let there = self.bytes.get(done..).unwrap_or_default();
        let len = there.len().min(most);
        two(there.as_ptr().cast_mut(), len, self.missing.min(most - len))
    }

    /// The list as it was, for files that take one vector after the other.
    pub(super) fn by_spans(&self, spans: &[Span]) -> Vec<libc::iovec> {
        let mut rest = &self.bytes[..];
        let vector = |span: &Span| {
            let len = usize::try_from(span.len).unwrap_or(usize::MAX);
            let at = match rest.split_at_checked(len) {
                Some((bytes, behind)) => {
                    rest = behind;
                    bytes.as_ptr().cast_mut().cast()
                }
                None => {
                    rest = &[];
                    NOWHERE
                }
            };
            libc::iovec {
                iov_base: at,
                iov_len: len,
            }
        };
        spans.iter().map(vector).collect()
    }

    pub(super) fn vectors_mut(&mut self) -> ([libc::iovec; 2], i32) {
        two(self.bytes.as_mut_ptr(), self.bytes.len(), self.missing)
    }
}

fn two(at: *mut u8, len: usize, missing: usize) -> ([libc::iovec; 2], i32) {
    let vector = |iov_base, iov_len| libc::iovec { iov_base, iov_len };
    let vectors = [vector(at.cast(), len), vector(NOWHERE, missing)];
    (vectors, if missing == 0 { 1 } else { 2 })
}

fn buffer(len: u64) -> Aligned {
    Aligned::new(usize::try_from(len).unwrap_or(0))
}

/// Bytes from the beginning of a page on, as direct I/O wants them (open(2), `O_DIRECT`).
#[derive(Debug)]
pub(super) struct Aligned {
    all: Vec<u8>,
    start: usize,
}

const PAGE: usize = 4096;

impl Aligned {
    fn new(len: usize) -> Self {
        // Short ones are no direct I/O.
        let spare = if len < 512 { 0 } else { PAGE - 1 };
        let mut all = vec![0; len + spare];
        let start = match spare {
            0 => 0,
            _ => (all.as_ptr() as usize).next_multiple_of(PAGE) - all.as_ptr() as usize,
        };
        all.truncate(start + len);
        Self { all, start }
    }

    fn truncate(&mut self, len: usize) {
        self.all.truncate(self.start + len);
    }
}

impl std::ops::Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.all[self.start..]
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.all[self.start..]
    }
}
