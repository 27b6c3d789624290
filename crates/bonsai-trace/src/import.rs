//! Traces in the formats of others: text, a record a line, or binary records of a fixed size.
//!
//! | format | is |
//! |---|---|
//! | `fiu` | `ts_ns pid process lba size R\|W major minor digest`, in sectors of 512 bytes; a digest of 32 hexadecimal digits for each 4096 bytes, or for each 512 |
//! | `blkparse` | what blkparse(1) prints when it is told nothing else |
//! | `tracefs` | the kernel's events `block_rq_issue`, `block_rq_complete`, as in its `trace`, in `trace-cmd report` and in `perf script` |
//! | `msr` | `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`, time in 100 ns since 1601 |
//! | `fio` | fio's iolog of version 2 or 3 |
//! | `arc` | `start count ignored sequence`, in blocks |
//! | `vscsi` | records of VMware's vscsiStats, of version 1 or 2 |
//! | `oracleGeneral` | objects of libCacheSim |
//! | `csv` | columns that [`Columns`] names |
//!
//! [`identify`] says what an input is. Everything that is skipped is counted, by [`Reason`]; inputs may be several
//! files of one format, one after the other.

mod binary;
mod blk;
mod columns;
mod csv;
mod delimiter;
mod fio;
mod fiu;
mod identify;
mod lines;
mod out;
mod scsi;
mod simple;
mod skipped;
mod text;
mod tracefs;

use std::io::Read;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use binary::Records;
pub use columns::{Columns, ColumnsError};
pub use delimiter::{Delimiter, DelimiterError};
pub use identify::{Identity, identify, recognise};
use lines::{BYTE_ORDER_MARK, Lines};
use out::{Found, Out};
pub use skipped::{Reason, Skipped};

use crate::error::BadRecord;
use crate::model::{Request, Sink};
use crate::{Digest, Error};

/// A format of others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
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
    /// VMware's vscsiStats.
    Vscsi,
    /// libCacheSim's oracleGeneral.
    OracleGeneral,
}

impl Format {
    /// All of them, in the order in which they are tried.
    pub const ALL: [Self; 9] = [
        Self::Fiu,
        Self::Blkparse,
        Self::Tracefs,
        Self::Msr,
        Self::Fio,
        Self::Arc,
        Self::Csv,
        Self::Vscsi,
        Self::OracleGeneral,
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
            Self::Vscsi => "vscsi",
            Self::OracleGeneral => "oracleGeneral",
        }
    }

    /// Whether a record is a line of text.
    pub const fn is_text(self) -> bool {
        !matches!(self, Self::Vscsi | Self::OracleGeneral)
    }
}

impl Serialize for Format {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

/// What the objects of [`Format::OracleGeneral`] are.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Objects {
    /// Each is one block of 4096 bytes, whatever its size, as for libCacheSim with `--ignore-obj-size`.
    #[default]
    Blocks,
    /// Addresses on a device, in a unit of so many bytes, and the size is what is read from there.
    Addresses(u64),
}

/// What the objects are said to be, and is nothing.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("objects are an id, or addresses in a unit: B, sector, KiB, block")]
pub struct ObjectsError;

impl FromStr for Objects {
    type Err = ObjectsError;

