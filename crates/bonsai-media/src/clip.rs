//! Clips: what an MP4 file (ISO/IEC 14496-12, -14, -15) says of its pictures and its sound.
//!
//! ```text
//!   bytes of a file ──Finder──> its moov box ──> Clip: tracks ──> samples: where they are, when they
//!                                                  │             are decoded and when they are shown
//!                                                  └──> description: SDP
//! ```
//! The samples themselves are read by whoever sends them.
//!
//! # Invariants
//! 1. Each sample lies in the file, and those of a track's tables together are no larger than it; edits
//!    may show them several times, up to a number: what a clip takes is bounded, whatever its tables say.
//! 2. Times of decoding never go back, and no clip is longer than 30 days: they fit, in ticks and ns.
//! 3. There is at most one track of pictures and one of sound, the first that can be sent. All others that
//!    are seen or heard are named ([`Clip::left_out`]), as is what of a track is not sent as it is.

mod boxes;
mod codec;
mod describe;
mod edits;
mod fragments;
pub(crate) mod samples;
#[cfg(test)]
pub(crate) mod sketch;
pub mod stored;
#[cfg(test)]
mod tests;

use core::fmt;

use self::fragments::Defaults;
use crate::packets::How;

pub use self::boxes::Finder;
pub use self::describe::{Announced, Format};
pub use self::fragments::{Fragment, Fragments};
pub use self::samples::Sample;

/// A movie box of more bytes is not read: one of twelve hours has 20 MB.
pub const MOST_MOVIE: u64 = 64 << 20;

/// Samples of a clip: twelve hours of pictures and sound have 3 million.
const MOST_SAMPLES: usize = 4 << 20;

/// The longest clip, seconds.
const LONGEST_S: u64 = 30 * 86_400;

const SECOND: i64 = 1_000_000_000;

/// Why a file is no clip that can be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It is something else.
    #[error("it is no MP4: it does not begin with a box that an MP4 begins with")]
    Foreign,
    /// A box goes on behind its end.
    #[error("it is cut off: its box {kind} ends at byte {end}, and the file has {length}")]
    Truncated {
        /// Which box.
        kind: String,
        /// Where that says that it ends.
        end: u64,
        /// Bytes of the file.
        length: u64,
    },
    /// It has no tables.
    #[error("it has no moov box, as a file that was not written to its end")]
    NoMovie,
    /// Its tables are larger than is sensible.
    #[error("its moov box has {0} bytes; at most {MOST_MOVIE} are read")]
    LargeMovie(u64),
    /// It is in pieces, as for DASH, and these are not there.
    #[error("it is fragmented, and has no fragment")]
    Fragmented,
    /// Its pieces are more than is sensible.
    #[error("it has more fragments than are read: {0} boxes, with tables of {1} bytes")]
    ManyFragments(u32, u64),
    /// Nothing in it is seen or heard.
    #[error("it has no track of pictures or sound")]
    NoTrack,
    /// Nothing in it is for RTP.
    #[error("none of its tracks can be sent: {0}")]
    Unsent(String),
}

/// What of a file is not sent, or not as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Which track, counted from 1.
    pub track: usize,
    /// `video`, `audio` or `subtitles`.
    pub kind: &'static str,
    /// The name of its codec in the file.
    pub codec: String,
    /// Why, or what.
    pub why: String,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            track,
            kind,
            codec,
            why,
        } = self;
        write!(f, "{kind} track {track} ({codec}): {why}")
    }
}

/// What is said of one file at most.
const MOST_TOLD: usize = 32;

/// What a track carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Pictures of H.264.
    H264 {
        /// Bytes of the lengths before its units: 1, 2 or 4.
        length_size: u8,
        /// Profile, constraints and level (RFC 6184, 8.1: profile-level-id).
        profile: [u8; 3],
        /// Its parameter sets: of sequences, then of pictures.
        sets: Vec<Vec<u8>>,
    },
    /// Pictures of H.265.
    H265 {
        /// Bytes of the lengths before its units: 1, 2 or 4.
        length_size: u8,
        /// How many temporal layers there are; 0 where it is not known.
        layers: u8,
        /// Its parameter sets: of the video, of sequences, of pictures.
        sets: Vec<Vec<u8>>,
    },
    /// Sound of Opus.
    Opus {
        /// Channels.
        channels: u8,
    },
    /// Sound of MPEG-1 or MPEG-2, as MP3.
    Mpeg,
    /// Sound of AAC.
    Aac {
        /// Its AudioSpecificConfig (ISO/IEC 14496-3, 1.6.2.1).
        config: Vec<u8>,
        /// Channels; 0 where they are said in the sound itself.
        channels: u8,
    },
}

