//! New processes and programs: all of them belong to the service and are shaped,
//! or are named.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use conformance::{Bonsai, finish, skip};

use crate::fixture::{bonsai, compiler};
use crate::probe::{DOORS, PATIENCE, Probe, Seen};

#[test]
fn children_do_not_spend_a_lease_twice() {
    let test = "children_do_not_spend_a_lease_twice";
    let Some(probe) = Probe::new(test, "forks", &["8", "32768"]) else {
        return;
    };
    for seen in probe.same(&["write=720kB/s:burst=8kB"]) {
        assert_eq!(
            seen.counters.of("write.other"),
            (9 * 128, 9 * 32768),
            "{}",
            seen.door
        );
        seen.assert_shaped(9 * 32768, 720_000, 8000);
    }
}

#[test]
fn programs_started_in_every_way_are_shaped() {
    let test = "programs_started_in_every_way_are_shaped";
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display().to_string();
    let Some(probe) = Probe::new(test, "programs", &[&path]) else {
        return;
    };
    for seen in probe.same(&["write=220kB/s:burst=4kB"]) {
        assert_eq!(
            seen.counters.of("write.file"),
            (11 * 8, 11 * 8192),
            "{}",
            seen.door
        );
        seen.assert_shaped(11 * 8192, 220_000, 4000);
    }
}

/// What is added for the interposer is not there for who looks, and is again for what
/// that starts. By exported symbols alone not every exec is seen, and it stays.
#[test]
fn a_program_finds_the_environment_that_it_was_given() {
    let test = "a_program_finds_the_environment_that_it_was_given";
    let Some(probe) = Probe::new(test, "environment", &[]) else {
        return;
    };
    let bare = probe.bare();
    assert!(bare.lines.len() > 36, "{:?}", bare.finished);
    for door in DOORS {
        let seen = probe.through(door, &["write=180kB/s:burst=4kB"]);
        if door.1.is_empty() {
            assert_eq!(seen.lines, bare.lines, "{}", seen.finished.stderr);
        } else {
            let added = seen.lines.iter().filter(|l| l.contains("BONSAI_"));
            assert!(added.count() >= 36, "{:?}", seen.lines);
        }
        assert_eq!(
            seen.counters.of("write.other"),
            (36, 36 * 1024),
            "{}",
            seen.door
        );
        seen.assert_shaped(36 * 1024, 180_000, 4000);
    }
}

/// The program after it would be lost if it were not told of the interposer.
#[test]
fn a_runtime_with_its_own_exec_keeps_what_was_added() {
    let test = "a_runtime_with_its_own_exec_keeps_what_was_added";
    let Some(compiler) = compiler(test) else {
        return;
    };
    let program = compiler
        .make("runtime", &["transparency/runtime.c"], &["-rdynamic"])
        .unwrap_or_else(|error| panic!("{error}"));
    let path = program.display().to_string();
    let env = Path::new("/usr/bin/env").to_owned();
    for seen in Probe::of(env, &["-i", &path]).same(&[]) {
        assert_eq!(
            seen.counters.of("write.other"),
            (8, 8 * 1024),
            "{}",
            seen.door
        );
    }
}

#[test]
fn another_preloaded_library_stays_and_works() {
    let test = "another_preloaded_library_stays_and_works";
    let Some(compiler) = compiler(test) else {
        return;
    };
    let other = compiler
        .make(
            "libother.so",
            &["transparency/other.c"],
            &["-shared", "-fPIC"],
        )
        .unwrap_or_else(|error| panic!("{error}"));
    let Some(probe) = Probe::new(test, "preloaded", &["2"]) else {
        return;
    };
    let probe = probe.with("LD_PRELOAD", other.display().to_string());
    for seen in probe.same(&["write=60kB/s:burst=1kB"]) {
        assert_eq!(seen.lines.len(), 3);
        assert!(
            seen.lines
                .iter()
                .all(|line| line.ends_with("counted 5 times"))
        );
        assert_eq!(
            seen.counters.of("write.other"),
            (24, 24 * 1024),
            "{}",
            seen.door
        );
        let took = seen.finished.elapsed.as_secs_f64();
        assert!(took > 23576.0 / 60000.0 * 0.98, "{}: {took} s", seen.door);
    }
}

