//! Limits of control groups and units on disks.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::look::interval;

/// Limit what control groups and systemd units read and write of disks, by the kernel.
///
/// For what is not shaped in its processes: containers, hostile programs, files that are mapped.
/// A limit holds for all processes of the group and of those below it, at once, and until it is
/// cleared, the group is removed, or the machine starts anew. What is read from the page cache is
/// not limited; with control groups of version 1 nor are writes that the kernel makes later.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum DiskCommand {
    Ls(DiskLook),
    Set(DiskSet),
    Clear(DiskClear),
}

const EXAMPLES: &str = "\
Examples:
  bonsai disk ls
  bonsai disk set --cgroup /system.slice/db read=50MB/s write=1000/s
  bonsai disk set --unit db.service --device /dev/sdb write=20MB/s
  bonsai disk set --cgroup /system.slice/db read=unlimited
  bonsai disk clear --unit db.service";

/// Whose limits.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct DiskTarget {
    /// A control group, by its path as in /proc/PID/cgroup, such as /system.slice/db.
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Option<String>,

    /// A systemd unit, such as db.service. It is limited through systemd, which shows it.
    #[arg(long, value_name = "NAME")]
    pub(crate) unit: Option<String>,
}

/// Show control groups with limits or with traffic: what they have, do, and from whom.
///
/// What a group does includes the groups below it; what waits, the time in which at least one of
/// its tasks waited for a device, where the kernel keeps that (version 2).
#[derive(Args, Debug)]
pub(crate) struct DiskLook {
    /// Only this control group.
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Option<String>,

    /// Time over which rates are measured.
    #[arg(long, short, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub(crate) interval: Duration,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Limit a control group or a unit. What is not named stays as it is.
#[derive(Args, Debug)]
pub(crate) struct DiskSet {
    #[command(flatten)]
    pub(crate) target: DiskTarget,

    /// A device (/dev/sda, sda, 8:0) or a path on its file system; may be repeated.
    ///
    /// Partitions and paths mean their whole disk. Without it: all disks of the machine, without
    /// loop devices and what is put together from other devices.
    #[arg(long = "device", value_name = "DEV")]
    pub(crate) devices: Vec<String>,

    /// read=50MB/s, write=1000/s (requests), read=unlimited; both units for a direction if wanted.
    #[arg(required = true, value_name = "NAME=RATE")]
    pub(crate) limits: Vec<String>,

    /// Also limit a group that this command, or process 1, is in: the whole machine waits with it.
    #[arg(long)]
    pub(crate) force: bool,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Restore exactly what was there before Bonsai first limited it.
#[derive(Args, Debug)]
pub(crate) struct DiskClear {
    #[command(flatten)]
    pub(crate) target: DiskTarget,

    /// Only this device; may be repeated.
    #[arg(long = "device", value_name = "DEV")]
    pub(crate) devices: Vec<String>,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
