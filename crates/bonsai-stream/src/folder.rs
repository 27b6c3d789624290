//! A folder that files are opened in, and nothing outside it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, StatxFlags, fstat, makedev, openat2, statx,
};
use rustix::io::Errno;

/// Which file it is, and whether it is still the same in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub(crate) file: (u64, u64),
    /// How long it is.
    pub bytes: u64,
    pub(crate) changed: (i64, i64),
}

impl Stamp {
    /// Of a file that is open.
    ///
    /// # Errors
    /// What the system says.
    pub fn of(file: &impl AsFd) -> io::Result<Self> {
        let known = fstat(file)?;
        Ok(Self {
            file: (known.st_dev, known.st_ino),
            bytes: u64::try_from(known.st_size).unwrap_or(0),
            changed: (
                known.st_mtime,
                i64::try_from(known.st_mtime_nsec).unwrap_or(0),
            ),
        })
    }

    /// The same as far as this machine knows: a file system that has to ask for it, as NFS and FUSE, is not waited
    /// for.
    pub(crate) fn known(file: &impl AsFd) -> io::Result<Self> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let known = match statx(file, "", flags, StatxFlags::BASIC_STATS) {
            Ok(known) => known,
            // A filter of system calls may not know it.
            Err(Errno::NOSYS | Errno::PERM) => return Self::of(file),
            Err(errno) => return Err(errno.into()),
        };
        Ok(Self {
            file: (
                makedev(known.stx_dev_major, known.stx_dev_minor),
                known.stx_ino,
            ),
            bytes: known.stx_size,
            changed: (known.stx_mtime.tv_sec, i64::from(known.stx_mtime.tv_nsec)),
        })
    }

    /// Whether it is that file, as long as it was. Its times may be others: of a film that is touched, or has its tags
    /// written, every sample is where it was.
    pub(crate) fn is_as_long_as(&self, before: &Self) -> bool {
        (self.file, self.bytes) == (before.file, before.bytes)
    }

    /// When it was changed last; 1970 for what is older.
    #[must_use]
    pub fn modified(&self) -> SystemTime {
        let (seconds, ns) = self.changed;
        let since = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        SystemTime::UNIX_EPOCH + since + Duration::from_nanos(u64::try_from(ns).unwrap_or(0))
    }
}

/// A file that is open.
#[derive(Debug)]
pub struct Opened {
    /// It.
    pub file: File,
    /// What it was when it was opened.
    pub stamp: Stamp,
}

/// Why a file is not opened.
#[derive(Debug, thiserror::Error)]
pub enum Unfound {
    /// There is none.
    #[error("there is no such file")]
    Missing,
    /// It would be one outside the folder.
    #[error("a link leads out of the folder that is served")]
    Outside,
    /// Whoever serves it may not read it.
    #[error("it may not be read")]
    Denied,
    /// It is a folder, a queue, a device.
    #[error("it is no file")]
    NoFile,
    /// The disk, or the machine.
    #[error("{0}")]
    Disk(#[source] io::Error),
}

impl From<Errno> for Unfound {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => Self::Missing,
            Errno::XDEV | Errno::LOOP => Self::Outside,
            Errno::ACCESS | Errno::PERM => Self::Denied,
            errno => Self::Disk(errno.into()),
        }
    }
}

/// What is in a folder under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A folder.
    Folder,
    /// A file, or a link, which may lead to one.
    File,
}

/// The folder. It stays the same when it is moved, or another one gets its name.
#[derive(Debug)]
pub struct Folder {
    folder: OwnedFd,
    links: ResolveFlags,
}

impl Folder {
    /// Opens it. Symbolic links in it are followed, as long as they stay in it.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            folder: rustix::fs::open(path, flags, Mode::empty())?,
            links: ResolveFlags::NO_MAGICLINKS,
        })
    }

    /// The same, with no symbolic link followed.
    #[must_use]
    pub fn without_links(self) -> Self {
        Self {
            links: ResolveFlags::NO_SYMLINKS,
            ..self
        }
    }

    /// Opens a file in it, to be read.
    ///
    /// # Errors
    /// There is none, it is outside, or it cannot be read.
    pub fn file(&self, path: &str) -> Result<Opened, Unfound> {
        // A queue would be waited for by whoever opens it.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(self.resolved(path, flags)?);
        if !file.metadata().map_err(Unfound::Disk)?.is_file() {
            return Err(Unfound::NoFile);
        }
        let stamp = Stamp::of(&file).map_err(Unfound::Disk)?;
        Ok(Opened { file, stamp })
    }

    /// What is in a folder of it; `.` is itself. Names that are no UTF-8, and what is neither a file nor a
    /// folder, are left out; no more than `most` are looked at.
    ///
    /// # Errors
    /// There is none, it is outside, or it cannot be read.
    pub fn entries(&self, path: &str, most: usize) -> Result<Vec<(String, Kind)>, Unfound> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = self.resolved(path, flags)?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&folder)?.take(most) {
            let entry = entry?;
            let kind = match entry.file_type() {
                FileType::Directory => Kind::Folder,
                // A file system that does not tell has files as far as is known.
                FileType::RegularFile | FileType::Symlink | FileType::Unknown => Kind::File,
                _ => continue,
            };
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_str();
            if let Some(name) = name.filter(|name| !matches!(*name, "." | "..")) {
                entries.push((name.to_owned(), kind));
            }
        }
        Ok(entries)
    }

    fn resolved(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Unfound> {
        let resolve = ResolveFlags::BENEATH | self.links;
        Ok(openat2(&self.folder, path, flags, Mode::empty(), resolve)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn nothing_outside_is_opened() {
        let place = tempfile::tempdir().expect("a folder");
        let root = place.path().join("clips");
        fs::create_dir_all(root.join("deep")).expect("made");
        fs::write(place.path().join("secret"), "secret").expect("written");
        fs::write(root.join("deep/a.mp4"), "a").expect("written");
        symlink("deep/a.mp4", root.join("inside.mp4")).expect("linked");
        symlink("../secret", root.join("outside.mp4")).expect("linked");
        symlink(place.path().join("secret"), root.join("absolute.mp4")).expect("linked");
        let folder = Folder::open(&root).expect("a folder");
        assert_eq!(folder.file("deep/a.mp4").expect("a file").stamp.bytes, 1);
        folder.file("inside.mp4").expect("a link that stays inside");
        for path in ["outside.mp4", "absolute.mp4", "../secret", "/etc/passwd"] {
            let said = folder.file(path).expect_err(path);
            assert!(matches!(said, Unfound::Outside), "{path}: {said:?}");
        }
        assert!(matches!(folder.file("deep"), Err(Unfound::NoFile)));
        assert!(matches!(folder.file("b.mp4"), Err(Unfound::Missing)));
        let mut all = folder.entries(".", 100).expect("entries");
        all.sort_by(|a, b| a.0.cmp(&b.0));
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["absolute.mp4", "deep", "inside.mp4", "outside.mp4"]);
        assert!(folder.entries("..", 100).is_err());
        let strict = folder.without_links();
        strict.file("deep/a.mp4").expect("no link");
        assert!(matches!(strict.file("inside.mp4"), Err(Unfound::Outside)));
    }
}
