//! Where groups are.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use bonsai_ledger::{Group, LedgerError};

use crate::refusal::{Refusal, before_start};
use crate::service::check_name;

/// The folder of groups for several users. Not below root's own runtime directory,
/// which nobody else may enter.
const SHARED: &str = "/run/bonsai-groups";

/// The folder of the calling user's groups.
fn own_folder() -> anyhow::Result<PathBuf> {
    let runtime = bonsai_host::runtime_dir().map_err(|error| before_start(error.into()))?;
    Ok(runtime.join(".groups"))
}

/// Checks that nobody but root can put groups into the shared folder.
fn check_shared() -> anyhow::Result<bool> {
    let meta = match fs::symlink_metadata(SHARED) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        meta => meta.with_context(|| format!("{SHARED}: cannot be examined"))?,
    };
    if !meta.is_dir() || meta.uid() != 0 || meta.mode() & 0o022 != 0 {
        let text = format!(
            "{SHARED} must be a folder of root that nobody else may write (mode 755): the groups \
             in it cannot be trusted"
        );
        return Err(Refusal::input(text));
    }
    Ok(true)
}

/// The file that a new group is to have.
pub fn new(name: &str, for_others: bool) -> anyhow::Result<PathBuf> {
    check(name)?;
    let (folder, mode) = if for_others {
        (PathBuf::from(SHARED), 0o755)
    } else {
        (own_folder()?, 0o700)
    };
    match fs::DirBuilder::new().mode(mode).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("{}: cannot be made", folder.display()));
        }
        _ => {}
    }
    if for_others {
        // The umask may have taken something from it.
        let open = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(&folder, open).context(SHARED)?;
        check_shared()?;
    }
    let path = folder.join(name);
    if path.symlink_metadata().is_ok() {
        let text = format!("the group {name} is there already: bonsai group set {name} changes it");
        return Err(Refusal::input(text));
    }
    Ok(path)
}

/// The file of a group of the calling user, whether it is there or not.
pub(crate) fn own(name: &str) -> anyhow::Result<PathBuf> {
    check(name)?;
    Ok(own_folder()?.join(name))
}

/// All groups that the calling user may know of: name and file.
pub fn all() -> anyhow::Result<Vec<(String, PathBuf)>> {
    let mut folders = vec![own_folder()?];
    if check_shared()? {
        folders.push(PathBuf::from(SHARED));
    }
    let mut groups: Vec<(String, PathBuf)> = Vec::new();
    for folder in folders {
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries.with_context(|| format!("{}: cannot be read", folder.display()))?,
        };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let known = groups.iter().any(|(known, _)| *known == name);
            if check_name(&name).is_ok() && !known {
                groups.push((name, entry.path()));
            }
        }
    }
    groups.sort();
    Ok(groups)
}

/// The group of that name: the user's own first.
pub fn find(name: &str) -> anyhow::Result<Group> {
    check(name)?;
    let all = all()?;
    let Some((_, path)) = all.iter().find(|(known, _)| known == name) else {
        let names: Vec<&str> = all.iter().map(|(name, _)| &**name).collect();
        let others = if names.is_empty() {
            "there is none".to_owned()
        } else {
            format!("there are {}", names.join(", "))
        };
        let text = format!(
            "there is no group {name:?}; {others} (bonsai group create {name} --limit \
             send=100Mbit/s makes it)"
        );
        return Err(Refusal::input(text));
    };
    open(name, path)
}

/// Opens the group of a file.
pub fn open(name: &str, path: &Path) -> anyhow::Result<Group> {
    Group::open(path).map_err(|error| match error {
        LedgerError::File { source, .. } if source == rustix::io::Errno::ACCESS => {
            let of =
                fs::metadata(path).map_or_else(|_| "?".to_owned(), |meta| unix_name(meta.gid()));
            Refusal::input(format!(
                "the group {name} is for members of the Unix group {of}, of which this user is none"
            ))
        }
        error => before_start(error.into()),
    })
}

fn check(name: &str) -> anyhow::Result<()> {
    check_name(name).map_err(|error| {
        let text = error.to_string();
        Refusal::input(text.replace("the name of a service", "the name of a group"))
    })
}

/// Lines of `/etc/group`: name, password, number, members (group(5)).
fn unix_groups() -> Vec<(String, u32)> {
    let text = fs::read_to_string("/etc/group").unwrap_or_default();
    let line = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((name, fields.nth(1)?.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// The number of a Unix group that is given by name or number.
pub fn unix_group(wanted: &str) -> anyhow::Result<u32> {
    let groups = unix_groups();
    let named = groups.iter().find(|(name, _)| name == wanted);
    let number = named.map(|(_, gid)| *gid).or_else(|| wanted.parse().ok());
    number.ok_or_else(|| {
        let text =
            format!("there is no Unix group {wanted:?} in /etc/group: give one, or its number");
        Refusal::input(text)
    })
}

fn unix_name(gid: u32) -> String {
    let groups = unix_groups();
    let found = groups.into_iter().find(|(_, number)| *number == gid);
    found.map_or_else(|| gid.to_string(), |(name, _)| name)
}
