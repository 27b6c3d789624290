//! The thread that writes.

use std::time::{Duration, Instant};

use bonsai_history::{AuditFilter, Blob, Error, Options, State, Writer};

use crate::support::{MIDNIGHT, entry, folder, options, reader, seconds, sent};

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn all_that_is_handed_in_is_written() {
    let folder = folder();
    let path = folder.path().join("history");
    let writer = Writer::start(&path, options()).expect("a writer");
    assert!(matches!(
        Writer::start(&path, options()),
        Err(Error::Locked { .. })
    ));
    for second in 0..100 {
        assert!(writer.try_send(sent(MIDNIGHT + second, "vod", second)));
    }
    writer.audit(entry(1));
    writer
        .put(
            "overlay",
            Some(Blob {
                version: 1,
                data: vec![1],
            }),
        )
        .expect("room");
    assert!(writer.flush(PATIENCE));
    let reader = reader(&folder);
    assert_eq!(
        seconds(&reader, "vod", MIDNIGHT, MIDNIGHT + 100)
            .slots
            .len(),
        100
    );
    assert_eq!(
        reader
            .audit(&AuditFilter::default())
            .expect("entries")
            .len(),
        1
    );
    assert_eq!(
        reader
            .get("overlay")
            .expect("state")
            .map(|blob| blob.version),
        Some(1)
    );
    let status = writer.status();
    assert_eq!(
        (status.points, status.counters.written_ticks),
        (State::Writing, 100)
    );
    // What was handed in last is written before the thread ends.
    assert!(writer.try_send(sent(MIDNIGHT + 100, "vod", 1)));
    writer.audit(entry(2));
    drop(writer);
    assert_eq!(
        seconds(&reader, "vod", MIDNIGHT, MIDNIGHT + 101)
            .slots
            .len(),
        101
    );
    assert_eq!(
        reader
            .audit(&AuditFilter::default())
            .expect("entries")
            .len(),
        2
    );
}

#[test]
fn a_slow_disk_costs_ticks_that_are_counted_and_nobody_waits() {
    let folder = folder();
    let path = folder.path().join("history");
    let options = Options {
        tick_queue: 5,
        audit_queue: 5,
        ..options()
    };
    let writer = Writer::start(&path, options).expect("a writer");
    // Somebody else has the database.
    let other = rusqlite::Connection::open(path.join("history.sqlite")).expect("a database");
    other.execute_batch("BEGIN IMMEDIATE").expect("begun");
    assert!(writer.try_send(sent(MIDNIGHT, "vod", 1)));
    // The thread has taken that one and waits.
    std::thread::sleep(Duration::from_millis(300));
    let before = Instant::now();
    let taken = (1..50)
        .filter(|second| writer.try_send(sent(MIDNIGHT + second, "vod", 1)))
        .count();
    for revision in 0..20 {
        writer.audit(entry(revision));
    }
    // The thread waits for a second; this one does not.
    assert!(
        before.elapsed() < Duration::from_millis(600),
        "{:?}",
        before.elapsed()
    );
    assert!((5..49).contains(&taken), "{taken}");
    let counters = writer.status().counters;
    assert_eq!(counters.dropped_ticks, 49 - taken as u64);
    assert_eq!(counters.dropped_audit + counters.waiting_audit, 20);
    other.execute_batch("COMMIT").expect("ended");
    assert!(writer.flush(PATIENCE));
    let counters = writer.status().counters;
    assert_eq!(counters.written_ticks + counters.dropped_ticks, 50);
    let entries = reader(&folder)
        .audit(&AuditFilter::default())
        .expect("entries");
    assert_eq!(entries.len() as u64 + counters.dropped_audit, 20);
}

#[test]
fn what_a_reader_has_met_is_looked_at() {
    let folder = folder();
    let path = folder.path().join("history");
    let writer = Writer::start(&path, options()).expect("a writer");
    assert!(writer.try_send(sent(MIDNIGHT, "vod", 1)));
    writer.check();
    assert!(writer.flush(PATIENCE));
    assert_eq!(writer.status().notes, [""; 0], "nothing is wrong");
}
