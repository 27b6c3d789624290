//! Which pages of elsewhere may read the answers (Fetch standard, CORS).

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};

/// Lets pages of an origin, or of any (`*`), read what these ways answer.
pub(crate) fn allow(router: Router, origin: Option<HeaderValue>) -> Router {
    match origin {
        Some(origin) => router.layer(middleware::from_fn_with_state(origin, answer)),
        None => router,
    }
}

async fn answer(State(origin): State<HeaderValue>, request: Request, next: Next) -> Response {
    let is_question = request.method() == Method::OPTIONS
        && request
            .headers()
            .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if is_question {
        let mut response = StatusCode::NO_CONTENT.into_response();
        let told = [
            (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, HEAD"),
            // Players ask for parts, and for what they do not have yet.
            (
                header::ACCESS_CONTROL_ALLOW_HEADERS,
                "range, if-range, if-match, if-none-match, cache-control, content-type",
            ),
            (header::ACCESS_CONTROL_MAX_AGE, "7200"),
        ];
        set(response.headers_mut(), told);
        response
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    let told = [
        (
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
            "content-length, content-range, accept-ranges, etag",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "cross-origin",
        ),
    ];
    set(headers, told);
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    response
}

fn set<const N: usize>(headers: &mut HeaderMap, told: [(HeaderName, &'static str); N]) {
    for (name, value) in told {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
