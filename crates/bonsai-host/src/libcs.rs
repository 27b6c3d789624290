//! The C libraries of a root file system: where they are, whose, of which version, and what their code tells of their system calls.
//!
//! A root may belong to a container or a tenant: nothing of it is run here, no link leads out of it, and only regular files are opened
//! for reading. What answers for its files may be a program of theirs (FUSE), so a look may last: do it in a process that can be killed.

mod places;
mod version;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;

use crate::Error;
use crate::elf::LibcFlavour;
use crate::libs::{LibSites, libc_sites, moved_sites};

/// Program that moves the bytes of its standard input through the C library of the loader that it is started with, by each of
/// [`WAYS`], first on one thread and then on a second one.
pub const PROBE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libc-probe"));

/// Times that [`PROBE`] moves the length of its input: by stdio and by functions on its first thread, then by both on its second. Every
/// sum of some of these is another number.
pub const WAYS: [u64; 4] = [1, 2, 4, 8];

/// Exit code of [`PROBE`] where the C library has no threads: before glibc 2.34, those are in a library of their own.
pub const NO_THREADS: i32 = 3;

/// A C library, and the loader that programs get it by.
#[derive(Debug)]
pub struct RootLibc {
    /// The loader, without symbolic links: a path of the mount namespace that the root is of.
    pub loader: PathBuf,
    /// The library, by such a path; of musl, the same file.
    pub libc: PathBuf,
    /// Kind of library.
    pub flavour: LibcFlavour,
    /// Version, such as `2.36`; `None` where the file does not tell.
    pub version: Option<String>,
    /// The library's file: its path may be another file's here.
    file: OwnedFd,
}

/// System calls of a C library, as its code tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LibcCode {
    /// Number of instructions that are replaced in a process.
    pub replaced: usize,
    /// Numbers of calls of which an instruction is not, in ascending order.
    pub left: Vec<u16>,
    /// Build identifier; empty without one.
    pub build_id: Vec<u8>,
}

/// Longer files are no C libraries.
const LONGEST: u64 = 64 << 20;

/// The C libraries in the usual places of the root file system that `root` names, each once.
///
/// # Errors
/// `root` cannot be opened.
pub fn libcs_in(root: &Path) -> Result<Vec<RootLibc>, Error> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat(CWD, root, flags, Mode::empty());
    let root = opened.map_err(|source| Error::read(root, source))?;
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (folder, loader) in places::loaders(&root) {
        let Some((file, at)) = open_below(&root, &loader) else {
            continue;
        };
        let flavour = flavour(&at);
        let libc = match flavour {
            LibcFlavour::Musl => Some((file, at.clone())),
            _ => beside(&root, &folder),
        };
        let Some((file, libc)) = libc else { continue };
        let Ok(stat) = fstat(&file) else { continue };
        if seen.insert((stat.st_dev, stat.st_ino)) {
            let version = version::of(&file, flavour);
            let is_text = at.ends_with("libc.so") && version.is_none();
            if is_text {
                continue;
            }
            found.push(RootLibc {
                loader: at,
                libc,
                flavour,
                version,
                file,
            });
        }
    }
    Ok(found)
}

/// glibc's library: beside its loader, or else in a usual place of that root.
fn beside(root: &OwnedFd, folder: &Path) -> Option<(OwnedFd, PathBuf)> {
    let folders = [folder].into_iter().chain(places::FOLDERS.map(Path::new));
    let mut files = folders.map(|folder| folder.join("libc.so.6"));
    files.find_map(|path| open_below(root, &path))
}

fn flavour(loader: &Path) -> LibcFlavour {
    let name = loader.file_name().unwrap_or_default().as_encoded_bytes();
    if name.starts_with(b"ld-musl") || name == b"libc.so" {
        LibcFlavour::Musl
    } else {
        LibcFlavour::Glibc
    }
}

/// A regular file of a root, with links followed within that, and its path as seen from here.
fn open_below(root: &OwnedFd, path: &Path) -> Option<(OwnedFd, PathBuf)> {
    // A device or a pipe is not to be opened: that may do something.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let found = match openat2(root, path, flags, Mode::empty(), within) {
        // Before Linux 5.6: links that are absolute lead to this machine's own.
        Err(Errno::NOSYS) => openat(root, path, flags, Mode::empty()),
        found => found,
    };
    let found = found.ok()?;
    let stat = fstat(&found).ok()?;
    let size = u64::try_from(stat.st_size).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || size > LONGEST {
        return None;
    }
    let path = std::fs::read_link(path_of(&found)).ok()?;
    Some((found, path))
}

/// Path by which the file behind a descriptor can be opened, wherever it is.
fn path_of(file: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// The contents of a file that was opened by its path only.
fn read(file: &OwnedFd) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path_of(file)).ok()?;
    file.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

impl RootLibc {
    /// Looks through the code of the library, as a process does at its start.
    ///
    /// # Errors
    /// As [`libc_sites`].
    pub fn code(&self) -> Result<LibcCode, Error> {
        let libc = path_of(&self.file);
        let LibSites {
            build_id, sites, ..
        } = libc_sites(&libc)?;
        let is_replaced = |offset: u32| {
            let mut same = sites.iter().filter(|site| site.offset == offset);
            same.any(|site| !site.is_moved() || site.back > 0)
        };
        let all = moved_sites(&libc)?.sites;
        let left = all.iter().filter(|site| !is_replaced(site.offset));
        let left: BTreeSet<u16> = left.map(|site| site.nr).collect();
        Ok(LibcCode {
            replaced: all.iter().filter(|site| is_replaced(site.offset)).count(),
            left: left.into_iter().collect(),
            build_id,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machines_own_library_is_found_with_its_version() {
        let found = libcs_in(Path::new("/")).expect("a root");
        let own = crate::libs::find_libc(Path::new("/lib64/ld-linux-x86-64.so.2"));
        let own = own.expect("a libc").libc;
        let libc = found.iter().find(|found| found.libc == own);
        let libc = libc.unwrap_or_else(|| panic!("{own:?} is not among {found:?}"));
        assert_eq!(libc.flavour, LibcFlavour::Glibc);
        let version = libc.version.as_deref().expect("a version");
        assert!(version.starts_with("2."), "{version}");
        let code = libc.code().expect("code");
        assert!(code.replaced > 100, "{code:?}");
    }

    #[test]
    fn links_stay_within_the_root_and_pipes_are_left_alone() {
        let root = tempfile::tempdir().expect("a folder");
        let lib = root.path().join("lib64");
        std::fs::create_dir(&lib).expect("a folder");
        let loader = lib.join("ld-linux-x86-64.so.2");
        std::os::unix::fs::symlink("/lib64/real.so", &loader).expect("a link");
        // There on this machine, and not in that root.
        std::os::unix::fs::symlink("/etc/passwd", lib.join("libc.so.6")).expect("a link");
        assert!(libcs_in(root.path()).expect("a root").is_empty());
        rustix::fs::mknodat(
            CWD,
            lib.join("real.so"),
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .expect("a pipe");
        assert!(libcs_in(root.path()).expect("a root").is_empty());
    }
}
