//! What happens, as it happens: server-sent events (the HTML standard, section 9.2).
//!
//! # Invariants
//! 1. What all listeners of a scope see is made once for all of them.
//! 2. The id of an event is the number of the last entry of the audit trail that came before it, so that a listener that
//!    comes back with `Last-Event-ID` gets what it has missed.
//! 3. Entries that are not told are said (`event: skipped`).

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bonsai_api::{AuditEntry, Problem, Span};
use futures_util::stream::{self, StreamExt};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use utoipa::IntoParams;

use super::App;
use super::auth::Proof;
use super::body::{Failure, Params, aside};
use super::places::{Client, Place, Places};
use super::routes::status_of;
use crate::picture::Picture;
use crate::problems::{bad_input, unavailable};
use crate::who::Who;

/// Streams at a time, those of each client, and those that are kept for root and the daemon's own
/// user.
const MOST: usize = 128;
const OF_EACH: usize = 32;
const KEPT: usize = 16;

/// What the daemon says of itself is sent so often; and it is looked whether the listener still may.
const STATUS: Duration = Duration::from_secs(2);

/// Something is sent at least so often.
const ALIVE: Duration = Duration::from_secs(15);

/// How it is to be.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct How {
    /// Time between two pictures, `100ms` to `60s`; `500ms` without it.
    #[param(value_type = Option<String>, format = "span", example = "500ms")]
    interval: Option<Span>,
}

/// The list of all services as it is sent, for each scope that has listeners: all, or a user's.
#[derive(Debug, Default)]
pub(crate) struct Lists(tokio::sync::Mutex<BTreeMap<Option<u32>, (u64, Bytes)>>);

impl Lists {
    /// The list of a picture for a scope; made for the first that asks, while the others wait.
    pub(super) async fn of(
        &self,
        picture: Arc<Picture>,
        only: Option<u32>,
    ) -> Result<Bytes, Problem> {
        let mut lists = self.0.lock().await;
        let number = picture.number;
        if let Some((of, list)) = lists.get(&only)
            && *of == number
        {
            return Ok(list.clone());
        }
        let made = aside(move || serde_json::to_vec(&picture.services(only)));
        let made = made
            .await?
            .map_err(|error| unavailable(error.to_string()))?;
        let list = Bytes::from(made);
        // Lists of earlier pictures are asked for no more.
        lists.retain(|_, (of, _)| *of >= number);
        lists.entry(only).or_insert_with(|| (number, list.clone()));
        Ok(list)
    }
}

/// Entries of the trail that a listener is not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Skipped {
    /// The last entry before them,
    after: u64,
    /// and the first one after them.
    before: u64,
}

/// The part of the trail that a listener has not been told yet.
#[derive(Debug, Default)]
struct Trail {
    /// The last entry that was told, or left out since it is not for the listener.
    last: Option<u64>,
    waiting: VecDeque<AuditEntry>,
}

impl Trail {
    /// Takes in what is in memory after the last one that was told.
    fn catch_up<'a>(&mut self, recent: impl Iterator<Item = &'a AuditEntry>) {
        let after = self.waiting.back().map(|entry| entry.id).or(self.last);
        let missed = recent.filter(|entry| after.is_none_or(|after| entry.id > after));
        self.waiting.extend(missed.cloned());
    }

    /// One that has come.
    fn came(&mut self, entry: AuditEntry) {
        let last = self.waiting.back().map(|entry| entry.id).or(self.last);
        // Entries that were caught up with come again.
        if last.is_none_or(|last| entry.id > last) {
            self.waiting.push_back(entry);
        }
    }

    /// The next thing to tell: an entry, or that some are missing before it.
    fn next(&mut self) -> Option<Result<AuditEntry, Skipped>> {
        let before = self.waiting.front()?.id;
        if let Some(after) = self.last
            && before > after + 1
        {
            self.last = Some(before - 1);
            return Some(Err(Skipped { after, before }));
        }
        self.last = Some(before);
        self.waiting.pop_front().map(Ok)
    }
}

struct Listening {
    app: Arc<App>,
    who: Who,
    proof: Proof,
    _place: Place,
    next: Interval,
    status_due: Instant,
    audits: broadcast::Receiver<AuditEntry>,
    trail: Trail,
    number: u64,
}

/// Places for streams.
pub(crate) fn places() -> Places {
    Places::new(MOST, OF_EACH, KEPT)
}

