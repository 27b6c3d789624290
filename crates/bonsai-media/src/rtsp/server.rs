//! A server's side of the protocol: from requests to streams that play.
//!
//! ```text
//!   OPTIONS, DESCRIBE        SETUP, a track at a time       PLAY           TEARDOWN
//!   no session ─────────────────> ready <──── PAUSE ──── playing ──────────> over
//!                                   └──────────────────────┴─── nothing heard ─^
//! ```
//! Sessions are in no way tied to connections (RFC 2326, 1.1), but that one whose packets come among
//! the messages ends with its connection. What has to be done for a request, a [`Host`] does.
//!
//! # Invariants
//! 1. Each request gets one answer; one that cannot be read gets one, too, and is the last. One whose
//!    clip is not there yet changes nothing, and is asked again.
//! 2. A session that is not heard of in time is ended: by requests, or by reports of its viewer.
//! 3. Packets go to where the requests came from and nowhere else, whatever `destination` says: a server
//!    is no means to flood a third.
//! 4. What is in a request decides about one session: the one that it names.
//! 5. Where there are users, each request but OPTIONS proves to come from one before anything else of it is looked at.

mod host;
mod path;
mod playing;
mod range;
mod transport;

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Poll, ready};

use rtsp_types::headers::{
    ACCEPT, ALLOW, AUTHORIZATION, CONTENT_BASE, CONTENT_LENGTH, CONTENT_TYPE, CSEQ, PUBLIC,
    REQUIRE, SERVER, SESSION, TRANSPORT, UNSUPPORTED, WWW_AUTHENTICATE,
};
use rtsp_types::{HeaderName, Method, Request, Response, ResponseBuilder, StatusCode, Version};

use crate::access::{self, Denied, Guard};
use crate::clip::Announced;

pub use self::host::{Ended, Found, Host, Refusal};
pub use self::path::Path;
pub(crate) use self::path::decoded;
pub use self::transport::{Offer, Way};

const SECOND: u64 = 1_000_000_000;

/// Bytes of a request, with its body: descriptions of clips are not sent here.
pub const MOST_REQUEST: usize = 16 * 1024;

/// A session whose connection is gone is heard of in so long, or ends: a player that was killed says
/// nothing, and one that goes on sends reports.
const ORPHAN: u64 = 12 * SECOND;

/// What a server can.
const METHODS: &str =
    "OPTIONS, DESCRIBE, SETUP, PLAY, PAUSE, TEARDOWN, GET_PARAMETER, SET_PARAMETER";

/// How it is called.
const NAME: &str = "bonsai";

/// An answer, and what is said of it here where it is a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What is sent.
    pub bytes: Vec<u8>,
    /// Why, where something is refused.
    pub refused: Option<Refusal>,
}

/// All sessions of a server.
#[derive(Debug)]
pub struct Server {
    timeout_ns: u64,
    guard: Option<Arc<Guard>>,
    names: HashMap<String, usize>,
    sessions: Vec<Option<Session>>,
    free: Vec<usize>,
}

#[derive(Debug)]
struct Session {
    name: String,
    connection: Option<usize>,
    path: Path,
    found: Found,
    /// Each track that is set up, in this order: which, and the address it was asked for by.
    tracks: Vec<(usize, String)>,
    is_interleaved: bool,
    is_playing: bool,
    /// Plays up to the clip's end, and has come there.
    is_to_end: bool,
    is_at_end: bool,
    until: u64,
}

/// A request, as far as answering it needs it.
struct Asked<'a> {
    request: &'a Request<&'a [u8]>,
    connection: usize,
    now: u64,
}

