//! A disk image: a raw file, or a block device.

mod abilities;
mod calls;
mod change;
mod extents;
mod flush;
mod format;
mod identity;
mod lease;
mod lock;
mod resident;
mod voucher;
mod watch;

pub use abilities::{Ability, abilities};
pub use flush::LossCursor;
pub use format::{Opening, RawImages, detect};
pub use identity::Identity;
pub use lease::LeaseError;

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Advice, IFlags, SeekFrom, StatVfsMountFlags, fadvise, fstatvfs, ioctl_getflags};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use thiserror::Error;

use crate::files;
use flush::Durability;
pub(crate) use flush::Writeback;
pub(crate) use voucher::{MAGIC, STATE_AT, VALID, Voucher, is_ours};
pub(crate) use watch::Watch;

/// Why an image cannot be served.
#[derive(Debug, Error)]
pub enum ImageError {
    /// It cannot be opened.
    #[error("{path}: cannot be opened: {source}")]
    Open {
        /// Of the image.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Something else than an image.
    #[error("{path}: is neither a file nor a block device")]
    Kind {
        /// Of what is there.
        path: PathBuf,
    },
    /// There is nothing in it.
    #[error("{path}: is empty; an image has the size of its disk (truncate -s makes one)")]
    Empty {
        /// Of the image.
        path: PathBuf,
    },
    /// A format that is not raw, or a compressed file.
    #[error(
        "{path}: looks like {format}, and only raw images are served; if it is a raw disk whose guest wrote that, say format=raw; convert it (qemu-img convert -O raw) only if no guest could write it: a header made by a guest can name any file of this host as its backing file"
    )]
    Format {
        /// Of the image.
        path: PathBuf,
        /// What its signature says.
        format: &'static str,
    },
    /// Another program has it.
    #[error("{path}: is in use by another program, {whose}; only readers can share it")]
    InUse {
        /// Of the image.
        path: PathBuf,
        /// What of it is in use.
        whose: &'static str,
    },
}

/// RWF_DONTCACHE of linux/fs.h (Linux 6.14), which readahead follows.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// An open image. Its size is that of the moment when it was opened.
#[derive(Debug)]
pub struct Image {
    file: File,
    path: PathBuf,
    size: u64,
    device: bool,
    /// What a device can change by itself, in bytes; 1 of a file.
    sector: u64,
    read_only: bool,
    /// It was found shorter than it was.
    shrunk: AtomicBool,
    /// It cannot leave out blocks in its middle.
    no_holes: AtomicBool,
    /// The kernel reads nothing that was not asked for.
    exactly: AtomicBool,
    /// The file system does each write synchronously (`mount -o sync`, `chattr +S`).
    sync_writes: bool,
    durability: Durability,
    voucher: Voucher,
}

/// Which file, and when it was changed, in seconds and nanoseconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Times {
    size: u64,
    inode: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Times {
    /// The last of both.
    #[must_use]
    pub fn latest(&self) -> SystemTime {
        let (seconds, ns) = self.modified.max(self.changed);
        let seconds = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let ns = Duration::from_nanos(u64::try_from(ns).unwrap_or(0));
        UNIX_EPOCH + seconds + ns
    }

    /// Whether a change after `now`, which was looked at before these times, gives the file other ones. Times of a file go on
    /// in steps: of a clock tick (10 ms with HZ=100), or of a second where the file system has no more room for them.
    #[must_use]
    pub fn would_show_a_change(&self, now: SystemTime) -> bool {
        let whole_seconds = self.modified.1 == 0 && self.changed.1 == 0;
        let step = match whole_seconds {
            true => Duration::from_millis(2100),
            false => Duration::from_millis(50),
        };
        // Times of the future, after a clock was set back, are never old enough.
        let age = now.duration_since(self.latest());
        age.is_ok_and(|age| age >= step)
    }

    /// All of it, for whoever keeps it.
    #[must_use]
    pub const fn words(&self) -> [i64; 6] {
        let [size, inode] = [self.size.cast_signed(), self.inode.cast_signed()];
        let (modified, changed) = (self.modified, self.changed);
        [size, inode, modified.0, modified.1, changed.0, changed.1]
    }
}