impl Codec {
    /// Whether it is of pictures.
    #[must_use]
    pub const fn is_video(&self) -> bool {
        matches!(self, Self::H264 { .. } | Self::H265 { .. })
    }

    /// Its parameter sets, which go before pictures that decoding begins with.
    #[must_use]
    pub fn sets(&self) -> &[Vec<u8>] {
        match self {
            Self::H264 { sets, .. } | Self::H265 { sets, .. } => sets,
            Self::Aac { .. } | Self::Opus { .. } | Self::Mpeg => &[],
        }
    }
}

/// A track.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    /// What it carries.
    pub codec: Codec,
    /// Ticks a second of its timestamps in RTP.
    pub clock_rate: u32,
    /// Bits of its samples a second, on average.
    pub bits_per_sec: u64,
    /// Ticks a second of its times in the clip.
    timescale: u32,
    /// Its samples, in the order that they are decoded.
    samples: Vec<Sample>,
    /// Ticks from its beginning to its end.
    end: u64,
}

/// A clip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clip {
    /// Its tracks: pictures before sound.
    pub tracks: Vec<Track>,
    /// What of the file is not sent.
    pub left_out: Vec<LeftOut>,
    /// How long it is, nanoseconds.
    pub length_ns: u64,
}

impl Clip {
    /// Reads the body of a movie box of a file of so many bytes.
    ///
    /// # Errors
    /// Why nothing can be sent of it.
    pub fn read(movie: &[u8], file_bytes: u64) -> Result<Self, Unreadable> {
        match Self::has_fragments(movie) {
            true => Err(Unreadable::Fragmented),
            false => Self::read_with(movie, &[], file_bytes),
        }
    }

    /// Whether a movie says that fragments follow it in its file ([`Fragments`]).
    #[must_use]
    pub fn has_fragments(movie: &[u8]) -> bool {
        boxes::child(movie, *b"mvex").is_some()
    }

    /// Reads the body of a movie box, and the fragments that follow it.
    ///
    /// # Errors
    /// Why nothing can be sent of it.
    pub fn read_with(
        movie: &[u8],
        fragments: &[Fragment],
        file_bytes: u64,
    ) -> Result<Self, Unreadable> {
        let mut room = samples::Room {
            bytes: file_bytes,
            samples: MOST_SAMPLES,
        };
        let defaults = Defaults::read(movie);
        let (mut video, mut audio): (Option<Track>, Option<Track>) = (None, None);
        let mut left_out = Vec::new();
        let mut is_empty = false;
        let traks = boxes::children(movie).filter(|(kind, _)| kind == b"trak");
        for (number, (_, body)) in (1..).zip(traks) {
            let Some(named) = codec::name(body) else {
                continue;
            };
            let mut tell = |why: String| {
                left_out.push(LeftOut {
                    track: number,
                    kind: named.kind,
                    codec: named.codec.clone(),
                    why,
                });
            };
            let is_second = match named.kind {
                "video" => video.is_some(),
                "audio" => audio.is_some(),
                _ => false,
            };
            if is_second {
                tell(format!("the first {} track is sent", named.kind));
                continue;
            }
            let read = codec::track(body, movie, (fragments, defaults.as_ref()), &mut room);
            match read {
                Err(why) => tell(why),
                Ok(read) if read.track.samples.is_empty() => {
                    is_empty = true;
                    tell("it has no samples".to_owned());
                }
                Ok(read) => {
                    read.notes.into_iter().for_each(tell);
                    let place = match read.track.codec.is_video() {
                        true => &mut video,
                        false => &mut audio,
                    };
                    *place = Some(read.track);
                }
            }
        }
        let tracks: Vec<Track> = video.into_iter().chain(audio).collect();
        left_out.truncate(MOST_TOLD);
        if tracks.is_empty() {
            let told: Vec<String> = left_out.iter().map(ToString::to_string).collect();
            return Err(match told.is_empty() {
                _ if is_empty && defaults.is_some() => Unreadable::Fragmented,
                true => Unreadable::NoTrack,
                false => Unreadable::Unsent(told.join("; ")),
            });
        }
        let ends = tracks.iter().map(Track::length_ns);
        let length_ns = ends.max().unwrap_or(0);
        Ok(Self {
            tracks,
            left_out,
            length_ns,
        })
    }

