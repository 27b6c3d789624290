//! Translation of user, group and process ids between the namespaces of a program and those of the supervisor
//! (user_namespaces(7), pid_namespaces(7)).

use std::fs::{File, metadata, read_to_string};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::MetadataExt as _;

/// Id of users and groups without a mapping (the default of `/proc/sys/kernel/overflowuid`).
const NOBODY: u32 = 65_534;

/// A process, a user and a group, as in `struct ucred`.
pub(crate) type Who = (u32, u32, u32);

/// Users or groups of a user namespace: the first there, the first here, and how many.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Map(Vec<[u32; 3]>);

impl Map {
    fn read(path: &str) -> io::Result<Self> {
        let text = read_to_string(path)?;
        let line = |line: &str| {
            let numbers = line.split_whitespace().map(|word| word.parse().ok());
            let numbers: Option<Vec<u32>> = numbers.collect();
            <[u32; 3]>::try_from(numbers?).ok()
        };
        let lines: Option<Vec<_>> = text.lines().map(line).collect();
        lines.map(Self).ok_or_else(invalid)
    }

    fn ours(&self, theirs: u32) -> Option<u32> {
        self.0.iter().find_map(|[there, here, count]| {
            let at = theirs.checked_sub(*there).filter(|at| at < count)?;
            here.checked_add(at)
        })
    }

    fn theirs(&self, ours: u32) -> u32 {
        let found = self.0.iter().find_map(|[there, here, count]| {
            let at = ours.checked_sub(*here).filter(|at| at < count)?;
            there.checked_add(at)
        });
        found.unwrap_or(NOBODY)
    }
}

/// How a thread calls others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    /// Users and groups, in a user namespace that is not ours.
    maps: Option<[Map; 2]>,
    /// In a process namespace that is not ours.
    has_own_numbers: bool,
    /// That belongs to its user namespace.
    rules_processes: bool,
}

fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

fn namespace(folder: &str, which: &str) -> io::Result<u64> {
    metadata(format!("{folder}/ns/{which}")).map(|of| of.ino())
}

