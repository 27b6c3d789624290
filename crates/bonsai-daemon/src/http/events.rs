//! What happens, as it happens: server-sent events (the HTML standard, section 9.2).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use bonsai_api::{AuditEntry, Problem, Span};
use futures_util::stream::{self, Stream};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use utoipa::IntoParams;

use super::App;
use super::auth::Proof;
use super::body::{Failure, Params, aside};
use super::places::{Client, Place, Places};
use super::routes::status_of;
use crate::problems::{bad_input, unavailable};
use crate::who::Who;

/// Streams at a time, those of each client, and those that are kept for root and the daemon's own
/// user.
const MOST: usize = 128;
const OF_EACH: usize = 32;
const KEPT: usize = 16;

/// What the daemon says of itself is sent so often; and it is looked whether the listener still may.
const STATUS: Duration = Duration::from_secs(2);

/// How it is to be.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct How {
    /// Time between two pictures, `100ms` to `60s`; `500ms` without it.
    #[param(value_type = Option<String>, format = "span", example = "500ms")]
    interval: Option<Span>,
}

struct Listening {
    app: Arc<App>,
    who: Who,
    proof: Proof,
    _place: Place,
    next: Interval,
    status_due: Instant,
    audits: broadcast::Receiver<AuditEntry>,
    number: u64,
    sent: u64,
}

/// Places for streams.
pub(crate) fn places() -> Places {
    Places::new(MOST, OF_EACH, KEPT)
}

/// All services at once and then each interval (`event: services`), what the daemon says of itself
/// (`event: status`), and what is done as it happens (`event: audit`).
#[utoipa::path(
    get, path = "/v1/events", tag = "state",
    params(How),
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
    how: Params<How>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Failure> {
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
    let listening = Listening {
        audits: app.published.audits.subscribe(),
        app,
        who,
        proof,
        _place: place,
        next,
        status_due: Instant::now(),
        number: 0,
        sent: 0,
    };
    let stream = stream::unfold(listening, |mut listening| async move {
        let event = listening.next().await?;
        Some((Ok(event), listening))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))))
}

impl Listening {
    async fn next(&mut self) -> Option<Event> {
        loop {
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
                _ = self.next.tick() => {
                    self.app.attend().await;
                    let picture = Arc::clone(&self.app.published.pictures.borrow());
                    if picture.number == self.number {
                        continue;
                    }
                    self.number = picture.number;
                    let who = self.who.clone();
                    let made = aside(move || {
                        Event::default().json_data(picture.services(who.only()))
                    });
                    self.sent += 1;
                    let event = made.await.ok()?.ok()?;
                    return Some(event.event("services").id(self.sent.to_string()));
                }
                audit = self.audits.recv() => match audit {
                    Ok(entry) if super::past::may_see(&self.app, &self.who, &entry) => {
                        return self.event("audit", &entry);
                    }
                    // What was missed is found in the trail.
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                },
            }
        }
    }

    fn event(&mut self, name: &str, data: &impl Serialize) -> Option<Event> {
        self.sent += 1;
        let event = Event::default().event(name).id(self.sent.to_string());
        event.json_data(data).ok()
    }
}
