//! TLS of servers, as far as all of them need the same: certificates and keys from files in PEM ([`Files`]), and again when
//! these are renewed ([`Renewable`]).
//!
//! The block server, the daemon's interface and the media server read them by this crate. Sockets are their own affair.
#![forbid(unsafe_code)]

mod files;
mod renewable;

pub use files::{Files, ServerTls, TlsError};
pub use renewable::{Look, Renewable};
pub use rustls::{ServerConfig, ServerConnection};

/// Whether a client that begins with this byte speaks TLS: the record of a handshake (RFC 8446, 5.1). Requests in plain text
/// begin with a letter.
#[must_use]
pub const fn is_handshake(first: u8) -> bool {
    first == 22
}
