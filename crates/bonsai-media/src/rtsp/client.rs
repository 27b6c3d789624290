//! A viewer's side of the protocol: from an address to a stream that plays.
//!
//! ```text
//!   OPTIONS ──> DESCRIBE ──> SETUP, a track at a time ──> PLAY ──> playing ──> TEARDOWN ──> over
//!                            (ports are asked for)               keep-alive
//! ```
//! # Invariants
//! 1. One request is under way at a time, and has to be answered in time: whoever waits for ever has
//!    failed. Keep-alives are answered or not; that is no failure while packets come.
//! 2. A track that cannot be set up is a failure of the viewer, and no track without loss.

use rtsp_types::headers::{
    ACCEPT, CONTENT_BASE, CSEQ, PUBLIC, RANGE, SESSION, TRANSPORT, USER_AGENT,
};
use rtsp_types::{HeaderName, Message, Method, Request, Response, StatusCode, Url, Version};

use super::reader::Reader;
use crate::description::Description;

const SECOND: u64 = 1_000_000_000;

/// A session without a timeout of its own has this one (RFC 2326, 12.37).
const TIMEOUT_S: u64 = 60;

/// How packets come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lower {
    /// As datagrams.
    Udp,
    /// Among the messages (RFC 2326, 10.12).
    Tcp,
}

/// How far a viewer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// What the server can is asked for.
    Options,
    /// What there is in the clip.
    Describe,
    /// Each track is asked for.
    Setup,
    /// All of it is asked for.
    Play,
    /// It plays.
    Playing,
    /// It is told to end.
    Teardown,
    /// It has ended.
    Over,
}

impl Phase {
    /// Its request.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Options => "OPTIONS",
            Self::Describe => "DESCRIBE",
            Self::Setup => "SETUP",
            Self::Play => "PLAY",
            Self::Playing => "playing",
            Self::Teardown => "TEARDOWN",
            Self::Over => "over",
        }
    }
}

/// Why a viewer sees nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Where it ended.
    pub phase: Phase,
    /// Why, in words.
    pub why: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.phase.word(), self.why)
    }
}

/// A packet among the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard<'a> {
    /// Of which track.
    pub track: usize,
    /// Whether it is of the control protocol (RTCP).
    pub is_control: bool,
    /// All of it.
    pub bytes: &'a [u8],
}

/// A track that is set up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetUp {
    /// The server's ports, of packets and of control, where it says them.
    pub server: Option<(u16, u16)>,
    /// Its sender, where the server says so.
    pub ssrc: Option<u32>,
    channels: Option<(u8, u8)>,
}

/// A viewer's session.
#[derive(Debug)]
pub struct Client {
    reader: Reader,
    session: Session,
}

#[derive(Debug)]
struct Session {
    url: Url,
    lower: Lower,
    phase: Phase,
    out: Vec<u8>,
    cseq: u32,
    step_ns: u64,
    /// The request under way, and until when it has to be answered.
    under_way: Option<(u32, u64)>,
    needs_ports: bool,
    description: Option<Description>,
    set_up: Vec<SetUp>,
    id: Option<String>,
    alive_ns: u64,
    alive_at: u64,
    alive_by: Method,
}

impl Client {
    /// One that asks for a clip; each step may take so long.
    #[must_use]
    pub fn new(url: Url, lower: Lower, step_ns: u64, now: u64) -> Self {
        let mut session = Session {
            url,
            lower,
            phase: Phase::Options,
            out: Vec::new(),
            cseq: 0,
            step_ns,
            under_way: None,
            needs_ports: false,
            description: None,
            set_up: Vec::new(),
            id: None,
            alive_ns: TIMEOUT_S * SECOND / 2,
            alive_at: u64::MAX,
            alive_by: Method::Options,
        };
        let url = session.url.clone();
        session.ask(Method::Options, url, &[], now);
        Self {
            reader: Reader::default(),
            session,
        }
    }

