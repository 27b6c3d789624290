//! Which hierarchies of control groups are mounted, and where groups are in them.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::file;
use crate::group::Cgroup;

/// The most groups that a walk through a hierarchy shows.
const MOST_GROUPS: usize = 20_000;

/// The longest path of a group that is taken (`PATH_MAX`).
const MOST_PATH: usize = 4_096;

/// Version of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Each controller in a hierarchy (Documentation/admin-guide/cgroup-v1).
    V1,
    /// One hierarchy of all (Documentation/admin-guide/cgroup-v2.rst).
    V2,
}

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Controller {
    /// Block devices: `io`, or `blkio` in version 1.
    Io,
    /// CPUs: `cpu`.
    Cpu,
}

impl Controller {
    /// Its name in a version.
    #[must_use]
    pub const fn name(self, version: Version) -> &'static str {
        match (self, version) {
            (Self::Io, Version::V2) => "io",
            (Self::Io, Version::V1) => "blkio",
            (Self::Cpu, _) => "cpu",
        }
    }

    /// Its names, for people.
    #[must_use]
    pub const fn names(self) -> &'static str {
        match self {
            Self::Io => "io (version 2) or blkio (version 1)",
            Self::Cpu => "cpu",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
        })
    }
}

/// A hierarchy, as it is mounted here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its version.
    pub version: Version,
    /// Where it is mounted.
    pub mount: PathBuf,
    /// Which group of the hierarchy is seen there; `/` is all of it.
    pub root: String,
    /// Its controllers. For version 2 those of the topmost group that is seen.
    pub controllers: Vec<String>,
}

/// All hierarchies that are mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hierarchies {
    /// In the order of their mounts.
    pub all: Vec<Hierarchy>,
}

impl Hierarchies {
    /// Those of this process's mount namespace.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn read() -> Result<Self, Error> {
        let mounts = file::need(Path::new("/proc/self/mountinfo"))?;
        Ok(Self::parse(&mounts))
    }

    /// Those of a text in the form of `/proc/self/mountinfo` (proc_pid_mountinfo(5)). The
    /// controllers of version 2 are read at its mount.
    #[must_use]
    pub fn parse(mountinfo: &str) -> Self {
        let all = mountinfo.lines().filter_map(hierarchy);
        let mut found: Vec<Hierarchy> = Vec::new();
        for one in all {
            let is_same = |other: &&mut Hierarchy| {
                other.version == one.version
                    && (one.version == Version::V2 || other.controllers == one.controllers)
            };
            match found.iter_mut().find(is_same) {
                // Of several mounts of one hierarchy, the one that shows most of it.
                Some(other) if one.root.len() < other.root.len() => *other = one,
                Some(_) => {}
                None => found.push(one),
            }
        }
        Self { all: found }
    }

    /// The hierarchy that has a controller. Of both versions at most one has it.
    ///
    /// # Errors
    /// [`Error::NoController`].
    pub fn with(&self, controller: Controller) -> Result<&Hierarchy, Error> {
        let has = |hierarchy: &&Hierarchy| {
            let name = controller.name(hierarchy.version);
            hierarchy.controllers.iter().any(|other| other == name)
        };
        let found = self.all.iter().find(has);
        found.ok_or(Error::NoController { controller })
    }

    /// The hierarchy of version 2, with or without controllers.
    #[must_use]
    pub fn unified(&self) -> Option<&Hierarchy> {
        self.all.iter().find(|one| one.version == Version::V2)
    }

    /// A group by its path, as in `/proc/PID/cgroup` or as a folder below a mount.
    ///
    /// # Errors
    /// There is none, or not in the hierarchy of the controller.
    pub fn group(&self, controller: Controller, path: &str) -> Result<Cgroup, Error> {
        let hierarchy = self.with(controller)?;
        let path = self.path(path)?;
        let group = hierarchy.place(controller, &path)?;
        if group.folder().is_dir() {
            return Ok(group);
        }
        let folder = group.folder().to_owned();
        let elsewhere = self.all.iter().any(|other| {
            let there = other.folder(&path);
            there.is_some_and(|folder| folder.is_dir())
        });
        let controller = controller.name(hierarchy.version).to_owned();
        Err(if elsewhere {
            Error::OtherHierarchy {
                path,
                controller,
                folder,
            }
        } else {
            Error::NoGroup {
                path,
                controller,
                folder,
            }
        })
    }

    /// The group that a process is in.
    ///
    /// # Errors
    /// There is no such process, or its group is not to be seen from here.
    pub fn of_process(&self, controller: Controller, pid: u32) -> Result<Cgroup, Error> {
        let hierarchy = self.with(controller)?;
        let list = file::read(Path::new(&format!("/proc/{pid}/cgroup")));
        let list = list.map_err(|_| Error::NoProcess { pid })?;
        let name = controller.name(hierarchy.version);
        let path = path_in(&list, hierarchy.version, name);
        let path = path.ok_or(Error::NoController { controller })?;
        hierarchy.place(controller, path)
    }

    /// A path as groups have it: without the mount before it, and without a slash at its end.
    pub(crate) fn path(&self, path: &str) -> Result<String, Error> {
        let bad = || Error::BadPath { path: path.into() };
        let is_odd = |part: &str| matches!(part, "." | "..");
        if !path.starts_with('/')
            || path.len() > MOST_PATH
            || path.contains('\0')
            || path.split('/').any(is_odd)
        {
            return Err(bad());
        }
        let below = self.all.iter().find_map(|one| {
            let rest = Path::new(path).strip_prefix(&one.mount).ok()?;
            let top = if one.root == "/" { "" } else { &one.root };
            Some(format!("{top}/{}", rest.display()))
        });
        let path = below.unwrap_or_else(|| path.to_owned());
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        Ok(format!("/{}", parts.join("/")))
    }
}

