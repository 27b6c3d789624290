//! The thread that waits for all of it.

mod talk;

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, TcpListener};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use bonsai_media::rtsp::server::Server;
use bonsai_media::timeline::Next;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, Event as Ready, EventData, EventFlags};
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::connection::{Connection, Waiting};
use super::house::House;
use super::loader::Loader;
use super::root::Root;
use super::secure::Handshakes;
use super::send::{Around, Sender, Step};
use super::stream::Stream;
use super::{Error, Event, Plan, Summary};
use crate::clock::{Timer, nanos, now, ns};

/// Events that are taken at once, and streams that are looked after before there is another look at them.
const EVENTS: usize = 256;
const STREAMS: usize = 128;

/// How often it is looked whether it is to stop, and at deadlines.
const LOOKS: u64 = 100_000_000;

/// How long after a wake-up the next comes at the earliest: what is due in between goes out together, so
/// much late at most. A wake-up costs as much as a packet or two, and thousands of streams are due at as
/// many times; streams that are few are not held up.
const APART: u64 = 250_000;

/// How often it is told what viewers see.
const SEEN: u64 = 1_000_000_000;

/// How long a socket is left alone that takes no more.
const BLOCKED: u64 = 500_000;

/// How long nobody is let in where there are no more descriptors.
const EXHAUSTED: u64 = 100_000_000;

/// Connections that wait to be let in.
const QUEUE: i32 = 1024;

pub(super) struct Engine<'a> {
    listener: TcpListener,
    epoll: OwnedFd,
    timer: Timer,
    server: Server,
    house: House<'a>,
    connections: Vec<Option<Connection>>,
    waiting: Waiting,
    free: Vec<usize>,
    /// Connections of each network.
    places: HashMap<IpAddr, u32>,
    /// Pairs of sockets that are waited for.
    waited: usize,
    sender: Sender,
    buffer: Vec<u8>,
    refused: u64,
    blocked_until: u64,
    accepts_at: u64,
    seen_at: u64,
    /// Connections whose request is to be looked at again, as something was read.
    again: Vec<usize>,
    /// TLS handshakes, where there are any; which connections they are of, by number, the oldest first.
    handshakes: Option<Handshakes>,
    shaking: VecDeque<(usize, u64)>,
    /// Connections with bytes that have come and been decrypted, and are not read.
    rest: Vec<usize>,
}

/// Which socket it is.
enum Of {
    Listener,
    Connection(usize),
    Pair(usize, bool),
    Timer,
    Loader,
    Handshakes,
}

impl Of {
    fn data(&self) -> EventData {
        let (kind, index) = match *self {
            Self::Listener => (0, 0),
            Self::Connection(index) => (1, index),
            Self::Pair(index, is_reports) => (2 + u64::from(is_reports), index),
            Self::Timer => (4, 0),
            Self::Loader => (5, 0),
            Self::Handshakes => (6, 0),
        };
        EventData::new_u64(kind << 48 | index as u64)
    }

    fn read(data: u64) -> Self {
        let index = usize::try_from(data & 0xffff_ffff_ffff).unwrap_or(usize::MAX);
        match data >> 48 {
            0 => Self::Listener,
            1 => Self::Connection(index),
            4 => Self::Timer,
            5 => Self::Loader,
            6 => Self::Handshakes,
            kind => Self::Pair(index, kind == 3),
        }
    }
}

