//! Samples of a clip as payloads of packets.
//!
//! A payload is a few bytes of its own and a part of the sample, which is not copied. All parts of a
//! large sample but the last have one length, so that a socket can be given many at once.

pub mod aac;
mod cut;
pub mod h264;
pub mod h265;
mod packetiser;

pub use self::cut::{Cut, How, Piece, most_wanted};
pub use self::packetiser::{Packetiser, Payloads, Single, Together, Whole};

use crate::clip::Codec;

/// Whether nothing is predicted from a picture that begins with these bytes; `None` where that cannot be seen
/// in so few.
#[must_use]
pub fn is_disposable(beginning: &[u8], codec: &Codec) -> Option<bool> {
    match *codec {
        Codec::H264 { length_size, .. } => h264::is_disposable(beginning, length_size),
        Codec::H265 {
            length_size,
            layers,
            ..
        } => h265::is_disposable(beginning, length_size, layers),
        Codec::Aac { .. } | Codec::Opus { .. } | Codec::Mpeg => None,
    }
}

/// Whether nothing behind a picture that begins with these bytes is predicted from what is before it,
/// likewise.
#[must_use]
pub fn begins_anew(beginning: &[u8], codec: &Codec) -> Option<bool> {
    match *codec {
        Codec::H264 { length_size, .. } => h264::begins_anew(beginning, length_size),
        Codec::H265 { length_size, .. } => h265::begins_anew(beginning, length_size),
        Codec::Aac { .. } | Codec::Opus { .. } | Codec::Mpeg => None,
    }
}

/// What goes before pictures that decoding begins with, as one payload; `None` where there is nothing, or it
/// does not fit.
#[must_use]
pub fn sets_together(codec: &Codec, most: usize) -> Option<Vec<u8>> {
    let sets: Vec<&[u8]> = codec.sets().iter().map(Vec::as_slice).collect();
    match codec {
        Codec::H264 { .. } => h264::together(&sets, most),
        Codec::H265 { .. } => h265::together(&sets, most),
        Codec::Aac { .. } | Codec::Opus { .. } | Codec::Mpeg => None,
    }
}

/// A payload: its own bytes, and a part of the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload<'a> {
    head: [u8; 4],
    length: u8,
    /// The part of the sample.
    pub body: &'a [u8],
    /// Whether it is the last of its picture or of its sound (RFC 3550: the marker).
    pub is_last: bool,
}

impl<'a> Payload<'a> {
    fn new(head: &[u8], body: &'a [u8], is_last: bool) -> Self {
        let mut own = [0; 4];
        own[..head.len()].copy_from_slice(head);
        Self {
            head: own,
            length: u8::try_from(head.len()).unwrap_or(4),
            body,
            is_last,
        }
    }

    /// What goes before the part of the sample.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        &self.head[..usize::from(self.length)]
    }

    /// Bytes in all.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.length) + self.body.len()
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
