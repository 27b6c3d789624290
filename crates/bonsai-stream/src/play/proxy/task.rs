//! What desk and engine tell each other.

use hyper::body::Bytes;

/// Of which server and quality, or of sound, and its number: servers may have coded a film each in its own way.
pub(super) type Header = (Option<(usize, usize)>, usize);

/// What the engine does next.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Job {
    /// To ask again after so long, nanoseconds, or when something has happened.
    Wait(u64),
    /// To fetch a segment, and the sound that belongs to it.
    Picture(Task),
    /// To fetch a segment of sound alone.
    Sound(usize),
    /// To fetch a header of sound alone.
    SoundHeader(usize),
}

/// A segment to fetch.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Task {
    pub(super) segment: usize,
    pub(super) quality: usize,
    /// Segments of sound that belong to it, and are not there yet.
    pub(super) sounds: Vec<usize>,
    /// What it is for is over when this is another.
    pub(super) turn: u64,
    pub(super) since_ns: u64,
}

/// What came of one.
#[derive(Debug, Default)]
pub(super) struct Parcel {
    pub(super) header: Option<Bytes>,
    pub(super) picture: Bytes,
    pub(super) sounds: Vec<(usize, Bytes)>,
    /// All bytes, headers too.
    pub(super) bytes: u64,
    pub(super) server: usize,
}

/// What becomes of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    GoOn,
    /// A lower quality is fetched instead.
    GiveUp,
    /// The player is elsewhere.
    Over,
}
