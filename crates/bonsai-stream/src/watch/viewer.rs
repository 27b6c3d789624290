//! One viewer: its connection, its sockets, and a meter for each track.
//!
//! ```text
//!   connecting ──> asking (RTSP) ──> playing ──> leaving (TEARDOWN) ──> gone
//!        └───────────────┴──────────────┴── failed: why is in its report ──^
//! ```

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use bonsai_media::meter::{Meter, StreamReport, Verdict};
use bonsai_media::rtcp::{self, About, Said};
use bonsai_media::rtp;
use bonsai_media::rtsp::{Client, Failure, Lower, Phase};
use bonsai_media::seen::{Counted, Gathering};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::{Guest, Plan, TrackReport, ViewerReport};
use crate::clock::{Clocks, nanos};
use crate::datagrams::{Datagrams, MOST};

const SECOND: u64 = 1_000_000_000;

/// Between two reports of a receiver (RFC 3550, 6.2: five seconds).
const REPORTS: u64 = 5 * SECOND;
/// A clip whose end has come is silent for so long.
const SILENCE: u64 = 2 * SECOND;

/// How often it is looked whether a clip has ended.
const LOOKS: u64 = SECOND;

/// What all viewers of a thread use in turns.
pub(super) struct Desk {
    pub(super) clocks: Clocks,
    pub(super) buffer: Vec<u8>,
    pub(super) control: Vec<u8>,
    /// Where the search for free ports goes on.
    pub(super) port: u16,
}

impl Desk {
    pub(super) fn new(port: u16) -> Self {
        let mut control = nix::cmsg_space!([u8; 128]);
        control.resize(control.capacity(), 0);
        Self {
            clocks: Clocks::default(),
            buffer: vec![0; MOST],
            control,
            port,
        }
    }
}

/// Which of its sockets can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// That of messages.
    Messages,
    /// A track's packets, or their control.
    Track(usize, bool),
}

pub(super) struct Viewer {
    guest: Guest,
    /// When it came, by the clock.
    since: u64,
    /// Where its server is.
    server: SocketAddr,
    stream: TcpStream,
    is_connected: bool,
    client: Client,
    tracks: Vec<Track>,
    /// When it began to play, and until when it does.
    asked: u64,
    until: Option<u64>,
    looks: u64,
    report: Option<ViewerReport>,
    is_gone: bool,
}

struct Track {
    sockets: Option<(Datagrams, Datagrams)>,
    meter: Option<Meter>,
    payload_type: u8,
    ns_per_tick: f64,
    own: u32,
    sender: Option<u32>,
    told: Option<(u64, u64)>,
    since: Option<StreamReport>,
    reports_at: u64,
    has_ended: bool,
    /// What had come when it was looked at last.
    counted: Option<Counted>,
}

