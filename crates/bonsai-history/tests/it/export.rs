//! CSV and Parquet, read back.

use std::fs::File;
use std::process::Command;

use bonsai_history::{COLUMNS, Export, Format, Level, Reader, Sample, Tick};
use bonsai_units::Resource;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, RowAccessor};
use tempfile::TempDir;

use crate::support::{MIDNIGHT, folder, history, point, reader, sample, seconds, skip};

const SECONDS: u64 = 4000;

fn make(folder: &TempDir) -> Reader {
    let mut history = history(folder);
    for second in 0..SECONDS {
        let limited = Sample {
            asked: (second * 7 % 1000) * 1000,
            got: 400_000,
            limit: (second >= 100).then_some(400_500),
            guarantee: 100_000,
            waited_ns: 2_000_000,
            waits: second % 3,
        };
        let points = vec![
            point("a,\"b\"", Resource::Send, limited),
            point("plain", Resource::Read, sample(second)),
        ];
        history.tick(&Tick {
            second: MIDNIGHT + second,
            points,
        });
    }
    reader(folder)
}

fn all(level: Level) -> Export {
    Export {
        from: 0,
        to: u64::MAX,
        level,
        services: None,
        resources: None,
    }
}

fn csv_rows(bytes: &[u8]) -> Vec<csv::StringRecord> {
    let mut reader = csv::Reader::from_reader(bytes);
    let names = COLUMNS.map(|column| column.name);
    assert_eq!(
        reader.headers().expect("names").iter().collect::<Vec<_>>(),
        names
    );
    reader.records().collect::<Result<_, _>>().expect("records")
}

#[test]
fn csv_has_what_a_query_has() {
    let folder = folder();
    let reader = make(&folder);
    let mut bytes = Vec::new();
    let written = reader
        .export(&all(Level::Second), Format::Csv, &mut bytes)
        .expect("written")
        .rows;
    let rows = csv_rows(&bytes);
    assert_eq!(rows.len() as u64, written);
    // Two services and all together, of each resource that is used.
    assert_eq!(written, 4 * SECONDS);
    let series = seconds(&reader, "a,\"b\"", MIDNIGHT, MIDNIGHT + SECONDS);
    let of_service: Vec<_> = rows.iter().filter(|row| &row[3] == "a,\"b\"").collect();
    assert_eq!(of_service.len(), series.slots.len());
    for (row, slot) in of_service.iter().zip(&series.slots) {
        let number = |at: usize| row[at].parse::<f64>().expect("a number");
        assert_eq!(
            (&row[0], &row[1], &row[4]),
            (slot.at.to_string().as_str(), "1", "send")
        );
        assert_eq!((number(6), number(9)), (slot.asked.mean, slot.got.mean));
        assert_eq!(row[12].parse().ok(), slot.limit.map(|limit| limit.mean));
        assert_eq!(
            (number(15), number(18)),
            (slot.guarantee.mean, slot.waited.mean)
        );
        assert_eq!(row[20], slot.waits.to_string());
    }
    assert_eq!(&of_service[50][12], "", "unlimited is empty");
    assert_eq!(&of_service[150][12], "400.5");
}

#[test]
fn an_export_is_of_what_was_asked_for() {
    let folder = folder();
    let reader = make(&folder);
    let rows = |export: &Export| {
        let mut bytes = Vec::new();
        reader
            .export(export, Format::Csv, &mut bytes)
            .expect("written");
        csv_rows(&bytes)
    };
    let one = Export {
        from: MIDNIGHT + 100,
        to: MIDNIGHT + 3990,
        services: Some(vec!["plain".to_owned()]),
        resources: Some(vec![Resource::Read, Resource::Write]),
        ..all(Level::Second)
    };
    let found = rows(&one);
    let times: Vec<u64> = found
        .iter()
        .map(|row| row[0].parse().expect("a time"))
        .collect();
    assert_eq!(times, (MIDNIGHT + 100..MIDNIGHT + 3990).collect::<Vec<_>>());
    // Minutes: the last has not ended, and says how much of it there is.
    let minutes = rows(&Export {
        level: Level::Minute,
        from: 0,
        to: u64::MAX,
        ..one.clone()
    });
    let parts: Vec<_> = minutes.iter().map(|row| row[2].to_owned()).collect();
    let mut expected = vec!["60".to_owned(); 66];
    expected.push("40".to_owned());
    assert_eq!(parts, expected);
    assert_eq!(
        (&minutes[1][8], &minutes[1][9], &minutes[1][10]),
        ("60", "89.5", "119")
    );
    let hours = rows(&Export {
        level: Level::Hour,
        from: 0,
        to: u64::MAX,
        ..one
    });
    let parts: Vec<_> = hours.iter().map(|row| row[2].to_owned()).collect();
    assert_eq!(parts, ["3600", "400"]);
}

