//! What was: series, the audit trail.

use std::path::PathBuf;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use bonsai_api::{AuditEntry, AuditPage, Known, Point, Problem, Resource, Series};
use bonsai_history::{AuditFilter, Error, Query, Reader, Which};
use serde::Deserialize;
use utoipa::IntoParams;

use super::App;
use super::body::{Failure, Params, aside};
use super::places::{Client, Places};
use super::routes::means;
use crate::problems::{bad_input, forbidden, unavailable, unknown_service};
use crate::ring::Event;
use crate::who::Who;
use bonsai_services::observe::unix_ms;

/// The most entries of the trail in one answer.
const MOST_ENTRIES: usize = 500;

/// Without a beginning: the last hour, ms.
const LATELY_MS: u64 = 3600 * 1000;

/// Questions at a time, each of which keeps a thread: of each client, and kept for root and the daemon's own user.
const QUESTIONS: usize = 8;
const OF_EACH: usize = 2;
const KEPT: usize = 2;

/// So long a question waits for the client's others, and for those of others.
const TURN: Duration = Duration::from_secs(10);

/// Places for questions.
pub(crate) fn places() -> Places {
    Places::new(QUESTIONS, OF_EACH, KEPT)
}

/// Asks the past on a thread that may wait for the disk.
pub(super) async fn ask<T: Send + 'static>(
    app: &App,
    who: &Who,
    question: impl FnOnce(&Reader) -> Result<T, Error> + Send + 'static,
) -> Result<T, Problem> {
    let place = app.questions.wait(&Client::of(who), TURN).await;
    let place = place
        .ok_or_else(|| unavailable("too much of the past is asked for at once: ask again later"))?;
    let folder: PathBuf = app.past.clone();
    let answer = aside(move || {
        // Free when the thread is, also where the answer is no longer waited for.
        let _place = place;
        question(&Reader::new(&folder))
    });
    let answer = answer.await?;
    answer.map_err(|error| match error {
        Error::Query(text) => bad_input(text),
        error => {
            damaged(&app.events, &error);
            unavailable(format!("the history cannot be read: {error}"))
        }
    })
}

/// The same of a past that may not have begun: nothing has been kept then.
async fn ask_or_none<T: Default + Send + 'static>(
    app: &App,
    who: &Who,
    question: impl FnOnce(&Reader) -> Result<T, Error> + Send + 'static,
) -> Result<T, Problem> {
    let question = |reader: &Reader| match question(reader) {
        Err(Error::Absent { .. }) => Ok(T::default()),
        other => other,
    };
    ask(app, who, question).await
}

/// Has what was met damaged looked at as a whole by whoever writes it, and moved aside.
pub(super) fn damaged(events: &SyncSender<Event>, error: &Error) {
    if error.is_corrupt() {
        // Where the queue is full, whoever asks next meets it again.
        let _ = events.try_send(Event::Damaged);
    }
}

/// Which part of the past.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Range {
    /// The service; all together without it.
    service: Option<String>,
    /// The resource; `send` without it.
    resource: Option<Resource>,
    /// From when, ms since 1970; an hour before the end without it.
    #[param(maximum = 253_402_300_800_000_u64)]
    from: Option<u64>,
    /// Until when, ms since 1970; now without it.
    #[param(maximum = 253_402_300_800_000_u64)]
    to: Option<u64>,
    /// About how many points, 1 to 20000; 600 without it.
    #[param(minimum = 1, maximum = 20_000)]
    points: Option<usize>,
}

/// The latest time there is: the end of the year 9999.
const LATEST_MS: u64 = 253_402_300_800_000;

impl Range {
    pub(super) fn seconds(&self) -> Result<(u64, u64), Problem> {
        seconds(self.from, self.to)
    }
}

/// The seconds of a time, from one to before the other; the last hour where nothing is said.
pub(super) fn seconds(from: Option<u64>, to: Option<u64>) -> Result<(u64, u64), Problem> {
    let to = to.unwrap_or_else(unix_ms);
    let from = from.unwrap_or(to.saturating_sub(LATELY_MS));
    if to > LATEST_MS {
        return Err(bad_input("to: that is after the year 9999"));
    }
    if from >= to {
        return Err(bad_input(
            "from: it has to be before `to`: that time would have no length",
        ));
    }
    Ok((from / 1000, to.div_ceil(1000).max(from / 1000 + 1)))
}

/// Whether somebody may look at the past of a service, or of all.
pub(super) fn may(app: &App, who: &Who, service: Option<&str>) -> Result<(), Problem> {
    if who.reads_all {
        return Ok(());
    }
    let Some(id) = service else {
        return Err(forbidden(
            "the past of all together is for those who see all services",
        ));
    };
    if sees(app, who, id) {
        return Ok(());
    }
    Err(unknown_service(id))
}

fn sees(app: &App, who: &Who, id: &str) -> bool {
    let picture = app.published.pictures.borrow();
    let identity = picture.identities.get(id);
    who.sees_id(id, identity.map(|identity| identity.uid))
}

