//! How much a disk moves: sequential direct reads or writes of a file of our own, by a few threads,
//! in slices, and what others moved in each.
//!
//! The kernel counts what each block device moved (`/sys/dev/block/MAJOR:MINOR/stat`, sectors of 512
//! bytes; Documentation/block/stat.rst): what it moved and we did not, others did.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bonsai_stats::SplitMix64;
use rustix::fs::{Mode, OFlags, fdatasync, fstat, fstatvfs, major, minor, open};
use rustix::io::{Errno, pread, pwrite};

/// Bytes of one read or write: large enough that a disk does nothing but move them.
const BLOCK: u64 = 1 << 20;

/// What buffers of direct reads and writes are aligned to: no disk has larger sectors.
const ALIGNED: usize = 4096;

/// Reads or writes at a time, as a few programs would have.
const THREADS: u64 = 4;

/// The largest file.
const LARGEST: u64 = 256 << 20;

/// The smallest that says anything.
const SMALLEST: u64 = 8 << 20;

/// Of what is free, the part of it that is taken.
const OF_FREE: u64 = 20;

/// The most that is written in one measurement: flash wears.
const MOST_WRITTEN: u64 = 4 << 30;

/// Slices of a measurement.
const SLICES: u32 = 12;

/// What was moved in one slice, bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Slice {
    /// By us.
    pub(super) own: f64,
    /// By others, of the same kind.
    pub(super) others: Option<f64>,
    /// By others, of the other kind.
    pub(super) against: Option<f64>,
}

/// A measurement.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Run {
    pub(super) slices: Vec<Slice>,
    /// Bytes of the file.
    pub(super) file: u64,
    /// Bytes moved, with those of making the file.
    pub(super) moved: u64,
    /// The device's name, if it is known.
    pub(super) device: Option<String>,
    pub(super) folder: PathBuf,
}

/// A device as the kernel counts it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Device {
    name: String,
    stat: PathBuf,
}

impl Device {
    /// The whole device that a device number is of or a part of; one that is no block device's
    /// (several devices behind one file system, or none) is not known.
    fn of(numbers: &Path, device: u64) -> Option<Self> {
        let (major, minor) = (major(device), minor(device));
        let place = fs::canonicalize(numbers.join(format!("{major}:{minor}"))).ok()?;
        let whole = if place.join("partition").exists() {
            place.parent()?.to_owned()
        } else {
            place
        };
        Some(Self {
            name: whole.file_name()?.to_str()?.to_owned(),
            stat: whole.join("stat"),
        })
    }

    /// Bytes read and written so far.
    fn moved(&self) -> Option<[u64; 2]> {
        let text = fs::read_to_string(&self.stat).ok()?;
        let fields: Vec<u64> = text
            .split_whitespace()
            .map_while(|f| f.parse().ok())
            .collect();
        Some([fields.get(2)? * 512, fields.get(6)? * 512])
    }
}

/// A file without a name in that folder, or with one for a moment only, for direct reads and writes.
fn scratch(folder: &Path) -> Result<OwnedFd, String> {
    let at = folder.display();
    if !folder.is_absolute() {
        return Err(format!("path: {at} is no whole path: begin it with /"));
    }
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let unnamed = open(folder, flags | OFlags::TMPFILE, mode);
    let opened = match unnamed {
        // Not every file system has files without a name.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            sweep(folder);
            named(folder, flags, mode)
        }
        other => other,
    };
    opened.map_err(|error| match error {
        Errno::INVAL => format!(
            "{at}: its file system has no direct reads and writes, so no disk can be measured there"
        ),
        Errno::NOTDIR => format!("{at} is no folder: name one that is on the disk"),
        // So packaging/systemd runs the one of root.
        Errno::ROFS | Errno::ACCESS => format!(
            "{at}: the daemon may not write there ({error}); where it runs as a service, \
             ReadWritePaths={at} in its unit lets it (systemctl edit bonsai)"
        ),
        error => format!("{at}: no file can be made there: {error}"),
    })
}

/// What names of files begin with where they need one; the process follows.
const NAMED: &str = ".bonsai-probe-";

/// A file that loses its name at once. Whoever is killed in between leaves it behind, empty, for
/// [`sweep`].
fn named(folder: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let made = tempfile::Builder::new()
        .prefix(&format!("{NAMED}{}-", std::process::id()))
        .make_in(folder, |path| Ok(open(path, flags, mode)?));
    let (file, path) = made
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?
        .into_parts();
    // Nothing is written to one that would stay.
    path.close()
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(file)
}

