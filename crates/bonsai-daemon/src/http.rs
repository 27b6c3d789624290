//! The interface: REST and server-sent events over a Unix socket, and over TCP where that is
//! wanted.

mod arrivals;
mod auth;
mod body;
mod capacity;
mod describe;
mod drives;
mod events;
mod export;
pub(crate) mod fuzz;
mod links;
mod metrics;
mod names;
mod page;
mod pages;
mod past;
mod patient;
mod places;
mod routes;
mod samples;
mod secure;
mod serve;
mod tokens;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware;
use bonsai_api::{Changed, Problem};
use bonsai_services::observe::monotonic_ns;
use tokio::sync::oneshot;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::keeping::{self, Written};
use crate::problems::unavailable;
use crate::ring::{Ask, Asked, Event, Published, Reply};
use crate::who::Who;

pub(crate) use auth::host;
pub(crate) use events::places as streams;
pub(crate) use export::places as exports;
pub(crate) use past::places as questions;
pub(crate) use secure::Secure;
pub(crate) use serve::{Doors, bind};
pub(crate) use tokens::Tokens;

/// The longest that an answer of the owner is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// A picture that is older than a period and this is made anew before it is read; ns.
const STALE_NS: u64 = 100_000_000;

/// So long is waited for that.
const SHOWN: Duration = Duration::from_secs(1);

/// A period that has not ended so long after its time is one that may never.
const STALLED: Duration = Duration::from_secs(3);

/// What all handlers share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) published: Published,
    pub(crate) events: SyncSender<Event>,
    pub(crate) config: bonsai_api::Config,
    pub(crate) file: Option<std::path::PathBuf>,
    /// The folder of the past.
    pub(crate) past: std::path::PathBuf,
    pub(crate) tokens: Tokens,
    pub(crate) doors: Doors,
    pub(crate) started_unix_ms: u64,
    /// Streams of events that are open.
    pub(crate) listeners: places::Places,
    /// Exports that are under way.
    pub(crate) exports: places::Places,
    /// Questions of the past.
    pub(crate) questions: places::Places,
    /// All services, as they are sent.
    pub(crate) lists: events::Lists,
    pub(crate) names: names::Names,
    pub(crate) limiter: auth::Limiter,
    pub(crate) probes: crate::probe::Probes,
    /// Whoever keeps interfaces; root's daemon has one.
    pub(crate) links: Option<crate::links::Orders>,
    /// What was seen of interfaces last.
    pub(crate) samples: samples::Samples,
    /// Whoever asks block servers.
    pub(crate) drives: crate::drives::Drives,
}

impl App {
    /// Says that the picture of what is will be read now, and has one made where none is: nobody
    /// may have read one for long. An owner who is busy is not waited for.
    pub(crate) async fn attend(&self) {
        let now_ns = monotonic_ns();
        let Published {
            attended_ns,
            pictures,
            ..
        } = &self.published;
        attended_ns.store(now_ns, Ordering::Relaxed);
        let mut pictures = pictures.clone();
        let (at_ns, period) = {
            let picture = pictures.borrow_and_update();
            (picture.at_ns, picture.config.daemon.period.0)
        };
        let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        let fresh_ns = period_ns.saturating_add(STALE_NS);
        if now_ns.saturating_sub(at_ns) > fresh_ns
            && self.events.try_send(Event::Show(now_ns)).is_ok()
        {
            let _ = tokio::time::timeout(SHOWN, pictures.changed()).await;
        }
    }

    /// Asks for a change, and answers once the disk has it; where that takes too long, with that said.
    pub(crate) async fn change(
        &self,
        who: Who,
        make: impl FnOnce(Reply<Changed>) -> Ask,
    ) -> Result<Changed, Problem> {
        let mut changed = self.ask(who, make).await?;
        if changed.dry_run {
            return Ok(changed);
        }
        let mut written = self.published.written.clone();
        let is_there = |written: &Written| written.revision >= changed.revision;
        let written = tokio::time::timeout(keeping::PATIENCE, written.wait_for(is_there)).await;
        let is_kept = matches!(written, Ok(Ok(written)) if written.problem.is_none());
        if !is_kept {
            let text = "the change is in force, and not on the disk yet: it would be lost if the daemon or the machine ended now";
            changed.problems.push(text.to_owned());
        }
        Ok(changed)
    }