    /// How far it is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.session.phase
    }

    /// What the server says of the clip, once it has.
    #[must_use]
    pub fn description(&self) -> Option<&Description> {
        self.session.description.as_ref()
    }

    /// The tracks that are set up so far.
    #[must_use]
    pub fn set_up(&self) -> &[SetUp] {
        &self.session.set_up
    }

    /// What is to be sent; whoever has sent some takes it out.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.session.out
    }

    /// Which track's ports it waits for.
    #[must_use]
    pub fn needs_ports(&self) -> Option<usize> {
        self.session
            .needs_ports
            .then_some(self.session.set_up.len())
    }

    /// The ports of that track's packets and of their control.
    pub fn ports(&mut self, ports: (u16, u16), now: u64) {
        let text = format!("RTP/AVP;unicast;client_port={}-{}", ports.0, ports.1);
        self.session.needs_ports = false;
        self.session.set_up(&text, now);
    }

    /// Bytes have come from the server; packets among them are given to `each`.
    ///
    /// # Errors
    /// Why it cannot go on.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        now: u64,
        mut each: impl FnMut(Heard<'_>),
    ) -> Result<(), Failure> {
        self.reader.add(bytes);
        loop {
            let next = self.reader.message();
            let next = next.map_err(|why| self.session.failure(why))?;
            let Some(message) = next else {
                return Ok(());
            };
            match message {
                Message::Data(data) => {
                    if let Some((track, is_control)) = self.session.track_of(data.channel_id()) {
                        each(Heard {
                            track,
                            is_control,
                            bytes: data.as_slice(),
                        });
                    }
                }
                Message::Response(response) => self.session.answered(&response, now)?,
                Message::Request(request) => self.session.asked(&request),
            }
        }
    }

    /// When [`Client::tick`] is to be called.
    #[must_use]
    pub fn due(&self) -> u64 {
        let answer = self.session.under_way.map_or(u64::MAX, |(_, until)| until);
        answer.min(self.session.alive_at)
    }

    /// It is time.
    ///
    /// # Errors
    /// A step has taken too long.
    pub fn tick(&mut self, now: u64) -> Result<(), Failure> {
        let session = &mut self.session;
        if session.phase == Phase::Playing && now >= session.alive_at {
            session.alive_at = now + session.alive_ns;
            let (url, method) = (session.url.clone(), session.alive_by.clone());
            session.send(method, url, &[]);
        }
        match session.under_way {
            Some((_, until)) if now >= until => {
                let seconds = session.step_ns / SECOND;
                Err(session.failure(format!("no answer in {seconds} s")))
            }
            _ => Ok(()),
        }
    }

    /// Ends it, wherever it is.
    pub fn end(&mut self, now: u64) {
        let session = &mut self.session;
        session.alive_at = u64::MAX;
        if session.id.is_some() && session.phase < Phase::Teardown {
            session.phase = Phase::Teardown;
            let url = session.control();
            session.ask(Method::Teardown, url, &[], now);
        } else if session.phase < Phase::Teardown {
            session.phase = Phase::Over;
            session.under_way = None;
        }
    }
}

impl Session {
    fn failure(&self, why: String) -> Failure {
        Failure {
            phase: self.phase,
            why,
        }
    }

    /// Where all of the clip is played.
    fn control(&self) -> Url {
        let known = self.description.as_ref();
        known.map_or_else(|| self.url.clone(), |known| known.control.clone())
    }

    fn track_of(&self, channel: u8) -> Option<(usize, bool)> {
        let mut tracks = self.set_up.iter().enumerate();
        tracks.find_map(|(track, of)| {
            let (packets, control) = of.channels?;
            let is_it = [packets, control].contains(&channel);
            is_it.then_some((track, channel == control))
        })
    }

    /// Sends a request; its number.
    fn send(&mut self, method: Method, url: Url, headers: &[(HeaderName, String)]) -> u32 {
        self.cseq += 1;
        let mut request = Request::builder(method, Version::V1_0)
            .request_uri(url)
            .header(CSEQ, self.cseq.to_string())
            .header(USER_AGENT, concat!("bonsai/", env!("CARGO_PKG_VERSION")));
        if let Some(id) = &self.id {
            request = request.header(SESSION, id.clone());
        }
        for (name, value) in headers {
            request = request.header(name.clone(), value.clone());
        }
        let written = request.empty().write(&mut self.out);
        debug_assert!(written.is_ok(), "memory takes it");
        self.cseq
    }

    /// Sends a request that has to be answered.
    fn ask(&mut self, method: Method, url: Url, headers: &[(HeaderName, String)], now: u64) {
        let cseq = self.send(method, url, headers);
        self.under_way = Some((cseq, now + self.step_ns));
    }

    /// The server asks for something: nothing of that is known here.
    fn asked(&mut self, request: &Request<&[u8]>) {
        let cseq = request.header(&CSEQ).map(|value| value.as_str().to_owned());
        let answer = Response::builder(Version::V1_0, StatusCode::NotImplemented)
            .header(CSEQ, cseq.unwrap_or_default());
        let written = answer.empty().write(&mut self.out);
        debug_assert!(written.is_ok(), "memory takes it");
    }

