//! TCP connections, as fast as they go or at a rate, each with the congestion control asked for.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use bonsai_host::sockets::TcpInfo;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpCongestion;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{RecvFlags, recv};
use serde::{Deserialize, Serialize};

use super::meter::Counts;
use super::packet::tcp_frames;
use super::traffic::{Cost, Received, SendSpec, Sent, sleep_until, wait};
use crate::service::monotonic_ns;

/// What one call writes or reads at most.
const PIECE: usize = 256 << 10;
/// At a rate, so much of it is written at a time.
const STEP_NS: u64 = 1_000_000;

/// What the kernel says of a connection at its end (`TCP_INFO`).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Connection {
    /// Segments sent again.
    pub(crate) retransmitted: u64,
    /// Bytes that the peer has.
    pub(crate) acknowledged: u64,
    /// Smoothed round-trip time, microseconds.
    pub(crate) rtt_us: u64,
    /// The least round-trip time, microseconds.
    pub(crate) least_rtt_us: u64,
    /// Payload of a full segment.
    pub(crate) segment: u64,
}

impl From<TcpInfo> for Connection {
    fn from(info: TcpInfo) -> Self {
        Self {
            retransmitted: info.retransmitted,
            acknowledged: info.acknowledged,
            rtt_us: info.rtt_us,
            least_rtt_us: info.least_rtt_us,
            segment: info.segment,
        }
    }
}

/// The connections of a sender.
#[derive(Debug)]
pub(crate) struct Sender {
    spec: SendSpec,
    streams: Vec<TcpStream>,
}

impl Sender {
    /// Connects, in the namespace of the calling thread.
    ///
    /// # Errors
    /// Nobody listens there, the kernel has no such congestion control, or what else it says.
    pub(crate) fn open(spec: &SendSpec, to: SocketAddrV4) -> anyhow::Result<Self> {
        let open = |_| -> anyhow::Result<TcpStream> {
            let stream = TcpStream::connect(to).with_context(|| format!("{to}"))?;
            if let Some(name) = &spec.congestion {
                setsockopt(&stream, TcpCongestion, &OsString::from(name))
                    .with_context(|| format!("congestion control {name:?}"))?;
            }
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        let streams = (0..spec.flows.max(1)).map(open);
        Ok(Self {
            spec: spec.clone(),
            streams: streams.collect::<anyhow::Result<_>>()?,
        })
    }

    /// Writes until the time is over, all is written, or `stop` is set.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn run(&self, stop: &AtomicBool) -> anyhow::Result<Sent> {
        let cost = Cost::start();
        let mut sent = Sent::new(self.streams.len());
        let piece = vec![0x5a_u8; PIECE];
        let start = self.spec.wait_for_start(stop);
        let end = self.spec.end_ns(start);
        sent.from_ns = start;
        let rate = self.spec.rate;
        while !stop.load(Ordering::Relaxed) && self.spec.is_more(sent.payload) {
            let now = monotonic_ns();
            if now >= end {
                break;
            }
            let mut left = self.spec.left(sent.payload);
            if let Some(rate) = rate {
                let due = u128::from(rate) * u128::from(now - start) / 1_000_000_000;
                left = left.min(u64::try_from(due)?.saturating_sub(sent.payload));
                if left == 0 {
                    sleep_until(now + STEP_NS);
                    continue;
                }
            }
            let most = piece.len().min(usize::try_from(left).unwrap_or(PIECE));
            if !self.write(&piece[..most], &mut sent)? {
                sent.waits += 1;
                self.wait()?;
            }
        }
        sent.to_ns = monotonic_ns();
        sent.desired = rate.map(|rate| rate as f64 * (sent.to_ns.min(end) - start) as f64 / 1e9);
        let infos = self.streams.iter().map(bonsai_host::sockets::tcp_info);
        let infos = infos.collect::<Result<Vec<_>, _>>().context("TCP_INFO")?;
        let segment = infos.first().map_or(1_448, |info| info.segment.max(1));
        // 52: what IPv4, TCP and its time stamps take of the MTU.
        sent.layer2 = tcp_frames(sent.payload, segment + 52);
        sent.connections = infos.into_iter().map(Connection::from).collect();
        sent.cpu_s = cost.seconds();
        Ok(sent)
    }

