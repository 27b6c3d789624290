//! What all requests share: limits, counts, who is told; and what is done for each of them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{Extension, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use crate::answer::{Refused, Why};
use crate::{Event, Limits, Summary, Teller};

/// The most characters of an address that are said of it.
const SAID: usize = 200;

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
}

impl House {
    pub(crate) fn new(limits: Limits, at: SocketAddr, on_event: Teller) -> Self {
        Self {
            limits,
            is_local: at.ip().to_canonical().is_loopback(),
            at,
            on_event,
            tally: Tally::default(),
        }
    }

    pub(crate) fn listens(&self) {
        (self.on_event)(&Event::Listening(self.at));
    }

    pub(crate) fn refuse(&self, peer: SocketAddr, why: &str) {
        self.tally.refused.fetch_add(1, Ordering::Relaxed);
        (self.on_event)(&Event::Refused { peer, why });
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
    let mut response = if house.is_local && !names_this_machine(request.headers()) {
        let why = "it serves this machine alone, and is called by another name";
        Refused::new(StatusCode::MISDIRECTED_REQUEST, why).into_response()
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
    let status = response.status();
    if status.is_client_error() || status.is_server_error() {
        let why = response.extensions().get::<Why>();
        let why = why.map_or("", |why| why.0.as_str());
        let text = format!("{asked}: {} {why}", status.as_u16());
        house.refuse(peer, text.trim_end());
    }
    response
}

/// An address on one line.
pub(crate) fn said(path: &str) -> String {
    path.escape_debug().take(SAID).collect()
}

/// Whether a request goes to this machine by a name that only itself has.
fn names_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else {
        // HTTP/1.0, which no browser speaks.
        return true;
    };
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
            (Some("127.0.0.1:8080"), true),
            (Some("localhost"), true),
            (Some("LOCALHOST:1"), true),
            (Some("[::1]:8080"), true),
            (Some("127.0.0.1.evil.example"), false),
            (Some("evil.example:8080"), false),
            (Some("192.0.2.1"), false),
            (Some("[::2]"), false),
            (Some(""), false),
            (None, true),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(host) = host {
                headers.insert(header::HOST, HeaderValue::from_static(host));
            }
            assert_eq!(names_this_machine(&headers), is_own, "{host:?}");
        }
    }

    #[test]
    fn what_is_said_of_an_address_is_one_short_line() {
        assert_eq!(said("/a\n\u{1b}b"), "/a\\n\\u{1b}b");
        assert_eq!(said(&"x".repeat(5000)).len(), SAID);
    }
}
