//! CSV whose columns are named by the user, or by a heading that is known.

use std::collections::BTreeMap;

use super::columns::{Column, Columns, FILETIME};
use super::delimiter::{Delimiter, Splitter};
use super::scsi::{self, Command};
use super::skipped::Reason;
use super::text::{scaled, shown, whole};
use super::{Codec, Found, Nowhere, Out, Wrong, bad, fatal};
use crate::model::{BLOCK, Op, Sink};

/// Values of a known heading, what the file is, and its columns.
#[derive(Debug)]
pub(super) struct Known {
    heading: &'static [&'static str],
    /// What writes such files.
    pub(super) name: &'static str,
    /// As [`Columns`] reads them.
    pub(super) columns: &'static str,
}

/// Headings whose columns mean one thing alone.
const KNOWN: [Known; 2] = [
    // Times are in s: those of the same trace in vscsiStats's form are a million times as many us.
    Known {
        heading: &["version", "time", "op", "size", "lbn"],
        name: "CloudPhysics, as libCacheSim has it",
        columns: "time=time:s,offset=lbn:sector,length=size,op=op",
    },
    Known {
        heading: &[
            "TIME(s)", "COMM", "PID", "DISK", "T", "SECTOR", "BYTES", "LAT(ms)",
        ],
        name: "biosnoop of bcc",
        columns: "time=TIME(s):s,volume=DISK,offset=SECTOR:sector,length=BYTES,op=T",
    },
];

/// The columns of a file whose first line is a known heading.
pub(super) fn known(beginning: &[u8]) -> Option<(&'static Known, Delimiter)> {
    let first = beginning.split(|byte| *byte == b'\n').next()?;
    let first = first.strip_suffix(b"\r").unwrap_or(first);
    Delimiter::GUESSED.into_iter().find_map(|delimiter| {
        let mut splitter = Splitter::new(delimiter);
        splitter.split(first).ok()?;
        let is_it = |known: &&Known| {
            let names = known.heading.iter().map(|name| name.as_bytes());
            splitter.values().eq(names)
        };
        Some((KNOWN.iter().find(is_it)?, delimiter))
    })
}

pub(super) struct Csv {
    columns: Columns,
    splitter: Splitter,
    /// Headings are resolved by the first line that is no comment.
    is_begun: bool,
    /// The line that was taken for a heading.
    heading: Option<Vec<u8>>,
    last: Option<(String, u32)>,
    /// All of them: traces of a cloud have thousands.
    volumes: BTreeMap<String, u32>,
}

/// Lines by which the delimiter is guessed.
const TRIED: u32 = 20;

/// The delimiter with which most of the first lines are requests; the likelier one of two that are as good.
pub(super) fn guess(columns: &Columns, beginning: &[u8]) -> Delimiter {
    let end = memchr::memrchr(b'\n', beginning).unwrap_or(beginning.len());
    let requests = |delimiter| {
        let mut csv = Csv::new(columns.clone(), delimiter);
        let mut nowhere = Nowhere;
        let mut out = Out::new(&mut nowhere, 0);
        let mut tried = 0;
        for line in beginning[..end].split(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if csv.line(line, &mut out).is_err() {
                out.drop_contents();
            }
            // There may be any number of comments first.
            tried += u32::from(!line.is_empty() && !line.starts_with(b"#"));
            if tried == TRIED {
                break;
            }
        }
        (out.report.requests, csv.splitter.count())
    };
    let guesses = Delimiter::GUESSED.map(|delimiter| (requests(delimiter), delimiter));
    // The first one of the best: where no line is a request, the one that cuts lines at all.
    let best = guesses.iter().map(|(count, _)| *count).max();
    let found = guesses.iter().find(|((requests, values), _)| {
        best.is_some_and(|(most, best_values)| {
            *requests == most && (most > 0 || *values == best_values)
        })
    });
    found.map_or(Delimiter::GUESSED[0], |(_, delimiter)| *delimiter)
}

impl Csv {
    pub(super) fn new(columns: Columns, delimiter: Delimiter) -> Self {
        Self {
            columns,
            splitter: Splitter::new(delimiter),
            is_begun: false,
            heading: None,
            last: None,
            volumes: BTreeMap::new(),
        }
    }