    /// Offers a piece to each connection in turn; whether one took something.
    fn write(&self, piece: &[u8], sent: &mut Sent) -> anyhow::Result<bool> {
        let mut wrote = false;
        for (mut stream, count) in self.streams.iter().zip(&mut sent.flows) {
            match stream.write(piece) {
                Ok(bytes) => {
                    let bytes = u64::try_from(bytes)?;
                    *count += bytes;
                    sent.payload += bytes;
                    wrote = true;
                    if self.spec.rate.is_some() || self.spec.bytes.is_some() {
                        // What is due was given away, perhaps.
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("cannot be written"),
            }
        }
        Ok(wrote)
    }

    fn wait(&self) -> anyhow::Result<()> {
        let fds = self.streams.iter();
        let mut fds: Vec<_> = fds.map(|s| PollFd::new(s, PollFlags::OUT)).collect();
        wait(&mut fds)
    }
}

/// Where connections come in.
#[derive(Debug)]
pub(crate) struct Receiver {
    listener: TcpListener,
    mtu: u64,
}

impl Receiver {
    /// A socket in the namespace of the calling thread; port 0 is one that is free. The MTU is that
    /// of the way, to know how many segments there were.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn open(port: u16, mtu: u64) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
            .with_context(|| format!("port {port}"))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, mtu })
    }

    /// The port.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn port(&self) -> anyhow::Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    /// Takes what comes until `stop` is set and nothing has come for as long as `quiet`, or all
    /// connections have ended after it.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn run(&self, stop: &AtomicBool, quiet: Duration) -> anyhow::Result<Received> {
        let cost = Cost::start();
        let mut received = Received {
            stamps: "program".to_owned(),
            ..Received::default()
        };
        let mut streams: Vec<Option<TcpStream>> = Vec::new();
        let quiet = u64::try_from(quiet.as_nanos())?;
        let mut last = monotonic_ns();
        loop {
            self.accept(&mut streams, &mut received)?;
            let now = monotonic_ns();
            if self.read(&mut streams, &mut received, now)? {
                last = now;
                continue;
            }
            let is_over = streams.iter().all(Option::is_none) && !streams.is_empty();
            if stop.load(Ordering::Relaxed) && (is_over || now - last > quiet) {
                break;
            }
            let all = streams.iter().flatten();
            let mut fds: Vec<_> = all.map(|s| PollFd::new(s, PollFlags::IN)).collect();
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
            wait(&mut fds)?;
        }
        for counts in &mut received.flows {
            counts.layer2 = tcp_frames(counts.payload, self.mtu);
        }
        received.cpu_s = cost.seconds();
        Ok(received)
    }

    fn accept(
        &self,
        streams: &mut Vec<Option<TcpStream>>,
        received: &mut Received,
    ) -> anyhow::Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    streams.push(Some(stream));
                    received.flows.push(Counts::default());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("cannot be accepted"),
            }
        }
    }

    /// Takes a piece from each; whether there was one. The bytes stay in the kernel.
    fn read(
        &self,
        streams: &mut [Option<TcpStream>],
        received: &mut Received,
        now_ns: u64,
    ) -> anyhow::Result<bool> {
        let mut any = false;
        for (place, counts) in streams.iter_mut().zip(&mut received.flows) {
            let Some(stream) = place else { continue };
            let mut buffer = [std::mem::MaybeUninit::<u8>::uninit(); 65_536];
            // MSG_TRUNC on a TCP socket: bytes are taken and not copied (tcp(7)).
            let flags = RecvFlags::TRUNC | RecvFlags::DONTWAIT;
            match recv(&*stream, &mut buffer, flags) {
                Ok((_, 0)) => *place = None,
                Ok((_, bytes)) => {
                    let bytes = u64::try_from(bytes)?;
                    counts.payload += bytes;
                    received.series.add(now_ns, tcp_mean(bytes, self.mtu));
                    any = true;
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(_) => *place = None,
            }
        }
        Ok(any)
    }
}

/// Bytes of layer 2 of a part of a stream: of so many full segments and a part of one.
const fn tcp_mean(payload: u64, mtu: u64) -> u64 {
    payload * (mtu + 14) / (mtu - 52)
}
