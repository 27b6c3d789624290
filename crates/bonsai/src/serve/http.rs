//! The other way to the same files: HTTP, by a thread of its own.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::Context as _;
use bonsai_davvi::Library;
use bonsai_services::refusal::Refusal;
use bonsai_stream::serve as rtsp;
use bonsai_web::{Error, Event, Limits, Plan, Site, Source, Summary};
use hyper::header::HeaderValue;

use super::{FURTHER, Log, Protection, address, listens, lock, per_address, private};
use crate::cli::Serve;

/// Listens, if it is asked for.
///
/// # Errors
/// What was asked for makes no sense, or there is no listening.
pub(super) fn open(
    args: &Serve,
    at: Option<&str>,
    (beside, protection): (Option<Arc<rtsp::Allotted>>, &Protection),
    log: &Arc<Mutex<Log>>,
) -> anyhow::Result<Option<Site>> {
    let Some(at) = at else {
        return Ok(None);
    };
    let listen = address("--http", at).map_err(Refusal::input)?;
    let own = Library::open(&args.folder).ok();
    let clips = own.is_none().then(|| args.folder.clone());
    let library = match &args.library {
        Some(path) => {
            let named = Library::open(path);
            Some(named.map_err(|error| Refusal::input(error.to_string()))?)
        }
        None => own,
    };
    let plan = Plan {
        listen,
        clips,
        library,
        live: live(args)?,
        beside,
        origin: origin(args)?,
        users: protection.guards.as_ref().map(|of| Arc::clone(&of.http)),
        tls: protection.tls.clone(),
        limits: Limits {
            connections: args.sessions.saturating_add(FURTHER),
            per_address: per_address(args, listen),
            ..Limits::default()
        },
    };
    let log = Arc::clone(log);
    let site = Site::open(
        plan,
        Arc::new(move |event: &Event<'_>| lock(&log).hear(event)),
    );
    site.map(Some).map_err(|error| match error {
        Error::Root { .. } | Error::Listen { .. } => Refusal::input(error.to_string()),
        error @ Error::System(_) => error.into(),
    })
}

/// Live streams of other servers.
fn live(args: &Serve) -> anyhow::Result<Vec<Source>> {
    let mut sources: Vec<Source> = Vec::new();
    for text in &args.live {
        let text = match text.split_once("=@") {
            Some((name, path)) => {
                let read = private::read(Path::new(path));
                let (address, _) =
                    read.map_err(|why| Refusal::input(format!("--live @{path}: {why}")))?;
                format!("{name}={}", address.trim())
            }
            None => text.clone(),
        };
        let source = Source::read(&text);
        // A password may stand in it.
        let source = source.map_err(|why| Refusal::input(format!("--live: {why}")))?;
        if sources.iter().any(|known| known.name() == source.name()) {
            let why = format!("--live: two streams are called {}", source.name());
            return Err(Refusal::input(why));
        }
        sources.push(source);
    }
    Ok(sources)
}

/// The origin whose pages may read what is served.
fn origin(args: &Serve) -> anyhow::Result<Option<HeaderValue>> {
    let Some(text) = &args.allow_origin else {
        return Ok(None);
    };
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    let is_origin = rest.is_some_and(|host| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "-.:[]".contains(c);
        !host.is_empty() && host.chars().all(is_part)
    });
    if !is_origin && text != "*" {
        let why = format!(
            "--allow-origin {text:?}: write SCHEME://HOST or SCHEME://HOST:PORT, as https://example.org, or *"
        );
        return Err(Refusal::input(why));
    }
    Ok(Some(text.parse()?))
}

/// What RTSP came to.
type Streamed = Result<Option<rtsp::Summary>, rtsp::Error>;

/// Serves beside what is done here. Both end when it is to stop, or one of them cannot go on.
///
/// # Errors
/// There is no thread, or it cannot go on.
pub(super) fn beside(
    site: Option<Site>,
    stop: &AtomicBool,
    stream: impl FnOnce() -> Streamed,
) -> anyhow::Result<(Streamed, Option<Summary>)> {
    let Some(site) = site else {
        return Ok((stream(), None));
    };
    thread::scope(|scope| {
        let served = thread::Builder::new().name("http".to_owned());
        let served = served.spawn_scoped(scope, || {
            let served = site.serve(stop);
            stop.store(true, Ordering::Relaxed);
            served
        })?;
        let streamed = stream();
        if streamed.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        let served = served.join();
        let served =
            served.map_err(|_| anyhow::anyhow!("the thread that serves HTTP has ended"))?;
        Ok((streamed, Some(served.context("HTTP cannot be served")?)))
    })
}

impl Log {
    /// What happens over HTTP.
    fn hear(&mut self, event: &Event<'_>) {
        match event {
            Event::Listening(at) => listens::tell(self.scheme("http"), *at),
            Event::Refused { peer, why } => self.line(&format!("{peer}: refused: {why}")),
            Event::Live { name, what } => self.line(&format!("live {name}: {what}")),
            Event::CutShort { peer, why } => self.line(&format!("{peer}: cut short: {why}")),
        }
    }
}

/// What was served, for people.
pub(super) fn text(of: &Summary) -> String {
    format!(
        "HTTP: {} requests by {} connections, {} at a time at most, {} refused\n\
         HTTP: {:.1} MB, {:.1} Mbit/s over {:.1} s, {} answers cut short\n",
        of.requests,
        of.connections,
        of.most_connections,
        of.refused,
        of.bytes as f64 / 1e6,
        of.bytes as f64 * 8.0 / of.elapsed_s.max(1e-9) / 1e6,
        of.elapsed_s,
        of.cut_short,
    )
}
