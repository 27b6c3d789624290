//! Films as HLS (RFC 8216) with fragmented MP4, cut from the file when a player asks: nothing is encoded or stored.
//!
//! ```text
//!   tables of a file ──> Film: tracks, each cut into segments at key pictures
//!                          ├─> master playlist, and one of each track
//!                          └─> a segment: a head (moof), and the bytes of its samples where they lie in the file
//! ```
//! Pictures and each language of sound are playlists of their own, so that a player fetches only the tracks it plays. A
//! segment goes to the first key picture after [`TARGET_NS`]: only there can decoding begin. All times of the film are
//! moved by [`Film::lead_ns`], so that none is below zero.
//!
//! # Invariants
//! 1. Each sample of a track is in exactly one segment, and segments follow each other without a gap.
//! 2. All tracks are moved by the same time, to a tick of their own: sound and pictures stay together.
//! 3. The head of a segment says the sizes of its samples: how long it is, is known before a byte of them is read.

mod boxes;
mod codecs;
mod lists;
pub mod live;
pub use self::lists::Beside;
#[cfg(test)]
mod tests;
pub mod text;

use crate::clip::stored::{self, Media, Stored};
use crate::clip::{Fragment, LeftOut, Sample, Unreadable};

/// Least length of a segment of pictures, ns: it ends at the first key picture behind that.
pub const TARGET_NS: i64 = 4_000_000_000;

const SECOND: i128 = 1_000_000_000;

/// Most segments of a film: a day of them.
const MOST_PARTS: usize = 100_000;

/// A film that can be cut.
#[derive(Clone, Debug)]
pub struct Film {
    tracks: Vec<Track>,
    /// Tracks of the file that are not shown.
    pub left_out: Vec<LeftOut>,
    /// Time by which all of it is moved, ns.
    lead_ns: i64,
}

/// A track, and where it is cut.
#[derive(Clone, Debug)]
struct Track {
    stored: Stored,
    parts: Vec<Part>,
    /// As browsers name its codec (RFC 6381); empty where that is not known.
    codecs: String,
}

/// A segment: samples, and the time that they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    first: usize,
    end: usize,
    begins_ns: i64,
    ends_ns: i64,
    bytes: u64,
}

/// A segment, as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The bytes before its samples.
    pub head: Vec<u8>,
    /// Where its samples lie in the file: offsets and lengths, in the order that they are sent.
    pub ranges: Vec<(u64, u64)>,
}

impl Segment {
    /// Bytes of the segment.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let samples: u64 = self.ranges.iter().map(|(_, bytes)| bytes).sum();
        samples + self.head.len() as u64
    }
}

/// Subtitles in a file, as they lie there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cue {
    /// When they are shown, ms from the beginning of the film.
    pub begins_ms: u64,
    /// When that ends.
    pub ends_ms: u64,
    /// Where they lie in the file.
    pub offset: u64,
    /// Bytes of the subtitles.
    pub bytes: u32,
}

impl Film {
    /// Reads the body of a movie box and the fragments that follow it; `file_bytes` is the length of the file.
    ///
    /// # Errors
    /// No track has pictures or sound.
    pub fn read(movie: &[u8], fragments: &[Fragment], file_bytes: u64) -> Result<Self, Unreadable> {
        let (stored, left_out) = stored::tracks(movie, fragments, file_bytes)?;
        let earliest = |of: &Stored| {
            let decoded = of.samples.iter().map(Sample::decoded);
            let shown = of.samples.iter().map(Sample::shown);
            decoded.chain(shown).min().map_or(0, |ticks| of.ns(ticks))
        };
        let lead_ns = stored.iter().map(earliest).min().unwrap_or(0).min(0);
        let mut bounds: Option<Vec<i64>> = None;
        let mut tracks = Vec::new();
        for track in stored {
            let parts = match (&bounds, track.media) {
                (None, Media::Video) => {
                    let cuts = cuts_at_keys(&track);
                    let parts = parts(&track, &cuts);
                    bounds = Some(cuts);
                    parts
                }
                (_, Media::Text) => Vec::new(),
                (known, _) => parts(&track, &cuts_beside(&track, known.as_deref())),
            };
            tracks.push(Track {
                codecs: codecs::of(&track),
                stored: track,
                parts,
            });
        }
        Ok(Self {
            tracks,
            left_out,
            lead_ns: -lead_ns,
        })
    }

    /// Time by which all of it is moved, so that no time is below zero, ns.
    #[must_use]
    pub fn lead_ns(&self) -> u64 {
        u64::try_from(self.lead_ns).unwrap_or(0)
    }

    /// Length of the film, ns.
    #[must_use]
    pub fn length_ns(&self) -> u64 {
        let ends = self.tracks.iter().map(|track| track.stored.end_ns());
        u64::try_from(ends.max().unwrap_or(0)).unwrap_or(0)
    }

    /// Bytes of memory that its tables take.
    #[must_use]
    pub fn memory(&self) -> usize {
        let of = |track: &Track| {
            track.stored.samples.capacity() * size_of::<Sample>()
                + track.parts.capacity() * size_of::<Part>()
                + track.stored.entry.capacity()
        };
        self.tracks.iter().map(of).sum()
    }

    /// The header that a player needs before the segments of a track; `None` where there is no such track of pictures or sound.
    #[must_use]
    pub fn header(&self, track: usize) -> Option<Vec<u8>> {
        let track = self.tracks.get(track)?;
        (!track.parts.is_empty()).then(|| boxes::header(&[&track.stored]))
    }

