//! What control groups, units and processes get of the CPUs.

use clap::{Args, Subcommand};

/// Give control groups, systemd units and processes their part of the CPUs.
///
/// weight: the part against siblings that want the CPUs, too, 1 to 10000, 100 by default. quota: the
/// most that is used, in percent of one CPU or as a time per period. reserve: a time per period that
/// each thread always gets, by the deadline scheduler, and no more than that: choose it for the most
/// that a thread has to do at once. It takes root, and threads that may run on all CPUs; all of them
/// together get 95 % of the CPUs at most (/proc/sys/kernel/sched_rt_runtime_us). Threads that a
/// program makes later have it once `bonsai cpu set` is said again; under `bonsai run --cpu` within
/// 100 ms.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum CpuCommand {
    Ls(CpuLook),
    Set(CpuSet),
    Clear(CpuClear),
}

const EXAMPLES: &str = "\
Examples:
  bonsai cpu ls
  bonsai cpu set --unit vod.service weight=400 quota=150%
  bonsai cpu set --cgroup /system.slice/db quota=15ms/10ms
  bonsai cpu set --pid 1234 reserve=1.9ms/10ms
  bonsai cpu set --unit vod.service quota=unlimited
  bonsai cpu clear --pid 1234
  bonsai run --cpu weight=200,reserve=1.9ms/10ms -- ./streamer";

/// Whose part.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct CpuTarget {
    /// A control group, by its path as in /proc/PID/cgroup, such as /system.slice/db.
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Option<String>,

    /// A systemd unit, such as db.service. It is changed through systemd, which shows it.
    #[arg(long, value_name = "NAME")]
    pub(crate) unit: Option<String>,

    /// A process alone, with all its threads: for a reserve.
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,
}

/// Show control groups and processes whose part is not the usual one, and from whom they have it.
#[derive(Args, Debug)]
pub(crate) struct CpuLook {
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Change what one has. What is not named stays as it is.
#[derive(Args, Debug)]
pub(crate) struct CpuSet {
    #[command(flatten)]
    pub(crate) target: CpuTarget,

    /// weight=200, quota=150%, quota=unlimited, reserve=1.9ms/10ms, reserve=none.
    #[arg(required = true, value_name = "NAME=VALUE")]
    pub(crate) terms: Vec<String>,

    /// Also limit a group that this command, or process 1, is in: the whole machine waits with it.
    #[arg(long)]
    pub(crate) force: bool,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Restore exactly what was there before Bonsai first changed it.
#[derive(Args, Debug)]
pub(crate) struct CpuClear {
    #[command(flatten)]
    pub(crate) target: CpuTarget,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
