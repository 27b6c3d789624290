//! A typed client of the daemon's interface.
//!
//! ```no_run
//! use bonsai_client::{Client, How};
//!
//! let client = Client::unix("/run/bonsai/daemon.sock")?;
//! let services = client.services()?;
//! let patch = serde_json::json!({"send": {"max": "40Mbit/s"}});
//! let changed = client.change_service("vod", &patch, &How::default())?;
//! println!("{} services, now at revision {}", services.services.len(), changed.revision);
//! # Ok::<(), bonsai_client::ClientError>(())
//! ```
//!
//! # Errors
//! [`ClientError::Refused`] is what the daemon says ([`Problem`]); everything else is between here
//! and there. [`ClientError::Absent`] is given only where the kernel says that no process listens: a daemon that is flooded or hangs is one
//! that runs. Each call waits at most [`PATIENCE`], unless [`Client::within`] says otherwise.
#![forbid(unsafe_code)]

mod error;

use std::borrow::Cow;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bonsai_api::{
    Admission, AdmitRequest, AuditPage, Changed, Config, Exports, Known, LinkChanged, LinkView,
    Links, ProbeRequest, Probed, Problem, QosReport, QosView, Resource, Revision, Series,
    ServiceView, Services, Span, Status, Token, TokenScope, Undo,
};
use bonsai_units::text::{self, is_plain};
use reqwest::Method;
use reqwest::blocking::{RequestBuilder, Response};
use reqwest::header::IF_MATCH;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use error::ClientError;

/// How long an answer is waited for.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// A socket whose queue of connections is full is tried again for this long.
const FULL: Duration = Duration::from_secs(5);

/// Time between two tries.
const AGAIN: Duration = Duration::from_millis(5);

/// How a change is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// Nothing is changed; the answer shows what would be.
    pub dry_run: bool,
    /// For how long; for good without it.
    pub lasts: Option<Span>,
    /// Why, for the audit trail.
    pub reason: Option<String>,
    /// The revision that it is made for; whatever it is without it.
    pub revision: Option<Revision>,
}

/// A token that was made; it is shown this once.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Made {
    /// The token.
    pub token: String,
    /// What it is called.
    pub name: String,
    /// When it ends, ms since 1970.
    pub until_unix_ms: Option<u64>,
}

/// A way to the page.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Page {
    /// Its address, with a token.
    pub url: String,
    /// When the token ends, ms since 1970.
    pub until_unix_ms: u64,
}

/// What is asked of the past.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Range {
    /// The service; all together without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<Resource>,
    /// From when, ms since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// Until when, ms since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// About how many points.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub points: Option<u32>,
}

/// A way to one daemon.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::blocking::Client,
    base: String,
    token: Option<String>,
    place: String,
    patience: Duration,
}

type Answer<T> = Result<T, ClientError>;

impl Client {
    /// To the daemon behind a Unix socket.
    ///
    /// # Errors
    /// The client itself cannot be made.
    pub fn unix(socket: impl AsRef<Path>) -> Answer<Self> {
        let socket: PathBuf = socket.as_ref().into();
        let place = socket.display().to_string();
        let builder = reqwest::blocking::Client::builder().unix_socket(socket);
        Self::build(builder, "http://localhost".to_owned(), None, place)
    }

    /// To the daemon at an address, such as `http://127.0.0.1:7117`, with a token.
    ///
    /// # Errors
    /// The client itself cannot be made.
    pub fn tcp(base: &str, token: &str) -> Answer<Self> {
        let base = base.trim_end_matches('/').to_owned();
        let builder = reqwest::blocking::Client::builder();
        Self::build(builder, base.clone(), Some(token.to_owned()), base)
    }

    fn build(
        builder: reqwest::blocking::ClientBuilder,
        base: String,
        token: Option<String>,
        place: String,
    ) -> Answer<Self> {
        let http = builder.timeout(PATIENCE).no_proxy().build();
        let http = http.map_err(|source| ClientError::Absent {
            place: place.clone(),
            source,
        })?;
        Ok(Self {
            http,
            base,
            token,
            place,
            patience: PATIENCE,
        })
    }

