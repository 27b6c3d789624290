//! Codecs as browsers name them (RFC 6381, 3.3), and the sample descriptions that they take.

use core::fmt::Write as _;

use mp4_atom::{Atom as _, Esds};

use crate::clip::stored::{Media, Stored, child};

/// Bytes of a description before its boxes (ISO/IEC 14496-12, 12.1.3, 12.2.3).
const VISUAL: usize = 78;
const SOUND: usize = 28;

/// An esds of more bytes is none.
const MOST_ESDS: usize = 1024;

/// The name of a track's codec; empty where nothing sensible can be said.
pub(super) fn of(track: &Stored) -> String {
    let (kind, entry) = entry(track);
    let boxes = match track.media {
        Media::Video => entry.get(VISUAL..).unwrap_or_default(),
        Media::Audio => entry.get(SOUND..).unwrap_or_default(),
        Media::Text => return String::new(),
    };
    let plain = String::from_utf8_lossy(&kind).trim().to_owned();
    let named = match &kind {
        b"avc1" | b"avc3" => child(boxes, *b"avcC").and_then(|body| avc(&plain, body)),
        b"hvc1" | b"hev1" => child(boxes, *b"hvcC").and_then(|body| hevc(&plain, body)),
        b"vp09" => child(boxes, *b"vpcC").and_then(vp9),
        b"av01" => child(boxes, *b"av1C").and_then(av1),
        b"mp4a" => mpeg4(boxes),
        b"Opus" | b"fLaC" => Some(plain.to_ascii_lowercase()),
        b".mp3" => Some("mp3".to_owned()),
        _ => None,
    };
    let is_plain = !plain.is_empty()
        && plain
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-');
    named.unwrap_or(if is_plain { plain } else { String::new() })
}

fn avc(kind: &str, body: &[u8]) -> Option<String> {
    let [_, profile, constraints, level, ..] = body else {
        return None;
    };
    Some(format!("{kind}.{profile:02x}{constraints:02x}{level:02x}"))
}

/// ISO/IEC 14496-15, E.3.
fn hevc(kind: &str, body: &[u8]) -> Option<String> {
    let profile = *body.get(1)?;
    let compatible = u32::from_be_bytes(*body.get(2..)?.first_chunk()?).reverse_bits();
    let constraints = body.get(6..12)?;
    let level = *body.get(12)?;
    let space = ["", "A", "B", "C"][usize::from(profile >> 6)];
    let tier = if profile & 0x20 == 0 { 'L' } else { 'H' };
    let number = profile & 0x1f;
    let mut name = format!("{kind}.{space}{number}.{compatible:X}.{tier}{level}");
    let used = constraints.iter().rposition(|byte| *byte != 0);
    for byte in &constraints[..used.map_or(0, |last| last + 1)] {
        // Writing to memory does not fail.
        let _ = write!(name, ".{byte:X}");
    }
    Some(name)
}

/// VP codec ISO media file format binding, 1.0.
fn vp9(body: &[u8]) -> Option<String> {
    let [_, _, _, _, profile, level, depth, ..] = body else {
        return None;
    };
    Some(format!("vp09.{profile:02}.{level:02}.{:02}", depth >> 4))
}

/// AV1 codec ISO media file format binding, 5.
fn av1(body: &[u8]) -> Option<String> {
    let [_, first, second, ..] = body else {
        return None;
    };
    let tier = if second & 0x80 == 0 { 'M' } else { 'H' };
    let depth = match (second & 0x40 != 0, second & 0x20 != 0) {
        (false, _) => 8,
        (true, false) => 10,
        (true, true) => 12,
    };
    Some(format!(
        "av01.{}.{:02}{tier}.{depth:02}",
        first >> 5,
        first & 0x1f
    ))
}

fn mpeg4(boxes: &[u8]) -> Option<String> {
    let mut bytes = child(boxes, *b"esds").filter(|bytes| bytes.len() <= MOST_ESDS)?;
    let decoder = Esds::decode_body(&mut bytes).ok()?.es_desc.dec_config;
    let kind = decoder.object_type_indication;
    if kind != 0x40 {
        // MPEG-1 and MPEG-2 layers are object type 34 of MPEG-4, as browsers name them.
        return Some(match kind {
            0x69 | 0x6b => "mp4a.40.34".to_owned(),
            other => format!("mp4a.{other:02x}"),
        });
    }
    let config = decoder.dec_specific.map(|specific| specific.raw)?;
    let first = u16::from_be_bytes([*config.first()?, config.get(1).copied().unwrap_or(0)]);
    let object = match first >> 11 {
        31 => 32 + ((first >> 5) & 0x3f),
        object => object,
    };
    Some(format!("mp4a.40.{object}"))
}

/// The sample description that players take, and its kind. Parameter sets of `avc3` and `hev1` that are in the description,
/// too, make it `avc1` and `hvc1`, the only ones that some players know; sound of QuickTime loses what only that knows.
pub(super) fn entry(track: &Stored) -> ([u8; 4], Vec<u8>) {
    let visual = || track.entry.get(VISUAL..).unwrap_or_default();
    match &track.codec {
        b"avc3" if child(visual(), *b"avcC").is_some_and(has_sets_of_avc) => {
            (*b"avc1", track.entry.clone())
        }
        b"hev1" if child(visual(), *b"hvcC").is_some_and(has_sets_of_hevc) => {
            (*b"hvc1", track.entry.clone())
        }
        b"mp4a" => (track.codec, plain_sound(&track.entry)),
        kind => (*kind, track.entry.clone()),
    }
}

fn has_sets_of_avc(body: &[u8]) -> bool {
    body.get(5).is_some_and(|count| count & 0x1f > 0)
}

/// Arrays of sets of the video, of sequences and of pictures.
fn has_sets_of_hevc(body: &[u8]) -> bool {
    body.get(22).is_some_and(|arrays| *arrays >= 3)
}

/// A description of sound by QuickTime (versions 1 and 2) as one of ISO/IEC 14496-12.
fn plain_sound(entry: &[u8]) -> Vec<u8> {
    let more = match entry.get(8..10) {
        Some([0, 1]) => 16,
        Some([0, 2]) => 36,
        _ => return entry.to_vec(),
    };
    let boxes = entry.get(SOUND + more..).unwrap_or_default();
    let inner = child(boxes, *b"wave").unwrap_or(boxes);
    let Some(esds) = child(inner, *b"esds") else {
        return entry.to_vec();
    };
    let mut plain = entry[..SOUND].to_vec();
    // Version 0; two channels of 16 bits, as a description that is not believed says: the esds does.
    plain[8..16].fill(0);
    plain[16..20].copy_from_slice(&[0, 2, 0, 16]);
    plain[20..24].fill(0);
    let size = u32::try_from(esds.len() + 8).unwrap_or(u32::MAX);
    plain.extend_from_slice(&size.to_be_bytes());
    plain.extend_from_slice(b"esds");
    plain.extend_from_slice(esds);
    plain
}

/// Width and height of pictures, as they lie in the file.
pub(super) fn size(track: &Stored) -> Option<(u16, u16)> {
    let at = |from: usize| Some(u16::from_be_bytes(*track.entry.get(from..)?.first_chunk()?));
    match track.media {
        Media::Video => Some((at(24)?, at(26)?)),
        Media::Audio | Media::Text => None,
    }
}
