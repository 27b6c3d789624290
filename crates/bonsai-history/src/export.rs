//! Points as CSV and as Parquet.

mod csv;
mod parquet;
mod pieces;

use std::collections::HashMap;
use std::io::Write;

use bonsai_units::Resource;

use crate::codec::Level;
use crate::error::Error;
use crate::query::{Slot, Stat};

use pieces::{Piece, Rows};

/// The form of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated values (RFC 4180) with a line of names first.
    Csv,
    /// Apache Parquet, uncompressed, with dictionaries.
    Parquet,
}

/// What is exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// From this second on, since 1970.
    pub from: u64,
    /// Up to this second, without it.
    pub to: u64,
    /// The resolution; points that this tier does not have any longer are not exported.
    pub level: Level,
    /// Of these services; of all, and all together, where it is none.
    pub services: Option<Vec<String>>,
    /// Of these resources; of all where it is none.
    pub resources: Option<Vec<Resource>>,
}

/// A column of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// The unit of what is in it.
    pub unit: &'static str,
    /// What is in it.
    pub about: &'static str,
}

const fn column(name: &'static str, unit: &'static str, about: &'static str) -> Column {
    Column { name, unit, about }
}

/// The columns of both forms. In rows of one second least, mean and most are the same.
pub const COLUMNS: [Column; 22] = [
    column(
        "time",
        "s since 1970 (Parquet: timestamp, ms, UTC)",
        "first second of the slot",
    ),
    column("width", "s", "length of the slot"),
    column("observed", "s", "seconds of it that were observed"),
    column("service", "name", "empty: all services together"),
    column("resource", "name", "read, write, send, recv, calls"),
    column("asked_min", "B/s or calls/s", "asked for: least second"),
    column(
        "asked_mean",
        "B/s or calls/s",
        "mean over what was observed",
    ),
    column("asked_max", "B/s or calls/s", "most"),
    column("got_min", "B/s or calls/s", "let through: least second"),
    column("got_mean", "B/s or calls/s", "mean"),
    column("got_max", "B/s or calls/s", "most"),
    column(
        "limit_min",
        "B/s or calls/s",
        "limit: least; empty (null): unlimited all the time",
    ),
    column(
        "limit_mean",
        "B/s or calls/s",
        "mean over the seconds that had one",
    ),
    column("limit_max", "B/s or calls/s", "most"),
    column(
        "guarantee_min",
        "B/s or calls/s",
        "guarantee: least; 0 is none",
    ),
    column("guarantee_mean", "B/s or calls/s", "mean"),
    column("guarantee_max", "B/s or calls/s", "most"),
    column("waited_min", "s/s", "threads' waiting per second: least"),
    column("waited_mean", "s/s", "mean"),
    column("waited_max", "s/s", "most"),
    column("waits", "1", "waits that began in the slot"),
    column("waits_per_s", "1/s", "the same per observed second"),
];

/// The outcome of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Rows.
    pub rows: u64,
    /// Blocks that could not be read, and are gaps.
    pub damaged: u64,
}

/// A row of an export.
#[derive(Clone, Copy, Debug)]
struct Line<'a> {
    service: &'a str,
    resource: Resource,
    slot: &'a Slot,
}

impl Line<'_> {
    /// The numbers behind `resource`; none where there is no limit.
    fn numbers(&self) -> [Option<f64>; 16] {
        let three = |stat: Stat| [Some(stat.min), Some(stat.mean), Some(stat.max)];
        let slot = self.slot;
        let mut numbers = [None; 16];
        let parts = [
            three(slot.asked),
            three(slot.got),
            slot.limit.map_or([None; 3], three),
            three(slot.guarantee),
            three(slot.waited),
        ];
        for (to, from) in numbers.iter_mut().zip(parts.as_flattened()) {
            *to = *from;
        }
        numbers[15] = Some(slot.waits as f64 / slot.observed.max(1) as f64);
        numbers
    }
}

/// Where rows go.
trait Sink {
    fn line(&mut self, line: Line<'_>) -> Result<(), Error>;
    fn end(self: Box<Self>) -> Result<(), Error>;
}

/// Writes everything that is asked for; `ask` reads a piece in a transaction of its own.
pub(crate) fn export<'o>(
    what: &Export,
    format: Format,
    out: impl Write + Send + 'o,
    mut ask: impl FnMut(&Piece<'_>) -> Result<Rows, Error>,
) -> Result<Exported, Error> {
    let mut sink: Box<dyn Sink + 'o> = match format {
        Format::Csv => Box::new(csv::Csv::new(out)?),
        Format::Parquet => Box::new(parquet::Parquet::new(out)?),
    };
    let mut names = HashMap::new();
    let mut done = Exported::default();
    let mut piece = Piece::first(what);
    loop {
        let rows = ask(&piece)?;
        names.extend(rows.names);
        done.damaged += rows.damaged;
        for (service, resource, slot) in &rows.slots {
            let Some(service) = names.get(service) else {
                continue;
            };
            sink.line(Line {
                service,
                resource: *resource,
                slot,
            })?;
            done.rows += 1;
        }
        match rows.next {
            Some(next) => piece = piece.after(next),
            None => break,
        }
    }
    sink.end()?;
    Ok(done)
}
