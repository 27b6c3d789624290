//! Pictures of H.264 (RFC 6184, packetization mode 1): NAL units that fit go alone, others in parts
//! (FU-A), and parameter sets together (STAP-A).

use super::Payload;
use super::cut::{Cut, How, TYPE};

/// Units together in a packet (RFC 6184, 5.7.1).
pub(super) const STAP_A: u8 = 24;

/// A slice of a picture that all behind it begins anew with (ITU-T H.264, table 7-1).
const IDR: u8 = 5;

/// Why a sample is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A unit ends behind the sample.
    #[error("a unit of {unit} bytes, where {left} are left")]
    Unit {
        /// What its length says.
        unit: usize,
        /// What there is.
        left: usize,
    },
    /// Lengths of that many bytes there are none of.
    #[error("lengths of {0} bytes; 1, 2 or 4 there are")]
    Lengths(u8),
}

/// Gives the payloads of a sample, of at most so many bytes, to `each`. Lengths of units have as many
/// bytes as the clip says (ISO 14496-15: `lengthSizeMinusOne`).
///
/// # Errors
/// The sample is broken; what came before is given.
///
/// # Panics
/// If less than five bytes are to be in a payload.
pub fn payloads<'a>(
    sample: &'a [u8],
    length_size: u8,
    most: usize,
    mut each: impl FnMut(Payload<'a>),
) -> Result<(), Broken> {
    let size = u32::try_from(sample.len()).unwrap_or(u32::MAX);
    let mut cut = Cut::new(How::H264 { length_size }, size);
    while !cut.is_done() {
        let (at, len) = cut.wants(most);
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let bytes = sample.get(at..at + len).unwrap_or_default();
        if let Some(piece) = cut.next(bytes, most)? {
            each(piece.of(bytes));
        }
    }
    Ok(())
}

/// Parameter sets as one payload (STAP-A), for whoever comes in the middle; `None` where there are none,
/// or they do not fit.
#[must_use]
pub fn together(sets: &[&[u8]], most: usize) -> Option<Vec<u8>> {
    // As important as the most important of them (5.7).
    let importance = sets
        .iter()
        .filter_map(|set| set.first())
        .map(|first| first & 0x60)
        .max()?;
    let mut payload = vec![importance | STAP_A];
    for set in sets {
        payload.extend_from_slice(&u16::try_from(set.len()).ok()?.to_be_bytes());
        payload.extend_from_slice(set);
    }
    (payload.len() <= most).then_some(payload)
}

/// Whether nothing is predicted from a sample that begins with these bytes (`nal_ref_idc` is 0, RFC
/// 6184, 1.3), so that it may be left out; `None` where that cannot be seen in so few.
#[must_use]
pub fn is_disposable(beginning: &[u8], length_size: u8) -> Option<bool> {
    first_slice(beginning, length_size).map(|first| first & 0x60 == 0)
}

/// Whether nothing behind a sample that begins with these bytes is predicted from what is before it (an
/// IDR picture, ITU-T H.264, 7.4.1.2.4); `None` where that cannot be seen in so few.
#[must_use]
pub fn begins_anew(beginning: &[u8], length_size: u8) -> Option<bool> {
    first_slice(beginning, length_size).map(|first| first & TYPE == IDR)
}

/// The first byte of a picture's first slice.
fn first_slice(beginning: &[u8], length_size: u8) -> Option<u8> {
    // 1 to 5 are slices of a picture; the others say things about it.
    let is_slice = |[first]: [u8; 1]| matches!(first & TYPE, 1..=5);
    first_unit(beginning, length_size, is_slice).map(|[first]| first)
}

