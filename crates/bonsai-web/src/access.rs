//! Users: answers are for these alone, where there is a file of them (RFC 7616).

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use bonsai_media::access::{AuthRequest, Guard};
use rustix::time::{ClockId, clock_gettime};

use crate::answer::Refused;

/// Lets these ways answer users alone.
pub(crate) fn guarded(router: Router, guard: Option<Arc<Guard>>) -> Router {
    match guard {
        Some(guard) => router.layer(middleware::from_fn_with_state(guard, answer)),
        None => router,
    }
}

async fn answer(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let now = clock_gettime(ClockId::Monotonic);
    let header = request.headers().get(header::AUTHORIZATION);
    let uri = request.uri().path_and_query();
    let denied = guard.check(&AuthRequest {
        header: header.map(|value| value.to_str().unwrap_or_default()),
        method: request.method().as_str(),
        uri: uri.map_or("/", |uri| uri.as_str()),
        now_ns: u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000,
        goes_on: false,
    });
    let Err(denied) = denied else {
        return next.run(request).await;
    };
    let mut response = match denied.is_wrong {
        true => Refused::new(StatusCode::UNAUTHORIZED, denied.why).into_response(),
        // Each client asks once without: no line of the log.
        false => StatusCode::UNAUTHORIZED.into_response(),
    };
    if let Ok(challenge) = HeaderValue::from_str(&denied.challenge) {
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, challenge);
    }
    response
}
