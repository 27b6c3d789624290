//! What an input is, by how it begins.

use super::columns::Columns;
use super::csv;
use super::delimiter::{Delimiter, Splitter};
use super::lines::BYTE_ORDER_MARK;
use super::text::{self, whole};
use super::{Codec, Format, Nowhere, Out, binary, blk, fio, fiu, simple, tracefs};

/// What an input is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Identity {
    /// A `.btr` trace.
    Trace,
    /// A format that is imported as it is.
    Format(Format),
    /// CSV with a heading that says what its columns are.
    Csv {
        /// What writes it.
        name: &'static str,
        /// The columns, as [`Columns`] reads them.
        columns: &'static str,
        /// What stands between values.
        delimiter: Delimiter,
    },
    /// Rows of values: what is in which column has to be said.
    Rows {
        /// Values of a row.
        values: usize,
        /// What stands between them.
        delimiter: Delimiter,
        /// The first row, in quotes.
        first: String,
    },
    /// No trace that can be imported.
    Other {
        /// What it is.
        what: String,
        /// What would be right.
        right: &'static str,
    },
}

/// Names a format or sends an input to the tool that makes text of it.
const SIGNATURES: [(&[u8], &str, &str); 18] = [
    (
        b"PERFILE2",
        "it is a recording of perf(1)",
        "the text of perf script -i FILE",
    ),
    (
        b"\x17\x08\x44tracing",
        "it is a recording of trace-cmd(1)",
        "the text of trace-cmd report FILE",
    ),
    (
        b"\x07tae",
        "it is a recording of blktrace(8)",
        "the text of blkparse -i FILE",
    ),
    (
        b"eat\x07",
        "it is a recording of blktrace(8)",
        "the text of blkparse -i FILE",
    ),
    (
        b"\xf0\xde\xbc\x9a\x78\x56\x34\x12",
        "it is a trace of libCacheSim in its format lcs",
        "oracleGeneral, vscsi or csv, which libCacheSim's traceConv and tracePrint write",
    ),
    (
        b"DSv1",
        "it is a DataSeries file",
        "the text of ds2txt FILE, as csv with its columns named",
    ),
    (
        b"PAR1",
        "it is a Parquet file",
        "csv with its columns named",
    ),
    (
        b"SQLite format 3\0",
        "it is a SQLite database",
        "csv with its columns named",
    ),
    (
        b"\xfd7zXZ\0",
        "it is compressed by xz",
        "xz -dc FILE | bonsai trace import -",
    ),
    (
        b"BZh",
        "it is compressed by bzip2",
        "bzip2 -dc FILE | bonsai trace import -",
    ),
    (
        b"\x04\x22\x4d\x18",
        "it is compressed by lz4",
        "lz4 -dc FILE | bonsai trace import -",
    ),
    (
        b"7z\xbc\xaf\x27\x1c",
        "it is a 7z archive",
        "a trace from that archive",
    ),
    (
        b"PK\x03\x04",
        "it is a zip archive",
        "unzip -p FILE | bonsai trace import -",
    ),
    (
        b"\x1f\x8b",
        "it is compressed twice",
        "zcat FILE | bonsai trace import -",
    ),
    (
        b"\x28\xb5\x2f\xfd",
        "it is compressed twice",
        "zstdcat FILE | bonsai trace import -",
    ),
    (b"QFI\xfb", "it is a disk image", "a trace"),
    (b"\x7fELF", "it is a program", "a trace"),
    (b"%PDF", "it is a PDF document", "a trace"),
];

