//! A stream of traffic with both of its ends.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::ValueEnum;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use rustix::event::{PollFd, Timespec, poll};
use rustix::thread::{NanosleepRelativeResult, nanosleep};
use serde::{Deserialize, Serialize};

use super::meter::{Counts, Delays};
use super::rooms::Room;
use super::series::{Arrivals, Series};
use super::tcp::Connection;
use super::{tcp, udp};
use crate::service::monotonic_ns;

/// How long nobody looks at a flag.
const TURN: Duration = Duration::from_millis(20);

/// A sender that brought less than this of what it was asked for casts doubt on its measurement.
const LEAST_ACHIEVED: f64 = 0.995;
/// So does one of which so many packets were late.
const MOST_LATE: f64 = 0.01;

/// What carries the bytes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Protocol {
    /// Datagrams.
    Udp,
    /// Connections.
    Tcp,
}

/// What is sent.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct SendSpec {
    /// What carries it.
    pub(crate) protocol: Protocol,
    /// So many flows, with ports of their own.
    pub(crate) flows: u16,
    /// Bytes of payload of a datagram.
    pub(crate) message: u32,
    /// Of all flows together, bytes a second: of layer 2 for datagrams, of payload for connections.
    /// `None`: as much as goes.
    pub(crate) rate: Option<u64>,
    /// So many datagrams in one call (UDP_SEGMENT): one for exact spacing, more for high rates.
    pub(crate) segments: u16,
    /// What a socket may have waiting, bytes as SO_SNDBUF counts them.
    pub(crate) queue: Option<u32>,
    /// Congestion control of connections; `None`: the machine's.
    pub(crate) congestion: Option<String>,
    /// For so many ns.
    pub(crate) length_ns: u64,
    /// Or until so many bytes were sent, counted as the rate is.
    pub(crate) bytes: Option<u64>,
    /// From this instant of CLOCK_MONOTONIC on, ns.
    pub(crate) start_ns: Option<u64>,
}

impl SendSpec {
    /// Datagrams of 1400 bytes, at a rate or as many as the socket takes.
    pub(crate) fn udp(rate: Option<u64>, length: Duration) -> Self {
        Self {
            protocol: Protocol::Udp,
            flows: 1,
            message: 1_400,
            rate,
            segments: 1,
            queue: None,
            congestion: None,
            length_ns: u64::try_from(length.as_nanos()).unwrap_or(u64::MAX),
            bytes: None,
            start_ns: None,
        }
    }

    /// Connections that send as much as goes.
    pub(crate) fn tcp(flows: u16, congestion: &str, length: Duration) -> Self {
        Self {
            protocol: Protocol::Tcp,
            flows,
            congestion: Some(congestion.to_owned()),
            ..Self::udp(None, length)
        }
    }

    /// Waits for the start; says when it was.
    pub(crate) fn wait_for_start(&self, stop: &AtomicBool) -> u64 {
        let Some(start) = self.start_ns else {
            return monotonic_ns();
        };
        loop {
            let now = monotonic_ns();
            if now >= start || stop.load(Ordering::Relaxed) {
                return start.min(now);
            }
            sleep_until(start.min(now + 20_000_000));
        }
    }

    /// When it ends at the latest.
    pub(crate) const fn end_ns(&self, start_ns: u64) -> u64 {
        start_ns.saturating_add(self.length_ns)
    }

    /// Bytes that are still to be sent.
    pub(crate) fn left(&self, sent: u64) -> u64 {
        self.bytes
            .map_or(u64::MAX, |bytes| bytes.saturating_sub(sent))
    }

    /// Whether there are any.
    pub(crate) fn is_more(&self, sent: u64) -> bool {
        self.left(sent) > 0
    }
}

/// What was sent.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Sent {
    /// Datagrams of each flow, or bytes of each connection.
    pub(crate) flows: Vec<u64>,
    /// Bytes of payload.
    pub(crate) payload: u64,
    /// Bytes of layer 2.
    pub(crate) layer2: u64,
    /// The first instant and the last, ns.
    pub(crate) from_ns: u64,
    /// See `from_ns`.
    pub(crate) to_ns: u64,
    /// What the rate asked for in that time, bytes; `None` without one.
    pub(crate) desired: Option<f64>,
    /// Calls that had an instant.
    pub(crate) instants: u64,
    /// Of these, calls that came more than 1 ms after it.
    pub(crate) late: u64,
    /// The latest, ns.
    pub(crate) latest_ns: u64,
    /// How many times no socket had room.
    pub(crate) waits: u64,
    /// Connections at their end.
    pub(crate) connections: Vec<Connection>,
    /// CPU time of the sender, s. Where both ends are on one machine, most of the way is in it.
    pub(crate) cpu_s: f64,
}

impl Sent {
    /// Nothing yet, on so many flows.
    pub(crate) fn new(flows: usize) -> Self {
        Self {
            flows: vec![0; flows],
            ..Self::default()
        }
    }

