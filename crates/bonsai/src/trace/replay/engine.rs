//! What is sent when, and what came back.
//!
//! # Story
//! One thread has all connections. Orders are sent in the order of the trace: the next one waits until it is due, until
//! there are fewer under way than `--depth` and [`MOST_BYTES`], and until nothing is under way that it may not pass.
//!
//! # Invariants
//! 1. Of two orders that touch the same bytes, and of which one changes them, the second is sent when the first is done.
//! 2. A flush is sent when all writes before it on its device are done.
//! 3. What a read has to find is decided when it is sent.

use std::collections::HashMap;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use bonsai_nbd::client::{Ask, Connection, Event, OpenError};
use bonsai_nbd::protocol::{Command, flags};
use bonsai_trace::twin::fill;
use bonsai_trace::{BLOCK, Digest, Op};
use indicatif::ProgressBar;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::check::{BYTES, Disks, compare};
use super::feed::{Feed, Order};
use super::report::{Tally, Wrong};
use crate::cli::{Speed, TraceReplay};
use crate::trace::import::said;

/// Bytes of reads and writes under way, at most; one request always may be.
const MOST_BYTES: u64 = 64 << 20;

/// How long servers may all say nothing while they have requests.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often the bar is moved.
const BAR: Duration = Duration::from_millis(100);

/// A device of the trace, and its export.
#[derive(Debug)]
pub(super) struct Link {
    device: String,
    connection: Connection,
    flights: HashMap<u64, Flight>,
    /// Of these, those that change something.
    changing: usize,
}

/// An order under way.
#[derive(Debug)]
struct Flight {
    order: Order,
    sent: Instant,
    /// Of a read that is checked: what each block has to hold, and what came.
    expected: Vec<Option<Digest>>,
    bytes: Vec<u8>,
}

/// A replay.
#[derive(Debug)]
pub(super) struct Engine {
    links: Vec<Link>,
    /// Numbers of links by numbers of volumes.
    by_volume: Vec<Option<usize>>,
    speed: Speed,
    depth: usize,
    disks: Option<Disks>,
    tally: Tally,
    in_flight: usize,
    bytes_in_flight: u64,
    begun: Instant,
    first_ns: Option<u64>,
    /// Memory of writes.
    payload: Vec<u8>,
    filled: u64,
}

/// Whether an order can be sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Ready {
    Now,
    /// Not before then.
    At(Instant),
    /// Not before something is done.
    Later,
}

impl Link {
    pub(super) fn new(device: String, connection: Connection) -> Self {
        Self {
            device,
            connection,
            flights: HashMap::new(),
            changing: 0,
        }
    }

    /// Bytes of a request, at most.
    pub(super) const fn max_payload(&self) -> u32 {
        self.connection.agreed().max_payload
    }

    /// Whether an order may be sent while those are under way that are.
    fn lets_pass(&self, order: &Order) -> bool {
        match order.op {
            Op::Read if self.changing == 0 => true,
            Op::Flush => self.changing == 0,
            _ => !self.flights.values().any(|flight| {
                let of = &flight.order;
                let apart = of.offset + u64::from(of.length) <= order.offset
                    || order.offset + u64::from(order.length) <= of.offset;
                !apart && (changes(of.op) || changes(order.op))
            }),
        }
    }
}

const fn changes(op: Op) -> bool {
    matches!(op, Op::Write | Op::Trim)
}

