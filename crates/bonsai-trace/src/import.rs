//! Traces in the formats of others: text, a record a line.
//!
//! | format | is |
//! |---|---|
//! | `fiu` | `ts_ns pid process lba size R\|W major minor digest`, in sectors of 512 bytes; a digest of 32 hexadecimal digits for each 4096 bytes, or for each 512 |
//! | `blkparse` | what blkparse(1) prints when it is told nothing else |
//! | `tracefs` | the kernel's events `block_rq_issue`, `block_rq_complete`, as in its `trace` |
//! | `msr` | `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`, time in 100 ns since 1601 |
//! | `fio` | fio's iolog of version 2 or 3 |
//! | `arc` | `start count ignored sequence`, in blocks |
//! | `csv` | columns that [`Columns`] names |

mod blk;
mod csv;
mod fio;
mod fiu;
mod lines;
mod out;
mod simple;
mod text;

use std::io::Read;

use serde::Serialize;

pub use csv::{Columns, ColumnsError};
use lines::Lines;
use out::{Found, Out};

use crate::error::BadRecord;
use crate::model::{Request, Sink};
use crate::{Digest, Error};

/// A format of others.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// FIU's traces with contents.
    Fiu,
    /// blkparse's text.
    Blkparse,
    /// The kernel's events as text.
    Tracefs,
    /// MSR Cambridge.
    Msr,
    /// fio's iolog.
    Fio,
    /// The traces of the ARC paper.
    Arc,
    /// Columns with names.
    Csv,
}

impl Format {
    /// All of them, in the order in which they are tried.
    pub const ALL: [Self; 7] = [
        Self::Fiu,
        Self::Blkparse,
        Self::Tracefs,
        Self::Msr,
        Self::Fio,
        Self::Arc,
        Self::Csv,
    ];

    /// Its name.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Fiu => "fiu",
            Self::Blkparse => "blkparse",
            Self::Tracefs => "tracefs",
            Self::Msr => "msr",
            Self::Fio => "fio",
            Self::Arc => "arc",
            Self::Csv => "csv",
        }
    }
}

/// Which event of a request's life is its record, where a format has several.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Event {
    /// It was given to the device: `D`, `block_rq_issue`.
    #[default]
    Issue,
    /// It came to the block layer: `Q`.
    Queue,
    /// The device was done: `C`, `block_rq_complete`.
    Complete,
}

/// How to read.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The format; it is recognised where it is not said.
    pub format: Option<Format>,
    /// What is in which column, for [`Format::Csv`].
    pub columns: Option<Columns>,
    /// Which event is a request.
    pub event: Event,
    /// The sector of 512 bytes at which blocks begin: 63 for partitions of old. Addresses are moved up to
    /// the next multiple of 8 from it.
    pub first_sector: u64,
    /// Whose request it is tells volumes apart, too, in [`Format::Fiu`]: recorders put the guest's name there.
    pub by_process: bool,
    /// Bad records that are passed over, and counted; one more is an error.
    pub skip_bad: u64,
}

/// What was read.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The format.
    pub format: Option<Format>,
    /// Lines.
    pub records: u64,
    /// Bytes.
    pub bytes: u64,
    /// Requests.
    pub requests: u64,
    /// Lines that are no requests: headings, comments, other events.
    pub ignored: u64,
    /// Bad records that were passed over.
    pub bad: u64,
    /// The first of them.
    pub first_bad: Option<String>,
    /// Requests that begin or end within a block. They access each block that they touch.
    pub unaligned: u64,
    /// Contents of such requests, which belong to no block and were left out.
    pub contents_left_out: u64,
    /// Requests that are older than the one before them.
    pub backwards: u64,
    /// Requests that the kernel says it had no room for.
    pub lost: u64,
}

