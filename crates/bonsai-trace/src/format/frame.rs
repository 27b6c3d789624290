//! The file's header, and frames: what is compressed and checked as one.

use std::io::Read;

use crate::Error;

pub(super) const MAGIC: [u8; 8] = *b"\x89BTR\r\n\x1a\n";
pub(super) const VERSION: u16 = 1;
/// The logarithm of the bytes of a block.
const BLOCK_BITS: u16 = 12;
pub(super) const FILE_HEADER: usize = 16;
pub(super) const HEADER: usize = 24;

/// A frame ends after that many requests.
pub(super) const REQUESTS: usize = 1 << 16;
/// And after that many contents of requests, fingerprints, or volumes.
pub(super) const CONTENTS: usize = 1 << 16;
/// No frame is larger, bytes: contents of the longest request, and all before it, at 5 bytes each,
/// and requests at 32 bytes. Volumes: their names.
pub(super) const MAX_RAW: usize = 16 << 20;

const RAW: u8 = 0;
const ZSTD: u8 = 1;

/// What is in a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Volumes = 1,
    Fingerprints = 2,
    Requests = 3,
    End = 4,
    Lost = 5,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        let all = [
            Self::Volumes,
            Self::Fingerprints,
            Self::Requests,
            Self::End,
            Self::Lost,
        ];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

pub(super) fn file_header() -> [u8; FILE_HEADER] {
    let mut header = [0; FILE_HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..10].copy_from_slice(&VERSION.to_le_bytes());
    header[10..12].copy_from_slice(&BLOCK_BITS.to_le_bytes());
    let sum = crc32fast::hash(&header[..12]);
    header[12..].copy_from_slice(&sum.to_le_bytes());
    header
}

/// Refuses what is no header of a file.
pub(super) fn check_file_header(header: &[u8; FILE_HEADER]) -> Result<(), Error> {
    if header[..8] != MAGIC {
        return Err(Error::NoTrace);
    }
    let damaged = |what| Error::Damaged {
        record: 0,
        offset: 0,
        what,
    };
    if crc32fast::hash(&header[..12]).to_le_bytes() != header[12..] {
        return Err(damaged("the checksum of the header is another"));
    }
    let found = u16::from_le_bytes([header[8], header[9]]);
    if found != VERSION {
        return Err(Error::Version {
            found,
            known: VERSION,
        });
    }
    if u16::from_le_bytes([header[10], header[11]]) != BLOCK_BITS {
        return Err(damaged("its blocks are not of 4096 bytes"));
    }
    Ok(())
}

/// Makes frames, one after the other.
pub(super) struct Sealer {
    number: u32,
    compressor: zstd::bulk::Compressor<'static>,
    packed: Vec<u8>,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Sealer {
    pub(super) fn new() -> Result<Self, Error> {
        Ok(Self {
            number: 0,
            // Level 1: 1.15 times the size of level 3, at more than twice its speed.
            compressor: zstd::bulk::Compressor::new(1)?,
            packed: Vec::new(),
        })
    }

    /// The header and the stored form of a frame. Digests are not worth compressing.
    pub(super) fn seal<'a>(
        &'a mut self,
        kind: Kind,
        records: usize,
        raw: &'a [u8],
    ) -> Result<([u8; HEADER], &'a [u8]), Error> {
        let mut stored = raw;
        let mut how = RAW;
        if kind == Kind::Requests {
            self.packed.clear();
            self.packed
                .reserve(zstd::zstd_safe::compress_bound(raw.len()));
            let size = self.compressor.compress_to_buffer(raw, &mut self.packed)?;
            if size < raw.len() {
                (stored, how) = (&self.packed, ZSTD);
            }
        }
        let mut header = [0; HEADER];
        header[0] = kind as u8;
        header[1] = how;
        for (at, n) in [(4, stored.len()), (8, raw.len()), (12, records)] {
            let n = u32::try_from(n).map_err(|_| Error::TooMany {
                what: "bytes in a frame",
                most: MAX_RAW as u64,
            })?;
            header[at..at + 4].copy_from_slice(&n.to_le_bytes());
        }
        header[16..20].copy_from_slice(&crc32fast::hash(stored).to_le_bytes());
        let sum = header_sum(self.number, &header);
        header[20..].copy_from_slice(&sum.to_le_bytes());
        self.number = self.number.wrapping_add(1);
        Ok((header, stored))
    }
}

/// Over the frame's number, too: a frame that is missing, doubled or moved is found.
fn header_sum(number: u32, header: &[u8; HEADER]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&number.to_le_bytes());
    sum.update(&header[..20]);
    sum.finalize()
}

/// A frame's header, as far as it matters to its reader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) records: usize,
}

/// Takes frames apart, one after the other.
pub(super) struct Opener {
    number: u32,
    decompressor: zstd::bulk::Decompressor<'static>,
    stored: Vec<u8>,
    /// What the last frame holds.
    pub(super) raw: Vec<u8>,
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// Why there is no next frame.
pub(super) enum Closed {
    /// It ends before its end.
    Short,
    /// It is not what was written.
    Damaged(&'static str),
    /// It cannot be read.
    Io(std::io::Error),
}

impl From<std::io::Error> for Closed {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::UnexpectedEof {
            Self::Short
        } else {
            Self::Io(error)
        }
    }
}

impl Opener {
    pub(super) fn new() -> Result<Self, Error> {
        Ok(Self {
            number: 0,
            decompressor: zstd::bulk::Decompressor::new()?,
            stored: Vec::new(),
            raw: Vec::new(),
        })
    }

    /// Reads a frame into [`Self::raw`], and says how many bytes it had in the file.
    pub(super) fn open(&mut self, from: &mut impl Read) -> Result<(Header, u64), Closed> {
        let mut header = [0; HEADER];
        from.read_exact(&mut header)?;
        let number = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        if header_sum(self.number, &header) != number(20) {
            return Err(Closed::Damaged(
                "the checksum of a frame's header is another",
            ));
        }
        let (stored, raw) = (number(4) as usize, number(8) as usize);
        let Some(kind) = Kind::of(header[0]).filter(|_| header[2..4] == [0, 0]) else {
            return Err(Closed::Damaged("there is no such kind of frame"));
        };
        if stored > MAX_RAW || raw > MAX_RAW {
            return Err(Closed::Damaged("a frame is too large"));
        }
        self.stored.resize(stored, 0);
        from.read_exact(&mut self.stored)?;
        if crc32fast::hash(&self.stored) != number(16) {
            return Err(Closed::Damaged("the checksum of a frame is another"));
        }
        match header[1] {
            RAW if stored == raw => std::mem::swap(&mut self.raw, &mut self.stored),
            ZSTD => {
                self.raw.clear();
                self.raw.reserve(raw);
                let size = self
                    .decompressor
                    .decompress_to_buffer(&self.stored, &mut self.raw);
                if size.ok() != Some(raw) {
                    return Err(Closed::Damaged("a frame cannot be decompressed"));
                }
            }
            _ => return Err(Closed::Damaged("a frame is packed in an unknown way")),
        }
        self.number = self.number.wrapping_add(1);
        let records = number(12) as usize;
        Ok((Header { kind, records }, (HEADER + stored) as u64))
    }
}
