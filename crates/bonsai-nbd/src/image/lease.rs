//! Leases of images: the kernel's word that no other program can change one (fcntl(2), `F_SETLEASE`).
//!
//! # Story
//! A write lease is granted only while a file has no other open description, a read lease only while none can
//! write. As long as one is held, the kernel holds up each open(2) and truncate(2) that conflicts with it, by any
//! program, under any name and through any mount of the file, until the holder has released the lease or
//! `fs.lease-break-time` (45 s) has passed. Every writer needs an open description, also those whose writes
//! fanotify(7) does not report: libaio, loop devices, memory maps, nfsd. A lease that is held therefore proves
//! that nothing but this server has changed the image since it was granted.
//!
//! # Invariants
//! 1. An image that is served for writing has one open description: each further one, also of this process,
//!    would keep the lease from being granted.
//! 2. [`Image::is_leased`] asks the kernel. While a break is pending it is false already, before the other
//!    program's open(2) returns.
//!
//! # Limits
//! Pages of an image that another program has pinned for the kernel to write into (a read with O_DIRECT into a memory map of
//! the image, a fixed buffer of io_uring), and has unmapped and closed since, are written without an open description.
//!
//! Regular files of file systems that only this kernel writes to ([`LOCAL`]). The device below a mounted file
//! system, and the host below a virtual disk, are not seen. An open(2) with `O_NONBLOCK` that breaks a lease fails
//! once with EAGAIN, as fcntl(2) says.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::fs::fstatfs;
use rustix::process::Pid;
use thiserror::Error;

use super::Image;

/// fcntl(2) of linux/fcntl.h; the libc crate does not have all of them.
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

/// File systems whose files no other machine and no other process than the kernel can change: by their numbers in
/// statfs(2) (linux/magic.h). Those of a network, of FUSE, and overlays are not among them.
const LOCAL: [(i64, &str); 8] = [
    (0xEF53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0xF2F5_2010, "f2fs"),
    (0x0102_1994, "tmpfs"),
    (0xCA45_1A4E, "bcachefs"),
    (0x3153_464A, "jfs"),
    (0x3434, "nilfs"),
];

/// Why there is no lease of an image.
#[derive(Debug, Error)]
pub enum LeaseError {
    /// A block device.
    #[error("a block device has no lease")]
    Device,
    /// A file system that others can write to, or that is not known to be local.
    #[error(
        "its file system (type {kind:#x}) may be changed from elsewhere, so a lease proves nothing"
    )]
    FileSystem {
        /// `f_type` of statfs(2).
        kind: i64,
    },
    /// The image belongs to another user.
    #[error("only the owner of the image, or root (CAP_LEASE), can have a lease of it")]
    Owner,
    /// Another program has the image open.
    #[error("another program has the image open")]
    Busy,
    /// Another error of the system.
    #[error("the kernel grants no lease: {0}")]
    System(io::Error),
}

impl LeaseError {
    /// Whether a later attempt can succeed.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Busy => true,
            // No room, or an interruption; what the file system cannot do stays so.
            Self::System(error) => !matches!(
                error.raw_os_error(),
                Some(libc::EINVAL | libc::ENOLCK | libc::EOPNOTSUPP | libc::ENOSYS | libc::EBADF)
            ),
            Self::Device | Self::FileSystem { .. } | Self::Owner => false,
        }
    }
}

/// `struct f_owner_ex` of linux/fcntl.h.
#[repr(C)]
struct Owner {
    kind: libc::c_int,
    pid: libc::pid_t,
}

impl Image {
    /// Takes a lease; `signal` goes to the thread `owner` when another program breaks it.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub(crate) fn take_lease(&self, owner: Pid, signal: libc::c_int) -> Result<(), LeaseError> {
        if self.device {
            return Err(LeaseError::Device);
        }
        let file_system = fstatfs(&self.file).map_err(|error| LeaseError::System(error.into()))?;
        let kind = file_system.f_type;
        if !LOCAL.iter().any(|(number, _)| *number == kind) {
            return Err(LeaseError::FileSystem { kind });
        }
        let fd = self.file.as_raw_fd();
        let owner = Owner {
            kind: F_OWNER_TID,
            pid: owner.as_raw_nonzero().get(),
        };
        // SAFETY: the descriptor is open while the image is borrowed; the kernel reads the structure during the call.
        let owned = unsafe { libc::fcntl(fd, F_SETOWN_EX, &raw const owner) };
        // SAFETY: as above; the argument is a number.
        let set = unsafe { libc::fcntl(fd, F_SETSIG, signal) };
        if owned == -1 || set == -1 {
            return Err(LeaseError::System(io::Error::last_os_error()));
        }
        // SAFETY: as above.
        match unsafe { libc::fcntl(fd, libc::F_SETLEASE, self.lease_kind()) } {
            -1 => Err(refusal(io::Error::last_os_error())),
            _ => {
                // What another program wrote until now may not be on the disk.
                self.note_foreign_change();
                Ok(())
            }
        }
    }

    /// Whether the lease is held, and no other program has begun to break it.
    pub(crate) fn is_leased(&self) -> bool {
        lease_of(rustix::fd::AsFd::as_fd(&self.file)) == self.lease_kind()
    }

    /// Releases the lease, so that a program that breaks it goes on; false where the kernel had taken it away already.
    pub(crate) fn release_lease(&self) -> bool {
        // SAFETY: the descriptor is open while the image is borrowed; the argument is a number.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) != -1 }
    }

    const fn lease_kind(&self) -> libc::c_int {
        if self.read_only {
            libc::F_RDLCK
        } else {
            libc::F_WRLCK
        }
    }
}

