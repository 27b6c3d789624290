//! Whether more streams fit.

use bonsai_api::{Admission, AdmitRequest, Problem};
use bonsai_policy::{Config, Policy};

use crate::problems::problem;

pub(crate) fn admit(_: &Policy, _: &Config, _: &AdmitRequest) -> Result<Admission, Problem> {
    Err(problem(
        501,
        "not-yet",
        "Not yet",
        "admission is not there yet",
    ))
}