/// What an input is that begins so; some thousand bytes suffice, more make it surer.
pub fn identify(beginning: &[u8]) -> Identity {
    let other = |what: &str, right| Identity::Other {
        what: what.to_owned(),
        right,
    };
    if crate::format::is_trace(beginning) {
        return Identity::Trace;
    }
    if beginning.is_empty() {
        return other("the input is empty", super::RIGHT);
    }
    if let Some((what, right)) = foreign_text(beginning) {
        return other(what, right);
    }
    let signature = SIGNATURES
        .into_iter()
        .find(|(signature, ..)| beginning.starts_with(signature));
    if let Some((_, what, right)) = signature {
        return other(what, right);
    }
    if beginning.get(257..262) == Some(b"ustar") {
        return other(
            "it is a tar archive",
            "tar -xOf FILE NAME | bonsai trace import -",
        );
    }
    let beginning = beginning.strip_prefix(BYTE_ORDER_MARK).unwrap_or(beginning);
    if let Some(format) = recognise(beginning) {
        return Identity::Format(format);
    }
    if let Some((known, delimiter)) = csv::known(beginning) {
        return Identity::Csv {
            name: known.name,
            columns: known.columns,
            delimiter,
        };
    }
    if beginning.iter().take(4_096).any(|byte| *byte == 0) {
        return other("it is binary data of no format that is known", super::RIGHT);
    }
    if let Some(rows) = rows(beginning) {
        return rows;
    }
    let line = beginning.split(|byte| *byte == b'\n').next().unwrap_or(&[]);
    let start = beginning.trim_ascii_start();
    let lower: Vec<u8> = start.iter().take(9).map(u8::to_ascii_lowercase).collect();
    if lower.starts_with(b"<!doctype") || lower.starts_with(b"<html") || lower.starts_with(b"<?xml")
    {
        return other(
            "it is a web page, or XML",
            "a trace: was the download refused?",
        );
    }
    Identity::Other {
        what: format!(
            "its format is not recognised, it begins with {}",
            text::shown(line)
        ),
        right: super::RIGHT,
    }
}

/// What a text is that has no lines as they are read here, and what would be right.
pub(super) fn foreign_text(beginning: &[u8]) -> Option<(&'static str, &'static str)> {
    if is_utf16(beginning) {
        return Some((
            "it is text in UTF-16, as Windows writes it",
            "UTF-8, as iconv -f UTF-16 -t UTF-8 FILE writes it",
        ));
    }
    let is_text = |byte: &u8| *byte >= b' ' || byte.is_ascii_whitespace();
    let start = &beginning[..beginning.len().min(4_096)];
    let count = |byte| memchr::memchr_iter(byte, start).count();
    // One of each pair belongs to its line feed, and names of processes may have one.
    let is_old = count(b'\r') > 2 * count(b'\n') && start.iter().all(is_text);
    is_old.then_some((
        "its lines end in carriage returns alone",
        "line feeds, as tr '\\r' '\\n' <FILE writes them",
    ))
}

/// Text of 16 bits a character, with a mark or by its zero bytes.
fn is_utf16(beginning: &[u8]) -> bool {
    let is_marked = beginning.starts_with(b"\xff\xfe") || beginning.starts_with(b"\xfe\xff");
    // ASCII characters have one byte of two that is zero.
    let (pairs, _) = beginning[..beginning.len().min(256)].as_chunks::<2>();
    let is_text = |byte: u8| matches!(byte, b' '..=b'~' | b'\t' | b'\r' | b'\n');
    let is_ascii = |zero: usize| {
        pairs.len() >= 4
            && pairs
                .iter()
                .all(|pair| pair[zero] == 0 && is_text(pair[1 - zero]))
    };
    is_marked || is_ascii(0) || is_ascii(1)
}

/// Lines that are looked at, and requests that suffice.
const MOST_LINES: usize = 2_000;
const ENOUGH: u64 = 20;

