//! What is done for requests: clips are found, viewers are let in, streams begin and end.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};

use bonsai_media::load::{Load, Need};
use bonsai_media::rtcp::{Received, Sent};
use bonsai_media::rtsp::server::{Ended, Found, Host, Offer, Path, Refusal, Way};
use bonsai_media::seen::{Counted, Gathering};
use bonsai_media::timeline::Started;
use rtsp_types::StatusCode;

use super::ahead::Ahead;
use super::film::Film;
use super::parts::{Packetiser, StreamView};
use super::pipeline::Pipeline;
use super::ports::Pair;
use super::readers::Readers;
use super::root::{Root, Wanted};
use super::stream::{Sink, Stream};
use super::{Event, Plan, network};
use crate::clock::{nanos, now};

/// Between two reports of a stream that count, nanoseconds: viewers send one each five seconds or so.
const APART: u64 = 1_000_000_000;

/// Who is at the other end of a connection, and by which address of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) peer: SocketAddr,
    pub(super) local: IpAddr,
    /// Sessions that it has begun and that are not over.
    pub(super) sessions: u32,
}

/// A stream that is over, whose viewer is still to be told, or not.
pub(super) struct Over {
    pub(super) stream: Stream,
    pub(super) why: &'static str,
    pub(super) is_told: bool,
}

pub(super) struct House<'a> {
    pub(super) plan: &'a Plan,
    pub(super) root: Root,
    /// The way of clips that the plan has no other for.
    pipeline: Arc<Pipeline>,
    pub(super) streams: Vec<Option<Stream>>,
    pub(super) pairs: Vec<Pair>,
    pub(super) peers: Vec<Option<Peer>>,
    /// By which connection a request came that is being answered.
    pub(super) asking: usize,
    /// When that came.
    pub(super) asked_at: u64,
    /// Whether no request waits any longer for a clip to be read.
    pub(super) gives_up: bool,
    film: Option<Arc<Film>>,
    per_address: HashMap<IpAddr, u32>,
    pub(super) due: BinaryHeap<Reverse<(u64, usize)>>,
    pub(super) readers: Rc<Readers>,
    pub(super) load: Load,
    pub(super) gathering: Gathering,
    pub(super) over: Vec<Over>,
    /// Whose reports, and what keeps a way open, come from where; and of which sender reports are.
    pub(super) by_address: HashMap<SocketAddr, usize>,
    pub(super) by_ssrc: HashMap<u32, usize>,
    pub(super) most: u64,
    pub(super) came: u64,
    on_event: &'a mut dyn FnMut(&Event<'_>),
}