impl Engine {
    /// Nothing is sent yet.
    ///
    /// # Errors
    /// As [`Tally::new`].
    pub(super) fn new(
        args: &TraceReplay,
        links: Vec<Link>,
        by_volume: Vec<Option<usize>>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            links,
            by_volume,
            speed: args.speed,
            depth: args.depth as usize,
            disks: args.check.then(Disks::default),
            tally: Tally::new()?,
            in_flight: 0,
            bytes_in_flight: 0,
            begun: Instant::now(),
            first_ns: None,
            payload: Vec::new(),
            filled: 0,
        })
    }

    /// Replays all that comes from `feed`.
    ///
    /// # Errors
    /// A server has gone, or the trace is damaged.
    pub(super) fn run(
        mut self,
        feed: &Feed,
        name: &str,
        bar: &ProgressBar,
    ) -> anyhow::Result<Tally> {
        let mut shown = Instant::now();
        while let Some(chunk) = feed.next().map_err(|error| said(name, error))? {
            let mut next = 0;
            while let Some((order, contents)) = chunk.get(next) {
                let now = Instant::now();
                match self.ready(&order, now) {
                    Ready::Now => {
                        self.send(order, contents, now)?;
                        next += 1;
                    }
                    Ready::At(due) => self.turn(due.saturating_duration_since(now), true)?,
                    Ready::Later => self.turn(PATIENCE, false)?,
                }
                if now.duration_since(shown) > BAR {
                    shown = now;
                    bar.set_position(self.tally.records);
                }
            }
        }
        while self.in_flight > 0 {
            self.turn(PATIENCE, false)?;
        }
        self.tally.wall = self.begun.elapsed();
        Ok(self.tally)
    }

    fn ready(&mut self, order: &Order, now: Instant) -> Ready {
        if let Speed::Times(factor) = self.speed {
            let due = self.due(order, factor);
            if due > now {
                return Ready::At(due);
            }
        }
        let is_full = self.in_flight >= self.depth
            || self.in_flight > 0 && self.bytes_in_flight + u64::from(order.length) > MOST_BYTES;
        let link = self.link(order);
        let passes = link.is_none_or(|at| self.links[at].lets_pass(order));
        if order.is_left_out || !is_full && passes {
            Ready::Now
        } else {
            Ready::Later
        }
    }

    fn due(&mut self, order: &Order, factor: f64) -> Instant {
        let first = *self.first_ns.get_or_insert(order.time_ns);
        let since = Duration::from_nanos(order.time_ns.saturating_sub(first));
        self.begun + since.div_f64(factor)
    }

    fn link(&self, order: &Order) -> Option<usize> {
        self.by_volume.get(order.volume as usize).copied().flatten()
    }

    fn send(&mut self, order: Order, contents: &[Digest], now: Instant) -> anyhow::Result<()> {
        self.tally.records += u64::from(order.records);
        let mut expected = Vec::new();
        if let Some(disks) = &mut self.disks {
            disks.take(&order, contents, &mut expected);
        }
        let Some(at) = self.link(&order).filter(|_| !order.is_left_out) else {
            self.tally.left_out += u64::from(order.records);
            return Ok(());
        };
        let agreed = *self.links[at].connection.agreed();
        let can = match order.op {
            Op::Read | Op::Write => true,
            Op::Trim => agreed.has(flags::SEND_TRIM),
            Op::Flush => agreed.has(flags::SEND_FLUSH),
        };
        if !can {
            self.tally.not_taken += u64::from(order.records);
            return Ok(());
        }
        if let Speed::Times(factor) = self.speed {
            let due = self.due(&order, factor);
            self.tally.late(now.saturating_duration_since(due));
        }
        if order.op == Op::Write {
            self.write(&order, contents);
        }
        let command = match order.op {
            Op::Read => Command::Read,
            Op::Write => Command::Write,
            Op::Trim => Command::Trim,
            Op::Flush => Command::Flush,
        };
        let is_flush = order.op == Op::Flush;
        let ask = Ask {
            command,
            flags: 0,
            offset: if is_flush { 0 } else { order.offset },
            length: if is_flush { 0 } else { order.length },
        };
        let link = &mut self.links[at];
        let payload = if order.op == Op::Write {
            self.payload.as_slice()
        } else {
            &[]
        };
        let cookie = link.connection.ask(ask, payload);
        let checked = order.op == Op::Read && expected.iter().any(Option::is_some);
        let bytes = match checked {
            true => vec![0; order.length as usize],
            false => Vec::new(),
        };
        let flight = Flight {
            order,
            sent: now,
            expected,
            bytes,
        };
        link.flights.insert(cookie, flight);
        link.changing += usize::from(changes(order.op));
        self.in_flight += 1;
        self.bytes_in_flight += u64::from(order.length);
        // Requests that come together go with one call, at the next turn; data is not piled up for it.
        match order.op {
            Op::Write => link.connection.send().map_err(|error| gone(link, error)),
            _ => Ok(()),
        }
    }

    /// What a write writes.
    fn write(&mut self, order: &Order, contents: &[Digest]) {
        self.payload.clear();
        self.payload.resize(order.length as usize, 0);
        let (seed, filled) = (order.time_ns, &mut self.filled);
        let mut block = [0; BYTES];
        for (n, part) in self.payload.chunks_mut(block.len()).enumerate() {
            let digest = contents.get(n).copied().unwrap_or_else(|| {
                *filled += 1;
                Digest((u128::from(*filled) << 64 | u128::from(seed)).to_le_bytes())
            });
            fill(digest, &mut block);
            let length = part.len();
            part.copy_from_slice(&block[..length]);
        }
    }

    /// Waits until something happens, at most so long, and sees to it. `is_due`: that an order is due then, so that
    /// nothing happening is no fault.
    fn turn(&mut self, most: Duration, is_due: bool) -> anyhow::Result<()> {
        for link in &mut self.links {
            let sent = link.connection.send();
            sent.map_err(|error| gone(link, error))?;
        }
        let most = if is_due { most.min(PATIENCE) } else { most };
        let mut fds: Vec<PollFd<'_>> = self
            .links
            .iter()
            .map(|link| {
                let flags = match link.connection.is_sending() {
                    true => PollFlags::IN | PollFlags::OUT,
                    false => PollFlags::IN,
                };
                PollFd::from_borrowed_fd(link.connection.as_fd(), flags)
            })
            .collect();
        let timeout = Timespec::try_from(most).ok();
        let ready = match poll(&mut fds, timeout.as_ref()) {
            Ok(ready) => ready,
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error).context("poll"),
        };
        if ready == 0 && !is_due {
            return Err(anyhow!(
                "{} answered within {} s, and {} are under way",
                if self.links.len() == 1 {
                    "the server has not"
                } else {
                    "no server has"
                },
                PATIENCE.as_secs(),
                self.in_flight
            ));
        }
        let found: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (at, found) in found.into_iter().enumerate() {
            if found {
                self.see_to(at)?;
            }
        }
        Ok(())
    }

    fn see_to(&mut self, at: usize) -> anyhow::Result<()> {
        let Self {
            links,
            tally,
            in_flight,
            bytes_in_flight,
            ..
        } = self;
        let Link {
            device,
            connection,
            flights,
            changing,
        } = &mut links[at];
        let mut done = connection.send();
        if done.is_ok() {
            done = connection.receive(&mut |event| match event {
                Event::Data { cookie, at, bytes } => {
                    let flight = flights.get_mut(&cookie);
                    let place = flight.and_then(|of| of.bytes.get_mut(at as usize..));
                    let place = place.and_then(|place| place.get_mut(..bytes.len()));
                    if let Some(place) = place {
                        place.copy_from_slice(bytes);
                    }
                }
                // The memory is zero.
                Event::Zeroes { .. } => {}
                Event::Done { cookie, error } => {
                    if let Some(flight) = flights.remove(&cookie) {
                        *in_flight -= 1;
                        *bytes_in_flight -= u64::from(flight.order.length);
                        *changing -= usize::from(changes(flight.order.op));
                        landed(tally, device, &flight, error);
                    }
                }
            });
        }
        done.map_err(|error| gone(&self.links[at], error))
    }
}

/// Counts what is done.
fn landed(tally: &mut Tally, device: &str, flight: &Flight, error: Option<u32>) {
    let Flight {
        order,
        sent,
        expected,
        bytes,
    } = flight;
    tally.done(order, sent.elapsed());
    if let Some(error) = error {
        tally.failed(device, order, error);
        return;
    }
    tally.moved(order);
    if expected.is_empty() {
        return;
    }
    let compared = compare(bytes, expected);
    tally.checked += compared.blocks;
    tally.unchecked += expected.len() as u64 - compared.blocks;
    tally.wrong += compared.wrong;
    if let (Some(n), None) = (compared.first, &tally.first_wrong) {
        let found = bytes.get(n * BYTES..).unwrap_or_default();
        tally.first_wrong = Some(Wrong {
            device: device.to_owned(),
            offset: order.offset + n as u64 * BLOCK,
            expected: expected.get(n).copied().flatten().map(|of| of.to_string()),
            found: found.first_chunk::<16>().map(|of| Digest(*of).to_string()),
        });
    }
}

fn gone(link: &Link, error: OpenError) -> anyhow::Error {
    let waiting = link.flights.len();
    let context = format!("{}: while {waiting} requests were under way", link.device);
    anyhow::Error::new(error).context(context)
}
