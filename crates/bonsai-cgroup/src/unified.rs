//! The hierarchy of version 2 from its top, with groups that need not be there.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::hierarchy::Hierarchies;
use crate::record::Target;
use crate::systemd::{Systemd, systemd_runs};

/// The number of the topmost group: the kernel makes its folder first.
const TOP: u64 = 1;

/// The hierarchy of version 2, seen as the kernel counts its levels.
#[derive(Clone, Debug)]
pub struct Unified {
    mount: PathBuf,
    hierarchies: Hierarchies,
}

impl Unified {
    /// Where it is mounted: `/sys/fs/cgroup`, or elsewhere on machines that have both versions.
    ///
    /// # Errors
    /// [`Error::NoUnified`], [`Error::NotTop`], or `/proc` cannot be read.
    pub fn find() -> Result<Self, Error> {
        let hierarchies = Hierarchies::read()?;
        let found = hierarchies.unified().ok_or(Error::NoUnified)?;
        let mount = found.mount.clone();
        let number = fs::metadata(&mount).map(|of| of.ino()).ok();
        // Within a cgroup namespace `/` is called so, too, and is not the topmost.
        if found.root != "/" || number != Some(TOP) {
            return Err(Error::NotTop { mount });
        }
        Ok(Self { mount, hierarchies })
    }

    /// Where a group is or would be.
    #[must_use]
    pub fn folder(&self, path: &str) -> PathBuf {
        self.mount.join(path.trim_start_matches('/'))
    }

    /// The number of the group in a folder; `None` if there is none.
    #[must_use]
    pub fn id(folder: &Path) -> Option<u64> {
        let of = fs::symlink_metadata(folder).ok()?;
        of.is_dir().then(|| of.ino())
    }

    /// The path of a target's group in the hierarchy: [`Hierarchies::path_to_be`].
    ///
    /// # Errors
    /// See there.
    pub fn path(&self, target: &Target) -> Result<String, Error> {
        self.hierarchies.path_to_be(target)
    }
}

impl Hierarchies {
    /// The path of a target's group, which need not be there. For a unit that does not run it is where
    /// its slice will put it.
    ///
    /// # Errors
    /// It is no path, there is no such unit, or systemd cannot be asked. A process has no group of its
    /// own ([`Error::NoProcess`]).
    pub fn path_to_be(&self, target: &Target) -> Result<String, Error> {
        let name = match target {
            Target::Cgroup(path) => return self.path(path),
            Target::Process(pid) => return Err(Error::NoProcess { pid: *pid }),
            Target::Unit(name) => name,
        };
        if !systemd_runs() {
            return Err(Error::NoSystemd { unit: name.clone() });
        }
        let unit = Systemd::connect()?.unit(name)?;
        if let Some(path) = unit.group()? {
            return Ok(path);
        }
        if let Some(path) = of_slice(name) {
            return Ok(path);
        }
        let slice = of_slice(&unit.slice()?);
        let slice = slice.ok_or_else(|| Error::NotRunning { unit: name.clone() })?;
        Ok(format!("{}/{}", slice.trim_end_matches('/'), escaped(name)))
    }
}

/// The path of a slice's group, from its name (systemd.slice(5)): `a-b.slice` is in `a.slice`.
fn of_slice(name: &str) -> Option<String> {
    let stem = name.strip_suffix(".slice")?;
    if stem == "-" {
        return Some("/".to_owned());
    }
    let mut path = String::new();
    for (at, _) in stem.match_indices('-').chain([(stem.len(), "")]) {
        let part = stem.get(..at).filter(|part| !part.is_empty())?;
        path.push_str(&format!("/{part}.slice"));
    }
    Some(path)
}

/// The name of a unit's folder: one that might be a file of the kernel gets a `_` (systemd:
/// `cg_escape`).
fn escaped(name: &str) -> String {
    let controllers = [
        "cgroup", "cpu", "cpuset", "io", "memory", "pids", "hugetlb", "rdma", "misc", "devices",
    ];
    let first = name.split('.').next().unwrap_or_default();
    let is_odd = name.starts_with(['_', '.']) || controllers.contains(&first);
    match is_odd {
        true => format!("_{name}"),
        false => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_in_slices() {
        for (name, path) in [
            ("-.slice", Some("/")),
            ("a.slice", Some("/a.slice")),
            ("a-b-c.slice", Some("/a.slice/a-b.slice/a-b-c.slice")),
            ("-a.slice", None),
            ("a.service", None),
        ] {
            assert_eq!(of_slice(name).as_deref(), path, "{name}");
        }
        assert_eq!(escaped("db.service"), "db.service");
        assert_eq!(escaped("cpu.service"), "_cpu.service");
        assert_eq!(escaped("_x.service"), "__x.service");
    }
}
