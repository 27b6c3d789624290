//! `bonsai run`, and what it starts itself.

use std::ffi::OsString;
use std::path::PathBuf;

use bonsai_calls::{CLASSES, Class, names};
use bonsai_ledger::EventLoops;
use bonsai_units::CpuTerms;
use clap::{Args, ValueEnum};

use super::Joining;

/// Letters of a line of names, so that no terminal breaks it.
const LINE: usize = 76;

/// Become a program of an enforced service.
///
/// Started by `bonsai run --enforce`; of no use by hand.
#[derive(Args, Debug)]
pub(crate) struct Confine {
    /// The descriptor by which the listener goes to the supervisor.
    #[arg(long)]
    pub(crate) socket: i32,

    /// The system calls that are asked about.
    #[arg(long, value_delimiter = ',')]
    pub(crate) asked: Vec<u32>,

    /// The user and the group to become, and further groups.
    #[arg(long, value_delimiter = ',')]
    pub(crate) user: Vec<u32>,

    /// The file of the program, its name, and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub(crate) program: Vec<OsString>,
}

/// Enter programs without a loader, for processes of a service that ask for it.
///
/// Started by `bonsai run`; of no use by hand.
#[derive(Args, Debug)]
pub(crate) struct Enter {
    /// The service's ledger.
    pub(crate) ledger: PathBuf,
    /// The number under which one asks; without it, all that ask until standard input is closed.
    pub(crate) number: Option<usize>,
}

/// Start a program as a service, under limits.
///
/// The program is started unchanged, with its arguments, environment, terminal
/// and working folder. What it starts in turn belongs to the service, too, and
/// shares its limits. The exit code is the program's, or 128 and the number of
/// the signal that ended it; 2 for bad input, 126 if the program cannot be
/// executed, 127 if it was not found.
#[derive(Args, Debug)]
#[command(override_usage = "bonsai run [OPTIONS] [--] PROGRAM [ARGS]...")]
#[command(after_help = RUN_EXAMPLES, after_long_help = run_long_help())]
pub(crate) struct Run {
    /// Name of the service: letters, digits, `.`, `_`, `-`; at most 63.
    ///
    /// Without it, the program's file name is taken, with -2, -3 and so on
    /// appended while it is in use. A given name that is in use is refused.
    #[arg(long, short)]
    pub(crate) name: Option<String>,

    /// A limit on a call or class, such as read=10MB/s; may be repeated.
    ///
    /// The rate is in bytes (10MB/s, 10MiB/s, 80Mbit/s) or in calls (100/s). The
    /// burst says how far ahead of its rate the service may be: a time, an
    /// amount of bytes, or calls; 20ms where nothing is said. A call under
    /// several limits waits for the latest.
    ///
    /// A limit may be for each connection or open file (send/stream=2Mbit/s), and for
    /// some only: read@/srv/video/**, disk@mount:/srv, send@10.0.0.0/8, accept@port:443,
    /// net/stream@10.0.0.0/8,port:8000-8100.
    #[arg(long = "limit", short, value_name = "NAME=RATE[:burst=B]")]
    pub(crate) limits: Vec<String>,

    /// Limits from a TOML file; --limit replaces those of the same name.
    #[arg(long = "limits", short = 'f', value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) group: Joining,

