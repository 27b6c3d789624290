//! What vouches that an image is the one that it was: for fingerprints that are kept beside it.
//!
//! # Story
//! The times of a file change with each write, in the memory of the running kernel. On the disk they come later:
//! fdatasync(2) does not write them, so that after a power cut an image can have new data and old times. Times
//! therefore say that an image is unchanged only while the same kernel has the file system mounted: the boot is told
//! by its number, the mount by the number of the file system's node in sysfs, which each mount gets anew, or by the
//! unique number of the mount point (Linux 6.8).
//!
//! # Limits
//! Who may write to the device below the file system, or set the clock back to the nanosecond of an earlier change, is
//! believed.

use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags, fstatfs, statx};

use super::{Image, Times};

/// `STATX_MNT_ID_UNIQUE` of linux/stat.h (Linux 6.8).
const UNIQUE_MOUNT: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// Of statfs(2).
const TMPFS: i64 = 0x0102_1994;

/// An image at one moment: equal ones have equal bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Identity {
    times: Times,
    device: u64,
    /// The kernel's run.
    boot: [u8; 16],
    /// The file system's mount.
    mount: u64,
}

impl Identity {
    /// Bytes of [`Self::to_bytes`].
    pub(crate) const LEN: usize = 80;

    /// The times of the image.
    pub(crate) const fn times(&self) -> &Times {
        &self.times
    }

    /// All of it, little-endian, in the order of its fields.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let words = self.times.words();
        let mut bytes: Vec<u8> = words.into_iter().flat_map(i64::to_le_bytes).collect();
        bytes.extend(self.device.to_le_bytes());
        bytes.extend(self.boot);
        bytes.extend(self.mount.to_le_bytes());
        bytes
    }
}

impl Image {
    /// What vouches for the image's bytes from now on, as long as it stays the same.
    ///
    /// # Errors
    /// A device, a kernel without a boot number, or a mount that cannot be told from a later one.
    pub fn identity(&self) -> io::Result<Identity> {
        let times = self.times().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "a device has no times of change",
            )
        })?;
        let device = self.file.metadata()?.dev();
        Ok(Identity {
            times,
            device,
            boot: boot()?,
            mount: self.mount(device)?,
        })
    }

    fn mount(&self, device: u64) -> io::Result<u64> {
        if fstatfs(&self.file)?.f_type == TMPFS {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "on tmpfs, a change through a memory map does not change the times of a file",
            ));
        }
        if let Some(node) = node_in_sysfs(device) {
            return Ok(node);
        }
        let of = statx(self.file.as_fd(), "", AtFlags::EMPTY_PATH, UNIQUE_MOUNT)?;
        match of.stx_mask & UNIQUE_MOUNT.bits() != 0 {
            true => Ok(of.stx_mnt_id),
            false => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel does not tell a mount of its file system from an earlier one",
            )),
        }
    }
}

/// The number of `/sys/fs/TYPE/DEVICE`, which the kernel makes anew with each mount of the device.
fn node_in_sysfs(device: u64) -> Option<u64> {
    let [major, minor] = [rustix::fs::major(device), rustix::fs::minor(device)];
    let link = fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let name = link.file_name()?;
    ["ext4", "xfs", "f2fs"].into_iter().find_map(|kind| {
        let node = Path::new("/sys/fs").join(kind).join(name);
        Some(fs::metadata(node).ok()?.ino())
    })
}

/// random(4): `boot_id`, a UUID.
fn boot() -> io::Result<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut boot = [0; 16];
    let (pairs, _) = digits.as_chunks::<2>();
    if pairs.len() != boot.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "/proc/sys/kernel/random/boot_id: is no UUID",
        ));
    }
    for (byte, pair) in boot.iter_mut().zip(pairs) {
        let text = str::from_utf8(pair).unwrap_or_default();
        *byte = u8::from_str_radix(text, 16).unwrap_or(0);
    }
    Ok(boot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_changes_with_each_write_and_is_of_a_fixed_length() {
        // Not where /tmp is: that may be tmpfs.
        let program = std::env::current_exe().expect("a path");
        let folder = program.parent().expect("a folder");
        let path = tempfile::NamedTempFile::new_in(folder)
            .expect("a file")
            .into_temp_path();
        fs::write(&path, [0; 8192]).expect("written");
        let image = Image::open(&path, false).expect("an image");
        let first = image.identity().expect("an identity");
        assert_eq!(first.to_bytes().len(), Identity::LEN);
        assert_eq!(image.identity().expect("an identity"), first);
        std::thread::sleep(std::time::Duration::from_millis(20));
        image.write(&[1; 512], 0, false).expect("written");
        assert_ne!(image.identity().expect("an identity"), first);
    }
}
