//! What `disk`, `cpu` and `run --cpu` have in common.

use std::path::PathBuf;

use bonsai_cgroup::{Error, Target};
use bonsai_services::refusal::Refusal;

/// Where it is written down what there was before. It ends with the boot, as the limits do.
const RECORDS: &str = ".held";

/// The folder of records.
///
/// # Errors
/// There is no safe runtime directory.
pub(crate) fn records() -> anyhow::Result<PathBuf> {
    let folder = bonsai_host::runtime_dir().map_err(|error| {
        let error = anyhow::Error::from(error);
        Refusal::input(bonsai_host::sentence(error.as_ref()))
    })?;
    Ok(folder.join(RECORDS))
}

/// An error as a refusal: what cannot be limited is for the user to put right.
#[expect(clippy::needless_pass_by_value, reason = "as map_err gives it")]
pub(crate) fn refused(error: Error) -> anyhow::Error {
    Refusal::input(error.to_string())
}

/// What the command line names; clap sees to it that it is one.
pub(crate) fn target(cgroup: Option<&String>, unit: Option<&String>, pid: Option<u32>) -> Target {
    match (cgroup, unit, pid) {
        (_, Some(unit), _) => Target::Unit(unit.clone()),
        (_, _, Some(pid)) => Target::Process(pid),
        (path, _, _) => Target::Cgroup(path.cloned().unwrap_or_default()),
    }
}

/// The kind of a target and its name, for JSON.
pub(crate) fn named(target: &Target) -> (&'static str, String) {
    let kind = match target {
        Target::Cgroup(_) => "cgroup",
        Target::Unit(_) => "unit",
        Target::Process(_) => "pid",
    };
    let name = match target {
        Target::Process(pid) => pid.to_string(),
        other => other.to_string(),
    };
    (kind, name)
}
