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
//! 1. Each sample lies in the file, and those of a track together are no larger than it: what a clip
//!    takes is bounded by its file, whatever its tables say.
//! 2. Times of decoding never go back, and no clip is longer than 30 days: they fit, in ticks and ns.
//! 3. There is at most one track of pictures and one of sound, the first that can be sent.

mod boxes;
mod codec;
mod describe;
mod samples;
#[cfg(test)]
pub(crate) mod sketch;
#[cfg(test)]
mod tests;

use crate::packets::How;

pub use self::boxes::Finder;
pub use self::describe::{Announced, Format};
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
    /// It is in pieces, as for DASH.
    #[error("it is fragmented; `ffmpeg -i IN -c copy OUT` makes it whole")]
    Fragmented,
    /// Nothing in it is for RTP.
    #[error("none of its tracks is H.264 or AAC")]
    NoTrack,
    /// A track contradicts itself.
    #[error("its track {track} is broken: {what}")]
    Broken {
        /// Which, counted from 1.
        track: usize,
        /// How.
        what: String,
    },
}

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
    /// Sound of AAC.
    Aac {
        /// Its AudioSpecificConfig (ISO/IEC 14496-3, 1.6.2.1).
        config: Vec<u8>,
        /// Channels; 0 where they are said in the sound itself.
        channels: u8,
    },
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
    /// Ticks a second of its times in the file.
    timescale: u32,
    /// When in the clip the file's time 0 is, ticks: before the beginning where it is negative.
    shift: i64,
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
    /// How long it is, nanoseconds.
    pub length_ns: u64,
}

impl Clip {
    /// Reads the body of a movie box of a file of so many bytes.
    ///
    /// # Errors
    /// Why nothing can be sent of it.
    pub fn read(movie: &[u8], file_bytes: u64) -> Result<Self, Unreadable> {
        let mut tracks: Vec<Track> = Vec::new();
        let mut room = samples::Room {
            bytes: file_bytes,
            samples: MOST_SAMPLES,
        };
        let mut number = 0;
        let mut first_broken = None;
        for (kind, body) in boxes::children(movie) {
            if kind != *b"trak" {
                continue;
            }
            number += 1;
            let broken = |what: String| Unreadable::Broken {
                track: number,
                what,
            };
            match codec::track(body, movie, &mut room) {
                Ok(Some(track)) => tracks.push(track),
                Ok(None) => {}
                Err(what) => first_broken = first_broken.or(Some(broken(what))),
            }
        }
        let of = |is_video: bool| {
            move |track: &&Track| matches!(track.codec, Codec::H264 { .. }) == is_video
        };
        let video = tracks.iter().find(of(true)).cloned();
        let audio = tracks.iter().find(of(false)).cloned();
        let tracks: Vec<Track> = video.into_iter().chain(audio).collect();
        let is_fragmented = boxes::child(movie, *b"mvex").is_some();
        match first_broken {
            Some(broken) => return Err(broken),
            None if tracks.iter().all(|track| track.samples.is_empty()) && is_fragmented => {
                return Err(Unreadable::Fragmented);
            }
            None => {}
        }
        let tracks: Vec<Track> = tracks
            .into_iter()
            .filter(|track| !track.samples.is_empty())
            .collect();
        if tracks.is_empty() {
            return Err(Unreadable::NoTrack);
        }
        let ends = tracks
            .iter()
            .map(|track| track.ns(i64::try_from(track.end).unwrap_or(0)));
        let length_ns = u64::try_from(ends.max().unwrap_or(0)).unwrap_or(0);
        Ok(Self { tracks, length_ns })
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
        tracks.find(|track| matches!(track.codec, Codec::H264 { .. }))
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
    let pictures = chosen.find(|track| matches!(track.codec, Codec::H264 { .. }));
    let key = pictures.map(|track| track.key_before(from));
    let is_beginning = from == 0 || key == Some(0);
    let at = match (pictures, key) {
        _ if is_beginning => 0,
        (Some(track), Some(key)) => track.samples.get(key).map_or(0, |of| track.shown_ns(of)),
        _ => from,
    };
    let first = |track: &&Track| match (&track.codec, key) {
        _ if is_beginning => 0,
        (Codec::H264 { .. }, Some(key)) => key,
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
            Codec::Aac { .. } => How::Aac,
        }
    }

    /// `video` or `audio`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self.codec {
            Codec::H264 { .. } => "video",
            Codec::Aac { .. } => "audio",
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
        let ticks = sample.shown() + self.shift;
        if self.clock_rate == self.timescale {
            return ticks;
        }
        let scaled = i128::from(ticks) * i128::from(self.clock_rate);
        let scaled = scaled.div_euclid(i128::from(self.timescale));
        i64::try_from(scaled).unwrap_or(i64::MAX)
    }

    /// From ticks of the file to nanoseconds from the beginning of the clip.
    fn ns(&self, ticks: i64) -> i64 {
        let (ticks, scale) = (ticks + self.shift, i64::from(self.timescale));
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
