//! Replies that go out with one call.

use super::budget::Buffer;
use super::link::Link;

/// Replies are sent once so many bytes of them are there. (More go with one call, but a client could begin.)
const TOGETHER: usize = 128 << 10;

/// Its memory is used again and again, so that it stays in the processor's cache.
pub(super) struct Batch {
    bytes: Buffer,
    /// Where the first reply begins.
    start: usize,
    used: usize,
}

/// The data of the first reply begins at a multiple of this: the kernel's copies take twice as long where it
/// begins 16 bytes behind the beginning of a page.
const ALIGNED: usize = 64;

impl Batch {
    /// For replies with headers of that size.
    pub(super) const fn new(bytes: Buffer, header: usize) -> Self {
        let start = ALIGNED - header % ALIGNED;
        Self {
            bytes,
            start,
            used: start,
        }
    }

    /// Whether a reply of so many bytes fits into an empty batch.
    pub(super) fn fits(&self, bytes: usize) -> bool {
        self.start + bytes <= self.bytes.len()
    }

    /// Memory for a reply of so many bytes, behind what is there; what is there is sent if both do not fit.
    pub(super) fn room(&mut self, link: &Link, bytes: usize) -> &mut [u8] {
        if self.bytes.len() - self.used < bytes {
            self.send(link);
        }
        let room = self.used..self.used + bytes;
        self.bytes.get_mut(room).unwrap_or_default()
    }

    /// So many bytes of the room are a reply.
    pub(super) fn advance(&mut self, link: &Link, bytes: usize) {
        self.used += bytes;
        if self.used - self.start >= TOGETHER {
            self.send(link);
        }
    }

    /// Adds a reply without much data.
    pub(super) fn with(&mut self, link: &Link, write: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::with_capacity(64);
        write(&mut out);
        self.room(link, out.len()).copy_from_slice(&out);
        self.advance(link, out.len());
    }

    pub(super) fn send(&mut self, link: &Link) {
        let used = self.start..std::mem::replace(&mut self.used, self.start);
        if let Some(bytes) = self.bytes.get(used).filter(|bytes| !bytes.is_empty()) {
            link.send(bytes);
        }
    }
}
