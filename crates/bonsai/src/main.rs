//! `bonsai`: runs programs under I/O limits, shows what they do and what they
//! wait for, and changes the limits while they run.
//!
//! # Map
//! - [`cli`]: every option; what services and their limits are, and one look at them as a
//!   value, which `--json` prints and all views draw, is in [`bonsai_services`];
//! - one module per subcommand: [`run`], [`attach`], [`detach`], [`status`], [`top`], [`set`], [`group`],
//!   [`link`], [`disk`], [`cpu`], [`drive`], [`davvi`], [`trace`], [`sim`], [`stats`], [`audit`], [`doctor`], [`generate`]; and [`enter`] and [`confine`], which
//!   `run` starts for programs without a loader, and for those that are not trusted.
//!
//! # Invariants
//! 1. `run` checks everything before it makes anything, and leaves nothing behind
//!    that no process needs.
//! 2. Watching a service never changes it; only `set` does.
//! 3. Whatever is not covered is said.

mod attach;
mod audit;
mod bounded;
mod cgroup;
mod cli;
mod confine;
mod cpu;
mod daemon;
mod davvi;
mod detach;
mod disk;
mod doctor;
mod drive;
mod enter;
mod generate;
mod group;
mod library;
mod link;
mod output;
mod reporter;
mod run;
mod serve;
mod set;
mod sim;
mod stats;
mod status;
mod tls;
mod top;
mod trace;
mod watch;
mod whose;
mod why;

use std::process::ExitCode;

use bonsai_services::limits::nearest;
use bonsai_services::refusal;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser};
use rustix::process::{Resource, getrlimit};

use crate::cli::{Cli, Command};
use crate::output::say;

/// Minimum size of the main thread's stack, in bytes (ulimit -s).
const STACK: u64 = 1 << 20;

fn main() -> ExitCode {
    let stack = getrlimit(Resource::Stack).current;
    if stack.is_none_or(|bytes| bytes >= STACK) {
        return answer();
    }
    // The stack of a thread has the size that is asked for.
    let thread = std::thread::Builder::new().stack_size(8 << 20);
    let answered = thread.spawn(answer).map(std::thread::JoinHandle::join);
    match answered {
        Ok(Ok(code)) => code,
        // It has said why.
        Ok(Err(_)) => ExitCode::FAILURE,
        Err(error) => {
            say!(
                "bonsai: the limit of the stack (ulimit -s) leaves no room, and no thread can be made: {error}"
            );
            ExitCode::from(refusal::BAD_INPUT)
        }
    }
}

fn answer() -> ExitCode {
    let mut cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refused(&error),
    };
    match whose::go_on(&mut cli.command).and_then(|()| perform(cli.command)) {
        Ok(code) => ExitCode::from(code),
        // Whoever closed the pipe has seen enough.
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Names of files and peers stand in errors, and a line is one error.
            say!("bonsai: {}", bonsai_host::sentence(error.as_ref()));
            ExitCode::from(refusal::exit_code(&error))
        }
    }
}

fn perform(command: Command) -> anyhow::Result<u8> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Attach(args) => attach::run(&args),
        Command::Detach(args) => detach::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Set(args) => set::run(&args),
        Command::Group(command) => group::run(&command),
        Command::Link(command) => link::run(&command),
        Command::Disk(command) => disk::run(&command),
        Command::Cpu(command) => cpu::run(&command),
        Command::Drive(command) => drive::run(&command),
        Command::Serve(args) => serve::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Davvi(command) => davvi::run(&command),
        Command::Trace(command) => trace::run(&command),
        Command::Sim(command) => sim::run(&command),
        Command::Stats(args) => stats::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Daemon(args) => daemon::run(&args),
        Command::Config(command) => daemon::config(&command),
        Command::Capacity(command) => daemon::capacity(&command),
        Command::Shares(args) => daemon::shares(&args),
        Command::Undo(args) => daemon::undo(&args),
        Command::Log(args) => daemon::log(&args),
        Command::Past(args) => daemon::past(&args),
        Command::Admit(args) => daemon::admit(&args),
        Command::Report(args) => daemon::report(&args),
        Command::Page(args) => daemon::page(&args),
        Command::Token(command) => daemon::token(&command),
        Command::Gen(args) => generate::run(&args),
        Command::Enter(args) => enter::run(&args),
        Command::ScanLibcs(args) => doctor::libcs::scan::run(&args),
        Command::Confine(args) => confine::run(args),
    }
}

