//! The server's side of the NBD protocol, without sockets: bytes in, bytes out.
//!
//! The specification is `doc/proto.md` of the NBD project; names here are those of it.
//!
//! # Story
//! ```text
//!            greeting
//!               |
//!   +--> client's flags --> option <--+  LIST, INFO, STRUCTURED_REPLY, LIST/SET_META_CONTEXT
//!   |                        |  |  |  +------------------------------------------------------
//!   |   STARTTLS, then TLS   |  |  +--> ABORT: answered, then closed
//!   +------------------------+  |
//!                               +-----> GO, EXPORT_NAME: a session
//! session: requests of 28 bytes, WRITE with a payload; each has one reply
//! ```
//!
//! # Invariants
//! 1. [`Handshake::push`] never consumes more than it is given, and holds nothing of it but what
//!    has been decided. It asks for more only as long as what it has is shorter than
//!    [`MAX_OPTION_BYTES`] and the header before.
//! 2. A context is only used with the export that it was set for, and only over structured replies.
//! 3. While TLS is required and not there, nothing is told of any export.
//! 4. Nothing that a client sends makes more than [`MAX_OUT_BYTES`] of answers and one answer before
//!    these are taken away.
//!
//! # Limits
//! Extended headers are not spoken (answered as unknown, as the specification wants it), nor
//! is the old protocol without options.

mod handshake;
mod reply;
mod request;
pub(crate) mod wire;

pub use handshake::{Exports, Handshake, MAX_OUT_BYTES, ProtocolError, Session, Step, Tls};
pub use reply::{Extent, Replies};
pub use request::{Command, Errno, HEADER_BYTES, Request};
pub use wire::{MAX_NAME_BYTES, MAX_OPTION_BYTES, MAX_PAYLOAD, flags};

/// What clients are told of an export.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ExportInfo {
    /// What clients ask for.
    pub name: String,
    /// For people.
    pub description: String,
    /// In bytes.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether seeking costs.
    pub rotational: bool,
    /// Whether trims give blocks back to the file system.
    pub discard: bool,
    /// Whether zeroes can be refused where they are not quicker than a write.
    pub fast_zero: bool,
    /// The size of blocks that serves best: a power of two, at least 512.
    pub preferred_block: u32,
}

impl ExportInfo {
    /// The flags of the transmission phase. All connections share one page cache, so a flush over
    /// one of them holds for all.
    #[must_use]
    pub const fn flags(&self, structured: bool) -> u16 {
        let mut all = flags::HAS_FLAGS | flags::SEND_FLUSH | flags::SEND_FUA;
        all |= flags::CAN_MULTI_CONN | flags::SEND_CACHE;
        if self.read_only {
            all |= flags::READ_ONLY;
        } else {
            all |= flags::SEND_WRITE_ZEROES;
            // A trim is a hint: a server that takes none has no need to hear them.
            if self.discard {
                all |= flags::SEND_TRIM;
            }
            if self.fast_zero {
                all |= flags::SEND_FAST_ZERO;
            }
        }
        if self.rotational {
            all |= flags::ROTATIONAL;
        }
        if structured {
            all |= flags::SEND_DF;
        }
        all
    }
}