impl Asked<'_> {
    fn header(&self, name: &HeaderName) -> Option<&str> {
        self.request.header(name).map(|value| value.as_str().trim())
    }

    fn url(&self) -> &str {
        self.request.request_uri().map_or("*", |url| url.as_str())
    }

    fn path(&self) -> Result<Path, Refusal> {
        let url = self.request.request_uri();
        let url = url.ok_or_else(|| Refusal::new(StatusCode::BadRequest, "it names no clip"))?;
        Path::read(url.path())
            .map_err(|why| Refusal::new(StatusCode::BadRequest, format!("{:?}: {why}", url.path())))
    }
}

/// What is answered besides the number of the request.
type Reply = (Vec<(HeaderName, String)>, Vec<u8>);

impl Server {
    /// One whose sessions are ended if nothing is heard of them for so long, at least a second.
    #[must_use]
    pub fn new(timeout_ns: u64) -> Self {
        Self {
            timeout_ns: timeout_ns.max(SECOND),
            guard: None,
            names: HashMap::new(),
            sessions: Vec::new(),
            free: Vec::new(),
        }
    }

    /// The same for users alone, if there is a guard.
    #[must_use]
    pub fn guarded(self, guard: Option<Arc<Guard>>) -> Self {
        Self { guard, ..self }
    }

    /// How many sessions there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Answers a request that came by a connection; pending until its clip is there, when it has to be
    /// asked again.
    pub fn answer(
        &mut self,
        request: &Request<&[u8]>,
        connection: usize,
        host: &mut dyn Host,
        now: u64,
    ) -> Poll<Answer> {
        let asked = Asked {
            request,
            connection,
            now,
        };
        let number = asked
            .header(&CSEQ)
            .and_then(|text| text.parse::<u32>().ok());
        let reply = match number {
            _ if request.version() != Version::V1_0 => {
                let why = "it speaks another version of the protocol";
                Err(Refusal::new(StatusCode::RTSPVersionNotSupported, why))
            }
            None => Err(Refusal::new(StatusCode::BadRequest, "it has no CSeq")),
            Some(_) => match self.granted(&asked) {
                Ok(()) => ready!(self.reply(&asked, host)),
                Err(denied) => {
                    let challenge = vec![(WWW_AUTHENTICATE, denied.challenge)];
                    let status = StatusCode::Unauthorized;
                    let refused = denied.is_wrong.then(|| Refusal::new(status, denied.why));
                    return Poll::Ready(answered(number, status, (challenge, Vec::new()), refused));
                }
            },
        };
        Poll::Ready(match reply {
            Ok(reply) => answered(number, StatusCode::Ok, reply, None),
            Err(refusal) => {
                let reply = (more(&asked, &refusal), Vec::new());
                answered(number, refusal.status, reply, Some(refusal))
            }
        })
    }

    /// The answer to what cannot be read; nothing behind it can be, either.
    #[must_use]
    pub fn unreadable() -> Vec<u8> {
        let builder = Response::builder(Version::V1_0, StatusCode::BadRequest).header(SERVER, NAME);
        written(builder, Vec::new())
    }

    /// A connection is gone.
    pub fn closed(&mut self, connection: usize, host: &mut dyn Host, now: u64) {
        for index in 0..self.sessions.len() {
            let Some(session) = &mut self.sessions[index] else {
                continue;
            };
            if session.connection != Some(connection) {
                continue;
            }
            session.connection = None;
            session.until = session.until.min(now + ORPHAN);
            if session.is_interleaved {
                self.end(index, host, Ended::Closed);
            }
        }
    }

    /// A viewer's report has come.
    pub fn alive(&mut self, session: usize, now: u64) {
        let timeout = self.timeout_ns;
        if let Some(Some(session)) = self.sessions.get_mut(session) {
            session.until = match session.connection {
                Some(_) => now + timeout,
                None => now + timeout.min(ORPHAN),
            };
        }
    }

    /// A session's clip has come to its end: it is ready to be played again.
    pub fn stopped(&mut self, session: usize) {
        if let Some(Some(session)) = self.sessions.get_mut(session) {
            session.is_playing = false;
            session.is_at_end = session.is_to_end;
        }
    }