    /// Where each of those tracks begins if the clip is played from a time, nanoseconds: its sample, and
    /// the time that it is, which is that of the picture before from which decoding can begin.
    #[must_use]
    pub fn seek(&self, tracks: &[usize], from_ns: u64) -> (u64, Vec<usize>) {
        let chosen = tracks.iter().filter_map(|index| self.tracks.get(*index));
        seek(&chosen.collect::<Vec<_>>(), from_ns)
    }

    /// Its pictures.
    #[must_use]
    pub fn pictures(&self) -> Option<&Track> {
        let mut tracks = self.tracks.iter();
        tracks.find(|track| track.codec.is_video())
    }

    /// Bytes of memory that its tables take.
    #[must_use]
    pub fn memory(&self) -> usize {
        let samples = |track: &Track| track.samples.capacity() * size_of::<Sample>();
        self.tracks.iter().map(samples).sum()
    }
}

/// Where each of those tracks begins, as [`Clip::seek`]; they may be of several files of one film.
pub(crate) fn seek(tracks: &[&Track], from_ns: u64) -> (u64, Vec<usize>) {
    let from = i64::try_from(from_ns).unwrap_or(i64::MAX);
    let mut chosen = tracks.iter();
    let pictures = chosen.find(|track| track.codec.is_video());
    let key = pictures.map(|track| track.key_before(from));
    let is_beginning = from == 0 || key == Some(0);
    let at = match (pictures, key) {
        _ if is_beginning => 0,
        (Some(track), Some(key)) => track.samples.get(key).map_or(0, |of| track.shown_ns(of)),
        _ => from,
    };
    let first = |track: &&Track| match (track.codec.is_video(), key) {
        _ if is_beginning => 0,
        (true, Some(key)) => key,
        _ => track.samples.partition_point(|of| track.shown_ns(of) < at),
    };
    (
        u64::try_from(at).unwrap_or(0),
        tracks.iter().map(first).collect(),
    )
}

impl Track {
    /// Its samples, in the order that they are decoded.
    #[must_use]
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// How its samples are cut into payloads.
    #[must_use]
    pub const fn how(&self) -> How {
        match self.codec {
            Codec::H264 { length_size, .. } => How::H264 { length_size },
            Codec::H265 { length_size, .. } => How::H265 { length_size },
            Codec::Aac { .. } => How::Aac,
            Codec::Opus { .. } => How::Whole,
            Codec::Mpeg => How::Mpeg,
        }
    }

    /// The payload type of its packets, as the track of that number of its clip.
    #[must_use]
    pub fn payload_type(&self, number: usize) -> u8 {
        match self.codec {
            // Receivers know MPEG audio by its number (RFC 3551, 6).
            Codec::Mpeg => 14,
            _ => Clip::payload_type(number),
        }
    }

    /// `video` or `audio`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self.codec.is_video() {
            true => "video",
            false => "audio",
        }
    }

    /// How long it is, nanoseconds.
    #[must_use]
    pub fn length_ns(&self) -> u64 {
        let ns = u128::from(self.end) * 1_000_000_000 / u128::from(self.timescale.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// When a sample is decoded, nanoseconds from the beginning of the clip; negative before that.
    #[must_use]
    pub fn decoded_ns(&self, sample: &Sample) -> i64 {
        self.ns(sample.decoded())
    }

    /// When it is shown, likewise.
    #[must_use]
    pub fn shown_ns(&self, sample: &Sample) -> i64 {
        self.ns(sample.shown())
    }

    /// When it is shown, in ticks of the clock of RTP from the beginning of the clip.
    #[must_use]
    pub fn shown_ticks(&self, sample: &Sample) -> i64 {
        let ticks = sample.shown();
        if self.clock_rate == self.timescale {
            return ticks;
        }
        let scaled = i128::from(ticks) * i128::from(self.clock_rate);
        let scaled = scaled.div_euclid(i128::from(self.timescale));
        i64::try_from(scaled).unwrap_or(i64::MAX)
    }

    /// From ticks to nanoseconds from the beginning of the clip.
    fn ns(&self, ticks: i64) -> i64 {
        let scale = i64::from(self.timescale);
        ticks.div_euclid(scale) * SECOND + ticks.rem_euclid(scale) * SECOND / scale
    }

    /// The last sample that decoding can begin with and that is shown by that time, or the first.
    fn key_before(&self, at: i64) -> usize {
        let last = self.samples.partition_point(|of| self.decoded_ns(of) <= at);
        let mut before = self.samples[..last].iter();
        before
            .rposition(|of| of.is_sync() && self.shown_ns(of) <= at)
            .unwrap_or(0)
    }
}
