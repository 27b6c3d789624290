//! What a track carries: its sample description (ISO/IEC 14496-12, 8.5.2; -14, 5.6; -15, 5.4).

use mp4_atom::{Atom, Avcc, Elst, Esds, Mdhd, Mvhd};

use super::boxes::{child, children};
use super::samples::{Room, decode, table};
use super::{Codec, LONGEST_S, Track};

/// Ticks a second of pictures in RTP (RFC 6184, 8.2.1).
const VIDEO_CLOCK: u32 = 90_000;

/// Bytes of an entry before its boxes: of pictures, and of sound.
const VISUAL: usize = 78;
const AUDIO: usize = 28;

/// An esds of more bytes is none. Its descriptors may be in each other, and are read as deep as they are.
const MOST_ESDS: usize = 1024;

/// MPEG-4 audio, of which AAC is one kind (ISO/IEC 14496-1, table 5).
const MPEG4_AUDIO: u8 = 0x40;

/// Sampling rates by their index (ISO/IEC 14496-3, table 1.18).
const RATES: [u32; 13] = [
    96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000,
    7_350,
];

/// A track box in a movie; `None` if it carries something else.
///
/// # Errors
/// What is wrong, in words.
pub(super) fn track(trak: &[u8], movie: &[u8], room: &mut Room) -> Result<Option<Track>, String> {
    let Some(media) = child(trak, *b"mdia") else {
        return Err("it has no mdia".to_owned());
    };
    let stbl = child(media, *b"minf").and_then(|minf| child(minf, *b"stbl"));
    let Some(stbl) = stbl else {
        return Err("it has no stbl".to_owned());
    };
    let Some((codec, rate)) = codec(stbl)? else {
        return Ok(None);
    };
    let header: Mdhd = decode(media, *b"mdhd")?;
    let timescale = header.timescale;
    if timescale == 0 {
        return Err("its clock has no ticks".to_owned());
    }
    let table = table(stbl, timescale, room)?;
    let bits = u128::from(table.bytes) * 8 * u128::from(timescale);
    let bits = bits.checked_div(u128::from(table.ticks)).unwrap_or(0);
    let clock_rate = match rate {
        // A file's clock that is the sound's own is exact.
        Some(_) if (7_350..=192_000).contains(&timescale) => timescale,
        Some(rate) => rate,
        None => VIDEO_CLOCK,
    };
    Ok(Some(Track {
        codec,
        clock_rate,
        bits_per_sec: u64::try_from(bits).unwrap_or(u64::MAX),
        timescale,
        shift: shift(trak, movie, timescale),
        samples: table.samples,
        end: table.ticks,
    }))
}

/// Where the clip begins in a track (8.6.6): after the time of its first edit, and later by what is empty
/// before that. An edit list that makes no sense is none.
fn shift(trak: &[u8], movie: &[u8], timescale: u32) -> i64 {
    let longest = LONGEST_S * u64::from(timescale);
    let edits = child(trak, *b"edts").and_then(|edts| decode::<Elst>(edts, *b"elst").ok());
    let movie: Option<Mvhd> = decode(movie, *b"mvhd").ok();
    let movie_scale = movie.map_or(0, |header| header.timescale);
    let mut empty = 0_u64;
    for edit in edits.iter().flat_map(|edits| &edits.entries) {
        match edit.media_time {
            Some(time) if time <= longest => {
                let later = u128::from(empty) * u128::from(timescale);
                let later = later.checked_div(u128::from(movie_scale)).unwrap_or(0);
                let later = u64::try_from(later).unwrap_or(u64::MAX).min(longest);
                return i64::try_from(later).unwrap_or(0) - i64::try_from(time).unwrap_or(0);
            }
            Some(_) => return 0,
            None => empty = empty.saturating_add(edit.segment_duration),
        }
    }
    0
}

/// The codec of a table box, and the rate of what is sound.
fn codec(stbl: &[u8]) -> Result<Option<(Codec, Option<u32>)>, String> {
    let description = child(stbl, *b"stsd").ok_or("it has no stsd")?;
    // Version, flags, and how many there are.
    let entries = description.get(8..).unwrap_or_default();
    let Some((kind, entry)) = children(entries).next() else {
        return Ok(None);
    };
    match &kind {
        b"avc1" | b"avc3" => {
            let boxes = entry.get(VISUAL..).unwrap_or_default();
            let read: Avcc = decode(boxes, *b"avcC")?;
            if !matches!(read.length_size, 1 | 2 | 4) {
                return Err(format!(
                    "its units have lengths of {} bytes",
                    read.length_size
                ));
            }
            let sets = read.sequence_parameter_sets.into_iter();
            let sets = sets.chain(read.picture_parameter_sets);
            let codec = Codec::H264 {
                length_size: read.length_size,
                profile: [
                    read.avc_profile_indication,
                    read.profile_compatibility,
                    read.avc_level_indication,
                ],
                sets: sets.filter(|set| !set.is_empty()).collect(),
            };
            Ok(Some((codec, None)))
        }
        b"mp4a" => sound(entry),
        _ => Ok(None),
    }
}

fn sound(entry: &[u8]) -> Result<Option<(Codec, Option<u32>)>, String> {
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
    if decoder.object_type_indication != MPEG4_AUDIO {
        // MPEG-1 sound, for one, is in mp4a as well.
        return Ok(None);
    }
    let config = decoder
        .dec_specific
        .map(|specific| specific.raw)
        .unwrap_or_default();
    let (rate, channels) = config_of(&config).ok_or("its AudioSpecificConfig is too short")?;
    Ok(Some((Codec::Aac { config, channels }, Some(rate))))
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
        let error = sound(&entry).expect_err("too deep");
        assert_eq!(error, "its esds has 700004 bytes");
    }
}
