//! A server of clips: RTSP, and RTP over datagrams or in the connection.
//!
//! ```text
//!   listener ──> connection ──requests──> protocol (bonsai-media) ──> house: clips, limits
//!                    ^                                                  │
//!                    │ packets among messages                           v
//!   timer ──────> stream: sample that is due ──> parts (their order: `parts.rs`) ──> datagrams
//! ```
//! One thread waits for all of it (epoll); another reads what clips say, and one does TLS handshakes.
//!
//! # Invariants
//! 1. A sample is sent when its decoder needs it, by the media's own clock; in one go no more than one
//!    sample of a stream is sent.
//! 2. What goes wrong with a file, a connection or a viewer ends that stream, with a farewell where there
//!    is somebody to say it to, and no other.
//! 3. All that a stranger can make the server keep is bounded: connections and sessions in all and for
//!    each address, bytes of a request, the time that it takes, bytes that wait to be taken.
//! 4. Nothing outside the root is sent, whatever a link in it says.

mod connection;
mod engine;
mod film;
mod house;
mod loader;
mod lower;
mod parts;
mod pipeline;
mod ports;
mod root;
mod secure;
mod send;
mod stream;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bonsai_media::access::Guard;
use bonsai_tls::Renewable;
use serde::Serialize;

pub use bonsai_media::load::{Pictures, WhenBehind};
pub use bonsai_media::seen::Seen;
pub use lower::Lower;
pub use parts::{
    Codec, Fate, Format, Handler, Maker, PaceView, Pacer, PacketView, Packetiser, Parts, Payloads,
    QualityView, ReportView, SampleView, Selector, Sink, Source, StreamView, Wanted, Whole,
};
pub use pipeline::{Mistake, Pipelines};

/// How packets are read and sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// One `pread` and one `send` or `sendto` for each packet, through the C library, as whoever shapes
    /// programs by their calls expects it.
    Classic,
    /// A sample at a time: one `pread`, and one `sendmsg` for all packets of it that are of one size (UDP
    /// GSO).
    Fast,
}

/// What a server takes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sessions at a time.
    pub sessions: u32,
    /// Sessions at a time of one address.
    pub per_address: u32,
    /// Connections at a time, with a session or without.
    pub connections: u32,
    /// A request that has begun is there in so long, and a TLS handshake over.
    pub request: Duration,
    /// A connection without a session asks for something in so long.
    pub idle: Duration,
    /// A session that nothing is heard of ends after so long.
    pub session: Duration,
    /// A viewer who takes nothing in the connection for so long is gone.
    pub stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 4000,
            per_address: 4000,
            connections: 5000,
            request: Duration::from_secs(10),
            idle: Duration::from_secs(30),
            session: Duration::from_secs(60),
            stall: Duration::from_secs(10),
        }
    }
}

/// The rate that a server may send at, bytes a second: told by whoever knows it, at any time, and looked
/// at ten times a second. Packets count with their headers of RTP.
#[derive(Debug)]
pub struct Allotted {
    rate: AtomicU64,
    /// What the streams that play are to be sent of it.
    needed: AtomicU64,
}

impl Default for Allotted {
    fn default() -> Self {
        Self {
            rate: AtomicU64::new(Self::UNKNOWN),
            needed: AtomicU64::new(0),
        }
    }
}

impl Allotted {
    /// Nobody says.
    const UNKNOWN: u64 = u64::MAX;

    /// So much; `None` where nobody says, or there is no limit.
    pub fn set(&self, bytes_per_s: Option<u64>) {
        let rate = bytes_per_s.unwrap_or(Self::UNKNOWN);
        self.rate.store(rate, Ordering::Relaxed);
    }

    /// What was told last.
    #[must_use]
    pub fn get(&self) -> Option<u64> {
        let rate = self.rate.load(Ordering::Relaxed);
        (rate != Self::UNKNOWN).then_some(rate)
    }

    /// The streams that play need so much of it, bytes a second.
    pub(crate) fn need(&self, bytes_per_s: u64) {
        self.needed.store(bytes_per_s, Ordering::Relaxed);
    }

    /// What they leave of it for what can wait, a twentieth of it at least: so much is free of streams.
    #[must_use]
    pub fn rest(&self) -> Option<u64> {
        let rate = self.get()?;
        let needed = self.needed.load(Ordering::Relaxed);
        // What streams need is a mean.
        let left = rate.saturating_sub(needed.saturating_add(needed / 8));
        Some(left.max(rate / 20))
    }
}

