//! Event loops under limits: a call on a descriptor that does not block is refused, and
//! followed by an event when it may go.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use conformance::{Counters, Finished, for_each, skip};

use crate::busy::runs;
use crate::fixture::{assert_none, bonsai, compiler};
use crate::go::{GO_FORMS, go_programs};
use crate::probe::{Probe, Seen};

const DOOR: &str = "patched";

/// Every way of waiting for readiness.
pub(crate) const WAYS: [(&str, &[&str]); 7] = [
    ("poll", &["level"]),
    ("ppoll", &["level"]),
    ("select", &["level"]),
    ("pselect", &["level"]),
    ("epoll_wait", &["level", "edge", "oneshot"]),
    ("epoll_pwait", &["level", "edge"]),
    ("epoll_pwait2", &["level", "edge"]),
];

const PER_STREAM: [&str; 2] = [
    "send/stream=200kB/s:burst=4kB",
    "recv/stream=200kB/s:burst=4kB",
];

/// What the greedy connection of `loops.c` moves.
const BYTES: u64 = 120_000;

/// Nothing is lost, nothing goes early, and the loop neither stands still nor spins.
pub(crate) fn assert_goes_on(what: &str, seen: &Seen, rate: u64, burst: u64) {
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
    // The first finds an empty bucket, and a few ask for more than was promised: more where
    // others keep the processors busy. A loop that is told too early is refused each time.
    let in_vain = 2.0 + note("events") / 3.0;
    assert!(note("in-vain") <= in_vain, "{what}: {:?}", seen.notes);
    let turns = note("rounds") + 2.0 * note("events") + 20.0;
    assert!(note("turns") <= turns, "{what} spins: {:?}", seen.notes);
    let cpu = 60.0 + note("elapsed") / 4.0;
    assert!(note("cpu") <= cpu, "{what} spins: {:?}", seen.notes);
    // A delayed call would take 20 ms, each of them. Go's are not told from calls that other programs hold up, as its threads sleep
    // then, too; but its loop goes on until a call is refused, and a delayed one is not.
    let stands_still = match seen.notes.get("slow") {
        Some(slow) => *slow > note("events") / 3.0,
        None => 2.0 * note("refused") < note("events"),
    };
    assert!(!stands_still, "{what} stands still: {:?}", seen.notes);
}

/// The program, linked in a way.
pub(crate) fn loops(test: &str, link: &[&str]) -> Option<PathBuf> {
    let source = Path::new("transparency").join("loops.c");
    let made = compiler(test)?.make(&format!("loops-{test}"), &[source], link);
    if let Err(error) = &made
        && link.contains(&"-static")
    {
        skip(test, &error.to_string());
        return None;
    }
    Some(made.unwrap_or_else(|error| panic!("{error}")))
}

/// All of these cases end as they do bare, and go on under limits.
fn all_go_on(program: &Path, cases: &[Vec<&str>], options: &[&str], limits: &[&str]) {
    let complaints = for_each(cases, 4, |case| {
        let seen = Probe::of(program.into(), case).through((DOOR, options), limits);
        let what = format!("{} {}", program.display(), case.join(" "));
        std::panic::catch_unwind(|| assert_goes_on(&what, &seen, 200_000, 4000)).map_err(|_| what)
    });
    assert_none(&complaints);
}

/// Each way of waiting, both ways that bytes go.
pub(crate) fn cases(ways: &[(&'static str, &[&'static str])]) -> Vec<Vec<&'static str>> {
    let mut cases = Vec::new();
    for (way, triggers) in ways {
        for trigger in *triggers {
            cases.extend(["out", "in"].map(|direction| vec![*way, *trigger, direction]));
        }
    }
    cases
}

fn every_way(test: &str, link: &[&str], options: &[&str], limits: &[&str]) {
    if let Some(program) = loops(test, link) {
        all_go_on(&program, &cases(&WAYS), options, limits);
    }
}

#[test]
fn every_way_of_waiting_goes_on_under_a_limit_per_stream() {
    every_way("loops-stream", &[], &[], &PER_STREAM);
}

#[test]
fn every_way_of_waiting_goes_on_in_a_static_program() {
    every_way("loops-static", &["-static"], &[], &PER_STREAM);
}

/// Stopped at `stop`, put under limits, and let go on.
fn attached(program: &Path, case: [&str; 3], stop: &str) -> Seen {
    let bonsai = bonsai();
    let mut child = Command::new(program)
        .args(case)
        .arg(stop)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it can be started");
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    stdout.read_line(&mut line).expect("text");
    assert_eq!(line.trim(), stop, "{case:?}");
    let name = format!("loop-{}", child.id());
    let pid = child.id().to_string();
    let limits = PER_STREAM.map(|limit| ["--limit", limit]).concat();
    let args = [&["attach", "--keep", "--name", &name], &limits[..], &[&pid]].concat();
    runs(&bonsai, &args);
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"x").expect("it reads");
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("text");
    let finished = Finished {
        status: child.wait().expect("it ends"),
        stdout: rest,
        stderr: String::new(),
        elapsed: Duration::ZERO,
    };
    Seen::new("attached", finished, Counters::default())
}

