//! Sound: AAC, MPEG audio and Opus.

use mp4_atom::{Atom, Dops, Esds};

use super::super::Codec;
use super::super::boxes::{Kind, child};
use super::super::samples::decode;

/// Bytes of an entry before its boxes.
const AUDIO: usize = 28;

/// An esds of more bytes is none. Its descriptors may be in each other, and are read as deep as they are.
const MOST_ESDS: usize = 1024;

/// MPEG-4 audio, of which AAC is one kind, and the layers of MPEG-2 and MPEG-1 (ISO/IEC 14496-1, table 5).
const MPEG4_AUDIO: u8 = 0x40;
const MPEG_AUDIO: [u8; 2] = [0x69, 0x6b];

/// Ticks a second of MPEG audio in RTP (RFC 2250, 2), and of Opus (RFC 7587, 4.1), whatever their rates are.
const MPEG_CLOCK: u32 = 90_000;
const OPUS_CLOCK: u32 = 48_000;

/// Sampling rates by their index (ISO/IEC 14496-3, table 1.18).
const RATES: [u32; 13] = [
    96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000,
    7_350,
];

/// The codec of an entry, and its clock in RTP, which is the codec's, whatever clock the file has.
pub(super) fn read(kind: &Kind, entry: &[u8]) -> Result<(Codec, u32), String> {
    match kind {
        b"Opus" => opus(entry),
        b".mp3" => Ok((Codec::Mpeg, MPEG_CLOCK)),
        _ => mpeg4(entry),
    }
}

fn opus(entry: &[u8]) -> Result<(Codec, u32), String> {
    let boxes = entry.get(AUDIO..).unwrap_or_default();
    let read: Dops = decode(boxes, *b"dOps")?;
    if read.channel_mapping.is_some() || read.output_channel_count > 2 {
        // RFC 7587 has packets of one stream: mono or stereo.
        let channels = read.output_channel_count;
        return Err(format!("Opus of {channels} channels is not sent by RTP"));
    }
    let codec = Codec::Opus {
        channels: read.output_channel_count,
    };
    Ok((codec, OPUS_CLOCK))
}

fn mpeg4(entry: &[u8]) -> Result<(Codec, u32), String> {
    // QuickTime has longer entries, by their version, and puts what follows into a box.
    let more = match entry.get(8..10) {
        Some([0, 1]) => 16,
        Some([0, 2]) => 36,
        _ => 0,
    };
    let boxes = entry.get(AUDIO + more..).unwrap_or_default();
    let inner = child(boxes, *b"wave").unwrap_or(boxes);
    let mut bytes = child(inner, *b"esds").ok_or("its sound has no esds")?;
    if bytes.len() > MOST_ESDS {
        return Err(format!("its esds has {} bytes", bytes.len()));
    }
    let esds = Esds::decode_body(&mut bytes).map_err(|error| format!("its esds: {error}"))?;
    let decoder = esds.es_desc.dec_config;
    match decoder.object_type_indication {
        MPEG4_AUDIO => {}
        kind if MPEG_AUDIO.contains(&kind) => return Ok((Codec::Mpeg, MPEG_CLOCK)),
        kind => return Err(format!("sound of type {kind:#04x} is not sent by RTP")),
    }
    let config = decoder
        .dec_specific
        .map(|specific| specific.raw)
        .unwrap_or_default();
    let (rate, channels) = config_of(&config).ok_or("its AudioSpecificConfig is too short")?;
    Ok((Codec::Aac { config, channels }, rate))
}

/// Rate and channels of an AudioSpecificConfig.
fn config_of(config: &[u8]) -> Option<(u32, u8)> {
    let bytes = config
        .iter()
        .take(8)
        .fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    let bits = 8 * config.len().min(8);
    let mut at = 0;
    let mut take = |count: usize| {
        at += count;
        (at <= bits).then(|| (bytes >> (bits - at)) & ((1 << count) - 1))
    };
    if take(5)? == 31 {
        take(6)?;
    }
    let rate = match take(4)? {
        15 => u32::try_from(take(24)?).ok().filter(|rate| *rate > 0)?,
        index => *RATES.get(usize::try_from(index).ok()?)?,
    };
    let channels = match take(4)? {
        7 => 8,
        channels => u8::try_from(channels).ok()?,
    };
    Some((rate, channels))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_channels_are_read() {
        for (config, expected) in [
            (&[0x11, 0x90][..], Some((48_000, 2))),
            (&[0x12, 0x08], Some((44_100, 1))),
            // A rate of its own: 50,000.
            (&[0x17, 0x80, 0x61, 0xa8, 0x10], Some((50_000, 2))),
            // Seven channels are eight.
            (&[0x11, 0xb8], Some((48_000, 8))),
            (&[0x11], None),
            (&[], None),
            (&[0x17, 0x80, 0, 0, 0x10], None),
        ] {
            assert_eq!(config_of(config), expected, "{config:?}");
        }
    }

    #[test]
    fn descriptors_in_descriptors_are_not_followed() {
        // Each says that another follows in it, as deep as there are bytes.
        let deep = [&[0; 4][..], &[3, 0xff, 0xff, 0x7f, 0, 1, 0].repeat(100_000)].concat();
        let size = u32::try_from(deep.len() + 8).expect("small").to_be_bytes();
        let entry = [&[0; AUDIO][..], &size, b"esds", &deep].concat();
        let error = mpeg4(&entry).expect_err("too deep");
        assert_eq!(error, "its esds has 700004 bytes");
    }
}