    /// The host has ended a session itself.
    pub fn forget(&mut self, session: usize) {
        if let Some(over) = self.sessions.get_mut(session).and_then(Option::take) {
            self.names.remove(&over.name);
            self.free.push(session);
        }
    }

    /// Ends sessions that nothing was heard of.
    pub fn tick(&mut self, host: &mut dyn Host, now: u64) {
        for index in 0..self.sessions.len() {
            let Some(session) = &mut self.sessions[index] else {
                continue;
            };
            // An open connection that takes the packets says that there is a viewer; one that takes none is closed.
            if session.is_interleaved && session.is_playing {
                session.until = session.until.max(now + self.timeout_ns);
            }
            if now >= session.until {
                self.end(index, host, Ended::Silent);
            }
        }
    }

    fn end(&mut self, session: usize, host: &mut dyn Host, why: Ended) {
        self.forget(session);
        host.end(session, why);
    }

    /// Refuses a request that comes from no user, where there are users.
    fn granted(&self, asked: &Asked<'_>) -> Result<(), Denied> {
        let Some(guard) = &self.guard else {
            return Ok(());
        };
        if *asked.request.method() == Method::Options {
            return Ok(());
        }
        let session = asked.header(&SESSION);
        guard.check(&access::AuthRequest {
            header: asked.header(&AUTHORIZATION),
            method: asked.request.method().into(),
            uri: asked.url(),
            now_ns: asked.now,
            goes_on: session.is_some_and(|text| !self.is_over(text)),
        })?;
        Ok(())
    }

    fn reply(&mut self, asked: &Asked<'_>, host: &mut dyn Host) -> Poll<Result<Reply, Refusal>> {
        if let Some(wanted) = asked
            .header(&REQUIRE)
            .filter(|wanted| *wanted != "play.basic")
        {
            let why = format!("it wants {wanted:?}, which there is not");
            return Poll::Ready(Err(Refusal::new(StatusCode::OptionNotSupported, why)));
        }
        let session = match asked.header(&SESSION) {
            // A session that has ended meanwhile is what this asks for.
            Some(text) if *asked.request.method() == Method::Teardown && self.is_over(text) => {
                return Poll::Ready(Ok((Vec::new(), Vec::new())));
            }
            Some(text) => Some(self.session(text, asked)?),
            None => None,
        };
        let named = session.ok_or_else(|| {
            let why = format!("{} without a session", <&str>::from(asked.request.method()));
            Refusal::new(StatusCode::SessionNotFound, why)
        });
        Poll::Ready(match asked.request.method() {
            Method::Options => Ok((vec![(PUBLIC, METHODS.to_owned())], Vec::new())),
            Method::Describe => ready!(describe(asked, host)),
            Method::Setup => ready!(self.set_up(asked, session, host)),
            Method::Play => self.play(asked, named?, host),
            Method::Pause => self.pause(asked, named?, host),
            Method::Teardown => self.tear_down(asked, named?, host),
            Method::GetParameter | Method::SetParameter => {
                parameters(asked, session.map(|at| self.name(at)))
            }
            Method::Announce | Method::Record | Method::Redirect | Method::PlayNotify => {
                let why = format!("{} is not for this", <&str>::from(asked.request.method()));
                Err(Refusal::new(StatusCode::MethodNotAllowed, why))
            }
            Method::Extension(name) => {
                let why = format!("{name:?} is no method");
                Err(Refusal::new(StatusCode::NotImplemented, why))
            }
        })
    }

    /// Whether a text names no session, or none any more.
    fn is_over(&self, text: &str) -> bool {
        let name = text.split(';').next().unwrap_or_default().trim();
        !self.names.contains_key(name)
    }

