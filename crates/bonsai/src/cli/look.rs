//! Commands that look at services and change nothing.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use bonsai_units::parse_duration;
use clap::Args;

/// Show services: rates asked and got, who waits, processes, and what is not covered.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai status
  bonsai status vod --json
  bonsai status vod --streams
  bonsai status --watch")]
pub(crate) struct Status {
    /// Only this service.
    pub(crate) service: Option<String>,

    /// How long to measure what each limit gets.
    #[arg(long, short, value_name = "TIME", default_value = "500ms", value_parser = interval)]
    pub(crate) interval: Duration,

    /// Also each stream that has a bucket of its own, where a limit is per stream.
    #[arg(long, short)]
    pub(crate) streams: bool,

    /// Again and again, until interrupted.
    #[arg(long, short)]
    pub(crate) watch: bool,

    /// As JSON; with --watch, one line each time.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Say in one sentence why a service is slow: Bonsai, disk, network or CPU.
///
/// The service is watched for a while: who waits for which limit (from its ledger),
/// and what its threads do otherwise (from /proc). The sentence is followed by the
/// numbers it is judged by, and by what cannot be seen on this machine.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai why vod
  bonsai why vod --for 10s
  bonsai why vod --json")]
pub(crate) struct Why {
    /// The service.
    pub(crate) service: String,

    /// How long to watch it.
    #[arg(long = "for", short, value_name = "TIME", default_value = "1s", value_parser = window)]
    pub(crate) window: Duration,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show every counter of a service: calls, bytes, waits and their histograms.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai stats vod
  bonsai stats vod --json")]
pub(crate) struct Stats {
    /// The service.
    pub(crate) service: String,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Compare the bytes that were counted with the kernel's own count.
///
/// The kernel counts for each process what read-like and write-like calls moved
/// (/proc/PID/io). What it counted and the service's ledger did not went unseen:
/// before the library was loaded, or past it.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai audit vod
  bonsai audit vod --json")]
pub(crate) struct Audit {
    /// The service.
    pub(crate) service: String,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Say what can and cannot be shaped on this machine, or of a program, and why.
///
/// Without a program: what the kernel allows, and whether the library works here,
/// which is tried out on /bin/true; and a table of what becomes of each kind of call
/// in each kind of program, for each way to put it under limits, for you on this
/// machine (in JSON: machine.coverage, a cell each, with the mode as the words behind
/// `bonsai`). Each C library of this machine is tried: whether its calls are seen, on one
/// thread and on a second (machine.libcs). Those of containers, snaps and AppImages are
/// read, and not run.
///
/// With a program: how it is linked, and which of its calls can be shaped. The exit code
/// is 1 when the answer is that nothing can, or that calls of a C library are not seen.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai doctor
  bonsai doctor /usr/sbin/nginx
  bonsai doctor --libc /opt/app/lib/ld-linux-x86-64.so.2
  bonsai doctor busybox --json")]
pub(crate) struct Doctor {
    /// The program, as it would be given to `bonsai run`.
    pub(crate) program: Option<OsString>,

    /// C library: a loader, which is run with a small program, or a folder or root file system, which is only read.
    #[arg(long, value_name = "PATH", conflicts_with = "program")]
    pub(crate) libc: Option<PathBuf>,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Look for the C libraries of a root file system.
///
/// Started by `bonsai doctor`; of no use by hand.
#[derive(Args, Debug)]
pub(crate) struct ScanLibcs {
    /// The root.
    pub(crate) root: PathBuf,
    /// Leave out the machine code of what this host may have installed for itself, which is run.
    #[arg(long)]
    pub(crate) own: bool,
    /// Leave out all machine code.
    #[arg(long)]
    pub(crate) named: bool,
}

/// A time between two looks: at least 10 ms, so that watching costs little, and
/// at most an hour.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|error| error.to_string())?;
    if time < Duration::from_millis(10) || time > Duration::from_secs(3600) {
        return Err(format!(
            "{text:?} is no interval: write a time from 10ms to 1h"
        ));
    }
    Ok(time)
}

/// A time to watch a service for: at least 100 ms, so that enough is seen, and at most
/// ten minutes.
fn window(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|error| error.to_string())?;
    if time < Duration::from_millis(100) || time > Duration::from_secs(600) {
        return Err(format!(
            "{text:?} is too short or too long to watch a service: write a time from 100ms to 10min"
        ));
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_bounded() {
        assert_eq!(window("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(window("10min"), Ok(Duration::from_secs(600)));
        for text in ["1", "99ms", "11min", "0s", "x", "-1s"] {
            window(text).expect_err(text);
        }
    }

    #[test]
    fn intervals_are_bounded() {
        assert_eq!(interval("250ms"), Ok(Duration::from_millis(250)));
        for text in ["1", "1ms", "2h", "0s", "x"] {
            interval(text).expect_err(text);
        }
    }
}
