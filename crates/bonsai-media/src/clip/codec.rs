//! What a track carries: its sample description (ISO/IEC 14496-12, 8.5.2; -14, 5.6; -15, 5.4).

mod pictures;
mod sound;

use mp4_atom::Mdhd;

use super::boxes::{Kind, child, children};
use super::edits;
use super::fragments::{self, Defaults, Fragment};
use super::samples::{Room, decode, table};
use super::{Codec, Track};

/// Ticks a second of pictures in RTP (RFC 6184, 8.2.1; RFC 7798, 7.1).
const VIDEO_CLOCK: u32 = 90_000;

/// What is read of a track.
pub(super) struct Read {
    pub(super) track: Track,
    /// What of it is not sent as it is, in words.
    pub(super) notes: Vec<String>,
}

/// What a track is said to be, whatever can be read of it.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) kind: &'static str,
    pub(super) codec: String,
}

/// What a track box is said to be; `None` where it is nothing that is seen or heard (time codes, hints, where a
/// camera was).
pub(super) fn name(trak: &[u8]) -> Option<Named> {
    let media = child(trak, *b"mdia").unwrap_or_default();
    let entry = entry(media);
    let kind = match (handler(media), entry) {
        (Some(kind), _) if &kind == b"vide" => "video",
        (Some(kind), _) if &kind == b"soun" => "audio",
        (Some(kind), _) if matches!(&kind, b"sbtl" | b"subt" | b"text" | b"clcp") => "subtitles",
        (Some(_), _) => return None,
        (None, Some((b"mp4a" | b"Opus" | b".mp3", _))) => "audio",
        (None, _) => "video",
    };
    let codec = entry.map_or_else(
        || "no codec".to_owned(),
        |(kind, _)| String::from_utf8_lossy(kind).escape_debug().to_string(),
    );
    Some(Named { kind, codec })
}

/// The type of a media box's handler (ISO/IEC 14496-12, 8.4.3).
fn handler(media: &[u8]) -> Option<Kind> {
    let body = child(media, *b"hdlr")?;
    body.get(8..12)?.try_into().ok()
}

/// The first sample description of a media box.
pub(super) fn entry(media: &[u8]) -> Option<(&Kind, &[u8])> {
    let stbl = child(child(media, *b"minf")?, *b"stbl")?;
    // Version, flags, and how many there are.
    let entries = child(stbl, *b"stsd")?.get(8..)?;
    let kind = entries.get(4..8)?.try_into().ok()?;
    children(entries).next().map(|(_, body)| (kind, body))
}

/// A track box in a movie, and its samples in those fragments, where the movie has some.
///
/// # Errors
/// Why it cannot be sent, in words.
pub(super) fn track(
    trak: &[u8],
    movie: &[u8],
    (fragments, defaults): (&[Fragment], Option<&Defaults>),
    room: &mut Room,
) -> Result<Read, String> {
    let media = child(trak, *b"mdia").ok_or("it has no mdia")?;
    let (kind, body) = entry(media).ok_or("it has no stsd")?;
    let (codec, clock_rate) = match kind {
        b"avc1" | b"avc3" => (pictures::h264(body)?, VIDEO_CLOCK),
        b"hvc1" | b"hev1" => (pictures::h265(body)?, VIDEO_CLOCK),
        b"mp4a" | b".mp3" | b"Opus" => sound::read(kind, body)?,
        b"encv" | b"enca" => return Err("it is encrypted".to_owned()),
        _ => return Err("this codec is not sent by RTP".to_owned()),
    };
    let is_video = codec.is_video();
    let film = samples(trak, movie, is_video, (fragments, defaults), room)?;
    let largest = film.edited.samples.iter().map(super::Sample::size).max();
    if let (Codec::Opus { .. }, Some(bytes)) = (&codec, largest)
        && bytes > MOST_OPUS
    {
        return Err(format!(
            "it has a packet of {bytes} bytes, of {MOST_OPUS} at most"
        ));
    }
    let mut notes = film.notes;
    let edited = film.edited;
    let matrix = track_header(trak).map(|(_, matrix)| matrix);
    if is_video {
        notes.extend(matrix.and_then(pictures::turned));
    }
    Ok(Read {
        track: Track {
            codec,
            clock_rate,
            bits_per_sec: film.bits_per_sec,
            timescale: edited.timescale,
            samples: edited.samples,
            end: edited.end,
        },
        notes,
    })
}

/// The samples of a track at the times of the film.
pub(super) struct FilmSamples {
    pub(super) edited: edits::Edited,
    /// Bits a second, on average.
    pub(super) bits_per_sec: u64,
    /// Parts of its tables that are not used as they are, in words.
    pub(super) notes: Vec<String>,
}

/// Puts the tables, the fragments and the edits of a track together, whatever its codec is.
///
/// # Errors
/// The part of its tables that is wrong, in words.
pub(super) fn samples(
    trak: &[u8],
    movie: &[u8],
    is_video: bool,
    (fragments, defaults): (&[Fragment], Option<&Defaults>),
    room: &mut Room,
) -> Result<FilmSamples, String> {
    let media = child(trak, *b"mdia").ok_or("it has no mdia")?;
    let stbl = child(media, *b"minf").and_then(|minf| child(minf, *b"stbl"));
    let stbl = stbl.ok_or("it has no stbl")?;
    let header: Mdhd = decode(media, *b"mdhd")?;
    let timescale = header.timescale;
    if timescale == 0 {
        return Err("its clock has no ticks".to_owned());
    }
    let mut notes = Vec::new();
    let mut table = table(stbl, timescale, room)?;
    if let Some(defaults) = defaults {
        let id = track_header(trak).ok_or("it has no tkhd")?.0;
        let of = (id, defaults);
        if fragments::append(fragments, of, timescale, room, &mut table)? {
            notes.push("the file ends before its last fragment does".to_owned());
        }
    }
    let bits = u128::from(table.bytes) * 8 * u128::from(timescale);
    let bits = bits.checked_div(u128::from(table.ticks)).unwrap_or(0);
    let edited = edits::apply(
        (trak, movie),
        (table, timescale),
        is_video,
        defaults.is_some(),
        super::MOST_SAMPLES,
    )?;
    notes.extend(edited.note.clone());
    Ok(FilmSamples {
        edited,
        bits_per_sec: u64::try_from(bits).unwrap_or(u64::MAX),
        notes,
    })
}

/// A packet of Opus is sent as it is, and cannot be divided: one of more bytes does not go by any Ethernet.
const MOST_OPUS: u32 = 1388;

/// A track's number, and its matrix (ISO/IEC 14496-12, 8.3.2).
fn track_header(trak: &[u8]) -> Option<(u32, [i32; 9])> {
    let body = child(trak, *b"tkhd")?;
    let wide = if body.first() == Some(&1) { 12 } else { 0 };
    let number = |at: usize| Some(u32::from_be_bytes(*body.get(at..)?.first_chunk()?));
    let id = number(if wide > 0 { 20 } else { 12 })?;
    let mut matrix = [0; 9];
    for (index, value) in matrix.iter_mut().enumerate() {
        *value = number(40 + wide + 4 * index).unwrap_or(0).cast_signed();
    }
    Some((id, matrix))
}