/// A part of a read that the disk is needed for.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) image: Arc<Image>,
    /// In the image.
    pub(crate) offset: u64,
    /// In the read.
    pub(crate) start: usize,
    pub(crate) length: usize,
}

/// What became of a read that must not wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Now {
    /// All bytes are there.
    Done,
    /// The disk is needed for some; it may have been asked already.
    WouldWait,
}

impl Image {
    /// Opens an image, and takes its lock as QEMU does.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn open(path: &Path, read_only: bool) -> Result<Self, ImageError> {
        let opening = Opening {
            read_only,
            ..Opening::default()
        };
        Self::open_as(path, &opening)
    }

    /// Opens an image as it is said, and takes its lock as QEMU does.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn open_as(path: &Path, opening: &Opening) -> Result<Self, ImageError> {
        let read_only = opening.read_only;
        let open = |source| ImageError::Open {
            path: path.to_owned(),
            source,
        };
        // Opening a device or a pipe can wait or have an effect, so its kind comes first.
        let found = files::look_up(path, true).map_err(open)?;
        let kind = found.metadata().map_err(open)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(ImageError::Kind {
                path: path.to_owned(),
            });
        }
        let mut options = OpenOptions::new();
        options.read(true).write(!read_only);
        if kind.is_block_device() && !read_only {
            // Of a device it means: nobody on this machine has it mounted, or will.
            options.custom_flags(libc::O_EXCL);
        }
        let file =
            files::open_found(&found, &options).map_err(|source| match source.raw_os_error() {
                Some(libc::EBUSY) => ImageError::InUse {
                    path: path.to_owned(),
                    whose: "or mounted",
                },
                _ => open(source),
            })?;
        if kind.is_block_device() && !read_only && is_protected(&file).map_err(open)? {
            return Err(open(Errno::ROFS.into()));
        }
        lock::take(&file, path, read_only)?;
        let size = match kind.is_file() {
            true => file.metadata().map_err(open)?.len(),
            false => {
                rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|error| open(error.into()))?
            }
        };
        if size == 0 {
            return Err(ImageError::Empty {
                path: path.to_owned(),
            });
        }
        if let Some(format) = opening.foreign(&file, size).map_err(open)? {
            let path = path.to_owned();
            return Err(ImageError::Format { path, format });
        }
        let sector = match kind.is_block_device() {
            true => rustix::fs::ioctl_blksszget(&file).map_err(|error| open(error.into()))?,
            false => 1,
        };
        Ok(Self {
            sync_writes: is_synchronous(&file),
            file,
            path: path.to_owned(),
            size,
            device: kind.is_block_device(),
            sector: u64::from(sector.max(1)),
            read_only,
            shrunk: AtomicBool::new(false),
            no_holes: AtomicBool::new(false),
            exactly: AtomicBool::new(false),
            durability: Durability::default(),
            voucher: Voucher::new(path, read_only),
        })
    }

    /// Where it was when it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// In bytes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Whether it was opened for reading alone.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether it is a block device.
    #[must_use]
    pub const fn is_device(&self) -> bool {
        self.device
    }

    /// The validity of the fingerprints beside it.
    pub(crate) const fn voucher(&self) -> &Voucher {
        &self.voucher
    }

    /// The open file.
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Whether a part of it has gone while it was served.
    #[must_use]
    pub fn is_shrunk(&self) -> bool {
        self.shrunk.load(Ordering::Relaxed)
    }

    /// When it was changed; `None` of a device, whose times say nothing.
    #[must_use]
    pub fn times(&self) -> Option<Times> {
        let meta = self.file.metadata().ok().filter(|_| !self.device)?;
        Some(Times {
            size: meta.len(),
            inode: meta.ino(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }

    /// What is wrong with it by now, for people: it is shorter than it was, or another file has
    /// its name.
    #[must_use]
    pub fn look(&self) -> Option<&'static str> {
        if self.device {
            return None;
        }
        let own = self.file.metadata().ok()?;
        if own.len() < self.size {
            self.shrunk.store(true, Ordering::Relaxed);
            return Some("the image has shrunk: what is gone is answered with I/O errors");
        }
        // A file that has gone is served as long as it is open.
        match std::fs::metadata(&self.path) {
            Ok(named) if (named.dev(), named.ino()) == (own.dev(), own.ino()) => None,
            Ok(_) => Some("another file has the image's name now: the old one is served"),
            Err(_) => Some("the image has no name any more: it is served until the end"),
        }
    }

    /// Reads what needs no disk.
    ///
    /// # Errors
    /// The system's, and an end of the file before its size.
    pub fn read_now(&self, into: &mut [u8], offset: u64) -> io::Result<Now> {
        let wanted = into.len();
        let mut slices = [IoSliceMut::new(into)];
        match preadv2(&self.file, &mut slices, offset, ReadWriteFlags::NOWAIT) {
            Ok(read) if read == wanted => Ok(Now::Done),
            // Less than all: either the rest is not resident, or not there; who waits will see.
            Ok(_) | Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INTR) => Ok(Now::WouldWait),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads, and waits for the disk.
    ///
    /// # Errors
    /// The system's, and an end of the file before its size.
    pub fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let read = self.file.read_exact_at(into, offset);
        if let Err(error) = &read
            && error.kind() == io::ErrorKind::UnexpectedEof
        {
            self.shrunk.store(true, Ordering::Relaxed);
        }
        read
    }

    /// Reads without leaving in the page cache what was not there before, where the kernel can do that.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_past(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let wanted = into.len();
        match preadv2(&self.file, &mut [IoSliceMut::new(into)], offset, DONTCACHE) {
            Ok(read) if read == wanted => Ok(()),
            Ok(_) | Err(Errno::INTR) => self.read(into, offset),
            Err(_) => {
                self.read(into, offset)?;
                self.forget(offset, wanted as u64)
            }
        }
    }

    /// Has it read before somebody waits for it.
    ///
    /// # Errors
    /// The system's.
    pub fn fetch(&self, offset: u64, length: u64) -> io::Result<()> {
        let length = std::num::NonZeroU64::new(length);
        Ok(fadvise(&self.file, offset, length, Advice::WillNeed)?)
    }

    /// Whether the kernel may read ahead from now on. It is a hint, and one for the image as a whole.
    pub fn read_ahead(&self, may: bool) {
        if self.exactly.swap(!may, Ordering::Relaxed) == may {
            let advice = if may { Advice::Normal } else { Advice::Random };
            // Who cannot be advised reads ahead as before.
            let _ = fadvise(&self.file, 0, None, advice);
        }
    }

    /// Whether it was told to read nothing that was not asked for.
    #[must_use]
    pub fn is_read_exactly(&self) -> bool {
        self.exactly.load(Ordering::Relaxed)
    }

    /// Takes what is clean out of the page cache.
    ///
    /// # Errors
    /// The system's.
    pub fn forget(&self, offset: u64, length: u64) -> io::Result<()> {
        let length = std::num::NonZeroU64::new(length);
        Ok(fadvise(&self.file, offset, length, Advice::DontNeed)?)
    }

    /// How many pages of a part the page cache has; `None` where the kernel does not say.
    /// Asking changes nothing.
    #[must_use]
    pub fn resident_pages(&self, offset: u64, length: u64) -> Option<u64> {
        resident::pages(self.file.as_fd(), offset, length)
    }
}

/// Whether each write goes to the disk before it ends, so that it can be given the errors of others.
fn is_synchronous(file: &File) -> bool {
    let mount = fstatvfs(file).is_ok_and(|of| of.f_flag.contains(StatVfsMountFlags::SYNCHRONOUS));
    // File systems without such flags have no such files.
    mount || ioctl_getflags(file).is_ok_and(|flags| flags.contains(IFlags::SYNC))
}

/// Whether a device cannot be written. Opening it does not tell, and each write would.
fn is_protected(device: &File) -> io::Result<bool> {
    let number = device.metadata()?.rdev();
    let [major, minor] = [rustix::fs::major(number), rustix::fs::minor(number)];
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"));
    // Where there is no /sys, each write tells.
    Ok(text.is_ok_and(|text| text.trim() == "1"))
}