/// Removes what measurements that were killed have left in a folder: files of this user's, of
/// processes that are no more.
fn sweep(folder: &Path) {
    let own = rustix::process::geteuid().as_raw();
    // There is one measurement at a time in a process: of this one, all are over.
    let is_over =
        |pid: u32| pid == std::process::id() || !Path::new("/proc").join(pid.to_string()).exists();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(NAMED));
        let pid = rest.and_then(|rest| rest.split('-').next()?.parse().ok());
        let is_own = |meta: fs::Metadata| meta.is_file() && meta.uid() == own;
        if pid.is_some_and(is_over) && entry.metadata().is_ok_and(is_own) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// How large the file may be.
fn size(file: &OwnedFd, folder: &Path) -> Result<u64, String> {
    let at = folder.display();
    let space =
        fstatvfs(file).map_err(|error| format!("{at}: what is free is not known: {error}"))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let size = (free / OF_FREE).min(LARGEST) / BLOCK * BLOCK;
    if size < SMALLEST {
        return Err(format!(
            "{at}: {} MiB are free, and to measure a disk takes {} MiB: a twentieth of what is free \
             is taken at most",
            free >> 20,
            (SMALLEST * OF_FREE) >> 20
        ));
    }
    Ok(size)
}

/// A block, aligned, that no disk can make smaller.
struct Block {
    bytes: Vec<u8>,
    from: usize,
}

#[expect(clippy::cast_possible_truncation, reason = "a MiB")]
const LENGTH: usize = BLOCK as usize;

impl Block {
    fn new(seed: u64) -> Self {
        let mut bytes = vec![0; LENGTH + ALIGNED];
        let from = bytes.as_ptr().align_offset(ALIGNED).min(ALIGNED);
        let mut random = SplitMix64::new(seed);
        for word in bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next_u64().to_le_bytes());
        }
        Self { bytes, from }
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + LENGTH]
    }
}

/// What the threads share.
struct Work<'a> {
    file: &'a OwnedFd,
    size: u64,
    writes: bool,
    next: AtomicU64,
    moved: AtomicU64,
    ended: AtomicBool,
}

impl Work<'_> {
    /// Moves one block after the other until it is over.
    fn go(&self, seed: u64) -> Result<(), Errno> {
        let mut block = Block::new(seed);
        while !self.ended.load(Ordering::Relaxed) {
            if self.writes && self.next.load(Ordering::Relaxed) >= MOST_WRITTEN {
                break;
            }
            let at = self.next.fetch_add(BLOCK, Ordering::Relaxed) % self.size;
            let moved = if self.writes {
                pwrite(self.file, block.get(), at)
            } else {
                pread(self.file, block.get(), at)
            };
            match moved {
                Ok(n) => drop(self.moved.fetch_add(n as u64, Ordering::Relaxed)),
                Err(Errno::INTR) => {}
                Err(error) => {
                    self.ended.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// Measures.
pub(super) fn run(folder: &Path, writes: bool, time: Duration) -> Result<Run, String> {
    let file = scratch(folder)?;
    let most = size(&file, folder)?;
    let failed = |error: Errno| format!("{}: the disk says: {error}", folder.display());
    let written = fill(&file, most, time / 2).map_err(failed)?;
    let number = fstat(&file).map_err(failed)?.st_dev;
    let device = Device::of(Path::new("/sys/dev/block"), number);
    let work = Work {
        file: &file,
        size: written,
        writes,
        next: AtomicU64::new(0),
        moved: AtomicU64::new(0),
        ended: AtomicBool::new(false),
    };
    let slices = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|i| {
                scope.spawn({
                    let work = &work;
                    move || work.go(number ^ (i + 1) << 32)
                })
            })
            .collect();
        let slices = watch(&work, device.as_ref(), time);
        work.ended.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().unwrap_or(Err(Errno::IO)).map_err(failed)?;
        }
        Ok::<_, String>(slices)
    })?;
    Ok(Run {
        slices,
        file: written,
        moved: written + work.moved.into_inner(),
        device: device.map(|device| device.name),
        folder: folder.to_owned(),
    })
}

/// Writes the file, for as long as it may take; how much of it is there.
fn fill(file: &OwnedFd, size: u64, time: Duration) -> Result<u64, Errno> {
    let start = Instant::now();
    let mut written = 0;
    let mut block = Block::new(size);
    while written < size && (start.elapsed() < time || written < SMALLEST) {
        written += pwrite(file, block.get(), written)? as u64;
    }
    fdatasync(file)?;
    Ok(written / BLOCK * BLOCK)
}

