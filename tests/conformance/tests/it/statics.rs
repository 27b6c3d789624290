//! Programs without a loader, which the engine is put into; `calls.rs` has every call.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use conformance::{Counters, finish, skip};
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{bonsai, compiler, scratch};
use crate::probe::{PATIENCE, Probe, Seen};

/// A probe of `c/transparency` in each form of static program that can be made here.
fn forms(test: &str, probe: &str) -> Vec<(&'static str, PathBuf)> {
    let Some(gcc) = compiler(test) else {
        return Vec::new();
    };
    let musl = gcc.by("musl-gcc");
    let forms = [
        ("glibc", Some(gcc.clone()), "-static"),
        (
            "glibc, position-independent",
            Some(gcc.clone()),
            "-static-pie",
        ),
        ("musl", musl, "-static"),
    ];
    let source = Path::new("transparency").join(format!("{probe}.c"));
    let mut made = Vec::new();
    for (i, (form, compiler, option)) in forms.into_iter().enumerate() {
        let program = compiler.and_then(|compiler| {
            let name = format!("static-{test}-{i}");
            compiler.make(&name, &[&source], &[option]).ok()
        });
        match program {
            Some(program) => made.push((form, program)),
            None => skip(test, &format!("{form}: cannot be linked here")),
        }
    }
    made
}

/// All of its writes are counted, once; and those by which it says so, for it makes
/// them itself.
pub(crate) fn assert_all_written(seen: &Seen, what: &str) {
    let (calls, bytes) = seen.counters.of("write.other");
    let said = seen.finished.stdout.len() as u64;
    assert!((192..=196).contains(&calls), "{what}: {calls} calls");
    assert!(
        (192 * 1024..=192 * 1024 + said).contains(&bytes),
        "{what}: {bytes} bytes"
    );
}

pub(crate) const LIMIT: &str = "write=480kB/s:burst=4kB";

#[test]
fn static_programs_are_shaped_with_all_their_threads() {
    let test = "static_programs_are_shaped_with_all_their_threads";
    for args in [&[] as &[&str], &["relay"]] {
        for (form, program) in forms(test, "threads") {
            let probe = Probe::of(program, args);
            let seen = probe.through((form, &[]), &[LIMIT]);
            assert_eq!(seen.lines, probe.bare().lines, "{form}");
            assert!(
                seen.finished.status.success(),
                "{form}: {:?}",
                seen.finished
            );
            assert_all_written(&seen, form);
            seen.assert_shaped(192 * 1024, 480_000, 4000);
        }
    }
}

/// Small ones, too: all calls of such a musl program are made by one instruction, by any
/// number. Run twice in a service, where the second is not looked through; in one process,
/// one after another; and many at once, more than there are entries to ask in.
#[test]
fn small_static_programs_are_shaped() {
    let test = "small_static_programs_are_shaped";
    for (form, program) in forms(test, "pour") {
        let program = program.display();
        let again = format!("'{program}'; '{program}'");
        let chain = [const { " '" }; 4].map(|begin| format!("{begin}{program}'"));
        let crowd = format!("i=0; while [ $i -lt 24 ]; do '{program}' & i=$((i+1)); done; wait");
        for (text, written) in [
            (again, 2),
            (format!("exec{}", chain.concat()), 1),
            (crowd, 24),
        ] {
            let probe = Probe::of(PathBuf::from("/bin/sh"), &["-c", &text]);
            let seen = probe.through((form, &[]), &["write=4800kB/s:burst=4kB"]);
            let said = &seen.finished.stderr;
            assert!(!said.contains("covered"), "{form}: {text}: {said}");
            let counted = seen.counters.of("write.other");
            let expected = (written * 192, written * 192 * 1024);
            assert_eq!(counted, expected, "{form}: {text}");
        }
    }
}

