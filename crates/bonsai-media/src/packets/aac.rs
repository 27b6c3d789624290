//! Sound of AAC (RFC 3640, mode AAC-hbr): several frames in a packet, one, or parts of one that is too
//! large.

use super::Payload;
use super::cut::{AAC_HEAD, AAC_LENGTH_BITS, Cut, How};

/// Frames that go together at most: 85 ms of sound at 48 kHz, which a player has to wait for at the most
/// where its sender does not have them before.
pub const TOGETHER: usize = 4;

/// What goes before frames that are sent together: the length of the headers, 16 bits, and a header each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    bytes: [u8; Self::MOST],
    len: usize,
}

impl Heads {
    /// The most bytes.
    pub const MOST: usize = 2 + 2 * TOGETHER;

    /// Of frames with so many bytes each; `None` where they are none, too many, or one is longer than its
    /// header can say.
    #[must_use]
    pub fn of(sizes: &[u32]) -> Option<Self> {
        if sizes.is_empty() || sizes.len() > TOGETHER {
            return None;
        }
        let mut bytes = [0; Self::MOST];
        let bits = u16::try_from(16 * sizes.len()).ok()?;
        bytes[..2].copy_from_slice(&bits.to_be_bytes());
        for (at, size) in bytes[2..].chunks_exact_mut(2).zip(sizes) {
            let size = u16::try_from(*size)
                .ok()
                .filter(|size| *size < 1 << AAC_LENGTH_BITS)?;
            // Each follows the one before it: the index, or how many are left out, is 0.
            at.copy_from_slice(&(size << 3).to_be_bytes());
        }
        Some(Self {
            bytes,
            len: 2 + 2 * sizes.len(),
        })
    }

    /// As they are sent.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Gives the payloads of a frame, of at most so many bytes, to `each`; of one that is longer than its
/// header can say, nothing.
///
/// # Panics
/// If a payload has no room for a byte of sound.
pub fn payloads<'a>(frame: &'a [u8], most: usize, mut each: impl FnMut(Payload<'a>)) {
    assert!(most > AAC_HEAD, "a part has a byte of the frame");
    let Ok(size) = u32::try_from(frame.len()) else {
        return;
    };
    let mut cut = Cut::new(How::Aac, size);
    for part in frame.chunks(most - AAC_HEAD) {
        if let Ok(Some(piece)) = cut.next(part, most) {
            each(piece.of(part));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_its_length_before_it() {
        let frame = vec![7; 700];
        for (most, parts) in [(1400, 1), (704, 1), (703, 2), (104, 7)] {
            let mut seen = Vec::new();
            payloads(&frame, most, |payload| {
                assert!(payload.len() <= most);
                assert_eq!(payload.head()[..2], [0, 16]);
                let header = u16::from_be_bytes([payload.head()[2], payload.head()[3]]);
                assert_eq!((header >> 3, header & 7), (700, 0));
                seen.push((payload.body.len(), payload.is_last));
            });
            assert_eq!(seen.len(), parts, "{most}");
            assert_eq!(seen.iter().map(|(length, _)| length).sum::<usize>(), 700);
            assert!(seen.iter().rev().skip(1).all(|(_, is_last)| !is_last));
            assert!(seen.last().expect("one").1);
        }
    }

    #[test]
    fn frames_that_go_together_have_a_header_each() {
        let heads = Heads::of(&[200, 8191, 1]).expect("three");
        let expected = [0, 48, 200 >> 5, (200 << 3) & 0xff, 0xff, 0xf8, 0, 8];
        assert_eq!(heads.bytes().len(), expected.len());
        for (byte, expected) in heads.bytes().iter().zip(expected) {
            assert_eq!(i32::from(*byte), expected);
        }
        for none in [&[][..], &[1, 1, 1, 1, 1], &[8192], &[u32::MAX]] {
            assert_eq!(Heads::of(none), None);
        }
    }

    #[test]
    fn what_is_no_frame_is_passed_over() {
        for length in [0, 1 << 13, 70_000] {
            payloads(&vec![0; length], 1400, |_| panic!("{length}"));
        }
    }
}
