//! Pictures of H.264 (RFC 6184, packetization mode 1): NAL units that fit go alone, others in parts
//! (FU-A).

use super::Payload;

/// The type of a unit, in its first byte (RFC 6184, 1.3).
const TYPE: u8 = 0x1f;
const FU_A: u8 = 28;
const START: u8 = 0x80;
const END: u8 = 0x40;

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
/// If less than three bytes are to be in a payload.
pub fn payloads<'a>(
    sample: &'a [u8],
    length_size: u8,
    most: usize,
    mut each: impl FnMut(Payload<'a>),
) -> Result<(), Broken> {
    assert!(most > 2, "a part has a byte of the unit");
    let mut rest = sample;
    while !rest.is_empty() {
        let (unit, after) = unit(rest, length_size)?;
        rest = after;
        let is_last = rest.is_empty();
        if unit.len() <= most {
            // An empty one is nothing that could be sent.
            if !unit.is_empty() {
                each(Payload::new(&[], unit, is_last));
            }
            continue;
        }
        let (first, body) = (unit[0], &unit[1..]);
        let indicator = (first & !TYPE) | FU_A;
        let parts = body.chunks(most - 2);
        let count = parts.len();
        for (place, part) in parts.enumerate() {
            let mut header = first & TYPE;
            if place == 0 {
                header |= START;
            }
            if place + 1 == count {
                header |= END;
            }
            let ends = is_last && place + 1 == count;
            each(Payload::new(&[indicator, header], part, ends));
        }
    }
    Ok(())
}

/// The next unit, and what follows it.
fn unit(bytes: &[u8], length_size: u8) -> Result<(&[u8], &[u8]), Broken> {
    let size = usize::from(length_size);
    if !matches!(size, 1 | 2 | 4) {
        return Err(Broken::Lengths(length_size));
    }
    let Some((length, rest)) = bytes.split_at_checked(size) else {
        return Err(Broken::Unit {
            unit: size,
            left: bytes.len(),
        });
    };
    let length = length
        .iter()
        .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    rest.split_at_checked(length).ok_or(Broken::Unit {
        unit: length,
        left: rest.len(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
            most in 3_usize..1_500,
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
}
