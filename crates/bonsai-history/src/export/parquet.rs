//! Apache Parquet.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};

use super::{COLUMNS, Line, Sink};
use crate::error::Error;

/// Rows of a group: they are kept in memory until the group is written, about 12 MB.
const GROUP: usize = 65_536;
/// Columns of numbers behind the service and the resource, without `waits`.
const NUMBERS: usize = 16;

/// Rows as columns.
pub(super) struct Parquet<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    whole: [Vec<i64>; 4],
    services: Vec<ByteArray>,
    resources: Vec<ByteArray>,
    numbers: [Vec<Option<f64>>; NUMBERS],
}

impl<W: Write + Send> Parquet<W> {
    pub(super) fn new(out: W) -> Result<Self, Error> {
        let units = COLUMNS.map(|column| {
            KeyValue::new(format!("unit of {}", column.name), column.unit.to_owned())
        });
        let properties = WriterProperties::builder()
            .set_created_by(concat!("bonsai ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_key_value_metadata(Some(units.to_vec()))
            .build();
        let schema = schema().map_err(failed)?;
        let writer = SerializedFileWriter::new(out, schema, Arc::new(properties));
        Ok(Self {
            writer: writer.map_err(failed)?,
            whole: Default::default(),
            services: Vec::new(),
            resources: Vec::new(),
            numbers: Default::default(),
        })
    }

    fn write_group(&mut self) -> Result<(), ParquetError> {
        if self.services.is_empty() {
            return Ok(());
        }
        let mut group = self.writer.next_row_group()?;
        let [time, width, observed, waits] = &mut self.whole;
        for column in [time, width, observed] {
            write_whole(&mut group, column)?;
        }
        for column in [&mut self.services, &mut self.resources] {
            let mut writer = next(&mut group)?;
            writer
                .typed::<ByteArrayType>()
                .write_batch(column, None, None)?;
            writer.close()?;
            column.clear();
        }
        let (rates, per_second) = self.numbers.split_at_mut(NUMBERS - 1);
        for (at, column) in rates.iter_mut().enumerate() {
            write_numbers(&mut group, column, is_limit(at))?;
        }
        write_whole(&mut group, waits)?;
        write_numbers(&mut group, &mut per_second[0], false)?;
        group.close()?;
        Ok(())
    }
}

impl<W: Write + Send> Sink for Parquet<W> {
    fn line(&mut self, line: Line<'_>) -> Result<(), Error> {
        let slot = line.slot;
        let [time, width, observed, waits] = &mut self.whole;
        time.push((slot.at * 1000).cast_signed());
        width.push(slot.width.cast_signed());
        observed.push(slot.observed.cast_signed());
        waits.push(slot.waits.cast_signed());
        self.services.push(ByteArray::from(line.service));
        self.resources.push(ByteArray::from(line.resource.name()));
        for (column, number) in self.numbers.iter_mut().zip(line.numbers()) {
            column.push(number);
        }
        if self.services.len() >= GROUP {
            self.write_group().map_err(failed)?;
        }
        Ok(())
    }

    fn end(mut self: Box<Self>) -> Result<(), Error> {
        self.write_group().map_err(failed)?;
        self.writer.close().map_err(failed)?;
        Ok(())
    }
}

fn failed(error: ParquetError) -> Error {
    match error {
        ParquetError::External(source) => match source.downcast::<std::io::Error>() {
            Ok(error) => Error::Export(*error),
            Err(other) => Error::Encode(other.to_string()),
        },
        other => Error::Encode(other.to_string()),
    }
}

/// Whether that number is of a limit, which may be missing.
fn is_limit(number: usize) -> bool {
    (6..9).contains(&number)
}

fn schema() -> Result<TypePtr, ParquetError> {
    let whole = |name: &'static str| Type::primitive_type_builder(name, Physical::INT64);
    let mut fields = Vec::new();
    for (at, column) in COLUMNS.iter().enumerate() {
        let name = column.name;
        let builder = match at {
            0 => {
                whole(name).with_logical_type(Some(LogicalType::timestamp(true, TimeUnit::MILLIS)))
            }
            1 | 2 | 20 => whole(name),
            3 | 4 => Type::primitive_type_builder(name, Physical::BYTE_ARRAY)
                .with_logical_type(Some(LogicalType::String))
                .with_converted_type(ConvertedType::UTF8),
            _ => Type::primitive_type_builder(name, Physical::DOUBLE),
        };
        let optional = at >= 5 && is_limit(at - 5);
        let repetition = if optional {
            Repetition::OPTIONAL
        } else {
            Repetition::REQUIRED
        };
        fields.push(Arc::new(builder.with_repetition(repetition).build()?));
    }
    let root = Type::group_type_builder("points")
        .with_fields(fields)
        .build()?;
    Ok(Arc::new(root))
}

type Column<'a> = parquet::file::writer::SerializedColumnWriter<'a>;

fn next<'a, W: Write + Send>(
    group: &'a mut SerializedRowGroupWriter<'_, W>,
) -> Result<Column<'a>, ParquetError> {
    let none = || ParquetError::General("the schema has fewer columns than there are".to_owned());
    group.next_column()?.ok_or_else(none)
}

fn write_whole<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    column: &mut Vec<i64>,
) -> Result<(), ParquetError> {
    let mut writer = next(group)?;
    writer
        .typed::<Int64Type>()
        .write_batch(column, None, None)?;
    writer.close()?;
    column.clear();
    Ok(())
}

fn write_numbers<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    column: &mut Vec<Option<f64>>,
    optional: bool,
) -> Result<(), ParquetError> {
    let values: Vec<f64> = column.iter().flatten().copied().collect();
    let there: Vec<i16> = column
        .iter()
        .map(|value| i16::from(value.is_some()))
        .collect();
    let mut writer = next(group)?;
    let levels = optional.then_some(there.as_slice());
    writer
        .typed::<DoubleType>()
        .write_batch(&values, levels, None)?;
    writer.close()?;
    column.clear();
    Ok(())
}
