//! CSV whose columns somebody names.

use std::str::FromStr;

use csv_core::{ReadRecordResult, ReaderBuilder};

use super::text::{scaled, shown, whole};
use super::{Codec, Found, Out, Wrong, bad};
use crate::model::{BLOCK, Op, Sink};

/// What is in which column: `time=2:ns,volume=8+9,offset=5:sector,length=6:sector,op=7,digest=10`.
///
/// A column is a number from 1, or its heading. Units: of `time` `ns` (if none is said), `us`, `ms`, `s`, `filetime`; of
/// `offset` and `length` `B` (if none is said), `sector` (512 B), `KiB`, `block` (4096 B). Several columns, joined by
/// `+`, name a volume together. Only `offset` is needed: without a `length` each request is of one
/// block, without `op` it reads, without `time` all come at once.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Columns {
    time: Option<(Column, u64)>,
    volume: Vec<Column>,
    offset: (Column, u64),
    length: Option<(Column, u64)>,
    op: Option<Column>,
    digest: Option<Column>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Column {
    Number(usize),
    Heading(String),
}

/// A description of columns that says nothing.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("columns \"{part}\": {what}")]
pub struct ColumnsError {
    part: String,
    what: &'static str,
}

/// `time` in 100 ns since 1601.
const FILETIME: u64 = 0;

impl FromStr for Columns {
    type Err = ColumnsError;

    fn from_str(text: &str) -> Result<Self, ColumnsError> {
        let wrong = |part: &str, what| ColumnsError {
            part: part.to_owned(),
            what,
        };
        let (mut time, mut volume, mut offset) = (None, Vec::new(), None);
        let (mut length, mut op, mut digest) = (None, None, None);
        for part in text.split(',') {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| wrong(part, "write NAME=COLUMN, such as offset=5:sector"))?;
            let (column, unit) = match value.split_once(':') {
                Some((column, unit)) => (column, Some(unit)),
                None => (value, None),
            };
            let one = || Column::of(column).ok_or_else(|| wrong(part, "columns count from 1"));
            let bytes = || {
                let unit = match unit {
                    None | Some("B") => 1,
                    Some("sector") => 512,
                    Some("KiB") => 1024,
                    Some("block") => BLOCK,
                    Some(_) => return Err(wrong(part, "its unit is B, sector, KiB or block")),
                };
                Ok((one()?, unit))
            };
            let is_plain = unit.is_none() || matches!(name, "time" | "offset" | "length");
            if !is_plain {
                return Err(wrong(part, "only time, offset and length have units"));
            }
            match name {
                "time" => {
                    let unit = match unit {
                        None | Some("ns") => 1,
                        Some("us") => 1_000,
                        Some("ms") => 1_000_000,
                        Some("s") => 1_000_000_000,
                        Some("filetime") => FILETIME,
                        Some(_) => {
                            return Err(wrong(part, "its unit is ns, us, ms, s or filetime"));
                        }
                    };
                    time = Some((one()?, unit));
                }
                "volume" => {
                    let columns = column.split('+').map(Column::of);
                    volume = columns
                        .collect::<Option<_>>()
                        .ok_or_else(|| wrong(part, "columns count from 1"))?;
                }
                "offset" => offset = Some(bytes()?),
                "length" => length = Some(bytes()?),
                "op" => op = Some(one()?),
                "digest" => digest = Some(one()?),
                _ => {
                    return Err(wrong(
                        part,
                        "there are time, volume, offset, length, op, digest",
                    ));
                }
            }
        }
        Ok(Self {
            time,
            volume,
            offset: offset.ok_or_else(|| wrong(text, "offset is needed"))?,
            length,
            op,
            digest,
        })
    }
}

impl Column {
    fn of(text: &str) -> Option<Self> {
        match text.parse() {
            Ok(0) => None,
            Ok(n) => Some(Self::Number(n)),
            Err(_) if text.is_empty() => None,
            Err(_) => Some(Self::Heading(text.to_owned())),
        }
    }
}

/// Most values of a line.
const MOST: usize = 1_024;

pub(super) struct Csv {
    columns: Columns,
    reader: Option<csv_core::Reader>,
    /// Headings are resolved by the first line.
    is_begun: bool,
    text: Vec<u8>,
    ends: Vec<usize>,
    last: Option<(String, u32)>,
}

impl Csv {
    pub(super) fn new(columns: Columns) -> Self {
        Self {
            columns,
            reader: None,
            is_begun: false,
            text: Vec::new(),
            ends: vec![0; MOST],
            last: None,
        }
    }

    /// Cuts a line; says how many values it has.
    fn cut(&mut self, line: &[u8]) -> Result<usize, Wrong> {
        let reader = self.reader.get_or_insert_with(|| {
            // What stands in the first line most often is between its values.
            let count = |byte: u8| line.iter().filter(|one| **one == byte).count();
            let delimiter = [b',', b'\t', b';', b' ']
                .into_iter()
                .rev()
                .max_by_key(|byte| count(*byte));
            ReaderBuilder::new()
                .delimiter(delimiter.unwrap_or(b','))
                .build()
        });
        reader.reset();
        self.text.resize(line.len() + 1, 0);
        let (mut input, mut written, mut ends) = (line, 0, 0);
        loop {
            let (result, read, wrote, ended) =
                reader.read_record(input, &mut self.text[written..], &mut self.ends[ends..]);
            (input, written, ends) = (&input[read..], written + wrote, ends + ended);
            match result {
                ReadRecordResult::Record | ReadRecordResult::End => return Ok(ends),
                ReadRecordResult::InputEmpty if input.is_empty() => {}
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {
                    return Err(bad("the line has more than 1024 values", "fewer columns"));
                }
            }
        }
    }

