//! Directories, clock and processors.

use std::fs;
use std::path::Path;
use std::thread::available_parallelism;

use rustix::fs::{Access, AtFlags, CWD, StatVfsMountFlags};
use rustix::io::Errno;

use super::{Capability, State};
use crate::runtime;

/// What one service takes there at most, in bytes.
const SERVICE_BYTES: u64 = 256 << 10;

pub(super) fn shared_memory() -> Capability {
    let (state, detail) = usable(Path::new("/dev/shm"));
    Capability::new("shared_memory", state, detail)
}

pub(super) fn runtime_dir() -> Capability {
    let name = "runtime_dir";
    let path = match runtime::runtime_dir_path() {
        Ok(path) => path,
        Err(error) => return Capability::new(name, State::No, error.to_string()),
    };
    // It is made by the first service; until then, its parent must allow that.
    let existing = match (fs::symlink_metadata(&path), path.parent()) {
        (Ok(_), _) => match runtime::private_dir(&path) {
            Ok(()) => &*path,
            Err(error) => return Capability::new(name, State::No, error.to_string()),
        },
        (Err(_), Some(parent)) => parent,
        (Err(error), None) => return Capability::new(name, State::No, error.to_string()),
    };
    let (state, detail) = usable(existing);
    Capability::new(name, state, format!("{}: {detail}", path.display()))
}

/// Whether files can be made in `directory`, and libraries loaded from it.
fn usable(directory: &Path) -> (State, String) {
    let stat = match rustix::fs::statvfs(directory) {
        Ok(stat) => stat,
        Err(errno) => return (State::No, format!("{}: {errno}", directory.display())),
    };
    let access = Access::WRITE_OK | Access::EXEC_OK;
    if let Err(errno) = rustix::fs::accessat(CWD, directory, access, AtFlags::EACCESS) {
        let what = match errno {
            Errno::ROFS => "is on a read-only file system",
            _ => "is not writable for this user",
        };
        return (State::No, format!("{} {what}", directory.display()));
    }
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free < SERVICE_BYTES {
        let text = format!("{} has only {free} bytes free", directory.display());
        return (State::No, text);
    }
    let mebibytes = free >> 20;
    let noexec = stat.f_flag.contains(StatVfsMountFlags::NOEXEC);
    let note = if noexec {
        ", mounted noexec: no library can be loaded from it"
    } else {
        ""
    };
    (State::Yes, format!("writable, {mebibytes} MiB free{note}"))
}

pub(super) fn clock_source() -> Capability {
    const CURRENT: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = fs::read_to_string(CURRENT);
    // These are read without a system call (`arch/x86/entry/vdso`).
    let (state, detail) = match source.as_deref().map(str::trim) {
        Ok(fast @ ("tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page")) => {
            (State::Yes, format!("{fast}: reading the time is cheap"))
        }
        Ok(slow) => {
            let detail = format!("{slow}: reading the time is a system call, so waits cost more");
            (State::No, detail)
        }
        Err(error) => (State::Unknown, format!("{CURRENT}: {error}")),
    };
    Capability::new("clock_source", state, detail)
}

pub(super) fn cpus() -> Capability {
    match available_parallelism() {
        Ok(count) => Capability::new(
            "cpus",
            State::Yes,
            format!("{count} usable by this process"),
        ),
        Err(error) => Capability::new("cpus", State::Unknown, error.to_string()),
    }
}
