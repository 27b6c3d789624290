//! Bytes are bounded, whatever is written.

use bonsai_history::{History, Level, Options, Sample, State, Tick};
use bonsai_units::Resource;
use tempfile::TempDir;

use crate::support::{MIDNIGHT, folder, options, point, query, reader, seconds};

/// Numbers that cannot be kept in fewer bytes.
fn noise(second: u64, services: u64) -> Tick {
    let mut state = second.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 8
    };
    let mut points = Vec::new();
    for service in 0..services {
        for resource in Resource::ALL {
            let sample = Sample {
                asked: next() >> 6,
                got: next() >> 6,
                limit: Some(next() >> 8),
                guarantee: next() >> 8,
                waited_ns: next() >> 6,
                waits: next() >> 8,
            };
            points.push(point(&format!("s{service}"), resource, sample));
        }
    }
    Tick { second, points }
}

fn fits(history: &History, most: u64) {
    let (_, file, wal) = history.status().points_bytes;
    assert!(
        file + wal <= most,
        "{file} B and {wal} B of WAL are more than {most} B"
    );
}

fn writes(history: &History) {
    assert_eq!(history.status().points, State::Writing);
}

#[test]
fn the_oldest_seconds_go_and_their_minutes_stay() {
    let folder = folder();
    let options = options();
    let mut history =
        History::open(&folder.path().join("history"), options.clone()).expect("a writer");
    let end = MIDNIGHT + 4500;
    for second in MIDNIGHT..end {
        history.tick(&noise(second, 10));
        fits(&history, options.points_bytes);
    }
    writes(&history);
    let counters = history.status().counters;
    assert_eq!((counters.written_ticks, counters.dropped_ticks), (4500, 0));
    let reader = reader(&folder);
    let [from, minutes, hours] = reader.horizons().expect("horizons");
    assert!(
        from > MIDNIGHT + 600 && from < end - 900,
        "{} s are kept",
        end - from
    );
    assert_eq!((minutes, hours), (0, 0), "minutes and hours have room");
    // What is kept is whole; before that there are minutes, and each second counts once.
    let whole = seconds(&reader, "s3", from, end);
    assert_eq!(whole.slots.len() as u64, end - from);
    let all = seconds(&reader, "s3", MIDNIGHT, end);
    let widths: Vec<u64> = all.slots.iter().map(|slot| slot.width).collect();
    assert!(
        widths.is_sorted_by(|a, b| a >= b) && widths[0] == 60,
        "{widths:?}"
    );
    assert_eq!(
        all.slots.iter().map(|slot| slot.observed).sum::<u64>(),
        4500
    );
    // A clock that is set back to what is gone does not bring it back.
    history.tick(&noise(MIDNIGHT + 5, 10));
    assert_eq!(history.status().counters.too_old_ticks, 1);
}

#[test]
fn minutes_and_hours_are_bounded_too() {
    let folder = folder();
    let options = options();
    let mut history =
        History::open(&folder.path().join("history"), options.clone()).expect("a writer");
    // A second of each ten minutes, for a week.
    let end = MIDNIGHT + 7 * 86_400;
    for second in (MIDNIGHT..end).step_by(600) {
        history.tick(&noise(second, 10));
        fits(&history, options.points_bytes);
    }
    writes(&history);
    let horizons = reader(&folder).horizons().expect("horizons");
    assert!(
        horizons[1] > MIDNIGHT && horizons[2] <= horizons[1],
        "{horizons:?}"
    );
    let query = query("s1", MIDNIGHT, end, 2000);
    let series = reader(&folder).series(&query).expect("a series");
    let observed: u64 = series.slots.iter().map(|slot| slot.observed).sum();
    let oldest = horizons[Level::Hour.index()];
    assert_eq!(
        observed,
        (end - oldest.max(MIDNIGHT)) / 600,
        "hours have all that is kept"
    );
}

#[test]
fn a_bound_that_was_lowered_is_reached_step_by_step() {
    let folder = folder();
    let path = folder.path().join("history");
    let large = Options {
        points_bytes: 32 << 20,
        ..options()
    };
    let mut history = History::open(&path, large.clone()).expect("a writer");
    let end = MIDNIGHT + 2700;
    for second in MIDNIGHT..end {
        history.tick(&noise(second, 20));
        fits(&history, large.points_bytes);
    }
    let (_, file, _) = history.status().points_bytes;
    assert!(file > 9 << 20, "{file}");
    drop(history);
    let small = options();
    let mut history = History::open(&path, small.clone()).expect("a writer");
    for second in end..end + 300 {
        history.tick(&noise(second, 20));
    }
    fits(&history, small.points_bytes);
    writes(&history);
    assert_eq!(history.status().counters.dropped_ticks, 0);
    assert_eq!(
        seconds(&reader(&folder), "s19", end, end + 300).slots.len(),
        300
    );
}

/// A program that reads for ever does not make the WAL grow for ever.
#[test]
fn a_reader_that_does_not_end_costs_points_and_no_disk() {
    let folder: TempDir = folder();
    let options = options();
    let path = folder.path().join("history");
    let mut history = History::open(&path, options.clone()).expect("a writer");
    history.tick(&noise(MIDNIGHT, 10));
    let other = rusqlite::Connection::open(path.join("history.sqlite")).expect("a database");
    other
        .execute_batch("BEGIN; SELECT count(*) FROM open_second")
        .expect("a snapshot");
    let mut off = None;
    for second in 1..1000 {
        history.tick(&noise(MIDNIGHT + second, 10));
        fits(&history, options.points_bytes);
        if let State::Off(why) = history.status().points {
            off = Some(why);
            break;
        }
    }
    let why = off.expect("the WAL is full at some time");
    assert!(why.contains("another program has been reading"), "{why}");
    other.execute_batch("COMMIT").expect("ended");
    std::thread::sleep(std::time::Duration::from_millis(100));
    history.tick(&noise(MIDNIGHT + 1000, 10));
    writes(&history);
}

/// Rows of more services than fit are a sentence that names the option.
#[test]
fn too_many_services_for_the_bytes_are_said() {
    let folder = folder();
    let mut history = History::open(&folder.path().join("history"), options()).expect("a writer");
    for second in 0..200 {
        history.tick(&noise(MIDNIGHT + second, 1500));
        fits(&history, options().points_bytes);
        if history.status().points != State::Writing {
            break;
        }
    }
    let State::Off(why) = history.status().points else {
        panic!("{:?}", history.status());
    };
    assert!(
        why.contains("1500 services") && why.contains("[history]"),
        "{why}"
    );
}
