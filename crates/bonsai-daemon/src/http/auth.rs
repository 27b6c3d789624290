//! Who asks: by the kernel's word on a Unix socket, by a token over TCP. How often, and from
//! which page.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bonsai_api::{Problem, TokenScope};
use governor::clock::DefaultClock;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};

use super::App;
use super::arrivals::Arrival;
use super::body::Failure;
use super::places::{Client, administers};
use super::tokens::{Bearer, hash};
use crate::problems::problem;
use crate::who::Who;

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    /// A process of this machine.
    Process {
        /// Its user.
        uid: u32,
        /// Its user's group.
        gid: u32,
        /// Its number, if the kernel says it.
        pid: Option<u32>,
    },
    /// Somebody at an address, and where they were let in.
    Address {
        /// From where.
        from: SocketAddr,
        /// To where.
        to: SocketAddr,
    },
}

/// How often each client may ask.
#[derive(Debug)]
pub(crate) struct Limiter(RateLimiter<Client, DashMapStateStore<Client>, DefaultClock>);

/// So many requests a second, of which a second's worth may come at once.
pub(super) fn quota(requests: u32) -> Quota {
    Quota::per_second(NonZeroU32::new(requests).unwrap_or(NonZeroU32::MIN))
}

/// Clients that are remembered at most; then those that have not asked lately are forgotten.
const MOST_CLIENTS: usize = 10_000;

impl Limiter {
    /// So many requests a second each.
    pub(crate) fn new(requests: u32) -> Self {
        Self(RateLimiter::dashmap(quota(requests)))
    }

    fn lets(&self, client: &Client) -> bool {
        if self.0.len() > MOST_CLIENTS {
            self.0.retain_recent();
        }
        self.0.check_key(client).is_ok()
    }
}

/// What somebody has shown, by which they are known for as long as it holds.
#[derive(Clone, Debug)]
pub(super) enum Proof {
    /// The kernel's word.
    Process {
        uid: u32,
        gid: u32,
        pid: Option<u32>,
    },
    /// A token, by its hash.
    Token(String),
}

impl Proof {
    /// Who that is by now; nobody, if it does not hold any more.
    pub(super) async fn who(&self, app: &App) -> Result<Option<Who>, Problem> {
        let bearer = match self {
            Self::Process { uid, gid, pid } => {
                return of_user(app, *uid, *gid, *pid).await.map(Some);
            }
            Self::Token(hash) => app.tokens.bearer(hash),
        };
        let Some(bearer) = bearer else {
            return Ok(None);
        };
        let Some(uid) = bearer.uid else {
            return Ok(Some(Who {
                name: bearer.name,
                via: "tcp",
                uid: None,
                pid: None,
                home: None,
                reads_all: bearer.all,
                writes_all: bearer.all && bearer.scope == TokenScope::Write,
            }));
        };
        let user = of_user(app, uid, bearer.gid, None).await?;
        Ok(Some(by_page(bearer, user)))
    }
}

/// Somebody by a page: it does what its user may do by now, and no more than when it was opened.
fn by_page(bearer: Bearer, user: Who) -> Who {
    let wrote_all = bearer.all && bearer.scope == TokenScope::Write;
    Who {
        name: bearer.name,
        via: "tcp",
        reads_all: bearer.all && user.reads_all,
        writes_all: wrote_all && user.writes_all,
        ..user
    }
}

/// Whoever asks, before anything is looked up that takes time.
fn client(app: &App, peer: Peer, headers: &HeaderMap) -> (Client, Option<Proof>) {
    let from = match peer {
        Peer::Process { uid, gid, pid } => {
            return (Client::User(uid), Some(Proof::Process { uid, gid, pid }));
        }
        Peer::Address { from, .. } => from,
    };
    let shown = shown(headers).ok().and_then(|token| {
        let hash = hash(token);
        Some((app.tokens.bearer(&hash)?, hash))
    });
    match shown {
        Some((bearer, hash)) => {
            let client = match bearer.uid {
                Some(uid) => Client::Pages(uid),
                None => Client::Token(bearer.name),
            };
            (client, Some(Proof::Token(hash)))
        }
        None => (Client::at(from.ip()), None),
    }
}