impl<'a> House<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        (root, readers): (Root, Readers),
        on_event: &'a mut dyn FnMut(&Event<'_>),
    ) -> Self {
        let late = nanos(plan.late);
        Self {
            plan,
            root,
            pipeline: Arc::new(Pipeline::plain(plan.engine, plan.parts.chain())),
            streams: Vec::new(),
            pairs: Vec::new(),
            peers: Vec::new(),
            asking: 0,
            asked_at: 0,
            gives_up: false,
            film: None,
            per_address: HashMap::new(),
            due: BinaryHeap::new(),
            readers: Rc::new(readers),
            load: Load::new(plan.when_behind, late),
            gathering: Gathering::default(),
            over: Vec::new(),
            by_address: HashMap::new(),
            by_ssrc: HashMap::new(),
            most: 0,
            came: 0,
            on_event,
        }
    }

    pub(super) fn tell(&mut self, event: &Event<'_>) {
        (self.on_event)(event);
    }

    /// What a stream needs may have changed: it plays, or does no more.
    pub(super) fn weigh(&mut self, session: usize) {
        if let Some(Some(stream)) = self.streams.get_mut(session) {
            let need = stream.needed();
            let before = std::mem::replace(&mut stream.need, need);
            self.load.plays(need, before, now());
        }
    }

    /// Looks after a stream when it is due.
    pub(super) fn arm(&mut self, session: usize, at: Option<u64>) {
        let Some(Some(stream)) = self.streams.get_mut(session) else {
            return;
        };
        let next = stream.timeline.next().map(|(due, _)| due);
        let due = at.or(next).unwrap_or(u64::MAX);
        if due != stream.armed {
            stream.armed = due;
            if due < u64::MAX {
                self.due.push(Reverse((due, session)));
            }
        }
    }

    /// Streams go on with samples that were read.
    pub(super) fn came(&mut self) {
        for done in self.readers.take() {
            let stream = self.streams.get_mut(done.session);
            let stream = stream.and_then(Option::as_mut);
            if stream.is_some_and(|stream| stream.ahead.came(done.ticket, done.chunk)) {
                self.arm(done.session, None);
            }
        }
    }

    /// A stream is over: it is taken out of all that knows it.
    pub(super) fn take(&mut self, session: usize) -> Option<Stream> {
        let mut stream = self.streams.get_mut(session)?.take()?;
        stream.end();
        self.load.plays(Need::default(), stream.need, now());
        self.load.release(stream.promised());
        for line in 0..stream.lanes.len() {
            self.by_ssrc.remove(&stream.timeline.ssrc(line));
            if let Sink::Datagrams {
                packets, reports, ..
            } = stream.lanes[line].sink
            {
                for address in [packets, reports] {
                    // It may be another's by now, who named the same port.
                    if self.by_address.get(&address) == Some(&session) {
                        self.by_address.remove(&address);
                    }
                }
            }
        }
        if let Some(Some(peer)) = self.peers.get_mut(stream.connection)
            && peer.peer == stream.peer
        {
            peer.sessions = peer.sessions.saturating_sub(1);
        }
        let address = network(stream.peer.ip());
        if let Some(count) = self.per_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.per_address.remove(&address);
            }
        }
        Some(stream)
    }

    /// A viewer reports of one of our streams, at a time of our clock since 1970; of whose.
    pub(super) fn heard(&mut self, report: &Received, unix_ns: u64) -> Option<usize> {
        let session = *self.by_ssrc.get(&report.ssrc)?;
        let stream = self.streams.get_mut(session)?.as_mut()?;
        let mut lines = 0..stream.lanes.len();
        let line = lines.find(|line| stream.timeline.ssrc(*line) == report.ssrc)?;
        // Of somebody who reports without end, one a second counts: they are weighed against each other.
        let at = now();
        let lane = &mut stream.lanes[line];
        if at < lane.heard.saturating_add(APART) {
            return Some(session);
        }
        lane.heard = at;
        let counted = Counted {
            expected: report.largest,
            lost: report.lost,
        };
        // The first one tells no more than its part of 256.
        let loss = match stream.lanes[line].counted.replace(counted) {
            Some(before) => counted.lost_since(&before),
            None => Some(f64::from(report.lost_of_256) / 256.0),
        };
        let rate = f64::from(stream.timeline.track(line).clock_rate.max(1));
        let jitter_ns = f64::from(report.jitter) * 1e9 / rate;
        let trip_ns = report.round_trip_ns(Sent::ntp(unix_ns));
        self.gathering.heard(loss, jitter_ns, trip_ns);
        Some(session)
    }

    /// The way of a clip.
    fn way(&self, clip: &str) -> &Arc<Pipeline> {
        self.plan.pipelines.of(clip).unwrap_or(&self.pipeline)
    }

    fn peer(&self, connection: usize) -> Result<Peer, Refusal> {
        let peer = self.peers.get(connection).copied().flatten();
        peer.ok_or_else(|| Refusal::new(StatusCode::InternalServerError, "its connection is gone"))
    }

    /// The sockets of an address.
    fn pair(&mut self, local: IpAddr) -> Result<usize, Refusal> {
        if let Some(index) = self.pairs.iter().position(|pair| pair.local == local) {
            return Ok(index);
        }
        let pair = Pair::open(local, self.plan.ports).map_err(|error| {
            let (first, last) = self.plan.ports;
            let why = format!("no ports of {first} to {last} on {local}: {error}");
            Refusal::new(StatusCode::ServiceUnavailable, why)
        })?;
        self.pairs.push(pair);
        Ok(self.pairs.len() - 1)
    }
}

