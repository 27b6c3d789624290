//! A writer that is killed at any instant.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bonsai_history::{AuditFilter, Blob, History, Reader};

use crate::support::{MIDNIGHT, entry, folder, options, seconds, sent};

/// Where a re-run of this test writes.
const FOLDER: &str = "BONSAI_TEST_HISTORY";
const NAME: &str = "killed::a_killed_writer_loses_nothing_that_it_had_written";
const KILLS: u64 = 25;

/// Writes on from where the last one was, faster than time, and says what is written.
fn write(folder: &Path) {
    let range = Reader::new(folder).range().ok().flatten();
    let start = range.map_or(MIDNIGHT, |(_, end)| end);
    let mut history = History::open(folder, options()).expect("a writer");
    for second in start.. {
        history.tick(&sent(second, "vod", second % 1_000_003));
        if second % 128 == 0 {
            history.audit(entry(second));
            let [byte, ..] = second.to_le_bytes();
            let blob = Blob {
                version: 1,
                data: vec![byte; 20_000],
            };
            history.put("learned", Some(blob)).expect("room");
            println!("audit {second}");
        }
        println!("{second}");
    }
}

#[test]
fn a_killed_writer_loses_nothing_that_it_had_written() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return write(Path::new(&folder));
    }
    let folder = folder();
    let path = folder.path().join("history");
    let mut written = MIDNIGHT;
    let mut audited = 0;
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", NAME, "--nocapture"])
            .env(FOLDER, &path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program again");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut lines = out.lines().map(|line| line.expect("a line"));
        // It is at work; then at some instant.
        let first = lines.by_ref().find_map(|line| line.parse::<u64>().ok());
        std::thread::sleep(Duration::from_micros(kill * 7919 % 60_000));
        child.kill().expect("killed");
        let status = child.wait().expect("its end");
        assert_eq!(
            status.signal(),
            Some(9),
            "a writer ended by itself: {status}"
        );
        written = first.expect("something was written");
        for line in lines {
            match line.strip_prefix("audit ") {
                Some(number) => audited = number.parse().unwrap_or(audited),
                None => written = line.parse().unwrap_or(written),
            }
        }
        check(&path, written, audited);
    }
    assert!(audited > 0 && written > MIDNIGHT + 60, "minutes have ended");
}

fn check(path: &Path, written: u64, audited: u64) {
    for file in ["history.sqlite", "audit.sqlite"] {
        let connection = rusqlite::Connection::open(path.join(file)).expect("a database");
        let found: String = connection
            .query_row("PRAGMA integrity_check", [], |row| row.get(0))
            .expect("an answer");
        assert_eq!(found, "ok", "{file}");
    }
    let reader = Reader::new(path);
    // The last second may have been written without having been said.
    let end = written + 1;
    let from = written.saturating_sub(10_000).max(MIDNIGHT);
    let series = seconds(&reader, "vod", from, end);
    assert_eq!(series.damaged, 0);
    assert_eq!(series.slots.len() as u64, end - from, "each second once");
    for slot in &series.slots {
        assert_eq!(slot.got.mean, (slot.at % 1_000_003) as f64);
    }
    if audited > 0 {
        let newest = AuditFilter {
            limit: 1,
            ..AuditFilter::default()
        };
        let newest = reader.audit(&newest).expect("entries");
        assert!(newest[0].entry.revision >= audited, "{newest:?}");
        let blob = reader.get("learned").expect("state").expect("there");
        let whole = vec![blob.data[0]; 20_000];
        assert_eq!(blob.data, whole, "replaced as a whole");
    }
}
