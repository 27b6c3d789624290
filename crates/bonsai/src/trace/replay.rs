//! `bonsai trace replay`: a trace against servers of NBD.
//!
//! ```text
//! trace -> survey (who is asked for what, before anything is sent) -> targets -> connections
//! trace -> feed (a thread: merged, split, with its contents) -> engine -> tally -> report
//! ```
//! | module | what is in it |
//! |---|---|
//! | `targets` | which device is which export |
//! | `survey` | what a trace asks of each device |
//! | `feed` | orders, some ten thousands at a time |
//! | `engine` | what is sent when, and what came back |
//! | `check` | what reads have to find |
//! | `report` | counts and delays, as text and JSON |

mod check;
mod engine;
mod feed;
mod report;
mod survey;
mod targets;

use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use bonsai_nbd::client::{ClientError, Connection, OpenError};
use bonsai_nbd::protocol::flags;
use bonsai_services::refusal::Refusal;
use bonsai_trace::Volume;
use indicatif::{ProgressBar, ProgressStyle};
use tempfile::NamedTempFile;

use crate::cli::TraceReplay;
use engine::{Engine, Link};
use feed::Feed;
use survey::Asked;
use targets::Target;

/// How long a server may take to agree on an export.
const NEGOTIATION: Duration = Duration::from_secs(20);

/// Replays; exit code 1 where something failed or was wrong.
///
/// # Errors
/// Bad input, or a server that does not answer.
pub(super) fn run(args: &TraceReplay) -> anyhow::Result<u8> {
    let targets: Vec<Target> = args
        .to
        .iter()
        .map(|text| Target::parse(text))
        .collect::<Result<_, _>>()?;
    let kept = kept(&args.trace)?;
    let path = kept
        .as_ref()
        .map_or(args.trace.as_path(), |kept| kept.path());
    let name = args.trace.display().to_string();
    let survey = survey::survey(path, &name)?;
    let devices = targets::devices(&targets, &survey, args.reads_only)?;
    let mut links = Vec::new();
    let mut by_volume = vec![None; survey.volumes.len()];
    for (volume, uri) in devices {
        let (of, asked) = (&survey.volumes[volume], &survey.asked[volume]);
        let connection = Connection::open(&uri, true, NEGOTIATION)
            .map_err(|error| not_open(&uri.to_string(), error))?;
        fits(&name, args, (of, asked), &connection)
            .map_err(|why| Refusal::input(format!("{uri}: {why}")))?;
        by_volume[volume] = Some(links.len());
        links.push(Link::new(of.name.clone(), connection));
    }
    if args.check && survey.known == 0 {
        return Err(Refusal::input(format!(
            "{name}: it does not say what its blocks hold, so there is nothing to check"
        )));
    }
    let most = links.iter().map(|link| link.max_payload()).min();
    let feed = Feed::start(path, args, most.unwrap_or(1 << 20));
    let bar = bar(survey.requests);
    let engine = Engine::new(args, links, by_volume)?;
    let done = engine.run(&feed, &name, &bar);
    bar.finish_and_clear();
    let tally = done?;
    report::tell(args, &tally)?;
    Ok(u8::from(tally.is_bad()))
}

/// Standard input, in a file, as it is read twice.
fn kept(path: &Path) -> anyhow::Result<Option<NamedTempFile>> {
    if path != Path::new("-") {
        return Ok(None);
    }
    let mut file = NamedTempFile::new().context("no room for what comes from standard input")?;
    std::io::copy(&mut std::io::stdin().lock(), &mut file)?;
    Ok(Some(file))
}

fn not_open(uri: &str, error: OpenError) -> anyhow::Error {
    match error {
        OpenError::Client(ClientError::NoExport(_)) => Refusal::input(format!("{uri}: {error}")),
        error => anyhow::Error::new(error).context(uri.to_owned()),
    }
}

/// Why a device's requests cannot be had from an export, if so.
fn fits(
    name: &str,
    args: &TraceReplay,
    (volume, asked): (&Volume, &Asked),
    connection: &Connection,
) -> Result<(), String> {
    let device = &volume.name;
    let agreed = connection.agreed();
    let end = asked.end(args.reads_only);
    if end > agreed.size {
        return Err(format!(
            "it has {} bytes, and {name} goes to {end} on {device}",
            agreed.size
        ));
    }
    let changes = !args.reads_only && asked.writes > 0;
    if changes && agreed.has(flags::READ_ONLY) {
        return Err(format!(
            "it is read-only, and {name} writes to {device}; --reads-only leaves that away"
        ));
    }
    if changes && asked.unknown_writes > 0 && !args.fill {
        return Err(format!(
            "{name} does not say what {} of its writes to {device} write; --fill writes random data, --reads-only \
             leaves them out",
            asked.unknown_writes
        ));
    }
    if asked.unit(args.reads_only) < agreed.min_block {
        return Err(format!(
            "it takes multiples of {} bytes, and {name} has others on {device}",
            agreed.min_block
        ));
    }
    Ok(())
}

fn bar(requests: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(requests);
    let style = "{bar:40} {pos} of {len} requests, {per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}
