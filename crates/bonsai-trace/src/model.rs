//! What a trace is made of: volumes, contents, requests, and their accesses to blocks.

use serde::{Deserialize, Serialize};

/// Bytes of a block, the unit of caches and of contents.
pub const BLOCK: u64 = 4096;

/// A request is of at most that many bytes: 1 GiB. Linux splits what is larger long before.
pub const MAX_LENGTH: u32 = 1 << 30;

/// A request ends at most there, bytes: 2^62, far beyond any device.
pub const MAX_END: u64 = 1 << 62;

/// What a request does.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Reads.
    Read = 0,
    /// Writes.
    Write = 1,
    /// Says that what is there is needed no longer.
    Trim = 2,
    /// Asks that all that was written is kept. It may have no length.
    Flush = 3,
}

impl Op {
    /// All of them, by their numbers in the file.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Trim, Self::Flush];

    /// Its name, in a word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Trim => "trim",
            Self::Flush => "flush",
        }
    }
}

/// What a block holds, by a digest of 128 bits: equal digests, equal bytes.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Digest(pub [u8; 16]);

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A device: addresses of different volumes have nothing to do with each other.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Volume {
    /// Its name: `vda`, or major and minor number, `8:0`.
    pub name: String,
    /// How large it is, bytes, where that is known.
    pub bytes: Option<u64>,
}

/// A request, as a device sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request<'a> {
    /// When it was issued, ns, from an instant of the trace's own. Traces of several processors are not
    /// always sorted.
    pub time_ns: u64,
    /// The volume's number in the table of volumes.
    pub volume: u32,
    /// Where it begins, bytes.
    pub offset: u64,
    /// How long it is, bytes; at most [`MAX_LENGTH`].
    pub length: u32,
    /// What it does.
    pub op: Op,
    /// What its blocks hold: numbers in the table of fingerprints, one for each block, or none. Only a
    /// request of whole blocks has any.
    pub contents: &'a [u32],
}

/// A request's part of one block: what a simulator of caches reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Access {
    /// When the request was issued, ns.
    pub time_ns: u64,
    /// The volume's number.
    pub volume: u32,
    /// The block's number on the volume: offset divided by [`BLOCK`].
    pub block: u64,
    /// What the block holds, where the trace says so and the request covers the block.
    pub content: Option<u32>,
    /// What is done.
    pub op: Op,
}

impl<'a> Request<'a> {
    /// Where it ends, bytes.
    pub const fn end(&self) -> u64 {
        self.offset + self.length as u64
    }

    /// Whether it begins and ends where blocks do.
    pub const fn is_aligned(&self) -> bool {
        self.offset.is_multiple_of(BLOCK) && (self.length as u64).is_multiple_of(BLOCK)
    }

    /// The blocks that it touches, in whole or in part, in rising order; a request without length
    /// touches none.
    pub const fn blocks(&self) -> std::ops::Range<u64> {
        let first = self.offset / BLOCK;
        if self.length == 0 {
            return first..first;
        }
        first..(self.end() - 1) / BLOCK + 1
    }

    /// Its accesses, one for each block of [`Self::blocks`]. A block that is touched in part is
    /// accessed like any other, and its content is not known.
    pub fn accesses(&self) -> impl Iterator<Item = Access> + use<'a> {
        let Self {
            time_ns,
            volume,
            op,
            contents,
            ..
        } = *self;
        self.blocks().enumerate().map(move |(n, block)| Access {
            time_ns,
            volume,
            block,
            content: contents.get(n).copied(),
            op,
        })
    }

    /// Why there can be no such request, if so.
    pub(crate) fn wrong(&self) -> Option<&'static str> {
        let blocks = u64::from(self.length) / BLOCK;
        if self.length > MAX_LENGTH {
            Some("it is longer than 1 GiB")
        } else if self.offset > MAX_END - u64::from(MAX_LENGTH) {
            Some("it begins beyond 2^62 bytes")
        } else if self.length == 0 && self.op != Op::Flush {
            Some("it has no length, which only a flush may")
        } else if self.contents.is_empty() {
            None
        } else if !self.is_aligned() || self.contents.len() as u64 != blocks {
            Some("it has contents, and not one for each of its blocks")
        } else {
            None
        }
    }
}

/// Where requests go: a file, a simulator, statistics.
pub trait Sink {
    /// The number of the volume of a name; a new one if it is new.
    ///
    /// # Errors
    /// There are too many of them, or what was before cannot be written.
    fn volume(&mut self, name: &str) -> Result<u32, crate::Error>;

    /// The number of a content; a new one if it is new. Numbers are given from 0, without gaps.
    ///
    /// # Errors
    /// There are too many of them, or what was before cannot be written.
    fn content(&mut self, digest: Digest) -> Result<u32, crate::Error>;

    /// The numbers of several contents, which are put behind `numbers`.
    ///
    /// # Errors
    /// As [`Sink::content`].
    fn contents(&mut self, digests: &[Digest], numbers: &mut Vec<u32>) -> Result<(), crate::Error> {
        for digest in digests {
            numbers.push(self.content(*digest)?);
        }
        Ok(())
    }

    /// Takes a request.
    ///
    /// # Errors
    /// It is no possible request, or cannot be written.
    fn request(&mut self, request: &Request<'_>) -> Result<(), crate::Error>;

    /// Takes that so many requests came here of which nothing more is known.
    ///
    /// # Errors
    /// It cannot be written.
    fn lost(&mut self, requests: u64) -> Result<(), crate::Error> {
        let _ = requests;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(offset: u64, length: u32) -> Request<'static> {
        Request {
            time_ns: 5,
            volume: 1,
            offset,
            length,
            op: Op::Write,
            contents: &[],
        }
    }

    #[test]
    fn every_block_that_is_touched_is_accessed() {
        for (offset, length, blocks) in [
            (0, 4096, 0..1),
            (4096, 8192, 1..3),
            (4095, 1, 0..1),
            (4095, 2, 0..2),
            (512, 4096, 0..2),
            (8192, 0, 2..2),
        ] {
            let found = request(offset, length);
            assert_eq!(found.blocks(), blocks, "{offset}+{length}");
            let accessed: Vec<u64> = found.accesses().map(|access| access.block).collect();
            assert_eq!(accessed, blocks.collect::<Vec<_>>());
        }
    }

    #[test]
    fn contents_belong_to_whole_blocks() {
        let with = |offset, length, contents| {
            Request {
                contents,
                ..request(offset, length)
            }
            .wrong()
        };
        assert_eq!(with(0, 8192, &[1, 2]), None);
        assert!(with(0, 8192, &[1]).is_some());
        assert!(with(512, 4096, &[1]).is_some());
        assert!(with(0, 4097, &[1]).is_some());
        let found = Request {
            contents: &[7, 9],
            ..request(4096, 8192)
        };
        let contents: Vec<_> = found.accesses().map(|access| access.content).collect();
        assert_eq!(contents, [Some(7), Some(9)]);
    }

    #[test]
    fn absurd_requests_are_none() {
        assert!(request(0, MAX_LENGTH + 1).wrong().is_some());
        assert!(request(u64::MAX, 1).wrong().is_some());
        assert!(request(0, 0).wrong().is_some());
        let flush = Request {
            op: Op::Flush,
            ..request(0, 0)
        };
        assert_eq!(flush.wrong(), None);
    }
}
