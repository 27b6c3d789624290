//! What comes in, read with errors that say what is wrong, and errors that go out.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bonsai_api::Problem;
use bonsai_services::wording::of_document;
use bonsai_units::text::escaped;
use serde::de::{self, DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::map::Entry;

use crate::problems::{bad_input, problem, unavailable};

/// How long a body may take.
const BODY: Duration = Duration::from_secs(10);

/// An error, as it is answered.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) Problem);

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let text = serde_json::to_vec(&self.0).unwrap_or_default();
        let mut response = (status, text).into_response();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

/// Makes an answer that may be long beside the thread that answers, so that others are answered
/// meanwhile.
pub(crate) async fn aside<T: Send + 'static>(
    make: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let made = tokio::task::spawn_blocking(make).await;
    made.map_err(|_| unavailable("the daemon is ending"))
}

/// An answer with the revision that it is of.
#[derive(Debug)]
pub(crate) struct Revised<T>(pub(crate) u64, pub(crate) T);

impl<T: Serialize> IntoResponse for Revised<T> {
    fn into_response(self) -> Response {
        revised(self.0, axum::Json(self.1).into_response())
    }
}

/// The same of one that is made.
pub(super) fn revised(revision: u64, mut response: Response) -> Response {
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{revision}\"")) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// A JSON body.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

fn malformed(detail: String) -> Failure {
    Failure(problem(400, "malformed", "Not understood", detail))
}

/// A document in which each name of an object is there once. Of two, readers differ in which they take (RFC 8259, section 4).
struct Distinct(Value);

impl<'de> Deserialize<'de> for Distinct {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Names).map(Self)
    }
}

struct Names;

impl<'de> Visitor<'de> for Names {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Distinct(value)) = values.next_element()? {
            all.push(value);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut all = serde_json::Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let Distinct(value) = fields.next_value()?;
            let name = match all.entry(name) {
                Entry::Vacant(entry) => {
                    entry.insert(value);
                    continue;
                }
                Entry::Occupied(entry) => escaped(entry.key()).into_owned(),
            };
            return Err(de::Error::custom(format!("\"{name}\" is there twice")));
        }
        Ok(all.into())
    }
}

/// Reads a body.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    let misread = |error: serde_path_to_error::Error<serde_json::Error>| {
        let path = error.path().to_string();
        let text = of_document(&error.into_inner().to_string());
        malformed(if path == "." {
            text
        } else {
            format!("{path}: {text}")
        })
    };
    let mut json = serde_json::Deserializer::from_slice(bytes);
    match serde_path_to_error::deserialize(&mut json) {
        Ok(Distinct(value)) => {
            crate::plain::document(&value).map_err(|why| Failure(bad_input(why)))?;
        }
        Err(error) if error.inner().is_data() => return Err(misread(error)),
        // A body that is no JSON is refused below, with its place.
        Err(_) => {}
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(misread)?;
    json.end().map_err(|error| malformed(error.to_string()))?;
    Ok(value)
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let kind = request.headers().get(header::CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let essence = kind
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase();
        // A type that browsers never send across origins without asking first.
        if !matches!(
            &*essence,
            "application/json" | "application/merge-patch+json"
        ) {
            let text = format!("the body is application/json, and not {kind:?}");
            return Err(Failure(problem(415, "not-json", "Not JSON", text)));
        }
        let bytes = tokio::time::timeout(BODY, Bytes::from_request(request, state)).await;
        let bytes = bytes
            .map_err(|_| {
                let text = format!("the body has not come within {} s", BODY.as_secs());
                Failure(problem(408, "too-slow", "Too slow", text))
            })?
            .map_err(|rejection| {
                let status = rejection.status();
                if status == StatusCode::PAYLOAD_TOO_LARGE {
                    let text = "the body is larger than api.body allows";
                    return Failure(problem(413, "too-large", "Too large", text));
                }
                malformed(rejection.body_text())
            })?;
        read(&bytes).map(Self)
    }
}

/// What stands behind the question mark.
#[derive(Debug)]
pub(crate) struct Params<T>(pub(crate) T);

impl<T> Deref for Params<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query
            .map(|Query(value)| Self(value))
            .map_err(|error| malformed(error.body_text()))
    }
}

/// A part of the path.
#[derive(Debug)]
pub(crate) struct Part(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Part {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let part = Path::<String>::from_request_parts(parts, state).await;
        part.map(|Path(value)| Self(value))
            .map_err(|error| malformed(error.body_text()))
    }
}

/// The revision in `If-Match`; `*` for any.
#[derive(Debug)]
pub(crate) struct IfMatch(pub(crate) Option<u64>);

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let Some(value) = parts.headers.get(header::IF_MATCH) else {
            return Ok(Self(None));
        };
        revision(value.to_str().unwrap_or_default()).map(Self)
    }
}

/// Reads what stands in `If-Match`.
pub(super) fn revision(text: &str) -> Result<Option<u64>, Failure> {
    let text = text.trim();
    if text == "*" {
        return Ok(None);
    }
    let number = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    let number = number.and_then(|number| number.parse().ok());
    number.map(Some).ok_or_else(|| {
        malformed(format!(
            "If-Match: {text:?} is no revision: write it as in ETag, such as \"7\""
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_there_twice_is_refused() {
        let read = |text: &str| read::<Value>(text.as_bytes()).map_err(|failure| failure.0);
        for text in [
            "{}",
            "[1, -2, 3.5, true, null, \"x\"]",
            "{\"a\": {\"b\": [{\"a\": 1}, {\"a\": 2}]}, \"b\": {\"b\": \"\\u00e4\"}}",
            "[18446744073709551615, -9223372036854775808, 1e300]",
        ] {
            let value: Value = serde_json::from_str(text).expect("JSON");
            assert_eq!(read(text).expect(text), value);
        }
        for (text, expected) in [
            ("{\"a\": 1, \"a\": 1}", "\"a\" is there twice"),
            (
                "{\"send\": {\"max\": \"1MB/s\", \"m\\u0061x\": null}}",
                "send: \"max\" is there twice",
            ),
            (
                "[{\"\\u001b\": 1, \"\\u001b\": 2}]",
                "\"\\u{1b}\" is there twice",
            ),
        ] {
            let problem = read(text).expect_err(text);
            assert_eq!(problem.status, 400);
            assert!(problem.detail.contains(expected), "{}", problem.detail);
        }
        let deep = "[".repeat(100_000);
        assert_eq!(read(&deep).expect_err("too deep").status, 400);
    }
}
