//! A control group of its own for a program that is about to start.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bonsai_units::CpuTerms;

use crate::cpu::Cpu;
use crate::error::Error;
use crate::file;
use crate::group::Cgroup;
use crate::hierarchy::{Controller, Hierarchies, Version};
use crate::record::Target;
use crate::systemd::{Systemd, systemd_runs};

/// How groups made here begin, so that those that were left behind are known.
const PREFIX: &str = "bonsai-";

/// How long systemd may take to move a process into its scope.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long processes that were ended may take to leave their group.
const LEAVING: Duration = Duration::from_millis(200);

/// A group of its own. With version 1, and without systemd, it is below the group that this
/// process is in; otherwise a scope of systemd, for version 2 gives a group below one with
/// processes no controllers.
#[derive(Debug)]
pub struct OwnGroup {
    group: Cgroup,
    /// Where this process came from, and goes back to; none from a scope, which ends by itself.
    from: Option<Cgroup>,
    /// The controller was enabled for groups below that one for this.
    enabled: bool,
}

impl OwnGroup {
    /// Makes a group for this process and those that it starts from now on. It is in force when
    /// this has returned, and this process is in it until [`OwnGroup::leave`].
    ///
    /// # Errors
    /// The group cannot be made here; nothing is left behind.
    pub fn enter(hierarchies: &Hierarchies, name: &str) -> Result<Self, Error> {
        let pid = std::process::id();
        let from = hierarchies.of_process(Controller::Cpu, pid)?;
        if from.version() == Version::V2 && systemd_runs() {
            return Self::scope(hierarchies, name, pid);
        }
        remove_left_behind(&from);
        let enabled = enable(&from)?;
        let path = format!("{}/{PREFIX}{name}-{pid}", from.path().trim_end_matches('/'));
        let folder = from.folder().join(format!("{PREFIX}{name}-{pid}"));
        let group = Cgroup::new(from.version(), Controller::Cpu, path, folder);
        let own = Self {
            group,
            from: Some(from),
            enabled,
        };
        let made = fs::create_dir(own.group.folder()).map_err(|source| {
            let file = own.group.folder().to_owned();
            match source.kind() {
                std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                    Error::NoRights { file, source }
                }
                _ => Error::File { file, source },
            }
        });
        let entered = made.and_then(|()| own.group.write("cgroup.procs", "0", "a process"));
        if let Err(error) = entered {
            own.remove()?;
            return Err(error);
        }
        Ok(own)
    }

    fn scope(hierarchies: &Hierarchies, name: &str, pid: u32) -> Result<Self, Error> {
        let unit = format!("{PREFIX}{name}-{pid}.scope");
        Systemd::connect()?.start_scope(&unit, pid, &[])?;
        let end = Instant::now() + PATIENCE;
        loop {
            let group = hierarchies.of_process(Controller::Cpu, pid)?;
            if group.path().ends_with(&unit) {
                return Ok(Self {
                    group,
                    from: None,
                    enabled: false,
                });
            }
            if Instant::now() >= end {
                return Err(Error::Bus {
                    what: unit,
                    why: "the scope was not made in 5 s".to_owned(),
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What it is for [`Cpu::set`].
    #[must_use]
    pub fn target(&self) -> Target {
        Target::Cgroup(self.group.path().to_owned())
    }

    /// Gives it its part of the CPUs.
    ///
    /// # Errors
    /// As [`Cpu::set`].
    pub fn set(&self, cpu: &Cpu, terms: &CpuTerms) -> Result<(), Error> {
        cpu.set(&self.target(), terms).map(drop)
    }

    /// Takes this process out of it; what it has started stays.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn leave(&self) -> Result<(), Error> {
        match &self.from {
            Some(from) => from.write("cgroup.procs", "0", "a process"),
            None => Ok(()),
        }
    }

    /// Removes it. `false` if there are processes in it, which stay as they are; the next group
    /// that is made beside it removes it once they have gone.
    ///
    /// # Errors
    /// The kernel refuses for another reason.
    pub fn remove(&self) -> Result<bool, Error> {
        let Some(from) = &self.from else {
            return Ok(true);
        };
        let end = Instant::now() + LEAVING;
        loop {
            match fs::remove_dir(self.group.folder()) {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    if Instant::now() >= end {
                        return Ok(false);
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::File {
                        file: self.group.folder().to_owned(),
                        source: error,
                    });
                }
                _ => break,
            }
        }
        // The kernel would take it from others that were made here since.
        if self.enabled && !has_groups(from) {
            let _ = file::write(&subtree(from), "-cpu");
        }
        Ok(true)
    }
}

fn has_groups(group: &Cgroup) -> bool {
    let entries = fs::read_dir(group.folder()).into_iter().flatten().flatten();
    let mut kinds = entries.map(|entry| entry.file_type());
    kinds.any(|kind| kind.is_ok_and(|kind| kind.is_dir()))
}

fn subtree(group: &Cgroup) -> PathBuf {
    group.folder().join("cgroup.subtree_control")
}

/// Version 2: makes the controller available below a group. Says whether it was not.
fn enable(group: &Cgroup) -> Result<bool, Error> {
    if group.version() == Version::V1 {
        return Ok(false);
    }
    let file = subtree(group);
    let enabled = file::need(&file)?;
    if enabled.split_ascii_whitespace().any(|name| name == "cpu") {
        return Ok(false);
    }
    match file::write(&file, "+cpu") {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => Err(Error::Occupied {
            path: group.path().to_owned(),
            controller: "cpu",
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::NotEnabled {
            path: group.path().to_owned(),
            controller: "cpu",
            file: group
                .folder()
                .parent()
                .unwrap_or(group.folder())
                .join("cgroup.subtree_control"),
        }),
        Err(error) => Err(file::refused(error, &file, group.path(), "the controller")),
    }
}

/// Groups of programs that have ended after whoever had started them. The kernel removes none that
/// has processes; one that was made a moment ago has its own in its name, which is not ours to
/// remove while it lives.
fn remove_left_behind(from: &Cgroup) {
    let entries = fs::read_dir(from.folder()).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let maker = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.rsplit('-').next());
        let maker: Option<u32> = maker.and_then(|pid| pid.parse().ok());
        if maker.is_some_and(|pid| !fs::exists(format!("/proc/{pid}")).unwrap_or(true)) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}
