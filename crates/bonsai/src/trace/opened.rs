//! Traces as all commands read them: `.btr`, or any format that the importer recognises, imported on the fly.
//!
//! What is imported goes to a file in the temporary folder that has no name, so that nothing is left of it. Commands open a
//! trace several times: it is imported once.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use bonsai_services::refusal::Refusal;
use bonsai_trace::import::{Format, Identity, Options, Report, identify, import};
use bonsai_trace::{Interning, Reader, is_trace};

use super::files::{Input, Progress, open, open_quietly, shown};
use super::import::{notes, said};
use crate::output::{count, say};

/// A trace that is read.
pub(crate) type TraceReader = Reader<Box<dyn Read>>;

/// Imported traces, by the paths of what they were imported from.
static IMPORTED: Mutex<Vec<(PathBuf, File)>> = Mutex::new(Vec::new());

/// How much of an input is looked at to say what it is, bytes.
const LOOK: usize = 1 << 18;

/// Opens a trace.
///
/// # Errors
/// It cannot be read, or is no trace that can be imported as it is.
pub(crate) fn trace(path: &Path) -> anyhow::Result<(TraceReader, Progress)> {
    trace_named(path, &shown(path))
}

/// Opens a trace that has another name than its path: standard input that was kept in a file.
///
/// # Errors
/// As those of [`trace`].
pub(crate) fn trace_named(path: &Path, name: &str) -> anyhow::Result<(TraceReader, Progress)> {
    let failed = |error| said(name, error);
    if let Some(imported) = imported(path)? {
        let reader = Reader::new(Box::new(imported) as Input).map_err(failed)?;
        return Ok((reader, Progress::hidden()));
    }
    let (mut input, progress) = open(path)?;
    let beginning = beginning(&mut input, 8).map_err(|error| failed(error.into()))?;
    if is_trace(&beginning) {
        let whole: Input = Box::new(io::Cursor::new(beginning).chain(input));
        return Ok((Reader::new(whole).map_err(failed)?, progress));
    }
    let imported = import_all(name, beginning, input);
    progress.done();
    let imported = imported?;
    let again = reopened(&imported)?;
    IMPORTED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push((path.to_owned(), imported));
    let reader = Reader::new(Box::new(again) as Input).map_err(failed)?;
    Ok((reader, Progress::hidden()))
}

/// Opens a trace that [`trace`] has opened before, without saying how far it is read.
///
/// # Errors
/// It cannot be read.
pub(crate) fn trace_again(path: &Path) -> Result<TraceReader, bonsai_trace::Error> {
    let input: Input = match imported(path)? {
        Some(file) => Box::new(file),
        None => open_quietly(path)?,
    };
    Reader::new(input)
}

/// What was imported from a path before.
fn imported(path: &Path) -> io::Result<Option<File>> {
    let imported = IMPORTED.lock().unwrap_or_else(PoisonError::into_inner);
    let found = imported.iter().find(|(known, _)| known == path);
    found.map(|(_, file)| reopened(file)).transpose()
}

/// A file without a name, with a position of its own.
fn reopened(file: &File) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// At least so many bytes of an input, if it has them.
fn beginning(input: &mut Input, bytes: usize) -> io::Result<Vec<u8>> {
    let mut beginning = Vec::new();
    input.take(bytes as u64).read_to_end(&mut beginning)?;
    Ok(beginning)
}

/// Imports an input into a file without a name.
fn import_all(name: &str, start: Vec<u8>, mut input: Input) -> anyhow::Result<File> {
    let failed = |error| said(name, error);
    let more = beginning(&mut input, LOOK).map_err(|error| failed(error.into()))?;
    let start = [start, more].concat();
    let what = recognised(name, &start)?;
    let options = Options::default();
    let mut file = tempfile::tempfile().context("no room to import a trace")?;
    let mut sink = Interning::new(BufWriter::new(&mut file))?;
    let whole = io::Cursor::new(start).chain(input);
    let report = import(whole, &options, &mut sink).map_err(|error| match error {
        bonsai_trace::Error::Record(bad) => Refusal::input(format!(
            "{name}: {bad} ({} has options for it)",
            command(name, "")
        )),
        error => failed(error),
    })?;
    let (out, _) = sink.finish()?;
    out.into_inner()
        .map_err(io::IntoInnerError::into_error)
        .context("no room to import a trace")?;
    file.seek(SeekFrom::Start(0))?;
    note(name, &what, &report);
    Ok(file)
}

/// What an input is called, if it can be imported as it is.
fn recognised(name: &str, start: &[u8]) -> anyhow::Result<String> {
    let identity = identify(start);
    let (what, right) = match &identity {
        Identity::Format(format) => return Ok(format.word().to_owned()),
        Identity::Csv { name, .. } => return Ok(format!("{} ({name})", Format::Csv.word())),
        Identity::Rows { .. } => {
            let (what, _) = identity.problem().unwrap_or_default();
            let command = command(name, &identity.suggestion().unwrap_or_default());
            return Err(Refusal::input(format!(
                "{name}: {what}; import it with its columns named, such as: {command}"
            )));
        }
        _ => identity.problem().unwrap_or_default(),
    };
    if is_beginning_of_trace(start) {
        return Err(Refusal::input(format!(
            "{name}: it is a .btr trace that is cut off within its first 16 bytes"
        )));
    }
    Err(Refusal::input(format!(
        "{name}: this is no trace: {what}; right would be .btr, {right}"
    )))
}

/// Whether some bytes are all that is left of a `.btr` trace.
fn is_beginning_of_trace(start: &[u8]) -> bool {
    const MAGIC: [u8; 8] = *b"\x89BTR\r\n\x1a\n";
    (2..MAGIC.len()).contains(&start.len()) && MAGIC.starts_with(start)
}

/// The command that imports an input.
fn command(name: &str, options: &str) -> String {
    let target = match name {
        "-" => "trace.btr".to_owned(),
        name => {
            let stem = Path::new(name).file_name().unwrap_or_default();
            let stem = stem.to_string_lossy();
            let stem = stem.trim_end_matches(".zst").trim_end_matches(".gz");
            let stem = stem.rsplit_once('.').map_or(stem, |(stem, _)| stem);
            format!("{stem}.btr")
        }
    };
    let blank = if options.is_empty() { "" } else { " " };
    format!(
        "bonsai trace import {}{blank}{options} -o {}",
        quoted(name),
        quoted(&target)
    )
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./+:@%,=".contains(c);
    if word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Says what was imported, and what was guessed on the way.
fn note(name: &str, what: &str, report: &Report) {
    let requests = count(report.requests, "request", "requests");
    let keep = if name == "-" {
        String::new()
    } else {
        format!("; {} keeps it", command(name, ""))
    };
    say!("bonsai: {name}: imported as {what}, {requests}{keep}");
    let unit = match report.format {
        Some(format) if !format.is_text() => ["record", "records"],
        _ => ["line", "lines"],
    };
    for note in notes(report, unit) {
        say!("  {note}");
    }
}