/// Takes the slices.
fn watch(work: &Work<'_>, device: Option<&Device>, time: Duration) -> Vec<Slice> {
    let look = || {
        // What only the disk's own memory has is not written yet.
        if work.writes {
            let _ = fdatasync(work.file);
        }
        let all = device.and_then(Device::moved);
        (Instant::now(), work.moved.load(Ordering::Relaxed), all)
    };
    let begin = Instant::now();
    let mut slices = Vec::new();
    let mut before = look();
    for i in 1..=SLICES {
        let due = begin + time * i / SLICES;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        // One that ended early has nothing more to say.
        if work.ended.load(Ordering::Relaxed) || begin.elapsed() > time * 2 {
            break;
        }
        let now = look();
        if work.writes && work.next.load(Ordering::Relaxed) >= MOST_WRITTEN {
            break;
        }
        slices.push(slice(work.writes, &before, &now));
        before = now;
    }
    slices
}

type Look = (Instant, u64, Option<[u64; 2]>);

fn slice(writes: bool, before: &Look, now: &Look) -> Slice {
    let time = (now.0 - before.0).as_secs_f64().max(1e-9);
    let own = now.1.saturating_sub(before.1) as f64 / time;
    let all = before.2.zip(now.2).map(|(before, now)| {
        [0, 1].map(|kind: usize| now[kind].saturating_sub(before[kind]) as f64 / time)
    });
    let [same, other] = if writes { [1, 0] } else { [0, 1] };
    Slice {
        own,
        others: all.map(|all| (all[same] - own).max(0.0)),
        against: all.map(|all| all[other]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_moved_is_what_the_device_moved_and_we_did_not() {
        let start = Instant::now();
        let later = start + Duration::from_secs(2);
        let read = slice(
            false,
            &(start, 100, Some([0, 50])),
            &(later, 300, Some([500, 90])),
        );
        assert_eq!(
            read,
            Slice {
                own: 100.0,
                others: Some(150.0),
                against: Some(20.0)
            }
        );
        // What is counted a moment later is nobody's debt.
        let write = slice(
            true,
            &(start, 0, Some([0, 0])),
            &(later, 300, Some([8, 100])),
        );
        assert_eq!(
            write,
            Slice {
                own: 150.0,
                others: Some(0.0),
                against: Some(4.0)
            }
        );
        assert_eq!(
            slice(true, &(start, 0, None), &(later, 2, None)).others,
            None
        );
    }

    #[test]
    fn a_part_of_a_device_counts_as_the_whole() {
        let root = tempfile::tempdir().expect("a folder");
        let whole = root.path().join("sda");
        let part = whole.join("sda1");
        fs::create_dir_all(&part).expect("folders");
        fs::write(part.join("partition"), "1\n").expect("a file");
        fs::write(whole.join("stat"), " 1 0 8 5 2 0 16 3 0 0 0\n").expect("a file");
        let numbers = root.path().join("numbers");
        fs::create_dir(&numbers).expect("a folder");
        std::os::unix::fs::symlink("../sda/sda1", numbers.join("8:1")).expect("a link");
        let device = Device::of(&numbers, rustix::fs::makedev(8, 1)).expect("a device");
        assert_eq!(
            (device.name.as_str(), device.moved()),
            ("sda", Some([4096, 8192]))
        );
        assert_eq!(Device::of(&numbers, rustix::fs::makedev(0, 44)), None);
    }

    #[test]
    fn what_cannot_be_measured_is_said() {
        let error = |path: &str| scratch(Path::new(path)).expect_err(path);
        assert!(error("relative").contains("no whole path"));
        assert!(error("/proc/self/stat").contains("no folder"));
        assert!(error("/nonexistent/folder").contains("no file can be made there"));
        assert!(error("/proc").contains("/proc: "));
    }

    #[test]
    fn a_file_with_a_name_loses_it_and_what_was_left_behind_is_swept() {
        let folder = tempfile::tempdir().expect("a folder");
        let names = || {
            let entries = fs::read_dir(folder.path()).expect("a folder");
            let mut names: Vec<String> = entries
                .map(|entry| {
                    entry
                        .expect("an entry")
                        .file_name()
                        .into_string()
                        .expect("text")
                })
                .collect();
            names.sort();
            names
        };
        let file = named(folder.path(), OFlags::RDWR, Mode::RUSR | Mode::WUSR).expect("a file");
        assert_eq!(names(), Vec::<String>::new());
        assert_eq!(pwrite(&file, b"it is written to", 0), Ok(16));
        // One above all pids, this one, one that lives (the parent), and no file of ours.
        let parent = std::os::unix::process::parent_id();
        let stays = [format!("{NAMED}{parent}-c"), format!("{NAMED}x")];
        for name in [
            &format!("{NAMED}4194305-a"),
            &format!("{NAMED}{}-b", std::process::id()),
        ]
        .into_iter()
        .chain(&stays)
        {
            fs::write(folder.path().join(name), "").expect("a file");
        }
        sweep(folder.path());
        let mut expected = stays.to_vec();
        expected.sort();
        assert_eq!(names(), expected);
    }
}