/// Why a line is no request.
#[derive(Debug)]
enum Wrong {
    /// What is wrong, and what would be right.
    Bad(Box<(String, &'static str)>),
    /// Where it goes failed.
    Error(Error),
}

impl From<Error> for Wrong {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

fn bad(what: impl Into<String>, right: &'static str) -> Wrong {
    Wrong::Bad(Box::new((what.into(), right)))
}

/// A line that holds no request, and is as it should be.
const NOTHING: Result<(), Wrong> = Ok(());

trait Codec {
    fn line<S: Sink>(&mut self, line: &[u8], out: &mut Out<'_, S>) -> Result<(), Wrong>;

    /// After the last line: what is missing.
    fn missing(&self) -> Option<String> {
        None
    }
}

/// Reads a trace in a format of others.
///
/// # Errors
/// The format is not recognised, a record is bad ([`Error::Record`]) and may not be passed over, or it
/// cannot be read or written.
pub fn import<R: Read, S: Sink>(from: R, options: &Options, sink: &mut S) -> Result<Report, Error> {
    let mut lines = Lines::new(from);
    if options.format.is_none() {
        lines.fill()?;
    }
    let format = match options.format {
        Some(format) => format,
        None if options.columns.is_some() => Format::Csv,
        None => recognise(lines.beginning()).ok_or_else(|| unknown(lines.beginning()))?,
    };
    let shift = (8 - options.first_sector % 8) % 8 * 512;
    let mut out = Out::new(sink, shift);
    out.report.format = Some(format);
    let skip = options.skip_bad;
    match format {
        Format::Fiu => run(
            fiu::Fiu::new(options.by_process),
            &mut lines,
            &mut out,
            skip,
        ),
        Format::Blkparse => run(
            blk::Blkparse::new(options.event),
            &mut lines,
            &mut out,
            skip,
        ),
        Format::Tracefs => run(blk::Tracefs::new(options.event), &mut lines, &mut out, skip),
        Format::Msr => run(simple::Msr::default(), &mut lines, &mut out, skip),
        Format::Fio => run(fio::Fio::default(), &mut lines, &mut out, skip),
        Format::Arc => run(simple::Arc::default(), &mut lines, &mut out, skip),
        Format::Csv => {
            let columns = options.columns.clone().ok_or_else(|| no_columns(&lines))?;
            run(csv::Csv::new(columns), &mut lines, &mut out, skip)
        }
    }?;
    let mut report = out.report;
    report.ignored = report.records.saturating_sub(report.bad + report.ignored);
    Ok(report)
}

fn run<C: Codec, R: Read, S: Sink>(
    mut codec: C,
    lines: &mut Lines<R>,
    out: &mut Out<'_, S>,
    skip: u64,
) -> Result<(), Error> {
    // Lines with requests, for now; what is left was ignored.
    let mut with_requests = 0;
    loop {
        let at = lines.offset();
        if !lines.is_ready() {
            // Nothing waits here while more is waited for.
            out.flush()?;
        }
        let line = match lines.next()? {
            None => break,
            Some(Ok(line)) => {
                let before = out.report.requests;
                let done = codec.line(line, out);
                with_requests += u64::from(out.report.requests > before);
                done
            }
            Some(Err(long)) => Err(long),
        };
        out.report.records += 1;
        let Err(wrong) = line else { continue };
        out.drop_contents();
        let (what, right) = match wrong {
            Wrong::Error(error) => return Err(error),
            Wrong::Bad(words) => *words,
        };
        let bad = BadRecord {
            record: out.report.records,
            offset: at,
            what,
            right: right.to_owned(),
        };
        if out.report.bad >= skip {
            out.flush()?;
            return Err(bad.into());
        }
        out.report.bad += 1;
        out.report.first_bad.get_or_insert_with(|| bad.to_string());
    }
    out.report.bytes = lines.offset();
    out.report.ignored = with_requests;
    match codec.missing().filter(|_| out.report.requests == 0) {
        None => Ok(()),
        Some(what) => Err(BadRecord {
            record: out.report.records,
            offset: lines.offset(),
            what,
            right: "an input that has some, or another event".to_owned(),
        }
        .into()),
    }
}

/// Takes nothing: for trying.
#[derive(Debug, Default)]
struct Nowhere;

impl Sink for Nowhere {
    fn volume(&mut self, _: &str) -> Result<u32, Error> {
        Ok(0)
    }

    fn content(&mut self, _: Digest) -> Result<u32, Error> {
        Ok(0)
    }

    fn request(&mut self, _: &Request<'_>) -> Result<(), Error> {
        Ok(())
    }
}

/// Lines that are looked at.
const TRIED: usize = 20;

/// The format of a file that begins so: the first one in which more of the first lines are requests than are wrong, or
/// one that says so itself.
pub fn recognise(beginning: &[u8]) -> Option<Format> {
    if fio::is_header(beginning) {
        return Some(Format::Fio);
    }
    let whole = match memchr::memrchr(b'\n', beginning) {
        Some(end) => &beginning[..end],
        None => beginning,
    };
    // A trace of the kernel may begin with events of other kinds.
    if beginning.starts_with(b"# tracer: ") {
        return Some(Format::Tracefs);
    }
    let lines = || whole.split(|byte| *byte == b'\n').take(TRIED);
    Format::ALL.into_iter().find(|format| match format {
        Format::Fiu => is_of(fiu::Fiu::new(false), lines()),
        Format::Blkparse => is_of(blk::Blkparse::any(), lines()),
        Format::Tracefs => is_of(blk::Tracefs::any(), lines()),
        Format::Msr => is_of(simple::Msr::default(), lines()),
        Format::Arc => is_of(simple::Arc::default(), lines()),
        Format::Fio | Format::Csv => false,
    })
}

fn is_of<'l, C: Codec>(mut codec: C, lines: impl Iterator<Item = &'l [u8]>) -> bool {
    let mut nowhere = Nowhere;
    let mut out = Out::new(&mut nowhere, 0);
    let mut wrong = 0;
    for line in lines {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if codec.line(line, &mut out).is_err() {
            out.drop_contents();
            wrong += 1;
        }
    }
    // A bad record is to be said as one, and not as an unknown format.
    out.report.requests > wrong
}

fn unknown(beginning: &[u8]) -> Error {
    let line = beginning.split(|byte| *byte == b'\n').next().unwrap_or(&[]);
    let what = if crate::format::is_trace(beginning) {
        "it is a .btr trace already".to_owned()
    } else if beginning.is_empty() {
        "the input is empty".to_owned()
    } else {
        format!(
            "its format is not recognised, it begins with {}",
            text::shown(line)
        )
    };
    BadRecord {
        record: 1,
        offset: 0,
        what,
        right: "fiu, blkparse, tracefs, msr, fio or arc, or csv with its columns named".to_owned(),
    }
    .into()
}

fn no_columns<R>(lines: &Lines<R>) -> Error {
    BadRecord {
        record: 1,
        offset: lines.offset(),
        what: "it is not said what is in which column".to_owned(),
        right: "columns such as time=1,offset=5:sector,length=6:sector,op=7".to_owned(),
    }
    .into()
}
