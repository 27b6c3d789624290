//! Other ways from samples to payloads than the server's own.
//!
//! [`Cut`](super::Cut) cuts a sample where it is, and is what a server does by itself. A [`Packetiser`] is
//! given all of it, and makes payloads of any bytes.

use std::fmt;

use super::cut::{END, FU_A, START, TYPE};
use super::h264::{Broken, together};
use crate::clip::{Codec, Format};

/// A sample, as it is given to a packetiser.
#[derive(Clone, Copy, Debug)]
pub struct Whole<'a> {
    /// What it is a sample of.
    pub codec: &'a Codec,
    /// All of it, as it is in the clip: of H.264, units with their lengths before them.
    pub bytes: &'a [u8],
    /// Whether decoding can begin with it.
    pub is_sync: bool,
    /// Bytes that a payload may have.
    pub most: usize,
}

impl<'a> Whole<'a> {
    /// Parameter sets of H.264 that go before it, for whoever comes in the middle: none but before a
    /// sample that decoding can begin with. A server sends them itself only where it cuts itself.
    #[must_use]
    pub fn sets(&self) -> &'a [Vec<u8>] {
        match self.codec {
            Codec::H264 { sets, .. } if self.is_sync => sets,
            _ => &[],
        }
    }

    /// Its units of H.264, without their lengths and without empty ones; of another codec, none.
    ///
    /// # Errors
    /// The sample is broken.
    pub fn units(&self) -> Result<Vec<&'a [u8]>, Broken> {
        let Codec::H264 { length_size, .. } = self.codec else {
            return Ok(Vec::new());
        };
        if !matches!(length_size, 1 | 2 | 4) {
            return Err(Broken::Lengths(*length_size));
        }
        let (mut units, mut rest) = (Vec::new(), self.bytes);
        while !rest.is_empty() {
            let size = usize::from(*length_size);
            let (length, behind) = rest.split_at_checked(size).ok_or(Broken::Unit {
                unit: size,
                left: rest.len(),
            })?;
            let length = length
                .iter()
                .fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte));
            let (unit, behind) = behind.split_at_checked(length).ok_or(Broken::Unit {
                unit: length,
                left: behind.len(),
            })?;
            if !unit.is_empty() {
                units.push(unit);
            }
            rest = behind;
        }
        Ok(units)
    }
}