/// All services at once and then each interval (`event: services`), what the daemon says of itself
/// (`event: status`), and what is done as it happens (`event: audit`). A listener that comes back with `Last-Event-ID` is told what
/// was done meanwhile; what is not told any more is said (`event: skipped`, with the numbers between which
/// `GET /v1/audit` has it).
#[utoipa::path(
    get, path = "/v1/events", tag = "state",
    params(How, ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that came.")),
    responses(
        (status = 200, description = "Events, until either side ends it.", content_type = "text/event-stream"),
        (status = "4XX", description = "Why not.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Too many listen.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn events(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Extension(proof): Extension<Proof>,
    headers: HeaderMap,
    how: Params<How>,
) -> Result<Response, Failure> {
    let interval = how
        .interval
        .map_or(Duration::from_millis(500), |span| span.0);
    if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&interval) {
        return Err(bad_input("interval: it is from 100ms to 60s").into());
    }
    let place = app.listeners.take(&Client::of(&who)).ok_or_else(|| {
        unavailable(format!(
            "{OF_EACH} of yours listen already, or {MOST} in all: ask again later"
        ))
    })?;
    let mut next = tokio::time::interval(interval);
    next.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Before the trail is looked at: what is done meanwhile comes twice, and is told once.
    let audits = app.published.audits.subscribe();
    let trail = trail(&app, last_id(&headers));
    let listening = Listening {
        audits,
        trail,
        app,
        who,
        proof,
        _place: place,
        next,
        status_due: Instant::now(),
        number: 0,
    };
    let frames = stream::unfold(listening, |mut listening| async move {
        let frame = listening.next().await?;
        Some((frame, listening))
    });
    let pieces = frames.flat_map(|frame| stream::iter(frame.map(Ok::<_, Infallible>)));
    let kind = [(header::CONTENT_TYPE, "text/event-stream")];
    Ok((kind, Body::from_stream(pieces)).into_response())
}

/// The number that a returning listener shows; one that is none of ours is none.
fn last_id(headers: &HeaderMap) -> Option<u64> {
    headers.get("last-event-id")?.to_str().ok()?.parse().ok()
}

/// The entries that a listener has to be told first.
fn trail(app: &App, last: Option<u64>) -> Trail {
    let recent = app.published.recent.lock();
    let recent = recent.unwrap_or_else(PoisonError::into_inner);
    let newest = recent.back().map(|entry| entry.id);
    let mut trail = Trail {
        // A number of the future is of another trail.
        last: last.filter(|last| newest.is_none_or(|newest| *last <= newest)),
        waiting: VecDeque::new(),
    };
    match trail.last {
        None => trail.last = newest,
        Some(_) => trail.catch_up(recent.iter()),
    }
    trail
}

/// An event: its pieces, of which what others are sent too is not copied.
type Frame = [Bytes; 3];

impl Listening {
    async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(told) = self.trail.next() {
                match told {
                    Err(skipped) => return self.event("skipped", &skipped),
                    Ok(entry) if super::past::may_see(&self.app, &self.who, &entry) => {
                        return self.event("audit", &entry);
                    }
                    Ok(_) => continue,
                }
            }
            if self.number != 0 && Instant::now() >= self.status_due {
                self.status_due = Instant::now() + STATUS;
                // What they have shown may not hold any more: then it ends.
                self.who = self.proof.who(&self.app).await.ok()??;
                let status = status_of(&self.app, &self.who);
                return self.event("status", &status);
            }
            let status_due = self.status_due;
            tokio::select! {
                () = tokio::time::sleep_until(status_due), if self.number != 0 => {}
                () = tokio::time::sleep(ALIVE) => {
                    return Some([Bytes::from_static(b":\n\n"), Bytes::new(), Bytes::new()]);
                }
                _ = self.next.tick() => {
                    self.app.attend().await;
                    let picture = Arc::clone(&self.app.published.pictures.borrow());
                    if picture.number == self.number {
                        continue;
                    }
                    self.number = picture.number;
                    let list = self.app.lists.of(picture, self.who.only()).await.ok()?;
                    return Some(self.frame("services", list));
                }
                audit = self.audits.recv() => match audit {
                    Ok(entry) => self.trail.came(entry),
                    Err(RecvError::Lagged(_)) => {
                        let recent = self.app.published.recent.lock();
                        let recent = recent.unwrap_or_else(PoisonError::into_inner);
                        self.trail.catch_up(recent.iter());
                    }
                    Err(RecvError::Closed) => return None,
                },
            }
        }
    }

    fn event(&self, name: &str, data: &impl Serialize) -> Option<Frame> {
        let data = serde_json::to_vec(data).ok()?;
        Some(self.frame(name, data.into()))
    }

    /// JSON has no line ends in it.
    fn frame(&self, name: &str, data: Bytes) -> Frame {
        let id = self
            .trail
            .last
            .map_or_else(String::new, |id| format!("id: {id}\n"));
        let head = format!("event: {name}\n{id}data: ");
        [head.into(), data, Bytes::from_static(b"\n\n")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64) -> AuditEntry {
        AuditEntry {
            id,
            unix_ms: 0,
            actor: String::new(),
            via: String::new(),
            pid: None,
            action: String::new(),
            revision: 0,
            service: None,
            differences: Vec::new(),
            reason: String::new(),
            left_out: 0,
            problem: None,
        }
    }

    fn told(trail: &mut Trail) -> Vec<Result<u64, (u64, u64)>> {
        let next = || {
            trail
                .next()
                .map(|told| told.map(|entry| entry.id).map_err(|s| (s.after, s.before)))
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn entries_are_told_once_and_those_that_are_not_are_said() {
        let mut trail = Trail {
            last: Some(3),
            waiting: VecDeque::new(),
        };
        trail.came(entry(4));
        assert_eq!(told(&mut trail), [Ok(4)]);
        // The listener has fallen behind: 5 to 7 are in memory no more, 8 and 9 are, and 9 comes again.
        trail.catch_up([entry(8), entry(9)].iter());
        trail.came(entry(9));
        trail.came(entry(10));
        assert_eq!(told(&mut trail), [Err((4, 8)), Ok(8), Ok(9), Ok(10)]);
        trail.catch_up([entry(9), entry(10)].iter());
        assert_eq!(told(&mut trail), []);
        let mut fresh = Trail::default();
        fresh.came(entry(7));
        assert_eq!(told(&mut fresh), [Ok(7)]);
    }
}