    /// The session that a request names, which is heard of by that.
    fn session(&mut self, text: &str, asked: &Asked<'_>) -> Result<usize, Refusal> {
        let name = text.split(';').next().unwrap_or_default().trim();
        let index = self.names.get(name).copied();
        let index =
            index.ok_or_else(|| Refusal::new(StatusCode::SessionNotFound, "no such session"))?;
        let until = asked.now + self.timeout_ns;
        if let Some(session) = &mut self.sessions[index] {
            session.until = until;
            // Who speaks of a session by another connection has come back by that.
            if !session.is_interleaved {
                session.connection = Some(asked.connection);
            }
        }
        Ok(index)
    }

    fn name(&self, session: usize) -> String {
        let session = self.sessions.get(session).and_then(Option::as_ref);
        session
            .map(|session| session.name.clone())
            .unwrap_or_default()
    }

    fn set_up(
        &mut self,
        asked: &Asked<'_>,
        session: Option<usize>,
        host: &mut dyn Host,
    ) -> Poll<Result<Reply, Refusal>> {
        let path = asked.path()?;
        let offer = asked.header(&TRANSPORT).and_then(Offer::read);
        let offer = offer.ok_or_else(|| {
            let why = format!(
                "transport {:?}",
                asked.header(&TRANSPORT).unwrap_or_default()
            );
            Refusal::new(StatusCode::UnsupportedTransport, why)
        })?;
        let found = match session.and_then(|index| self.sessions[index].as_ref()) {
            Some(of) if of.is_playing => return Poll::Ready(Err(not_now("it plays"))),
            Some(of) if of.path.clip() != path.clip() => {
                let why = "a session has the tracks of one clip";
                let why = Refusal::new(StatusCode::AggregateOperationNotAllowed, why);
                return Poll::Ready(Err(why));
            }
            Some(of) => of.found.clone(),
            None => ready!(host.find(&path))?,
        };
        Poll::Ready(self.set_up_in(asked, session, (path, offer, found), host))
    }

    /// A track of what was found.
    fn set_up_in(
        &mut self,
        asked: &Asked<'_>,
        session: Option<usize>,
        (path, offer, found): (Path, Offer, Found),
        host: &mut dyn Host,
    ) -> Result<Reply, Refusal> {
        let track = match (path.track(), found.clip.tracks.len()) {
            (Some(track), tracks) if track < tracks => track,
            (None, 1) => 0,
            (None, _) => {
                let why = "tracks are set up one at a time";
                return Err(Refusal::new(StatusCode::AggregateOperationNotAllowed, why));
            }
            (Some(_), _) => {
                return Err(Refusal::new(StatusCode::NotFound, "there is no such track"));
            }
        };
        let known = session.and_then(|index| self.sessions[index].as_ref());
        if known.is_some_and(|of| of.tracks.iter().any(|(known, _)| *known == track)) {
            return Err(not_now("that track is set up"));
        }
        let (index, is_new) = match session {
            Some(index) => (index, false),
            None => (self.free.pop().unwrap_or(self.sessions.len()), true),
        };
        if is_new {
            let name = match host.admit(index, asked.connection, &path, &found) {
                Ok(name) => name,
                Err(refusal) => {
                    if index < self.sessions.len() {
                        self.free.push(index);
                    }
                    return Err(refusal);
                }
            };
            self.keep(index, name, asked, path, found);
        }
        let way = match host.set_up(index, track, &offer) {
            Ok(way) => way,
            Err(refusal) => {
                if is_new {
                    self.end(index, host, Ended::Told);
                }
                return Err(refusal);
            }
        };
        let seconds = self.timeout_ns / SECOND;
        let name = self.name(index);
        if let Some(session) = &mut self.sessions[index] {
            session.tracks.push((track, asked.url().to_owned()));
            session.is_interleaved |= matches!(way, Way::Interleaved { .. });
        }
        let headers = vec![
            (TRANSPORT, way.to_string()),
            (SESSION, format!("{name};timeout={seconds}")),
        ];
        Ok((headers, Vec::new()))
    }

