//! Processes: who they are, whose children they are, what they did.
//!
//! Everything comes from `/proc`. A process that does not exist (any more) is `None`, not an error;
//! one whose files this user may not read is an error.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::{Error, mapped};

/// A process as it was when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process ID.
    pub pid: u32,
    /// Process ID of the parent; 0 if it has none in this PID namespace.
    pub ppid: u32,
    /// When it started, in clock ticks (100 a second) since the machine did. Together with `pid`
    /// it tells a process from a later one with the same number.
    pub start_ticks: u64,
    /// Name of the program, at most 15 bytes, or what the process made of it.
    pub comm: String,
    /// The executable; `None` for kernel threads, zombies, and processes of other users.
    pub exe: Option<PathBuf>,
    /// The state letter of proc(5), such as `R`, `S`, `D` or `Z`.
    pub state: char,
    /// Number of threads.
    pub threads: u32,
}

/// What a process has read and written by system calls (`/proc/PID/io`). Bytes and calls of its
/// children count once they are waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounters {
    /// Bytes that read-like calls returned, also from the page cache, pipes and sockets.
    pub rchar: u64,
    /// Bytes that write-like calls took.
    pub wchar: u64,
    /// Read-like calls.
    pub syscr: u64,
    /// Write-like calls.
    pub syscw: u64,
    /// Bytes that were fetched from a block device.
    pub read_bytes: u64,
    /// Bytes that are to go to a block device.
    pub write_bytes: u64,
}

/// How a process restricts its system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seccomp {
    /// Not at all.
    Off,
    /// Only read, write, exit and return from a signal are allowed.
    Strict,
    /// A filter decides.
    Filter,
}

/// The parts of `/proc/PID/status` that tell what a process may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Real, effective, saved and file system user ID.
    pub uids: [u32; 4],
    /// Its restriction of system calls.
    pub seccomp: Seccomp,
    /// Whether exec can give it no new rights.
    pub no_new_privs: bool,
}

/// All processes at one moment (nearly: reading them takes a while).
#[derive(Clone, Debug, Default)]
pub struct Processes {
    by_pid: BTreeMap<u32, Process>,
}

impl Processes {
    /// Reads all processes that this user sees, in one pass over `/proc`.
    ///
    /// # Errors
    ///
    /// [`Error::Read`] if `/proc` is not mounted or not readable.
    pub fn read() -> Result<Self, Error> {
        let proc = Path::new("/proc");
        let entries = fs::read_dir(proc).map_err(|source| Error::read(proc, source))?;
        let mut by_pid = BTreeMap::new();
        for entry in entries {
            let entry = entry.map_err(|source| Error::read(proc, source))?;
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            if let Some(process) = process(pid)? {
                by_pid.insert(pid, process);
            }
        }
        Ok(Self { by_pid })
    }

    /// The process `pid`.
    #[must_use]
    pub fn get(&self, pid: u32) -> Option<&Process> {
        self.by_pid.get(&pid)
    }

    /// All processes, by ascending PID.
    pub fn iter(&self) -> impl Iterator<Item = &Process> {
        self.by_pid.values()
    }

    /// The children of `pid`, by ascending PID.
    pub fn children(&self, pid: u32) -> impl Iterator<Item = &Process> {
        self.iter().filter(move |process| process.ppid == pid)
    }

    /// The children of `pid`, their children, and so on; parents before children. A process whose
    /// parent ended has been given to init or a subreaper and is not among them.
    #[must_use]
    pub fn descendants(&self, pid: u32) -> Vec<&Process> {
        let mut found: Vec<&Process> = self.children(pid).collect();
        let mut next = 0;
        while let Some(parent) = found.get(next).map(|process| process.pid) {
            // The moments differ, so a reused PID could close a circle.
            let new = self.children(parent).filter(|child| {
                child.pid != pid && !found.iter().any(|known| known.pid == child.pid)
            });
            let new: Vec<&Process> = new.collect();
            found.extend(new);
            next += 1;
        }
        found
    }
}