/// What is served, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The folder with the clips.
    pub root: PathBuf,
    /// Where it listens.
    pub listen: SocketAddr,
    /// The ports that datagrams are sent from: two for each of the machine's addresses that is asked.
    pub ports: (u16, u16),
    /// How packets are read and sent.
    pub engine: Engine,
    /// What is done when it falls behind.
    pub when_behind: WhenBehind,
    /// It has fallen behind if a sample is sent so much later than it is due.
    pub late: Duration,
    /// The rate that it may send at, by which that is decided before it falls behind.
    pub allotted: Arc<Allotted>,
    /// What it takes on.
    pub limits: Limits,
    /// What streams can go through on their way, and the handlers that each goes through.
    pub parts: Parts,
    /// Other ways, of clips that are named there.
    pub pipelines: Pipelines,
    /// Which files are lower qualities of clips, the best first, where those ways do not say.
    pub lower: Arc<[Lower]>,
    /// The users that may ask; all may where there is none.
    pub users: Option<Arc<Guard>>,
    /// Certificate and key, where TLS is spoken (`rtsps`); packets then go in the connection alone.
    pub tls: Option<Arc<Renewable>>,
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such folder.
    #[error("{path}: {source}")]
    Root {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody else listens there, or it is no address of this machine.
    #[error("cannot listen on {at}: {source}")]
    Listen {
        /// Where.
        at: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The system refuses what a server waits by.
    #[error("connections cannot be waited for")]
    System(#[source] io::Error),
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// It listens.
    Listening(SocketAddr),
    /// A viewer is let in.
    Began {
        /// Who.
        peer: SocketAddr,
        /// To see what.
        clip: &'a str,
    },
    /// A stream is over.
    Ended {
        /// Whose.
        peer: SocketAddr,
        /// Of what.
        clip: &'a str,
        /// Why.
        why: &'a str,
        /// Packets that were sent.
        packets: u64,
    },
    /// Something of a stream is left out, as its viewer takes less than is sent. It is told once for a stream.
    Slow {
        /// The viewer.
        peer: SocketAddr,
        /// The clip.
        clip: &'a str,
    },
    /// Something is not granted.
    Refused {
        /// To whom.
        peer: SocketAddr,
        /// Why, and the number of the answer where there was one.
        why: &'a str,
    },
    /// All streams are sent in another quality, with fewer pictures, or with more again.
    Level {
        /// The quality, 0 for the best; clips that have fewer are sent in their lowest.
        quality: usize,
        /// Which pictures of that.
        pictures: Pictures,
    },
    /// A file that is named as a lower quality of a clip, and is there, is left out. It is told once.
    Unfit {
        /// The clip.
        clip: &'a str,
        /// The file, below the root.
        file: &'a str,
        /// Why.
        why: &'a str,
    },
    /// Something of a clip is not sent, or not as it is: a track, a part of its edits. Told once.
    LeftOut {
        /// The clip.
        clip: &'a str,
        /// The track, its codec and the reason.
        what: &'a str,
    },
    /// What viewers saw in the last second, as far as anything is known of it.
    Seen(Seen),
}

/// What was served.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Sessions that were let in.
    pub sessions: u64,
    /// The most at one time.
    pub most_sessions: u64,
    /// What was not granted.
    pub refused: u64,
    /// Packets that were sent, without reports.
    pub packets: u64,
    /// Bytes of them, with their headers of RTP.
    pub bytes: u64,
    /// Samples that were sent.
    pub samples: u64,
    /// Samples that were left out, as the server or a viewer was behind, or a handler said so.
    pub dropped: u64,
    /// Packets that no way led to their viewer for.
    pub unsent: u64,
    /// Copies of packets and reports that a sink did not take.
    pub uncopied: u64,
    /// Times that a stream went over to another quality of its clip.
    pub switched: u64,
    /// How late samples were sent, nanoseconds: the median,
    pub late_p50_ns: u64,
    /// what 99 of 100 are below,
    pub late_p99_ns: u64,
    /// and the most.
    pub late_max_ns: u64,
    /// Processor time, seconds.
    pub cpu_s: f64,
    /// How long it served, seconds.
    pub elapsed_s: f64,
}

/// Serves until `stop` is set, which is looked at ten times a second, and at each signal.
///
/// # Errors
/// It cannot begin.
pub fn serve(
    plan: &Plan,
    stop: &AtomicBool,
    on_event: &mut dyn FnMut(&Event<'_>),
) -> Result<Summary, Error> {
    engine::Engine::open(plan, on_event)?.run(stop)
}

/// Raises the limit of open files as far as it goes. Where that is not far enough, nobody is let in until
/// somebody has gone.
fn may_open(plan: &Plan) {
    let limits = &plan.limits;
    // Each session may be of another clip, and has its files open.
    let files = 1 + u64::try_from(Lower::MOST).unwrap_or(0);
    let needed = u64::from(limits.connections) + u64::from(limits.sessions) * files + 64;
    let _ = crate::files::allow(needed);
}

/// An address as it is written without IPv6 around IPv4.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whom an address is counted for: who has one of IPv6 has all of its network of 64 bits.
#[must_use]
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(network.into())
        }
        address => address,
    }
}

/// Whether nobody but this machine can ask there.
#[must_use]
pub fn is_local(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::Allotted;

    #[test]
    fn what_streams_leave_is_never_all_that_is_free_of_them() {
        let allotted = Allotted::default();
        assert_eq!((allotted.get(), allotted.rest()), (None, None));
        allotted.set(Some(10_000_000));
        assert_eq!(allotted.rest(), Some(10_000_000));
        for (needed, rest) in [
            (4_000_000, 5_500_000),
            (9_000_000, 500_000),
            (u64::MAX, 500_000),
        ] {
            allotted.need(needed);
            assert_eq!(allotted.rest(), Some(rest), "{needed}");
        }
    }
}