/// Lets through who does not ask too often. Those who have shown a token are not counted with those
/// who have not: anybody of this machine may ask from its own address.
pub(crate) async fn bounded(state: State<Arc<App>>, request: Request, next: Next) -> Response {
    let lets = |app: &App, client: &Client, _: Option<&Arc<Arrival>>| app.limiter.lets(client);
    bounded_by(state, request, next, lets).await
}

/// The same for the files of the page, which a browser asks for without a token: those who show none
/// are counted by connection, so that others at the address of this machine do not keep out a page.
pub(crate) async fn bounded_file(state: State<Arc<App>>, request: Request, next: Next) -> Response {
    let lets = |app: &App, client: &Client, arrival: Option<&Arc<Arrival>>| match arrival {
        Some(arrival) if matches!(client, Client::Address(_)) => {
            arrival.lets_file(app.config.api.requests)
        }
        _ => app.limiter.lets(client),
    };
    bounded_by(state, request, next, lets).await
}

async fn bounded_by(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
    lets: impl Fn(&App, &Client, Option<&Arc<Arrival>>) -> bool,
) -> Response {
    let Some(peer) = request.extensions().get::<Peer>().copied() else {
        return refused(401, "unknown", "nobody knows who asks");
    };
    if let Some(arrival) = request.extensions().get::<Arc<Arrival>>() {
        arrival.speaks();
    }
    let (client, proof) = client(&app, peer, request.headers());
    if !lets(&app, &client, request.extensions().get()) {
        let text = format!(
            "more than {} requests a second: ask less often, or raise api.requests",
            app.config.api.requests
        );
        let mut response = refused(429, "too-often", text);
        let second = HeaderValue::from_static("1");
        response.headers_mut().insert(header::RETRY_AFTER, second);
        return response;
    }
    if let Some(proof) = proof {
        let arrival = request.extensions().get::<Arc<Arrival>>();
        if arrival.is_some_and(|arrival| !arrival.is_of(&client)) {
            let text = "too many connections are open: end some, or ask again later";
            let many = problem(429, "too-many", "Too many", text);
            let mut response = Failure(many).into_response();
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
            return response;
        }
        request.extensions_mut().insert(proof);
    }
    if let Some(Peer::Address { to, .. }) = request.extensions().get::<Peer>()
        && let Err(problem) = is_ours(request.headers(), *to, &app.config.api.hosts)
    {
        return Failure(problem).into_response();
    }
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Finds out who asks; nobody else gets further.
pub(crate) async fn known(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let who = match request.extensions().get::<Proof>().cloned() {
        Some(proof) => proof.who(&app).await,
        None => Ok(None),
    };
    let who = match who {
        Ok(Some(who)) => who,
        Ok(None) => return unknown(request.headers()),
        Err(problem) => return Failure(problem).into_response(),
    };
    app.attend().await;
    request.extensions_mut().insert(who);
    next.run(request).await
}

fn refused(status: u16, kind: &str, text: impl Into<String>) -> Response {
    let title = if status == 429 {
        "Too often"
    } else {
        "Not known"
    };
    Failure(problem(status, kind, title, text)).into_response()
}

/// Whoever has shown no token, or none that holds.
fn unknown(headers: &HeaderMap) -> Response {
    let text = "the token is not known, or has ended";
    let problem = shown(headers).err();
    let problem = problem.unwrap_or_else(|| not_known(text));
    let mut response = Failure(problem).into_response();
    let challenge = HeaderValue::from_static("Bearer realm=\"bonsai\"");
    response
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, challenge);
    response
}

fn not_known(text: &str) -> Problem {
    problem(401, "unknown", "Not known", text)
}