    fn value(&self, column: &Column) -> Result<&[u8], Wrong> {
        let n = match column {
            Column::Number(n) => *n,
            // All of them are resolved by the first line.
            Column::Heading(name) => return Err(no_heading(name, &self.splitter)),
        };
        self.splitter.value(n).ok_or_else(|| {
            bad(
                format!(
                    "there is no column {n}, the line has {}",
                    self.splitter.count()
                ),
                "as many columns in each line; --delimiter says what stands between them",
            )
        })
    }

    /// Looks at the first line. Whether it is one of headings: where columns are named by it, or where all the
    /// columns that hold numbers hold text that is no attempt at one.
    fn begin(&mut self) -> Result<bool, Wrong> {
        self.is_begun = true;
        let mut has_names = false;
        for column in self.columns.all() {
            let Column::Heading(name) = column else {
                continue;
            };
            has_names = true;
            *column = Column::Number(number_of(name, &self.splitter)?);
        }
        if has_names {
            return Ok(true);
        }
        let mut numeric = self.columns.numeric();
        let is_text = numeric.all(|column| {
            let value = self.value(column);
            value.is_ok_and(|value| !value.is_empty() && !is_attempt(value))
        });
        Ok(is_text || self.is_numbered())
    }

    /// Whether the values are the numbers of the columns, 0 first, behind an empty one perhaps (as pandas names
    /// columns), which no request can be.
    fn is_numbered(&self) -> bool {
        let values = self.splitter.values();
        let mut count = 0;
        let is_counting = values.skip_while(|value| value.is_empty()).all(|value| {
            count += 1;
            whole(value) == Some(count - 1)
        });
        let op = self.columns.op.as_ref().and_then(|op| self.value(op).ok());
        is_counting && count > 2 && op.is_some_and(|value| operation(value).is_err())
    }

    /// The first line that is no comment, or another heading: `true` where the line is a heading.
    fn is_heading<S: Sink>(&mut self, line: &[u8], out: &mut Out<'_, S>) -> Result<bool, Wrong> {
        if self.is_begun {
            // Files that were put together have a heading each.
            let is_again = self.heading.as_deref() == Some(line);
            if is_again {
                out.new_part();
            }
            return Ok(is_again);
        }
        if self.begin()? {
            self.heading = Some(line.to_vec());
            out.report.heading = Some(shown(line));
            return Ok(true);
        }
        Ok(false)
    }

    fn bytes(&self, (column, unit): &(Column, u64), name: &str) -> Result<u64, Wrong> {
        let value = self.value(column)?;
        // As a program writes whole numbers that it has as floating-point ones: 4096.0.
        let end = value.iter().rposition(|byte| *byte != b'0');
        let digits = match end {
            Some(dot) if value[dot] == b'.' && dot > 0 => &value[..dot],
            _ => value,
        };
        let bytes = whole(digits).and_then(|n| n.checked_mul(*unit));
        bytes.ok_or_else(|| {
            bad(
                format!("{name} {} is no number of bytes", shown(value)),
                "a whole number in decimal digits, at most 2^62 bytes",
            )
        })
    }

    fn time(&self, (column, unit): &(Column, u64)) -> Result<u64, Wrong> {
        let value = self.value(column)?;
        // Where commas do not stand between values, they may stand before decimals.
        let decimal = |byte: &u8| if *byte == b',' { b'.' } else { *byte };
        let point: Vec<u8>;
        let number = if value.contains(&b',') {
            point = value.iter().map(decimal).collect();
            &point
        } else {
            value
        };
        time(number, *unit).ok_or_else(|| {
            bad(
                format!("{} is no time", shown(value)),
                "a number in the unit of the column, after 1970",
            )
        })
    }

    fn volume<S: Sink>(&mut self, out: &mut Out<'_, S>) -> Result<u32, Wrong> {
        let mut name = String::new();
        for column in &self.columns.volume {
            if !name.is_empty() {
                name.push(':');
            }
            name += &String::from_utf8_lossy(self.value(column)?);
        }
        if let Some((last, volume)) = &self.last
            && *last == name
        {
            return Ok(*volume);
        }
        let volume = match self.volumes.get(&name) {
            Some(volume) => *volume,
            None => {
                let shown = if name.is_empty() { "csv" } else { &name };
                let volume = out.sink.volume(shown)?;
                self.volumes.insert(name.clone(), volume);
                volume
            }
        };
        self.last = Some((name, volume));
        Ok(volume)
    }
}