/// The header of the first unit of a sample that is wanted, of those that begin in these bytes.
pub(super) fn first_unit<const HEADER: usize>(
    beginning: &[u8],
    length_size: u8,
    is_wanted: impl Fn([u8; HEADER]) -> bool,
) -> Option<[u8; HEADER]> {
    let size = usize::from(length_size);
    if size == 0 {
        return None;
    }
    let mut rest = beginning;
    loop {
        let length = rest.get(..size)?;
        let length = length
            .iter()
            .fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte));
        let header = *rest.get(size..)?.first_chunk::<HEADER>()?;
        if length >= HEADER && is_wanted(header) {
            return Some(header);
        }
        rest = rest.get(size.checked_add(length)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::cut::{FU_A, START};
    use super::*;

    fn sample(units: &[Vec<u8>]) -> Vec<u8> {
        let one = |unit: &Vec<u8>| {
            let length = u32::try_from(unit.len()).expect("small").to_be_bytes();
            [&length[..], unit].concat()
        };
        units.iter().flat_map(one).collect()
    }

    /// As a receiver puts them together (RFC 6184, 5.8).
    fn units(payloads: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut units: Vec<Vec<u8>> = Vec::new();
        for payload in payloads {
            if payload[0] & TYPE != FU_A {
                units.push(payload.clone());
                continue;
            }
            if payload[1] & START != 0 {
                units.push(vec![(payload[0] & !TYPE) | (payload[1] & TYPE)]);
            }
            units.last_mut().expect("begun").extend(&payload[2..]);
        }
        units
    }

    proptest! {
        #[test]
        fn what_is_taken_apart_comes_together(
            units_in in prop::collection::vec((1_u8..24, prop::collection::vec(any::<u8>(), 0..4_000)), 1..8),
            most in 5_usize..1_500,
        ) {
            let units_in: Vec<Vec<u8>> = units_in
                .into_iter()
                .map(|(kind, body)| [&[0x60 | kind][..], &body].concat())
                .collect();
            let sample = sample(&units_in);
            let mut out = Vec::new();
            let mut lasts = Vec::new();
            payloads(&sample, 4, most, |payload| {
                assert!(payload.len() <= most);
                lasts.push(payload.is_last);
                out.push([payload.head(), payload.body].concat());
            })
            .expect("whole");
            prop_assert_eq!(units(&out), units_in);
            // The marker is on the last alone.
            prop_assert_eq!(lasts.iter().filter(|last| **last).count(), 1);
            prop_assert_eq!(lasts.last(), Some(&true));
        }

        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), size in 0_u8..9) {
            let _ = payloads(&bytes, size, 100, |payload| assert!(!payload.is_empty()));
        }
    }

    #[test]
    fn what_is_broken_is_said() {
        let told = |bytes: &[u8], size| payloads(bytes, size, 100, |_| ()).expect_err("broken");
        assert_eq!(
            told(&[0, 0, 0, 5, 1, 2], 4),
            Broken::Unit { unit: 5, left: 2 }
        );
        assert_eq!(told(&[0, 0], 4), Broken::Unit { unit: 4, left: 2 });
        assert_eq!(told(&[0, 0], 3), Broken::Lengths(3));
    }

    #[test]
    fn parameter_sets_go_together() {
        let (sps, pps) = ([0x67, 1, 2], [0x68, 3]);
        let payload = together(&[&sps, &pps], 1400).expect("they fit");
        assert_eq!(payload, [0x60 | STAP_A, 0, 3, 0x67, 1, 2, 0, 2, 0x68, 3]);
        assert_eq!(together(&[&sps, &pps], 9), None);
        assert_eq!(together(&[], 1400), None);
    }

    #[test]
    fn what_nothing_is_predicted_from_is_known_by_its_slices() {
        // Words about the picture, then a slice of each kind.
        let picture = |slice: u8| [&[0, 0, 0, 2, 6, 9][..], &[0, 0, 0, 3, slice, 1, 2]].concat();
        assert_eq!(is_disposable(&picture(0x01), 4), Some(true));
        assert_eq!(is_disposable(&picture(0x41), 4), Some(false));
        assert_eq!(is_disposable(&picture(0x65), 4), Some(false));
        assert_eq!(begins_anew(&picture(0x65), 4), Some(true));
        assert_eq!(begins_anew(&picture(0x61), 4), Some(false));
        assert_eq!(begins_anew(&picture(0x65)[..8], 4), None);
        assert_eq!(is_disposable(&picture(0x01)[..8], 4), None);
        assert_eq!(is_disposable(&[255; 9], 4), None);
    }
}
