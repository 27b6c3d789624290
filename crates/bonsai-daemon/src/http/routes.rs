//! What is asked for, path by path.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bonsai_api::{
    Admission, AdmitRequest, Changed, Config, Problem, QosReport, QosView, Service, ServiceView,
    Services, Span, Status, Undo,
};
use bonsai_units::Resource;
use serde::Deserialize;
use serde_json::Value;
use utoipa::IntoParams;

use super::App;
use super::body::{Failure, IfMatch, Json, Params, Part, Revised, revised};
use crate::picture::per_s;
use crate::problems::{forbidden, problem, unknown_service};
use crate::ring::{Ask, Back, Wish};
use crate::who::Who;
use bonsai_services::observe::unix_ms;

type Answer<T> = Result<Revised<T>, Failure>;

/// The daemon itself: what the machine has, what is used, and what is not as it should be.
#[utoipa::path(
    get, path = "/v1/status", tag = "state",
    responses(
        (status = 200, description = "It.", body = Status),
        (status = "4XX", description = "Why not.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn status(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
) -> Answer<Status> {
    let status = status_of(&app, &who);
    Ok(Revised(status.revision, status))
}

pub(super) fn status_of(app: &App, who: &Who) -> Status {
    let picture = Arc::clone(&app.published.pictures.borrow());
    let (used, guaranteed) = picture.sums(who.only());
    let by_resource = |values: &[u64; Resource::COUNT]| {
        let pairs = Resource::ALL.into_iter();
        pairs
            .map(|resource| (resource.into(), per_s(values[resource.index()])))
            .collect()
    };
    let capacity = Resource::ALL.into_iter().filter_map(|resource| {
        let capacity = picture.planned.capacity[resource.index()]?;
        Some((resource.into(), per_s(capacity)))
    });
    let seen = picture
        .identities
        .values()
        .filter(|identity| who.sees(identity.uid));
    let health = &picture.health;
    // The amount of work tells how many others there are.
    let of_all = |number: u64| if who.reads_all { number } else { 0 };
    let mut problems = if who.reads_all {
        health.problems.clone()
    } else {
        Vec::new()
    };
    if who.reads_all {
        problems.extend(app.tokens.pages.problem());
    }
    problems.extend(app.stalled());
    problems.extend(app.doors.problem().filter(|_| who.reads_all));
    Status {
        bonsai: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uid: rustix::process::geteuid().as_raw(),
        started_unix_ms: app.started_unix_ms,
        unix_ms: unix_ms(),
        revision: picture.revision,
        period_ms: app.config.daemon.period.0.as_secs_f64() * 1e3,
        mode: picture.config.policy.mode,
        automatic: picture.config.policy.automatic,
        capacity: capacity.collect(),
        used: by_resource(&used),
        guaranteed: by_resource(&guaranteed),
        services: seen.count(),
        file: app.file.clone().filter(|_| who.reads_all),
        history: bonsai_api::StoreState {
            bytes: of_all(health.history.bytes),
            dropped: of_all(health.history.dropped),
            ..health.history.clone()
        },
        periods: health.periods,
        decision_ns: of_all(health.decision_ns),
        work_ns: of_all(health.work_ns),
        problems,
        may_write: who.writes_all,
    }
}

/// All services that whoever asks may see: root and the daemon's user all, others their own.
#[utoipa::path(
    get, path = "/v1/services", tag = "state",
    responses(
        (status = 200, description = "They.", body = Services),
        (status = "4XX", description = "Why not.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Not now.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn services(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
) -> Result<Response, Failure> {
    let picture = Arc::clone(&app.published.pictures.borrow());
    let revision = picture.revision;
    let list = app.lists.of(picture, who.only()).await?;
    let kind = HeaderValue::from_static("application/json");
    let mut response = list.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(revised(revision, response))
}

/// One service.
#[utoipa::path(
    get, path = "/v1/services/{id}", tag = "state",
    params(("id" = String, Path, description = "Its name, or user:name.")),
    responses(
        (status = 200, description = "It.", body = ServiceView),
        (status = "4XX", description = "Why not.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn service(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Part(id): Part,
) -> Answer<ServiceView> {
    let picture = Arc::clone(&app.published.pictures.borrow());
    let id = means(&app, &who, id);
    let view = picture
        .service(&id, who.only())
        .ok_or_else(|| unknown_service(&id))?;
    Ok(Revised(picture.revision, view))
}

/// The id of the service that somebody means by a name.
pub(super) fn means(app: &App, who: &Who, name: String) -> String {
    let picture = app.published.pictures.borrow();
    who.means(name, |id| picture.ids().any(|known| known == id))
}

/// How a change is made.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct How {
    /// Nothing is changed; the answer shows what would be.
    #[serde(default)]
    pub(super) dry_run: bool,
    /// For how long; then it ends by itself.
    #[serde(rename = "for")]
    #[param(value_type = Option<String>, format = "span", example = "10min")]
    lasts: Option<Span>,
    /// Why, for the audit trail.
    #[param(max_length = 1000)]
    reason: Option<String>,
}

impl How {
    pub(super) fn wish(
        self,
        service: Option<String>,
        patch: Value,
        IfMatch(for_revision): IfMatch,
    ) -> Wish {
        let ms = |span: Span| u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX);
        Wish {
            service,
            patch,
            for_ms: self.lasts.map(ms),
            for_revision,
            dry_run: self.dry_run,
            reason: self.reason,
        }
    }
}

/// Changes a service by a JSON merge patch (RFC 7396): `{"send": {"min": "40Mbit/s"}}`; `null`
/// removes. It need not run, nor be known.
#[utoipa::path(
    patch, path = "/v1/services/{id}", tag = "change",
    params(
        ("id" = String, Path, description = "Its name, or user:name."), How,
        ("If-Match" = Option<String>, Header, description = "The revision that the change is made for, as in ETag.")
    ),
    request_body(content = Service, description = "What is to be different.", content_type = "application/merge-patch+json"),
    responses(
        (status = 200, description = "What is different now, and in force.", body = Changed),
        (status = "4XX", description = "Why not. Nothing was changed.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Not now.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn change_service(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Part(id): Part,
    Params(how): Params<How>,
    revision: IfMatch,
    Json(patch): Json<Value>,
) -> Answer<Changed> {
    let id = means(&app, &who, id);
    let wish = how.wish(Some(id), patch, revision);
    let changed = app.change(who, |reply| Ask::Change(wish, reply)).await?;
    Ok(Revised(changed.revision, changed))
}

/// What is configured: the file, with all changes since.
#[utoipa::path(
    get, path = "/v1/config", tag = "change",
    responses(
        (status = 200, description = "It.", body = Config),
        (status = "4XX", description = "Why not.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn config(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
) -> Answer<Config> {
    if !who.reads_all {
        return Err(forbidden("the configuration is for those who see all services").into());
    }
    let picture = Arc::clone(&app.published.pictures.borrow());
    Ok(Revised(picture.revision, Config::clone(&picture.config)))
}

/// Changes what is configured by a JSON merge patch (RFC 7396).
#[utoipa::path(
    patch, path = "/v1/config", tag = "change",
    params(
        How,
        ("If-Match" = Option<String>, Header, description = "The revision that the change is made for, as in ETag.")
    ),
    request_body(content = Config, description = "What is to be different.", content_type = "application/merge-patch+json"),
    responses(
        (status = 200, description = "What is different now, and in force.", body = Changed),
        (status = "4XX", description = "Why not. Nothing was changed.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Not now.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn change_config(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Params(how): Params<How>,
    revision: IfMatch,
    Json(patch): Json<Value>,
) -> Answer<Changed> {
    let wish = how.wish(None, patch, revision);
    let changed = app.change(who, |reply| Ask::Change(wish, reply)).await?;
    Ok(Revised(changed.revision, changed))
}

/// Options of an undo.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Undoing {
    /// Nothing is changed; the answer shows the differences, and the changes that would be taken back, with their actors.
    #[serde(default)]
    dry_run: bool,
}

/// Takes the last change back, or all since a revision, and names their actors. The audit trail keeps both.
#[utoipa::path(
    post, path = "/v1/undo", tag = "change",
    params(Undoing, ("If-Match" = Option<String>, Header, description = "The revision that this is asked at, as in ETag.")),
    request_body = Undo,
    responses(
        (status = 200, description = "What is different now, and in force.", body = Changed),
        (status = "4XX", description = "Why not. Nothing was changed.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Not now.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn undo(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Params(how): Params<Undoing>,
    IfMatch(for_revision): IfMatch,
    Json(undo): Json<Undo>,
) -> Answer<Changed> {
    let back = Back {
        to: undo.revision,
        for_revision,
        dry_run: how.dry_run,
    };
    let changed = app.change(who, |reply| Ask::Undo(back, reply)).await?;
    Ok(Revised(changed.revision, changed))
}

/// What clients of services with a target see.
#[utoipa::path(
    get, path = "/v1/qos", tag = "clients",
    responses(
        (status = 200, description = "Of each such service.", body = [QosView]),
        (status = "4XX", description = "Why not.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn qos(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
) -> Result<axum::Json<Vec<QosView>>, Failure> {
    let picture = Arc::clone(&app.published.pictures.borrow());
    let visible = |view: &&QosView| {
        let identity = picture.identities.get(view.service.as_str());
        who.sees_id(&view.service, identity.map(|identity| identity.uid))
    };
    Ok(axum::Json(
        picture.qos.iter().filter(visible).cloned().collect(),
    ))
}

/// What clients of a service saw since the last report.
#[utoipa::path(
    post, path = "/v1/reports", tag = "clients",
    request_body = QosReport,
    responses(
        (status = 204, description = "It counts in the next period."),
        (status = "4XX", description = "Why not.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Not now.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn report(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Json(mut report): Json<QosReport>,
) -> Result<StatusCode, Failure> {
    report.service = means(&app, &who, report.service);
    app.ask(who, |reply| Ask::Report(report, reply)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Whether more streams fit, how likely it is that all get what they need, and what would have to
/// give: for clients that see all services, since it depends on what all of them have.
#[utoipa::path(
    post, path = "/v1/admit", tag = "clients",
    request_body = AdmitRequest,
    responses(
        (status = 200, description = "Yes or no.", body = Admission),
        (status = "4XX", description = "Why there is no answer.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Not now.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn admit(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Json(mut request): Json<AdmitRequest>,
) -> Result<axum::Json<Admission>, Failure> {
    if !who.reads_all {
        // Enough questions would tell what is guaranteed to others.
        let text =
            "whether more fits depends on what all have: it is for those who see all services";
        return Err(forbidden(text).into());
    }
    request.service = means(&app, &who, request.service);
    Ok(axum::Json(
        app.ask(who, |reply| Ask::Admit(request, reply)).await?,
    ))
}

/// Where there is nothing.
pub(super) async fn nothing_here() -> Response {
    let text = "there is nothing at this path: GET /v1/openapi.json describes what there is";
    Failure(problem(404, "nothing-here", "Nothing here", text)).into_response()
}

/// Where there is something, and not with this method.
pub(super) async fn not_so() -> Response {
    let text =
        "this path is not asked with this method: GET /v1/openapi.json describes what there is";
    Failure(problem(405, "not-so", "Not this method", text)).into_response()
}
