//! Where the folders of control groups are.

use std::path::{Path, PathBuf};

use super::groups::Groups;
use super::roots::{Roots, read};

/// The folder of a control group in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupFolder {
    /// The controllers of the hierarchy in version 1, separated by commas, or its `name=...`;
    /// `None` for version 2.
    pub v1: Option<String>,
    /// The folder.
    pub path: PathBuf,
}

/// A mounted hierarchy.
struct Hierarchy {
    /// The options of a mount of version 1, which name its controllers among others.
    v1: Option<String>,
    mount: PathBuf,
}

fn hierarchies(roots: &Roots) -> Vec<Hierarchy> {
    let mounts = read(&roots.proc.join("self/mounts"), 4 << 20).unwrap_or_default();
    let of_line = |line: &str| {
        let mut fields = line.split(' ').skip(1);
        let mount = PathBuf::from(unescape_octal(fields.next()?));
        let v1 = match (fields.next()?, fields.next()?) {
            ("cgroup2", _) => None,
            ("cgroup", options) => Some(options.to_owned()),
            _ => return None,
        };
        Some(Hierarchy { v1, mount })
    };
    String::from_utf8_lossy(&mounts)
        .lines()
        .filter_map(of_line)
        .collect()
}

/// The folders of the groups of a process, without roots, version 2 first.
pub(super) fn of_groups(roots: &Roots, groups: &Groups) -> Vec<GroupFolder> {
    let hierarchies = hierarchies(roots);
    let below = |mount: &Path, path: &str| {
        let path = path.trim_start_matches('/');
        (!path.is_empty() && !path.starts_with("..")).then(|| mount.join(path))
    };
    let new = groups.v2.as_deref().and_then(|path| {
        let hierarchy = hierarchies
            .iter()
            .find(|hierarchy| hierarchy.v1.is_none())?;
        Some(GroupFolder {
            v1: None,
            path: below(&hierarchy.mount, path)?,
        })
    });
    let old = groups.v1.iter().filter_map(|(controllers, path)| {
        let mut options = hierarchies
            .iter()
            .filter_map(|one| Some((one.v1.as_deref()?, &one.mount)));
        let has = |options: &str, wanted: &str| options.split(',').any(|option| option == wanted);
        let (_, mount) = options.find(|(options, _)| {
            controllers
                .split(',')
                .all(|controller| has(options, controller))
        })?;
        Some(GroupFolder {
            v1: Some(controllers.clone()),
            path: below(mount, path)?,
        })
    });
    new.into_iter().chain(old).collect()
}

/// The path in its hierarchy of a group that a user named by it, or by its folder.
pub(super) fn path_in_hierarchy(roots: &Roots, named: &str) -> String {
    let named = Path::new(named);
    let longest = hierarchies(roots)
        .into_iter()
        .filter_map(|one| Some(named.strip_prefix(one.mount).ok()?.to_owned()))
        .min_by_key(|rest| rest.as_os_str().len());
    let path = longest.unwrap_or_else(|| named.to_owned());
    // Components, so that slashes at the end and doubled ones do not matter.
    let path = Path::new("/").join(path).components().collect::<PathBuf>();
    path.to_string_lossy().into_owned()
}

/// The folders that exist of the group `path`, in all hierarchies.
pub(super) fn existing(roots: &Roots, path: &str) -> Vec<GroupFolder> {
    let mut found: Vec<GroupFolder> = hierarchies(roots)
        .into_iter()
        .map(|one| GroupFolder {
            v1: one.v1,
            path: one.mount.join(path.trim_start_matches('/')),
        })
        .filter(|folder| folder.path.join("cgroup.procs").exists())
        .collect();
    found.sort_by_key(|folder| folder.v1.is_some());
    found
}

/// What a field of `/proc/PID/mounts` stands for: blanks and backslashes are `\` and three octal
/// digits (`proc_pid_mountinfo(5)`).
pub(super) fn unescape_octal(field: &str) -> String {
    let mut parts = field.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let code = part
            .get(..3)
            .and_then(|code| u8::from_str_radix(code, 8).ok());
        if let Some(byte) = code {
            bytes.push(byte);
            bytes.extend_from_slice(&part.as_bytes()[3..]);
        } else {
            bytes.push(b'\\');
            bytes.extend_from_slice(part.as_bytes());
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_mounts() {
        assert_eq!(unescape_octal(r"/a\040b\134c"), r"/a b\c");
        assert_eq!(unescape_octal(r"/a\04\x\"), r"/a\04\x\");
        assert_eq!(unescape_octal("/ä\\ä1"), "/ä\\ä1");
    }
}