    /// The same with another time for each answer, for requests that others can do without.
    #[must_use]
    pub fn within(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self
            .http
            .request(method, format!("{}/v1/{path}", self.base))
            .timeout(self.patience);
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    fn send(&self, request: RequestBuilder) -> Answer<Response> {
        let response = self.sent(request)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let problem = response.bytes().map_err(drop);
        let problem = problem.and_then(|bytes| parsed::<Problem>(&bytes).map_err(drop));
        Err(problem.map_or_else(
            |_| ClientError::Foreign {
                place: self.place.clone(),
                about: format!("it answers {status}"),
            },
            ClientError::Refused,
        ))
    }

    /// The response to a request. Connections of others may fill the queue of a Unix socket, where connecting does not wait.
    fn sent(&self, request: RequestBuilder) -> Answer<Response> {
        let start = Instant::now();
        let mut request = request;
        loop {
            let again = request.try_clone();
            let error = match request.send() {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let is_full = error.is_connect() && error::kind(&error) == Some(ErrorKind::WouldBlock);
            match again.filter(|_| is_full && start.elapsed() < FULL.min(self.patience)) {
                Some(again) => request = again,
                None => return Err(self.failed(error)),
            }
            std::thread::sleep(AGAIN);
        }
    }

    fn failed(&self, source: reqwest::Error) -> ClientError {
        ClientError::of(source, &self.place)
    }

    fn read<T: DeserializeOwned>(&self, request: RequestBuilder) -> Answer<T> {
        let response = self.send(request)?;
        let foreign = |about: String| ClientError::Foreign {
            place: self.place.clone(),
            about,
        };
        let bytes = response.bytes().map_err(|e| foreign(e.to_string()))?;
        parsed(&bytes).map_err(|e| foreign(e.to_string()))
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Answer<T> {
        self.read(self.request(Method::GET, path))
    }

    fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Answer<T> {
        self.read(self.request(Method::POST, path).json(body))
    }

    /// The daemon itself.
    ///
    /// # Errors
    /// See [`ClientError`]; so of all calls.
    pub fn status(&self) -> Answer<Status> {
        self.get("status")
    }

    /// All services that this user may see.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn services(&self) -> Answer<Services> {
        self.get("services")
    }

    /// One service.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn service(&self, id: &str) -> Answer<ServiceView> {
        self.get(&format!("services/{}", escaped(id)))
    }

    /// Changes a service by a merge patch.
    ///
    /// # Errors
    /// See [`ClientError`]; then nothing was changed.
    pub fn change_service(&self, id: &str, patch: &Value, how: &How) -> Answer<Changed> {
        self.change(&format!("services/{}", escaped(id)), patch, how)
    }

    /// What is configured.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn config(&self) -> Answer<Config> {
        self.get("config")
    }

    /// Changes what is configured by a merge patch.
    ///
    /// # Errors
    /// See [`ClientError`]; then nothing was changed.
    pub fn change_config(&self, patch: &Value, how: &How) -> Answer<Changed> {
        self.change("config", patch, how)
    }