#[test]
fn parquet_has_what_csv_has() {
    let folder = folder();
    let reader = make(&folder);
    let path = folder.path().join("points.parquet");
    let file = File::create(&path).expect("a file");
    let written = reader
        .export(&all(Level::Second), Format::Parquet, file)
        .expect("written")
        .rows;
    let mut bytes = Vec::new();
    reader
        .export(&all(Level::Second), Format::Csv, &mut bytes)
        .expect("written");
    let text = csv_rows(&bytes);
    let file = SerializedFileReader::new(File::open(&path).expect("the file")).expect("Parquet");
    assert_eq!(
        file.metadata().file_metadata().num_rows().cast_unsigned(),
        written
    );
    let rows = file.get_row_iter(None).expect("rows");
    let mut number = 0;
    for (row, text) in rows.zip(&text) {
        let row = row.expect("a row");
        let fields: Vec<String> = row
            .get_column_iter()
            .map(|(_, field)| match field {
                Field::Null => String::new(),
                Field::TimestampMillis(ms) => (ms / 1000).to_string(),
                Field::Str(text) => text.clone(),
                Field::Long(number) => number.to_string(),
                Field::Double(number) => number.to_string(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(fields, text.iter().collect::<Vec<_>>());
        assert!(!row.get_string(4).expect("a resource").is_empty());
        number += 1;
    }
    assert_eq!(number, written);
}

/// Another implementation reads the same.
#[test]
fn parquet_is_read_by_pyarrow() {
    let name = "export::parquet_is_read_by_pyarrow";
    let there = Command::new("python3")
        .args(["-c", "import pyarrow.parquet"])
        .output();
    if !there.is_ok_and(|done| done.status.success()) {
        return skip(name, "python3 with pyarrow is not installed");
    }
    let folder = folder();
    let reader = make(&folder);
    let path = folder.path().join("points.parquet");
    let file = File::create(&path).expect("a file");
    reader
        .export(&all(Level::Minute), Format::Parquet, file)
        .expect("written");
    let program = "
import sys, datetime, pyarrow.parquet as p
t = p.read_table(sys.argv[1]).to_pylist()
rows = [r for r in t if r['service'] == 'plain']
assert len(rows) == 67 and rows[1]['got_mean'] == 89.5, rows[1]
assert rows[0]['time'] == datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc), rows[0]
assert rows[0]['limit_min'] is None and rows[0]['observed'] == 60
limited = [r for r in t if r['service'] == 'a,\"b\"']
assert limited[5]['limit_mean'] == 400.5 and limited[5]['waits'] == 60, limited[5]
print(len(t))
";
    let done = Command::new("python3")
        .args(["-c", program])
        .arg(&path)
        .output();
    let done = done.expect("python3");
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{error}");
    assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), "268");
}

#[test]
fn an_export_that_cannot_be_written_says_so() {
    let folder = folder();
    let reader = make(&folder);
    for format in [Format::Csv, Format::Parquet] {
        let full = File::options()
            .write(true)
            .open("/dev/full")
            .expect("the device");
        let error = reader
            .export(&all(Level::Second), format, full)
            .expect_err("full");
        assert!(error.to_string().contains("No space left"), "{error}");
    }
}
