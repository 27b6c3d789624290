//! `bonsai sim`: block caches over a trace.
//!
//! | module | what is in it |
//! |---|---|
//! | `runs` | schemes and policies at given sizes |
//! | `curve` | LRU at every size |
//! | `table` | the thesis' table, beside its figures |
//! | `page` | runs and curves as a page |
//! | `bars` | the table's plot |

mod bars;
mod curve;
mod page;
mod runs;
mod table;

use std::io::IsTerminal;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use bonsai_services::refusal::Refusal;
use bonsai_sim::{BLOCK, Failed, FailedTogether, Loaded, MAX_CAPACITY};
use bonsai_units::Bytes;
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::SimCommand;
use crate::trace::{said, trace};

/// Does what one of the subcommands says.
///
/// # Errors
/// A trace that cannot be read or is bad, or a size that no cache can have.
pub(crate) fn run(command: &SimCommand) -> anyhow::Result<u8> {
    match command {
        SimCommand::Run(args) => runs::run(args)?,
        SimCommand::Curve(args) => curve::run(args)?,
        SimCommand::Table(args) => table::run(args)?,
    }
    Ok(0)
}

/// Refuses a page and a plot of one name, before either is made.
fn check_apart(html: Option<&PathBuf>, figure: Option<&PathBuf>) -> anyhow::Result<()> {
    match (html, figure) {
        (Some(html), Some(figure)) if html == figure => Err(Refusal::input(format!(
            "{}: it cannot be --html and --figure; name two files",
            html.display()
        ))),
        _ => Ok(()),
    }
}

/// The traces that a word names: one, or several that are taken as one, with + between.
fn together(word: &Path) -> Vec<PathBuf> {
    match word.to_str() {
        Some(text) if text.contains('+') && !word.exists() => {
            let names = text.split('+').filter(|name| !name.is_empty());
            names.map(PathBuf::from).collect()
        }
        _ => vec![word.to_owned()],
    }
}

fn load(path: &Path, as_recorded: bool) -> anyhow::Result<Loaded> {
    let paths = together(path);
    if paths.is_empty() {
        return Err(Refusal::input(format!(
            "{}: names no trace",
            path.display()
        )));
    }
    if paths.len() > 1 {
        return load_together(&paths, as_recorded);
    }
    let (mut reader, progress) = trace(path)?;
    let loaded = bonsai_sim::load(&mut reader, as_recorded);
    progress.done();
    let name = path.display().to_string();
    loaded.map_err(|failed| match failed {
        Failed::Trace(error) => said(&name, error),
        other => Refusal::input(format!("{name}: {other}")),
    })
}

fn load_together(paths: &[PathBuf], as_recorded: bool) -> anyhow::Result<Loaded> {
    let mut readers = Vec::new();
    for path in paths {
        let (reader, progress) = trace(path)?;
        // Which of them is read when, nobody knows.
        progress.done();
        readers.push(reader);
    }
    let loaded = bonsai_sim::load_together(readers, as_recorded);
    loaded.map_err(|failed| match failed {
        FailedTogether::One(at, error) => {
            let name = paths.get(at).map(|path| path.display().to_string());
            said(&name.unwrap_or_default(), error)
        }
        FailedTogether::All(failed) => Refusal::input(failed.to_string()),
    })
}

/// A size in blocks.
fn blocks(size: Bytes) -> anyhow::Result<u32> {
    let most = u64::from(MAX_CAPACITY) * BLOCK;
    if size.0 == 0 || !size.0.is_multiple_of(BLOCK) || size.0 > most {
        return Err(Refusal::input(format!(
            "{size} is no size of a cache: it has whole blocks of 4 KiB, at least one and at most 256 GiB of them"
        )));
    }
    Ok(u32::try_from(size.0 / BLOCK)?)
}

fn threads(asked: Option<usize>) -> usize {
    let found = || std::thread::available_parallelism().map_or(1, NonZero::get);
    asked.unwrap_or_else(found).max(1)
}

/// Jobs that are done, on a terminal.
fn progress(jobs: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(jobs as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos} of {len}, {eta} left") {
        bar.set_style(style);
    }
    bar
}

/// What there is to say of a trace before results are read.
fn notes(loaded: &Loaded) -> String {
    let stream = &loaded.stream;
    let mut text = format!(
        "{} requests of blocks, {} blocks ({}), {} contents\n",
        stream.requests.len(),
        stream.blocks.len(),
        size(u64::from(stream.blocks.len()) * BLOCK),
        stream.contents
    );
    for (count, what) in [
        (
            stream.inconsistent,
            "reads return what nobody wrote: the disk's content is taken instead",
        ),
        (
            loaded.without_content,
            "requests say nothing of what their block holds: it is not shared",
        ),
        (loaded.lost, "requests were lost while it was recorded"),
        (loaded.trimmed, "blocks are trimmed, which is not simulated"),
    ] {
        if count > 0 {
            text += &format!("{count} {what}\n");
        }
    }
    text
}

/// Bytes for people.
fn size(bytes: u64) -> String {
    crate::trace::size(bytes / BLOCK)
}

fn percent(ratio: f64) -> String {
    format!("{:.2}", ratio * 100.0)
}
