//! The client's side of the NBD protocol: without sockets, and over one.
//!
//! | type | is |
//! |---|---|
//! | [`Uri`] | where an export is |
//! | [`Handshake`] | option haggling: bytes in, bytes out |
//! | [`Session`] | requests as bytes, and replies taken apart |
//! | [`Connection`] | both over a socket that never holds up who uses it |
//!
//! ```text
//! Handshake: greeting -> STRUCTURED_REPLY -> GO -> Agreed
//! Session:   ask() .. ask() -> bytes; bytes -> push() -> Data, Zeroes, .., Done
//! ```
//!
//! # Invariants
//! 1. No reply is passed on but to a request that waits for one, and each request is done once.
//! 2. What is passed on of a read lies within it, and a read without an error is done when all of it was.
//! 3. What a server sends makes nothing grow: beside requests that wait, at most a header and 4 KiB are held.
//!
//! # Limits
//! TLS is not spoken, nor the protocol before fixed newstyle, nor with servers without GO (before 2016). Block status is
//! never asked for.

mod connection;
mod replies;
mod shake;
mod uri;

pub use connection::{Connection, OpenError};
pub use replies::{Ask, Event, Session};
pub use shake::{Agreed, Handshake};
pub use uri::{Place, Uri, UriError};

use thiserror::Error;

/// A server that does not speak the protocol, or will not do what is asked for.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum ClientError {
    /// What came is not what comes here.
    #[error("{found:#x} came where {what} begins")]
    Magic {
        /// What should have begun.
        what: &'static str,
        /// What came.
        found: u64,
    },
    /// It has no options.
    #[error("the server speaks only the protocol from before fixed newstyle")]
    Old,
    /// By the option that asks for the export.
    #[error("the server has no export {0:?}")]
    NoExport(String),
    /// For another reason.
    #[error("the server refuses export {export:?}: {why}")]
    Refused {
        /// The export.
        export: String,
        /// What the server says, or its number for it.
        why: String,
    },
    /// It may not be had without TLS.
    #[error("the server wants TLS, which is not spoken here")]
    Tls,
    /// An answer that is none.
    #[error("the server breaks the protocol: {0}")]
    Broken(&'static str),
}