    /// A call came so much after its instant.
    pub(crate) fn delayed(&mut self, ns: u64, late_ns: u64) {
        self.instants += 1;
        self.late += u64::from(ns > late_ns);
        self.latest_ns = self.latest_ns.max(ns);
    }

    /// Bytes that were sent of those that the rate asked for; `None` without a rate.
    pub(crate) fn achieved(&self) -> Option<f64> {
        let bytes = if self.connections.is_empty() {
            self.layer2
        } else {
            self.payload
        };
        self.desired.map(|desired| bytes as f64 / desired.max(1.0))
    }

    /// Why the generator itself may be at fault.
    pub(crate) fn doubt(&self) -> Option<String> {
        if let Some(achieved) = self.achieved().filter(|part| *part < LEAST_ACHIEVED) {
            return Some(format!(
                "the sender brought {:.1} % of its rate",
                achieved * 100.0
            ));
        }
        let late = self.late as f64 / self.instants.max(1) as f64;
        (late > MOST_LATE).then(|| {
            format!(
                "the sender was late with {:.1} % of its packets, by up to {:.0} ms",
                late * 100.0,
                self.latest_ns as f64 / 1e6
            )
        })
    }

    /// Segments that all connections sent again.
    pub(crate) fn retransmitted(&self) -> u64 {
        self.connections.iter().map(|c| c.retransmitted).sum()
    }
}

/// What was received.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Received {
    /// Of each flow.
    pub(crate) flows: Vec<Counts>,
    /// One-way delays; of datagrams only.
    pub(crate) delays: Delays,
    /// Whose instants: the `kernel`'s, or the `program`'s when it read.
    pub(crate) stamps: String,
    /// Bytes of layer 2 over time.
    pub(crate) series: Series,
    /// Each packet, where that was asked for.
    pub(crate) arrivals: Option<Arrivals>,
    /// What the socket had no room for: the receiver's own fault.
    pub(crate) dropped_at_socket: u64,
    /// Datagrams that were none of ours.
    pub(crate) strangers: u64,
    /// CPU time of the receiver, s.
    pub(crate) cpu_s: f64,
}

impl Received {
    /// All flows together.
    pub(crate) fn total(&self) -> Counts {
        let none = Counts::default();
        self.flows.iter().fold(none, |sum, counts| sum.and(counts))
    }
}

/// Both ends.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Outcome {
    /// What was sent.
    pub(crate) sent: Sent,
    /// What was received.
    pub(crate) received: Received,
}

impl Outcome {
    /// Datagrams that did not come, of all flows.
    pub(crate) fn lost(&self) -> u64 {
        let none = Counts::default();
        let flows = self.sent.flows.iter().enumerate();
        flows
            .map(|(i, sent)| self.received.flows.get(i).unwrap_or(&none).lost(*sent))
            .sum()
    }

    /// Why the generator itself may be at fault.
    pub(crate) fn doubt(&self) -> Option<String> {
        let dropped = self.received.dropped_at_socket;
        if dropped > 0 {
            return Some(format!(
                "the receiver's socket had no room for {dropped} packets"
            ));
        }
        self.sent.doubt()
    }

    /// Without what is kept of single packets, and in coarser bins: for a record.
    #[must_use]
    pub(crate) fn brief(mut self, coarser: usize) -> Self {
        self.received.arrivals = None;
        self.received.series = self.received.series.coarser(coarser);
        self
    }
}

/// CPU time of the calling thread (`getrusage`, `RUSAGE_THREAD`).
#[derive(Debug)]
pub(crate) struct Cost(f64);

impl Cost {
    /// From now on.
    pub(crate) fn start() -> Self {
        Self(Self::now())
    }

    /// Since then, s.
    pub(crate) fn seconds(&self) -> f64 {
        Self::now() - self.0
    }

    fn now() -> f64 {
        let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        getrusage(UsageWho::RUSAGE_THREAD).map_or(0.0, |usage| {
            seconds(usage.user_time()) + seconds(usage.system_time())
        })
    }
}

/// Waits until one is ready, but not for long.
pub(super) fn wait(fds: &mut [PollFd<'_>]) -> anyhow::Result<()> {
    let turn = Timespec::try_from(TURN).unwrap_or_default();
    match poll(fds, Some(&turn)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno).context("poll"),
    }
}

/// Sleeps until an instant of CLOCK_MONOTONIC, ns.
pub(crate) fn sleep_until(at_ns: u64) {
    let left = at_ns.saturating_sub(monotonic_ns());
    if left == 0 {
        return;
    }
    let mut left = rustix::time::Timespec {
        tv_sec: i64::try_from(left / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(left % 1_000_000_000).unwrap_or(0),
    };
    while let NanosleepRelativeResult::Interrupted(rest) = nanosleep(&left) {
        left = rest;
    }
}

/// What has instants goes before what only wants much: the measure of others must not wait for them.
const NICE: i32 = -15;

/// Up to that rate, bytes a second, a sender sleeps nearly all of the time, so that it may go before
/// everything.
const LIGHT: u64 = 90 * 125_000;

/// The calling thread wakes up at its instants, not 50 microseconds later, and goes before others.
fn be_exact(rate: Option<u64>) {
    // Where that is not granted, the sender is late, which is measured.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    if rate.is_some_and(|rate| rate <= LIGHT) && bonsai_cgroup::cpu::go_first().is_ok() {
        return;
    }
    // On Linux it is of a thread (setpriority(2)).
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// Which room, and its address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// The namespace.
    pub(crate) room: &'a Room,
    /// An address of it.
    pub(crate) address: Ipv4Addr,
}

