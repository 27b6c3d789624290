use std::io;
use std::path::PathBuf;

use crate::hierarchy::Controller;

/// Why something could not be found, set or undone. Each is one sentence that says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path that cannot be that of a control group.
    #[error(
        "{path:?} is no path of a control group: write it as in /proc/PID/cgroup, such as /system.slice/db"
    )]
    BadPath {
        /// The path.
        path: String,
    },
    /// No group of that path.
    #[error("there is no control group {path} with the controller {controller}: {} is no folder", folder.display())]
    NoGroup {
        /// The path.
        path: String,
        /// The controller that it was looked for with.
        controller: String,
        /// Where it would be.
        folder: PathBuf,
    },
    /// The group is there, but in a hierarchy without the controller.
    #[error(
        "the control group {path} is in other hierarchies, but not in that of {controller} ({}), where its limits would be",
        folder.display()
    )]
    OtherHierarchy {
        /// The path.
        path: String,
        /// The controller.
        controller: String,
        /// Where it would be.
        folder: PathBuf,
    },
    /// The group was removed in between.
    #[error("the control group {path} has been removed meanwhile")]
    Vanished {
        /// The path.
        path: String,
    },
    /// No process of that number.
    #[error("there is no process {pid}")]
    NoProcess {
        /// Its number.
        pid: u32,
    },
    /// The kernel has no such controller, or nobody mounted it.
    #[error(
        "no hierarchy of control groups with the controller {} is mounted here",
        controller.names()
    )]
    NoController {
        /// The controller.
        controller: Controller,
    },
    /// There is no version 2.
    #[error(
        "no hierarchy of control groups of version 2 is mounted here: mount -t cgroup2 cgroup2 \
         /sys/fs/cgroup/unified"
    )]
    NoUnified,
    /// Only a part of version 2 is seen.
    #[error(
        "only a part of the control groups is seen at {}: this has to run in the cgroup namespace \
         of the machine, outside of containers", mount.display()
    )]
    NotTop {
        /// Where it is mounted.
        mount: PathBuf,
    },
    /// Version 2: the parent does not pass the controller on.
    #[error(
        "the controller {controller} is not enabled for the control group {path}: +{controller} \
         has to be written to {}", file.display()
    )]
    NotEnabled {
        /// The path.
        path: String,
        /// The controller.
        controller: &'static str,
        /// The parent's `cgroup.subtree_control`.
        file: PathBuf,
    },
    /// The root group is the machine.
    #[error("the root of all control groups has no limits of its own: name a group below it")]
    Root,
    /// Version 2: a group with processes cannot pass controllers on.
    #[error(
        "the control group {path} has processes of its own, so version 2 gives no group below it \
         the controller {controller}: start this in a group without any, or by systemd"
    )]
    Occupied {
        /// The path.
        path: String,
        /// The controller.
        controller: &'static str,
    },
    /// No such block device.
    #[error(
        "{name:?} is no block device: write a device (/dev/sda, sda, 8:0) or a path on its file \
         system"
    )]
    NoDevice {
        /// What was asked for.
        name: String,
    },
    /// A path whose file system is on no block device that is known.
    #[error("{name:?} is on {kind}, {why}: name the device itself, such as /dev/sda")]
    NoDeviceBelow {
        /// The path.
        name: String,
        /// The type of its file system.
        kind: String,
        /// Why that has no device.
        why: &'static str,
    },
    /// The machine has no disk.
    #[error("this machine has no disk of its own: name a device with --device")]
    NoDisks,
    /// The kernel or systemd refused a value.
    #[error("{what} cannot be set on {target}: {source}")]
    Refused {
        /// What, in words.
        what: String,
        /// On what.
        target: String,
        /// What the system said.
        source: io::Error,
    },
    /// No rights.
    #[error("{}: {source} (limits of control groups take root, or a group that was delegated)", file.display())]
    NoRights {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It was written, and something else is in force.
    #[error("{target} was told {wanted}, but has {found}: what was changed is undone")]
    NotTaken {
        /// On what.
        target: String,
        /// What was written.
        wanted: String,
        /// What was read.
        found: String,
    },
    /// Undoing failed as well.
    #[error("{cause}; and what had been changed before could not be undone: {undo}")]
    NotUndone {
        /// Why it was to be undone.
        cause: Box<Self>,
        /// Why it was not.
        undo: Box<Self>,
    },
    /// Nothing to clear.
    #[error("Bonsai has set nothing on {target}, so there is nothing to take back")]
    NothingHeld {
        /// The target.
        target: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of the kernel, or a record, has something else in it than it should.
    #[error("{}: {what}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// systemd does not know the unit.
    #[error("systemd has no unit {unit:?}: its name is as systemctl shows it, such as db.service")]
    NoUnit {
        /// The name.
        unit: String,
    },
    /// A unit without processes.
    #[error("the unit {unit} has no control group now: start it first")]
    NotRunning {
        /// The name.
        unit: String,
    },
    /// There is no systemd.
    #[error("systemd does not run here, so there is no unit {unit:?}: name its control group")]
    NoSystemd {
        /// The name.
        unit: String,
    },
    /// systemd cannot be asked.
    #[error("systemd cannot be asked about {what}: {why}")]
    Bus {
        /// About what.
        what: String,
        /// What went wrong.
        why: String,
    },
    /// Reservations that together are more than the kernel leaves for real time.
    #[error(
        "{wanted:.2} CPUs reserved do not fit beside {held:.2} that are reserved already: {most:.2} \
         can be here (/proc/sys/kernel/sched_rt_runtime_us, {cpus} CPUs)"
    )]
    ReserveFull {
        /// What all threads that are asked for take, CPUs.
        wanted: f64,
        /// What Bonsai has reserved for others, CPUs.
        held: f64,
        /// What there is, CPUs.
        most: f64,
        /// CPUs of the machine.
        cpus: usize,
    },
    /// The kernel's own admission.
    #[error(
        "the kernel has no room for {reserve} for thread {tid}: other deadline threads have \
         reserved the rest"
    )]
    KernelFull {
        /// What was asked for.
        reserve: String,
        /// The thread.
        tid: u32,
    },
    /// The scheduler refused.
    #[error("time cannot be reserved for thread {tid}: {why}")]
    Scheduler {
        /// The thread.
        tid: u32,
        /// Why.
        why: String,
    },
    /// Weight or quota for a process alone.
    #[error(
        "weight and quota belong to a control group, and process {pid} is in {path} with others: \
         name the group with --cgroup, or a reserve alone"
    )]
    ProcessAlone {
        /// The process.
        pid: u32,
        /// Its group.
        path: String,
    },
}