    fn keep(&mut self, index: usize, name: String, asked: &Asked<'_>, path: Path, found: Found) {
        if index == self.sessions.len() {
            self.sessions.push(None);
        }
        self.names.insert(name.clone(), index);
        self.sessions[index] = Some(Session {
            name,
            connection: Some(asked.connection),
            path,
            found,
            tracks: Vec::new(),
            is_interleaved: false,
            is_playing: false,
            is_to_end: false,
            is_at_end: false,
            until: asked.now + self.timeout_ns,
        });
    }
}

fn describe(asked: &Asked<'_>, host: &mut dyn Host) -> Poll<Result<Reply, Refusal>> {
    const SDP: &str = "application/sdp";
    let accepted = asked.header(&ACCEPT).unwrap_or(SDP);
    let mut kinds = accepted
        .split(',')
        .map(|kind| kind.split(';').next().unwrap_or_default().trim());
    let is_sdp = |kind: &str| {
        let known = [SDP, "application/*", "*/*"];
        known.iter().any(|known| kind.eq_ignore_ascii_case(known))
    };
    if !kinds.any(is_sdp) {
        let why = format!("it accepts {accepted:?} and not {SDP}");
        return Poll::Ready(Err(Refusal::new(StatusCode::NotAcceptable, why)));
    }
    let path = asked.path()?;
    let found = ready!(host.find(&path))?;
    let url = asked
        .url()
        .split(['?', '#'])
        .next()
        .unwrap_or_default()
        .trim_end_matches('/');
    let headers = vec![
        (CONTENT_TYPE, SDP.to_owned()),
        (CONTENT_BASE, format!("{url}/")),
    ];
    // Each asks by an address and a name of its own.
    let announced = Announced {
        name: path.clip().last().map_or("clip", String::as_str),
        version: found.version,
        address: host.address()?,
    };
    let packetiser = host.packetiser(&path);
    let text = found.clip.describe_by(&announced, packetiser.as_deref());
    Poll::Ready(Ok((headers, text)))
}

/// Nothing is asked or set by parameters; without any, both say that somebody is there.
fn parameters(asked: &Asked<'_>, session: Option<String>) -> Result<Reply, Refusal> {
    if !asked.request.body().trim_ascii().is_empty() {
        let why = "there are no parameters";
        return Err(Refusal::new(StatusCode::ParameterNotUnderstood, why));
    }
    Ok((
        session.map(|name| (SESSION, name)).into_iter().collect(),
        Vec::new(),
    ))
}

fn not_now(why: &str) -> Refusal {
    Refusal::new(StatusCode::MethodNotValidInThisState, why)
}

/// What else is said with a refusal.
fn more(asked: &Asked<'_>, refusal: &Refusal) -> Vec<(HeaderName, String)> {
    match refusal.status {
        StatusCode::MethodNotAllowed | StatusCode::MethodNotValidInThisState => {
            vec![(ALLOW, METHODS.to_owned())]
        }
        StatusCode::OptionNotSupported => {
            let wanted = asked.header(&REQUIRE).unwrap_or_default();
            vec![(UNSUPPORTED, wanted.to_owned())]
        }
        _ => Vec::new(),
    }
}

/// An answer to a request of that number.
fn answered(
    number: Option<u32>,
    status: StatusCode,
    (headers, body): Reply,
    refused: Option<Refusal>,
) -> Answer {
    let mut builder = Response::builder(Version::V1_0, status).header(SERVER, NAME);
    if let Some(number) = number {
        builder = builder.header(CSEQ, number.to_string());
    }
    for (name, value) in headers {
        builder = builder.header(name, value);
    }
    Answer {
        bytes: written(builder, body),
        refused,
    }
}

fn written(builder: ResponseBuilder, body: Vec<u8>) -> Vec<u8> {
    let builder = builder.header(CONTENT_LENGTH, body.len().to_string());
    let mut bytes = Vec::new();
    // Writing to memory does not fail.
    let _ = builder.build(body).write(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests;