impl Hierarchy {
    /// All groups that are seen, from the topmost, at most 20,000.
    #[must_use]
    pub fn groups(&self, controller: Controller) -> Vec<Cgroup> {
        let mut found = Vec::new();
        let mut next = vec![self.root.clone()];
        while let Some(path) = next.pop() {
            let Ok(group) = self.place(controller, &path) else {
                continue;
            };
            if found.len() == MOST_GROUPS {
                break;
            }
            let entries = fs::read_dir(group.folder()).into_iter().flatten().flatten();
            let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            for folder in folders {
                if let Some(name) = folder.file_name().to_str() {
                    next.push(format!("{}/{name}", path.trim_end_matches('/')));
                }
            }
            found.push(group);
        }
        found.sort_by(|a, b| a.path().cmp(b.path()));
        found
    }

    /// Where a group is or would be.
    pub(crate) fn place(&self, controller: Controller, path: &str) -> Result<Cgroup, Error> {
        let folder = self.folder(path).ok_or_else(|| Error::NoGroup {
            path: path.to_owned(),
            controller: controller.name(self.version).to_owned(),
            folder: self.mount.clone(),
        })?;
        Ok(Cgroup::new(
            self.version,
            controller,
            path.to_owned(),
            folder,
        ))
    }

    /// The folder of a path; `None` where the mount does not show it.
    fn folder(&self, path: &str) -> Option<PathBuf> {
        let below = Path::new(path).strip_prefix(&self.root).ok()?;
        Some(self.mount.join(below))
    }
}

/// The path of a process's group, from `/proc/PID/cgroup` (cgroups(7)).
fn path_in<'a>(list: &'a str, version: Version, controller: &str) -> Option<&'a str> {
    list.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, names, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = match version {
            Version::V2 => number == "0" && names.is_empty(),
            Version::V1 => names.split(',').any(|name| name == controller),
        };
        is_it.then_some(path)
    })
}

