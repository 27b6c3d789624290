//! What `disk`, `cpu` and `run --cpu` have in common.

use std::path::PathBuf;

use bonsai_cgroup::{Error, Hierarchies, Target};
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

/// Refuses to limit what would stop the machine that the command runs on: a group that process 1, or this process, is in.
///
/// # Errors
/// It is one, and nothing was said that confirms it.
pub(crate) fn confirmed(
    hierarchies: &Hierarchies,
    target: &Target,
    force: bool,
) -> anyhow::Result<()> {
    if force {
        return Ok(());
    }
    // One that is named by its folder has its path; what is no group is refused by whoever sets the limit.
    let path = match (hierarchies.anywhere(target), target) {
        (Ok(group), _) => group.path().to_owned(),
        (Err(_), Target::Cgroup(path)) => path.clone(),
        // Of one that does not run no process is in it.
        (Err(_), _) => return Ok(()),
    };
    for (pid, whose) in [("1", "process 1"), ("self", "this command")] {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        if groups.lines().any(|line| is_in(line, &path)) {
            return Err(Refusal::input(format!(
                "{target} is a group that {whose} is in, so that the machine would wait with it: name the group of what is \
                 to be limited, or confirm it by --force"
            )));
        }
    }
    Ok(())
}

/// Whether a line of `/proc/PID/cgroup` has a group, or one below it.
fn is_in(line: &str, group: &str) -> bool {
    let Some(path) = line.splitn(3, ':').nth(2) else {
        return false;
    };
    let group = group.trim_end_matches('/');
    let rest = path.strip_prefix(group);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
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

#[cfg(test)]
mod tests {
    use super::is_in;

    #[test]
    fn a_group_is_in_all_that_are_above_it() {
        let line = "0::/system.slice/ssh.service";
        for (group, expected) in [
            ("/", true),
            ("/system.slice", true),
            ("/system.slice/ssh.service", true),
            ("/system.slice/ssh.service/", true),
            ("/system.slice/ssh", false),
            ("/system.slice/ssh.service/below", false),
            ("/user.slice", false),
        ] {
            assert_eq!(is_in(line, group), expected, "{group}");
        }
        assert!(is_in("4:blkio:/", "/") && !is_in("4:blkio:/", "/a"));
        assert!(!is_in("no line of it", "/"));
    }
}
