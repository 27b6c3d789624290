//! Bounds on processes by the kernel's control groups, of either version: on their memory, and so on the page cache that is
//! charged to them, and on what a disk gives them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

/// Control groups; they go with this, and their processes have to end before.
#[derive(Debug)]
pub(crate) struct Cage(Vec<PathBuf>);

/// A bound: its controller, the first version's hierarchy and file, and the second's file.
struct Bound {
    controller: &'static str,
    hierarchy: &'static str,
    old: &'static str,
    new: &'static str,
}

const MEMORY: Bound = Bound {
    controller: "memory",
    hierarchy: "/sys/fs/cgroup/memory",
    old: "memory.limit_in_bytes",
    new: "memory.max",
};

const DISK: Bound = Bound {
    controller: "io",
    hierarchy: "/sys/fs/cgroup/blkio",
    old: "blkio.throttle.read_bps_device",
    new: "io.max",
};

impl Cage {
    /// One with so many bytes of memory.
    ///
    /// # Errors
    /// Only root may, and not where there is no control of memory.
    pub(crate) fn new(bytes: u64) -> anyhow::Result<Self> {
        let mut cage = Self(Vec::new());
        cage.bound(&MEMORY, |_| bytes.to_string())?;
        Ok(cage)
    }

    /// The disk under a folder gives it no more than so many bytes a second to read.
    ///
    /// # Errors
    /// As of [`Self::new`]; there is no disk under the folder.
    pub(crate) fn disk(mut self, under: &Path, bytes: u64) -> anyhow::Result<Self> {
        let disk = disk_of(under)?;
        self.bound(&DISK, |is_new| match is_new {
            true => format!("{disk} rbps={bytes}"),
            false => format!("{disk} {bytes}"),
        })?;
        Ok(self)
    }

    fn bound(&mut self, of: &Bound, value: impl Fn(bool) -> String) -> anyhow::Result<()> {
        let old = Path::new(of.hierarchy);
        let root = Path::new("/sys/fs/cgroup");
        // The root of the second version has no limit itself: its control is listed.
        let listed = fs::read_to_string(root.join("cgroup.subtree_control"));
        let is_new = !old.join("cgroup.procs").exists();
        anyhow::ensure!(
            !is_new || listed.is_ok_and(|listed| listed.contains(of.controller)),
            "there is no control group of {}",
            of.controller
        );
        let (root, file) = if is_new {
            (root, of.new)
        } else {
            (old, of.old)
        };
        let folder = root.join(format!("bonsai-bench-{}", std::process::id()));
        if !self.0.contains(&folder) {
            fs::create_dir(&folder)
                .with_context(|| format!("{}: cannot be made", folder.display()))?;
            self.0.push(folder.clone());
        }
        let file = folder.join(file);
        fs::write(&file, value(is_new))
            .with_context(|| format!("{}: cannot be written", file.display()))
    }

    /// The same command, in here from its first instruction on; what it says of errors is among its output.
    pub(crate) fn holds(&self, command: &Command) -> Command {
        let mut held = Command::new("sh");
        held.args([
            "-c",
            "for group in $0; do echo $$ >\"$group/cgroup.procs\" || exit 1; done; exec \"$@\" 2>&1",
        ]);
        let folders: Vec<_> = self.0.iter().map(|of| of.display().to_string()).collect();
        held.arg(folders.join(" "))
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                held.env(name, value);
            }
        }
        held
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        for folder in &self.0 {
            // What a process leaves behind is gone a moment after it. What is charged to it stays until the system needs
            // the memory.
            let gone = |_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                fs::remove_dir(folder).is_ok()
            };
            (0..100).any(gone);
        }
    }
}

/// The numbers of the whole disk that a folder is on.
fn disk_of(folder: &Path) -> anyhow::Result<String> {
    let device = fs::metadata(folder)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let own = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let whole = match own.join("partition").exists() {
        true => fs::canonicalize(&own)?.join("../dev"),
        false => own.join("dev"),
    };
    let text = fs::read_to_string(&whole)
        .with_context(|| format!("{}: is on no disk of its own", folder.display()))?;
    Ok(text.trim().to_owned())
}
