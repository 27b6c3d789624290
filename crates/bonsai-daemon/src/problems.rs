//! What is answered where something cannot be done.

use bonsai_api::Problem;
use bonsai_units::text::escaped;

/// Makes one. Its detail names what was asked, which may be anything.
pub(crate) fn problem(status: u16, kind: &str, title: &str, detail: impl Into<String>) -> Problem {
    Problem {
        kind: format!("urn:bonsai:{kind}"),
        title: title.to_owned(),
        status,
        detail: escaped(&detail.into()).into_owned(),
    }
}

/// Something in what was asked has to be put right.
pub(crate) fn bad_input(detail: impl Into<String>) -> Problem {
    problem(422, "bad-input", "What was asked for cannot be", detail)
}

/// There is no such service.
pub(crate) fn unknown_service(id: &str) -> Problem {
    let detail = format!("there is no service {id:?} here: GET /v1/services lists them");
    problem(404, "unknown-service", "No such service", detail)
}

/// They may not.
pub(crate) fn forbidden(detail: impl Into<String>) -> Problem {
    problem(403, "forbidden", "Not allowed", detail)
}

/// Somebody was faster.
pub(crate) fn moved(expected: u64, now: u64) -> Problem {
    let detail = format!(
        "the configuration was changed meanwhile: it is at revision {now}, and the change was \
         made for {expected}; look again, and change that"
    );
    problem(412, "changed-meanwhile", "Changed meanwhile", detail)
}

/// The daemon is ending, or too busy.
pub(crate) fn unavailable(detail: impl Into<String>) -> Problem {
    problem(503, "unavailable", "Not available now", detail)
}
