//! Sockets and timers around `bonsai-media`.
//!
//! - [`capture`]: streams in a capture file.
//! - [`serve`]: clips sent to viewers, by the thousand.
//! - [`watch`]: viewers of a stream, by the thousand, each with a meter.
#![forbid(unsafe_code)]

pub mod capture;
mod clock;
mod datagrams;
pub mod serve;
pub mod watch;
