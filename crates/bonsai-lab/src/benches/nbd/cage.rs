//! A bound on the memory of processes, and so on the page cache that is charged to them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

/// A control group of memory, of either version; it goes with this, and its processes have to end before.
#[derive(Debug)]
pub(super) struct Cage(PathBuf);

/// Where groups are made, and the file with their limit.
const HIERARCHIES: [(&str, &str); 2] = [
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ("/sys/fs/cgroup", "memory.max"),
];

impl Cage {
    /// Makes one.
    ///
    /// # Errors
    /// Only root may, and not where there is no control of memory.
    pub(super) fn new(bytes: u64) -> anyhow::Result<Self> {
        let there = |(root, limit): &(&str, &str)| {
            // The root of the second version has no limit itself: its control is listed.
            let listed = fs::read_to_string(Path::new(root).join("cgroup.subtree_control"));
            Path::new(root).join(limit).exists()
                || listed.is_ok_and(|listed| listed.contains("memory"))
        };
        let found = HIERARCHIES.iter().find(|of| there(of));
        let (root, limit) = found.context("there is no control group of memory")?;
        let folder = Path::new(root).join(format!("bonsai-bench-{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("{}: cannot be made", folder.display()))?;
        let cage = Self(folder);
        fs::write(cage.0.join(limit), bytes.to_string()).context("memory cannot be bounded")?;
        Ok(cage)
    }

    /// The same command, in here from its first instruction on.
    pub(super) fn holds(&self, command: &Command) -> Command {
        let mut held = Command::new("sh");
        held.args(["-c", "echo $$ >\"$0\" && exec \"$@\""])
            .arg(self.0.join("cgroup.procs"))
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
        // What is charged to it stays until the system needs the memory.
        let _ = fs::remove_dir(&self.0);
    }
}