/// Reads the process `pid`.
///
/// # Errors
///
/// [`Error::Read`] if it exists but cannot be read, [`Error::Unexpected`] if the kernel's answer is
/// not as documented.
pub fn process(pid: u32) -> Result<Option<Process>, Error> {
    let path = path(pid, "stat");
    let Some(stat) = read(&path)? else {
        return Ok(None);
    };
    let mut process = parse_stat(&stat).ok_or(Error::Unexpected {
        path,
        what: "PID, (name), state, parent and further fields",
    })?;
    process.exe = exe(pid)?;
    Ok(Some(process))
}

/// The executable of `pid`; `None` also for kernel threads, zombies and processes of other users.
///
/// # Errors
///
/// [`Error::Read`] for anything but these.
pub fn exe(pid: u32) -> Result<Option<PathBuf>, Error> {
    let path = path(pid, "exe");
    match fs::read_link(&path) {
        Ok(exe) => Ok(Some(exe)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        Err(error) => Err(Error::read(&path, error)),
    }
}

/// Reads what `pid` has read and written.
///
/// # Errors
///
/// [`Error::Read`] if the process belongs to someone else, [`Error::Unexpected`] if a counter is
/// missing.
pub fn io(pid: u32) -> Result<Option<IoCounters>, Error> {
    let path = path(pid, "io");
    let Some(text) = read(&path)? else {
        return Ok(None);
    };
    let counter = |name| field(&text, name)?.parse().ok();
    let counters = || {
        Some(IoCounters {
            rchar: counter("rchar")?,
            wchar: counter("wchar")?,
            syscr: counter("syscr")?,
            syscw: counter("syscw")?,
            read_bytes: counter("read_bytes")?,
            write_bytes: counter("write_bytes")?,
        })
    };
    let what = "rchar, wchar, syscr, syscw, read_bytes and write_bytes";
    counters().map(Some).ok_or(Error::Unexpected { path, what })
}

/// Whether `pid` has mapped the file `file`.
///
/// The file is known by its path or, where the file system allows it, by device and inode number,
/// so that a renamed or deleted file is found as well. A zombie has mapped nothing.
///
/// # Errors
///
/// [`Error::Read`] if the process belongs to someone else.
pub fn has_mapped(pid: u32, file: &Path) -> Result<Option<bool>, Error> {
    let path = path(pid, "maps");
    let id = fs::metadata(file).ok().map(|metadata| {
        let device = metadata.dev();
        let device = (rustix::fs::major(device), rustix::fs::minor(device));
        (device, metadata.ino())
    });
    if let Some((device, inode)) = id
        && let Ok(maps) = fs::File::open(&path)
        && mapped::shares(&maps, device, inode)
    {
        return Ok(Some(true));
    }
    let Some(maps) = read(&path)? else {
        return Ok(None);
    };
    let id =
        id.map(|((major, minor), inode)| (format!("{major:02x}:{minor:02x}"), inode.to_string()));
    // address perms offset device inode path
    let is_file = |line: &str| {
        let mut fields = line.splitn(6, ' ').skip(3);
        let (device, inode) = (fields.next(), fields.next());
        let name = fields.next().unwrap_or_default().trim_start();
        let same_id = id
            .as_ref()
            .is_some_and(|id| device == Some(id.0.as_str()) && inode == Some(id.1.as_str()));
        same_id || OsStr::from_bytes(name.as_bytes()) == file.as_os_str()
    };
    Ok(Some(maps.lines().any(is_file)))
}

/// Reads what `pid` may do.
///
/// # Errors
///
/// [`Error::Read`] if it cannot be read, [`Error::Unexpected`] if the user IDs are missing.
pub fn status(pid: u32) -> Result<Option<Status>, Error> {
    let path = path(pid, "status");
    let Some(text) = read(&path)? else {
        return Ok(None);
    };
    let what = "four user IDs";
    parse_status(&text)
        .map(Some)
        .ok_or(Error::Unexpected { path, what })
}

fn path(pid: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
}

/// A process ends by losing its directory, or, if a file in it is open already, by `ESRCH`.
fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::NOENT, Errno::SRCH].map(Errno::raw_os_error);
    error
        .raw_os_error()
        .is_some_and(|code| gone.contains(&code))
}

