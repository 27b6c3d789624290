//! Replies that go out with one call.

use super::Ended;
use super::link::Link;

/// Replies are sent once so many bytes of them are there. (More go with one call, but a client could begin.)
const TOGETHER: usize = 128 << 10;

/// Its memory is used again and again, so that it stays in the processor's cache.
pub(super) struct Batch {
    bytes: Vec<u8>,
    used: usize,
}

impl Batch {
    /// With room for one reply of that size.
    pub(super) fn new(largest: usize) -> Self {
        Self {
            bytes: vec![0; largest + TOGETHER],
            used: 0,
        }
    }

    pub(super) const fn room(&self) -> usize {
        self.bytes.len() - self.used
    }

    /// Memory behind what is there.
    pub(super) fn at(&mut self, skip: usize, length: usize) -> &mut [u8] {
        let start = self.used + skip;
        self.bytes
            .get_mut(start..start + length)
            .unwrap_or_default()
    }

    /// So many bytes more are there.
    pub(super) fn advance(&mut self, link: &Link, bytes: usize) -> Result<(), Ended> {
        self.used += bytes;
        match self.used >= TOGETHER {
            true => self.send(link),
            false => Ok(()),
        }
    }

    /// Adds a reply without much data.
    pub(super) fn with(
        &mut self,
        link: &Link,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Ended> {
        let mut out = Vec::with_capacity(64);
        write(&mut out);
        if self.room() < out.len() {
            self.send(link)?;
        }
        let into = self.at(0, out.len());
        into.copy_from_slice(&out);
        self.advance(link, out.len())
    }

    pub(super) fn send(&mut self, link: &Link) -> Result<(), Ended> {
        let used = std::mem::take(&mut self.used);
        match self.bytes.get(..used) {
            Some(bytes) if used > 0 => link.send(bytes),
            _ => Ok(()),
        }
    }
}
