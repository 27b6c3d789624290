//! Block devices: by name, by number, or by a path on their file system.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::Error;
use crate::file;
use crate::hierarchy::unescaped;

/// The number of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceNumber {
    /// Which driver.
    pub major: u32,
    /// Which of its devices.
    pub minor: u32,
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}:{}", self.major, self.minor))
    }
}

impl FromStr for DeviceNumber {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (major, minor) = text.split_once(':').ok_or(())?;
        Ok(Self {
            major: major.parse().map_err(drop)?,
            minor: minor.parse().map_err(drop)?,
        })
    }
}

impl DeviceNumber {
    fn of(dev: u64) -> Self {
        Self {
            major: rustix::fs::major(dev),
            minor: rustix::fs::minor(dev),
        }
    }

    /// Its folder in sysfs.
    fn folder(self) -> PathBuf {
        PathBuf::from(format!("/sys/dev/block/{self}"))
    }
}

/// A whole block device: limits are on those, never on partitions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// Its number.
    pub number: DeviceNumber,
    /// The kernel's name for it, such as `sda`; its number where it has none any more.
    pub name: String,
}

impl Device {
    /// The disks of this machine: what has hardware, or a hypervisor, behind it. No partitions,
    /// no loop devices, no memory, nothing that is put together from other devices, and no
    /// optical drives.
    ///
    /// # Errors
    /// [`Error::NoDisks`].
    pub fn disks() -> Result<Vec<Self>, Error> {
        let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let folders = entries.map(|entry| entry.path());
        let mut found: Vec<Self> = folders
            .filter(|folder| is_disk(folder))
            .filter_map(|folder| Self::in_folder(&folder))
            .collect();
        found.sort();
        if found.is_empty() {
            return Err(Error::NoDisks);
        }
        Ok(found)
    }

    /// The whole device that a name means: `/dev/sda1`, `sda`, `8:0`, or a path on the file
    /// system of a device.
    ///
    /// # Errors
    /// There is none, or the file system of the path has none, or several.
    pub fn find(name: &str) -> Result<Self, Error> {
        let none = || Error::NoDevice { name: name.into() };
        if let Ok(number) = name.parse::<DeviceNumber>() {
            return Self::whole(number).ok_or_else(none);
        }
        let plain = !name.is_empty() && !name.contains('/') && name != "." && name != "..";
        if plain {
            // Slashes of a name (cciss/c0d0) are written with ! in sysfs.
            let folder = Path::new("/sys/class/block").join(name);
            if let Some(number) = number_in(&folder) {
                return Self::whole(number).ok_or_else(none);
            }
        }
        let found = fs::metadata(name).map_err(|_| none())?;
        if found.file_type().is_block_device() {
            return Self::whole(DeviceNumber::of(found.rdev())).ok_or_else(none);
        }
        Self::whole(DeviceNumber::of(found.dev())).ok_or_else(|| below(name, found.dev()))
    }

    /// The device of a number, by its name where it still has one.
    #[must_use]
    pub fn named(number: DeviceNumber) -> Self {
        let name = fs::canonicalize(number.folder()).ok();
        let name = name.and_then(|folder| Some(folder.file_name()?.to_str()?.to_owned()));
        Self {
            number,
            name: name.unwrap_or_else(|| number.to_string()),
        }
    }

    /// Whether it is still there, under the same name.
    pub(crate) fn is_there(&self) -> bool {
        Self::named(self.number).name == self.name
    }

    /// Its file.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        Path::new("/dev").join(self.name.replace('!', "/"))
    }

    /// The whole device that a number is, or is a partition of.
    fn whole(number: DeviceNumber) -> Option<Self> {
        let folder = fs::canonicalize(number.folder()).ok()?;
        let folder = if folder.join("partition").exists() {
            folder.parent()?
        } else {
            &folder
        };
        Self::in_folder(folder)
    }

    fn in_folder(folder: &Path) -> Option<Self> {
        Some(Self {
            number: number_in(folder)?,
            name: folder.file_name()?.to_str()?.to_owned(),
        })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

fn number_in(folder: &Path) -> Option<DeviceNumber> {
    let text = file::read(&folder.join("dev")).ok()?;
    text.trim().parse().ok()
}

/// Whether a folder of `/sys/block` is that of a disk.
fn is_disk(folder: &Path) -> bool {
    let number = |name: &str| -> io::Result<u64> {
        let text = file::read(&folder.join(name))?;
        text.trim().parse().map_err(io::Error::other)
    };
    // A path of a multipath NVMe device is hidden behind the device itself. SCSI type 5 is optical.
    folder.join("device").exists()
        && number("hidden").unwrap_or(0) == 0
        && number("size").unwrap_or(0) > 0
        && number("device/type").unwrap_or(0) != 5
}

/// Why a path is on no device that could be limited.
fn below(name: &str, dev: u64) -> Error {
    let number = DeviceNumber::of(dev).to_string();
    let mounts = file::read(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    let kind = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let is_it = before.split(' ').nth(2) == Some(number.as_str());
        is_it.then(|| after.split(' ').next()).flatten()
    });
    let kind = kind
        .and_then(unescaped)
        .or_else(|| mounted_at(&mounts, name));
    let kind = kind.unwrap_or_else(|| "a file system without a device".to_owned());
    let why = match kind.as_str() {
        "btrfs" | "bcachefs" | "zfs" => "which may be on several devices",
        "overlay" | "aufs" | "fuse" => "which is put together from other file systems",
        "tmpfs" | "ramfs" | "devtmpfs" | "hugetlbfs" => "which is in memory",
        "nfs" | "nfs4" | "cifs" | "ceph" | "9p" | "virtiofs" => "whose disk is somewhere else",
        _ => "which has no block device here",
    };
    Error::NoDeviceBelow {
        name: name.into(),
        kind,
        why,
    }
}

/// The type of the file system that a path is on, by the longest mount before it: subvolumes of
/// btrfs have numbers that stand in no list of mounts.
fn mounted_at(mounts: &str, name: &str) -> Option<String> {
    let path = fs::canonicalize(name).ok()?;
    let mounts = mounts.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mount = unescaped(before.split(' ').nth(4)?)?;
        let kind = unescaped(after.split(' ').next()?)?;
        path.starts_with(&mount).then_some((mount, kind))
    });
    // Of two mounts at one place the later one is seen.
    let deepest = mounts.max_by_key(|(mount, _)| mount.len());
    deepest.map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_device_is_said() {
        for name in ["", "no-such-disk", "/no/such/path", "9999:9999", "1:"] {
            let error = Device::find(name).expect_err(name);
            assert!(matches!(error, Error::NoDevice { .. }), "{name}: {error}");
        }
        let error = Device::find("/proc/self").expect_err("no device");
        let text = error.to_string();
        assert!(text.contains("is on proc, which has no block"), "{text}");
    }

    #[test]
    fn numbers_are_read_back() {
        let number: DeviceNumber = "254:16".parse().expect("a number");
        assert_eq!(number.to_string(), "254:16");
        for text in ["254", "a:1", "1:-1", "1:2:3", ""] {
            assert!(text.parse::<DeviceNumber>().is_err(), "{text}");
        }
    }
}
