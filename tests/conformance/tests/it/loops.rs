//! Event loops under limits: a call on a descriptor that does not block is refused, and
//! followed by an event when it may go.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::Stdio;

use conformance::for_each;

use crate::fixture::{bonsai, compiler};
use crate::probe::{Probe, Seen};

const DOOR: &str = "patched";

/// Every way of waiting for readiness.
const WAYS: [(&str, &[&str]); 7] = [
    ("poll", &["level"]),
    ("ppoll", &["level"]),
    ("select", &["level"]),
    ("pselect", &["level"]),
    ("epoll_wait", &["level", "edge", "oneshot"]),
    ("epoll_pwait", &["level", "edge"]),
    ("epoll_pwait2", &["level", "edge"]),
];

/// What the greedy connection of `loops.c` moves.
const BYTES: u64 = 120_000;

/// Nothing is lost, nothing goes early, and the loop neither stands still nor spins.
fn assert_goes_on(what: &str, seen: &Seen, rate: u64, burst: u64) {
    let lines = [
        "120000 bytes, 0 wrong, the other end: 0",
        "the polite one went on: yes",
    ];
    assert_eq!(seen.lines, lines, "{what}: {:?}", seen.finished);
    let note = |name: &str| seen.notes[name];
    // One call of incoming bytes is ahead.
    seen.assert_shaped(BYTES - 8192, rate, burst);
    assert!(
        note("events") >= 5.0,
        "{what}: never refused: {:?}",
        seen.notes
    );
    // The first finds an empty bucket, and a few ask for more than was promised.
    let in_vain = 2.0 + note("events") / 8.0;
    assert!(note("in-vain") <= in_vain, "{what}: {:?}", seen.notes);
    let turns = note("rounds") + 2.0 * note("events") + 20.0;
    assert!(note("turns") <= turns, "{what} spins: {:?}", seen.notes);
    let cpu = 60.0 + note("elapsed") / 4.0;
    assert!(note("cpu") <= cpu, "{what} spins: {:?}", seen.notes);
    // A delayed call would take 20 ms, each of them.
    let slow = note("events") / 3.0;
    assert!(
        note("slow") <= slow,
        "{what} stands still: {:?}",
        seen.notes
    );
}

fn every_way(test: &str, options: &[&str], limits: &[&str]) {
    let Some(compiler) = compiler(test) else {
        return;
    };
    let source = Path::new("transparency").join("loops.c");
    let program = compiler
        .make(&format!("loops-{test}"), &[source], &[])
        .unwrap_or_else(|error| panic!("{error}"));
    let mut cases = Vec::new();
    for (way, triggers) in WAYS {
        for trigger in triggers {
            cases.extend(["out", "in"].map(|direction| [way, trigger, direction]));
        }
    }
    let complaints = for_each(&cases, 4, |case| {
        let seen = Probe::of(program.clone(), case).through((DOOR, options), limits);
        let what = case.join(" ");
        std::panic::catch_unwind(|| assert_goes_on(&what, &seen, 200_000, 4000)).map_err(|_| what)
    });
    assert!(complaints.is_empty(), "{complaints:?}");
}

#[test]
fn every_way_of_waiting_goes_on_under_a_limit_per_stream() {
    let limits = [
        "send/stream=200kB/s:burst=4kB",
        "recv/stream=200kB/s:burst=4kB",
    ];
    every_way("loops-stream", &[], &limits);
}

#[test]
fn every_way_of_waiting_goes_on_under_a_limit_of_the_service() {
    let limits = ["send=200kB/s:burst=4kB", "recv=200kB/s:burst=4kB"];
    every_way("loops-service", &["--event-loops", "on"], &limits);
}

/// One case of `withheld.c`.
fn withheld(case: &str, options: &[&str], limits: &[&str], lines: &[&str]) -> Option<Seen> {
    let probe = Probe::new(&format!("withheld-{case}"), "withheld", &[case])?;
    let seen = probe.through((DOOR, options), limits);
    assert_eq!(seen.lines, lines, "{case}: {:?}", seen.finished);
    assert!(seen.finished.status.success(), "{:?}", seen.finished);
    Some(seen)
}

const SLOW: &[&str] = &["send/stream=100kB/s:burst=1kB"];

#[test]
fn a_descriptor_is_closed_while_it_is_withheld() {
    let lines = [
        "closed: 0 events",
        "its number: 1 events at once",
        "its number: an event, sent",
    ];
    withheld("close", &[], SLOW, &lines);
}