#[test]
fn blanks_in_paths_do_no_harm() {
    let test = "blanks_in_paths_do_no_harm";
    let Some(probe) = Probe::new(test, "closing", &[]) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path().join("a folder: with blanks");
    std::fs::create_dir(&here).expect("a new folder");
    std::fs::copy(&probe.program, here.join("a program")).expect("a copy");
    let shaped = |seen: &Seen| {
        assert_eq!(
            seen.counters.of("write.other"),
            (48, 48 * 1024),
            "{}",
            seen.door
        );
        seen.assert_shaped(48 * 1024, 120_000, 1000);
    };
    let mut probe = Probe::of(here.join("a program"), &[]);
    probe.folder = Some(here.clone());
    let limits = &["write=120kB/s:burst=1kB"];
    probe.same(limits).iter().for_each(shaped);
    // By a relative path, which the bare program is not started with.
    let lines = probe.bare().lines;
    probe.program = Path::new("./a program").to_owned();
    for door in DOORS {
        let seen = probe.through(door, limits);
        assert_eq!(seen.lines, lines);
        shaped(&seen);
    }
}

/// The loader separates the names of preloaded libraries by blanks: such a runtime
/// directory is worked around, or refused with a sentence, but not ignored.
#[test]
fn a_runtime_directory_with_blanks_is_not_ignored() {
    let test = "a_runtime_directory_with_blanks_is_not_ignored";
    let Some(probe) = Probe::new(test, "closing", &[]) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = folder.path().join("run time");
    std::fs::create_dir(&runtime).expect("a new folder");
    std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o700)).expect("our own");
    let bonsai = bonsai();
    let (_, mut command) = bonsai.run(&["--json"], &probe.program, &[] as &[&str]);
    command.env("BONSAI_RUNTIME_DIR", &runtime);
    let finished = finish(&mut command, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    let refused = finished.status.code() == Some(2) && finished.stderr.contains("run time");
    let counted = finished.stderr.contains(r#""call":"write""#);
    assert!(refused || counted, "{finished:?}");
}

/// It runs, its results are the same, and it is named with the reason.
fn named(probe: &Probe, reason: &str) {
    let bare = probe.bare();
    for door in DOORS {
        let seen = probe.through(door, &["write=1kB/s"]);
        assert_eq!(seen.lines, bare.lines, "{}", seen.door);
        assert!(seen.finished.status.success());
        let said = seen
            .finished
            .stderr
            .lines()
            .any(|line| line.starts_with("bonsai: ") && line.contains(reason));
        assert!(
            said,
            "{}: no {reason:?} in {:?}",
            seen.door, seen.finished.stderr
        );
        assert_eq!(seen.counters.of("write.other"), (0, 0), "{}", seen.door);
    }
}

#[test]
fn a_set_user_id_program_runs_and_is_named() {
    let test = "a_set_user_id_program_runs_and_is_named";
    if !rustix::process::geteuid().is_root() {
        skip(test, "only root can make a program of another user");
        return;
    }
    let Some(probe) = Probe::new(test, "closing", &[]) else {
        return;
    };
    // The folder of the build may not be open to others, or mounted nosuid.
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("ours");
    let copy = folder.path().join("setuid");
    std::fs::copy(&probe.program, &copy).expect("a copy");
    // nobody
    chown(&copy, Some(65534), None).expect("root may");
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o4755)).expect("ours");
    named(&Probe::of(copy, &[]), "set-user-ID");
}

/// The loader would complain of a library that the new user cannot open, and loads
/// none where a program's user is not the one who started it.
#[test]
fn a_program_of_another_user_runs_undisturbed_and_is_named() {
    let test = "a_program_of_another_user_runs_undisturbed_and_is_named";
    if !rustix::process::geteuid().is_root() {
        skip(test, "only root can become another user");
        return;
    }
    let preload = "id -u; echo ${LD_PRELOAD-none}";
    let nobody = ["65534", "65534", "/bin/sh", "-c", preload];
    let half = ["65534", "0", "/usr/bin/id", "-u"];
    for (words, lines, named) in [
        (&nobody[..], &["65534", "none"][..], "sh, changed user"),
        (&half, &["0"], "id, set-user-ID"),
    ] {
        let Some(probe) = Probe::new(test, "user", words) else {
            return;
        };
        for seen in probe.same(&[]) {
            assert_eq!(seen.lines, lines);
            // That line and the counters: nothing of the loader's.
            let said: Vec<&str> = seen.finished.stderr.lines().collect();
            assert_eq!(said.len(), 2, "{}: {said:?}", seen.door);
            let reason = format!("not covered: {named}");
            assert!(said[0].contains(&reason), "{}: {said:?}", seen.door);
        }
    }
}

