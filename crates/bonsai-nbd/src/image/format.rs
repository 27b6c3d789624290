//! The format of an image: what is known not to be a raw disk, and which images are raw whatever they hold.
//!
//! A guest owns every byte of a raw disk, the first sector and the last one included, so that bytes never change how an
//! image is opened once a guest could write them. The signatures below are looked for only in images that no server has
//! served for writing before; the first time it does, that is recorded ([`RawImages`]), and from then on the image is raw.
//! QEMU keeps guests from writing signatures into the first sector of a disk whose format it has guessed; a record covers
//! every offset, and keeps nobody from anything.
//!
//! # Invariants
//! 1. A record is on the disk, with its folder's entry, before the first request of a client is read.
//! 2. A record is of one file: of its inode number and its birth time to the nanosecond. A copy, a restored backup and a
//!    file that was made anew with the same name have another birth time.
//! 3. A record holds the image's size, which guests cannot change. An image that has grown was resized, and stays raw; one
//!    that is shorter was written over in place (`cp new.qcow2 disk.raw`), and signatures are looked for again.
//! 4. Mounts and reboots change the number of a device, so that it is no part of a record. Two files with the same
//!    inode and birth time are a file system and its block-wise copy, and both hold the same image.
//!
//! # Limits
//! An image of another format that is written over a raw one in place, and is longer, is taken for raw.
//!
//! LUKS, partition tables, file systems and ISO images are contents of raw disks, and served.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// How an image is opened.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// For reading alone.
    pub read_only: bool,
    /// Whether it is raw, whatever it holds: somebody has said so.
    pub raw: bool,
    /// Images that are raw because they were served before.
    pub known: Option<RawImages>,
}

impl Opening {
    /// The format of an image that is not to be served; `None` of one that is raw.
    ///
    /// # Errors
    /// The system's, at reading.
    pub(super) fn foreign(&self, image: &File, size: u64) -> io::Result<Option<&'static str>> {
        // An image without an identity has no record.
        let is_known = |known: &RawImages| known.contains(image, size).unwrap_or(false);
        if self.raw || self.known.as_ref().is_some_and(is_known) {
            return Ok(None);
        }
        detect(image, size)
    }
}

/// Where in an image a signature stands.
#[derive(Clone, Copy)]
enum At {
    /// From the start.
    Start(u64),
    /// From the end; an image may be no multiple of a sector.
    End(u64),
    /// Anywhere in so many bytes at the end.
    Last(u64),
}

/// How much of the start is looked at, in bytes.
const START: usize = 1024;
/// How much of the end.
const END: usize = 2048;

