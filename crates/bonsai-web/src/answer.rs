//! Answers that say no.

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bonsai_davvi::Error;
use bonsai_stream::folder::Unfound;
use serde_json::json;

/// Why a request is not answered, for whoever asked; and for the log, where that is more.
#[derive(Debug)]
pub(crate) struct Refused {
    status: StatusCode,
    text: String,
    log: Option<String>,
}

/// What the log says of it.
#[derive(Clone, Debug)]
pub(crate) struct Why(pub(crate) String);

impl Refused {
    pub(crate) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
            log: None,
        }
    }

    pub(crate) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "there is no such thing here")
    }

    /// What is wrong with the machine is for its owner alone.
    pub(crate) fn broken(text: &str, log: &impl ToString) -> Self {
        Self {
            log: Some(log.to_string()),
            ..Self::new(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
    }

    fn input(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        if error.is_input() {
            Self::input(error.to_string())
        } else {
            Self::broken("the library cannot be read", &error)
        }
    }
}

impl From<Unfound> for Refused {
    fn from(why: Unfound) -> Self {
        match why {
            Unfound::Missing => Self::not_found(),
            Unfound::Outside | Unfound::Denied | Unfound::NoFile => {
                Self::new(StatusCode::FORBIDDEN, why.to_string())
            }
            Unfound::Disk(error) => Self::broken("the file cannot be read", &error),
        }
    }
}

impl From<QueryRejection> for Refused {
    fn from(error: QueryRejection) -> Self {
        Self::input(error.body_text())
    }
}

impl From<JsonRejection> for Refused {
    fn from(error: JsonRejection) -> Self {
        Self::new(error.status(), error.body_text())
    }
}

impl From<PathRejection> for Refused {
    fn from(_: PathRejection) -> Self {
        Self::not_found()
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let why = Why(self.log.unwrap_or_else(|| self.text.clone()));
        let mut response = (self.status, Json(json!({"error": self.text}))).into_response();
        response.extensions_mut().insert(why);
        response
    }
}

/// For methods that an address does not know.
pub(crate) async fn other_method() -> Refused {
    let why = "it is not asked for in this way: see Allow";
    Refused::new(StatusCode::METHOD_NOT_ALLOWED, why)
}

/// For addresses that nobody answers to.
pub(crate) async fn nothing_here() -> Refused {
    Refused::not_found()
}
