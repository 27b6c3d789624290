//! What is in which column of CSV.

use std::str::FromStr;

use crate::model::BLOCK;

/// What is in which column: `time=2:ns,volume=8+9,offset=5:sector,length=6:sector,op=7,digest=10`.
///
/// A column is a number from 1, or its heading. Units: of `time` `ns` (if none is said), `us`, `ms`, `s`, `filetime`; of
/// `offset` and `length` `B` (if none is said), `sector` (512 B), `KiB`, `block` (4096 B). Several columns, joined by
/// `+`, name a volume together. Only `offset` is needed: without a `length` each request is of one
/// block, without `op` it reads, without `time` all come at once.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Columns {
    pub(super) time: Option<(Column, u64)>,
    pub(super) volume: Vec<Column>,
    pub(super) offset: (Column, u64),
    pub(super) length: Option<(Column, u64)>,
    pub(super) op: Option<Column>,
    pub(super) digest: Option<Column>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Column {
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

/// The unit of a `time` in 100 ns since 1601.
pub(super) const FILETIME: u64 = 0;

impl FromStr for Columns {
    type Err = ColumnsError;

    fn from_str(text: &str) -> Result<Self, ColumnsError> {
        let wrong = |part: &str, what| ColumnsError {
            part: part.to_owned(),
            what,
        };
        let (mut time, mut volume, mut offset) = (None, Vec::new(), None);
        let (mut length, mut op, mut digest) = (None, None, None);
        let mut names = Vec::new();
        for part in text.split(',') {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| wrong(part, "write NAME=COLUMN, such as offset=5:sector"))?;
            if names.contains(&name) {
                return Err(wrong(
                    part,
                    "it is named twice; several columns of one volume are joined by +",
                ));
            }
            names.push(name);
            let (column, unit) = match value.split_once(':') {
                Some((column, unit)) => (column, Some(unit)),
                None => (value, None),
            };
            let one = || Column::of(column).ok_or_else(|| wrong(part, "columns count from 1"));
            if unit.is_some() && !matches!(name, "time" | "offset" | "length") {
                return Err(wrong(part, "only time, offset and length have units"));
            }
            let bytes = || match bytes(unit) {
                Some(unit) => Ok((one()?, unit)),
                None => Err(wrong(part, "its unit is B, sector, KiB or block")),
            };
            match name {
                "time" => match nanoseconds(unit) {
                    Some(unit) => time = Some((one()?, unit)),
                    None => return Err(wrong(part, "its unit is ns, us, ms, s or filetime")),
                },
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

/// Bytes of a unit.
pub(super) fn bytes(unit: Option<&str>) -> Option<u64> {
    Some(match unit {
        None | Some("B") => 1,
        Some("sector") => 512,
        Some("KiB") => 1024,
        Some("block") => BLOCK,
        Some(_) => return None,
    })
}

/// Nanoseconds of a unit.
fn nanoseconds(unit: Option<&str>) -> Option<u64> {
    Some(match unit {
        None | Some("ns") => 1,
        Some("us") => 1_000,
        Some("ms") => 1_000_000,
        Some("s") => 1_000_000_000,
        Some("filetime") => FILETIME,
        Some(_) => return None,
    })
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

impl Columns {
    /// All of them that are named.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Column> {
        let times = self.time.iter_mut().map(|(column, _)| column);
        let lengths = self.length.iter_mut().map(|(column, _)| column);
        times
            .chain(lengths)
            .chain([&mut self.offset.0])
            .chain(&mut self.volume)
            .chain(&mut self.op)
            .chain(&mut self.digest)
    }

    /// Those that hold numbers: time, offset, length.
    pub(super) fn numeric(&self) -> impl Iterator<Item = &Column> {
        let times = self.time.iter().map(|(column, _)| column);
        let lengths = self.length.iter().map(|(column, _)| column);
        times.chain([&self.offset.0]).chain(lengths)
    }
}
