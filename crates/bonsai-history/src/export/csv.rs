//! Comma-separated values.

use std::io::Write;

use bonsai_units::text::escaped;

use super::{COLUMNS, Line, Sink};
use crate::error::Error;

/// Rows as text.
pub(super) struct Csv<W: Write>(csv::Writer<W>);

impl<W: Write> Csv<W> {
    pub(super) fn new(out: W) -> Result<Self, Error> {
        let mut csv = Self(csv::Writer::from_writer(out));
        csv.record(COLUMNS.map(|column| column.name.to_owned()))?;
        Ok(csv)
    }

    fn record(&mut self, fields: [String; COLUMNS.len()]) -> Result<(), Error> {
        self.0
            .write_record(fields)
            .map_err(|error| match error.into_kind() {
                csv::ErrorKind::Io(error) => Error::Export(error),
                other => Error::Encode(format!("{other:?}")),
            })
    }
}

impl<W: Write> Sink for Csv<W> {
    fn line(&mut self, line: Line<'_>) -> Result<(), Error> {
        let slot = line.slot;
        let mut fields = [const { String::new() }; COLUMNS.len()];
        fields[0] = slot.at.to_string();
        fields[1] = slot.width.to_string();
        fields[2] = slot.observed.to_string();
        fields[3] = escaped(line.service).into_owned();
        fields[4] = line.resource.to_string();
        let numbers = line
            .numbers()
            .map(|number| number.map_or(String::new(), |n| n.to_string()));
        let (rates, per_second) = numbers.split_at(15);
        fields[5..20].clone_from_slice(rates);
        fields[20] = slot.waits.to_string();
        fields[21..].clone_from_slice(per_second);
        self.record(fields)
    }

    fn end(mut self: Box<Self>) -> Result<(), Error> {
        self.0.flush().map_err(Error::Export)
    }
}
