//! Served event loops of several threads: no event is lost, whoever sleeps where, and however a descriptor is registered.

use std::path::Path;

use conformance::for_each;

use crate::fixture::{SLEEPERS, assert_none, compiler};
use crate::probe::Probe;

const KINDS: [&str; 5] = ["level", "edge", "added", "armed", "exclusive"];

const WAYS: [&str; 9] = [
    "wait",
    "pwait2",
    "polled",
    "selected",
    "nested",
    "twin",
    "twins",
    "duplicate",
    "through",
];

/// Each kind of registration, and each way to sleep, under a limit.
fn all_hear(test: &'static str, options: &[&str], limit: &str) {
    let Some(compiler) = compiler(test) else {
        return;
    };
    let source = Path::new("transparency").join("sleepers.c");
    let program = compiler
        .make(test, &[source], &[])
        .unwrap_or_else(|error| panic!("{error}"));
    let cases: Vec<[&str; 2]> = KINDS
        .iter()
        .flat_map(|kind| WAYS.map(|way| [*kind, way]))
        .collect();
    let complaints = for_each(&cases, SLEEPERS, |case| {
        let seen = Probe::of(program.clone(), case).through((test, options), &[limit]);
        if seen.lines == ["all was sent"] {
            return Ok(());
        }
        Err(format!("{case:?}: {:?}", seen.finished))
    });
    assert_none(&complaints);
}

#[test]
fn every_sleeper_hears_of_what_another_thread_is_refused() {
    let options = ["--event-loops", "on"];
    all_hear("sleepers-service", &options, "send=3MB/s");
}

#[test]
fn every_sleeper_hears_of_what_another_thread_is_refused_per_stream() {
    all_hear("sleepers-stream", &[], "send/stream=3MB/s");
}