fn read(path: &Path) -> Result<Option<String>, Error> {
    // With room for all of it the kernel is asked twice instead of ten times.
    let mut bytes = Vec::with_capacity(1 << 14);
    let read = fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    match read {
        // Names of programs and files may be any bytes.
        Ok(_) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(Error::read(path, error)),
    }
}

/// The value in a line `name: value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(name)?.strip_prefix(':');
    text.lines().find_map(value).map(str::trim)
}

fn parse_stat(stat: &str) -> Option<Process> {
    // The name may hold blanks and parentheses; its own are the outermost.
    let (pid, rest) = stat.split_once(" (")?;
    let (comm, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // proc(5) counts from 1 and with PID and name: state is its third field.
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Process {
        pid: pid.parse().ok()?,
        ppid: field(4)?.parse().ok()?,
        start_ticks: field(22)?.parse().ok()?,
        comm: comm.to_owned(),
        exe: None,
        state: field(3)?.chars().next()?,
        threads: field(20)?.parse().ok()?,
    })
}

fn parse_status(text: &str) -> Option<Status> {
    let uids = field(text, "Uid")?.split_ascii_whitespace();
    let uids: Vec<u32> = uids.map_while(|uid| uid.parse().ok()).collect();
    Some(Status {
        uids: uids.try_into().ok()?,
        // Kernels without seccomp have no such line.
        seccomp: match field(text, "Seccomp") {
            Some("1") => Seccomp::Strict,
            Some("2") => Seccomp::Filter,
            _ => Seccomp::Off,
        },
        no_new_privs: field(text, "NoNewPrivs") == Some("1"),
    })
}

#[cfg(test)]
mod tests {
    use super::{Process, Processes, Seccomp, field, parse_stat, parse_status};

    #[test]
    fn names_with_blanks_and_parentheses() {
        let stat = "42 (a) R (b c) S 7 42 42 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 3 0 991 1 2\n";
        let process = parse_stat(stat).expect("a process");
        assert_eq!((process.pid, process.ppid, process.threads), (42, 7, 3));
        assert_eq!((process.comm.as_str(), process.state), ("a) R (b c", 'S'));
        assert_eq!(process.start_ticks, 991);
        assert_eq!(parse_stat("42 (a) S 7"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn status_fields() {
        let text = "Name:\tx\nUid:\t1\t2\t3\t4\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        let status = parse_status(text).expect("a status");
        assert_eq!(status.uids, [1, 2, 3, 4]);
        assert_eq!(
            (status.seccomp, status.no_new_privs),
            (Seccomp::Filter, true)
        );
        let old = parse_status("Uid:\t0\t0\t0\t0\n").expect("a status");
        assert_eq!((old.seccomp, old.no_new_privs), (Seccomp::Off, false));
        assert_eq!(parse_status("Uid:\t0\t0\n"), None);
        assert_eq!(field("ab: 1\na: 2\n", "a"), Some("2"));
    }

    #[test]
    fn a_circle_of_reused_numbers_ends() {
        let process = |pid, ppid| Process {
            pid,
            ppid,
            start_ticks: 0,
            comm: String::new(),
            exe: None,
            state: 'S',
            threads: 1,
        };
        let by_pid = [(2, 4), (3, 2), (4, 3)].map(|(pid, ppid)| (pid, process(pid, ppid)));
        let processes = Processes {
            by_pid: by_pid.into(),
        };
        let pids: Vec<u32> = processes.descendants(2).iter().map(|p| p.pid).collect();
        assert_eq!(pids, [3, 4]);
    }
}