/// What images of other formats, and compressed ones, are known by: where, what, and the name. Of two that fit, the first
/// one counts.
const SIGNATURES: &[(At, &[u8], &str)] = &[
    // QEMU, docs/interop/qcow2.txt; version 1 has the same magic number.
    (At::Start(0), b"QFI\xfb\0\0\0\x01", "qcow"),
    (At::Start(0), b"QFI\xfb", "qcow2"),
    // docs/interop/qed_spec.txt
    (At::Start(0), b"QED\0", "qed"),
    // VMware, Virtual Disk Format 5.0: sparse extents of hosts and of ESX (also SE sparse), and the text that names extents.
    (At::Start(0), b"KDMV", "vmdk"),
    (At::Start(0), b"COWD", "vmdk"),
    (At::Start(0), &[0xbe, 0xba, 0xfe, 0xca, 0, 0, 0, 0], "vmdk"),
    // Linux, drivers of user mode: copy on write.
    (At::Start(0), b"OOOM\0\0\0", "a UML copy-on-write file"),
    // Proxmox, vma_spec.txt
    (At::Start(0), b"VMA\0", "a Proxmox backup"),
    // Microsoft, [MS-VHDX] and the Virtual Hard Disk specification: of a fixed VHD the footer is all there is, with 511 bytes
    // from before Virtual PC 2004.
    (At::Start(0), b"vhdxfile", "vhdx"),
    (At::Start(0), b"conectix", "vhd"),
    (At::End(512), b"conectix", "vhd"),
    (At::End(511), b"conectix", "vhd"),
    // VirtualBox: the text before it is that of the program that made the image.
    (At::Start(64), &[0x7f, 0x10, 0xda, 0xbe], "vdi"),
    // Parallels, docs/interop/parallels.txt
    (At::Start(0), b"WithoutFreeSpace", "parallels"),
    (At::Start(0), b"WithouFreSpacExt", "parallels"),
    (
        At::Start(0),
        b"#!/bin/sh\n#V2.0 Format\nmodprobe cloop",
        "cloop",
    ),
    (At::Start(0), b"Bochs Virtual HD Image", "bochs"),
    // Apple: a trailer with its version, 4, and size, 512; and sparse images.
    (At::Last(1023), b"koly\0\0\0\x04\0\0\x02\0", "dmg"),
    (At::Start(0), b"sprs", "an Apple sparse image"),
    (At::Start(0), b"shdw", "an Apple sparse image"),
    // AOSP, libsparse/sparse_format.h
    (
        At::Start(0),
        &[0x3a, 0xff, 0x26, 0xed],
        "an Android sparse image",
    ),
    (At::Start(0), b"EVF\x09\x0d\x0a\xff\0", "ewf"),
    (At::Start(0), b"EVF2\x0d\x0a\x81\0", "ewf"),
    (At::Start(0), b"partclone-image", "a partclone image"),
    // What images are handed out in. RFC 1952; the others by their own descriptions.
    (At::Start(0), &[0x1f, 0x8b, 8], "gzip"),
    (At::Start(0), &[0xfd, b'7', b'z', b'X', b'Z', 0], "xz"),
    (At::Start(0), &[0x28, 0xb5, 0x2f, 0xfd], "zstd"),
    // Skippable frames, 0x50 to 0x5f, as pzstd begins.
    (At::Start(1), &[0x2a, 0x4d, 0x18], "zstd or lz4"),
    (
        At::Start(0),
        &[
            0x5d, 0, 0, 0x80, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        ],
        "lzma",
    ),
    (At::Start(4), &[0x31, 0x41, 0x59, 0x26, 0x53, 0x59], "bzip2"),
    (At::Start(4), &[0x17, 0x72, 0x45, 0x38, 0x50, 0x90], "bzip2"),
    (At::Start(0), &[0x04, 0x22, 0x4d, 0x18], "lz4"),
    (At::Start(0), &[0x02, 0x21, 0x4c, 0x18], "lz4"),
    (At::Start(0), b"LZIP\x01", "lzip"),
    (At::Start(0), b"\x89LZO\0\x0d\x0a\x1a\x0a", "lzop"),
    (At::Start(0), &[0x1f, 0x9d], "compress"),
    (At::Start(0), b"7z\xbc\xaf\x27\x1c", "7z"),
    (At::Start(0), b"PK\x03\x04", "zip"),
    (At::Start(0), b"Rar!\x1a\x07", "rar"),
    (At::Start(0), b"MSWIM\0\0\0", "wim"),
    (At::Start(257), b"ustar", "tar (as .ova is)"),
];

/// The format of an image that is not raw, by its signature; `None` of one that is raw as far as that can be told.
///
/// # Errors
/// The system's, at reading.
pub fn detect(file: &File, size: u64) -> io::Result<Option<&'static str>> {
    let start = read(file, 0, START)?;
    let from = size.saturating_sub(END as u64);
    let end = read(file, from, END)?;
    if is_vmdk_descriptor(&start) {
        return Ok(Some("a vmdk descriptor"));
    }
    let found = SIGNATURES.iter().find(|(at, magic, _)| {
        let is_at = |bytes: &[u8], at: u64| {
            let bytes = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
            bytes.is_some_and(|bytes| bytes.starts_with(magic))
        };
        match *at {
            At::Start(at) => is_at(&start, at),
            At::End(back) => size >= back && is_at(&end, size - back - from),
            At::Last(bytes) => {
                let last = size.saturating_sub(bytes).max(from) - from;
                let last = usize::try_from(last).ok().and_then(|last| end.get(last..));
                let mut windows = last.unwrap_or_default().windows(magic.len());
                windows.any(|window| window == *magic)
            }
        }
    });
    Ok(found.map(|(_, _, name)| *name))
}

/// Whether it begins as the text that names the extents of a vmdk does: `version=` after comments and empty lines, as QEMU
/// has it (block/vmdk.c), or the comment that VMware begins it with.
fn is_vmdk_descriptor(start: &[u8]) -> bool {
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    let mut lines = start.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let title = b"# disk descriptorfile";
    let begins_with = |line: &[u8], words: &[u8]| {
        let begin = line.get(..words.len());
        begin.is_some_and(|begin| begin.eq_ignore_ascii_case(words))
    };
    if begins_with(start.trim_ascii_start(), title) {
        return true;
    }
    let first = lines.find(|line| !line.is_empty() && !line.starts_with(b"#"));
    first.is_some_and(|line| begins_with(line, b"version=") && line.len() < 16)
}