/// A user of this machine: root and the daemon's own user do everything, others what the
/// configuration says, and everybody sees their own services.
async fn of_user(app: &App, uid: u32, gid: u32, pid: Option<u32>) -> Result<Who, Problem> {
    let person = app.names.of(uid, gid, &app.config.api).await?;
    let writes_all = administers(uid) || person.writes;
    // The daemon's own user's services have ids without a user.
    let other = uid != rustix::process::geteuid().as_raw();
    Ok(Who {
        name: person.name,
        via: "socket",
        uid: Some(uid),
        pid,
        home: other.then_some(person.label),
        reads_all: writes_all || person.reads,
        writes_all,
    })
}

/// The token that is shown.
pub(super) fn shown(headers: &HeaderMap) -> Result<&str, Problem> {
    let value = headers.get(header::AUTHORIZATION).ok_or_else(|| {
        not_known("over TCP whoever asks shows a token: Authorization: Bearer TOKEN (bonsai token create makes one)")
    })?;
    let token = value.to_str().ok().and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme
            .eq_ignore_ascii_case("bearer")
            .then_some(token.trim())
    });
    token.ok_or_else(|| not_known("Authorization: it is no bearer token"))
}

/// Whether a request over TCP is meant for this interface, and does not come from somebody
/// else's page. That matters where the address is this machine's own: names that were made to point
/// there (DNS rebinding) stand in `Host`. Beyond it there is nothing without a token.
///
/// Ports are not compared: behind a tunnel or a proxy a browser names another one.
pub(super) fn is_ours(headers: &HeaderMap, to: SocketAddr, more: &[String]) -> Result<(), Problem> {
    if !to.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let text = |name| {
        headers
            .get(name)
            .map(|value: &HeaderValue| value.to_str().unwrap_or_default().to_owned())
    };
    let foreign = |what: &str, name: &str| {
        let text = format!(
            "{what} {name:?} is none of this interface's names: add it to api.hosts if it is"
        );
        problem(403, "foreign-host", "Not meant for this", text)
    };
    let host = text(header::HOST).unwrap_or_default();
    if !is_own_name(&host, more) {
        return Err(foreign("Host", &host));
    }
    if let Some(origin) = text(header::ORIGIN) {
        let name = origin.split_once("://").map_or("", |(_, name)| name);
        // Another page of this machine has another port.
        if !name.eq_ignore_ascii_case(&host) && !is_named(name, more) {
            return Err(foreign("Origin", &origin));
        }
    }
    Ok(())
}

/// The host of an authority (RFC 3986), without its port, in one form; `None` if it is none.
pub(crate) fn host(authority: &str) -> Option<String> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (ip, port) = rest.split_once(']')?;
            let ip: Ipv6Addr = ip.parse().ok()?;
            (ip.to_string(), port)
        }
        None => {
            let end = authority.find(':').unwrap_or(authority.len());
            let (name, port) = authority.split_at(end);
            let name = name.strip_suffix('.').unwrap_or(name);
            (name.to_ascii_lowercase(), port)
        }
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let fits = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    (fits && !host.is_empty() && host.bytes().all(is_name)).then_some(host)
}

/// True for a name, with or without a port, that this machine's own address has.
fn is_own_name(name: &str, more: &[String]) -> bool {
    let Some(bare) = host(name) else {
        return false;
    };
    let ip: Option<IpAddr> = bare.parse().ok();
    ip.is_some_and(|ip| ip.to_canonical().is_loopback())
        || bare == "localhost"
        || is_named(name, more)
}

