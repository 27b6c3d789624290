//! The note that an exec leaves, and that an arrival takes away: whatever is killed, removed or full meanwhile, the service goes on, and says
//! what it does not know.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use conformance::{Bonsai, finish, skip};

use crate::fixture::{bonsai, compiler, scratch};
use crate::probe::PATIENCE;

/// The program that kills, and programs that it runs: with a loader and without.
fn programs(test: &str) -> Option<(PathBuf, Vec<PathBuf>)> {
    let gcc = compiler(test)?;
    let make = |name: &str, source: &str, options: &[&str]| {
        let name = format!("{name}-{test}");
        gcc.make(&name, &[source], options)
    };
    let kills =
        make("arrivals", "faults/arrivals.c", &[]).unwrap_or_else(|error| panic!("{error}"));
    let mut run = vec![PathBuf::from("/bin/true")];
    match make("still", "faults/still.c", &["-static"]) {
        Ok(program) => run.push(program),
        Err(error) => skip(test, &error.to_string()),
    }
    Some((kills, run))
}

/// Killed between the note and the exec, between the exec and the arrival, and after it, 400 times: the entries of these processes are
/// used again, and what comes after them is limited and counted to the byte.
#[test]
fn processes_that_are_killed_around_their_exec_leave_nothing_behind() {
    let test = "processes_that_are_killed_around_their_exec_leave_nothing_behind";
    let Some((kills, run)) = programs(test) else {
        return;
    };
    const LENGTH: usize = 1_000_000;
    let folder = tempfile::tempdir_in(scratch()).expect("a folder");
    let file = folder.path().join("data");
    std::fs::write(&file, vec![b'x'; LENGTH]).expect("room");
    let bonsai = bonsai();
    for program in run {
        let script = format!(
            "'{0}' 400 '{1}' && cat '{2}' | wc -c",
            kills.display(),
            program.display(),
            file.display()
        );
        let options = ["--json", "--limit", "read=2MB/s"];
        let (_, mut command) = bonsai.run(&options, Path::new("/bin/sh"), &["-c", &script]);
        let seen = finish(&mut command, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
        let label = program.display();
        assert_eq!(seen.status.code(), Some(0), "{label}: {seen:?}");
        let mut lines = seen.stdout.lines();
        let counts = lines.next().expect("a line");
        let sum: u64 = counts
            .split(' ')
            .map(|n| n.parse::<u64>().expect("a number"))
            .sum();
        assert_eq!(sum, 400, "{label}: {seen:?}");
        assert_eq!(lines.next(), Some("1000000"), "{label}: {seen:?}");
        // Reads of cat and of wc, and a few by the others.
        let counters = conformance::Counters::said(&seen.stderr).expect("counters");
        let read: u64 = ["read.file", "read.other"]
            .map(|entry| counters.of(entry).1)
            .iter()
            .sum();
        assert!(
            (2_000_000..2_300_000).contains(&read),
            "{label}: {counters:?}"
        );
        assert!(seen.elapsed.as_secs_f64() > 0.9, "{label}: {seen:?}");
        // Killed processes may be named, as they did not arrive; none as covered in part.
        let text = &seen.stderr;
        assert!(!text.contains("covered in part"), "{label}: {text}");
        assert_eq!(counters.unseen, (0, 0), "{label}: {counters:?}");
    }
}

/// With the runtime directory removed under it, a program ends with its own exit code, and nothing else is said of that.
#[test]
fn a_program_whose_runtime_directory_is_removed_ends_with_its_own_code() {
    let folder = tempfile::tempdir_in(scratch()).expect("a folder");
    let runtime = folder.path().join("runtime");
    let make = || {
        std::fs::create_dir(&runtime).expect("a folder");
        std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o700)).expect("ours");
    };
    let script = format!("rm -r '{}'; /bin/true; exit 7", runtime.display());
    for options in [
        &["--limit", "read=100GB/s"][..],
        &["--enforce", "--limit", "read=100GB/s"],
    ] {
        make();
        let bonsai: &Bonsai = &bonsai();
        let (_, mut command) = bonsai.run(options, Path::new("/bin/sh"), &["-c", &script]);
        command.env("BONSAI_RUNTIME_DIR", &runtime);
        let seen = finish(&mut command, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
        if options.contains(&"--enforce") && seen.status.code() == Some(2) {
            return skip("runtime directory", &seen.stderr);
        }
        assert_eq!(seen.status.code(), Some(7), "{options:?}: {seen:?}");
        assert!(!seen.stderr.contains("cannot be"), "{options:?}: {seen:?}");
        assert!(!runtime.exists());
    }
}