impl Codec for Csv {
    fn line<S: Sink>(&mut self, line: &[u8], out: &mut Out<'_, S>) -> Result<(), Wrong> {
        if line.trim_ascii().is_empty() {
            return out.skip(Reason::Blank);
        }
        // A heading may begin like a comment, where columns are named by it.
        let bare = line.strip_prefix(b"#").filter(|_| !self.is_begun);
        if let Some(bare) = bare {
            self.splitter.split(bare)?;
            let splitter = &self.splitter;
            let is_named = self.columns.all().any(|column| {
                matches!(column, Column::Heading(name) if number_of(name, splitter).is_ok())
            });
            if !is_named {
                return out.skip(Reason::Comment);
            }
        } else if line.starts_with(b"#") && self.heading.as_deref() != Some(line) {
            return out.skip(Reason::Comment);
        } else {
            self.splitter.split(line)?;
        }
        if self.is_heading(line, out)? {
            return out.skip(Reason::Heading);
        }
        let op = match &self.columns.op {
            None => Command::Op(Op::Read),
            Some(column) => operation(self.value(column)?)?,
        };
        let Command::Op(op) = op else {
            return out.skip(Reason::NoBlocks);
        };
        let offset = self.bytes(&self.columns.offset, "offset")?;
        let length = match &self.columns.length {
            Some(length) => self.bytes(length, "length")?,
            None => BLOCK,
        };
        let time_ns = match &self.columns.time {
            None => 0,
            Some(time) => self.time(time)?,
        };
        if let Some(column) = &self.columns.digest {
            // Of some requests the contents are not known.
            let hex = self.value(column)?;
            if !hex.is_empty() {
                super::fiu::contents(hex, offset, length, out)?;
            }
        }
        let volume = self.volume(out)?;
        out.request(Found {
            time_ns,
            volume,
            offset,
            length,
            op,
        })
    }
}

/// The number of the column with a heading.
fn number_of(name: &str, headings: &Splitter) -> Result<usize, Wrong> {
    let mut found = headings
        .values()
        .enumerate()
        .filter(|(_, heading)| *heading == name.as_bytes());
    match (found.next(), found.next()) {
        (Some((at, _)), None) => Ok(at + 1),
        (Some((at, _)), Some((other, _))) => Err(fatal(
            format!(
                "the heading {} stands over columns {} and {}",
                shown(name.as_bytes()),
                at + 1,
                other + 1
            ),
            "the number of a column",
        )),
        (None, _) => Err(no_heading(name, headings)),
    }
}

fn no_heading(name: &str, headings: &Splitter) -> Wrong {
    let all: Vec<String> = headings.values().take(16).map(shown).collect();
    fatal(
        format!(
            "no heading is {}; the first line has {}",
            shown(name.as_bytes()),
            all.join(", ")
        ),
        "one of these, or the number of a column",
    )
}

/// Whether a value begins as a number does, with a sign or without: a bad one is no heading.
fn is_attempt(value: &[u8]) -> bool {
    let digits = value
        .strip_prefix(b"-")
        .or_else(|| value.strip_prefix(b"+"))
        .unwrap_or(value);
    let digits = digits.strip_prefix(b".").unwrap_or(digits);
    digits.first().is_some_and(u8::is_ascii_digit)
}

fn time(value: &[u8], unit: u64) -> Option<u64> {
    if unit == FILETIME {
        let since = whole(value).and_then(|ticks| ticks.checked_sub(super::simple::UNIX));
        return since.and_then(|ticks| ticks.checked_mul(100));
    }
    scaled(value, unit)
}

/// An operation by its name, by a number, or by its SCSI operation code.
fn operation(value: &[u8]) -> Result<Command, Wrong> {
    let lower = value.to_ascii_lowercase();
    let op = match lower.as_slice() {
        b"r" | b"read" | b"0" | b"rs" | b"ra" => Op::Read,
        b"w" | b"write" | b"1" | b"ws" => Op::Write,
        b"d" | b"t" | b"trim" | b"discard" | b"unmap" => Op::Trim,
        b"f" | b"flush" | b"sync" => Op::Flush,
        other => {
            return scsi::code(other).and_then(scsi::command).ok_or_else(|| {
                bad(
                    format!("{} is no operation", shown(value)),
                    "R, W, read, write, trim or flush; 0 for reads and 1 for writes; or a SCSI operation code in \
                     hexadecimal, such as 28 or 2a",
                )
            });
        }
    };
    Ok(Command::Op(op))
}
