//! Random and hostile calls that move bytes: a program gets from each what the kernel gives it bare.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use conformance::{finish, skip};
use tempfile::TempDir;

use crate::fixture::{bonsai, compiler, scratch};
use crate::probe::Probe;

/// Low enough that most calls are made in pieces, or wait.
const LIMITS: [&str; 4] = [
    "read=100MB/s:burst=64kB",
    "write=100MB/s:burst=64kB",
    "send=100MB/s:burst=64kB",
    "recv=100MB/s:burst=64kB",
];

/// `ODD_CALLS="SEED FIRST COUNT"` has others made.
fn which() -> String {
    std::env::var("ODD_CALLS").unwrap_or_else(|_| "3 0 300".to_owned())
}

fn in_memory() -> TempDir {
    let memory = PathBuf::from("/dev/shm");
    let place = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    place.expect("a folder")
}

/// Result, errno, memory, contents and positions of files, and what is in queues are the same after each of some hundred calls of a seed, through
/// both doors.
#[test]
fn whatever_a_call_asks_for_it_ends_as_bare() {
    let test = "whatever_a_call_asks_for_it_ends_as_bare";
    let which = which();
    let mut args: Vec<_> = which.split_whitespace().collect();
    args.push("all");
    let Some(mut probe) = Probe::new(test, "odd_calls", &args) else {
        return;
    };
    let place = in_memory();
    probe.folder = Some(place.path().to_owned());
    for seen in probe.same(&LIMITS) {
        assert!(seen.lines.len() > 100, "{}: {:?}", seen.door, seen.finished);
    }
}

/// What a call may move stands in registers there, and is waited for as a whole: 2 GiB are in a moment.
const ENFORCED: [&str; 4] = [
    "read=100GB/s",
    "write=100GB/s",
    "send=100GB/s",
    "recv=100GB/s",
];

/// The same under enforced limits, where a supervisor makes calls from a copy.
#[test]
fn whatever_an_enforced_program_asks_for_it_ends_as_bare() {
    let test = "whatever_an_enforced_program_asks_for_it_ends_as_bare";
    let which = which();
    let mut args: Vec<_> = which.split_whitespace().collect();
    args.extend(["all", "copied"]);
    let Some(mut probe) = Probe::new(test, "odd_calls", &args) else {
        return;
    };
    let tried = ["run", "--enforce", "-l", "write=1MB/s", "--", "/bin/true"];
    let tried = bonsai().command(&tried).output().expect("bonsai");
    if tried.status.code() == Some(2) {
        return skip(test, String::from_utf8_lossy(&tried.stderr).trim());
    }
    let place = in_memory();
    probe.folder = Some(place.path().to_owned());
    let bare = probe.bare();
    assert!(bare.finished.status.success() && bare.lines.len() > 100);
    let all_asked = ["--enforce", "-l", "all=unlimited"];
    let enforced = probe.through(("enforced", &all_asked), &ENFORCED);
    assert_eq!(enforced.lines, bare.lines, "{}", enforced.finished.stderr);
}

/// Low enough that a large call on a file that can be divided is.
const SHARED: [&str; 4] = [
    "read=20MB/s:burst=64kB",
    "write=20MB/s:burst=64kB",
    "send=20MB/s:burst=64kB",
    "recv=20MB/s:burst=64kB",
];

/// Threads and processes that use one open file description at a time: records are whole, there once and in order, reads divide a file,
/// and positions are what the calls said.
#[test]
fn calls_at_a_time_on_one_open_file_are_whole() {
    let test = "calls_at_a_time_on_one_open_file_are_whole";
    let args = ["6", "0", "30000", "lean", "shared"];
    let Some(mut probe) = Probe::new(test, "odd_calls", &args) else {
        return;
    };
    let place = in_memory();
    probe.folder = Some(place.path().to_owned());
    for seen in probe.same(&SHARED) {
        let whole = |line: &&String| line.ends_with(": whole");
        assert_eq!(seen.lines.iter().filter(whole).count(), 30, "{seen:?}");
    }
}

/// Calls in each mode: all modes take less than a minute where nothing else runs. `make fuzz-calls` makes more, and others each time.
const CALLS: &str = "32000";

/// The same of many calls in every mode, with threads, signals and children; and the bytes charged are the bytes moved.
#[test]
fn hostile_calls_end_as_bare_in_every_mode() {
    let test = "hostile_calls_end_as_bare_in_every_mode";
    if compiler(test).is_none() {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/fuzz-calls.sh");
    let bonsai = bonsai().command(&[] as &[&str]);
    let folder = Path::new(bonsai.get_program()).parent().expect("a folder");
    let mut command = Command::new(script);
    command.env("BONSAI_BIN_DIR", folder);
    // Beside other work, a few of what is a matter of time differ once: bare runs do, too.
    command.envs([
        ("FUZZ_CALLS", CALLS),
        ("FUZZ_SEED", "1"),
        ("FUZZ_AGAIN", "1"),
    ]);
    // Its calls are not added to those of `make fuzz-calls`.
    command.env("CARGO_TARGET_DIR", scratch());
    command.env("GOCACHE", scratch().join("go-cache"));
    let finished = finish(&mut command, Duration::from_secs(600)).expect("it ends");
    let lines = finished.stdout.lines();
    for line in lines.filter(|line| line.starts_with("SKIP: ")) {
        skip(test, line.trim_start_matches("SKIP: "));
    }
    assert!(finished.status.success(), "{finished:?}");
}
