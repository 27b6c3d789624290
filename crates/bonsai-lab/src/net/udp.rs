//! Datagrams with numbers and instants: open loop at a rate, or as fast as the socket takes them.

use std::io::{ErrorKind, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use bonsai_stats::LogHistogram;
use nix::sys::socket::sockopt::{
    RcvBufForce, ReceiveTimestampns, RxqOvfl, SndBufForce, UdpGroSegment, UdpGsoSegment,
};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, setsockopt};
use rustix::event::{PollFd, PollFlags};
use rustix::time::{ClockId, clock_gettime};

use super::meter::{Delays, Flow};
use super::packet::{MARK, Mark, udp_frame};
use super::series::{Arrivals, Series};
use super::traffic::{Cost, Received, SendSpec, Sent, sleep_until, wait};
use crate::service::monotonic_ns;

/// Most bytes in one call: what IPv4 allows, less headers.
const MOST_BYTES: usize = 65_000;
/// Most segments in one call (`UDP_MAX_SEGMENTS` before Linux 6.2).
const MOST_SEGMENTS: usize = 64;
/// What the kernel keeps for a receiver that cannot run for a while: 64 ms of 1 Gbit/s.
const RECEIVE_BUFFER: usize = 16 << 20;
/// A packet that leaves so much after its instant was late: more than a timer of the kernel is.
const LATE_NS: u64 = 1_000_000;
/// How often the clocks of time stamps and of marks are compared.
const CLOCKS_NS: u64 = 100_000_000;

/// The sockets of a sender.
#[derive(Debug)]
pub(crate) struct Sender {
    spec: SendSpec,
    sockets: Vec<UdpSocket>,
    /// Of one call, as many segments as go at once.
    segments: usize,
}

impl Sender {
    /// Sockets in the namespace of the calling thread.
    ///
    /// # Errors
    /// A message is too short or too long, or what the system says.
    pub(crate) fn open(spec: &SendSpec, to: SocketAddrV4) -> anyhow::Result<Self> {
        let message = usize::try_from(spec.message)?;
        anyhow::ensure!(
            (MARK..=MOST_BYTES).contains(&message),
            "a message of {message} bytes: it has to be of {MARK} to {MOST_BYTES}"
        );
        let most = (MOST_BYTES / message).min(MOST_SEGMENTS);
        let segments = usize::from(spec.segments).clamp(1, most);
        let open = |_| -> anyhow::Result<UdpSocket> {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect(to).with_context(|| format!("{to}"))?;
            socket.set_nonblocking(true)?;
            if let Some(bytes) = spec.queue {
                setsockopt(&socket, SndBufForce, &usize::try_from(bytes)?)
                    .context("SO_SNDBUFFORCE")?;
            }
            if segments > 1 {
                let length = i32::try_from(message)?;
                setsockopt(&socket, UdpGsoSegment, &length).context("UDP_SEGMENT")?;
            }
            Ok(socket)
        };
        let sockets = (0..spec.flows.max(1)).map(open);
        Ok(Self {
            spec: spec.clone(),
            sockets: sockets.collect::<anyhow::Result<_>>()?,
            segments,
        })
    }

