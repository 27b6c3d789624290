//! The file system that a name in the folder is on, as the list of mounts tells: no file system is asked, as it may
//! hang. A link in the folder to another file system counts as what it stands on.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::makedev;

/// The mounts of this thread, as long as they are as they were read.
#[derive(Debug)]
pub(super) struct Mounts {
    root: PathBuf,
    file: Option<File>,
    /// Where something is mounted, and the number of its device; what was mounted last is last.
    all: Vec<(PathBuf, u64)>,
}

impl Mounts {
    pub(super) fn new(root: &Path) -> Self {
        let mut mounts = Self {
            root: root.canonicalize().unwrap_or_else(|_| root.to_owned()),
            // Not that of the process: threads may have mounts of their own.
            file: File::open("/proc/thread-self/mountinfo").ok(),
            all: Vec::new(),
        };
        mounts.read();
        mounts
    }

    /// The device of a name in the folder; 0 where that is not known.
    pub(super) fn device(&mut self, name: &str) -> u64 {
        if self.has_changed() {
            self.read();
        }
        device(&self.all, &self.root.join(name))
    }

    /// The list says so of itself (proc(5), mountinfo: since Linux 2.6.26, for poll).
    fn has_changed(&self) -> bool {
        let Some(file) = &self.file else {
            return false;
        };
        let mut list = [PollFd::new(file, PollFlags::PRI)];
        let changed = PollFlags::PRI | PollFlags::ERR;
        poll(&mut list, Some(&Timespec::default())).is_ok() && list[0].revents().intersects(changed)
    }

    fn read(&mut self) {
        let Some(file) = &mut self.file else {
            return;
        };
        let mut bytes = Vec::new();
        if file.rewind().is_ok() && file.read_to_end(&mut bytes).is_ok() {
            self.all = bytes
                .split(|byte| *byte == b'\n')
                .filter_map(mount)
                .collect();
        }
    }
}

fn device(all: &[(PathBuf, u64)], path: &Path) -> u64 {
    let above = all.iter().filter(|(at, _)| path.starts_with(at));
    // The last of several at one place is seen.
    let nearest = above.max_by_key(|(at, _)| at.as_os_str().len());
    nearest.map_or(0, |(_, device)| *device)
}

/// A line of the list: the numbers of the device are third, the place is fifth.
fn mount(line: &[u8]) -> Option<(PathBuf, u64)> {
    let mut fields = line.split(|byte| *byte == b' ');
    let numbers = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = numbers.split_once(':')?;
    let device = makedev(major.parse().ok()?, minor.parse().ok()?);
    let at = unescaped(fields.nth(1)?);
    Some((PathBuf::from(std::ffi::OsString::from_vec(at)), device))
}

/// Space, tab, line end and backslash stand as `\` and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| *first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_on_the_nearest_mount_above_it() {
        const LIST: &str = "22 1 254:0 / / rw - ext4 /dev/root rw\n\
            23 22 0:5 / /films/far\\040away rw shared:1 - nfs server:/ rw\n\
            24 22 0:6 / /films/cache rw - tmpfs none rw\n\
            25 24 0:7 / /films/cache rw - fuse films rw\n";
        let lines = LIST.as_bytes().split(|byte| *byte == b'\n');
        let all: Vec<(PathBuf, u64)> = lines.filter_map(mount).collect();
        assert_eq!(all.len(), 4);
        for (path, expected) in [
            ("/films/a.mp4", (254, 0)),
            ("/films/far away/a.mp4", (0, 5)),
            ("/films/far/a.mp4", (254, 0)),
            ("/films/cache/b/c.mp4", (0, 7)),
            ("/films/cached.mp4", (254, 0)),
        ] {
            let expected = makedev(expected.0, expected.1);
            assert_eq!(device(&all, Path::new(path)), expected, "{path}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let mut mounts = Mounts::new(folder.path());
        let known = rustix::fs::stat(folder.path()).expect("it is there");
        // A file system with subvolumes has other numbers for each.
        if mounts.all.iter().any(|(_, device)| *device == known.st_dev) {
            assert_eq!(mounts.device("a.mp4"), known.st_dev);
        }
    }
}
