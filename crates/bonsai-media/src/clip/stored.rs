//! Tracks as they lie in a file, whatever their codec is: for HLS, which carries what a browser can decode.
//!
//! [`Clip`](super::Clip) has the tracks that RTP carries; here is the sample description of each track as bytes, and all tracks
//! of sound and text.

pub(crate) use super::boxes::child;
use super::boxes::children;
use super::codec::{self, samples};
use super::fragments::{Defaults, Fragment};
use super::samples::{Room, Sample};
use super::{LeftOut, MOST_SAMPLES, MOST_TOLD, Unreadable};

/// Tracks of a file that are looked at: films have a dozen languages at most.
const MOST_TRACKS: usize = 64;

/// A sample description of more bytes is none.
const MOST_ENTRY: usize = 1 << 20;

/// Purpose of a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// Pictures.
    Video,
    /// Sound.
    Audio,
    /// Subtitles.
    Text,
}

/// A track.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Purpose of the track.
    pub media: Media,
    /// The name of its codec: the kind of its sample description.
    pub codec: [u8; 4],
    /// Sample description without that header (ISO/IEC 14496-12, 8.5.2).
    pub entry: Vec<u8>,
    /// The body of its track header, with the size and the matrix of its pictures (8.3.2).
    pub header: Vec<u8>,
    /// Language (ISO 639-2/T), if one is said.
    pub language: Option<String>,
    /// Ticks a second.
    pub timescale: u32,
    /// Samples, in the order that they are decoded.
    pub samples: Vec<Sample>,
    /// The end of what is shown, ticks.
    pub end: u64,
    /// Bits a second, on average.
    pub bits_per_sec: u64,
}

/// Reads the first track of pictures, and all tracks of sound and text; and names the tracks that are left out. `movie` is the body of
/// a movie box, `file_bytes` the length of its file.
///
/// # Errors
/// No track has pictures or sound.
pub fn tracks(
    movie: &[u8],
    fragments: &[Fragment],
    file_bytes: u64,
) -> Result<(Vec<Stored>, Vec<LeftOut>), Unreadable> {
    let mut room = Room {
        bytes: file_bytes,
        samples: MOST_SAMPLES,
    };
    let defaults = Defaults::read(movie);
    let (mut found, mut left_out) = (Vec::new(), Vec::new());
    let traks = children(movie).filter(|(kind, _)| kind == b"trak");
    for (number, (_, trak)) in (1..=MOST_TRACKS).zip(traks) {
        let Some(named) = codec::name(trak) else {
            continue;
        };
        let media = match named.kind {
            "video" => Media::Video,
            "audio" => Media::Audio,
            _ => Media::Text,
        };
        let has_pictures = || found.iter().any(|of: &Stored| of.media == Media::Video);
        let read = match media {
            Media::Video if has_pictures() => Err("the first video track is shown".to_owned()),
            _ => one(
                trak,
                movie,
                media,
                (fragments, defaults.as_ref()),
                &mut room,
            ),
        };
        match read {
            Ok(track) => found.push(track),
            Err(why) => left_out.push(LeftOut {
                track: number,
                kind: named.kind,
                codec: named.codec,
                why,
            }),
        }
    }
    left_out.truncate(MOST_TOLD);
    if found.iter().all(|of| of.media == Media::Text) {
        let told: Vec<String> = left_out.iter().map(ToString::to_string).collect();
        return Err(match told.is_empty() {
            true if defaults.is_some() => Unreadable::Fragmented,
            true => Unreadable::NoTrack,
            false => Unreadable::Unsent(told.join("; ")),
        });
    }
    Ok((found, left_out))
}

fn one(
    trak: &[u8],
    movie: &[u8],
    media: Media,
    fragments: (&[Fragment], Option<&Defaults>),
    room: &mut Room,
) -> Result<Stored, String> {
    let mdia = child(trak, *b"mdia").ok_or("it has no mdia")?;
    let (codec, entry) = codec::entry(mdia).ok_or("it has no stsd")?;
    if matches!(codec, b"encv" | b"enca" | b"enct") {
        return Err("it is encrypted".to_owned());
    }
    if entry.len() > MOST_ENTRY {
        return Err(format!("its sample description has {} bytes", entry.len()));
    }
    let header = child(trak, *b"tkhd").ok_or("it has no tkhd")?;
    let film = samples(trak, movie, media == Media::Video, fragments, room)?;
    if film.edited.samples.is_empty() {
        return Err("it has no samples".to_owned());
    }
    Ok(Stored {
        media,
        codec: *codec,
        entry: entry.to_vec(),
        header: header.to_vec(),
        language: language(mdia),
        timescale: film.edited.timescale,
        samples: film.edited.samples,
        end: film.edited.end,
        bits_per_sec: film.bits_per_sec,
    })
}

/// Three letters of five bits each (8.4.2); `und` is none.
fn language(mdia: &[u8]) -> Option<String> {
    let body = child(mdia, *b"mdhd")?;
    let at = if body.first() == Some(&1) { 32 } else { 20 };
    let packed = u16::from_be_bytes(*body.get(at..)?.first_chunk()?);
    let letter =
        |shift: u16| char::from(u8::try_from((packed >> shift) & 0x1f).unwrap_or(0) + 0x60);
    let language: String = [10, 5, 0].map(letter).iter().collect();
    let is_one = language.chars().all(|c| c.is_ascii_lowercase()) && language != "und";
    is_one.then_some(language)
}
