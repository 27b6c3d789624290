//! The command line: every option, once, for the parser, the help, the manual
//! pages, the completions and the reference.

mod attach;
mod capacity;
mod cpu;
mod daemon;
mod disk;
mod group;
mod link;
mod top;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use bonsai_calls::{CLASSES, Class, names};
use bonsai_ledger::EventLoops;
use bonsai_units::{CpuTerms, parse_duration};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

pub(crate) use attach::{Attach, Detach};
pub(crate) use capacity::{CapacityCommand, Probe};
pub(crate) use cpu::{CpuCommand, CpuLook, CpuSet, CpuTarget};
pub(crate) use daemon::{
    Admit, Changing, ConfigCommand, Daemon, Log, Page, Past, Report, Shares, TokenCommand, Undo,
};
pub(crate) use disk::{DiskClear, DiskCommand, DiskLook, DiskSet, DiskTarget};
pub(crate) use group::{
    GroupCommand, GroupCreate, GroupJoin, GroupSet, GroupStatus, Joining, Member,
};
pub(crate) use link::{LinkClear, LinkCommand, LinkLs, LinkOf, LinkPace, LinkSet};
pub(crate) use top::Top;

/// Shapes the input and output of unmodified programs, live and without root.
///
/// A service is a program, with all processes that it starts, under limits that
/// belong to all of them together. A limit names a call or a class of calls, and
/// may be changed at any time; calls that are too early wait.
#[derive(Debug, Parser)]
#[command(name = "bonsai", version, max_term_width = 100, after_help = EXAMPLES)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Letters of a line of names, so that no terminal breaks it.
const LINE: usize = 76;

const EXAMPLES: &str = "\
Examples:
  bonsai run --name web --limit send=80Mbit/s -- nginx -g 'daemon off;'
  bonsai attach 1234 --limit send=2MB/s
  bonsai status
  bonsai why web
  bonsai set web send=40Mbit/s
  bonsai set web send=unlimited
  bonsai doctor /usr/sbin/nginx";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Attach(Attach),
    Detach(Detach),
    Status(Status),
    Top(Top),
    Why(Why),
    Set(Set),
    #[command(subcommand)]
    Group(GroupCommand),
    #[command(subcommand)]
    Link(LinkCommand),
    #[command(subcommand)]
    Disk(DiskCommand),
    #[command(subcommand)]
    Cpu(CpuCommand),
    Stats(Stats),
    Audit(Audit),
    Doctor(Doctor),
    Daemon(Daemon),
    #[command(subcommand)]
    Config(ConfigCommand),
    #[command(subcommand)]
    Capacity(CapacityCommand),
    Shares(Shares),
    Undo(Undo),
    Log(Log),
    #[command(name = "history")]
    Past(Past),
    Admit(Admit),
    Report(Report),
    Page(Page),
    #[command(subcommand)]
    Token(TokenCommand),
    Gen(Gen),
    #[command(hide = true)]
    Enter(Enter),
    #[command(hide = true)]
    Confine(Confine),
}

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

/// Enter a program without a loader, for a process of a service that asks for it.
///
/// Started by `bonsai run`; of no use by hand.
#[derive(Args, Debug)]
pub(crate) struct Enter {
    /// The service's ledger.
    pub(crate) ledger: PathBuf,
    /// The number under which it asks.
    pub(crate) number: usize,
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

/// Change limits of a running service.
///
/// All limits of one call of this command come into force together, within
/// milliseconds, also for calls that are waiting. Where a daemon runs it is told: then a limit
/// on read, write, send or recv is the most that the service gets of it, and the change is in
/// the audit trail and can be undone.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai set vod send=40Mbit/s
  bonsai set vod send=unlimited
  bonsai set vod --event-loops on
  bonsai set vod read=20MB/s write=5MB/s:burst=1MB open=100/s
  bonsai set vod --guarantee send=20Mbit/s --weight 2
  bonsai set backup send=5MB/s --for 2h --reason 'the final'")]
pub(crate) struct Set {
    /// The service.
    pub(crate) service: String,

    /// Limits as for `bonsai run --limit`, or NAME=unlimited.
    #[arg(value_name = "NAME=RATE[:burst=B]")]
    #[arg(required_unless_present_any = ["guarantees", "ceilings", "weight", "event_loops"])]
    pub(crate) limits: Vec<String>,

    #[command(flatten)]
    pub(crate) member: Member,

    #[command(flatten)]
    pub(crate) how: Changing,

    /// Change the service's own limits, past a daemon that runs.
    #[arg(long, conflicts_with_all = ["lasts", "dry_run", "reason"])]
    pub(crate) direct: bool,

    /// Whether calls on descriptors that do not block are refused, as for `bonsai run`.
    #[arg(long, value_name = "WHEN", value_enum)]
    pub(crate) event_loops: Option<Loops>,

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
/// `bonsai`). With one: how it is linked, and which of its calls can be shaped. The
/// exit code is 1 when the answer is that nothing can.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai doctor
  bonsai doctor /usr/sbin/nginx
  bonsai doctor busybox --json")]
pub(crate) struct Doctor {
    /// The program, as it would be given to `bonsai run`.
    pub(crate) program: Option<OsString>,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Write the manual pages, completions and references.
#[derive(Args, Debug)]
#[command(hide = true)]
pub(crate) struct Gen {
    /// Where to: the folder's `man`, `completions` and `docs/reference`.
    pub(crate) folder: PathBuf,
}

/// A time between two looks: at least 10 ms, so that watching costs little, and
/// at most an hour.
fn interval(text: &str) -> Result<Duration, String> {
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

/// The definition, for what is generated from it.
pub(crate) fn definition() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(args: &[&str]) -> Vec<OsString> {
        let cli = Cli::try_parse_from(args).expect("a command line");
        let Command::Run(run) = cli.command else {
            panic!("no run: {:?}", cli.command)
        };
        run.program
    }

    #[test]
    fn the_definition_contradicts_itself_nowhere() {
        definition().debug_assert();
    }

    #[test]
    fn what_follows_the_program_is_its_own() {
        let own = ["cat", "--name", "x", "-v", "--", "--json"];
        for dashes in [&["--"][..], &[]] {
            let args = [&["bonsai", "run", "-l", "read=1MB/s"], dashes, &own[..]].concat();
            assert_eq!(program(&args), own, "{args:?}");
        }
    }

    #[test]
    fn an_unknown_option_is_no_program() {
        let wrong = Cli::try_parse_from(["bonsai", "run", "--limt", "read=1MB/s", "--", "cat"]);
        let text = wrong.expect_err("an unknown option").to_string();
        assert!(
            text.contains("--limt") && text.contains("--limit"),
            "{text}"
        );
    }

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
