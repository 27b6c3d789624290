//! Streams in a capture file, each with a meter.
//!
//! ```text
//!   file ──> frames (pcap, pcapng) ──> datagrams ──> streams by who, whom and SSRC ──> Meter ──> Stream
//! ```
//! # Invariants
//! 1. What is no stream is none: datagrams of others that look like one packet of it are passed over, and
//!    take bounded memory.
//! 2. A capture that ends in mid-frame is read up to there, and that is said.

mod frames;
mod streams;

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;

use bonsai_media::meter::{StreamReport, Thresholds, Verdict};
use serde::Serialize;

use self::streams::Streams;

/// Ticks a second of the streams of a payload type, by that.
pub type Clocks = BTreeMap<u8, u32>;

/// How it is known how fast a stream's clock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClockBy {
    /// It was said.
    Told,
    /// Its payload type stands for it (RFC 3551).
    PayloadType,
    /// By how fast its timestamps go: a sender in slow motion may be taken for one with another clock.
    Packets,
}

/// A stream of a capture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stream {
    /// Who sends it.
    pub from: SocketAddr,
    /// To whom.
    pub to: SocketAddr,
    /// Its number (RFC 3550, 5.1).
    pub ssrc: u32,
    /// The payload type of its packets.
    pub payload_type: u8,
    /// Ticks a second of its timestamps.
    pub clock_rate: u32,
    /// How that is known.
    pub clock_by: ClockBy,
    /// What came.
    pub stream: StreamReport,
    /// Whether that is top quality.
    pub verdict: Verdict,
}

/// What is in a capture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Capture {
    /// Its frames.
    pub frames: u64,
    /// Those of links that are not known, or without a time.
    pub unread: u64,
    /// Whether it ends in mid-frame.
    pub is_cut_off: bool,
    /// Its streams, in the order in which they begin.
    pub streams: Vec<Stream>,
}

/// Why a capture cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is something else.
    #[error("it is no capture: pcap and pcapng are known")]
    Foreign,
    /// Its frames are of a link that is not known.
    #[error(
        "its frames are of link type {0}, and Ethernet, Linux cooked, loopback and plain IP are known"
    )]
    Link(i32),
    /// It is damaged after so many frames.
    #[error("it is damaged after {frames} frames")]
    Damaged {
        /// How many could be read.
        frames: u64,
    },
    /// The system does not give it.
    #[error("it cannot be read")]
    Unreadable,
}

/// Reads a capture.
///
/// # Errors
/// It is none, or damaged.
pub fn read(
    file: impl Read + Send,
    clocks: &Clocks,
    thresholds: &Thresholds,
) -> Result<Capture, Error> {
    let mut streams = Streams::new(clocks);
    let read = frames::read(file, |at_ns, datagram| streams.take(at_ns, datagram))?;
    Ok(Capture {
        frames: read.frames,
        unread: read.unread,
        is_cut_off: read.is_cut_off,
        streams: streams.end(thresholds),
    })
}
