//! Errors between a client and a daemon.

use std::error::Error;
use std::io::ErrorKind;

use bonsai_api::Problem;

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The daemon answers that it will not.
    #[error("{}", .0.detail)]
    Refused(Problem),
    /// No process listens there.
    #[error("no daemon answers at {place}: {source}")]
    Absent {
        /// Where it was looked for.
        place: String,
        /// The error of the system.
        source: reqwest::Error,
    },
    /// A daemon runs there, and has not answered.
    #[error("the daemon at {place} runs and does not answer: {about}")]
    Silent {
        /// Where.
        place: String,
        /// The error of the system.
        about: String,
    },
    /// The answer is none of the interface's.
    #[error("what answers at {place} is no daemon of this version: {about}")]
    Foreign {
        /// Where.
        place: String,
        /// The fault in it.
        about: String,
    },
}

impl ClientError {
    /// The error of a request to a daemon at a place.
    pub(crate) fn of(source: reqwest::Error, place: &str) -> Self {
        let place = place.to_owned();
        let is_absent = |kind| {
            matches!(
                kind,
                ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::PermissionDenied
            )
        };
        // Names that lead nowhere and certificates have kinds of their own.
        let has_connected = !source.is_connect() || kind(&source) == Some(ErrorKind::WouldBlock);
        if !has_connected || kind(&source).is_some_and(is_absent) {
            return Self::Absent { place, source };
        }
        let about = if source.is_timeout() {
            "nothing has come in time".to_owned()
        } else {
            innermost(&source).to_string()
        };
        Self::Silent { place, about }
    }
}

/// The error that others were made of.
fn innermost(error: &reqwest::Error) -> &(dyn Error + 'static) {
    let mut innermost: &(dyn Error + 'static) = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost
}

/// The kind of the system's error, if it is one.
pub(crate) fn kind(error: &reqwest::Error) -> Option<ErrorKind> {
    let error = innermost(error).downcast_ref::<std::io::Error>();
    error.map(std::io::Error::kind)
}