    /// Sends until the time is over, or `stop` is set.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn run(&self, stop: &AtomicBool) -> anyhow::Result<Sent> {
        let cost = Cost::start();
        let message = usize::try_from(self.spec.message)?;
        let per_call = u64::try_from(self.segments)?;
        let frame = udp_frame(self.spec.message.into());
        let mut sent = Sent::new(self.sockets.len());
        let mut buffer = vec![0x5a; message * self.segments];
        let start = self.spec.wait_for_start(stop);
        let end = self.spec.end_ns(start);
        sent.from_ns = start;
        // How many bytes of layer 2 are due, and when: whole calls, in the order of the flows.
        let rate = self.spec.rate.map(|rate| rate.max(1));
        let mut calls: u64 = 0;
        let mut turn = 0;
        while !stop.load(Ordering::Relaxed) && self.spec.is_more(sent.layer2) {
            let now = monotonic_ns();
            if now >= end {
                break;
            }
            if let Some(rate) = rate {
                let due = start + part(calls * per_call * frame, rate);
                if due >= end {
                    sleep_until(end.min(now + 20_000_000));
                    continue;
                }
                if due > now {
                    // In turns: somebody may want it to end.
                    sleep_until(due.min(now + 20_000_000));
                    if monotonic_ns() < due {
                        continue;
                    }
                }
                sent.delayed(monotonic_ns().saturating_sub(due), LATE_NS);
            }
            let Some(flow) = self.send(&mut buffer, message, turn, &mut sent)? else {
                continue;
            };
            turn = (flow + 1) % self.sockets.len();
            calls += 1;
        }
        sent.to_ns = monotonic_ns();
        sent.desired = rate.map(|rate| rate as f64 * (sent.to_ns.min(end) - start) as f64 / 1e9);
        sent.cpu_s = cost.seconds();
        Ok(sent)
    }

    /// Sends what one call takes on the first flow from `turn` on that has room; says on which. `None`
    /// where none has, after a while.
    fn send(
        &self,
        buffer: &mut [u8],
        message: usize,
        turn: usize,
        sent: &mut Sent,
    ) -> anyhow::Result<Option<usize>> {
        let count = self.sockets.len();
        for flow in (turn..count).chain(0..turn) {
            let first = sent.flows[flow];
            let sent_ns = monotonic_ns();
            for (i, segment) in buffer.chunks_exact_mut(message).enumerate() {
                let mark = Mark {
                    flow: u32::try_from(flow)?,
                    seq: first + u64::try_from(i)?,
                    sent_ns,
                };
                mark.write(segment);
            }
            match self.sockets[flow].send(buffer) {
                Ok(_) => {
                    let packets = u64::try_from(self.segments)?;
                    sent.flows[flow] += packets;
                    sent.payload += packets * u64::try_from(message)?;
                    sent.layer2 += packets * udp_frame(u64::try_from(message)?);
                    return Ok(Some(flow));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The receiver has gone first.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error).context("cannot be sent"),
            }
        }
        let mut fds: Vec<PollFd<'_>> = self
            .sockets
            .iter()
            .map(|socket| PollFd::new(socket, PollFlags::OUT))
            .collect();
        sent.waits += 1;
        wait(&mut fds)?;
        Ok(None)
    }
}

/// `bytes / rate` in ns.
fn part(bytes: u64, rate: u64) -> u64 {
    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// The socket of a receiver.
#[derive(Debug)]
pub(crate) struct Receiver {
    socket: UdpSocket,
    /// Whether every arrival is kept.
    arrivals: bool,
}

impl Receiver {
    /// A socket in the namespace of the calling thread; port 0 is one that is free.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn open(port: u16, arrivals: bool) -> anyhow::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))
            .with_context(|| format!("port {port}"))?;
        setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER).context("SO_RCVBUFFORCE")?;
        setsockopt(&socket, ReceiveTimestampns, &true).context("SO_TIMESTAMPNS")?;
        setsockopt(&socket, RxqOvfl, &1).context("SO_RXQ_OVFL")?;
        // Segments that come together are read together.
        setsockopt(&socket, UdpGroSegment, &true).context("UDP_GRO")?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, arrivals })
    }

    /// The port.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn port(&self) -> anyhow::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    /// Receives until `stop` is set and nothing has come for as long as `quiet`.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn run(&self, stop: &AtomicBool, quiet: Duration) -> anyhow::Result<Received> {
        let cost = Cost::start();
        let mut ledger = Ledger::new(self.arrivals);
        let mut buffer = vec![0_u8; 1 << 16];
        let mut ancillary = nix::cmsg_space!([u8; 128]);
        ancillary.resize(ancillary.capacity(), 0);
        let quiet = u64::try_from(quiet.as_nanos())?;
        let mut last = monotonic_ns();
        loop {
            let now = monotonic_ns();
            ledger.clocks.compare(now);
            if ledger.take(&self.socket, &mut buffer, &mut ancillary)? {
                last = now;
                continue;
            }
            if stop.load(Ordering::Relaxed) && now - last > quiet {
                break;
            }
            wait(&mut [PollFd::new(&self.socket, PollFlags::IN)])?;
        }
        let mut received = ledger.close();
        received.cpu_s = cost.seconds();
        Ok(received)
    }
}

/// How far the clock of time stamps is ahead of that of marks.
#[derive(Debug, Default)]
struct Clocks {
    compared_ns: u64,
    ahead_ns: u64,
}