/// What a service got, second by second or coarser; all together without a service. Where nothing
/// is known there is no point.
#[utoipa::path(
    get, path = "/v1/history", tag = "past",
    params(Range),
    responses(
        (status = 200, description = "Points.", body = Series),
        (status = "4XX", description = "Why not.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Nothing is kept, or it cannot be read.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn history(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Params(mut range): Params<Range>,
) -> Result<axum::Json<Series>, Failure> {
    range.service = range.service.map(|name| means(&app, &who, name));
    may(&app, &who, range.service.as_deref())?;
    let (from, to) = range.seconds()?;
    let resource = range.resource.unwrap_or(Resource::Send);
    let query = Query {
        which: range.service.clone().map_or(Which::Total, Which::Service),
        resource: resource.into(),
        from,
        to,
        points: range.points.unwrap_or(600),
    };
    let series = ask_or_none(&app, &who, move |reader| reader.series(&query)).await?;
    let unknown = range.service.as_deref().filter(|id| {
        let picture = app.published.pictures.borrow();
        series.slots.is_empty() && !picture.ids().any(|known| known == *id)
    });
    if let Some(id) = unknown.map(str::to_owned) {
        let known = ask_or_none(&app, &who, Reader::services).await?;
        if !known.iter().any(|known| known.name == id) {
            return Err(unknown_service(&id).into());
        }
    }
    let points = series.slots.iter().map(|slot| Point {
        unix_ms: slot.at * 1000,
        got: slot.got.mean,
        got_min: slot.got.min,
        got_max: slot.got.max,
        asked: slot.asked.mean,
        limit: slot.limit.map(|limit| limit.mean),
        guarantee: slot.guarantee.mean,
        waited: slot.waited.mean,
    });
    Ok(axum::Json(Series {
        service: range.service,
        resource,
        step_ms: series.step * 1000,
        points: points.collect(),
        damaged: series.damaged,
    }))
}

/// The services that something is known of.
#[utoipa::path(
    get, path = "/v1/history/known", tag = "past",
    responses(
        (status = 200, description = "They.", body = [Known]),
        (status = "4XX", description = "Why not.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "It cannot be read.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn known(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
) -> Result<axum::Json<Vec<Known>>, Failure> {
    let mut services = ask_or_none(&app, &who, Reader::services).await?;
    services.retain(|service| may(&app, &who, Some(&service.name)).is_ok());
    let services = services.into_iter().map(|service| Known {
        service: service.name,
        from_unix_ms: service.first * 1000,
        to_unix_ms: (service.last + 1) * 1000,
    });
    Ok(axum::Json(services.collect()))
}

/// Which part of the audit trail.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Part {
    /// Entries with lower numbers than this.
    before: Option<u64>,
    /// How many, 1 to 500; 100 without it.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// Only those about a service.
    service: Option<String>,
}

/// Who changed what, when, from what to what, and why; the youngest first.
#[utoipa::path(
    get, path = "/v1/audit", tag = "past",
    params(Part),
    responses(
        (status = 200, description = "Entries.", body = AuditPage),
        (status = "4XX", description = "Why not.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "It cannot be read.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn audit(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Params(mut part): Params<Part>,
) -> Result<axum::Json<AuditPage>, Failure> {
    part.service = part.service.map(|name| means(&app, &who, name));
    if let Some(id) = &part.service {
        // A service that the client may not see is the same as one that is not there.
        may(&app, &who, Some(id))?;
    }
    let most = part.limit.unwrap_or(100);
    if !(1..=MOST_ENTRIES).contains(&most) {
        return Err(bad_input(format!("limit: {most} is not from 1 to {MOST_ENTRIES}")).into());
    }
    let before = part.before.unwrap_or(u64::MAX);
    if before == 0 {
        return Ok(axum::Json(AuditPage {
            entries: Vec::new(),
            before: None,
            problems: Vec::new(),
        }));
    }
    // What was done lately is in memory, and may not have been written yet.
    let fits = |entry: &AuditEntry| {
        entry.id < before
            && part
                .service
                .as_ref()
                .is_none_or(|id| entry.service.as_ref() == Some(id))
    };
    let mut entries: Vec<AuditEntry> = {
        let recent = app
            .published
            .recent
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        recent
            .iter()
            .rev()
            .filter(|entry| fits(entry))
            .take(most + 1)
            .cloned()
            .collect()
    };
    let mut problems = Vec::new();
    if entries.len() <= most {
        let filter = AuditFilter {
            service: part.service.clone(),
            before: Some(
                entries
                    .last()
                    .map_or(before, |entry| entry.id)
                    .min(i64::MAX as u64),
            ),
            limit: most + 1 - entries.len(),
            ..AuditFilter::default()
        };
        let older = ask_or_none(&app, &who, move |reader| reader.audit(&filter));
        match older.await {
            Ok(older) => entries.extend(older.into_iter().map(crate::past::told)),
            // Entries in memory are told all the same.
            Err(problem) => {
                problems.push(format!("older entries are not told: {}", problem.detail));
            }
        }
    }
    let more = entries.len() > most;
    entries.truncate(most);
    let before = entries.last().map(|entry| entry.id).filter(|_| more);
    entries.retain(|entry| may_see(&app, &who, entry));
    Ok(axum::Json(AuditPage {
        entries,
        before,
        problems,
    }))
}

/// Whether somebody may see an entry: all of them, or those about their services.
pub(super) fn may_see(app: &App, who: &Who, entry: &AuditEntry) -> bool {
    if who.reads_all {
        return true;
    }
    let id = entry.service.as_deref();
    id.is_some_and(|id| sees(app, who, id))
}