/// Up to so many bytes from an offset on.
fn read(file: &File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

/// Images that were served for writing as raw ones, as records in a folder: a file for each, whose name says which image it
/// is, and whose text begins with the image's size and has its path for people.
#[derive(Clone, Debug)]
pub struct RawImages {
    folder: PathBuf,
}

impl RawImages {
    /// Records in this folder, which need not be there yet.
    #[must_use]
    pub const fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Whether an image was served for writing before.
    ///
    /// # Errors
    /// It is not known which image it is.
    pub fn contains(&self, image: &File, size: u64) -> io::Result<bool> {
        let recorded = self.recorded(&identity(image)?);
        Ok(recorded.is_some_and(|recorded| recorded <= size))
    }

    /// The size in a record.
    fn recorded(&self, name: &str) -> Option<u64> {
        let text = std::fs::read_to_string(self.folder.join(name)).ok()?;
        text.split_whitespace().next()?.parse().ok()
    }

    /// Records an image as raw, durably, with the size that it has now.
    ///
    /// # Errors
    /// The folder cannot be made or written, or it is not known which image it is.
    pub fn insert(&self, image: &File, size: u64, path: &Path) -> io::Result<()> {
        let name = identity(image)?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        if self.recorded(&name) != Some(size) {
            // Another server may do the same at this time, with the same result.
            let draft = self.folder.join(format!("{name}.{}", std::process::id()));
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&draft)?;
            writeln!(file, "{size} {path:?}")?;
            file.sync_all()?;
            std::fs::rename(&draft, self.folder.join(&name))?;
        }
        // Also where it was there: its folder's entry may not be on the disk yet.
        File::open(&self.folder)?.sync_all()?;
        if let Some(parent) = self.folder.parent() {
            File::open(parent)?.sync_all()?;
        }
        Ok(())
    }
}

/// Which image it is, as the name of a file.
fn identity(image: &File) -> io::Result<String> {
    let meta = image.metadata()?;
    if meta.file_type().is_block_device() {
        // It may be served as the file that it is of the next time.
        if let Some(file) = whole_loop(meta.rdev()) {
            return Ok(file_identity(&file));
        }
        let device = device_identity(meta.rdev())?;
        let device = blake3::hash(device.as_bytes()).to_hex();
        return Ok(format!("device-{}", &device.as_str()[..32]));
    }
    Ok(file_identity(&meta))
}

/// The file of a loop device that has all of it.
fn whole_loop(rdev: u64) -> Option<Metadata> {
    let [major, minor] = [rustix::fs::major(rdev), rustix::fs::minor(rdev)];
    let folder = format!("/sys/dev/block/{major}:{minor}/loop");
    let text = |name: &str| std::fs::read_to_string(format!("{folder}/{name}")).ok();
    if text("offset")?.trim() != "0" || text("sizelimit")?.trim() != "0" {
        return None;
    }
    std::fs::metadata(text("backing_file")?.trim_end_matches('\n')).ok()
}

fn file_identity(meta: &Metadata) -> String {
    let born = meta.created().ok();
    let born = born.and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    match born {
        Some(born) => format!("file-{}-{}", meta.ino(), born.as_nanos()),
        // File systems without birth times; the device tells apart what inodes do not.
        None => format!("file-{}-on-{}", meta.ino(), meta.dev()),
    }
}

/// What a device is known by after a reboot: the numbers of device-mapper, of the disk itself, or the file of a loop
/// device; of a partition, that of its disk with it.
fn device_identity(rdev: u64) -> io::Result<String> {
    let [major, minor] = [rustix::fs::major(rdev), rustix::fs::minor(rdev)];
    let folder = PathBuf::from(format!("/sys/dev/block/{major}:{minor}")).canonicalize()?;
    let text = |folder: &Path, name: &str| {
        let text = std::fs::read_to_string(folder.join(name)).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    };
    if let (Some(number), Some(disk)) = (text(&folder, "partition"), folder.parent()) {
        let disk = text(disk, "dev").ok_or(io::ErrorKind::NotFound)?;
        let (major, minor) = disk.split_once(':').ok_or(io::ErrorKind::InvalidData)?;
        let [major, minor] = [major, minor].map(|number| number.parse().map_err(io::Error::other));
        let disk = device_identity(rustix::fs::makedev(major?, minor?))?;
        return Ok(format!("{disk} partition {number}"));
    }
    if let Some(backing) = text(&folder, "loop/backing_file") {
        let offset = text(&folder, "loop/offset").unwrap_or_default();
        let meta = std::fs::metadata(&backing)?;
        return Ok(format!("{} at {offset}", file_identity(&meta)));
    }
    let known = ["dm/uuid", "wwid", "device/wwid", "serial", "device/serial"];
    let found = known.into_iter().find_map(|name| text(&folder, name));
    found.ok_or_else(|| io::Error::other("the device has neither a WWID nor a serial number"))
}

#[cfg(test)]
mod tests;
