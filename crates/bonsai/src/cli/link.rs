//! Interfaces.

use std::time::Duration;

use bonsai_units::{Rate, parse_duration};
use clap::{Args, Subcommand};

use super::daemon::Changing;

/// Show interfaces, whose they are and what they move; limit them while they run.
///
/// What cannot or should not be shaped inside its programs (virtual machines, containers, tenants
/// that nobody trusts, floods of datagrams) is shaped at its interface, by the kernel's own queues:
/// at once, without interrupting anybody, and until it is cleared or the machine restarts. Where
/// root's daemon runs, it is configured there (as `links` in bonsai.toml): it lasts, is in the audit
/// trail, can be undone, and holds for what comes later.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum LinkCommand {
    Ls(LinkLs),
    Set(LinkSet),
    Clear(LinkClear),
    Pace(LinkPace),
}

const EXAMPLES: &str = "\
Examples:
  bonsai link ls
  bonsai link set vnet3 tx=20Mbit/s rx=50Mbit/s
  bonsai link set --container web tx=80Mbit/s
  bonsai link set --netns vod eth0 guarantee=40Mbit/s ceiling=90Mbit/s uplink=eth1
  bonsai link clear vnet3
  bonsai link pace 1234 20Mbit/s --for 10min";

/// Show interfaces: whose they are, what they move now, and what they are limited to.
#[derive(Args, Debug)]
pub(crate) struct LinkLs {
    /// Only those that have a limit.
    #[arg(long)]
    pub(crate) limited: bool,

    /// For how long is counted what they move, from 10ms to 1min.
    #[arg(long = "for", value_name = "TIME", default_value = "500ms", value_parser = look)]
    pub(crate) lasts: Duration,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

fn look(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|error| error.to_string())?;
    let range = Duration::from_millis(10)..=Duration::from_secs(60);
    if range.contains(&time) {
        Ok(time)
    } else {
        Err(format!("{text} is out of range: 10ms to 1min"))
    }
}

/// Whose interface is meant.
#[derive(Args, Debug)]
#[group(multiple = false)]
pub(crate) struct LinkOf {
    /// One in a network namespace: its name, its file, or a process in it.
    #[arg(long, value_name = "NAME")]
    pub(crate) netns: Option<String>,

    /// One of a container of docker, podman, containerd, CRI-O, LXC or systemd-nspawn: its name, or
    /// the beginning of its ID.
    #[arg(long, value_name = "NAME")]
    pub(crate) container: Option<String>,

    /// One of a virtual machine (QEMU, libvirt, Firecracker and others): its name.
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,

    /// One in the network namespace of a process.
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,
}

/// Limit an interface, at once; what is not said stays.
///
/// tx is what the named interface sends, rx what it receives, as `ip -s link` counts: of a virtual
/// machine or a container, what it sends itself. guarantee, ceiling and weight are its part of an
/// uplink, an interface with a tx limit of its own. Rates are counted at layer 2, with the heads of
/// packets. It takes effect in one step or not at all. Needs root.
#[derive(Args, Debug)]
#[command(after_help = SET_EXAMPLES)]
pub(crate) struct LinkSet {
    #[command(flatten)]
    pub(crate) of: LinkOf,

    /// The interface, and KEY=VALUE of: tx, rx, guarantee, ceiling (RATE or unlimited), weight (1 to
    /// 1000), uplink (NAME), burst (1ms to 1s; if nothing is said 10ms, and 2ms of one that borrows).
    ///
    /// The interface may be left out where there is only one. unit:NAME and cgroup:/PATH are what
    /// processes of this machine send by their uplink: root's daemon limits those.
    #[arg(required = true, value_name = "INTERFACE|KEY=VALUE")]
    pub(crate) words: Vec<String>,

    /// Take the place of a queueing discipline that somebody else made. It is kept, and clear brings
    /// it back.
    #[arg(long)]
    pub(crate) adopt: bool,

    #[command(flatten)]
    pub(crate) how: Changing,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

const SET_EXAMPLES: &str = "\
Examples:
  bonsai link set vnet3 tx=20Mbit/s rx=50Mbit/s
  bonsai link set vnet3 tx=5Mbit/s --for 10min --reason backup
  bonsai link set --vm guest1 tx=20Mbit/s
  bonsai link set eth0 tx=950Mbit/s
  bonsai link set unit:backup.service tx=50Mbit/s uplink=eth0
  bonsai link set --container web guarantee=40Mbit/s weight=2 uplink=eth0
  bonsai link set vnet3 tx=unlimited";

/// Take limits of interfaces away: exactly what was there before is back. Needs root.
#[derive(Args, Debug)]
pub(crate) struct LinkClear {
    #[command(flatten)]
    pub(crate) of: LinkOf,

    /// The interface; it may be left out where there is only one.
    #[arg(value_name = "INTERFACE")]
    pub(crate) interface: Option<String>,

    /// All limits of all interfaces.
    #[arg(long, conflicts_with_all = ["interface", "netns", "container", "vm", "pid"])]
    pub(crate) all: bool,

    #[command(flatten)]
    pub(crate) how: Changing,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Slow down what a process that runs sends by TCP, for as long as this command runs.
///
/// Its connections, also new ones, get a pace each (SO_MAX_PACING_RATE) that is together no more
/// than RATE of payload: without a restart, an interface or a queue, so also for processes in the
/// machine's own network namespace. Its datagrams, and what its children send, are not paced. A
/// connection is found within 50 ms of its beginning. Ctrl-C lets it go, with the paces that it had. The same user
/// may, or root.
#[derive(Args, Debug)]
pub(crate) struct LinkPace {
    /// The process.
    pub(crate) pid: u32,

    /// What all its connections have together, such as 20Mbit/s.
    pub(crate) rate: Rate,

    /// Let it go after this time.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) lasts: Option<Duration>,
}
