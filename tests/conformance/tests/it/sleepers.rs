//! Served event loops of several threads: no event is lost, whoever sleeps where, and however a descriptor is registered.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::Stdio;

use conformance::for_each;

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

/// A thread that sleeps since before there was a limit can be neither told nor woken: calls are delayed until it comes back.
#[test]
fn a_limit_that_comes_while_a_thread_sleeps_stops_nothing() {
    let test = "sleepers-late";
    let Some(compiler) = compiler(test) else {
        return;
    };
    let program = compiler
        .make(test, &["transparency/sleepers.c"], &[])
        .unwrap_or_else(|error| panic!("{error}"));
    let complaints = for_each(&KINDS, SLEEPERS, |kind| {
        let bonsai = bonsai();
        let (name, mut command) = bonsai.run(&[], &program, &[kind, "wait", "late"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        runs(&bonsai, &["set", &name, "send/stream=3MB/s"]);
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(b"\n").expect("it reads");
        let mut rest = String::new();
        // The program ends itself after ten seconds without an event.
        out.read_to_string(&mut rest).expect("text");
        child.wait().expect("it ends");
        if rest == "all was sent\n" {
            return Ok(());
        }
        Err(format!("{kind}: {line}{rest}"))
    });
    assert_none(&complaints);
}