#[test]
fn a_registration_changes_while_it_is_withheld() {
    let lines = [
        "for input only: 0 events",
        "changed: an event, sent",
        "taken out: 0 events",
        "put in: 1 events",
        "one shot: 0 events",
        "not armed: 0 events",
        "armed: an event, sent",
        "put in twice: EEXIST",
        "taken out twice: ENOENT",
    ];
    withheld("change", &[], SLOW, &lines);
}

#[test]
fn the_other_end_closes_while_it_is_withheld() {
    let lines = ["the other end closed: EPIPE, few turns"];
    withheld("end", &[], SLOW, &lines);
}

#[test]
fn a_process_forks_while_something_is_withheld() {
    let lines = [
        "a child closed it: an event, sent",
        "a child goes on: 1 events",
        "a child goes on: an event, sent",
    ];
    withheld("fork", &[], SLOW, &lines);
}

#[test]
fn the_next_program_finds_its_epoll_sets_as_they_were_made() {
    let mut lines = Vec::new();
    for way in ["level", "edge", "alone"] {
        lines.push(format!("{way}: no such program: ENOENT"));
        lines.push(format!("{way}: an event, sent"));
        lines.push(format!("{way}: in the next program: 1 of its events"));
    }
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    withheld("exec", &[], SLOW, &lines);
}

#[test]
fn a_waiting_thread_hears_of_what_another_one_is_refused() {
    withheld("threads", &[], SLOW, &["another thread's call: 16 events"]);
}

#[test]
fn sets_within_sets_are_told() {
    let lines = [
        "in another set: 1 events",
        "in another set: an event, sent",
        "asked by poll: 1",
    ];
    withheld("nested", &[], SLOW, &lines);
}

#[test]
fn what_is_in_two_sets_waits_instead() {
    withheld("several", &[], SLOW, &["in two sets: 6 sent"]);
}

#[test]
fn time_limits_of_waits_are_the_programs_own() {
    let lines = [
        "poll: 0 in time",
        "epoll_wait: 0 in time",
        "select: 0 in time, 0 us left",
        "poll at once: 0",
        "poll for both: 1 in",
        "poll after the end: 0 in time",
    ];
    withheld("timeouts", &[], &["send/stream=2kB/s:burst=1kB"], &lines);
}

#[test]
fn new_connections_are_withheld_too() {
    let limits = ["accept=50/s:burst=1calls"];
    for case in ["accept", "exclusive"] {
        let lines = ["accepted 20, not in vain"];
        if let Some(seen) = withheld(case, &["--event-loops", "on"], &limits, &lines) {
            seen.assert_shaped(20, 50, 1);
        }
    }
}

/// Starts `withheld told`, and tells it other limits after its first line.
fn told(test: &str, args: &[&str], limits: &[&str], change: &str) -> Option<Vec<String>> {
    let probe = Probe::new(test, "withheld", args)?;
    let bonsai = bonsai();
    let (name, mut command) = bonsai.run(limits, &probe.program, &probe.args);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut first = String::new();
    out.read_line(&mut first).expect("a line");
    assert_eq!(first, "ready\n");
    let set = bonsai
        .command(&["set", &name, change])
        .output()
        .expect("set");
    assert!(set.status.success(), "{set:?}");
    child
        .stdin
        .take()
        .expect("piped")
        .write_all(b"\n")
        .expect("it reads");
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("it prints");
    assert!(child.wait().expect("it ends").success());
    Some(rest.lines().map(str::to_owned).collect())
}

#[test]
fn a_lifted_limit_ends_what_is_withheld() {
    let limits = ["--limit", "send/stream=100B/s:burst=1kB"];
    let change = "send/stream=unlimited";
    let Some(lines) = told("withheld-lifted", &["told", "held"], &limits, change) else {
        return;
    };
    assert_eq!(lines[0], "lifted: 1 events", "{lines:?}");
    // It would have been 40 s.
    let ms: f64 = lines[1]
        .split(' ')
        .nth(2)
        .expect("a number")
        .parse()
        .expect("ms");
    assert!(ms < 4000.0, "{lines:?}");
}

#[test]
fn sets_that_were_filled_before_there_was_a_limit_are_known() {
    let change = "send/stream=100kB/s:burst=1kB";
    let told = told("withheld-learned", &["told"], &[], change);
    if let Some(lines) = told {
        assert_eq!(lines, ["unseen before: an event, sent"]);
    }
}
