//! The kernel's events of one device, by an instance of tracefs that nobody else has.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use bonsai_services::refusal::Refusal;
use rustix::fs::OFlags;

use crate::cli::TraceEvent;

/// How names of instances begin; the process's number follows.
const PREFIX: &str = "bonsai-";
/// Room for events of each CPU, in KiB: some 40,000.
const ROOM_KIB: u32 = 4096;

/// Where tracefs is mounted.
///
/// # Errors
/// Nowhere, with what can be done, in a sentence.
pub(super) fn root() -> Result<PathBuf, String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let found = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let path = before.split(' ').nth(4)?;
        (after.split(' ').next()? == "tracefs").then(|| PathBuf::from(unescaped(path)))
    });
    if let Some(found) = found {
        return Ok(found);
    }
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let known = known.lines().any(|line| line.ends_with("\ttracefs"));
    Err(match known {
        true => "tracefs is not mounted (mount -t tracefs tracefs /sys/kernel/tracing)",
        false => "this kernel has no tracefs (CONFIG_FTRACE)",
    }
    .to_owned())
}

/// Blanks and the like are octal in mountinfo.
fn unescaped(path: &str) -> String {
    path.replace("\\040", " ").replace("\\011", "\t")
}

/// The state of kernel_lockdown(7).
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

/// True if a kernel is locked down so far that nothing of it may be traced: `none integrity [confidentiality]`.
fn hides_secrets(lockdown: &str) -> bool {
    lockdown.contains("[confidentiality]")
}

/// Whether devices can be recorded here: yes, no, or not by this user; and why.
pub(crate) fn available() -> (&'static str, String) {
    let no = |why: String| {
        (
            "no",
            format!("{why}; exports of bonsai drive can be recorded"),
        )
    };
    let root = match root() {
        Ok(root) => root,
        Err(why) => return no(why),
    };
    match missing(&root, TraceEvent::Issue) {
        Some(why) => no(why),
        None => match Instance::make(&root) {
            Ok(_) => (
                "yes",
                format!("bonsai trace record --device, by {}", root.display()),
            ),
            Err(error) => no(format!("{}: {error}", root.display())),
        },
    }
}

/// Why an event cannot be had, in a sentence.
pub(super) fn missing(root: &Path, event: TraceEvent) -> Option<String> {
    let error = fs::metadata(root.join("events/block").join(event_of(event))).err()?;
    let lockdown = fs::read_to_string(LOCKDOWN).unwrap_or_default();
    Some(if error.kind() == io::ErrorKind::PermissionDenied {
        "only root can record devices".to_owned()
    } else if hides_secrets(&lockdown) {
        format!("the kernel is locked down ({LOCKDOWN}: confidentiality), and shows no events")
    } else {
        "the kernel has no events of block devices (CONFIG_BLK_DEV_IO_TRACE)".to_owned()
    })
}

pub(super) const fn event_of(event: TraceEvent) -> &'static str {
    match event {
        TraceEvent::Issue => "block_rq_issue",
        TraceEvent::Queue => "block_bio_queue",
        TraceEvent::Complete => "block_rq_complete",
    }
}

/// Buffers of our own; they go with this.
#[derive(Debug)]
pub(super) struct Instance(PathBuf);

impl Drop for Instance {
    fn drop(&mut self) {
        // It is busy only while somebody else looks into it.
        let _ = fs::write(self.0.join("events/enable"), "0");
        let _ = fs::remove_dir(&self.0);
    }
}

impl Instance {
    pub(super) fn make(root: &Path) -> io::Result<Self> {
        let all = root.join("instances");
        clear(&all);
        let path = all.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    fn write(&self, file: &str, text: &str) -> anyhow::Result<()> {
        fs::write(self.0.join(file), text)
            .map_err(|error| Refusal::input(format!("{}: {error}", self.0.join(file).display())))
    }

    /// Takes the events of one device from now on; says whether times are those of the clock that is never set.
    pub(super) fn begin(&self, event: TraceEvent, device: u64) -> anyhow::Result<bool> {
        let of = format!("events/block/{}", event_of(event));
        self.write("buffer_size_kb", &ROOM_KIB.to_string())?;
        let monotonic = self.write("trace_clock", "mono").is_ok();
        self.write(&format!("{of}/filter"), &format!("dev == {device}"))?;
        self.write(&format!("{of}/enable"), "1")?;
        Ok(monotonic)
    }

    /// Takes none any more. What was taken can be read still.
    pub(super) fn end(&self) {
        // Then the instance goes, and with it the events.
        let _ = fs::write(self.0.join("events/enable"), "0");
    }

    /// Events as text, as they come; reading never waits.
    pub(super) fn pipe(&self) -> anyhow::Result<File> {
        let path = self.0.join("trace_pipe");
        let flags = i32::try_from(OFlags::NONBLOCK.bits())?;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&path);
        file.map_err(|error| Refusal::input(format!("{}: {error}", path.display())))
    }

    /// Events that there was no room for, on all CPUs.
    pub(super) fn lost(&self) -> u64 {
        let cpus = fs::read_dir(self.0.join("per_cpu")).into_iter().flatten();
        let stats = cpus.flatten().map(|cpu| cpu.path().join("stats"));
        stats.map(|path| lost_of(&read(&path))).sum()
    }
}

fn read(path: &Path) -> String {
    let mut text = String::new();
    let file = File::open(path).and_then(|mut file| file.read_to_string(&mut text));
    file.map_or_else(|_| String::new(), |_| text)
}

/// Events that were overwritten or dropped, as a CPU's `stats` has them.
fn lost_of(stats: &str) -> u64 {
    let numbers = stats.lines().filter_map(|line| {
        let (name, number) = line.split_once(": ")?;
        matches!(name, "overrun" | "commit overrun" | "dropped events").then_some(number)
    });
    numbers
        .filter_map(|number| number.trim().parse::<u64>().ok())
        .sum()
}

/// Removes what recorders have left that were killed.
fn clear(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let Some(pid) = pid.and_then(|pid| pid.parse::<u32>().ok()) else {
            continue;
        };
        if !Path::new(&format!("/proc/{pid}")).exists() {
            drop(Instance(entry.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_a_cpu_are_added_up() {
        let stats = "entries: 5\noverrun: 3\ncommit overrun: 1\nbytes: 90\noldest event ts:     0.5\n\
                     now ts: 12262.895188\ndropped events: 2\nread events: 7\n";
        assert_eq!(lost_of(stats), 6);
        assert_eq!(lost_of(""), 0);
    }

    #[test]
    fn a_kernel_that_is_locked_down_hides_its_events_by_confidentiality_alone() {
        assert!(hides_secrets("none integrity [confidentiality]\n"));
        assert!(!hides_secrets("none [integrity] confidentiality\n"));
        assert!(!hides_secrets("[none] integrity confidentiality\n"));
        assert!(!hides_secrets(""));
    }
}
