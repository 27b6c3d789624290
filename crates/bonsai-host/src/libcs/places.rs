//! Where C libraries lie in a root file system.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

/// Folders of distributions, and of programs that bring a library along, from the root on; first the root itself.
pub(super) const FOLDERS: [&str; 14] = [
    "",
    "lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "lib64",
    "usr/lib64",
    "lib",
    "usr/lib",
    "lib/x86_64-linux-musl",
    "usr/lib/x86_64-linux-musl",
    "usr/lib/musl/lib",
    "usr/local/lib",
    "usr/local/lib64",
    "usr/local/musl/lib",
    // Homebrew's.
    "home/linuxbrew/.linuxbrew/lib",
];

/// Folders of which each entry may have a C library: the folder, part of the entry's name, and where in the entry.
const FOLDERS_OF_MANY: [(&str, &str, &[&str]); 3] = [
    (
        "opt",
        "",
        &["lib", "lib64", "usr/lib", "glibc/lib", "musl/lib"],
    ),
    ("nix/store", "-glibc-", &["lib"]),
    ("gnu/store", "-glibc-", &["lib"]),
];

/// Entries of a folder that are looked at.
const MOST: usize = 10_000;

/// Loaders by their names; of musl, the library itself is one.
const NAMES: [&str; 3] = ["ld-linux-x86-64.so.2", "ld-musl-x86_64.so.1", "ld.so"];

/// Paths where a loader may be, from the root on, each with its folder.
pub(super) fn loaders(root: &OwnedFd) -> Vec<(PathBuf, PathBuf)> {
    let mut folders: Vec<PathBuf> = FOLDERS.map(PathBuf::from).into();
    for (folder, part, within) in FOLDERS_OF_MANY {
        for name in names_in(root, Path::new(folder)) {
            if name.to_string_lossy().contains(part) {
                folders.extend(
                    within
                        .iter()
                        .map(|at| Path::new(folder).join(&name).join(at)),
                );
            }
        }
    }
    let in_folder = |folder: PathBuf| {
        // Debian's, Void's and others' folders of musl have it by this name, which is a text for linkers in those of glibc.
        let is_musls = folder.as_os_str().is_empty() || folder.to_string_lossy().contains("musl");
        let names = NAMES.iter().chain(is_musls.then_some(&"libc.so"));
        let paths: Vec<_> = names
            .map(|name| (folder.clone(), folder.join(name)))
            .collect();
        paths
    };
    folders.into_iter().flat_map(in_folder).collect()
}

/// The names in a folder of a root; none if it cannot be read.
fn names_in(root: &OwnedFd, folder: &Path) -> Vec<std::ffi::OsString> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let opened = match openat2(root, folder, flags, Mode::empty(), within) {
        Err(Errno::NOSYS) => openat(root, folder, flags, Mode::empty()),
        opened => opened,
    };
    let entries = opened.and_then(Dir::new).into_iter().flatten().flatten();
    entries
        .take(MOST)
        .map(|entry| {
            let name = entry.file_name().to_bytes();
            <OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name).to_owned()
        })
        .filter(|name| name != "." && name != "..")
        .collect()
}