    fn answered(&mut self, response: &Response<&[u8]>, now: u64) -> Result<(), Failure> {
        let cseq = text(response, &CSEQ).and_then(|text| text.trim().parse::<u32>().ok());
        // Of keep-alives nobody waits for the answer.
        let Some((_, _)) = self.under_way.filter(|(asked, _)| cseq == Some(*asked)) else {
            return Ok(());
        };
        self.under_way = None;
        let status = response.status();
        if !status.is_success() {
            if self.phase == Phase::Teardown {
                self.phase = Phase::Over;
                return Ok(());
            }
            // A server need not know OPTIONS.
            if self.phase != Phase::Options {
                let (code, words) = (u16::from(status), response.reason_phrase());
                return Err(self.failure(format!("{code} {words}")));
            }
        }
        match self.phase {
            Phase::Options => {
                let known = text(response, &PUBLIC).unwrap_or_default();
                if known.contains("GET_PARAMETER") {
                    self.alive_by = Method::GetParameter;
                }
                self.phase = Phase::Describe;
                let accept = (ACCEPT, "application/sdp".to_owned());
                self.ask(Method::Describe, self.url.clone(), &[accept], now);
            }
            Phase::Describe => {
                let base =
                    text(response, &CONTENT_BASE).and_then(|base| Url::parse(base.trim()).ok());
                let base = base.unwrap_or_else(|| self.url.clone());
                let read = Description::read(response.body(), &base);
                self.description = Some(read.map_err(|why| self.failure(why))?);
                self.phase = Phase::Setup;
                self.next_track(now);
            }
            Phase::Setup => {
                self.keep_session(response)?;
                let transport = text(response, &TRANSPORT).unwrap_or_default();
                let set_up = SetUp::read(transport);
                if self.lower == Lower::Tcp && set_up.channels.is_none() {
                    return Err(self.failure("it does not send among its messages".to_owned()));
                }
                self.set_up.push(set_up);
                self.next_track(now);
            }
            Phase::Play => {
                self.phase = Phase::Playing;
                self.alive_at = now + self.alive_ns;
            }
            Phase::Teardown => self.phase = Phase::Over,
            Phase::Playing | Phase::Over => {}
        }
        Ok(())
    }

    /// Asks for the next track, or for all of it to play.
    fn next_track(&mut self, now: u64) {
        let tracks = self
            .description
            .as_ref()
            .map_or(0, |known| known.tracks.len());
        let next = self.set_up.len();
        if next == tracks {
            self.phase = Phase::Play;
            let range = (RANGE, "npt=0.000-".to_owned());
            let url = self.control();
            self.ask(Method::Play, url, &[range], now);
        } else if self.lower == Lower::Udp {
            self.needs_ports = true;
        } else {
            let first = next * 2;
            let text = format!("RTP/AVP/TCP;unicast;interleaved={first}-{}", first + 1);
            self.set_up(&text, now);
        }
    }

    fn set_up(&mut self, transport: &str, now: u64) {
        let tracks = self.description.as_ref().map(|known| &known.tracks);
        let Some(track) = tracks.and_then(|tracks| tracks.get(self.set_up.len())) else {
            return;
        };
        let url = track.control.clone();
        let transport = (TRANSPORT, transport.to_owned());
        self.ask(Method::Setup, url, &[transport], now);
    }

    /// `Session: 1234;timeout=60`.
    fn keep_session(&mut self, response: &Response<&[u8]>) -> Result<(), Failure> {
        let Some(header) = text(response, &SESSION) else {
            return match self.id {
                Some(_) => Ok(()),
                None => Err(self.failure("its answer names no session".to_owned())),
            };
        };
        let mut parts = header.split(';').map(str::trim);
        self.id = parts.next().map(str::to_owned);
        let timeout = parts.find_map(|part| part.strip_prefix("timeout="));
        if let Some(seconds) = timeout.and_then(|text| text.parse::<u64>().ok()) {
            self.alive_ns = seconds.clamp(2, 3600) * SECOND / 2;
        }
        Ok(())
    }
}

impl SetUp {
    /// The channel that reports go by, among the messages.
    #[must_use]
    pub fn control_channel(&self) -> Option<u8> {
        self.channels.map(|(_, control)| control)
    }

    /// `RTP/AVP;unicast;client_port=5000-5001;server_port=6970-6971;ssrc=1A2B3C4D`.
    fn read(transport: &str) -> Self {
        let value = |name: &str| {
            let mut parts = transport.split(';').map(str::trim);
            parts.find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
        };
        Self {
            server: value("server_port").and_then(pair),
            ssrc: value("ssrc").and_then(|text| u32::from_str_radix(text, 16).ok()),
            channels: value("interleaved").and_then(|text| {
                let (packets, control) = pair(text)?;
                Some((packets.try_into().ok()?, control.try_into().ok()?))
            }),
        }
    }
}

/// `6970-6971`, or the first alone.
fn pair(text: &str) -> Option<(u16, u16)> {
    match text.split_once('-') {
        Some((first, second)) => Some((first.parse().ok()?, second.parse().ok()?)),
        None => {
            let first: u16 = text.parse().ok()?;
            Some((first, first.checked_add(1)?))
        }
    }
}

fn text<'a>(response: &'a Response<&[u8]>, name: &HeaderName) -> Option<&'a str> {
    response.header(name).map(rtsp_types::HeaderValue::as_str)
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
