//! A disk image: a raw file, or a block device.

mod lock;
mod resident;

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, FallocateFlags, SeekFrom, fadvise, fallocate};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};
use thiserror::Error;

use crate::protocol::Extent;

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
    /// A format that is not raw.
    #[error("{path}: is no raw image but {format}; qemu-img convert -O raw makes one")]
    Format {
        /// Of the image.
        path: PathBuf,
        /// What its first bytes say.
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

/// What cannot be told from a wish to write by somebody who has made a mistake: the first bytes of images
/// that are not raw.
const FORMATS: [(&[u8], &str); 5] = [
    (b"QFI\xfb", "qcow2"),
    (b"KDMV", "vmdk"),
    (b"vhdxfile", "vhdx"),
    (b"conectix", "vhd"),
    (b"<<< QEMU VM Virtual Disk Image >>>", "vdi"),
];

/// An open image. Its size is that of the moment when it was opened.
#[derive(Debug)]
pub struct Image {
    file: File,
    path: PathBuf,
    size: u64,
    device: bool,
    read_only: bool,
    /// It was found shorter than it was.
    shrunk: AtomicBool,
    /// It cannot leave out blocks in its middle.
    no_holes: AtomicBool,
    /// The kernel reads nothing that was not asked for.
    exactly: AtomicBool,
}

/// When a file was changed: its size, and its times in nanoseconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Times {
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
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
        let open = |source| ImageError::Open {
            path: path.to_owned(),
            source,
        };
        // Before it is opened: opening a pipe waits for its other end.
        let kind = std::fs::metadata(path).map_err(open)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(ImageError::Kind {
                path: path.to_owned(),
            });
        }
        let file = OpenOptions::new().read(true).write(!read_only).open(path);
        let file = file.map_err(open)?;
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
        let mut start = [0; 64];
        let read = file.read_at(&mut start, 0).map_err(open)?;
        for (magic, format) in FORMATS {
            if start
                .get(..read)
                .is_some_and(|start| start.starts_with(magic))
            {
                let path = path.to_owned();
                return Err(ImageError::Format { path, format });
            }
        }
        Ok(Self {
            file,
            path: path.to_owned(),
            size,
            device: kind.is_block_device(),
            read_only,
            shrunk: AtomicBool::new(false),
            no_holes: AtomicBool::new(false),
            exactly: AtomicBool::new(false),
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
        // RWF_DONTCACHE (Linux 6.14), which readahead follows.
        let flags = ReadWriteFlags::from_bits_retain(0x80);
        let wanted = into.len();
        match preadv2(&self.file, &mut [IoSliceMut::new(into)], offset, flags) {
            Ok(read) if read == wanted => Ok(()),
            Ok(_) | Err(Errno::INTR) => self.read(into, offset),
            Err(_) => {
                self.read(into, offset)?;
                self.forget(offset, wanted as u64)
            }
        }
    }

    /// Writes; with `durable`, to the disk and not only to the page cache.
    ///
    /// # Errors
    /// The system's. An image that has shrunk is written no more, as that would make
    /// it as long as it was, with a hole for what has gone.
    pub fn write(&self, bytes: &[u8], offset: u64, durable: bool) -> io::Result<()> {
        self.refuse_shrunk(offset + bytes.len() as u64)?;
        let flags = match durable {
            true => ReadWriteFlags::DSYNC,
            false => ReadWriteFlags::empty(),
        };
        let (mut bytes, mut offset) = (bytes, offset);
        while !bytes.is_empty() {
            match pwritev2(&self.file, &[IoSlice::new(bytes)], offset, flags) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = bytes.get(written..).unwrap_or_default();
                    offset += written as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Everything that was written is on the disk then.
    ///
    /// # Errors
    /// The system's.
    pub fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Gives blocks back to the file system, where it takes them: it is a hint.
    ///
    /// # Errors
    /// The system's.
    pub fn trim(&self, offset: u64, length: u64) -> io::Result<()> {
        match self.punch(offset, length) {
            Err(error) if is_unsupported(&error) => Ok(()),
            other => other,
        }
    }

    /// Makes zeroes. `keep` says that they are to keep their place on the disk, `quick` that it
    /// is to fail where they would have to be written.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::Unsupported`] where it would not be quick.
    pub fn zero(&self, offset: u64, length: u64, keep: bool, quick: bool) -> io::Result<()> {
        self.refuse_shrunk(offset + length)?;
        let range = || {
            let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
            Ok(fallocate(&self.file, flags, offset, length)?)
        };
        let done = match keep {
            true => range(),
            false => self
                .punch(offset, length)
                .or_else(|error| match is_unsupported(&error) {
                    true => range(),
                    false => Err(error),
                }),
        };
        match done {
            Err(error) if is_unsupported(&error) && quick => Err(io::ErrorKind::Unsupported.into()),
            Err(error) if is_unsupported(&error) => self.write_zeroes(offset, length),
            done => done,
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

    /// Where there is data from `offset` on, at most `most` extents, and at most `length` bytes.
    ///
    /// # Errors
    /// The system's.
    pub fn extents(&self, offset: u64, length: u64, most: usize) -> io::Result<Vec<Extent>> {
        let end = offset + length;
        let mut extents = Vec::new();
        let mut at = offset;
        while at < end && extents.len() < most {
            let (next, hole) = self.extent(at, end)?;
            let piece = next.min(end) - at;
            extents.push(Extent {
                length: u32::try_from(piece).unwrap_or(u32::MAX),
                hole,
            });
            at += piece;
        }
        Ok(extents)
    }

    /// Where the extent ends that `at` is in, at most `end`, and whether it is a hole.
    ///
    /// # Errors
    /// The system's.
    pub fn extent(&self, at: u64, end: u64) -> io::Result<(u64, bool)> {
        if self.device || self.no_holes.load(Ordering::Relaxed) {
            return Ok((end, false));
        }
        match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
            Ok(data) if data > at => Ok((data.min(end), true)),
            Ok(_) => {
                let hole = rustix::fs::seek(&self.file, SeekFrom::Hole(at))?;
                // Written meanwhile: whatever it is, it is not before `at`.
                Ok((if hole > at { hole.min(end) } else { end }, false))
            }
            // No data behind; or the end of a file that has shrunk.
            Err(Errno::NXIO) => Ok((end, true)),
            Err(Errno::INVAL) => {
                self.no_holes.store(true, Ordering::Relaxed);
                Ok((end, false))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, flags, offset, length)?)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        let zeroes = vec![0; 1 << 20];
        let mut at = offset;
        let end = offset + length;
        while at < end {
            let piece = zeroes
                .len()
                .min(usize::try_from(end - at).unwrap_or(usize::MAX));
            self.write(zeroes.get(..piece).unwrap_or_default(), at, false)?;
            at += piece as u64;
        }
        Ok(())
    }

    /// Where a file has shrunk, nothing is written behind its end.
    fn refuse_shrunk(&self, end: u64) -> io::Result<()> {
        if !self.device && self.file.metadata()?.len() < end {
            self.shrunk.store(true, Ordering::Relaxed);
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(number, Some(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV))
        || error.kind() == io::ErrorKind::Unsupported
}
