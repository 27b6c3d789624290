//! A sample cut into payloads, one at a time.
//!
//! Whoever sends says where in the sample the next payload is and how many bytes may be in it, reads
//! those, and is told which of them go out. Nothing of a sample is kept from one payload to the next:
//! a server of thousands of streams reads each packet's bytes when the packet is due, and where a socket
//! takes no more, the cut of before is taken up again.

use super::h264::Broken;
use super::{Payload, h265};

/// The type of an H.264 unit, in its first byte (RFC 6184, 1.3).
pub(super) const TYPE: u8 = 0x1f;
/// A part of a unit (RFC 6184, 5.8).
pub(super) const FU_A: u8 = 28;
pub(super) const START: u8 = 0x80;
pub(super) const END: u8 = 0x40;

/// Bits of a length in a header of AAC (RFC 3640, 3.3.6).
pub(super) const AAC_LENGTH_BITS: u32 = 13;

/// Bytes before a frame of AAC: the length of the headers, 16 bits, and one header.
pub(super) const AAC_HEAD: usize = 4;

/// How a sample is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Pictures of H.264 (RFC 6184, packetization mode 1), whose units have their lengths before them.
    H264 {
        /// Bytes of such a length: 1, 2 or 4.
        length_size: u8,
    },
    /// Pictures of H.265 (RFC 7798), likewise.
    H265 {
        /// Bytes of such a length: 1, 2 or 4.
        length_size: u8,
    },
    /// A frame of AAC (RFC 3640, mode AAC-hbr).
    Aac,
    /// A frame of MPEG audio (RFC 2250, 3.5).
    Mpeg,
    /// A packet that is sent as it is (Opus, RFC 7587, 4.2).
    Whole,
}

impl How {
    /// Bytes of the lengths before units, of what has some.
    const fn length_size(self) -> Option<u8> {
        match self {
            Self::H264 { length_size } | Self::H265 { length_size } => Some(length_size),
            Self::Aac | Self::Mpeg | Self::Whole => None,
        }
    }
}

/// Bytes that are looked at behind a unit: where they end the sample and are all lengths of empty units, of which
/// nothing is sent, that unit is the last. A unit itself does not end with a byte of 0 (ITU-T H.264, 7.4.1).
const AHEAD: usize = 64;

/// The most bytes that are wanted for a payload of so many.
#[must_use]
pub const fn most_wanted(payload: usize) -> usize {
    4 + payload + AHEAD
}

/// A sample, as far as it is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    how: How,
    size: u32,
    at: u32,
    /// A unit in parts, of which some have gone out: its header, of which H.264 has one byte, and how much of
    /// it is left.
    unit: Option<([u8; 2], u32)>,
}

/// A payload: its own bytes, and which of the bytes that were read follow them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    head: [u8; 4],
    head_len: u8,
    /// Where its part of the sample begins, in the bytes that were given.
    pub start: usize,
    /// How many bytes that part has.
    pub len: usize,
    /// Whether it is the last of its sample (RFC 3550: the marker).
    pub is_last: bool,
}

impl Piece {
    fn new(head: &[u8], start: usize, len: usize, is_last: bool) -> Self {
        let mut own = [0; 4];
        own[..head.len()].copy_from_slice(head);
        Self {
            head: own,
            head_len: u8::try_from(head.len()).unwrap_or(4),
            start,
            len,
            is_last,
        }
    }

    /// A payload of so many bytes, as they are.
    #[must_use]
    pub fn bare(len: usize, is_last: bool) -> Self {
        Self::new(&[], 0, len, is_last)
    }

    /// What goes before the part of the sample.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        &self.head[..usize::from(self.head_len)]
    }

    /// The payload, of the bytes that the piece was cut from.
    pub(super) fn of<'a>(&self, bytes: &'a [u8]) -> Payload<'a> {
        let body = &bytes[self.start..self.start + self.len];
        Payload::new(self.head(), body, self.is_last)
    }
}

impl Cut {
    /// A sample of so many bytes. One that cannot be sent (of sound: longer than its header can say) is
    /// done at once.
    #[must_use]
    pub fn new(how: How, size: u32) -> Self {
        let is_none = match how {
            How::Aac => size >= 1 << AAC_LENGTH_BITS,
            How::Mpeg => size > u32::from(u16::MAX),
            How::H264 { .. } | How::H265 { .. } | How::Whole => false,
        };
        Self {
            how,
            size,
            at: if is_none { size } else { 0 },
            unit: None,
        }
    }