/// Payloads of a sample, in the order that they are sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payloads {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Payloads {
    /// One more, of these parts one after the other.
    pub fn push(&mut self, parts: &[&[u8]]) {
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.ends.push(self.bytes.len());
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of all of them.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of those before one of them.
    #[must_use]
    pub fn before(&self, index: usize) -> usize {
        match index.checked_sub(1) {
            None => 0,
            Some(last) => self.ends.get(last).copied().unwrap_or(self.bytes.len()),
        }
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        self.bytes.get(self.before(index)..end)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

/// From samples to payloads.
///
/// ```
/// use bonsai_media::clip::{Codec, Format};
/// use bonsai_media::packets::{Packetiser, Payloads, Whole};
///
/// /// Sound, a frame in a packet and nothing before it.
/// #[derive(Debug)]
/// struct Bare;
///
/// impl Packetiser for Bare {
///     fn takes(&self, codec: &Codec) -> bool {
///         matches!(codec, Codec::Aac { .. })
///     }
///
///     fn announce(&self, _: &Codec, format: &mut Format) {
///         format.encoding = format.encoding.replace("mpeg4-generic", "x-bare");
///     }
///
///     fn payloads(&self, sample: &Whole<'_>, payloads: &mut Payloads) -> Result<(), String> {
///         if sample.bytes.len() > sample.most {
///             return Err(format!("a frame of {} bytes", sample.bytes.len()));
///         }
///         payloads.push(&[sample.bytes]);
///         Ok(())
///     }
/// }
/// # let codec = Codec::Aac { config: vec![], channels: 2 };
/// # let sample = Whole { codec: &codec, bytes: &[1, 2, 3], is_sync: true, most: 1388 };
/// # let mut payloads = Payloads::default();
/// # assert!(Bare.takes(&codec));
/// # Bare.payloads(&sample, &mut payloads)?;
/// # assert_eq!(payloads.get(0), Some(&[1, 2, 3][..]));
/// # Ok::<(), String>(())
/// ```
pub trait Packetiser: fmt::Debug + Send + Sync {
    /// Whether it makes the payloads of such samples; those of others are made as without it.
    fn takes(&self, codec: &Codec) -> bool;

    /// Changes what is said of a track that it takes to what is sent: by default, nothing.
    fn announce(&self, codec: &Codec, format: &mut Format) {
        let _ = (codec, format);
    }

    /// Bytes that a payload may have; `None` for as many as an Ethernet carries.
    fn most(&self) -> Option<usize> {
        None
    }

    /// Makes the payloads of a sample, none of which is empty or has more than `sample.most` bytes. The
    /// last one is sent with the marker. Of a sample without payloads nothing is sent.
    ///
    /// # Errors
    /// What is wrong with it, in words: the stream ends.
    fn payloads(&self, sample: &Whole<'_>, payloads: &mut Payloads) -> Result<(), String>;
}

/// Pictures of H.264, a unit in each packet (RFC 6184, packetization mode 0), for receivers that know
/// no other. Units have to be small: of encoders that make them so (x264: `slice-max-size`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Single {
    /// Bytes that a payload may have.
    pub most: Option<usize>,
}

impl Packetiser for Single {
    fn takes(&self, codec: &Codec) -> bool {
        matches!(codec, Codec::H264 { .. })
    }

    fn announce(&self, _: &Codec, format: &mut Format) {
        let (one, none) = ("packetization-mode=1", "packetization-mode=0");
        format.parameters = format.parameters.replace(one, none);
    }

    fn most(&self) -> Option<usize> {
        self.most
    }

    fn payloads(&self, sample: &Whole<'_>, payloads: &mut Payloads) -> Result<(), String> {
        let units = sample.units().map_err(|broken| broken.to_string())?;
        let sets = sample.sets().iter().map(Vec::as_slice);
        for unit in sets.chain(units) {
            if unit.len() > sample.most {
                return Err(format!(
                    "a unit of {} bytes, where single sends up to {} and none in parts: the clip needs \
                     smaller ones (x264: slice-max-size={}), or another packetiser",
                    unit.len(),
                    sample.most,
                    sample.most
                ));
            }
            payloads.push(&[unit]);
        }
        Ok(())
    }
}

/// Pictures of H.264 in as few packets as can be: units that fit in one packet go together (STAP-A, RFC
/// 6184, 5.7.1), with the parameter sets before them, others in parts (FU-A).
#[derive(Clone, Copy, Debug, Default)]
pub struct Together {
    /// Bytes that a payload may have.
    pub most: Option<usize>,
}

impl Packetiser for Together {
    fn takes(&self, codec: &Codec) -> bool {
        matches!(codec, Codec::H264 { .. })
    }

    fn most(&self) -> Option<usize> {
        self.most
    }

    fn payloads(&self, sample: &Whole<'_>, payloads: &mut Payloads) -> Result<(), String> {
        let units = sample.units().map_err(|broken| broken.to_string())?;
        let sets = sample.sets().iter().map(Vec::as_slice);
        let (mut waiting, mut bytes) = (Vec::new(), 1);
        for unit in sets.chain(units) {
            let own = 2 + unit.len();
            if bytes + own > sample.most {
                flush(&mut waiting, sample.most, payloads);
                bytes = 1;
            }
            if unit.len() > sample.most {
                in_parts(unit, sample.most, payloads);
                continue;
            }
            waiting.push(unit);
            bytes += own;
        }
        flush(&mut waiting, sample.most, payloads);
        Ok(())
    }
}

/// Sends units that wait: one as it is, several together.
fn flush(waiting: &mut Vec<&[u8]>, most: usize, payloads: &mut Payloads) {
    match (&waiting[..], together(waiting, most)) {
        ([_, _, ..], Some(payload)) => payloads.push(&[&payload]),
        (units, _) => units.iter().for_each(|unit| payloads.push(&[unit])),
    }
    waiting.clear();
}

/// A unit in parts (RFC 6184, 5.8).
fn in_parts(unit: &[u8], most: usize, payloads: &mut Payloads) {
    let Some((first, body)) = unit.split_first() else {
        return;
    };
    let size = most.saturating_sub(2).max(1);
    let last = body.len().div_ceil(size).saturating_sub(1);
    for (index, part) in body.chunks(size).enumerate() {
        let mut header = first & TYPE;
        if index == 0 {
            header |= START;
        }
        if index == last {
            header |= END;
        }
        payloads.push(&[&[(first & !TYPE) | FU_A, header], part]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::h264::STAP_A;
    use super::*;

    fn codec(sets: &[&[u8]]) -> Codec {
        Codec::H264 {
            length_size: 4,
            profile: [100, 0, 30],
            sets: sets.iter().map(|set| set.to_vec()).collect(),
        }
    }

    fn sample(units: &[Vec<u8>]) -> Vec<u8> {
        let one = |unit: &Vec<u8>| {
            let length = u32::try_from(unit.len()).expect("small").to_be_bytes();
            [&length[..], unit].concat()
        };
        units.iter().flat_map(one).collect()
    }

    /// As a receiver takes them apart (RFC 6184, 5.7 and 5.8).
    fn units(payloads: &Payloads) -> Vec<Vec<u8>> {
        let mut units: Vec<Vec<u8>> = Vec::new();
        for payload in payloads.iter() {
            match payload[0] & TYPE {
                FU_A => {
                    if payload[1] & START != 0 {
                        units.push(vec![(payload[0] & !TYPE) | (payload[1] & TYPE)]);
                    }
                    units.last_mut().expect("begun").extend(&payload[2..]);
                }
                STAP_A => {
                    let mut rest = &payload[1..];
                    while let [high, low, behind @ ..] = rest {
                        let length = usize::from(u16::from_be_bytes([*high, *low]));
                        units.push(behind[..length].to_vec());
                        rest = &behind[length..];
                    }
                }
                _ => units.push(payload.to_vec()),
            }
        }
        units
    }

    proptest! {
        #[test]
        fn units_that_go_together_come_apart(
            units_in in prop::collection::vec((1_u8..24, prop::collection::vec(any::<u8>(), 0..600)), 1..12),
            most in 5_usize..1_500,
            is_sync in any::<bool>(),
        ) {
            let units_in: Vec<Vec<u8>> = units_in
                .into_iter()
                .map(|(kind, body)| [&[0x60 | kind][..], &body].concat())
                .collect();
            let (bytes, codec) = (sample(&units_in), codec(&[&[0x67, 1, 2], &[0x68, 3]]));
            let whole = Whole { codec: &codec, bytes: &bytes, is_sync, most };
            let mut payloads = Payloads::default();
            Together::default().payloads(&whole, &mut payloads).expect("whole");
            prop_assert!(payloads.iter().all(|payload| !payload.is_empty() && payload.len() <= most));
            let sets = whole.sets().iter().cloned();
            prop_assert_eq!(units(&payloads), sets.chain(units_in).collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_do_no_harm(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            length_size in 0_u8..9,
        ) {
            let codec = Codec::H264 { length_size, profile: [0; 3], sets: Vec::new() };
            let whole = Whole { codec: &codec, bytes: &bytes, is_sync: true, most: 100 };
            for packetiser in [&Single::default() as &dyn Packetiser, &Together::default()] {
                let mut payloads = Payloads::default();
                let _ = packetiser.payloads(&whole, &mut payloads);
                prop_assert!(payloads.iter().all(|payload| (1..=100).contains(&payload.len())));
            }
        }
    }

    #[test]
    fn small_units_are_one_packet() {
        let codec = codec(&[&[0x67, 1, 2], &[0x68, 3]]);
        let bytes = sample(&[vec![6, 9], vec![0x65; 50]]);
        let whole = Whole {
            codec: &codec,
            bytes: &bytes,
            is_sync: true,
            most: 1388,
        };
        let mut payloads = Payloads::default();
        let made = Together::default().payloads(&whole, &mut payloads);
        assert_eq!((made, payloads.len()), (Ok(()), 1));
        assert_eq!(payloads.get(0).map(|of| of[0]), Some(0x60 | STAP_A));
        assert_eq!(
            (payloads.before(1), payloads.get(1)),
            (payloads.bytes(), None)
        );
    }

    #[test]
    fn a_unit_that_is_too_large_to_go_alone_is_told() {
        let codec = codec(&[&[0x67, 1, 2], &[0x68, 3]]);
        let small = sample(&[vec![6, 9], vec![0x65; 100]]);
        let mut whole = Whole {
            codec: &codec,
            bytes: &small,
            is_sync: true,
            most: 100,
        };
        let mut payloads = Payloads::default();
        assert_eq!(Single::default().payloads(&whole, &mut payloads), Ok(()));
        let sizes: Vec<usize> = payloads.iter().map(<[u8]>::len).collect();
        assert_eq!(sizes, [3, 2, 2, 100]);
        let large = sample(&[vec![0x65; 101]]);
        whole.bytes = &large;
        let error = Single::default().payloads(&whole, &mut Payloads::default());
        let error = error.expect_err("too large");
        assert!(error.contains("a unit of 101 bytes"), "{error}");
        assert!(error.contains("slice-max-size=100"), "{error}");
    }

    #[test]
    fn what_is_said_is_what_is_sent() {
        let mut format = Format {
            encoding: "H264/90000".to_owned(),
            parameters: "packetization-mode=1;profile-level-id=64001E".to_owned(),
        };
        Together::default().announce(&codec(&[]), &mut format);
        assert!(format.parameters.starts_with("packetization-mode=1;"));
        Single::default().announce(&codec(&[]), &mut format);
        assert!(format.parameters.starts_with("packetization-mode=0;"));
    }
}
