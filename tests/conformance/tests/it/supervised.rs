//! `--when-supervisor-dies`: a service whose `bonsai run` is killed goes on, or is ended.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use conformance::skip;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::fixture::{bonsai, compiler, scratch};
use crate::probe::PATIENCE;

const END: [&str; 2] = ["--when-supervisor-dies", "end"];
const THROUGH: [&str; 2] = ["--when-supervisor-dies", "through"];

fn child_of(pid: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

fn kill(pid: u32) {
    // It may have gone by itself.
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process");
    let _ = kill_process(pid, Signal::KILL);
}

/// A script that starts static programs again and again, with children that have left it, and
/// notes every process of its own.
fn busy(test: &str, turn: usize) -> Option<(String, PathBuf)> {
    let made = compiler(test)?.make(
        &format!("static-{test}"),
        &[Path::new("transparency/threads.c")],
        &["-static"],
    );
    let program = match made {
        Ok(program) => program,
        Err(error) => {
            skip(test, &error.to_string());
            return None;
        }
    };
    let pids = scratch().join(format!("{test}-{turn}.pids"));
    let _ = std::fs::remove_file(&pids);
    let script = format!(
        "echo $$ >>'{pids}'\n\
         (setsid sh -c 'echo $$ >>\"{pids}\"; exec sleep 30' &)\n\
         i=0; while [ $i -lt 40 ]; do '{program}' >/dev/null & echo $! >>'{pids}'; wait $!; i=$((i+1)); done\n\
         exec sleep 30",
        pids = pids.display(),
        program = program.display(),
    );
    Some((script, pids))
}

fn noted(pids: &Path) -> Vec<Pid> {
    let text = std::fs::read_to_string(pids).unwrap_or_default();
    let numbers = text.lines().filter_map(|line| line.parse().ok());
    numbers.filter_map(Pid::from_raw).collect()
}

fn living(pids: &Path) -> Vec<Pid> {
    let all = noted(pids).into_iter();
    all.filter(|pid| test_kill_process(*pid).is_ok()).collect()
}

/// Whoever ends with it has ended when the guard has.
#[test]
fn a_service_that_ends_with_its_supervisor_ends_at_every_step() {
    let test = "a_service_that_ends_with_its_supervisor_ends_at_every_step";
    for (turn, ms) in [5, 30, 60, 90, 130, 200, 350, 600].into_iter().enumerate() {
        let Some((script, pids)) = busy(test, turn) else {
            return;
        };
        let bonsai = bonsai();
        let (_, mut command) = bonsai.run(&END, Path::new("/bin/sh"), &["-c", &script]);
        let mut guard = command.spawn().expect("bonsai");
        std::thread::sleep(Duration::from_millis(ms));
        let start = Instant::now();
        let supervisor = loop {
            if let Some(pid) = child_of(guard.id()) {
                break pid;
            }
            assert!(start.elapsed() < PATIENCE, "{ms} ms: it does not start");
        };
        kill(supervisor);
        let code = loop {
            if let Some(status) = guard.try_wait().expect("ours") {
                break status.code();
            }
            assert!(start.elapsed() < PATIENCE, "{ms} ms: it hangs");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(code, Some(137), "{ms} ms");
        assert!(
            living(&pids).is_empty(),
            "{ms} ms: {:?} live on",
            living(&pids)
        );
    }
}

/// Neither the guard's end nor, where that was asked for, the supervisor's stops a service:
/// it does all that it does without.
#[test]
fn a_service_that_goes_on_without_its_supervisor_comes_to_its_end() {
    let test = "a_service_that_goes_on_without_its_supervisor_comes_to_its_end";
    for (how, options) in [("guard", &END), ("supervisor", &THROUGH)] {
        for ms in [0, 50, 300] {
            let done = scratch().join(format!("{test}-{how}-{ms}"));
            let _ = std::fs::remove_file(&done);
            let script = format!(
                ": >'{0}.begun'; i=0; while [ $i -lt 20 ]; do sleep 0.05; /bin/true; i=$((i+1)); done; echo $i >'{0}.new'; mv '{0}.new' '{0}'",
                done.display()
            );
            let begun = done.with_extension("begun");
            let _ = std::fs::remove_file(&begun);
            let bonsai = bonsai();
            let (_, mut command) = bonsai.run(options, Path::new("/bin/sh"), &["-c", &script]);
            let mut first = command.spawn().expect("bonsai");
            let start = Instant::now();
            while !begun.is_file() {
                assert!(start.elapsed() < PATIENCE, "{how}: it does not start");
                std::thread::sleep(Duration::from_millis(2));
            }
            std::thread::sleep(Duration::from_millis(ms));
            kill(first.id());
            first.wait().expect("ours");
            while !done.is_file() {
                assert!(start.elapsed() < PATIENCE, "{how} after {ms} ms: it hangs");
                std::thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(std::fs::read_to_string(&done).expect("ours"), "20\n");
        }
    }
}

#[test]
fn a_guarded_service_ends_as_without_a_guard() {
    let bonsai = bonsai();
    for (script, code) in [("exit 0", 0), ("exit 5", 5), ("kill -TERM $$", 143)] {
        let (_, mut command) = bonsai.run(&END, Path::new("/bin/sh"), &["-c", script]);
        let status = command.status().expect("bonsai");
        assert_eq!(status.code(), Some(code), "{script}");
    }
}

#[test]
fn enforced_services_cannot_go_on_without_their_supervisor() {
    let bonsai = bonsai();
    let options = [
        "--enforce",
        "--limit",
        "write=1MB/s",
        THROUGH[0],
        THROUGH[1],
    ];
    let (_, mut command) = bonsai.run(&options, Path::new("/bin/true"), &[] as &[&str]);
    let output = command.output().expect("bonsai");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("cannot go on without it") && said.lines().count() == 1,
        "{said}"
    );
}