/// `setpriv` keeps its capabilities until it runs its program, so that the library opens up to then.
#[test]
fn a_program_that_loses_capabilities_as_it_runs_is_named() {
    let test = "a_program_that_loses_capabilities_as_it_runs_is_named";
    let setpriv = std::path::PathBuf::from("/usr/bin/setpriv");
    if !rustix::process::geteuid().is_root() || !setpriv.exists() {
        return skip(test, "only root can become another user, by setpriv");
    }
    let script = "id -u; echo ${LD_PRELOAD-none}";
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let args = [&user[..], &["/bin/sh", "-c", script]].concat();
    let seen = Probe::of(setpriv, &args).through(("patched", &[]), &["write=1GB/s"]);
    assert_eq!(seen.lines, ["65534", "none"], "{:?}", seen.finished);
    let text = &seen.finished.stderr;
    assert!(text.contains("not covered: sh, changed user"), "{text}");
    assert!(!text.contains("ld.so"), "{text}");
}

/// As in a sandbox (`bwrap --ro-bind / /`): the library is there, and cannot count.
#[test]
fn a_program_whose_ledger_is_read_only_runs_and_is_named() {
    let test = "a_program_whose_ledger_is_read_only_runs_and_is_named";
    let bonsai = bonsai();
    let runtime = bonsai.services();
    let runtime = runtime.to_str().expect("text");
    let mount = "mount --bind \"$0\" \"$0\" && mount -o remount,ro,bind \"$0\" || exit 77; ";
    let unshare = ["unshare", "-U", "-r", "-m", "sh", "-c"];
    for then in [
        "exec dd if=/dev/zero bs=1000000 count=4 of=/dev/null",
        "echo ok",
    ] {
        let script = format!("{mount}{then}");
        let words = [&unshare[1..], &[script.as_str(), runtime]].concat();
        let (_, mut command) = bonsai.run(&["-l", "read=1MB/s"], Path::new(unshare[0]), &words);
        let seen = finish(&mut command, PATIENCE).expect("it ends");
        if seen.status.code() == Some(77) || seen.stderr.contains("unshare failed") {
            return skip(test, "no mounts of one's own here");
        }
        let is_named = seen
            .stderr
            .contains("not covered: dd, changed root or mounts");
        assert_eq!(is_named, then.starts_with("exec"), "{}", seen.stderr);
    }
}

/// Waits until `found` gives something, at most ten seconds.
fn soon<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let from = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(
            from.elapsed() < Duration::from_secs(10),
            "{what} did not come"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ends one process of ours, and waits until it is gone.
struct Daemon(i32);

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.0) {
            // It may have ended by itself.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

fn text(bonsai: &Bonsai, args: &[&str]) -> String {
    let finished = finish(&mut bonsai.command(args), PATIENCE).unwrap_or_else(|e| panic!("{e}"));
    finished.stdout
}

#[test]
fn a_daemon_stays_in_the_service_and_is_shaped() {
    let test = "a_daemon_stays_in_the_service_and_is_shaped";
    let Some(compiler) = compiler(test) else {
        return;
    };
    let program = compiler
        .make("background", &["transparency/background.c"], &[])
        .unwrap_or_else(|error| panic!("{error}"));
    let bonsai = bonsai();
    for (door, options) in DOORS {
        let folder = tempfile::tempdir().expect("a folder");
        let notes = folder.path().join("daemon.pid");
        let mut all = vec!["--limit", "write=40kB/s:burst=1kB"];
        all.extend(options);
        let (name, mut command) = bonsai.run(&all, &program, &[&notes]);
        // A session of its own takes it out of our process group; it is ended below.
        let keeper = std::thread::spawn(move || ended(&mut command));
        let lines = soon("the daemon's second line", || {
            let text = std::fs::read_to_string(&notes).ok()?;
            let lines: Vec<String> = text.lines().map(str::to_owned).collect();
            (lines.len() == 2).then_some(lines)
        });
        let words: Vec<&str> = lines[1].split(' ').collect();
        let daemon = Daemon(words[0].parse().expect("a process id"));
        let took: f64 = words[1].parse().expect("milliseconds");
        assert!(took >= 15384.0 / 40.0 * 0.98, "{door}: 16 KiB in {took} ms");
        let status = text(&bonsai, &["status", "--json"]);
        let pid = format!("\"pid\":{}", daemon.0);
        let flat: String = status.chars().filter(|c| !c.is_whitespace()).collect();
        assert!(flat.contains(&pid), "{door}: no {pid} in {status}");
        let stats = text(&bonsai, &["stats", &name, "--json"]);
        let counters = conformance::Counters::parse(&stats).expect("counters");
        assert_eq!(counters.of("write.other"), (16, 16 * 1024), "{door}");
        drop(daemon);
        assert!(keeper.join().expect("no panic").success(), "{door}");
    }
}

/// How a command ended whose children may outlive it.
fn ended(command: &mut Command) -> std::process::ExitStatus {
    let null = std::process::Stdio::null;
    let mut child = command
        .stdin(null())
        .stdout(null())
        .stderr(null())
        .spawn()
        .expect("bonsai can be started");
    child.wait().expect("our own child")
}
