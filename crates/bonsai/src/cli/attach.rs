//! Processes that run already.

use std::path::PathBuf;

use clap::Args;

/// Put processes that run already under limits.
///
/// They are stopped for an instant, their system call instructions are replaced, and
/// they go on where they were. What they start from then on belongs
/// to the service, too. This stays until it is interrupted (Ctrl-C), which takes the
/// limits off again, or until all of them have ended. The exit code is 2 if a process
/// cannot be put under limits, with the reason; then nothing has changed for any.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai attach 1234 --limit send=2MB/s
  bonsai attach --tree $(cat /run/nginx.pid) --name web --limit send=80Mbit/s
  bonsai attach --keep 1234 --limit read=10MB/s    (bonsai detach 1234 ends it)
  bonsai attach 1235 --name web                    (joins the service web)")]
pub(crate) struct Attach {
    /// The processes.
    #[arg(required = true, value_name = "PID", value_parser = process_number)]
    pub(crate) processes: Vec<i32>,

    /// Name of the service, as for `bonsai run`; one that is running is joined.
    #[arg(long, short)]
    pub(crate) name: Option<String>,

    /// A limit on a call or class, as for `bonsai run`; may be repeated.
    #[arg(long = "limit", short, value_name = "NAME=RATE[:burst=B]")]
    pub(crate) limits: Vec<String>,

    /// Limits from a TOML file; --limit replaces those of the same name.
    #[arg(long = "limits", short = 'f', value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Also all processes that descend from these.
    #[arg(long, short)]
    pub(crate) tree: bool,

    /// End at once, and leave the limits in force: `bonsai detach` takes them off.
    ///
    /// Static programs that these processes start later then run without limits:
    /// nobody is there to put them under any.
    #[arg(long, short)]
    pub(crate) keep: bool,
}

/// Take the limits off processes that were put under them as they ran.
///
/// Their instructions are what they were, and who waits for a limit goes on at once.
/// What was started under Bonsai (by `bonsai run`, or by a process under limits) stays
/// in its service; `bonsai set SERVICE NAME=unlimited` lifts a limit there.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai detach 1234
  bonsai detach web")]
pub(crate) struct Detach {
    /// Processes, or a service: all of its processes then.
    #[arg(required = true, value_name = "PID|SERVICE")]
    pub(crate) targets: Vec<String>,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

fn process_number(text: &str) -> Result<i32, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "a process is named by its number (pgrep NAME finds it)".to_owned())
}
