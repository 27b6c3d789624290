//! Sockets and timers around `bonsai-media`.
//!
//! - [`capture`]: streams in a capture file.
//! - [`play`]: players of a film over HTTP, by the thousand, which adapt.
//! - [`folder`]: files of a folder, and of no other.
//! - [`serve`]: clips sent to viewers, by the thousand.
//! - [`tables`]: the tables of an MP4 file.
//! - [`watch`]: viewers of a stream, by the thousand, each with a meter.
#![forbid(unsafe_code)]

pub mod capture;
mod clock;
mod datagrams;
mod files;
pub mod folder;
pub mod play;
pub mod serve;
pub mod tables;
pub mod watch;
