//! `--unpatched trap`: calls by instructions that nobody can replace.

use std::path::{Path, PathBuf};

use conformance::{Compiler, skip};

use crate::enforced::can_enforce;
use crate::fixture::{compiler, scratch};
use crate::probe::{Probe, Seen};

const TRAP: (&str, &[&str]) = ("trap", &["--unpatched", "trap"]);
const LEAVE: (&str, &[&str]) = ("leave", &["--unpatched", "leave"]);

/// Calls of 1 KiB, and a limit that makes them take half a second.
const COUNT: u64 = 48;
const LIMIT: &str = "pwrite64=96kB/s:burst=1kB";

const SOURCE: &str = "trapped/trapped.c";

fn made(compiler: &Compiler, name: &str, options: &[&str]) -> PathBuf {
    compiler
        .make(name, &[Path::new(SOURCE)], options)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The program, with the instruction in its own text as well.
fn program(test: &str, options: &[&str]) -> Option<PathBuf> {
    let mut all = vec!["-DPLACE_PROGRAM"];
    all.extend(options);
    Some(made(compiler(test)?, &format!("trapped-{test}"), &all))
}

fn assert_all_counted(seen: &Seen, calls: u64) {
    let counted = seen.counters.of("pwrite64");
    assert_eq!(
        counted,
        (calls, calls * 1024),
        "{}: {:?}",
        seen.door,
        seen.finished.stderr
    );
    assert_eq!(
        seen.counters.unshaped.values().sum::<u64>(),
        0,
        "{:?}",
        seen.counters.unshaped
    );
}

/// The same as bare; all calls counted, and no faster than their limit.
fn shaped(probe: &Probe, calls: u64) -> Seen {
    let bare = probe.bare();
    let seen = probe.through(TRAP, &[LIMIT]);
    assert_eq!(seen.lines, bare.lines, "{:?}", seen.finished);
    assert!(seen.finished.status.success(), "{:?}", seen.finished);
    assert_all_counted(&seen, calls);
    seen.assert_shaped(calls * 1024, 96_000, 1000);
    let priced = seen.finished.stderr.lines().next().unwrap_or_default();
    assert!(
        priced.contains("for each call that is trapped") && priced.contains("for every other call"),
        "{priced}"
    );
    seen
}

#[test]
fn code_made_as_a_program_runs_is_counted_and_limited_under_the_trap() {
    let test = "code_made_as_a_program_runs_is_counted_and_limited_under_the_trap";
    let Some(program) = program(test, &[]) else {
        return;
    };
    let count = COUNT.to_string();
    let probe = Probe::of(program, &["made", &count]);
    shaped(&probe, COUNT);
    // Without it, nobody sees them.
    let left = probe.through(LEAVE, &[LIMIT]);
    assert_eq!(left.counters.of("pwrite64"), (0, 0));
}

#[test]
fn a_program_without_a_build_id_is_counted_and_limited_under_the_trap() {
    let test = "a_program_without_a_build_id_is_counted_and_limited_under_the_trap";
    let count = COUNT.to_string();
    for (i, options) in [&[] as &[&str], &["-no-pie"]].into_iter().enumerate() {
        let Some(program) = program(&format!("{test}-{i}"), options) else {
            return;
        };
        let probe = Probe::of(program, &["made", &count]).with("INLINE", "1");
        shaped(&probe, COUNT);
    }
}

#[test]
fn a_library_with_calls_of_its_own_is_counted_and_limited_under_the_trap() {
    let test = "a_library_with_calls_of_its_own_is_counted_and_limited_under_the_trap";
    let Some(compiler) = compiler(test) else {
        return;
    };
    let library = made(
        compiler,
        "libtrapped.so",
        &["-DLIBRARY", "-shared", "-fPIC"],
    );
    let library = library.display().to_string();
    let options = ["-DPLACE_LIBRARY", &library];
    let program = made(compiler, &format!("trapped-{test}"), &options);
    let count = COUNT.to_string();
    let probe = Probe::of(program, &["made", &count]).with("INLINE", "1");
    shaped(&probe, COUNT);
}

#[test]
fn static_programs_are_counted_and_limited_under_the_trap() {
    let test = "static_programs_are_counted_and_limited_under_the_trap";
    let Some(gcc) = compiler(test) else {
        return;
    };
    let count = COUNT.to_string();
    let forms = [
        ("glibc", Some(gcc.clone()), "-static"),
        (
            "glibc, position-independent",
            Some(gcc.clone()),
            "-static-pie",
        ),
        ("musl", gcc.by("musl-gcc"), "-static"),
    ];
    for (i, (form, compiler, option)) in forms.into_iter().enumerate() {
        let name = format!("trapped-{test}-{i}");
        let options = ["-DPLACE_PROGRAM", option];
        let program =
            compiler.and_then(|compiler| compiler.make(&name, &[Path::new(SOURCE)], &options).ok());
        let Some(program) = program else {
            skip(test, &format!("{form}: cannot be linked here"));
            continue;
        };
        let probe = Probe::of(program.clone(), &["made", &count]).with("INLINE", "1");
        shaped(&probe, COUNT);
        let probe = Probe::of(program, &["signals", &count]).with("INLINE", "1");
        shaped(&probe, COUNT + 1);
    }
}

#[test]
fn threads_with_all_signals_blocked_are_trapped() {
    let test = "threads_with_all_signals_blocked_are_trapped";
    let Some(program) = program(test, &[]) else {
        return;
    };
    let count = COUNT.to_string();
    for variable in ["INLINE", "MADE"] {
        let probe = Probe::of(program.clone(), &["threads", &count]).with(variable, "1");
        shaped(&probe, COUNT);
    }
}

/// The program's own handler for the signal, handlers that have it blocked, and calls
/// that a signal interrupts.
#[test]
fn signals_are_as_without_the_trap() {
    let test = "signals_are_as_without_the_trap";
    let Some(program) = program(test, &[]) else {
        return;
    };
    let count = COUNT.to_string();
    for variable in ["INLINE", "MADE"] {
        let probe = Probe::of(program.clone(), &["signals", &count]).with(variable, "1");
        // One of them by a handler.
        shaped(&probe, COUNT + 1);
    }
}

/// A debugger sees no signal of ours before the program that it has started begins.
#[test]
fn a_debugger_under_the_trap_starts_its_program() {
    let test = "a_debugger_under_the_trap_starts_its_program";
    let Some(program) = program(test, &[]) else {
        return;
    };
    let count = COUNT.to_string();
    shaped(
        &Probe::of(program, &["traced", &count]).with("INLINE", "1"),
        COUNT,
    );
}

/// What such a process starts is trapped, or entered, as well; also at the very addresses
/// that its filter is for.
#[test]
fn children_of_trapped_processes_run_and_are_counted() {
    let test = "children_of_trapped_processes_run_and_are_counted";
    let count = COUNT.to_string();
    let Some(fixed) = program(&format!("{test}-fixed"), &["-no-pie"]) else {
        return;
    };
    let Some(moving) = program(test, &[]) else {
        return;
    };
    let whole = program(&format!("{test}-static"), &["-static"]);
    let (fixed, moving, whole) = (Some(fixed), Some(moving), whole);
    for first in [&fixed, &moving] {
        for next in [&fixed, &moving, &whole] {
            let (Some(first), Some(next)) = (first, next) else {
                continue;
            };
            let probe = Probe::of(first.clone(), &["children", &count])
                .with("INLINE", "1")
                .with("NEXT", next.display().to_string());
            let bare = probe.bare();
            let seen = probe.through(TRAP, &[LIMIT]);
            assert_eq!(sorted(&seen), sorted(&bare), "{:?}", seen.finished);
            // Half of them each: a child, and two programs.
            assert_all_counted(&seen, COUNT / 2 * 3);
        }
    }
}

/// The lines of several processes.
fn sorted(seen: &Seen) -> Vec<String> {
    let mut lines = seen.lines.clone();
    lines.sort();
    lines
}

/// It would be killed where it stands, for nobody would handle the signal there.
#[test]
fn a_program_that_would_stand_where_calls_are_trapped_is_refused() {
    let test = "a_program_that_would_stand_where_calls_are_trapped_is_refused";
    let Some(fixed) = program(&format!("{test}-fixed"), &["-no-pie"]) else {
        return;
    };
    let Some(whole) = program(&format!("{test}-static"), &["-static"]) else {
        return;
    };
    let done = scratch().join(format!("{test}.done"));
    let _ = std::fs::remove_file(&done);
    // Nobody is there who could enter it.
    let script = format!(
        "kill -KILL $PPID; sleep 0.3; NEXT='{}' INLINE=1 '{}' children 4 >'{done}.new' 2>&1; mv '{done}.new' '{done}'",
        whole.display(),
        fixed.display(),
        done = done.display()
    );
    let bonsai = crate::fixture::bonsai();
    let (_, mut command) = bonsai.run(TRAP.1, Path::new("/bin/sh"), &["-c", &script]);
    let mut guard = command.args(&[] as &[&str]).spawn().expect("bonsai");
    let _ = guard.wait();
    let start = std::time::Instant::now();
    while !done.exists() {
        assert!(start.elapsed() < crate::probe::PATIENCE, "it hangs");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let text = std::fs::read_to_string(&done).expect("read");
    assert!(
        text.contains("would stand where calls are trapped"),
        "{text}"
    );
    assert!(
        text.contains("by itself: 9") && text.contains("children done"),
        "{text}"
    );
}

/// `status` names the process, and says how many calls came that way.
#[test]
fn status_names_trapped_processes_and_counts_their_calls() {
    let test = "status_names_trapped_processes_and_counts_their_calls";
    let Some(program) = program(test, &[]) else {
        return;
    };
    let bonsai = crate::fixture::bonsai();
    let options = [TRAP.1, &["--limit", "pwrite64=10kB/s:burst=1kB"]].concat();
    let (name, mut command) = bonsai.run(&options, &program, &["made", "60"]);
    let mut running = command.spawn().expect("bonsai");
    let start = std::time::Instant::now();
    loop {
        let mut command = bonsai.command(&["status", &name, "--json"]);
        let text = conformance::finish(&mut command, crate::probe::PATIENCE)
            .expect("status")
            .stdout
            .replace(" ", "");
        let calls = text.split("\"trapped\":").nth(1).and_then(|rest| {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u64>().ok()
        });
        if text.contains("\"trapping\":true") && calls.is_some_and(|calls| calls >= 5) {
            break;
        }
        assert!(
            start.elapsed() < std::time::Duration::from_secs(20),
            "{text}"
        );
    }
    running.kill().expect("ours");
    running.wait().expect("ours");
}

/// What a supervisor decides is limited too, and what the library can patch is left to it.
#[test]
fn programs_that_cannot_be_patched_are_decided_on_by_notification() {
    let test = "programs_that_cannot_be_patched_are_decided_on_by_notification";
    let Some(program) = program(test, &[]).filter(|_| can_enforce(test)) else {
        return;
    };
    let count = COUNT.to_string();
    let probe = Probe::of(program, &["made", &count]).with("INLINE", "1");
    let bare = probe.bare();
    let seen = probe.through(("notify", &["--unpatched", "notify"]), &[LIMIT]);
    assert_eq!(seen.lines, bare.lines, "{:?}", seen.finished);
    // What the last call has moved, the supervisor would hear of at the next.
    assert_eq!(seen.counters.of("pwrite64").0, COUNT);
    seen.assert_shaped(COUNT * 1024, 96_000, 1000);
    let said = &seen.finished.stderr;
    assert!(said.contains("runs as with --enforce, +"), "{said}");
    let patched = Probe::of(PathBuf::from("/bin/true"), &[]);
    let seen = patched.through(("notify", &["--unpatched", "notify"]), &[LIMIT]);
    let said = &seen.finished.stderr;
    assert!(!said.contains("--enforce"), "{said}");
}

/// What is between two parts of a library's code may be its data: only code changes, and comes back as it was.
#[test]
fn data_between_two_parts_of_code_stays_writable() {
    let test = "data_between_two_parts_of_code_stays_writable";
    let Some(gcc) = compiler(test) else { return };
    let make = |name: &str, options: &[&str]| {
        let made = gcc.make(name, &["trapped/two_codes.c"], options);
        made.unwrap_or_else(|error| panic!("{error}"))
    };
    let apart = ["-shared", "-fPIC", "-Wl,--section-start=.far=0x200000"];
    let library = make("libtwo-codes.so", &apart).display().to_string();
    let probe = Probe::of(make("two-codes", &["-DMAIN"]), &[&library]);
    let bare = probe.bare();
    assert_eq!(bare.lines[2], "counted 4, 3 parts, 0 of them wrong");
    let [patched, _] = probe.same(&[LIMIT]).try_into().expect("two doors");
    assert_eq!(patched.counters.of("write.other").0, 3);
    for door in [TRAP, LEAVE] {
        assert_eq!(probe.through(door, &[LIMIT]).lines, bare.lines);
    }
}
