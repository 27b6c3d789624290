//! What all requests share: limits, counts, who is told; and what is done for each of them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{Extension, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use bonsai_stream::serve::{Allotted, is_local};

use crate::answer::{Refused, Why};
use crate::pace::Pace;
use crate::{Event, Limits, Summary, Teller};

/// The most characters of an address that are said of it.
const SAID: usize = 200;
/// The most characters of why something is refused.
const WHY: usize = 300;

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// What was served so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) connections: AtomicU64,
    pub(crate) most_connections: AtomicU64,
    refused: AtomicU64,
    requests: AtomicU64,
    pub(crate) bytes: AtomicU64,
    cut_short: AtomicU64,
}

impl Tally {
    pub(crate) fn summary(&self) -> Summary {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Summary {
            connections: of(&self.connections),
            most_connections: of(&self.most_connections),
            refused: of(&self.refused),
            requests: of(&self.requests),
            bytes: of(&self.bytes),
            cut_short: of(&self.cut_short),
            elapsed_s: 0.0,
        }
    }
}

/// It.
pub(crate) struct House {
    pub(crate) limits: Limits,
    /// Nobody but this machine can ask.
    is_local: bool,
    at: SocketAddr,
    on_event: Teller,
    pub(crate) tally: Tally,
    /// What files are read at.
    pub(crate) pace: Option<Arc<Pace>>,
}

impl House {
    pub(crate) fn new(
        limits: Limits,
        beside: Option<Arc<Allotted>>,
        at: SocketAddr,
        on_event: Teller,
    ) -> Self {
        Self {
            limits,
            is_local: is_local(at.ip()),
            at,
            on_event,
            tally: Tally::default(),
            pace: beside.map(Pace::new),
        }
    }

    pub(crate) fn listens(&self) {
        (self.on_event)(&Event::Listening(self.at));
    }

    pub(crate) fn refuse(&self, peer: SocketAddr, why: &str) {
        self.tally.refused.fetch_add(1, Ordering::Relaxed);
        (self.on_event)(&Event::Refused { peer, why });
    }

    /// Bytes of media were sent.
    pub(crate) fn sent(&self, bytes: usize) {
        self.tally.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Something happened to a live stream.
    pub(crate) fn live(&self, name: &str, what: &str) {
        (self.on_event)(&Event::Live { name, what });
    }

    pub(crate) fn cut_short(&self, peer: SocketAddr, why: &str) {
        self.tally.cut_short.fetch_add(1, Ordering::Relaxed);
        (self.on_event)(&Event::CutShort { peer, why });
    }
}

/// What is done for each request: it has an end, is counted, and is told of where it is refused.
pub(crate) async fn looked_after(
    State(house): State<Arc<House>>,
    Extension(Peer(peer)): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    house.tally.requests.fetch_add(1, Ordering::Relaxed);
    let asked = format!("{} {}", request.method(), said(request.uri().path()));
    let misnamed = misnamed(request.version(), request.headers(), house.is_local);
    let mut response = if let Some(refused) = misnamed {
        refused.into_response()
    } else {
        match tokio::time::timeout(house.limits.stall, next.run(request)).await {
            Ok(response) => response,
            Err(_) => Refused::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "it takes too long: try again",
            )
            .into_response(),
        }
    };
    response.headers_mut().insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    if house.is_local {
        // No page of elsewhere shows what is for this machine alone (Fetch standard).
        let policy = HeaderName::from_static("cross-origin-resource-policy");
        let policy = response.headers_mut().entry(policy);
        policy.or_insert(HeaderValue::from_static("same-origin"));
    }
    let status = response.status();
    let why = response.extensions().get::<Why>();
    let is_asked = status == StatusCode::UNAUTHORIZED && why.is_none();
    if (status.is_client_error() || status.is_server_error()) && !is_asked {
        let why = why.map_or_else(String::new, |why| on_one_line(&why.0));
        let text = format!("{asked}: {} {why}", status.as_u16());
        house.refuse(peer, text.trim_end());
    }
    response
}

/// An address on one line.
pub(crate) fn said(path: &str) -> String {
    path.escape_debug().take(SAID).collect()
}

/// A sentence on one line, whatever a stranger has written that is said in it.
fn on_one_line(text: &str) -> String {
    let mut line = String::new();
    for c in text.chars().take(WHY) {
        if c.is_control() {
            line.extend(c.escape_debug());
        } else {
            line.push(c);
        }
    }
    line
}

/// What is wrong with the name that a request has for its server: there is one (RFC 9112, 3.2), and where
/// this machine alone is served, one of its own.
fn misnamed(version: Version, headers: &HeaderMap, is_local: bool) -> Option<Refused> {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if is_local && !names_this_machine(host) => {
            let why = "it serves this machine alone, and is called by another name";
            Some(Refused::new(StatusCode::MISDIRECTED_REQUEST, why))
        }
        (Some(_), None) => None,
        // No browser speaks HTTP/1.0.
        (None, _) if version < Version::HTTP_11 => None,
        _ => {
            let why = "a request names its server once: write one line with Host";
            Some(Refused::new(StatusCode::BAD_REQUEST, why))
        }
    }
}

/// Whether a name is one that this machine has for itself alone.
fn names_this_machine(host: &HeaderValue) -> bool {
    let host = host.to_str().unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<IpAddr>()
            .is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_other_name_is_that_of_this_machine() {
        for (host, is_own) in [
            ("127.0.0.1:8080", true),
            ("localhost", true),
            ("LOCALHOST:1", true),
            ("[::1]:8080", true),
            ("127.0.0.1.evil.example", false),
            ("evil.example:8080", false),
            ("192.0.2.1", false),
            ("[::2]", false),
            ("", false),
        ] {
            let named = names_this_machine(&HeaderValue::from_static(host));
            assert_eq!(named, is_own, "{host:?}");
        }
    }

    #[test]
    fn a_request_names_its_server_once() {
        let cases: [(Version, &[&'static str], bool, bool); 8] = [
            (Version::HTTP_11, &["localhost"], true, true),
            (Version::HTTP_11, &["evil.example"], true, false),
            (Version::HTTP_11, &["films.example"], false, true),
            (Version::HTTP_11, &[], true, false),
            (Version::HTTP_11, &[], false, false),
            (Version::HTTP_11, &["localhost", "localhost"], true, false),
            (Version::HTTP_10, &["a", "b"], false, false),
            (Version::HTTP_10, &[], true, true),
        ];
        for (version, hosts, is_local, is_good) in cases {
            let mut headers = HeaderMap::new();
            for &host in hosts {
                headers.append(header::HOST, HeaderValue::from_static(host));
            }
            let refused = misnamed(version, &headers, is_local);
            assert_eq!(refused.is_none(), is_good, "{version:?} {hosts:?}");
        }
    }

    #[test]
    fn why_something_is_refused_is_one_short_line() {
        let line = on_one_line("\"a\nb\u{1b}[31m\u{9b}\" é");
        assert_eq!(line, "\"a\\nb\\u{1b}[31m\\u{9b}\" é");
        assert_eq!(on_one_line(&"x".repeat(5000)).len(), WHY);
    }

    #[test]
    fn what_is_said_of_an_address_is_one_short_line() {
        assert_eq!(said("/a\n\u{1b}b"), "/a\\n\\u{1b}b");
        assert_eq!(said(&"x".repeat(5000)).len(), SAID);
    }
}