/// What a command line that cannot be read is answered with: help and version as
/// they are, everything else as one sentence.
fn refused(error: &clap::Error) -> ExitCode {
    if !error.use_stderr()
        || error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    {
        // Nothing is left to be said if that cannot be printed.
        let _ = error.print();
        return ExitCode::from(if error.use_stderr() {
            refusal::BAD_INPUT
        } else {
            0
        });
    }
    let sentence = sentence(&error.render().to_string());
    let near = std::env::args()
        .nth(1)
        .and_then(|first| near_command(error, &first));
    say!("bonsai: {sentence}{}", near.unwrap_or_default());
    ExitCode::from(refusal::BAD_INPUT)
}

/// The command nearest to a misspelled first word; the parser misses swapped letters.
fn near_command(error: &clap::Error, first: &str) -> Option<String> {
    let wrong = error.get(ContextKind::InvalidSubcommand)?;
    let is_first = matches!(wrong, ContextValue::String(said) if said == first);
    if !is_first || error.get(ContextKind::SuggestedSubcommand).is_some() {
        return None;
    }
    let cli = Cli::command();
    let visible = cli
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    let near = nearest(first, visible.map(|command| command.get_name()));
    near.map(|name| format!("; is {name:?} meant?"))
}

/// Clap's answer (a title, hints, usage) as one sentence.
fn sentence(rendered: &str) -> String {
    let mut lines = rendered
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let title = lines.next().unwrap_or_default();
    let mut text = title
        .strip_prefix("error: ")
        .unwrap_or(title)
        .trim_end_matches(':')
        .to_owned();
    for line in lines {
        if let Some(tip) = line.strip_prefix("tip: ") {
            // The first says what may have been meant, further ones how to insist.
            return format!("{text}; {tip}{MORE}");
        } else if line.starts_with("Usage:") || line.starts_with("For more") {
            break;
        } else {
            // The arguments that a title ending in a colon speaks of.
            text = format!("{text} {line}");
        }
    }
    text + MORE
}

const MORE: &str = " (--help says what there is)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_parser_are_one_sentence() {
        let answer = |args: &[&str]| {
            let error = Cli::try_parse_from(args).expect_err("wrong");
            sentence(&error.render().to_string())
        };
        assert_eq!(
            answer(&["bonsai", "run", "--limt", "x"]),
            "unexpected argument '--limt' found; a similar argument exists: '--limit' \
             (--help says what there is)"
        );
        assert_eq!(
            answer(&["bonsai", "set", "vod"]),
            "the following required arguments were not provided <NAME=RATE[:burst=B]>... \
             (--help says what there is)"
        );
        let text = answer(&["bonsai", "status", "--interval", "3"]);
        let start = "invalid value '3' for '--interval <TIME>': \"3\" has no unit";
        assert!(text.starts_with(start) && !text.contains('\n'), "{text}");
    }

    /// Commands that print no JSON, as the README says: those that stay until they are ended, and those that write a file
    /// of another form.
    const WITHOUT_JSON: [&str; 6] = [
        "attach",
        "daemon",
        "drive serve",
        "link pace",
        "davvi nginx",
        "trace export",
    ];

    fn leaves(command: &clap::Command, path: &str, found: &mut Vec<(String, bool)>) {
        let parts: Vec<_> = command
            .get_subcommands()
            .filter(|sub| !sub.is_hide_set())
            .collect();
        let has = command
            .get_arguments()
            .any(|arg| arg.get_long() == Some("json"));
        if parts.is_empty() {
            found.push((path.trim().to_owned(), has));
        }
        for part in parts {
            leaves(part, &format!("{path} {}", part.get_name()), found);
        }
    }

    #[test]
    fn all_commands_answer_with_json_but_those_that_the_readme_names() {
        let mut found = Vec::new();
        leaves(&Cli::command(), "", &mut found);
        assert!(found.len() > 50, "{found:?}");
        for (command, has) in &found {
            assert_eq!(*has, !WITHOUT_JSON.contains(&command.as_str()), "{command}");
        }
        let readme = include_str!("../../../README.md");
        let claim = readme
            .lines()
            .find(|line| line.contains("`--json`"))
            .expect("a claim");
        for command in WITHOUT_JSON {
            assert!(found.iter().any(|(there, _)| there == command), "{command}");
            assert!(
                claim.contains(&format!("`{command}`")),
                "{command}: {claim}"
            );
        }
    }

    #[test]
    fn a_command_of_swapped_letters_is_found() {
        let near = |args: &[&str]| {
            let error = Cli::try_parse_from(args).expect_err("wrong");
            near_command(&error, args[1])
        };
        assert_eq!(
            near(&["bonsai", "rnu"]),
            Some("; is \"run\" meant?".to_owned())
        );
        // What the parser finds itself, what is too far, and what is no command's fault.
        assert_eq!(near(&["bonsai", "statsu"]), None);
        assert_eq!(near(&["bonsai", "zzzzzz"]), None);
        assert_eq!(near(&["bonsai", "drive", "rnu"]), None);
        assert_eq!(near(&["bonsai", "run", "--limt"]), None);
    }
}