    fn value(&self, column: &Column, values: usize) -> Result<&[u8], Wrong> {
        let n = match column {
            Column::Number(n) if *n <= values => *n,
            Column::Number(n) => {
                return Err(bad(
                    format!("there is no column {n}, the line has {values}"),
                    "as many columns in each line",
                ));
            }
            Column::Heading(name) => {
                return Err(bad(
                    format!("no heading is {}", shown(name.as_bytes())),
                    "a heading of the first line",
                ));
            }
        };
        let start = if n == 1 { 0 } else { self.ends[n - 2] };
        Ok(self.text[start..self.ends[n - 1]].trim_ascii())
    }

    /// Finds headings. Whether the first line is one of headings.
    fn begin(&mut self, values: usize) -> bool {
        self.is_begun = true;
        let names: Vec<Vec<u8>> = (1..=values)
            .filter_map(|n| self.value(&Column::Number(n), values).ok())
            .map(<[u8]>::to_vec)
            .collect();
        let columns = &mut self.columns;
        let times = columns.time.iter_mut().map(|(column, _)| column);
        let lengths = columns.length.iter_mut().map(|(column, _)| column);
        let all = times
            .chain(lengths)
            .chain([&mut columns.offset.0])
            .chain(&mut columns.volume)
            .chain(&mut columns.op)
            .chain(&mut columns.digest);
        let mut has_names = false;
        for column in all {
            if let Column::Heading(name) = column {
                has_names = true;
                if let Some(at) = names.iter().position(|one| one == name.as_bytes()) {
                    *column = Column::Number(at + 1);
                }
            }
        }
        let offset = self.value(&self.columns.offset.0, values);
        let kind = self.columns.op.as_ref();
        let kind = kind.and_then(|column| self.value(column, values).ok());
        has_names
            || offset.is_ok_and(|value| scaled(value, 1).is_none())
            || kind.is_some_and(|value| op(value).is_err())
    }
}

impl Codec for Csv {
    fn line<S: Sink>(&mut self, line: &[u8], out: &mut Out<'_, S>) -> Result<(), Wrong> {
        if line.is_empty() {
            return super::NOTHING;
        }
        let values = self.cut(line)?;
        if !self.is_begun && self.begin(values) {
            return super::NOTHING;
        }
        let columns = &self.columns;
        let bytes = |(column, unit): &(Column, u64), name: &str| {
            let value = self.value(column, values)?;
            let bytes = whole(value).and_then(|n| n.checked_mul(*unit));
            bytes.ok_or_else(|| {
                bad(
                    format!("{name} {} is no number of bytes", shown(value)),
                    "a whole number",
                )
            })
        };
        let offset = bytes(&columns.offset, "offset")?;
        let length = match &columns.length {
            Some(length) => bytes(length, "length")?,
            None => BLOCK,
        };
        let time_ns = match &columns.time {
            None => 0,
            Some((column, unit)) => time(self.value(column, values)?, *unit)?,
        };
        let op = match &columns.op {
            None => Op::Read,
            Some(column) => op(self.value(column, values)?)?,
        };
        let mut name = String::new();
        for column in &columns.volume {
            if !name.is_empty() {
                name.push(':');
            }
            name += &String::from_utf8_lossy(self.value(column, values)?);
        }
        if let Some(column) = &columns.digest {
            let hex = self.value(column, values)?;
            super::fiu::contents(hex, offset, length, out)?;
        }
        let volume = match &self.last {
            Some((last, volume)) if *last == name => *volume,
            _ => {
                let volume = out
                    .sink
                    .volume(if name.is_empty() { "csv" } else { &name })?;
                self.last = Some((name, volume));
                volume
            }
        };
        out.request(Found {
            time_ns,
            volume,
            offset,
            length,
            op,
        })
    }
}

fn time(value: &[u8], unit: u64) -> Result<u64, Wrong> {
    let ns = if unit == FILETIME {
        let since = whole(value).and_then(|ticks| ticks.checked_sub(super::simple::UNIX));
        since.and_then(|ticks| ticks.checked_mul(100))
    } else {
        scaled(value, unit)
    };
    ns.ok_or_else(|| {
        bad(
            format!("{} is no time", shown(value)),
            "a number in the unit of the column, after 1970",
        )
    })
}

fn op(value: &[u8]) -> Result<Op, Wrong> {
    match value.to_ascii_lowercase().as_slice() {
        b"r" | b"read" | b"0" | b"rs" | b"ra" => Ok(Op::Read),
        b"w" | b"write" | b"1" | b"ws" => Ok(Op::Write),
        b"d" | b"t" | b"trim" | b"discard" => Ok(Op::Trim),
        b"f" | b"flush" | b"sync" => Ok(Op::Flush),
        _ => Err(bad(
            format!("{} is no operation", shown(value)),
            "R, W, read, write, trim or flush; or 0 for reads and 1 for writes",
        )),
    }
}