    /// That nothing is decided any more, in words, if that is so.
    pub(crate) fn stalled(&self) -> Option<String> {
        let ns = monotonic_ns().saturating_sub(self.published.beat_ns.load(Ordering::Relaxed));
        let period = self.published.pictures.borrow().config.daemon.period.0;
        let silent = Duration::from_nanos(ns);
        (silent > period + STALLED).then(|| {
            format!(
                "nothing has been looked at or decided for {} s",
                silent.as_secs()
            )
        })
    }

    /// Asks the owner for something.
    pub(crate) async fn ask<T>(
        &self,
        who: Who,
        make: impl FnOnce(Reply<T>) -> Ask,
    ) -> Result<T, Problem> {
        let (reply, answer) = oneshot::channel();
        let what = make(reply);
        let event = Event::Ask(Box::new(Asked { who, what }));
        self.events.try_send(event).map_err(|error| match error {
            TrySendError::Full(_) => unavailable("too much is asked for at once: try again"),
            TrySendError::Disconnected(_) => unavailable("the daemon is ending"),
        })?;
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(unavailable("the daemon is ending")),
            Err(_) => Err(unavailable(
                "no answer came in time; what was asked for may still be done",
            )),
        }
    }
}

/// So many requests a second for each client.
pub(crate) fn limiter(requests: u32) -> auth::Limiter {
    auth::Limiter::new(requests)
}

/// The description of the interface.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Bonsai",
        description = "Who gets how much of a machine's input and output: look, change, look back.",
        license(name = "Apache-2.0 OR MIT", identifier = "Apache-2.0 OR MIT")
    ),
    components(schemas(bonsai_api::Problem)),
    tags(
        (name = "state", description = "What is."),
        (name = "change", description = "What is to be."),
        (name = "past", description = "What was."),
        (name = "clients", description = "What clients see."),
        (name = "access", description = "Who may.")
    )
)]
struct Description;

fn described() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(routes::status))
        .routes(routes!(routes::services))
        .routes(routes!(routes::service, routes::change_service))
        .routes(routes!(routes::config, routes::change_config))
        .routes(routes!(links::links))
        .routes(routes!(links::link, links::change_link, links::clear_link))
        .routes(routes!(drives::exports))
        .routes(routes!(routes::undo))
        .routes(routes!(capacity::probe))
        .routes(routes!(past::history))
        .routes(routes!(past::known))
        .routes(routes!(export::export))
        .routes(routes!(past::audit))
        .routes(routes!(routes::qos))
        .routes(routes!(routes::report))
        .routes(routes!(routes::admit))
        .routes(routes!(events::events))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::revoke))
        .routes(routes!(page::open))
}

/// The description of the interface, as JSON.
///
/// # Panics
/// Never: it is made of types that have a JSON form.
#[must_use]
pub fn openapi() -> String {
    let (_, description) = described().split_for_parts();
    let description = serde_json::to_value(description).expect("a JSON form");
    let description = describe::complete(description);
    let mut text = serde_json::to_string_pretty(&description).expect("a JSON form");
    text.push('\n');
    text
}

/// All that is answered.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let (router, _) = described().split_for_parts();
    let text: Arc<str> = openapi().into();
    let body = usize::try_from(app.config.api.body.0.0).unwrap_or(usize::MAX);
    router
        .route(
            "/v1/openapi.json",
            axum::routing::get(async move || {
                (
                    [(axum::http::header::CONTENT_TYPE, "application/json")],
                    text.to_string(),
                )
            }),
        )
        .route("/metrics", axum::routing::get(metrics::metrics))
        .fallback(routes::nothing_here)
        .method_not_allowed_fallback(routes::not_so)
        .layer(middleware::from_fn_with_state(Arc::clone(app), auth::known))
        .layer(middleware::from_fn_with_state(
            Arc::clone(app),
            auth::bounded,
        ))
        .merge(page::files().layer(middleware::from_fn_with_state(
            Arc::clone(app),
            auth::bounded_file,
        )))
        .layer(DefaultBodyLimit::max(body))
        .with_state(Arc::clone(app))
}