/// The user namespace that owns a process namespace (ioctl_nsfs(2)).
fn owner_of(folder: &str) -> io::Result<u64> {
    const OWNER: libc::c_ulong = 0xb701;
    let namespace = File::open(format!("{folder}/ns/pid"))?;
    // SAFETY: plain numbers.
    let made = unsafe { libc::ioctl(namespace.as_raw_fd(), OWNER) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else has.
    let owner = unsafe { File::from_raw_fd(made) };
    owner.metadata().map(|of| of.ino())
}

impl Names {
    /// Those of a thread, by its folder in `/proc`.
    pub(crate) fn read(folder: &str) -> io::Result<Self> {
        let differs = |which| {
            Ok::<_, io::Error>(namespace(folder, which)? != namespace("/proc/self", which)?)
        };
        let map = |which: &str| Map::read(&format!("{folder}/{which}_map"));
        let maps = match differs("user")? {
            true => Some([map("uid")?, map("gid")?]),
            false => None,
        };
        let has_own_numbers = differs("pid")?;
        let rules = || Ok::<_, io::Error>(owner_of(folder)? == namespace(folder, "user")?);
        Ok(Self {
            rules_processes: maps.is_none() || has_own_numbers && rules()?,
            maps,
            has_own_numbers,
        })
    }

    /// Whether the maps are written: once, after the namespace was made (user_namespaces(7)).
    pub(crate) fn are_final(&self) -> bool {
        let maps = self.maps.as_ref();
        maps.is_none_or(|maps| maps.iter().all(|map| !map.0.is_empty()))
    }

    /// In a user namespace that is not ours: its capabilities are none here.
    pub(crate) const fn are_foreign(&self) -> bool {
        self.maps.is_some()
    }

    /// Whether its capabilities are some over the processes that it can name.
    pub(crate) const fn rule_processes(&self) -> bool {
        self.rules_processes
    }

    /// A user and a group of theirs.
    pub(crate) fn ours(&self, ids: [u32; 2]) -> Option<[u32; 2]> {
        match &self.maps {
            None => Some(ids),
            Some([users, groups]) => Some([users.ours(ids[0])?, groups.ours(ids[1])?]),
        }
    }

    /// Translates received credentials for process `by`.
    pub(crate) fn theirs(&self, (pid, user, group): Who, by: u32) -> Who {
        let pid = match self.has_own_numbers {
            true => number_in(pid, by).unwrap_or(0),
            false => pid,
        };
        match &self.maps {
            None => (pid, user, group),
            Some([users, groups]) => (pid, users.theirs(user), groups.theirs(group)),
        }
    }

    /// Translates the process id `said` of the namespace of process `by`.
    ///
    /// # Errors
    /// `ESRCH`: no such process.
    pub(crate) fn process(&self, said: u32, by: u32) -> io::Result<u32> {
        if !self.has_own_numbers {
            return Ok(said);
        }
        let own = namespace(&format!("/proc/{by}"), "pid")?;
        let numbers = std::fs::read_dir("/proc")?.flatten();
        let mut pids = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_it = |pid: &u32| {
            let folder = format!("/proc/{pid}");
            let is_there = namespace(&folder, "pid").is_ok_and(|namespace| namespace == own);
            is_there && innermost(&folder) == Some(said)
        };
        pids.find(is_it)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
    }
}

/// A file of `/proc`: the name of a program in it may be any bytes.
pub(crate) fn text_of(path: &str) -> io::Result<String> {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// What a process calls itself.
fn innermost(folder: &str) -> Option<u32> {
    innermost_of(&text_of(&format!("{folder}/status")).ok()?)
}

/// The same, by its status.
pub(crate) fn innermost_of(status: &str) -> Option<u32> {
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("NStgid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

/// What the process `by` calls another one; none if it cannot see it. What is in a namespace below its own is taken for unseen.
fn number_in(pid: u32, by: u32) -> Option<u32> {
    let folder = format!("/proc/{pid}");
    let own = namespace(&folder, "pid").ok()?;
    let theirs = namespace(&format!("/proc/{by}"), "pid").ok()?;
    (own == theirs).then(|| innermost(&folder)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_mapped_both_ways() {
        let map = Map(vec![[0, 1000, 1], [1, 100_000, 65_536]]);
        assert_eq!(map.ours(0), Some(1000));
        assert_eq!(map.ours(65_536), Some(165_535));
        assert_eq!(map.ours(65_537), None);
        assert_eq!(map.theirs(1000), 0);
        assert_eq!(map.theirs(100_001), 2);
        assert_eq!(map.theirs(0), NOBODY);
        let names = Names {
            maps: Some([map.clone(), map]),
            ..Names::default()
        };
        assert_eq!(names.ours([0, 1]), Some([1000, 100_000]));
        assert_eq!(names.ours([0, u32::MAX]), None);
        assert_eq!(names.theirs((7, 1000, 5), 1), (7, 0, NOBODY));
        assert!(names.are_final() && Names::default().are_final());
        let unmapped = Names {
            maps: Some([Map(Vec::new()), Map(Vec::new())]),
            ..Names::default()
        };
        assert!(!unmapped.are_final());
    }

    #[test]
    fn our_own_names_are_as_they_are() {
        let names = Names::read("/proc/thread-self").expect("our own");
        assert!(!names.are_foreign() && !names.has_own_numbers && names.rules_processes);
        let own = std::process::id();
        assert_eq!(names.process(own, own).ok(), Some(own));
        let numbered = Names {
            has_own_numbers: true,
            ..names
        };
        assert_eq!(numbered.process(own, own).ok(), Some(own));
        assert_eq!(numbered.theirs((own, 1, 2), own), (own, 1, 2));
        assert!(numbered.process(u32::MAX, own).is_err());
    }
}
