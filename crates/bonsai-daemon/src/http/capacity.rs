//! Capacities, measured.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use bonsai_api::{ProbeRequest, Probed, Problem};

use super::App;
use super::body::{Failure, Json};
use crate::ring::may_write;
use crate::who::Who;

/// Measures what the machine has of a resource: a disk by reading or writing a file of its own for
/// some seconds, a link by what its driver says. Nothing is configured by it: the answer has the
/// value and the reason for a change of `capacity`. One at a time.
#[utoipa::path(
    post, path = "/v1/capacity/probe", tag = "change",
    request_body = ProbeRequest,
    responses(
        (status = 200, description = "What was measured.", body = Probed),
        (status = 409, description = "Another measurement is under way.", body = Problem, content_type = "application/problem+json"),
        (status = "4XX", description = "Why it cannot be measured.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Not now.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn probe(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Json(request): Json<ProbeRequest>,
) -> Result<axum::Json<Probed>, Failure> {
    may_write(&who)?;
    Ok(axum::Json(app.probes.measure(request, &app.past).await?))
}
