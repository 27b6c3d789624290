//! The protocol by which streams are asked for (RTSP 1.0, RFC 2326).

mod client;
mod head;
mod reader;
pub mod server;

pub use client::{Client, Failure, Heard, Lower, Phase, SetUp};
pub use reader::Reader;

/// An address.
pub use rtsp_types::Url;