    /// All exports of block servers that this user may see.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn exports(&self) -> Answer<Exports> {
        self.get("exports")
    }

    /// All interfaces of the machine, and those that limits wait for.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn links(&self) -> Answer<Links> {
        self.get("links")
    }

    /// One interface, by its target.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn link(&self, target: &str) -> Answer<LinkView> {
        self.get(&format!("links/{}", escaped(target)))
    }

    /// Changes what an interface may send and receive by a merge patch.
    ///
    /// # Errors
    /// See [`ClientError`]; then nothing was changed.
    pub fn change_link(&self, target: &str, patch: &Value, how: &How) -> Answer<LinkChanged> {
        self.change(&format!("links/{}", escaped(target)), patch, how)
    }

    /// Takes the limits of an interface away.
    ///
    /// # Errors
    /// See [`ClientError`]; then nothing was changed.
    pub fn clear_link(&self, target: &str, how: &How) -> Answer<LinkChanged> {
        let path = format!("links/{}", escaped(target));
        self.read(asked_so(self.request(Method::DELETE, &path), how))
    }

    fn change<T: DeserializeOwned>(&self, path: &str, patch: &Value, how: &How) -> Answer<T> {
        let request = self.request(Method::PATCH, path).json(patch);
        self.read(asked_so(request, how))
    }

    /// Takes the last change back, or all since a revision; or says what that would do.
    ///
    /// # Errors
    /// See [`ClientError`]; then nothing was changed.
    pub fn undo(&self, to: Option<Revision>, dry_run: bool) -> Answer<Changed> {
        let path = if dry_run { "undo?dry_run=true" } else { "undo" };
        self.post(path, &Undo { revision: to })
    }

    /// Takes the last change back if nothing has changed since that revision.
    ///
    /// # Errors
    /// See [`ClientError`]; then nothing was changed.
    pub fn undo_at(&self, revision: Revision) -> Answer<Changed> {
        let request = self.request(Method::POST, "undo");
        let request = request.header(IF_MATCH, format!("\"{revision}\""));
        self.read(request.json(&Undo { revision: None }))
    }

    /// Where the daemon is asked.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Who changed what, the youngest first; `before` is what the page before says.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn audit(
        &self,
        service: Option<&str>,
        before: Option<u64>,
        limit: u32,
    ) -> Answer<AuditPage> {
        let mut query = vec![("limit", limit.to_string())];
        query.extend(service.map(|service| ("service", service.to_owned())));
        query.extend(before.map(|before| ("before", before.to_string())));
        self.read(self.request(Method::GET, "audit").query(&query))
    }

    /// What was.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn history(&self, range: &Range) -> Answer<Series> {
        self.read(self.request(Method::GET, "history").query(range))
    }

    /// What something is known of.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn known(&self) -> Answer<Vec<Known>> {
        self.get("history/known")
    }

    /// The past as a file, `csv` or `parquet`.
    ///
    /// # Errors
    /// See [`ClientError`], or what writing says.
    pub fn export(
        &self,
        format: &str,
        range: &Range,
        into: &mut impl std::io::Write,
    ) -> Answer<u64> {
        let request = self.request(Method::GET, "history/export");
        let range = Range {
            points: None,
            ..range.clone()
        };
        let request = request.query(&[("format", format)]).query(&range);
        let mut response = self.send(request.timeout(Duration::from_secs(3600)))?;
        response.copy_to(into).map_err(|source| self.failed(source))
    }

    /// What clients see.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn qos(&self) -> Answer<Vec<QosView>> {
        self.get("qos")
    }

    /// Tells what clients saw.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn report(&self, report: &QosReport) -> Answer<()> {
        self.send(self.request(Method::POST, "reports").json(report))
            .map(drop)
    }

    /// Whether more streams fit.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn admit(&self, request: &AdmitRequest) -> Answer<Admission> {
        self.post("admit", request)
    }

    /// Measures a capacity. Nothing is configured by it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn probe(&self, request: &ProbeRequest) -> Answer<Probed> {
        let wanted = self.request(Method::POST, "capacity/probe").json(request);
        // It takes up to half of its time more to make ready, and a disk may be slow.
        let time = request.lasts.map_or(Duration::ZERO, |span| span.0);
        self.read(wanted.timeout(time * 2 + 4 * PATIENCE))
    }

    /// Opens the page.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn page(&self) -> Answer<Page> {
        self.read(self.request(Method::POST, "page"))
    }

    /// The tokens there are.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn tokens(&self) -> Answer<Vec<Token>> {
        self.get("tokens")
    }

    /// Makes a token.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn make_token(&self, name: &str, scope: TokenScope, lasts: Option<Span>) -> Answer<Made> {
        let body = serde_json::json!({"name": name, "scope": scope, "for": lasts});
        self.post("tokens", &body)
    }

    /// Ends a token.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn revoke_token(&self, name: &str) -> Answer<()> {
        let path = format!("tokens/{}", escaped(name));
        self.send(self.request(Method::DELETE, &path)).map(drop)
    }
}

