//! What the tests share.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use bonsai_history::{
    Actor, AuditEntry, Difference, History, Options, Point, Query, Reader, Sample, Series, Tick,
    Via, Which,
};
use bonsai_units::Resource;
use tempfile::TempDir;

/// A Sunday's midnight, UTC: minutes, hours and days begin here.
pub(crate) const MIDNIGHT: u64 = 1_767_225_600;

/// Says on standard error, and in the file that `BONSAI_SKIP_LOG` names, that a test was not made.
pub(crate) fn skip(test: &str, reason: &str) {
    let line = format!("SKIP: {test}: {reason}\n");
    eprint!("{line}");
    if let Some(log) = std::env::var_os("BONSAI_SKIP_LOG") {
        let file = OpenOptions::new().append(true).create(true).open(log);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.expect("the file that BONSAI_SKIP_LOG names can be appended to");
    }
}

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Small, and quick to try again.
pub(crate) fn options() -> Options {
    Options {
        points_bytes: Options::LEAST_POINTS,
        retry: Duration::from_millis(1),
        ..Options::default()
    }
}

pub(crate) fn history(folder: &TempDir) -> History {
    History::open(&folder.path().join("history"), options()).expect("a writer")
}

pub(crate) fn reader(folder: &TempDir) -> Reader {
    Reader::new(&folder.path().join("history"))
}

pub(crate) fn sample(units: u64) -> Sample {
    Sample {
        asked: units * 1000,
        got: units * 1000,
        ..Sample::default()
    }
}

pub(crate) fn point(service: &str, resource: Resource, sample: Sample) -> Point {
    Point {
        service: service.into(),
        resource,
        sample,
    }
}

/// A tick of one service that has sent so much.
pub(crate) fn sent(second: u64, service: &str, units: u64) -> Tick {
    Tick {
        second,
        points: vec![point(service, Resource::Send, sample(units))],
    }
}

pub(crate) fn query(service: &str, from: u64, to: u64, points: usize) -> Query {
    Query {
        which: Which::Service(service.to_owned()),
        resource: Resource::Send,
        from,
        to,
        points,
    }
}

/// What a service sent, by seconds.
pub(crate) fn seconds(reader: &Reader, service: &str, from: u64, to: u64) -> Series {
    let points = usize::try_from(to - from).expect("few") + 1;
    reader
        .series(&query(service, from, to, points))
        .expect("a series")
}

/// First second and mean of what was got of each slot.
pub(crate) fn means(series: &Series) -> Vec<(u64, f64)> {
    series
        .slots
        .iter()
        .map(|slot| (slot.at, slot.got.mean))
        .collect()
}

pub(crate) fn entry(revision: u64) -> AuditEntry {
    AuditEntry {
        revision,
        unix_ms: MIDNIGHT * 1000 + revision,
        actor: Actor::User {
            uid: 1000,
            name: Some("ada".to_owned()),
            pid: Some(4711),
            peer: Some("/usr/bin/bonsai".to_owned()),
        },
        via: Via::Socket,
        action: "set".to_owned(),
        service: Some("vod".to_owned()),
        differences: vec![Difference {
            path: "max".to_owned(),
            from: Some("10MB/s".to_owned()),
            to: Some("20MB/s".to_owned()),
        }],
        left_out: 0,
        reason: "asked for".to_owned(),
        dry_run: false,
    }
}