/// musl cancels a thread that is at one instruction of its own.
#[test]
fn threads_of_static_programs_can_be_cancelled() {
    let test = "threads_of_static_programs_can_be_cancelled";
    let blocked: &[&str] = &["read", "recv", "poll", "write", "send"];
    let limited: &[&str] = &["limited write", "limited send"];
    for (calls, args, limit) in [
        (blocked, &[] as &[&str], "1GB/s"),
        (limited, &["limited"], "10kB/s:burst=1kB"),
    ] {
        let limits = ["read", "recv", "write", "send"].map(|name| format!("{name}={limit}"));
        let limits = limits.each_ref().map(String::as_str);
        let lines: Vec<String> = calls
            .iter()
            .map(|call| format!("{call}: cancelled, cleanup ran"))
            .collect();
        for (form, program) in forms(test, "cancel") {
            let seen = Probe::of(program, args).through((form, &[]), &limits);
            assert_eq!(seen.lines, lines, "{form}: {:?}", seen.finished);
            let ended = seen.finished.status.success();
            assert!(ended, "{form}: {:?}", seen.finished);
        }
    }
}

/// A shell that is shaped runs one that is static, which runs another.
#[test]
fn static_programs_run_by_others_are_shaped() {
    let test = "static_programs_run_by_others_are_shaped";
    let busybox = Path::new("/bin/busybox");
    for (form, program) in forms(test, "threads") {
        let program = program.display();
        let mut shells = vec![("sh", format!("'{program}'; true"))];
        if busybox.is_file() {
            let inner = format!("\"{program}\"; true");
            shells.push(("busybox", format!("/bin/busybox sh -c '{inner}'; true")));
        } else {
            skip(test, "busybox is not installed");
        }
        for (by, command) in shells {
            let probe = Probe::of(PathBuf::from("/bin/sh"), &["-c", &command]);
            let seen = probe.through((by, &[]), &[LIMIT]);
            let text = &seen.finished.stderr;
            assert!(!text.contains("not covered"), "{form} by {by}: {text}");
            assert_all_written(&seen, &format!("{form} by {by}: {text}"));
            seen.assert_shaped(192 * 1024, 480_000, 4000);
        }
    }
}