/// An answer whose texts steer no terminal: characters that would (kept by an older daemon, or sent by another program at that
/// address) are escaped here, so that nothing that prints an answer has to think of them.
fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    let text = String::from_utf8_lossy(bytes);
    // Most answers have none, not even as \uXXXX.
    if !text.contains('\\') && text.chars().all(|c| c == '\n' || is_plain(c)) {
        return serde_json::from_str(&text);
    }
    let mut value = serde_json::from_str(&text)?;
    make_plain(&mut value);
    serde_json::from_value(value)
}

fn make_plain(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(safe) = text::escaped(text) {
                *text = safe;
            }
        }
        Value::Array(values) => values.iter_mut().for_each(make_plain),
        Value::Object(fields) => {
            let odd = |name: &&String| !name.chars().all(is_plain);
            let odd: Vec<String> = fields.keys().filter(odd).cloned().collect();
            for name in odd {
                let under = fields.remove(&name).unwrap_or_default();
                fields.insert(text::escaped(&name).into_owned(), under);
            }
            fields.values_mut().for_each(make_plain);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// How a change is made, beside what it is.
fn asked_so(request: RequestBuilder, how: &How) -> RequestBuilder {
    let mut query = Vec::new();
    if how.dry_run {
        query.push(("dry_run", "true".to_owned()));
    }
    query.extend(how.lasts.map(|lasts| ("for", lasts.to_string())));
    query.extend(how.reason.clone().map(|reason| ("reason", reason)));
    let request = request.query(&query);
    match how.revision {
        Some(revision) => request.header(IF_MATCH, format!("\"{revision}\"")),
        None => request,
    }
}

/// A part of a path: whatever is not a letter, a digit or one of `-._~` (RFC 3986, section 2.3) in
/// hexadecimal digits.
fn escaped(text: &str) -> String {
    let mut found = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            found.push(char::from(byte));
        } else {
            found.push_str(&format!("%{byte:02X}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_answers_steer_no_terminal() {
        let hostile = "x\u{1b}[31m\r\nrevision 99\u{202e}\u{9b}";
        let made = serde_json::json!({"token": hostile, "name": "n", "until_unix_ms": u64::MAX});
        let made: Made = parsed(made.to_string().as_bytes()).expect("an answer");
        assert_eq!(made.token, "x\\u{1b}[31m\\r\\nrevision 99\\u{202e}\\u{9b}");
        assert_eq!(made.until_unix_ms, Some(u64::MAX));
        let nested = serde_json::json!([{hostile: [hostile, 1.5, null]}]);
        let nested: Value = parsed(nested.to_string().as_bytes()).expect("JSON");
        let is_safe = |text: &str| text.chars().all(is_plain);
        assert!(is_safe(
            &nested[0]
                .as_object()
                .expect("an object")
                .keys()
                .next()
                .expect("one")[..]
        ));
        assert!(!nested.to_string().contains("\\u001b") && is_safe(&nested.to_string()));
        // Plain text stays as it is, quotes and letters of any language included.
        let plain: Value = parsed("{\"a\\\"\":\"ä 日本\\\\\"}".as_bytes()).expect("JSON");
        assert_eq!(plain, serde_json::json!({"a\"": "ä 日本\\"}));
    }

    #[test]
    fn parts_of_paths_are_escaped() {
        assert_eq!(escaped("alice:vod-2.x"), "alice%3Avod-2.x");
        assert_eq!(escaped("../ä"), "..%2F%C3%A4");
    }

    #[test]
    fn a_daemon_that_runs_is_not_taken_for_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("daemon.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        let ends = std::thread::spawn(move || {
            // A connection is ended at once, as where too many are open; then all are refused.
            drop(listener.accept());
        });
        let client = Client::unix(&socket).expect("a client");
        let error = client.status().expect_err("none is answered");
        assert!(matches!(error, ClientError::Silent { .. }), "{error:?}");
        assert!(error.to_string().contains("runs and does not answer"));
        ends.join().expect("it ends");
        let error = client.status().expect_err("none listens");
        assert!(matches!(error, ClientError::Absent { .. }), "{error:?}");
    }

    #[test]
    fn nobody_is_named() {
        let client = Client::unix("/nonexistent/daemon.sock").expect("a client");
        let error = client.status().expect_err("nobody").to_string();
        assert!(error.contains("/nonexistent/daemon.sock"), "{error}");
    }
}