    /// Whether calls on descriptors that do not block are refused instead of delayed.
    ///
    /// Then an event loop goes on with its other connections: a call that is too early
    /// ends with EAGAIN or a short count, and poll, select and epoll do not report its
    /// descriptor before it may go. auto: as soon as there is a limit per stream, or one
    /// for some descriptors; on: under every limit; off: such calls wait.
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = Loops::Auto, conflicts_with = "enforce")]
    pub(crate) event_loops: Loops,

    /// What the program gets of the CPUs, such as weight=200,quota=150%.
    ///
    /// The program and all that it starts are put into a control group of their own, which is
    /// removed at the end. weight: its part against others that want the CPUs, too, 1 to 10000
    /// (100 is what everybody has); quota: the most it uses, in percent of one CPU or as a time per
    /// period (15ms/10ms); reserve: what each of its threads always gets, and no more than that, by
    /// the deadline scheduler (1.9ms/10ms). A reserve takes root, and has to fit beside others.
    #[arg(long, value_name = "TERMS")]
    pub(crate) cpu: Option<CpuTerms>,

    /// Enter through exported symbols only; do not touch the code of libc.
    ///
    /// Calls that libc makes inside itself (stdio, name lookups, asynchronous
    /// I/O) then go unseen and unlimited.
    #[arg(long)]
    pub(crate) no_patch: bool,

    /// What becomes of system calls of code that cannot be patched.
    ///
    /// Such code is a program's or a library's own, where a jump does not fit in, or made as
    /// the program runs. leave: it runs without limits and is named; trap: the process gets a
    /// seccomp filter that turns these calls into a signal (2 us each, 0.05 us on every
    /// other call, no new privileges); notify: a program that cannot be patched throughout is
    /// run as with --enforce (3 us and more). The price here is printed at the start.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Unpatched::Leave)]
    #[arg(conflicts_with = "no_patch")]
    pub(crate) unpatched: Unpatched,

    /// What becomes of the service if `bonsai run` is killed.
    ///
    /// through: it goes on under the limits that are in force; static programs that it starts
    /// from then on run without limits and are named. end: a guard above ends it, with exit
    /// code 137. With --enforce it is always ended, as nobody could decide any more.
    /// [default: through, with --enforce end]
    #[arg(long, value_name = "WHAT", value_enum)]
    pub(crate) when_supervisor_dies: Option<WhenDead>,

    /// Enforce the limits from outside of the program, which may be hostile.
    ///
    /// Each call that a limit named here is on (`open=unlimited` names one for later)
    /// is decided by a process of its own that the program cannot reach; nothing is
    /// put into the program. It works for any program, and costs some microseconds a
    /// call: `bonsai doctor` measures them. No new privileges can be gained, and io_uring
    /// is refused. Needs a kernel with seccomp listeners, and Landlock or --user.
    #[arg(long, conflicts_with = "no_patch")]
    pub(crate) enforce: bool,

    /// With --enforce, as root: run the program as this user.
    #[arg(long, requires = "enforce", value_name = "USER")]
    pub(crate) user: Option<String>,

    /// The supervisor below its guard.
    #[arg(long, hide = true)]
    pub(crate) guarded: bool,

    /// Refuse programs that cannot be shaped, instead of warning.
    ///
    /// Also those that the program starts later: its exec fails with EPERM, after a line on
    /// its standard error. One that turns out to be out of reach when it has been loaded
    /// already is ended.
    #[arg(long)]
    pub(crate) strict: bool,

    /// Say at the end what was covered, also when everything was.
    #[arg(long, short)]
    pub(crate) verbose: bool,

    /// At the end, write the counters of the service as JSON to standard error.
    #[arg(long)]
    pub(crate) json: bool,

    /// The program, and its arguments after it.
    #[arg(
        trailing_var_arg = true,
        required = true,
        value_name = "PROGRAM [ARGS]"
    )]
    pub(crate) program: Vec<OsString>,
}

/// What becomes of a service whose supervisor dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WhenDead {
    /// It goes on.
    Through,
    /// It is ended.
    End,
}

/// What becomes of calls that cannot be patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Unpatched {
    /// They run without limits and are named.
    Leave,
    /// A signal brings them to the library, in the processes that have such.
    Trap,
    /// A supervisor is asked, where the program cannot be patched throughout.
    Notify,
}

/// When event loops are not made to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Loops {
    /// As soon as there is a limit per stream, or one for some descriptors.
    Auto,
    /// Under every limit.
    On,
    /// Never.
    Off,
}

impl Loops {
    /// As it is written.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

impl From<Loops> for EventLoops {
    fn from(loops: Loops) -> Self {
        match loops {
            Loops::Auto => Self::Auto,
            Loops::On => Self::On,
            Loops::Off => Self::Off,
        }
    }
}

const RUN_EXAMPLES: &str = "\
Examples:
  bonsai run --limit read=10MB/s -- cp big.iso elsewhere/
  bonsai run --name vod --limit read=10MB/s --limit send=80Mbit/s -- nginx -c vod.conf
  bonsai run --limit open=100/s --limit write=5MB/s:burst=1MB -- ./anything
  bonsai run --limits limits.toml -- ./anything
  bonsai run --cpu weight=200,reserve=1.9ms/10ms -- ./streamer
  bonsai run --group media --guarantee send=40Mbit/s --weight 3 -- nginx -c vod.conf";

fn run_long_help() -> String {
    let mut text = String::from("Classes of calls that a limit may be on:\n");
    for (_, name, about) in CLASSES {
        text.push_str(&format!("  {name:<9} {about}\n"));
    }
    text.push_str("\nSingle calls that a limit may be on:\n");
    let calls = names().filter(|name| Class::by_name(name).is_none());
    let mut line = String::from(" ");
    for call in calls {
        if line.len() + 1 + call.len() > LINE {
            text.push_str(&line);
            text.push('\n');
            line = String::from(" ");
        }
        line.push(' ');
        line.push_str(call);
    }
    format!("{text}{line}\n\n{RUN_EXAMPLES}")
}
