//! Network namespaces: which there are, what they are called, and a descriptor of one.
//!
//! A namespace is known by device and inode of its file in nsfs (namespaces(7)); no two that exist
//! at one time have both in common. It lives while a process is in it, a descriptor is open, or its
//! file is mounted somewhere (ip-netns(8)). The last is how it gets a name.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::TenantError;
use super::ioctl;
use super::roots::{Roots, names_in, read};

/// What a namespace is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NsId {
    /// Device of its file: that of nsfs.
    pub device: u64,
    /// Inode number of its file, such as 4026531840.
    pub inode: u64,
}

impl NsId {
    pub(super) const fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }
}

/// A network namespace at the time of the look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// What it is known by.
    pub id: NsId,
    /// Whether this process is in it.
    pub own: bool,
    /// Its names, and the files that keep it alive.
    pub names: Vec<(String, PathBuf)>,
    /// How many processes are in it (their main threads: others may be elsewhere).
    pub processes: usize,
    /// The process of these that started first.
    pub first: Option<u32>,
}

/// A descriptor of a network namespace, for setns(2) or `IFLA_NET_NS_FD`.
#[derive(Debug)]
pub struct OpenNetns {
    /// The descriptor, closed on exec.
    pub fd: OwnedFd,
    /// What the namespace is known by.
    pub id: NsId,
}

/// Named namespaces of a look.
pub(super) type Names = BTreeMap<NsId, Vec<(String, PathBuf)>>;

/// Where engines and ip-netns(8) mount namespaces.
fn folders(roots: &Roots) -> [PathBuf; 3] {
    [
        roots.run.join("netns"),
        roots.var.join("run/netns"),
        roots.run.join("docker/netns"),
    ]
}

/// All names. What lies in these folders and is no namespace (a file that stays when its mount has
/// gone) is on another device than `own`, and left out.
pub(super) fn names(roots: &Roots, own: NsId) -> Names {
    let mut names = Names::new();
    for folder in folders(roots) {
        // One folder may be a link to the other.
        for name in names_in(&folder) {
            add(&mut names, own, name.clone(), folder.join(name));
        }
    }
    // Mounted elsewhere: by root and other users' engines, or by hand.
    let mounts = read(&roots.proc.join("self/mountinfo"), 4 << 20).unwrap_or_default();
    for path in mounted(&String::from_utf8_lossy(&mounts)) {
        add(&mut names, own, path.clone(), PathBuf::from(path));
    }
    names
}

fn add(names: &mut Names, own: NsId, name: String, path: PathBuf) {
    let Ok(stat) = rustix::fs::statat(CWD, &path, AtFlags::empty()) else {
        return;
    };
    let id = NsId::of(&stat);
    if id.device != own.device {
        return;
    }
    let of_this = names.entry(id).or_default();
    let last = |path: &Path| path.file_name().map(ToOwned::to_owned);
    if !of_this.iter().any(|(_, other)| last(other) == last(&path)) {
        of_this.push((name, path));
    }
}

/// Where network namespaces are mounted (proc_pid_mountinfo(5): fields 4 and 5 are root and mount
/// point; the type follows a lone hyphen).
fn mounted(mountinfo: &str) -> Vec<String> {
    let of_line = |line: &str| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let is_netns = fields.next()?.starts_with("net:[") && kind.starts_with("nsfs ");
        is_netns.then(|| super::group_files::unescape_octal(fields.next().unwrap_or_default()))
    };
    mountinfo.lines().filter_map(of_line).take(10_000).collect()
}

/// Opens the network namespace that a user named: a name in `run/netns`, the absolute path of a
/// namespace's file, or the number of a process in it. A name that is a number counts as a name
/// first, as ip-link(8) has it.
///
/// # Errors
/// [`TenantError`] if the name is none, nothing has that name, or it is no network namespace.
pub fn open(roots: &Roots, name: &str) -> Result<OpenNetns, TenantError> {
    if name.starts_with('/') {
        if name.split('/').any(|part| part == "..") {
            return Err(TenantError::netns_name(name));
        }
        return open_path(Path::new(name));
    }
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(TenantError::netns_name(name));
    }
    for folder in folders(roots) {
        let path = folder.join(name);
        if fs::symlink_metadata(&path).is_ok() {
            return open_path(&path);
        }
    }
    if let Ok(pid) = name.parse::<u32>() {
        return open_path(&roots.proc.join(format!("{pid}/ns/net"))).map_err(|error| match error {
            TenantError::Read { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                TenantError::NoProcess { pid }
            }
            error => error,
        });
    }
    let mut known = names_in(&roots.run.join("netns"));
    known.sort();
    Err(TenantError::unknown("network namespace", name, &known))
}

/// Opens the file of a network namespace.
///
/// # Errors
/// [`TenantError::Read`] if it cannot be opened, [`TenantError::NotANetns`] if it is something
/// else.
pub fn open_path(path: &Path) -> Result<OpenNetns, TenantError> {
    // A pipe must not make us wait. PATH first, since opening a device can do things.
    let read = |errno: Errno| TenantError::read(path, errno);
    let not = || TenantError::NotANetns {
        path: path.to_owned(),
    };
    let place =
        rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(read)?;
    let kind = rustix::fs::fstat(&place).map_err(read)?.st_mode;
    if rustix::fs::FileType::from_raw_mode(kind) != rustix::fs::FileType::RegularFile {
        return Err(not());
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(read)?;
    if !ioctl::is_netns(fd.as_fd()) {
        return Err(not());
    }
    let id = NsId::of(&rustix::fs::fstat(&fd).map_err(read)?);
    Ok(OpenNetns { fd, id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_network_namespaces() {
        let text = "24 1 0:21 / /proc rw - proc proc rw\n\
            91 30 0:4 net:[4026532240] /run/netns/vod rw shared:9 - nsfs nsfs rw\n\
            92 30 0:4 net:[4026532241] /run/a\\040b rw - nsfs nsfs rw\n\
            93 30 0:4 mnt:[4026532242] /run/snapd/ns/x.mnt rw - nsfs nsfs rw\n\
            94 30 0:4 net:[1] /x rw - tmpfs nsfs rw\nx - nsfs \n";
        assert_eq!(mounted(text), ["/run/netns/vod", "/run/a b"]);
    }
}