    /// Whether all of it has gone out.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.at >= self.size
    }

    /// Bytes of it that have gone out.
    #[must_use]
    pub const fn at(&self) -> u32 {
        self.at
    }

    /// Where in the sample the bytes for the next payload are, and how many, if one may have so many
    /// bytes as `most`.
    #[must_use]
    pub fn wants(&self, most: usize) -> (u32, usize) {
        let left = self.size.saturating_sub(self.at);
        let len = match (self.how.length_size(), self.unit) {
            (None, _) if self.how == How::Whole => most,
            (None, _) => most.saturating_sub(AAC_HEAD),
            (Some(_), Some((_, unit))) => {
                most.saturating_sub(self.part_head()).min(index(unit)) + AHEAD
            }
            (Some(length_size), None) => usize::from(length_size) + most + AHEAD,
        };
        (self.at, len.min(index(left)))
    }

    /// Cuts the next payload, of at most so many bytes, from those that were wanted. `None` where they
    /// hold nothing that is sent: then the next are wanted.
    ///
    /// # Errors
    /// The sample is broken, or ends before its end.
    ///
    /// # Panics
    /// If a payload has no room for a byte of the sample.
    pub fn next(&mut self, bytes: &[u8], most: usize) -> Result<Option<Piece>, Broken> {
        assert!(most > AAC_HEAD, "a part has a byte of the sample");
        let (_, wanted) = self.wants(most);
        let Some(bytes) = bytes.get(..wanted) else {
            return Err(Broken::Unit {
                unit: wanted,
                left: bytes.len(),
            });
        };
        if self.is_done() {
            return Ok(None);
        }
        match (self.how.length_size(), self.unit) {
            (None, _) => Ok(Some(self.sound(wanted))),
            (Some(_), Some((header, left))) => {
                Ok(Some(self.part(header, left, (bytes, 0), false, most)))
            }
            (Some(length_size), None) => self.unit(bytes, length_size, most),
        }
    }

    /// Bytes that a part of a unit begins with.
    const fn part_head(&self) -> usize {
        match self.how {
            How::H265 { .. } => 3,
            _ => 2,
        }
    }

    /// Passes over empty units that end the sample, if they do from there on.
    fn pass_over(&mut self, rest: &[u8]) {
        let is_all = index(self.size - self.at) == rest.len();
        if is_all && rest.iter().all(|byte| *byte == 0) {
            self.at = self.size;
        }
    }

    fn sound(&mut self, len: usize) -> Piece {
        let [_, _, from_high, from_low] = self.at.to_be_bytes();
        self.at += small(len);
        // Each part of AAC says how long the whole is (3.2.3.1), and has the index 0; of MPEG audio, where in
        // the whole it begins.
        let [_, _, high, low] = (self.size << 3).to_be_bytes();
        let head = match self.how {
            How::Aac => &[0, 16, high, low][..],
            How::Mpeg => &[0, 0, from_high, from_low],
            _ => &[],
        };
        Piece::new(head, 0, len, self.is_done())
    }

    fn unit(&mut self, bytes: &[u8], size: u8, most: usize) -> Result<Option<Piece>, Broken> {
        if !matches!(size, 1 | 2 | 4) {
            return Err(Broken::Lengths(size));
        }
        let start = usize::from(size);
        let Some(length) = bytes.get(..start) else {
            return Err(Broken::Unit {
                unit: start,
                left: bytes.len(),
            });
        };
        let length = length
            .iter()
            .fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte));
        let left = self.size - self.at - u32::from(size);
        if length > left {
            return Err(Broken::Unit {
                unit: index(length),
                left: index(left),
            });
        }
        let head = self.part_head() - 1;
        self.at += u32::from(size);
        if index(length) > most {
            // Its header is in the header of each part.
            let header = match self.how {
                How::H265 { .. } => [bytes[start], bytes[start + 1]],
                _ => [bytes[start], 0],
            };
            self.at += small(head);
            let left = length - small(head);
            return Ok(Some(self.part(
                header,
                left,
                (bytes, start + head),
                true,
                most,
            )));
        }
        self.at += length;
        self.pass_over(&bytes[start + index(length)..]);
        // An empty one is nothing that could be sent.
        Ok((length > 0).then(|| Piece::new(&[], start, index(length), self.is_done())))
    }

    /// The next part of a unit, of which so much is left; it begins at `start` in what was read.
    fn part(
        &mut self,
        header: [u8; 2],
        left: u32,
        (bytes, start): (&[u8], usize),
        is_first: bool,
        most: usize,
    ) -> Piece {
        let len = (most - self.part_head()).min(index(left));
        let rest = left - small(len);
        self.at += small(len);
        self.unit = (rest > 0).then_some((header, rest));
        let mut bits = 0;
        if is_first {
            bits |= START;
        }
        if rest == 0 {
            bits |= END;
            self.pass_over(&bytes[start + len..]);
        }
        let is_last = self.is_done();
        let first = header[0];
        match self.how {
            How::H265 { .. } => {
                let [one, other] = h265::header(header, h265::PART);
                let head = [one, other, h265::kind(first) | bits];
                Piece::new(&head, start, len, is_last)
            }
            _ => {
                let head = [(first & !TYPE) | FU_A, first & TYPE | bits];
                Piece::new(&head, start, len, is_last)
            }
        }
    }
}

fn index(of: u32) -> usize {
    usize::try_from(of).unwrap_or(usize::MAX)
}

fn small(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}