/// Traffic under way. When it is dropped, both ends are asked to end.
#[derive(Debug)]
pub(crate) struct Traffic {
    stop_sender: Arc<AtomicBool>,
    stop_receiver: Arc<AtomicBool>,
    sender: Option<JoinHandle<anyhow::Result<Sent>>>,
    receiver: Option<JoinHandle<anyhow::Result<Received>>>,
    quiet: Duration,
}

/// How a receiver listens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listen {
    /// Whether each arrival is kept.
    pub(crate) arrivals: bool,
    /// It ends when nothing has come for so long after the sender's end.
    pub(crate) quiet: Duration,
    /// The MTU of the way.
    pub(crate) mtu: u64,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            arrivals: false,
            quiet: Duration::from_millis(150),
            mtu: 1_500,
        }
    }
}

impl Traffic {
    /// Opens both ends and begins to send.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn start(
        from: &Room,
        to: Place<'_>,
        spec: &SendSpec,
        listen: Listen,
    ) -> anyhow::Result<Self> {
        let (stop_sender, stop_receiver) = (Arc::default(), Arc::default());
        let Listen {
            arrivals,
            quiet,
            mtu,
        } = listen;
        let stop = Arc::clone(&stop_receiver);
        let (port, receiver) = match spec.protocol {
            Protocol::Udp => {
                let end = to.room.within(|| udp::Receiver::open(0, arrivals))??;
                let port = end.port()?;
                let receive = move || {
                    be_exact(None);
                    end.run(&stop, quiet)
                };
                (port, thread("receiver", receive)?)
            }
            Protocol::Tcp => {
                let end = to.room.within(|| tcp::Receiver::open(0, mtu))??;
                (
                    end.port()?,
                    thread("receiver", move || end.run(&stop, quiet))?,
                )
            }
        };
        let mut traffic = Self {
            stop_sender,
            stop_receiver,
            sender: None,
            receiver: Some(receiver),
            quiet,
        };
        let to = SocketAddrV4::new(to.address, port);
        let stop = Arc::clone(&traffic.stop_sender);
        traffic.sender = Some(match spec.protocol {
            Protocol::Udp => {
                let end = from.within(|| udp::Sender::open(spec, to))??;
                // One that leaves nothing but a little waiting has to be there in time as well.
                let is_paced = spec.rate.is_some() || spec.queue.is_some();
                let rate = spec.rate;
                thread("sender", move || {
                    if is_paced {
                        be_exact(rate);
                    }
                    end.run(&stop)
                })?
            }
            Protocol::Tcp => {
                let end = from.within(|| tcp::Sender::open(spec, to))??;
                thread("sender", move || end.run(&stop))?
            }
        });
        Ok(traffic)
    }

    /// Whether it still sends.
    pub(crate) fn is_sending(&self) -> bool {
        self.sender
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }

    /// Asks the sender to end; what is under way still comes.
    pub(crate) fn ask_to_end(&self) {
        self.stop_sender.store(true, Ordering::Relaxed);
    }

    /// Waits until the sender has ended by itself, and nothing comes any more.
    ///
    /// # Errors
    /// One of both ends has failed.
    pub(crate) fn wait(mut self) -> anyhow::Result<Outcome> {
        let sender = self.sender.take();
        let sent = join(sender, "sender");
        if sent.is_ok() {
            // The last packet may be on its way, after a long silence.
            std::thread::sleep(self.quiet / 4);
        }
        self.stop_receiver.store(true, Ordering::Relaxed);
        let received = join(self.receiver.take(), "receiver");
        Ok(Outcome {
            sent: sent?,
            received: received?,
        })
    }
}

fn thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<JoinHandle<anyhow::Result<T>>> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(work).context("no thread can be started")
}

fn join<T>(thread: Option<JoinHandle<anyhow::Result<T>>>, name: &str) -> anyhow::Result<T> {
    let thread = thread.with_context(|| format!("the {name} was never started"))?;
    let joined = thread.join();
    joined.map_err(|_| anyhow!("the {name} panicked"))?
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop_sender.store(true, Ordering::Relaxed);
        self.stop_receiver.store(true, Ordering::Relaxed);
        // Their results are of no use any more.
        let _ = self.sender.take().map(JoinHandle::join);
        let _ = self.receiver.take().map(JoinHandle::join);
    }
}