/// Waits for a file.
fn comes(file: &Path, form: &str) {
    let began = Instant::now();
    while !file.is_file() {
        let what = file.display();
        assert!(began.elapsed() < PATIENCE, "{form}: {what} never comes");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A program whose supervisor is gone runs all the same, and soon, and is named.
#[test]
fn without_its_keeper_a_static_program_runs_and_is_named() {
    let test = "without_its_keeper_a_static_program_runs_and_is_named";
    for (form, program) in forms(test, "threads") {
        let done = scratch().join(format!("{test}.done"));
        let began = scratch().join(format!("{test}.began"));
        for file in [&done, &began] {
            let _ = std::fs::remove_file(file);
        }
        let script = format!(
            ">'{began}'\n\
             while kill -0 $PPID && [ $(ps -o ppid= -p $$) = $PPID ]; do sleep 0.01; done 2>/dev/null\n\
             '{}' >/dev/null; echo $? >'{done}.new'; mv '{done}.new' '{done}'; sleep 5",
            program.display(),
            done = done.display(),
            began = began.display(),
        );
        let bonsai = bonsai();
        let args = [OsStr::new("-c"), OsStr::new(&script)];
        let (name, mut command) = bonsai.run(&[], Path::new("/bin/sh"), &args);
        let mut keeper = command.spawn().expect("bonsai");
        comes(&began, form);
        kill_process(Pid::from_child(&keeper), Signal::KILL).expect("ours");
        keeper.wait().expect("it ends");
        comes(&done, form);
        assert_eq!(
            std::fs::read_to_string(&done).expect("ours").trim(),
            "0",
            "{form}"
        );
        let status = finish(&mut bonsai.command(&["status", &name]), PATIENCE).expect("status");
        assert!(
            status.stdout.contains("not covered") && status.stdout.contains("static"),
            "{form}: {status:?}"
        );
    }
}

/// Patching is forbidden: nothing is put into it either.
#[test]
fn a_static_program_runs_and_is_named_where_nothing_may_be_patched() {
    let test = "a_static_program_runs_and_is_named_where_nothing_may_be_patched";
    for (form, program) in forms(test, "threads") {
        let probe = Probe::of(program, &[]);
        let seen = probe.through((form, &["--no-patch"]), &["write=1kB/s"]);
        assert_eq!(seen.lines, probe.bare().lines, "{form}");
        assert_eq!(seen.counters, Counters::default(), "{form}");
        let text = &seen.finished.stderr;
        assert!(
            text.contains("is statically linked: it runs, but"),
            "{form}: {text}"
        );
    }
}

/// How a program of Rust's standard library with musl is made: `rustc`'s options. With
/// a loader, it needs an unwinder that is built for musl.
const RUST_FORMS: [(&str, &[&str]); 4] = [
    ("Rust, static-pie", &[]),
    ("Rust, static", &["-Crelocation-model=static"]),
    ("Rust, stripped", &["-Cstrip=symbols"]),
    (
        "Rust with a loader",
        &["-Ctarget-feature=-crt-static", "-Clinker=musl-gcc"],
    ),
];

/// `rust/main.rs` in each of these forms, as far as they can be made here.
fn rust_programs(test: &str) -> Vec<(&'static str, PathBuf)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("rust/main.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut made = Vec::new();
    for (i, (form, options)) in RUST_FORMS.iter().enumerate() {
        let program = scratch().join(format!("{test}-{i}"));
        let mut build = Command::new(&rustc);
        build
            .args(["--edition=2024", "-O", "--target=x86_64-unknown-linux-musl"])
            .args(*options)
            .arg("-o")
            .args([&program, &source]);
        let output = build.output().expect("rustc");
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            made.push((*form, program));
        } else if said.contains("may not be installed") {
            skip(
                test,
                &format!("{form}: rustup target add x86_64-unknown-linux-musl adds it"),
            );
        } else if said.contains("libgcc_s") || said.contains("musl-gcc") {
            skip(test, &format!("{form}: cannot be linked here"));
        } else {
            panic!("{form}: {said}");
        }
    }
    made
}

#[test]
fn rust_programs_with_musl_are_shaped() {
    let test = "rust_programs_with_musl_are_shaped";
    for (form, program) in rust_programs(test) {
        let probe = Probe::of(program, &[]);
        let bare = probe.bare();
        assert!(bare.finished.status.success(), "{:?}", bare.finished);
        let seen = probe.through((form, &[]), &[LIMIT]);
        assert_eq!(seen.lines, bare.lines, "{form}: {:?}", seen.finished);
        let text = &seen.finished.stderr;
        assert!(!text.contains("not covered"), "{form}: {text}");
        let (calls, bytes) = seen.counters.of("write.other");
        // Four threads, and what it says into pipes.
        assert!((192..=200).contains(&calls), "{form}: {calls} calls");
        assert!(
            (192 * 1024..=192 * 1024 + 500).contains(&bytes),
            "{form}: {bytes} bytes"
        );
        seen.assert_shaped(192 * 1024, 480_000, 4000);
    }
}

/// Who asks to be entered is read once: root's helper seizes nobody who does not belong to the service.
#[test]
fn a_member_names_nobody_else_to_be_entered() {
    let test = "a_member_names_nobody_else_to_be_entered";
    let Some(gcc) = compiler(test) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip(test, "only root's helper has rights to lend");
    }
    let made = gcc.make("enter_race", &["faults/enter_race.c"], &["-pthread"]);
    let program = made.unwrap_or_else(|error| panic!("{error}"));
    let mut victim = Command::new("sleep").arg("300").spawn().expect("sleep");
    let pid = victim.id().to_string();
    let (_, mut command) = bonsai().run(&["--limit", "read=10MB/s"], &program, &[&pid]);
    let seen = finish(&mut command, PATIENCE);
    victim.kill().expect("ours");
    victim.wait().expect("it ends");
    let seen = seen.expect("an end");
    assert_eq!(seen.stdout, "not traced\n", "{seen:?}");
}