impl<'a> Engine<'a> {
    /// Listens.
    ///
    /// # Errors
    /// It cannot.
    pub(super) fn open(
        plan: &'a Plan,
        on_event: &'a mut dyn FnMut(&Event<'_>),
    ) -> Result<Self, Error> {
        let loader = Loader::start().map_err(Error::System)?;
        let root = Root::open(&plan.root, loader).map_err(|source| Error::Root {
            path: plan.root.clone(),
            source,
        })?;
        let refused = |source| Error::Listen {
            at: plan.listen,
            source,
        };
        let listener = TcpListener::bind(plan.listen).map_err(refused)?;
        // As many as come at once when a match begins.
        rustix::net::listen(&listener, QUEUE).map_err(|errno| refused(errno.into()))?;
        listener.set_nonblocking(true).map_err(Error::System)?;
        let at = listener.local_addr().map_err(Error::System)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| Error::System(errno.into()))?;
        epoll::add(&epoll, &listener, Of::Listener.data(), EventFlags::IN)
            .map_err(|errno| Error::System(errno.into()))?;
        let timer = Timer::new().map_err(Error::System)?;
        epoll::add(&epoll, &timer, Of::Timer.data(), EventFlags::IN)
            .map_err(|errno| Error::System(errno.into()))?;
        epoll::add(&epoll, root.loader(), Of::Loader.data(), EventFlags::IN)
            .map_err(|errno| Error::System(errno.into()))?;
        let handshakes = plan.tls.clone().map(Handshakes::start).transpose();
        let handshakes = handshakes.map_err(Error::System)?;
        if let Some(handshakes) = &handshakes {
            epoll::add(&epoll, handshakes, Of::Handshakes.data(), EventFlags::IN)
                .map_err(|errno| Error::System(errno.into()))?;
        }
        super::may_open(plan);
        let timeout = nanos(plan.limits.session);
        let server = Server::new(timeout).guarded(plan.users.clone());
        let mut house = House::new(plan, root, on_event);
        house.tell(&Event::Listening(at));
        Ok(Self {
            listener,
            epoll,
            timer,
            server,
            house,
            connections: Vec::new(),
            waiting: Waiting::default(),
            free: Vec::new(),
            places: HashMap::new(),
            waited: 0,
            sender: Sender::new(),
            buffer: vec![0; 64 << 10],
            refused: 0,
            blocked_until: 0,
            accepts_at: 0,
            seen_at: now() + SEEN,
            again: Vec::new(),
            handshakes,
            shaking: VecDeque::new(),
            rest: Vec::new(),
        })
    }

    /// Serves until it is to stop.
    ///
    /// # Errors
    /// There is no waiting.
    pub(super) fn run(mut self, stop: &AtomicBool) -> Result<Summary, Error> {
        // What wakes a thread may come 50 us later than it is asked for, if nothing is said.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let cpu = || ns(clock_gettime(ClockId::ThreadCPUTime));
        let (began, cpu_began) = (now(), cpu());
        let mut looks = began;
        let mut woken = 0;
        let mut events = Vec::with_capacity(EVENTS);
        while !stop.load(Ordering::Relaxed) {
            let at = now();
            let is_more = self.streams(at) | self.ask_again() | self.read_on();
            if at >= looks {
                looks = at + LOOKS;
                self.look(at);
            }
            let due = self
                .house
                .due
                .peek()
                .map_or(u64::MAX, |Reverse((at, _))| *at);
            let due = due.max(self.blocked_until).max(woken + APART);
            let target = due.min(looks);
            let waits = !is_more && target > now() && self.timer.wake_at(target);
            let timeout = (!waits).then(Timespec::default);
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(Error::System(errno.into())),
            }
            if waits {
                woken = now();
            }
            for event in &events {
                self.ready(*event);
            }
        }
        for session in 0..self.house.streams.len() {
            self.over(session, "the server ends", true);
        }
        let late = &self.sender.late_us;
        Ok(Summary {
            sessions: self.house.came,
            most_sessions: self.house.most,
            refused: self.refused,
            late_p50_ns: late.value_at_quantile(0.5) * 1000,
            late_p99_ns: late.value_at_quantile(0.99) * 1000,
            cpu_s: (cpu() - cpu_began) as f64 / 1e9,
            elapsed_s: (now() - began) as f64 / 1e9,
            ..self.sender.tally
        })
    }

    /// Looks after streams that are due; whether there are more.
    fn streams(&mut self, at: u64) -> bool {
        if at < self.blocked_until {
            return false;
        }
        for _ in 0..STREAMS {
            let Some(Reverse((due, session))) = self.house.due.peek().copied() else {
                return false;
            };
            let moment = now();
            if due > moment {
                return false;
            }
            // Under a limit a send waits, and what is late then has to be seen in time.
            if moment >= at + LOOKS {
                return true;
            }
            self.house.due.pop();
            let stream = self.house.streams.get_mut(session).and_then(Option::as_mut);
            let Some(stream) = stream.filter(|stream| stream.armed == due) else {
                continue;
            };
            stream.armed = u64::MAX;
            self.step(session);
            if self.blocked_until > at {
                return false;
            }
        }
        true
    }

    /// Does what is next for a stream.
    fn step(&mut self, session: usize) {
        let house = &mut self.house;
        let Some(Some(stream)) = house.streams.get_mut(session) else {
            return;
        };
        let mut around = Around {
            pairs: &house.pairs,
            connections: &mut self.connections,
            load: &mut house.load,
            gathering: &mut house.gathering,
        };
        let connection = stream.connection;
        let mut again = None;
        let mut failed = None;
        match stream.timeline.next() {
            Some((_, Next::Sample(line))) => match self.sender.sample(stream, line, &mut around) {
                Step::Done => {}
                Step::Blocked => {
                    self.blocked_until = now() + BLOCKED;
                    again = Some(self.blocked_until);
                }
                Step::Failed(why) => failed = Some(why),
            },
            Some((_, Next::Report)) => {
                self.sender.report(stream, false, unix(), &mut around);
                failed = stream.check().map(str::to_owned);
            }
            Some((_, Next::End)) => {
                self.sender.report(stream, true, unix(), &mut around);
                stream.timeline.pause(now());
                self.server.stopped(session);
            }
            None => {}
        }
        let is_news = stream.is_slow && !stream.is_told;
        stream.is_told |= is_news;
        let slow = is_news.then(|| (stream.peer, stream.clip.clone()));
        if !stream.timeline.is_playing() {
            house.weigh(session);
        }
        if let Some((peer, clip)) = slow {
            house.tell(&Event::Slow { peer, clip: &clip });
        }
        match failed {
            Some(why) => {
                self.server.forget(session);
                self.over(session, &why, true);
            }
            None => self.house.arm(session, again),
        }
        self.waits(connection);
    }

    /// A stream is over.
    fn over(&mut self, session: usize, why: &str, is_told: bool) {
        if let Some(stream) = self.house.take(session) {
            self.gone(stream, why, is_told);
        }
    }

    fn gone(&mut self, mut stream: Stream, why: &str, is_told: bool) {
        if is_told && stream.timeline.is_playing() {
            let mut around = Around {
                pairs: &self.house.pairs,
                connections: &mut self.connections,
                load: &mut self.house.load,
                gathering: &mut self.house.gathering,
            };
            self.sender.report(&mut stream, true, unix(), &mut around);
            self.waits(stream.connection);
        }
        self.house.tell(&Event::Ended {
            peer: stream.peer,
            clip: &stream.clip,
            why,
            packets: stream.packets,
        });
    }

    /// Streams that requests have ended.
    fn all_gone(&mut self) {
        for over in std::mem::take(&mut self.house.over) {
            self.gone(over.stream, over.why, over.is_told);
        }
    }

    fn ready(&mut self, event: Ready) {
        match Of::read(event.data.u64()) {
            Of::Listener => self.accept(),
            Of::Connection(index) => {
                let gone = EventFlags::HUP | EventFlags::ERR;
                let flags = event.flags;
                self.talk(index, flags.intersects(gone));
            }
            Of::Pair(index, is_reports) => self.hear(index, is_reports),
            // What is due is looked after next, and the timer is set anew by that.
            Of::Timer => {}
            Of::Loader => self.loaded(),
            Of::Handshakes => self.shaken(),
        }
    }

    /// Deadlines, and how it fares.
    fn look(&mut self, at: u64) {
        self.server.tick(&mut self.house, at);
        self.all_gone();
        let allotted = &self.house.plan.allotted;
        self.house.load.allot(allotted.get(), at);
        allotted.need(self.house.load.claimed());
        if let Some((quality, pictures)) = self.house.load.judge(at) {
            self.house.tell(&Event::Level { quality, pictures });
        }
        if at >= self.seen_at {
            self.seen_at = at + SEEN;
            let seen = self.house.gathering.take();
            if !seen.is_empty() {
                self.house.tell(&Event::Seen(seen));
            }
        }
        if self.accepts_at != 0 && at >= self.accepts_at {
            self.accepts_at = 0;
            let _ = epoll::add(
                &self.epoll,
                &self.listener,
                Of::Listener.data(),
                EventFlags::IN,
            );
        }
        let limits = &self.house.plan.limits;
        let (request, idle, stall) = (
            nanos(limits.request),
            nanos(limits.idle),
            nanos(limits.stall),
        );
        for index in 0..self.connections.len() {
            let Some(connection) = &self.connections[index] else {
                continue;
            };
            let over = |since: u64, most: u64| at.saturating_sub(since) >= most;
            let has_sessions = self.house.peers[index].is_some_and(|peer| peer.sessions > 0);
            let why = match connection {
                _ if connection.shakes.is_some() && over(connection.asked, request) => {
                    "its TLS handshake takes too long"
                }
                _ if connection.begun.is_some_and(|begun| over(begun, request)) => {
                    "its request takes too long"
                }
                _ if connection
                    .stalled
                    .is_some_and(|stalled| over(stalled, stall)) =>
                {
                    "it takes nothing of what is sent"
                }
                _ if has_sessions && connection.held.is_some_and(|since| over(since, idle)) => {
                    self.give_up(index, at);
                    continue;
                }
                _ if connection.held.is_some_and(|since| over(since, idle)) => {
                    "its clip cannot be read in time"
                }
                _ if !has_sessions && over(connection.asked, idle) => "it asks for nothing",
                _ => continue,
            };
            let peer = connection.peer;
            self.refuse(peer, why);
            self.close(index);
        }
    }
}

/// The time since 1970, nanoseconds.
fn unix() -> u64 {
    ns(clock_gettime(ClockId::Realtime))
}
