//! Boxes in boxes. The way down is walked here, and goes as deep as it is written: a reader that takes
//! apart whatever it finds goes as deep as a file says.

use super::{MOST_MOVIE, Unreadable};

/// The name of a box.
pub(super) type Kind = [u8; 4];

/// What an MP4 begins with (ISO/IEC 14496-12, 4.3; QuickTime's `wide`, `pnot` and no `ftyp`).
const FIRST: [Kind; 9] = [
    *b"ftyp", *b"styp", *b"moov", *b"mdat", *b"free", *b"skip", *b"wide", *b"pnot", *b"uuid",
];

/// A file has that many boxes beside each other at most until its movie is found; fragmented ones have
/// thousands, and the movie before them.
const MOST_BOXES: u32 = 4096;

/// Bytes of a header with a long length.
const HEADER: usize = 16;

/// Finds the movie box of a file, of which it asks for a header at a time.
#[derive(Clone, Copy, Debug)]
pub struct Finder {
    at: u64,
    length: u64,
    boxes: u32,
}

impl Finder {
    /// For a file of so many bytes.
    #[must_use]
    pub const fn new(length: u64) -> Self {
        Self {
            at: 0,
            length,
            boxes: 0,
        }
    }

    /// Where the next header is, and how many bytes to read of it.
    #[must_use]
    pub fn wants(&self) -> (u64, usize) {
        let left = self.length.saturating_sub(self.at);
        (
            self.at,
            usize::try_from(left).map_or(HEADER, |left| left.min(HEADER)),
        )
    }

    /// Takes the header; the movie's body, where it begins and how many bytes it has, once it is found.
    ///
    /// # Errors
    /// There is none, or the file is something else, or cut off.
    pub fn found(&mut self, header: &[u8]) -> Result<Option<(u64, usize)>, Unreadable> {
        if self.at >= self.length && self.boxes > 0 {
            return Err(Unreadable::NoMovie);
        }
        let read = read(header, self.length.saturating_sub(self.at));
        let is_known = read.is_some_and(|(kind, ..)| FIRST.contains(&kind));
        if self.boxes == 0 && !is_known {
            return Err(Unreadable::Foreign);
        }
        let Some((kind, head, size)) = read else {
            return Err(Unreadable::NoMovie);
        };
        let end = self.at.saturating_add(size);
        if end > self.length {
            return Err(Unreadable::Truncated {
                kind: String::from_utf8_lossy(&kind).escape_default().to_string(),
                end,
                length: self.length,
            });
        }
        if kind == *b"moov" {
            let body = size - head;
            return match usize::try_from(body) {
                Ok(bytes) if body <= MOST_MOVIE => Ok(Some((self.at + head, bytes))),
                _ => Err(Unreadable::LargeMovie(body)),
            };
        }
        self.boxes += 1;
        if self.boxes > MOST_BOXES {
            return Err(Unreadable::NoMovie);
        }
        self.at = end;
        Ok(None)
    }
}

/// The header of a box: its name, and bytes of the header and of the whole, where so many are left.
pub(super) fn read(bytes: &[u8], left: u64) -> Option<(Kind, u64, u64)> {
    let (size, rest) = bytes.split_first_chunk::<4>()?;
    let (kind, rest) = rest.split_first_chunk::<4>()?;
    let (head, size) = match u32::from_be_bytes(*size) {
        // To the end of what it is in.
        0 => (8, left),
        1 => (16, u64::from_be_bytes(*rest.first_chunk::<8>()?)),
        size => (8, u64::from(size)),
    };
    (size >= head).then_some((*kind, head, size))
}

/// The boxes in the body of one: names and bodies, up to the first that is broken, or to what is too
/// short for a header (QuickTime ends some with four bytes of zero).
pub(crate) fn children(body: &[u8]) -> impl Iterator<Item = (Kind, &[u8])> {
    let mut rest = body;
    std::iter::from_fn(move || {
        let left = u64::try_from(rest.len()).unwrap_or(u64::MAX);
        let (kind, head, size) = read(rest, left)?;
        let (head, size) = (usize::try_from(head).ok()?, usize::try_from(size).ok()?);
        let (this, after) = rest.split_at_checked(size)?;
        rest = after;
        Some((kind, &this[head..]))
    })
}

/// The first box of that name in the body of one.
pub(crate) fn child(body: &[u8], kind: Kind) -> Option<&[u8]> {
    children(body).find_map(|(this, body)| (this == kind).then_some(body))
}
