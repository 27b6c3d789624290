//! The page: files in the program.

use std::borrow::Cow;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use rust_embed::RustEmbed;

use crate::answer::Refused;

/// Nothing from elsewhere is run, shown or asked. The player hands pieces of media to the browser as
/// objects of its own (`blob:`), and an empty track of subtitles as `data:`.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      media-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

#[derive(RustEmbed)]
#[folder = "page"]
struct Files;

/// Files of the daemon's page that are the same here.
const SHARED: [(&str, &[u8]); 5] = [
    ("icon.svg", include_bytes!("../../../web/icon.svg")),
    ("css/base.css", include_bytes!("../../../web/css/base.css")),
    ("js/dom.js", include_bytes!("../../../web/js/dom.js")),
    ("js/early.js", include_bytes!("../../../web/js/early.js")),
    ("js/theme.js", include_bytes!("../../../web/js/theme.js")),
];

/// The files; of a library, the page is what is seen first.
pub(crate) fn router(has_library: bool) -> Router {
    let router = Router::new().route("/-/{*path}", get(part));
    match has_library {
        true => router.route("/", get(async || file("index.html"))),
        false => router,
    }
}

fn headers(kind: &'static str) -> [(HeaderName, HeaderValue); 4] {
    [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(POLICY),
        ),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (
            header::REFERRER_POLICY,
            HeaderValue::from_static("no-referrer"),
        ),
    ]
}

/// A page that was made just now.
pub(crate) fn html(text: String) -> Response {
    (headers("text/html; charset=utf-8"), text).into_response()
}

async fn part(path: Result<Path<String>, PathRejection>) -> Result<Response, Refused> {
    Ok(file(&path?.0))
}

fn file(path: &str) -> Response {
    let shared = SHARED.iter().find(|(name, _)| *name == path);
    let bytes = match shared {
        Some((_, bytes)) => Bytes::from_static(bytes),
        None => match Files::get(path).map(|found| found.data) {
            Some(Cow::Borrowed(bytes)) => Bytes::from_static(bytes),
            Some(Cow::Owned(bytes)) => bytes.into(),
            None => return Refused::not_found().into_response(),
        },
    };
    let kind = match path.rsplit_once('.').map(|(_, end)| end) {
        Some("html") => "text/html; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    };
    (headers(kind), bytes).into_response()
}
