//! Control groups: which versions are mounted, with which controllers.

use std::fs;
use std::path::Path;

use super::{Capability, State};

/// The controllers that limit I/O from outside a process.
const IO_CONTROLLERS: [&str; 2] = ["io", "blkio"];

pub(super) fn controllers() -> Capability {
    let name = "cgroup_io";
    let mounts = match fs::read_to_string("/proc/self/mounts") {
        Ok(mounts) => mounts,
        Err(error) => {
            return Capability::new(name, State::Unknown, format!("/proc/self/mounts: {error}"));
        }
    };
    let v2 = |mount: &str| {
        let list = fs::read_to_string(Path::new(mount).join("cgroup.controllers"));
        list.map(|list| list.split_ascii_whitespace().map(str::to_owned).collect())
            .unwrap_or_default()
    };
    let found = parse(&mounts, v2);
    let list = |version: &str, controllers: &[String]| {
        (!controllers.is_empty()).then(|| format!("{version}: {}", controllers.join(" ")))
    };
    let parts = [list("v2", &found.v2), list("v1", &found.v1)];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let mut all = found.v1.iter().chain(&found.v2);
    let has_io = all.any(|controller| IO_CONTROLLERS.contains(&controller.as_str()));
    let detail = if parts.is_empty() {
        "no controller is mounted".to_owned()
    } else {
        parts.join("; ")
    };
    let state = if has_io { State::Yes } else { State::No };
    Capability::new(name, state, detail)
}

/// Controllers by version, each sorted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Controllers {
    v1: Vec<String>,
    v2: Vec<String>,
}

/// The controllers that version 1 ever had. Its mount options name those of a hierarchy among other
/// things.
const V1_CONTROLLERS: [&str; 14] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "misc",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
    "rdma",
];

fn parse(mounts: &str, v2_controllers: impl Fn(&str) -> Vec<String>) -> Controllers {
    let mut found = Controllers::default();
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        let (Some(mount), Some(kind), Some(options)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        match kind {
            "cgroup2" => found.v2.extend(v2_controllers(mount)),
            "cgroup" => {
                let is_controller = |option: &&str| V1_CONTROLLERS.contains(option);
                let controllers = options.split(',').filter(is_controller);
                found.v1.extend(controllers.map(str::to_owned));
            }
            _ => {}
        }
    }
    for list in [&mut found.v1, &mut found.v2] {
        list.sort();
        list.dedup();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Controllers, parse};

    fn controllers(v1: &[&str], v2: &[&str]) -> Controllers {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Controllers {
            v1: list(v1),
            v2: list(v2),
        }
    }

    #[test]
    fn unified_hybrid_and_none() {
        let v2 = |mount: &str| {
            assert_eq!(mount, "/sys/fs/cgroup");
            vec!["memory".to_owned(), "io".to_owned()]
        };
        let unified = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nsdelegate 0 0\n";
        assert_eq!(parse(unified, v2), controllers(&[], &["io", "memory"]));
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/blkio cgroup rw,relatime,blkio 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu,cpuacct 0 0\n\
                      cgroup /sys/fs/cgroup/systemd cgroup rw,xattr,name=systemd 0 0\n";
        assert_eq!(
            parse(hybrid, v2),
            controllers(&["blkio", "cpu", "cpuacct"], &[])
        );
        assert_eq!(
            parse("proc /proc proc rw 0 0\n", v2),
            Controllers::default()
        );
    }
}