impl Host for House<'_> {
    fn find(&mut self, path: &Path) -> Poll<Result<Found, Refusal>> {
        let pipeline = Arc::clone(self.way(&path.to_string()));
        let film = self.root.find(&Wanted {
            path,
            lower: pipeline.lower.as_ref().unwrap_or(&self.plan.lower),
            payload: pipeline.payload,
            since: self.asked_at,
        });
        for unfit in std::mem::take(&mut self.root.unfit) {
            self.tell(&Event::Unfit {
                clip: &unfit.clip,
                file: &unfit.file,
                why: &unfit.why,
            });
        }
        for (clip, what) in std::mem::take(&mut self.root.left_out) {
            self.tell(&Event::LeftOut {
                clip: &clip,
                what: &what,
            });
        }
        if film.is_pending() && self.gives_up {
            let why = format!("{path}: it cannot be read in time");
            let refusal = Refusal::new(StatusCode::ServiceUnavailable, why);
            return Poll::Ready(Err(refusal));
        }
        let film = ready!(film)?;
        let found = film.found.clone();
        self.film = Some(film);
        Poll::Ready(Ok(found))
    }

    fn packetiser(&self, path: &Path) -> Option<Arc<dyn Packetiser>> {
        self.way(&path.to_string()).packetiser.clone()
    }

    fn address(&self) -> Result<IpAddr, Refusal> {
        Ok(self.peer(self.asking)?.local)
    }

    fn admit(
        &mut self,
        session: usize,
        connection: usize,
        path: &Path,
        found: &Found,
    ) -> Result<String, Refusal> {
        let peer = self.peer(connection)?;
        let full = |why: String| Refusal::new(StatusCode::NotEnoughBandwidth, why);
        let limits = &self.plan.limits;
        let sessions: u32 = self.per_address.values().sum();
        if sessions >= limits.sessions {
            return Err(full(format!(
                "there are {sessions} sessions, as many as may be"
            )));
        }
        let address = network(peer.peer.ip());
        let count = self.per_address.get(&address).copied().unwrap_or(0);
        if count >= limits.per_address {
            return Err(full(format!(
                "{address} has {count} sessions, as many as it may have"
            )));
        }
        let need: Need = found.needs.iter().sum();
        self.load.allot(self.plan.allotted.get(), now());
        self.load.admit(need).map_err(|why| full(why.to_string()))?;
        let film = self.film.take();
        let film = film.ok_or_else(|| full("its file is gone".to_owned()))?;
        let clip = path.to_string();
        let view = StreamView {
            peer: peer.peer,
            clip: &clip,
        };
        let pipeline = Arc::clone(self.way(&clip));
        let (handlers, parts) = pipeline
            .make(&view)
            .map_err(|why| Refusal::new(StatusCode::InternalServerError, why))?;
        let hex =
            |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
        let name = hex(&random::<16>()?);
        let cname = hex(&random::<12>()?);
        self.tell(&Event::Began {
            peer: peer.peer,
            clip: &clip,
        });
        let whose = (peer.peer, connection);
        if self.streams.len() <= session {
            self.streams.resize_with(session + 1, || None);
        }
        let way = (pipeline, handlers, parts);
        let ahead = Ahead::new(Rc::clone(&self.readers), session);
        let stream = Stream::new((film, ahead), (clip, cname), whose, way);
        self.load.promise(need);
        self.streams[session] = Some(stream);
        *self.per_address.entry(address).or_default() += 1;
        if let Some(Some(peer)) = self.peers.get_mut(connection) {
            peer.sessions += 1;
        }
        self.came += 1;
        self.most = self.most.max(u64::from(sessions) + 1);
        Ok(name)
    }

    fn set_up(&mut self, session: usize, track: usize, offer: &Offer) -> Result<Way, Refusal> {
        let bytes = random::<10>()?;
        let [a, b, c, d, e, f, g, h, i, j] = bytes;
        let ssrc = u32::from_be_bytes([a, b, c, d]);
        let random = (
            ssrc,
            u16::from_be_bytes([e, f]),
            u32::from_be_bytes([g, h, i, j]),
        );
        let gone = || Refusal::new(StatusCode::SessionNotFound, "no such session");
        let known = self
            .streams
            .get(session)
            .and_then(Option::as_ref)
            .ok_or_else(gone)?;
        let (peer, lines) = (known.peer, known.lanes.len());
        let refused = |why: &str| Refusal::new(StatusCode::UnsupportedTransport, why);
        let is_offered = match *offer {
            Offer::Datagrams(..) if self.plan.tls.is_some() => {
                return Err(refused("over TLS, packets go in the connection"));
            }
            Offer::Datagrams(..) => known.pipeline.has_datagrams,
            Offer::Interleaved(_) => known.pipeline.has_interleaved,
        };
        if !is_offered {
            let why = format!("{} is not sent that way", known.clip);
            return Err(Refusal::new(StatusCode::UnsupportedTransport, why));
        }
        let (way, sink) = match *offer {
            Offer::Datagrams(packets, reports) => {
                let pair = self.pair(self.peer(self.asking)?.local)?;
                let port = self.pairs[pair].port;
                let way = Way::Datagrams {
                    client: (packets, reports),
                    server: (port, port + 1),
                    ssrc,
                };
                let sink = Sink::Datagrams {
                    pair,
                    packets: SocketAddr::new(peer.ip(), packets),
                    reports: SocketAddr::new(peer.ip(), reports),
                };
                (way, sink)
            }
            // Packets go by the connection that the session began in, and by no other that comes after it.
            Offer::Interleaved(_) if known.connection != self.asking => {
                return Err(refused("its session began in another connection"));
            }
            Offer::Interleaved(channels) => {
                let next = u8::try_from(lines * 2).unwrap_or(254);
                let (packets, reports) = channels.unwrap_or((next, next + 1));
                let is_taken = known.lanes.iter().any(|lane| match lane.sink {
                    Sink::Interleaved {
                        packets: one,
                        reports: other,
                    } => [one, other]
                        .iter()
                        .any(|of| [packets, reports].contains(of)),
                    Sink::Datagrams { .. } => false,
                });
                if is_taken {
                    return Err(refused("another track has these channels"));
                }
                let channels = (packets, reports);
                let way = Way::Interleaved { channels, ssrc };
                (way, Sink::Interleaved { packets, reports })
            }
        };
        let stream = self
            .streams
            .get_mut(session)
            .and_then(Option::as_mut)
            .ok_or_else(gone)?;
        stream.add(track, sink, random);
        self.by_ssrc.insert(ssrc, session);
        if let Sink::Datagrams {
            packets, reports, ..
        } = sink
        {
            self.by_address.insert(packets, session);
            self.by_address.insert(reports, session);
        }
        Ok(way)
    }

    fn play(
        &mut self,
        session: usize,
        from_ns: Option<u64>,
        until_ns: Option<u64>,
    ) -> Result<Started, Refusal> {
        let gone = || Refusal::new(StatusCode::SessionNotFound, "no such session");
        let stream = self
            .streams
            .get_mut(session)
            .and_then(Option::as_mut)
            .ok_or_else(gone)?;
        // It begins in the quality that all are sent in when it plays.
        let need = stream.at_play();
        let before = std::mem::replace(&mut stream.need, need);
        self.load.plays(need, before, now());
        let quality = self.load.level().quality();
        let started = stream.play(from_ns, until_ns, quality, now());
        self.arm(session, None);
        Ok(started)
    }

    fn pause(&mut self, session: usize) {
        if let Some(Some(stream)) = self.streams.get_mut(session) {
            stream.pause(now());
        }
        self.weigh(session);
        self.arm(session, None);
    }

    fn end(&mut self, session: usize, why: Ended) {
        let (why, is_told) = match why {
            Ended::Told => ("its viewer said so", false),
            Ended::Silent => ("nothing was heard of its viewer", true),
            Ended::Closed => ("its connection is gone", false),
        };
        if let Some(stream) = self.take(session) {
            self.over.push(Over {
                stream,
                why,
                is_told,
            });
        }
    }
}

/// Bytes that nobody can guess.
fn random<const N: usize>() -> Result<[u8; N], Refusal> {
    let mut bytes = [0; N];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => Err(Refusal::new(
            StatusCode::InternalServerError,
            error.to_string(),
        )),
    }
}
