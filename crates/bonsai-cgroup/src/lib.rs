//! The kernel's own limits of control groups: what a group reads and writes of a disk, and what it
//! gets of the CPUs. Set, read back, and undone exactly, on control groups of version 1 and 2
//! (cgroups(7), Documentation/admin-guide/cgroup-v2.rst) and on systemd units.
//!
//! - [`Hierarchies`]: what is mounted; [`Cgroup`]: one group in one hierarchy;
//! - [`Device`]: block devices, by name, number or a path on them;
//! - [`Disk`]: limits on block devices, and what was moved;
//! - [`Cpu`]: weight, quota, and time reserved for threads;
//! - [`OwnGroup`]: a group of its own for a program that is about to start;
//! - [`Unified`]: version 2 from its top, with groups that are not there yet.
//!
//! # Definitions
//! - A *target* is a control group by its path, or a systemd unit by its name ([`Target`]).
//! - A *record* says what a target had before Bonsai first changed it, and what Bonsai set. It is
//!   a file of its own in a folder that the caller names, and is written before the change.
//!
//! # Invariants
//! 1. All of a change or nothing: what the kernel refuses half of is rolled back, and what was
//!    written is read back before it is called done.
//! 2. `clear` restores what the record says was there before, and nothing else; a record of a
//!    group that has been removed since, or of an earlier boot, restores nothing.
//! 3. Units are changed through systemd, at run time, so that its own picture stays true.
//! 4. Whatever a limit does not hold for is said ([`disk::Escape`]).
#![allow(
    unsafe_code,
    reason = "sched_setattr(2) and sched_getattr(2) have no safe wrapper"
)]

pub mod cpu;
mod device;
pub mod disk;
mod error;
mod file;
mod group;
mod hierarchy;
mod own;
mod record;
mod systemd;
mod target;
mod unified;

pub use cpu::Cpu;
pub use device::{Device, DeviceNumber};
pub use disk::Disk;
pub use error::Error;
pub use group::Cgroup;
pub use hierarchy::{Controller, Hierarchies, Hierarchy, Version};
pub use own::OwnGroup;
pub use record::{Holder, Target};
pub use systemd::{is_unit_name, systemd_runs};
pub use unified::Unified;
