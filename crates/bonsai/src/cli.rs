//! The command line: every option, once, for the parser, the help, the manual
//! pages, the completions and the reference.

mod attach;
mod capacity;
mod cpu;
mod daemon;
mod davvi;
mod disk;
mod drive;
mod group;
mod link;
mod look;
mod run;
mod serve;
mod sim;
mod top;
mod trace;
mod watch;

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};

pub(crate) use attach::{Attach, Detach};
pub(crate) use capacity::{CapacityCommand, Probe};
pub(crate) use cpu::{CpuCommand, CpuLook, CpuSet, CpuTarget};
pub(crate) use daemon::{
    Admit, Changing, ConfigCommand, Daemon, Log, Page, Past, Report, Shares, TokenCommand, Undo,
};
pub(crate) use davvi::{
    DavviCommand, DavviImport, DavviLs, DavviNginx, DavviPlay, DavviRecommend, DavviSearch,
    DavviWatched, In,
};
pub(crate) use disk::{DiskClear, DiskCommand, DiskLook, DiskSet, DiskTarget};
pub(crate) use drive::{DriveCommand, DriveServe, DriveStatus, Format};
pub(crate) use group::{
    GroupCommand, GroupCreate, GroupJoin, GroupLeave, GroupRemove, GroupSet, GroupStatus, Joining,
    Member,
};
pub(crate) use link::{LinkClear, LinkCommand, LinkLs, LinkOf, LinkPace, LinkSet};
pub(crate) use look::{Audit, Doctor, ScanLibcs, Stats, Status, Why};
pub(crate) use run::{Confine, Enter, Loops, Run, Unpatched, WhenDead};
pub(crate) use serve::{Behind, Sends, Serve};
pub(crate) use sim::{SimCommand, SimCurve, SimRun, SimTable};
pub(crate) use top::Top;
pub(crate) use trace::{
    Speed, TraceCommand, TraceEvent, TraceExport, TraceFormat, TraceGen, TraceHead, TraceImport,
    TraceRecord, TraceReplay, TraceStat, TraceTo,
};
pub(crate) use watch::{By, Watch};

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
    #[command(subcommand)]
    Drive(DriveCommand),
    Serve(Serve),
    Watch(Watch),
    #[command(subcommand)]
    Davvi(DavviCommand),
    #[command(subcommand)]
    Trace(TraceCommand),
    #[command(subcommand)]
    Sim(SimCommand),
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
    ScanLibcs(ScanLibcs),
    #[command(hide = true)]
    Confine(Confine),
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

/// Write the manual pages, completions and references.
#[derive(Args, Debug)]
#[command(hide = true)]
pub(crate) struct Gen {
    /// Where to: the folder's `man`, `completions` and `docs/reference`.
    pub(crate) folder: PathBuf,
}

/// The definition, for what is generated from it.
pub(crate) fn definition() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

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
}
