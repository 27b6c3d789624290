//! Served event loops of several threads: no event is lost, whoever sleeps where, and however a descriptor is registered.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};

use conformance::{Bonsai, for_each};

use crate::busy::runs;
use crate::fixture::{SLEEPERS, assert_none, bonsai, compiler};
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

/// Changes a limit while the program waits to be told to go on.
fn change(bonsai: &Bonsai, name: &str, limit: &str, program: &mut Child) -> Option<()> {
    let mut line = Vec::new();
    let out = program.stdout.as_mut().expect("piped");
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        out.read_exact(&mut byte).ok()?;
        line.extend(byte);
    }
    runs(bonsai, &["set", name, limit]);
    let input = program.stdin.as_mut().expect("piped");
    input.write_all(b"\n").ok()
}

/// Runs sleepers whose limits are set one after the other while they sleep. What goes wrong depends on the instant at which a sleeper
/// is looked at: by edges, which no other event follows, there are several of them.
fn all_hear_later(at_first: &[&str], how: &str, limits: &[&str]) {
    let test = format!("sleepers-{how}");
    let Some(compiler) = compiler(&test) else {
        return;
    };
    let program = compiler
        .make(&test, &["transparency/sleepers.c"], &[])
        .unwrap_or_else(|error| panic!("{error}"));
    let kinds = [&KINDS[..], &["edge"; 12]].concat();
    let complaints = for_each(&kinds, SLEEPERS, |kind| {
        let bonsai = bonsai();
        let (name, mut command) = bonsai.run(at_first, &program, &[kind, "wait", how]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        for limit in limits {
            // The end says why, if it comes before.
            let _ = change(&bonsai, &name, limit, &mut child);
        }
        let mut rest = String::new();
        // The program ends itself after ten seconds without an event.
        let mut out = child.stdout.take().expect("piped");
        out.read_to_string(&mut rest).expect("text");
        child.wait().expect("it ends");
        if rest == "all was sent\n" {
            return Ok(());
        }
        Err(format!("{kind}: {rest}"))
    });
    assert_none(&complaints);
}

/// A thread that sleeps since before there was a limit can be neither told nor woken: calls are delayed until it comes back.
#[test]
fn a_limit_that_comes_while_a_thread_sleeps_stops_nothing() {
    all_hear_later(&[], "late", &["send/stream=3MB/s"]);
}

#[test]
fn a_limit_that_comes_again_while_a_thread_sleeps_stops_nothing() {
    let limit = "send/stream=3MB/s";
    all_hear_later(
        &["--limit", limit],
        "again",
        &["send/stream=unlimited", limit],
    );
}