impl Clocks {
    fn compare(&mut self, now_ns: u64) {
        if self.compared_ns != 0 && now_ns < self.compared_ns + CLOCKS_NS {
            return;
        }
        // Whoever is interrupted between the two readings reads again.
        let mut best = u64::MAX;
        for _ in 0..3 {
            let before = monotonic_ns();
            let real = clock_gettime(ClockId::Realtime);
            let after = monotonic_ns();
            if after - before < best {
                best = after - before;
                let real = ns(real.tv_sec, real.tv_nsec);
                self.ahead_ns = real.saturating_sub(before + best / 2);
            }
        }
        self.compared_ns = now_ns;
    }
}

fn ns(seconds: i64, ns: i64) -> u64 {
    let seconds = u64::try_from(seconds).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(ns).unwrap_or(0)
}

/// What has come so far.
#[derive(Debug)]
struct Ledger {
    clocks: Clocks,
    flows: Vec<Flow>,
    delays: LogHistogram,
    most_ns: u64,
    series: Series,
    arrivals: Option<Arrivals>,
    stamped: bool,
    dropped: u64,
    strangers: u64,
}

/// More flows than this no sender has.
const MOST_FLOWS: usize = 4_096;

impl Ledger {
    fn new(arrivals: bool) -> Self {
        Self {
            clocks: Clocks::default(),
            flows: Vec::new(),
            delays: LogHistogram::default(),
            most_ns: 0,
            series: Series::default(),
            arrivals: arrivals.then(Arrivals::default),
            stamped: true,
            dropped: 0,
            strangers: 0,
        }
    }

    /// Reads once; `false` where nothing has come.
    fn take(
        &mut self,
        socket: &UdpSocket,
        buffer: &mut [u8],
        ancillary: &mut [u8],
    ) -> anyhow::Result<bool> {
        let (bytes, segment, stamp) = {
            let mut slices = [IoSliceMut::new(buffer)];
            let flags = MsgFlags::MSG_DONTWAIT;
            let message = match recvmsg::<SockaddrIn>(
                socket.as_raw_fd(),
                &mut slices,
                Some(ancillary),
                flags,
            ) {
                Ok(message) => message,
                Err(nix::Error::EAGAIN | nix::Error::EINTR) => return Ok(false),
                Err(error) => return Err(error).context("cannot be received"),
            };
            let (mut segment, mut stamp) = (message.bytes, None);
            for control in message.cmsgs()? {
                match control {
                    ControlMessageOwned::ScmTimestampns(at) => {
                        stamp = Some(ns(at.tv_sec(), at.tv_nsec()));
                    }
                    ControlMessageOwned::UdpGroSegments(size) => {
                        segment = usize::try_from(size).unwrap_or(segment).max(1);
                    }
                    ControlMessageOwned::RxqOvfl(dropped) => self.dropped = dropped.into(),
                    _ => {}
                }
            }
            (message.bytes, segment, stamp)
        };
        let at = stamp.map(|real| real.saturating_sub(self.clocks.ahead_ns));
        self.stamped &= at.is_some();
        let at = at.unwrap_or_else(monotonic_ns);
        for packet in buffer[..bytes].chunks(segment.max(1)) {
            self.packet(packet, at);
        }
        Ok(true)
    }

    fn packet(&mut self, packet: &[u8], at_ns: u64) {
        let mark = Mark::read(packet);
        let flow = mark.and_then(|mark| usize::try_from(mark.flow).ok());
        let (Some(mark), Some(flow)) = (mark, flow.filter(|flow| *flow < MOST_FLOWS)) else {
            self.strangers += 1;
            return;
        };
        if self.flows.len() <= flow {
            self.flows.resize_with(flow + 1, Flow::default);
        }
        let payload = packet.len() as u64;
        let layer2 = udp_frame(payload);
        self.flows[flow].packet(mark.seq, payload, layer2);
        let delay = at_ns.saturating_sub(mark.sent_ns);
        self.delays.record(delay);
        self.most_ns = self.most_ns.max(delay);
        self.series.add(at_ns, layer2);
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.add(at_ns, u32::try_from(layer2).unwrap_or(u32::MAX));
        }
    }

    fn close(self) -> Received {
        Received {
            flows: self.flows.iter().map(Flow::counts).collect(),
            delays: Delays::new(&self.delays, self.most_ns),
            stamps: if self.stamped {
                "kernel".to_owned()
            } else {
                "program".to_owned()
            },
            series: self.series,
            arrivals: self.arrivals,
            dropped_at_socket: self.dropped,
            strangers: self.strangers,
            cpu_s: 0.0,
        }
    }
}
