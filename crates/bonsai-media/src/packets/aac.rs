//! Sound of AAC (RFC 3640, mode AAC-hbr): a frame in each packet, or in parts where it is too large.

use super::Payload;
use super::cut::{AAC_HEAD, Cut, How};

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
    fn what_is_no_frame_is_passed_over() {
        for length in [0, 1 << 13, 70_000] {
            payloads(&vec![0; length], 1400, |_| panic!("{length}"));
        }
    }
}