    /// A segment of a track; `None` where there is none.
    #[must_use]
    pub fn segment(&self, track: usize, number: usize) -> Option<Segment> {
        let track = self.tracks.get(track)?;
        let part = track.parts.get(number)?;
        let samples = track.stored.samples.get(part.first..part.end)?;
        let shift = track.stored.ticks(self.lead_ns);
        let next = track.stored.samples.get(part.end).map_or_else(
            || i64::try_from(track.stored.end).unwrap_or(i64::MAX),
            Sample::decoded,
        );
        let sequence = u32::try_from(number + 1).unwrap_or(u32::MAX);
        let run = boxes::Run {
            samples,
            shift,
            next,
        };
        let head = boxes::head(&[run], sequence)?;
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for sample in samples {
            let bytes = u64::from(sample.size());
            match ranges.last_mut() {
                Some((offset, length)) if *offset + *length == sample.offset => *length += bytes,
                _ => ranges.push((sample.offset, bytes)),
            }
        }
        Some(Segment { head, ranges })
    }

    /// The subtitles of a track, in the order that they are shown, and the name of their codec; `None` where it is none of
    /// subtitles that can be shown.
    #[must_use]
    pub fn cues(&self, track: usize) -> Option<([u8; 4], Vec<Cue>)> {
        let stored = &self.tracks.get(track)?.stored;
        if stored.media != Media::Text || !text::is_known(stored.codec) {
            return None;
        }
        let ms = |ticks: i64| u64::try_from(stored.ns(ticks) / 1_000_000).unwrap_or(0);
        let ends = stored.samples.iter().skip(1).map(Sample::shown);
        let end = i64::try_from(stored.end).unwrap_or(i64::MAX);
        let ends = ends.chain([end]);
        let cue = |(of, ends): (&Sample, i64)| Cue {
            begins_ms: ms(of.shown()),
            ends_ms: ms(ends),
            offset: of.offset,
            bytes: of.size(),
        };
        Some((
            stored.codec,
            stored.samples.iter().zip(ends).map(cue).collect(),
        ))
    }
}

impl Stored {
    /// From ticks to nanoseconds.
    fn ns(&self, ticks: i64) -> i64 {
        let ns = i128::from(ticks) * SECOND / i128::from(self.timescale.max(1));
        i64::try_from(ns).unwrap_or(i64::MAX)
    }

    /// The ticks that a time takes: the last of them may be a part.
    fn ticks(&self, ns: i64) -> i64 {
        let scaled = i128::from(ns) * i128::from(self.timescale);
        let ticks = scaled.div_euclid(SECOND) + i128::from(scaled.rem_euclid(SECOND) > 0);
        i64::try_from(ticks).unwrap_or(i64::MAX)
    }

    fn end_ns(&self) -> i64 {
        self.ns(i64::try_from(self.end).unwrap_or(i64::MAX))
    }
}

/// The times at which a track of pictures is cut, without its beginning: those of its key pictures.
fn cuts_at_keys(track: &Stored) -> Vec<i64> {
    let (mut cuts, mut last) = (Vec::new(), 0);
    for sample in track.samples.iter().filter(|of| of.is_sync()) {
        let shown = track.ns(sample.shown());
        if shown - last >= TARGET_NS && cuts.len() < MOST_PARTS {
            cuts.push(shown);
            last = shown;
        }
    }
    cuts
}

/// The times at which sound is cut: where the pictures are, and behind these, or without any, after each [`TARGET_NS`].
fn cuts_beside(track: &Stored, pictures: Option<&[i64]>) -> Vec<i64> {
    let mut cuts = pictures.unwrap_or_default().to_vec();
    let mut last = cuts.last().copied().unwrap_or(0);
    // The last segment of the pictures may be a long one: sound in it is cut all the same.
    while last + 2 * TARGET_NS <= track.end_ns() && cuts.len() < MOST_PARTS {
        last += TARGET_NS;
        cuts.push(last);
    }
    cuts
}

/// The segments of a track that is cut at those times. One without samples is part of the one after it, or of the last.
fn parts(track: &Stored, cuts: &[i64]) -> Vec<Part> {
    let samples = &track.samples;
    let is_video = track.media == Media::Video;
    let mut parts = Vec::new();
    let (mut first, mut begins_ns) = (0, 0);
    let ends = cuts.iter().copied().map(Some).chain([None]);
    for cut in ends {
        let end = match cut {
            // Pictures are cut before the key picture itself, sound before the frame that is heard from there on.
            Some(cut) if is_video => samples
                .iter()
                .skip(first)
                .position(|of| of.is_sync() && track.ns(of.shown()) >= cut)
                .map_or(samples.len(), |at| first + at),
            Some(cut) => samples
                .partition_point(|of| track.ns(of.shown()) < cut)
                .max(first),
            None => samples.len(),
        };
        let ends_ns = cut.unwrap_or_else(|| track.end_ns()).max(begins_ns);
        if end > first {
            let bytes = samples[first..end].iter().map(|of| u64::from(of.size()));
            parts.push(Part {
                first,
                end,
                begins_ns,
                ends_ns,
                bytes: bytes.sum(),
            });
            (first, begins_ns) = (end, ends_ns);
        } else if let Some(last) = parts.last_mut().filter(|_| first == samples.len()) {
            last.ends_ns = last.ends_ns.max(ends_ns.min(track.end_ns()));
        }
    }
    parts
}
