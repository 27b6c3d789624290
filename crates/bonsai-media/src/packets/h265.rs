//! Pictures of H.265 (RFC 7798): units that fit go alone, others in parts, and parameter sets together.

use super::h264::first_unit;

/// The type of a unit, in its first byte (ITU-T H.265, 7.3.1.2).
const TYPE: u8 = 0x7e;

/// Units together in a packet, and a part of one (RFC 7798, 4.4.2 and 4.4.3).
const AGGREGATION: u8 = 48;
pub(super) const PART: u8 = 49;

/// The header of a unit that a packet begins with which is of another type: its layer and its temporal layer
/// stay what they are.
pub(super) const fn header(of: [u8; 2], kind: u8) -> [u8; 2] {
    [of[0] & !TYPE | kind << 1, of[1]]
}

pub(super) const fn kind(first: u8) -> u8 {
    (first & TYPE) >> 1
}

/// Parameter sets as one payload, for viewers that come in the middle; `None` where there are none, or they
/// do not fit.
#[must_use]
pub fn together(sets: &[&[u8]], most: usize) -> Option<Vec<u8>> {
    let first = sets.first()?.first_chunk::<2>()?;
    let mut payload = header(*first, AGGREGATION).to_vec();
    for set in sets {
        payload.extend_from_slice(&u16::try_from(set.len()).ok()?.to_be_bytes());
        payload.extend_from_slice(set);
    }
    (payload.len() <= most).then_some(payload)
}

/// Whether nothing is predicted from a sample that begins with these bytes: none of its own temporal layer (an
/// even type below 16, table 7-1), and that is the highest; `None` where that cannot be seen in so few.
#[must_use]
pub fn is_disposable(beginning: &[u8], length_size: u8, layers: u8) -> Option<bool> {
    let [first, second] = first_slice(beginning, length_size)?;
    let (kind, layer) = (kind(first), (second & 7).saturating_sub(1));
    Some(kind < 16 && kind.is_multiple_of(2) && layers > 0 && layer + 1 >= layers)
}

/// Whether nothing behind a sample that begins with these bytes is predicted from what is before it (IDR and
/// BLA pictures); `None` where that cannot be seen in so few.
#[must_use]
pub fn begins_anew(beginning: &[u8], length_size: u8) -> Option<bool> {
    let [first, _] = first_slice(beginning, length_size)?;
    Some(matches!(kind(first), 16..=20))
}

/// The header of a picture's first slice.
fn first_slice(beginning: &[u8], length_size: u8) -> Option<[u8; 2]> {
    // Below 32 are slices of a picture; the others say things about it.
    first_unit(beginning, length_size, |[first, _]| kind(first) < 32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::cut::{Cut, How};
    use super::*;

    fn sample(units: &[Vec<u8>]) -> Vec<u8> {
        let one = |unit: &Vec<u8>| {
            let length = u32::try_from(unit.len()).expect("small").to_be_bytes();
            [&length[..], unit].concat()
        };
        units.iter().flat_map(one).collect()
    }

    proptest! {
        /// As a receiver puts them together (RFC 7798, 4.4.3).
        #[test]
        fn what_is_taken_apart_comes_together(
            units_in in prop::collection::vec((0_u8..48, prop::collection::vec(1_u8.., 1..4_000)), 1..8),
            most in 6_usize..1_500,
            empty in 0_usize..4,
        ) {
            let units_in: Vec<Vec<u8>> = units_in
                .into_iter()
                .map(|(kind, body)| [&[kind << 1, 1][..], &body].concat())
                .collect();
            let mut sample = sample(&units_in);
            sample.resize(sample.len() + 4 * empty, 0);
            let size = u32::try_from(sample.len()).expect("small");
            let mut cut = Cut::new(How::H265 { length_size: 4 }, size);
            let (mut units, mut lasts): (Vec<Vec<u8>>, Vec<bool>) = Default::default();
            while !cut.is_done() {
                let (at, len) = cut.wants(most);
                let bytes = &sample[usize::try_from(at).expect("small")..][..len];
                let Some(piece) = cut.next(bytes, most).expect("whole") else {
                    continue;
                };
                let payload = [piece.head(), &bytes[piece.start..piece.start + piece.len]].concat();
                prop_assert!(payload.len() <= most);
                lasts.push(piece.is_last);
                if kind(payload[0]) != PART {
                    units.push(payload);
                    continue;
                }
                if payload[2] & 0x80 != 0 {
                    units.push(header([payload[0], payload[1]], payload[2] & 0x3f).to_vec());
                }
                units.last_mut().expect("begun").extend(&payload[3..]);
            }
            prop_assert_eq!(units, units_in);
            // The marker is on the last alone, whatever empty units follow it.
            prop_assert_eq!(lasts.iter().filter(|last| **last).count(), 1);
            prop_assert_eq!(lasts.last(), Some(&true));
        }

        #[test]
        fn any_bytes_are_seen_through_or_not(bytes in prop::collection::vec(any::<u8>(), 0..200), size in 0_u8..9) {
            let seen = is_disposable(&bytes, size, 1).is_some();
            prop_assert_eq!(seen, begins_anew(&bytes, size).is_some());
        }
    }

    #[test]
    fn parameter_sets_go_together() {
        let (video, sequence) = ([64, 1, 9], [66, 1, 8, 7]);
        let payload = together(&[&video, &sequence], 1400).expect("they fit");
        assert_eq!(payload, [96, 1, 0, 3, 64, 1, 9, 0, 4, 66, 1, 8, 7]);
        assert_eq!(together(&[&video, &sequence], 12), None);
        assert_eq!(together(&[], 1400), None);
    }

    #[test]
    fn pictures_are_known_by_their_slices() {
        // Words about the picture, then a slice of each kind, of the temporal layers 0 and 1.
        let picture = |kind: u8, layer: u8| {
            [
                &[0, 0, 0, 3, 78, 1, 9][..],
                &[0, 0, 0, 3, kind << 1, layer + 1, 2],
            ]
            .concat()
        };
        for (kind, layer, layers, disposable, anew) in [
            (0, 0, 1, true, false),
            (1, 0, 1, false, false),
            (0, 0, 2, false, false),
            (0, 1, 2, true, false),
            (0, 0, 0, false, false),
            (19, 0, 1, false, true),
            (21, 0, 1, false, false),
        ] {
            let picture = picture(kind, layer);
            assert_eq!(
                is_disposable(&picture, 4, layers),
                Some(disposable),
                "{kind}"
            );
            assert_eq!(begins_anew(&picture, 4), Some(anew), "{kind}");
            assert_eq!(begins_anew(&picture[..10], 4), None);
        }
    }
}