fn lease_of(file: BorrowedFd<'_>) -> libc::c_int {
    // SAFETY: the descriptor is borrowed; the command takes no argument.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) }
}

fn refusal(error: io::Error) -> LeaseError {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => LeaseError::Busy,
        Some(libc::EACCES | libc::EPERM) => LeaseError::Owner,
        _ => LeaseError::System(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    const SIGNAL: libc::c_int = libc::SIGURG;

    fn image() -> (tempfile::TempPath, Image) {
        let path = tempfile::NamedTempFile::new()
            .expect("a file")
            .into_temp_path();
        std::fs::write(&path, [0; 8192]).expect("written");
        let image = Image::open(&path, false).expect("an image");
        (path, image)
    }

    /// SIGURG is ignored by default, so that no thread has to take it.
    fn take(image: &Image) -> Result<(), LeaseError> {
        image.take_lease(rustix::thread::gettid(), SIGNAL)
    }

    /// Takes it once its file is closed everywhere: a child that another test starts just then has it open up to its exec.
    fn taken(image: &Image) {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        loop {
            match take(image) {
                Err(LeaseError::Busy) if std::time::Instant::now() < end => {
                    std::thread::yield_now();
                }
                taken => return taken.expect("a lease"),
            }
        }
    }

    #[test]
    fn a_lease_is_granted_to_the_only_opener_and_holds_up_the_next_one() {
        let (path, image) = image();
        assert!(!image.is_leased());
        let reader = File::open(&path).expect("opened");
        assert!(matches!(take(&image), Err(LeaseError::Busy)));
        drop(reader);
        taken(&image);
        assert!(image.is_leased());
        let opener = std::thread::spawn({
            let path = path.to_path_buf();
            move || File::open(path).expect("opened")
        });
        while image.is_leased() {
            std::thread::yield_now();
        }
        assert!(!opener.is_finished(), "it waits for the release");
        assert!(image.release_lease(), "held until it was released");
        let reader = opener.join().expect("opened");
        assert!(!image.release_lease() && !image.is_leased());
        assert!(matches!(take(&image), Err(LeaseError::Busy)));
        drop(reader);
        taken(&image);
    }

    /// Its write may be lost by the disk, after a flush that did not know of it.
    #[test]
    fn no_flush_of_before_vouches_for_what_another_program_wrote() {
        let (path, image) = image();
        taken(&image);
        image.flush().expect("flushed");
        assert!(image.is_flushed());
        assert!(image.release_lease());
        std::fs::write(&path, [1; 8192]).expect("written");
        taken(&image);
        assert!(!image.is_flushed());
        image.flush().expect("flushed");
        assert!(image.is_flushed());
    }

    #[test]
    fn a_mapping_whose_descriptor_is_closed_keeps_the_lease_away() {
        let (path, image) = image();
        let file = File::options()
            .read(true)
            .write(true)
            .open(&path)
            .expect("opened");
        // SAFETY: a new mapping at a place that the kernel chooses.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(mapped, libc::MAP_FAILED);
        drop(file);
        assert!(matches!(take(&image), Err(LeaseError::Busy)));
        // SAFETY: the mapping from above, which nothing refers to.
        assert_eq!(unsafe { libc::munmap(mapped, 4096) }, 0);
        taken(&image);
    }

    #[test]
    fn readers_share_a_read_lease() {
        let path = tempfile::NamedTempFile::new()
            .expect("a file")
            .into_temp_path();
        std::fs::write(&path, [0; 8192]).expect("written");
        let image = Image::open(&path, true).expect("an image");
        let _reader = File::open(&path).expect("opened");
        taken(&image);
        let _second = File::open(&path).expect("opened");
        assert!(image.is_leased());
        assert!(image.release_lease());
        let writer = File::options().write(true).open(&path).expect("opened");
        assert!(matches!(take(&image), Err(LeaseError::Busy)));
        drop(writer);
        taken(&image);
    }
}
