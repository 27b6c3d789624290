//! Groups as files: making, opening and checking them.

use super::{GROUP_LEN, GROUP_MAGIC, GROUP_VERSION, GroupSegment};
use crate::mapping::{LedgerError, load_text, reserve, store_text};
use crate::sync::Ordering;
use rustix::fs::{FileType, Gid, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// A mapped group.
#[derive(Debug)]
pub struct Group {
    base: *mut core::ffi::c_void,
    pub(super) fd: OwnedFd,
    path: PathBuf,
}

// SAFETY: the segment behind `base` consists of atomics only and stays mapped as long as
// the value lives.
unsafe impl Send for Group {}
// SAFETY: as above.
unsafe impl Sync for Group {}

impl Deref for Group {
    type Target = GroupSegment;

    fn deref(&self) -> &GroupSegment {
        // SAFETY: mapped with GROUP_LEN bytes, page-aligned, checked by `open` or made by
        // `create`; all fields are atomics, valid for any bits.
        unsafe { &*self.base.cast::<GroupSegment>() }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; `self` is the only handle.
        let _ = unsafe { rustix::mm::munmap(self.base, GROUP_LEN) };
    }
}

impl Group {
    /// Makes a group that must not exist yet: for its owner alone, or for a Unix group
    /// too.
    ///
    /// # Errors
    /// The file cannot be made, or there is no room.
    pub fn create(path: &Path, name: &str, unix_group: Option<u32>) -> Result<Self, LedgerError> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let own = Mode::RUSR | Mode::WUSR;
        let fd = rustix::fs::open(path, flags, own).map_err(|e| file(path, "make", e))?;
        let made = Self::fill(path, fd, name, unix_group);
        if made.is_err() {
            let _ = std::fs::remove_file(path);
        }
        made
    }

    fn fill(
        path: &Path,
        fd: OwnedFd,
        name: &str,
        unix_group: Option<u32>,
    ) -> Result<Self, LedgerError> {
        reserve(path, &fd, GROUP_LEN as u64, GROUP_LEN as u64)?;
        let group = Self::map(path, fd)?;
        let head = &group.head;
        store_text(&head.name, name);
        head.version.store(GROUP_VERSION, Ordering::Relaxed);
        head.length.store(GROUP_LEN as u64, Ordering::Relaxed);
        let wall = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        let wall = u64::try_from(wall.as_nanos()).unwrap_or(0);
        head.created_ns.store(wall, Ordering::Relaxed);
        head.epoch.0.store(2, Ordering::Relaxed);
        head.magic.store(GROUP_MAGIC, Ordering::Release);
        if let Some(gid) = unix_group {
            let give = |e| file(path, "give it to its Unix group", e);
            rustix::fs::fchown(&group.fd, None, Some(Gid::from_raw(gid))).map_err(give)?;
            // Last: from here on others may come in.
            let both = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP;
            rustix::fs::fchmod(&group.fd, both).map_err(give)?;
        }
        Ok(group)
    }

    /// Opens a group of the calling user, or one that root has made for others.
    ///
    /// # Errors
    /// It does not exist, may not be used by this user, is foreign, damaged or of another
    /// version.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| file(path, "open", e))?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| file(path, "examine", e))?;
        let uid = rustix::process::geteuid().as_raw();
        if stat.st_uid != uid && stat.st_uid != 0 && uid != 0 {
            return Err(LedgerError::NotYours {
                path: path.into(),
                owner: stat.st_uid,
                uid,
            });
        }
        let damaged = |what| LedgerError::Damaged {
            path: path.into(),
            what,
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(damaged("not a regular file"));
        }
        if stat.st_mode & 0o002 != 0 {
            return Err(damaged("everybody may write it"));
        }
        let mut first = [0_u8; 16];
        let got = rustix::io::pread(&fd, &mut first, 0).map_err(|e| file(path, "read", e))?;
        let [magic, version] = [0, 8].map(|at| {
            let mut word = [0_u8; 8];
            word.copy_from_slice(&first[at..at + 8]);
            u64::from_le_bytes(word)
        });
        if got < first.len() || magic != GROUP_MAGIC {
            return Err(LedgerError::Foreign { path: path.into() });
        }
        if version & 0xffff_ffff != u64::from(GROUP_VERSION) {
            return Err(LedgerError::Version {
                path: path.into(),
                found: (version & 0xffff_ffff) as u32,
            });
        }
        if u64::try_from(stat.st_size) != Ok(GROUP_LEN as u64) {
            return Err(damaged("wrong length"));
        }
        Self::map(path, fd)
    }

    fn map(path: &Path, fd: OwnedFd) -> Result<Self, LedgerError> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping of a file of GROUP_LEN bytes at an address of the
        // kernel's choice.
        let base =
            unsafe { rustix::mm::mmap(core::ptr::null_mut(), GROUP_LEN, prot, flags, &fd, 0) }
                .map_err(|e| file(path, "map", e))?;
        Ok(Self {
            base,
            fd,
            path: path.into(),
        })
    }

    /// Where its file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        load_text(&self.head.name)
    }
}

fn file(path: &Path, what: &'static str, source: Errno) -> LedgerError {
    LedgerError::File {
        path: path.into(),
        what,
        source,
    }
}