/// A line of mountinfo: number, parent, device, root, mount, options, optional fields, `-`,
/// type, source, options of the file system.
fn hierarchy(line: &str) -> Option<Hierarchy> {
    let (before, after) = line.split_once(" - ")?;
    let mut after = after.split(' ');
    let (kind, _source, options) = (after.next()?, after.next()?, after.next().unwrap_or(""));
    let mut before = before.split(' ').skip(3);
    let (root, mount) = (
        unescaped(before.next()?)?,
        PathBuf::from(unescaped(before.next()?)?),
    );
    let (version, controllers) = match kind {
        "cgroup2" => {
            let list = file::read(&mount.join("cgroup.controllers")).unwrap_or_default();
            let list = list.split_ascii_whitespace().map(str::to_owned).collect();
            (Version::V2, list)
        }
        // What else is in the options names no controller, and is asked for by nobody.
        "cgroup" => {
            let list = options.split(',').map(str::to_owned).collect();
            (Version::V1, list)
        }
        _ => return None,
    };
    Some(Hierarchy {
        version,
        mount,
        root,
        controllers,
    })
}

/// Blanks, tabs, line ends and backslashes are written in octal.
pub(crate) fn unescaped(field: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|digits| str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsStr::from_bytes(&bytes).to_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
38 31 0:35 / /sys/fs/cgroup/blkio rw,relatime shared:9 - cgroup cgroup rw,blkio
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /nowhere/unified rw,relatime - cgroup2 cgroup2 rw
50 31 0:35 /a /mnt/a\\040part rw,relatime - cgroup cgroup rw,blkio
garbage
";

    #[test]
    fn a_hybrid_machine_has_its_disks_in_version_one() {
        let found = Hierarchies::parse(HYBRID);
        assert_eq!(found.all.len(), 4, "{found:?}");
        let io = found.with(Controller::Io).expect("blkio");
        assert_eq!(io.mount, Path::new("/sys/fs/cgroup/blkio"));
        assert_eq!(io.version, Version::V1);
        let cpu = found.with(Controller::Cpu).expect("cpu");
        assert_eq!(cpu.mount, Path::new("/sys/fs/cgroup/cpu"));
        assert_eq!(found.unified().map(|one| one.controllers.len()), Some(0));
        let none = Hierarchies::parse("22 27 0:21 / /proc rw - proc proc rw\n");
        let error = none.with(Controller::Io).expect_err("none");
        assert!(error.to_string().contains("blkio"), "{error}");
    }

    #[test]
    fn paths_are_those_of_proc_or_folders_below_a_mount() {
        let found = Hierarchies::parse(HYBRID);
        for (given, path) in [
            ("/system.slice/db", "/system.slice/db"),
            ("/a//b/", "/a/b"),
            ("/sys/fs/cgroup/blkio/a", "/a"),
            ("/", "/"),
        ] {
            assert_eq!(found.path(given).expect("a path"), path);
        }
        for given in ["", "a", "/a/../b", "/./a", "/a\0"] {
            assert!(found.path(given).is_err(), "{given}");
        }
    }

    #[test]
    fn a_part_of_a_hierarchy_shows_what_is_below_its_root() {
        let line = "9 8 0:35 /docker/1 /sys/fs/cgroup/blkio ro - cgroup cgroup rw,blkio\n";
        let found = Hierarchies::parse(line);
        let io = found.with(Controller::Io).expect("blkio");
        let folder = |path: &str| io.folder(path);
        let mount = Path::new("/sys/fs/cgroup/blkio");
        assert_eq!(folder("/docker/1/x"), Some(mount.join("x")));
        assert_eq!(folder("/docker/2"), None);
        let path = found.path("/sys/fs/cgroup/blkio/x").expect("a path");
        assert_eq!(path, "/docker/1/x");
    }

    #[test]
    fn the_group_of_a_process_is_that_of_the_controller() {
        let list = "4:cpu,cpuacct:/a:b\n3:name=systemd:/s\n0::/u\n";
        assert_eq!(path_in(list, Version::V1, "cpu"), Some("/a:b"));
        assert_eq!(path_in(list, Version::V2, "io"), Some("/u"));
        assert_eq!(path_in(list, Version::V1, "blkio"), None);
        assert_eq!(path_in("\n1:\n", Version::V2, "io"), None);
    }

    #[test]
    fn escapes_of_mounts_are_taken_out() {
        assert_eq!(unescaped("/a\\040b\\134").as_deref(), Some("/a b\\"));
        assert_eq!(unescaped("/a\\04").as_deref(), Some("/a\\04"));
        assert_eq!(unescaped("\\777\\377"), None);
    }
}
