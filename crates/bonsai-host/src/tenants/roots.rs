//! Where the state of the machine lies, and careful reading of it.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::de::DeserializeOwned;

/// The folders that everything is read below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// procfs, `/proc`.
    pub proc: PathBuf,
    /// State of this boot, `/run`.
    pub run: PathBuf,
    /// State that stays, `/var`.
    pub var: PathBuf,
    /// Configuration, `/etc`.
    pub etc: PathBuf,
}

impl Default for Roots {
    /// Those of this machine.
    fn default() -> Self {
        Self::below(Path::new("/"))
    }
}

impl Roots {
    /// The folders `proc`, `run`, `var` and `etc` in `root`.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        Self {
            proc: root.join("proc"),
            run: root.join("run"),
            var: root.join("var"),
            etc: root.join("etc"),
        }
    }

    /// Whether processes in `proc` can be asked by their number, too.
    pub(super) fn is_live(&self) -> bool {
        self.proc == Path::new("/proc")
    }
}

/// The contents of a regular file of at most `limit` bytes. `None` for all else: what belongs to
/// others may be missing, a pipe without an end, or far too long, and is then of no use.
pub(super) fn read(path: &Path, limit: u64) -> Option<Vec<u8>> {
    // Without NONBLOCK, opening a pipe would wait for its other end.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= limit).then_some(bytes)
}

/// A JSON file of at most `limit` bytes. Parts that `T` does not name may have any form.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path, limit: u64) -> Option<T> {
    serde_json::from_slice(&read(path, limit)?).ok()
}

/// The contents of `name` in a process's folder; it is gone with `ESRCH` once the process is,
/// also if its number is another's by then.
pub(super) fn read_of_process(folder: &File, name: &str, limit: usize) -> Result<Vec<u8>, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, name, flags, Mode::empty())?;
    // Nearly all of procfs fits into this, and the kernel does not know the length before.
    let mut bytes = Vec::with_capacity(4096);
    while bytes.len() <= limit {
        bytes.reserve(1024);
        if rustix::io::read(&file, spare_capacity(&mut bytes))? == 0 {
            return Ok(bytes);
        }
    }
    Err(Errno::FBIG)
}

/// The names in a folder that are text, at most 10,000; none if it cannot be read.
pub(super) fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .take(10_000)
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}
