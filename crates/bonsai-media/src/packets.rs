//! Samples of a clip as payloads of packets.
//!
//! A payload is a few bytes of its own and a part of the sample, which is not copied. All parts of a
//! large sample but the last have one length, so that a socket can be given many at once.

pub mod aac;
mod cut;
pub mod h264;
mod packetiser;

pub use self::cut::{Cut, How, Piece};
pub use self::packetiser::{Packetiser, Payloads, Single, Together, Whole};

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
