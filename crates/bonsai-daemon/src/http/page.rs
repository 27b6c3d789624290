//! The web page: files in the program, and a way to it for whoever asks at the machine.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use bonsai_api::Problem;
use rust_embed::RustEmbed;
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::auth::Proof;
use super::body::{Failure, aside};
use crate::problems::{forbidden, problem, unavailable};
use crate::who::Who;
use bonsai_services::observe::unix_ms;

/// How long the token of a page holds, ms.
const LASTS_MS: u64 = 12 * 3600 * 1000;

/// Nothing from elsewhere is run, shown or asked.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

#[derive(RustEmbed)]
#[folder = "../../web"]
struct Files;

/// The files, which anybody may have.
pub(super) fn files() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(async || file("index.html")))
        .route(
            "/{*path}",
            get(async |Path(path): Path<String>| file(&path)),
        )
}

fn file(path: &str) -> Response {
    let Some(found) = Files::get(path) else {
        let text = format!("there is no {path:?} here");
        return Failure(problem(404, "nothing-here", "Nothing here", text)).into_response();
    };
    let kind = match path.rsplit_once('.').map(|(_, end)| end) {
        Some("html") => "text/html; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("json" | "webmanifest") => "application/json",
        _ => "text/plain; charset=utf-8",
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(POLICY),
        ),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    // What is in the program is not copied: anybody may ask for it often.
    let bytes = match found.data {
        Cow::Borrowed(bytes) => Bytes::from_static(bytes),
        Cow::Owned(bytes) => bytes.into(),
    };
    (headers, bytes).into_response()
}

/// A way to the page.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Opened {
    /// The address, with a token behind the `#`: it is for whoever asked, and nobody else's.
    url: String,
    /// When the token ends, ms since 1970.
    until_unix_ms: u64,
}

/// Opens the page for a user of this machine: a listener on the loopback address, and a token that
/// does what they may do.
#[utoipa::path(
    post, path = "/v1/page", tag = "access",
    responses(
        (status = 200, description = "Where it is.", body = Opened),
        (status = 403, description = "Not over the Unix socket.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Nothing can be listened on.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn open(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Extension(proof): Extension<Proof>,
) -> Result<(StatusCode, axum::Json<Opened>), Failure> {
    let Proof::Process { gid, .. } = proof else {
        return Err(forbidden("the page is opened over the daemon's Unix socket").into());
    };
    let address = app.doors.open_page().await;
    let address = address.map_err(|error| unavailable(bonsai_host::sentence(error.as_ref())))?;
    app.tokens.pages.are_at(address.port());
    // The disk takes its time.
    let token = aside(move || app.tokens.for_page(&who, gid, LASTS_MS)).await??;
    let opened = Opened {
        url: format!("http://{address}/#token={token}"),
        until_unix_ms: unix_ms() + LASTS_MS,
    };
    Ok((StatusCode::OK, axum::Json(opened)))
}