    fn from_str(text: &str) -> Result<Self, ObjectsError> {
        if text == "id" {
            return Ok(Self::Blocks);
        }
        columns::bytes(Some(text))
            .map(Self::Addresses)
            .ok_or(ObjectsError)
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
    /// What stands between the values of [`Format::Csv`]; guessed by the first lines where it is not said.
    pub delimiter: Option<Delimiter>,
    /// What the objects of [`Format::OracleGeneral`] are.
    pub objects: Objects,
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
    /// Lines, or binary records.
    pub records: u64,
    /// Bytes.
    pub bytes: u64,
    /// Requests.
    pub requests: u64,
    /// Lines that are no requests: headings, comments, other events.
    pub ignored: u64,
    /// The same, by reason.
    pub skipped: Skipped,
    /// The line that was taken for a heading.
    pub heading: Option<String>,
    /// What was taken to stand between the values of CSV.
    pub delimiter: Option<Delimiter>,
    /// Files that begin in the middle of the input, with a heading, a version or behind a summary.
    pub parts: u64,
    /// Bad records that were passed over.
    pub bad: u64,
    /// The first of them.
    pub first_bad: Option<String>,
    /// Requests that begin or end within a block. They access each block that they touch.
    pub unaligned: u64,
    /// Contents of such requests, which belong to no block and were left out.
    pub contents_left_out: u64,
    /// Objects of which each is one block, whatever its size: sizes that are left out.
    pub sizes_left_out: u64,
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
    /// The same, and no other record can be right.
    Fatal(Box<(String, &'static str)>),
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

fn fatal(what: impl Into<String>, right: &'static str) -> Wrong {
    Wrong::Fatal(Box::new((what.into(), right)))
}

trait Codec {
    fn line<S: Sink>(&mut self, line: &[u8], out: &mut Out<'_, S>) -> Result<(), Wrong>;

    /// After the last line: what is missing.
    fn missing(&self) -> Option<String> {
        None
    }
}

/// What can be imported.
const RIGHT: &str =
    "fiu, blkparse, tracefs, msr, fio, arc, vscsi or oracleGeneral, or csv with its columns named";

/// Reads a trace in a format of others.
///
/// # Errors
/// The input is empty, its format is not recognised, a record is bad ([`Error::Record`]) and may not be passed over, or it
/// cannot be read or written.
pub fn import<R: Read, S: Sink>(from: R, options: &Options, sink: &mut S) -> Result<Report, Error> {
    let mut lines = Lines::new(from);
    match options.format {
        // A trace that is still being written waits for nothing more.
        Some(format) if format != Format::Csv => lines.begin()?,
        _ => lines.fill()?,
    }
    let (format, columns, delimiter) = chosen(lines.beginning(), options)?;
    let shift = (8 - options.first_sector % 8) % 8 * 512;
    let mut out = Out::new(sink, shift);
    out.report.format = Some(format);
    let skip = options.skip_bad;
    if format.is_text() {
        lines.skip_mark();
    }
    let (lines, to) = (&mut lines, &mut out);
    match format {
        Format::Fiu => run(fiu::Fiu::new(options.by_process), lines, to, skip),
        Format::Blkparse => run(blk::Blkparse::new(options.event), lines, to, skip),
        Format::Tracefs => run(tracefs::Tracefs::new(options.event), lines, to, skip),
        Format::Msr => run(simple::Msr::default(), lines, to, skip),
        Format::Fio => run(fio::Fio::default(), lines, to, skip),
        Format::Arc => run(simple::Arc::default(), lines, to, skip),
        Format::Csv => {
            let columns = columns.ok_or_else(no_columns)?;
            let delimiter = delimiter.unwrap_or_else(|| csv::guess(&columns, lines.beginning()));
            to.report.delimiter = Some(delimiter);
            run(csv::Csv::new(columns, delimiter), lines, to, skip)
        }
        Format::Vscsi => {
            lines.fill()?;
            let vscsi = binary::Vscsi::of(lines.beginning()).ok_or_else(|| {
                at_start(
                    "it is no trace of vscsiStats",
                    "records of 32 or 40 bytes, of version 1 or 2",
                )
            })?;
            run_records(vscsi, lines, to, skip)
        }
        Format::OracleGeneral => {
            run_records(binary::OracleGeneral::new(options.objects), lines, to, skip)
        }
    }?;
    let mut report = out.report;
    report.ignored = report.skipped.total();
    Ok(report)
}

/// The format, as it is said or recognised, and columns and delimiter of CSV.
fn chosen(
    beginning: &[u8],
    options: &Options,
) -> Result<(Format, Option<Columns>, Option<Delimiter>), Error> {
    let said = options
        .format
        .or_else(|| options.columns.as_ref().map(|_| Format::Csv));
    let columns = options.columns.clone();
    let identity = match said {
        // What is no text has no lines.
        Some(format)
            if beginning.is_empty()
                || format.is_text() && identify::foreign_text(beginning).is_some() =>
        {
            identify(beginning)
        }
        Some(format) if format != Format::Csv || columns.is_some() => {
            return Ok((format, columns, options.delimiter));
        }
        _ => identify(beginning),
    };
    match &identity {
        Identity::Format(format) if said.is_none() => Ok((*format, None, None)),
        Identity::Csv { delimiter, .. } => Ok((
            Format::Csv,
            identity.columns(),
            options.delimiter.or(Some(*delimiter)),
        )),
        Identity::Rows { .. } | Identity::Format(_) if said.is_some() => Err(no_columns()),
        identity => {
            let (what, right) = identity
                .problem()
                .unwrap_or_else(|| ("its format is not recognised".to_owned(), RIGHT.to_owned()));
            Err(BadRecord {
                record: 1,
                offset: 0,
                what,
                right,
            }
            .into())
        }
    }
}

fn at_start(what: &str, right: &str) -> Error {
    BadRecord {
        record: 1,
        offset: 0,
        what: what.to_owned(),
        right: right.to_owned(),
    }
    .into()
}

fn no_columns() -> Error {
    at_start(
        "it is not said what is in which column",
        "columns such as time=1,offset=5:sector,length=6:sector,op=7",
    )
}

fn run<C: Codec, R: Read, S: Sink>(
    mut codec: C,
    lines: &mut Lines<R>,
    out: &mut Out<'_, S>,
    skip: u64,
) -> Result<(), Error> {
    loop {
        let at = lines.offset();
        if !lines.is_ready() {
            // Nothing waits here while more is waited for.
            out.flush()?;
        }
        let line = match lines.next()? {
            None => break,
            // Behind the first line, too: files are put together with cat(1).
            Some(Ok(line)) => codec.line(without_mark(line), out),
            Some(Err(long)) => Err(long),
        };
        out.report.records += 1;
        if let Err(wrong) = line {
            out.bad(wrong, at, skip)?;
        }
    }
    end(lines, out, codec.missing())
}

/// A line without the byte order mark that it may begin with.
#[inline]
fn without_mark(line: &[u8]) -> &[u8] {
    match line {
        [0xef, ..] => line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line),
        line => line,
    }
}

fn run_records<C: Records, R: Read, S: Sink>(
    mut codec: C,
    records: &mut Lines<R>,
    out: &mut Out<'_, S>,
    skip: u64,
) -> Result<(), Error> {
    let size = codec.size();
    loop {
        let at = records.offset();
        let record = match records.record(size)? {
            None => break,
            Some(record) if record.len() < size => Err(bad(
                format!(
                    "the input ends after {} of the {size} bytes of a record",
                    record.len()
                ),
                "whole records",
            )),
            Some(record) => codec.record(record, out),
        };
        out.report.records += 1;
        if let Err(wrong) = record {
            out.bad(wrong, at, skip)?;
        }
    }
    end(records, out, None)
}

/// Behind the last record: what is missing is an error where there is no request at all.
fn end<R: Read, S: Sink>(
    lines: &Lines<R>,
    out: &mut Out<'_, S>,
    missing: Option<String>,
) -> Result<(), Error> {
    out.flush()?;
    out.report.bytes = lines.offset();
    match missing.filter(|_| out.report.requests == 0) {
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