/// True for a name that is configured.
fn is_named(name: &str, more: &[String]) -> bool {
    let bare = host(name);
    bare.is_some() && more.iter().any(|more| host(more) == bare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_listener() {
        let more = ["Media.example:443".to_owned(), "[2001:db8::7]".to_owned()];
        for name in [
            "127.0.0.1:7117",
            "127.0.0.1:8700",
            "127.0.0.1",
            "127.1.2.3:1",
            "localhost:7117",
            "LOCALHOST",
            "localhost.:80",
            "[::1]:7117",
            "[0:0:0:0:0:0:0:1]",
            "[::ffff:127.0.0.1]:9",
            "media.example:7117",
            "media.example",
            "[2001:db8::7]:7117",
        ] {
            assert!(is_own_name(name, &more), "{name}");
        }
        for name in [
            "",
            ":80",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil",
            "127.0.0.1@evil.example",
            "evil.example:127.0.0.1",
            "localhost:80:80",
            "[::1",
            "[::1]evil",
            "[evil]",
            "::1",
            "127.0.0.1/x",
            "0.0.0.0",
            "[::]",
            "192.0.2.1",
        ] {
            assert!(!is_own_name(name, &more), "{name}");
        }
    }

    #[test]
    fn whose_page_asks_is_asked_at_this_machines_own_address_alone() {
        let more = ["media.example".to_owned()];
        let asked = |to: &str, host: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().expect("a value"));
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().expect("a value"));
            }
            is_ours(&headers, to.parse().expect("an address"), &more).is_ok()
        };
        for (to, host, origin, is) in [
            ("127.0.0.1:700", "localhost:8700", None, true),
            (
                "127.0.0.1:700",
                "localhost:8700",
                Some("http://localhost:8700"),
                true,
            ),
            // Another page of this machine.
            (
                "127.0.0.1:700",
                "localhost:8700",
                Some("http://localhost:9000"),
                false,
            ),
            ("127.0.0.1:700", "localhost:8700", Some("null"), false),
            ("127.0.0.1:700", "evil.example", None, false),
            ("[::1]:700", "[::1]:700", Some("http://[::1]:700"), true),
            ("[::ffff:127.0.0.1]:700", "evil.example", None, false),
            ("[::ffff:127.0.0.1]:700", "127.0.0.1:700", None, true),
            // A proxy of this machine, which names itself or its back end.
            (
                "127.0.0.1:700",
                "media.example",
                Some("https://media.example"),
                true,
            ),
            (
                "127.0.0.1:700",
                "127.0.0.1:700",
                Some("https://media.example"),
                true,
            ),
            (
                "127.0.0.1:700",
                "127.0.0.1:700",
                Some("https://evil.example"),
                false,
            ),
            // Beyond this machine a token is needed for all.
            (
                "192.0.2.7:443",
                "any.example",
                Some("https://any.example"),
                true,
            ),
            ("[2001:db8::1]:443", "192.0.2.7:8443", None, true),
        ] {
            assert_eq!(asked(to, host, origin), is, "{to} {host} {origin:?}");
        }
    }

    #[test]
    fn a_page_does_no_more_than_its_user_may_by_now_and_might_when_it_was_opened() {
        let bearer = |scope: &str, all: bool| -> Bearer {
            let text = serde_json::json!({
                "name": "carol", "scope": scope, "uid": 7, "all": all,
                "created_unix_ms": 1, "until_unix_ms": null
            });
            serde_json::from_value(text).expect("a bearer")
        };
        let user = |reads_all, writes_all| Who {
            name: "carol".to_owned(),
            via: "socket",
            uid: Some(7),
            pid: None,
            home: Some("carol".to_owned()),
            reads_all,
            writes_all,
        };
        for (scope, all, now, may) in [
            ("write", true, (true, true), (true, true)),
            // Taken out of a group since.
            ("write", true, (true, false), (true, false)),
            ("write", true, (false, false), (false, false)),
            ("read", true, (false, false), (false, false)),
            // Put into one since.
            ("read", true, (true, true), (true, false)),
            ("read", false, (true, true), (false, false)),
        ] {
            let who = by_page(bearer(scope, all), user(now.0, now.1));
            assert_eq!(
                (who.reads_all, who.writes_all),
                may,
                "{scope} {all} {now:?}"
            );
            assert_eq!((who.via, who.uid), ("tcp", Some(7)));
        }
    }

    #[test]
    fn clients_are_counted_apart() {
        let limiter = Limiter::new(2);
        let [a, b, c] = [Client::User(1), Client::User(2), Client::Pages(1)];
        assert!(limiter.lets(&a) && limiter.lets(&a) && !limiter.lets(&a));
        assert!(limiter.lets(&b) && limiter.lets(&c));
    }
}