/// The format of a file that begins so: the first one in which more of the first lines are requests than are wrong, or
/// one that says so itself.
pub fn recognise(beginning: &[u8]) -> Option<Format> {
    let beginning = beginning.strip_prefix(BYTE_ORDER_MARK).unwrap_or(beginning);
    if fio::is_header(beginning) {
        return Some(Format::Fio);
    }
    // A trace of the kernel may begin with events of other kinds.
    if beginning.starts_with(b"# tracer: ") || beginning.starts_with(b"cpus=") {
        return Some(Format::Tracefs);
    }
    if binary::Vscsi::of(beginning).is_some() {
        return Some(Format::Vscsi);
    }
    let has_zero = beginning.iter().take(4_096).any(|byte| *byte == 0);
    if has_zero {
        let is_it = binary::OracleGeneral::is_format(beginning);
        return is_it.then_some(Format::OracleGeneral);
    }
    let whole = match memchr::memrchr(b'\n', beginning) {
        Some(end) => &beginning[..end],
        None => beginning,
    };
    let lines = || whole.split(|byte| *byte == b'\n').take(MOST_LINES);
    Format::ALL.into_iter().find(|format| match format {
        Format::Fiu => is_of(fiu::Fiu::new(false), lines()),
        Format::Blkparse => is_of(blk::Blkparse::any(), lines()),
        Format::Tracefs => is_of(tracefs::Tracefs::any(), lines()),
        Format::Msr => is_of(simple::Msr::default(), lines()),
        Format::Arc => is_of(simple::Arc::default(), lines()),
        Format::Fio | Format::Csv | Format::Vscsi | Format::OracleGeneral => false,
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
        if out.report.requests.abs_diff(wrong) >= ENOUGH {
            break;
        }
    }
    // A bad record is to be said as one, and not as an unknown format.
    out.report.requests > wrong
}

/// Rows of a table.
const FEW_ROWS: usize = 20;

/// Text of which each row has as many values, at least one of them a number in each but the first.
fn rows(beginning: &[u8]) -> Option<Identity> {
    let end = memchr::memrchr(b'\n', beginning).unwrap_or(beginning.len());
    let rows: Vec<&[u8]> = beginning[..end]
        .split(|byte| *byte == b'\n')
        .map(|row| row.strip_suffix(b"\r").unwrap_or(row))
        .filter(|row| !row.trim_ascii().is_empty() && !row.starts_with(b"#"))
        .take(FEW_ROWS)
        .collect();
    let first = text::shown(rows.first()?);
    let delimiters = Delimiter::GUESSED.into_iter();
    let counted = delimiters.filter_map(|delimiter| {
        let mut splitter = Splitter::new(delimiter);
        let mut values = None;
        for (n, row) in rows.iter().enumerate() {
            splitter.split(row).ok()?;
            let has_number = splitter.values().any(|value| whole(value).is_some());
            let is_alike = *values.get_or_insert(splitter.count()) == splitter.count();
            if !is_alike || !has_number && (n > 0 || rows.len() == 1) {
                return None;
            }
        }
        Some((values?, delimiter))
    });
    // The first of those with the most values.
    let (values, delimiter) = counted.reduce(|best, other| {
        if other.0 > best.0 && best.0 == 1 {
            other
        } else {
            best
        }
    })?;
    Some(Identity::Rows {
        values,
        delimiter,
        first,
    })
}

impl Identity {
    /// The columns of [`Identity::Csv`].
    pub(super) fn columns(&self) -> Option<Columns> {
        match self {
            Self::Csv { columns, .. } => columns.parse().ok(),
            _ => None,
        }
    }

    /// What is wrong with an input that cannot be imported as it is, and what would be right.
    pub fn problem(&self) -> Option<(String, String)> {
        match self {
            Self::Format(_) | Self::Csv { .. } => None,
            Self::Trace => Some((
                "it is a .btr trace already".to_owned(),
                super::RIGHT.to_owned(),
            )),
            Self::Other { what, right } => Some((what.clone(), (*right).to_owned())),
            Self::Rows {
                values,
                delimiter,
                first,
            } => Some((
                if *values == 1 {
                    format!(
                        "its format is not recognised: it is a list of numbers, the first {first}"
                    )
                } else {
                    format!(
                        "its format is not recognised: it has {values} values a line ({delimiter} between them), the \
                         first line is {first}"
                    )
                },
                format!(
                    "{}; or {}",
                    super::RIGHT,
                    self.suggestion().unwrap_or_default()
                ),
            )),
        }
    }

    /// Options of `bonsai trace import` that would import rows, as an example.
    pub fn suggestion(&self) -> Option<String> {
        let Self::Rows { values, .. } = self else {
            return None;
        };
        Some(match values {
            1 => "--columns offset=1:block".to_owned(),
            2 => "--columns offset=1:sector,length=2:sector".to_owned(),
            3 => "--columns time=1:s,offset=2:sector,length=3".to_owned(),
            _ => "--columns time=1:s,offset=2:sector,length=3,op=4".to_owned(),
        })
    }
}
