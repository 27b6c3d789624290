//! Replies of the transmission phase, as bytes.

use super::wire::{self, BASE_ALLOCATION_ID, chunk};
use super::{Errno, Session};

/// A part of an export, and whether there is data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Extent {
    /// In bytes.
    pub length: u32,
    /// Nothing is allocated, and what is read is zero.
    pub hole: bool,
}

/// Writes replies as a session wants them.
#[derive(Clone, Copy, Debug)]
pub struct Replies {
    structured: bool,
}

impl Replies {
    /// For that session.
    #[must_use]
    pub const fn of(session: &Session) -> Self {
        Self {
            structured: session.structured,
        }
    }

    /// Whether reads can be answered in parts.
    #[must_use]
    pub const fn is_structured(self) -> bool {
        self.structured
    }

    /// The bytes that stand before the data of a read that is answered in one.
    #[must_use]
    pub const fn read_header_bytes(self) -> usize {
        if self.structured { 28 } else { 16 }
    }

    /// What stands before the data of a read that is answered in one. `into` has
    /// [`Self::read_header_bytes`]; of a longer one the rest is left alone.
    pub fn read_header(self, cookie: u64, offset: u64, length: u32, into: &mut [u8]) {
        let mut header = Vec::with_capacity(28);
        if self.structured {
            chunk_header(
                &mut header,
                chunk::DONE,
                chunk::OFFSET_DATA,
                cookie,
                length + 8,
            );
            header.extend_from_slice(&offset.to_be_bytes());
        } else {
            simple(&mut header, 0, cookie);
        }
        for (to, from) in into.iter_mut().zip(header) {
            *to = from;
        }
    }

    /// A read of nothing.
    pub fn read_nothing(self, cookie: u64, out: &mut Vec<u8>) {
        if self.structured {
            chunk_header(out, chunk::DONE, chunk::NONE, cookie, 0);
        } else {
            simple(out, 0, cookie);
        }
    }

    /// A part of a read that is not the last: what stands before its data.
    pub fn data_chunk(self, cookie: u64, offset: u64, length: u32, last: bool, out: &mut Vec<u8>) {
        let done = if last { chunk::DONE } else { 0 };
        chunk_header(out, done, chunk::OFFSET_DATA, cookie, length + 8);
        out.extend_from_slice(&offset.to_be_bytes());
    }

    /// A part of a read that is zero.
    pub fn hole_chunk(self, cookie: u64, offset: u64, length: u32, last: bool, out: &mut Vec<u8>) {
        let done = if last { chunk::DONE } else { 0 };
        chunk_header(out, done, chunk::OFFSET_HOLE, cookie, 12);
        out.extend_from_slice(&offset.to_be_bytes());
        out.extend_from_slice(&length.to_be_bytes());
    }

    /// Something without data is done.
    pub fn done(self, cookie: u64, out: &mut Vec<u8>) {
        simple(out, 0, cookie);
    }

    /// Something failed. `chunked` where the request's replies have to be chunks: reads and
    /// block status, once structured replies have been agreed on.
    pub fn failed(self, cookie: u64, error: Errno, chunked: bool, out: &mut Vec<u8>) {
        if self.structured && chunked {
            chunk_header(out, chunk::DONE, chunk::ERROR, cookie, 6);
            out.extend_from_slice(&error.number().to_be_bytes());
            out.extend_from_slice(&0u16.to_be_bytes());
        } else {
            simple(out, error.number(), cookie);
        }
    }

    /// Where there is data, in the order of offsets.
    pub fn extents(self, cookie: u64, extents: &[Extent], out: &mut Vec<u8>) {
        let count = u32::try_from(extents.len()).unwrap_or(u32::MAX / 8 - 1);
        chunk_header(out, chunk::DONE, chunk::BLOCK_STATUS, cookie, 4 + 8 * count);
        out.extend_from_slice(&BASE_ALLOCATION_ID.to_be_bytes());
        for extent in extents.iter().take(count as usize) {
            out.extend_from_slice(&extent.length.to_be_bytes());
            // NBD_STATE_HOLE and NBD_STATE_ZERO.
            let state: u32 = if extent.hole { 3 } else { 0 };
            out.extend_from_slice(&state.to_be_bytes());
        }
    }
}

fn simple(out: &mut Vec<u8>, error: u32, cookie: u64) {
    out.extend_from_slice(&wire::SIMPLE_REPLY.to_be_bytes());
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
}

fn chunk_header(out: &mut Vec<u8>, flags: u16, kind: u16, cookie: u64, length: u32) {
    out.extend_from_slice(&wire::STRUCTURED_REPLY.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
}
