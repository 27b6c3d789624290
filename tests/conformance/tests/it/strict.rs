//! `--strict`: what cannot be shaped is not run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use conformance::finish;
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{PYTHON, bonsai, compiler, installed, scratch};
use crate::probe::{PATIENCE, Probe};

const REFUSED: &str = "nothing of it can be shaped, and --strict refuses that";

fn static_program(test: &str) -> Option<PathBuf> {
    let made = compiler(test)?.make(
        &format!("static-{test}"),
        &[Path::new("transparency/threads.c")],
        &["-static"],
    );
    if let Err(error) = &made {
        conformance::skip(test, &error.to_string());
    }
    made.ok()
}

#[test]
fn strict_services_run_what_can_be_shaped() {
    let test = "strict_services_run_what_can_be_shaped";
    let Some(program) = static_program(test) else {
        return;
    };
    let probe = Probe::of(program.clone(), &[]);
    let bare = probe.bare();
    let seen = probe.through(("strict", &["--strict"]), &["write=100GB/s"]);
    assert_eq!(seen.lines, bare.lines, "{:?}", seen.finished);
    assert!(
        seen.counters.of("write.other").0 >= 192,
        "{:?}",
        seen.counters
    );
    let by_shell = format!("'{}'; true", program.display());
    let probe = Probe::of(PathBuf::from("/bin/sh"), &["-c", &by_shell]);
    let seen = probe.through(("strict", &["--strict"]), &["write=100GB/s"]);
    assert_eq!(seen.lines, bare.lines, "{:?}", seen.finished);
}

/// Nothing may be patched, so that nobody enters it.
#[test]
fn strict_services_do_not_run_what_cannot_be_shaped() {
    let test = "strict_services_do_not_run_what_cannot_be_shaped";
    let Some(program) = static_program(test) else {
        return;
    };
    let program = program.display();
    let python = format!(
        "import os\ntry: os.posix_spawn('{program}', ['x'], {{}})\nexcept OSError as e: print(e.errno)"
    );
    let shell = format!("'{program}' >/dev/null; echo $?; echo on");
    let mut runners = vec![("/bin/sh", shell, ["126", "on"].as_slice())];
    if installed(test, PYTHON).is_some() {
        runners.push((PYTHON, python, &["1"]));
    }
    for (runner, script, lines) in runners {
        let probe = Probe::of(PathBuf::from(runner), &["-c", &script]);
        let options = &["--strict", "--no-patch"];
        let seen = probe.through(("strict", options), &["write=100GB/s"]);
        assert_eq!(seen.lines, lines, "{runner}: {:?}", seen.finished);
        let said = seen.finished.stderr.matches(REFUSED).count();
        assert_eq!(said, 1, "{runner}: {:?}", seen.finished);
    }
}

/// Who would enter it is gone: it is not run, and what runs already goes on.
#[test]
fn without_its_keeper_a_strict_service_runs_no_static_program() {
    let test = "without_its_keeper_a_strict_service_runs_no_static_program";
    let Some(program) = static_program(test) else {
        return;
    };
    let done = scratch().join(format!("{test}.done"));
    let _ = std::fs::remove_file(&done);
    let script = format!(
        "while kill -0 $PPID && [ $(ps -o ppid= -p $$) = $PPID ]; do sleep 0.01; done 2>/dev/null\n\
         '{}' >/dev/null 2>&1; echo $? >'{done}.new'; mv '{done}.new' '{done}'",
        program.display(),
        done = done.display(),
    );
    let args = [OsStr::new("-c"), OsStr::new(&script)];
    let bonsai = bonsai();
    let (name, mut command) = bonsai.run(&["--strict"], Path::new("/bin/sh"), &args);
    let mut keeper = command.spawn().expect("bonsai");
    let began = Instant::now();
    loop {
        let status = finish(&mut bonsai.command(&["status", &name]), PATIENCE).expect("status");
        if status.stdout.contains("patched") {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "it does not start: {status:?}");
    }
    kill_process(Pid::from_child(&keeper), Signal::KILL).expect("ours");
    keeper.wait().expect("it ends");
    while !done.is_file() {
        assert!(began.elapsed() < PATIENCE, "it hangs");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(std::fs::read_to_string(&done).expect("ours").trim(), "126");
}