impl Viewer {
    /// One that comes now.
    pub(super) fn come(plan: &Plan, guest: &Guest, now: u64) -> io::Result<Self> {
        let video = &plan.videos[guest.video];
        let family = match video.server {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&socket, &video.server) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno.into()),
        }
        let stream = TcpStream::from(socket);
        let _ = stream.set_nodelay(true);
        let step = nanos(plan.step);
        Ok(Self {
            guest: *guest,
            since: now,
            server: video.server,
            stream,
            is_connected: false,
            client: Client::new(video.url.clone(), plan.lower, step, now),
            tracks: Vec::new(),
            asked: now,
            until: None,
            looks: u64::MAX,
            report: None,
            is_gone: false,
        })
    }

    pub(super) fn messages(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether there is something to be sent that was not taken.
    pub(super) fn waits_to_send(&mut self) -> bool {
        !self.is_connected || !self.client.out().is_empty()
    }

    pub(super) const fn is_gone(&self) -> bool {
        self.is_gone
    }

    pub(super) fn is_playing(&self) -> bool {
        self.report.is_none() && self.client.phase() == Phase::Playing
    }

    pub(super) fn into_report(self) -> Option<ViewerReport> {
        self.report
    }

    /// Packets and bytes so far.
    pub(super) fn counts(&self) -> (u64, u64) {
        let meters = self.tracks.iter().filter_map(|track| track.meter.as_ref());
        meters.fold((0, 0), |(packets, bytes), meter| {
            (packets + meter.received(), bytes + meter.bytes())
        })
    }

    /// What it sees at this moment.
    pub(super) fn glimpse(&mut self, gathering: &mut Gathering, now: u64) {
        if !self.is_playing() {
            return;
        }
        for track in &mut self.tracks {
            let (Some(meter), false) = (&track.meter, track.has_ended) else {
                continue;
            };
            if meter.first_ns().is_none() {
                continue;
            }
            let counted = meter.counted();
            let before = track.counted.replace(counted).unwrap_or_default();
            let (jitter_ns, lag_ns) = meter.glimpse(now);
            gathering.heard(counted.lost_since(&before), jitter_ns, None);
            gathering.behind(lag_ns);
        }
    }

    /// When it is to be looked after.
    pub(super) fn due(&self) -> u64 {
        let reports = self.tracks.iter().map(|track| track.reports_at);
        let ends = [
            self.client.due(),
            self.looks,
            self.until.unwrap_or(u64::MAX),
        ];
        reports.chain(ends).min().unwrap_or(u64::MAX)
    }

    /// A socket can be read or, of messages, be written; sockets that are new are given to `add`.
    pub(super) fn ready(
        &mut self,
        of: Of,
        plan: &Plan,
        desk: &mut Desk,
        now: u64,
        add: &mut dyn FnMut(BorrowedFd<'_>, Of) -> io::Result<()>,
    ) {
        let done = match of {
            Of::Messages => self.talk(plan, desk, now, add),
            Of::Track(track, is_control) => {
                self.take(track, is_control, desk, now);
                Ok(())
            }
        };
        if let Err(failure) = done {
            self.fail(plan, &failure, now);
        }
    }

    /// It is time for something.
    pub(super) fn tick(&mut self, plan: &Plan, now: u64) {
        if self.report.is_some() {
            // It is only being polite.
            self.is_gone |= self.client.tick(now).is_err() || self.client.phase() == Phase::Over;
            return;
        }
        if let Err(failure) = self.client.tick(now) {
            return self.fail(plan, &failure, now);
        }
        for track in 0..self.tracks.len() {
            if now >= self.tracks[track].reports_at {
                self.say(track, now);
            }
        }
        if self.until.is_some_and(|until| now >= until) {
            self.finish(plan, now);
        } else if now >= self.looks {
            self.looks = now + LOOKS;
            self.look(plan, now);
        }
        self.flush();
    }

    /// What a viewer sees at the end, wherever it is.
    pub(super) fn finish(&mut self, plan: &Plan, now: u64) {
        let until = self.until.map_or(now, |until| until.min(now));
        self.close(plan, until, None);
        self.client.end(now);
        self.flush();
        self.is_gone |= self.client.phase() == Phase::Over;
    }

    fn fail(&mut self, plan: &Plan, failure: &Failure, now: u64) {
        if self.report.is_none() {
            self.close(plan, now, Some(failure));
        }
        self.is_gone = true;
    }

    fn close(&mut self, plan: &Plan, now: u64, failure: Option<&Failure>) {
        let described = self.client.description().map(|known| known.tracks.iter());
        let is_media = |kind: &str| ["video", "audio"].contains(&kind);
        let mut kinds = described.iter().flat_map(Clone::clone);
        let has_media = kinds.any(|known| is_media(&known.kind));
        let tracks = described.into_iter().flatten().zip(&self.tracks);
        let tracks = tracks.filter_map(|(known, track)| {
            let meter = track.meter.as_ref()?;
            let end = match (track.has_ended, meter.last_ns()) {
                (true, Some(last)) => last,
                _ => now,
            };
            let stream = meter.report(end);
            Some(TrackReport {
                kind: known.kind.clone(),
                encoding: known.encoding.clone(),
                nominal_bits_per_sec: known.bits_per_sec,
                // Metadata beside pictures and sound comes when there is some: its silence is no fault.
                verdict: match has_media && !is_media(&known.kind) {
                    true => Verdict::unjudged(),
                    false => plan.thresholds.judge(&stream),
                },
                stream,
            })
        });
        // Before it is connected nothing has been asked.
        let is_connected = self.is_connected;
        let word = |failure: &Failure| match is_connected {
            true => failure.phase.word(),
            false => "connect",
        };
        self.report = Some(ViewerReport {
            came_ns: self.guest.at_ns,
            video: self.guest.video + 1,
            failure: failure.map(|failure| format!("{}: {}", word(failure), failure.why)),
            failed_at: failure.map(word),
            is_refused: failure.is_some_and(is_answer),
            tracks: tracks.collect(),
        });
        for track in &mut self.tracks {
            track.reports_at = u64::MAX;
        }
        (self.looks, self.until) = (u64::MAX, None);
    }

    /// Reads and writes messages as long as that goes.
    fn talk(
        &mut self,
        plan: &Plan,
        desk: &mut Desk,
        now: u64,
        add: &mut dyn FnMut(BorrowedFd<'_>, Of) -> io::Result<()>,
    ) -> Result<(), Failure> {
        if !self.is_connected {
            match self.stream.take_error() {
                Ok(None) if self.stream.peer_addr().is_ok() => self.is_connected = true,
                Ok(None) => return Ok(()),
                Ok(Some(error)) | Err(error) => {
                    return Err(self.failure(format!("{}: {error}", self.server)));
                }
            }
        }
        loop {
            self.flush();
            let read = match self.stream.read(&mut desk.buffer) {
                Ok(0) => return self.closed(plan, now),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.failure(error.to_string())),
            };
            let tracks = &mut self.tracks;
            self.client.receive(&desk.buffer[..read], now, |heard| {
                if let Some(track) = tracks.get_mut(heard.track) {
                    match heard.is_control {
                        false => track.packet(heard.bytes, now),
                        true => track.control(heard.bytes, now),
                    }
                }
            })?;
            self.go_on(plan, desk, now, add)?;
        }
    }

    /// Does what the session waits for.
    fn go_on(
        &mut self,
        plan: &Plan,
        desk: &mut Desk,
        now: u64,
        add: &mut dyn FnMut(BorrowedFd<'_>, Of) -> io::Result<()>,
    ) -> Result<(), Failure> {
        if let Some(index) = self.client.needs_ports() {
            let opened = self.open(desk, index, add);
            let port = opened.map_err(|error| self.failure(format!("no ports: {error}")))?;
            self.client.ports((port, port + 1), now);
        }
        let known = self
            .client
            .description()
            .map_or(0, |known| known.tracks.len());
        if plan.lower == Lower::Tcp && self.tracks.len() < known {
            self.tracks.resize_with(known, || Track::new(None));
        }
        let is_asked = self.client.phase() >= Phase::Play && self.report.is_none();
        if is_asked && self.looks == u64::MAX {
            self.begin(now);
        }
        if self.report.is_some() && self.client.phase() == Phase::Over {
            self.is_gone = true;
        }
        self.flush();
        Ok(())
    }

    /// Opens the sockets of a track.
    fn open(
        &mut self,
        desk: &mut Desk,
        index: usize,
        add: &mut dyn FnMut(BorrowedFd<'_>, Of) -> io::Result<()>,
    ) -> io::Result<u16> {
        let address: IpAddr = self.stream.local_addr()?.ip();
        let (packets, control, port) = Datagrams::pair(address, &mut desk.port)?;
        add(packets.as_fd(), Of::Track(index, false))?;
        add(control.as_fd(), Of::Track(index, true))?;
        self.tracks.push(Track::new(Some((packets, control))));
        Ok(port)
    }

    /// It is asked to play: meters run from now on.
    fn begin(&mut self, now: u64) {
        (self.asked, self.looks) = (now, now + LOOKS);
        let Some(known) = self.client.description() else {
            return;
        };
        let set_up = self.client.set_up();
        for (index, track) in self.tracks.iter_mut().enumerate() {
            let Some(described) = known.tracks.get(index) else {
                continue;
            };
            track.meter = Some(Meter::new(described.clock_rate, self.since));
            track.payload_type = described.payload_type;
            track.ns_per_tick = 1e9 / f64::from(described.clock_rate);
            track.sender = set_up.get(index).and_then(|of| of.ssrc);
            // Any number that others hardly have.
            let salt = now.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            track.own = u32::try_from(salt).unwrap_or(1) ^ u32::try_from(index).unwrap_or(0);
            track.reports_at = now + rtcp::apart(REPORTS, track.own, now);
        }
    }

    /// Whether the first packet has come, in time, and whether the clip has ended.
    fn look(&mut self, plan: &Plan, now: u64) {
        let step = nanos(plan.step);
        let length = self.guest.length_ns;
        if self.until.is_none() {
            let firsts = self.tracks.iter();
            let firsts = firsts.filter_map(|track| track.meter.as_ref()?.first_ns());
            match firsts.min() {
                Some(first) => self.until = Some(first.saturating_add(length)),
                None if now > self.asked.saturating_add(step) => {
                    let seconds = step / SECOND;
                    let failure = self.failure(format!("no packet in {seconds} s"));
                    return self.fail(plan, &failure, now);
                }
                None => return,
            }
        }
        let length = self.client.description().and_then(|known| known.length_ns);
        for track in &mut self.tracks {
            track.has_ended |= track.is_at_end(length, now);
        }
        if self.tracks.iter().all(|track| track.has_ended) {
            self.finish(plan, now);
        }
    }

    /// The server has closed the connection.
    fn closed(&mut self, plan: &Plan, now: u64) -> Result<(), Failure> {
        if self.report.is_some() {
            self.is_gone = true;
            return Ok(());
        }
        let length = self.client.description().and_then(|known| known.length_ns);
        let at_end = |track: &Track| track.has_ended || track.is_at_end(length, now + SILENCE);
        if self.is_playing() && self.tracks.iter().all(at_end) {
            self.finish(plan, now);
            self.is_gone = true;
            return Ok(());
        }
        Err(self.failure("the server closed the connection".to_owned()))
    }

    fn failure(&self, why: String) -> Failure {
        Failure {
            phase: self.client.phase(),
            why,
        }
    }

    /// Sends what is to be sent, as far as it is taken.
    fn flush(&mut self) {
        let out = self.client.out();
        while self.is_connected && !out.is_empty() {
            match self.stream.write(out) {
                Ok(written) => drop(out.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What is broken is seen when it is read.
                Err(_) => return,
            }
        }
    }

    /// Reads what has come by a socket of a track.
    fn take(&mut self, index: usize, is_control: bool, desk: &mut Desk, now: u64) {
        let server = self.server.ip();
        let Some(track) = self.tracks.get_mut(index) else {
            return;
        };
        loop {
            let Some((packets, control)) = &mut track.sockets else {
                return;
            };
            let socket = if is_control { control } else { packets };
            let Ok(Some(read)) = socket.read(&mut desk.buffer, &mut desk.control) else {
                return;
            };
            let at = read.real_ns.map_or(now, |real| desk.clocks.ours(real));
            // Anybody may send to a port; what others send is not of the stream.
            let is_of_it = read.from == Some(server);
            for bytes in desk.buffer[..read.bytes].chunks(read.each) {
                if !is_of_it {
                    track.meter.iter_mut().for_each(Meter::stray);
                    continue;
                }
                match is_control {
                    false => track.packet(bytes, at),
                    true => track.control(bytes, at),
                }
            }
            if let (Some(meter), true) = (&mut track.meter, read.dropped > 0) {
                meter.dropped_here(read.dropped.into());
            }
        }
    }

    /// Sends a receiver's report.
    fn say(&mut self, index: usize, now: u64) {
        let set_up = self.client.set_up().get(index);
        let server = set_up.and_then(|of| of.server);
        let channel = set_up.and_then(|of| of.control_channel());
        let track = &mut self.tracks[index];
        track.reports_at = now + rtcp::apart(REPORTS, track.own, now);
        let (Some(meter), Some(ssrc)) = (&track.meter, track.sender) else {
            return;
        };
        let stream = meter.report(now);
        let since = track.since.replace(stream.clone());
        let about = About {
            ssrc,
            largest: meter.largest(),
            told: track.told,
        };
        let mut buffer = [0; 256];
        let written = rtcp::write(
            &mut buffer[4..],
            track.own,
            "bonsai",
            &about,
            &stream,
            since.as_ref(),
            (now, track.ns_per_tick),
        );
        let Ok(length) = written else {
            return;
        };
        match (&track.sockets, server, channel) {
            (Some((_, control)), Some((_, port)), _) => {
                control.send(
                    &buffer[4..4 + length],
                    SocketAddr::new(self.server.ip(), port),
                );
            }
            (None, _, Some(channel)) => {
                let [high, low] = u16::try_from(length).unwrap_or(0).to_be_bytes();
                buffer[..4].copy_from_slice(&[b'$', channel, high, low]);
                self.client.out().extend_from_slice(&buffer[..4 + length]);
            }
            _ => {}
        }
    }
}

impl Track {
    fn new(sockets: Option<(Datagrams, Datagrams)>) -> Self {
        Self {
            sockets,
            meter: None,
            payload_type: 0,
            ns_per_tick: 1.0,
            own: 0,
            sender: None,
            told: None,
            since: None,
            reports_at: u64::MAX,
            has_ended: false,
            counted: None,
        }
    }

    fn packet(&mut self, bytes: &[u8], at: u64) {
        let Some(meter) = &mut self.meter else {
            return;
        };
        if let Some(packet) = rtp::read(bytes, at, self.payload_type) {
            self.sender = Some(packet.ssrc);
            meter.arrive(&packet);
        }
    }

    fn control(&mut self, bytes: &[u8], at: u64) {
        let (told, has_ended, meter) = (&mut self.told, &mut self.has_ended, &mut self.meter);
        let sender = self.sender;
        rtcp::read(bytes, |said| match said {
            Said::Report { ssrc, ntp, .. } => {
                *told = Some((at, ntp));
                if let Some(meter) = meter {
                    meter.told(ssrc, at, Said::ntp_ns(ntp));
                }
            }
            Said::Bye(ssrc) => *has_ended |= sender == Some(ssrc),
        });
    }

    /// Whether all of a clip of that length has come, and nothing comes any more.
    fn is_at_end(&self, length: Option<u64>, now: u64) -> bool {
        let (Some(meter), Some(length)) = (&self.meter, length) else {
            return false;
        };
        let silent = meter.last_ns().is_some_and(|last| now >= last + SILENCE);
        silent && meter.media_ns() + SECOND >= length
    }
}

/// Whether a failure is a status that the server answered with, as `453 Not Enough Bandwidth`.
fn is_answer(failure: &Failure) -> bool {
    let code = failure.why.split_once(' ').map_or("", |(code, _)| code);
    code.len() == 3 && code.bytes().all(|byte| byte.is_ascii_digit())
}
