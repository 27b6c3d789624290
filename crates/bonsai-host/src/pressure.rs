//! Pressure: for how long somebody had to wait for a resource (PSI,
//! Documentation/accounting/psi.rst), on the machine and in a control group.

use std::fs;
use std::path::{Path, PathBuf};

/// A resource that the kernel keeps the pressure of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// CPUs.
    Cpu,
    /// Block devices.
    Io,
}

impl Resource {
    const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Io => "io",
        }
    }
}

/// For how long at least one task of the machine had to wait for a resource since it started, us.
/// `None` where the kernel does not keep it (built without, or started with `psi=0`).
#[must_use]
pub fn of_machine(resource: Resource) -> Option<u64> {
    some_us(&Path::new("/proc/pressure").join(resource.name()))
}

/// The same of a control group.
#[must_use]
pub fn of_group(group: &Path, resource: Resource) -> Option<u64> {
    some_us(&group.join(format!("{}.pressure", resource.name())))
}

/// The folder of a process's control group (version 2); `None` where there is none, and for the
/// root group, which is the machine.
#[must_use]
pub fn group_of(pid: u32) -> Option<PathBuf> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    group(&groups, &mounts)
}

fn group(groups: &str, mounts: &str) -> Option<PathBuf> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mount = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let folder = fields.next()?;
        (fields.next()? == "cgroup2").then_some(folder)
    })?;
    (!path.is_empty()).then(|| Path::new(mount).join(path))
}

fn some_us(file: &Path) -> Option<u64> {
    parse(&fs::read_to_string(file).ok()?)
}

/// The total of the line `some`.
fn parse(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some.split(' ').find_map(|word| word.strip_prefix("total="));
    total?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_of_some() {
        let text = "some avg10=4.63 avg60=4.33 avg300=1.29 total=71280062\n\
                    full avg10=4.18 avg60=3.96 avg300=1.12 total=38417717\n";
        assert_eq!(parse(text), Some(71_280_062));
        assert_eq!(parse("full avg10=0 total=3\n"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn the_group_of_version_two() {
        let mounts = "proc /proc proc rw 0 0\n\
                      cgroup /sys/fs/cgroup/blkio cgroup rw,blkio 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let found = group("3:cpu:/x\n0::/a/b.scope\n", mounts);
        assert_eq!(
            found.as_deref(),
            Some(Path::new("/sys/fs/cgroup/unified/a/b.scope"))
        );
        assert_eq!(group("0::/\n", mounts), None);
        assert_eq!(group("3:cpu:/x\n", mounts), None);
        assert_eq!(group("0::/a\n", "proc /proc proc rw 0 0\n"), None);
    }
}