/// Also where the epoll set was there before: who is in it is asked of the kernel.
#[test]
fn event_loops_go_on_in_processes_that_ran_already() {
    let test = "loops-attached";
    let mut cases = Vec::new();
    for (name, link) in [("", &[] as &[&str]), ("-static", &["-static"])] {
        let Some(program) = loops(&format!("{test}{name}"), link) else {
            continue;
        };
        for way in ["epoll_wait", "poll"] {
            for (direction, stop) in [("out", "before"), ("in", "after"), ("out", "after")] {
                cases.push((program.clone(), [way, "level", direction], stop));
            }
        }
    }
    let complaints = for_each(&cases, 4, |(program, case, stop)| {
        let what = format!("{} {} {stop}", program.display(), case.join(" "));
        let tried = || {
            let seen = attached(program, *case, stop);
            assert_goes_on(&what, &seen, 200_000, 4000);
        };
        std::panic::catch_unwind(tried).map_err(|_| what.clone())
    });
    assert_none(&complaints);
}

#[test]
fn every_way_of_waiting_goes_on_under_a_limit_of_the_service() {
    let limits = ["send=200kB/s:burst=4kB", "recv=200kB/s:burst=4kB"];
    every_way("loops-service", &[], &["--event-loops", "on"], &limits);
}

/// A refusal would lose what a program says at its end without waiting for anything.
#[test]
fn a_last_word_is_delayed_and_not_lost() {
    let test = "a_last_word_is_delayed_and_not_lost";
    let Some(probe) = Probe::new(test, "last_word", &[]) else {
        return;
    };
    for (options, limits) in BOTH {
        let seen = probe.through((DOOR, options), &limits);
        let lines = ["sent 20000", "ended"];
        assert_eq!(seen.lines, lines, "{limits:?}: {:?}", seen.finished);
    }
}

/// A proxy that splices has readiness of its sockets alone to wait for.
#[test]
fn event_loops_that_splice_go_on() {
    let Some(program) = loops("loops-splice", &[]) else {
        return;
    };
    let ways = [
        ("poll", "level"),
        ("epoll_wait", "level"),
        ("epoll_wait", "edge"),
    ];
    let cases: Vec<Vec<&str>> = ways
        .iter()
        .flat_map(|(way, trigger)| ["splice-out", "splice-in"].map(|to| vec![*way, *trigger, to]))
        .collect();
    for (options, limits) in BOTH {
        all_go_on(&program, &cases, options, &limits);
    }
}

/// Limits on which event loops go on, and what says so: of the service, and per stream.
const BOTH: [(&[&str], [&str; 2]); 2] = [
    (
        &["--event-loops", "on"],
        ["send=200kB/s:burst=4kB", "recv=200kB/s:burst=4kB"],
    ),
    (&[], PER_STREAM),
];

/// All system calls of such a program are made by one instruction.
#[test]
fn event_loops_of_static_musl_programs_go_on() {
    let test = "loops-musl";
    let Some(musl) = compiler(test).and_then(|gcc| gcc.by("musl-gcc")) else {
        skip(test, "musl-gcc is not installed");
        return;
    };
    let made = musl.make(test, &["transparency/loops.c"], &["-static"]);
    let program = made.unwrap_or_else(|error| panic!("{error}"));
    let ways = [
        ("poll", &["level"] as &[&str]),
        ("epoll_wait", &["level", "edge", "oneshot"]),
        ("epoll_pwait2", &["edge"]),
    ];
    for (options, limits) in BOTH {
        all_go_on(&program, &cases(&ways), options, &limits);
    }
}

/// Go's own loop knows each connection for both directions, by edges, and hears that the
/// other end has gone while what it sent is withheld.
#[test]
fn event_loops_of_go_programs_go_on() {
    let forms = [GO_FORMS[0], GO_FORMS[3], GO_FORMS[4]];
    for (form, program) in go_programs("loops-go", "loop/main.go", &forms) {
        let bare = Probe::of(program.clone(), &["in"]).bare();
        assert!(bare.finished.status.success(), "{form}: {bare:?}");
        let cases = ["out", "in"].map(|direction| vec![direction]);
        for (options, limits) in BOTH {
            all_go_on(&program, &cases, options, &limits);
        }
    }
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
fn an_idle_connection_takes_a_part_of_much() {
    let lines = [
        "after 0 bytes: a part",
        "the rest: an event, sent",
        "after 200 bytes: a part",
        "the rest: an event, sent",
    ];
    // Buckets that have less, when they are full, than they give in the time of a piece.
    withheld("idle", &[], &["send/stream=2MB/s"], &lines);
    let limits = ["send=5MB/s:burst=40kB"];
    withheld("idle", &["--event-loops", "on"], &limits, &lines);
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

/// A loop that is not served is named, with the reason.
#[test]
fn status_says_why_an_event_loop_is_not_served() {
    let test = "status_says_why_an_event_loop_is_not_served";
    let unseen = "readiness is waited for by calls that are not seen";
    for (case, option, reason) in [
        ("several", None, "a descriptor is in several epoll sets"),
        ("several", Some("--no-patch"), unseen),
        ("told", None, ""),
    ] {
        let Some(probe) = Probe::new(test, "withheld", &[case, "wait"]) else {
            return;
        };
        let bonsai = bonsai();
        let limits = ["--limit", "send/stream=100kB/s:burst=1kB"];
        let options: Vec<_> = limits.into_iter().chain(option).collect();
        let (name, mut command) = bonsai.run(&options, &probe.program, &probe.args);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("a line");
        let status = bonsai.command(&["status", &name]).output().expect("status");
        drop(child.stdin.take());
        child.wait().expect("it ends");
        let text = String::from_utf8_lossy(&status.stdout);
        let is_named = text.contains(&format!("event loop not served: {reason}"));
        assert_eq!(is_named, !reason.is_empty(), "{case} {option:?}: {text}");
    }
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
