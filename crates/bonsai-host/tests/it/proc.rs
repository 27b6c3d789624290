//! Processes: this one and its children.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bonsai_host::Error;
use bonsai_host::proc::{Processes, Seccomp, has_mapped, io, process, status};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::tempdir;

use crate::find_program;

/// A shell that runs a script, and is ended with all its descendants.
struct Shell(Child);

impl Shell {
    /// Returns when the script has printed a line.
    fn start(script: &str) -> Self {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a shell");
        let output = child.stdout.take().expect("a pipe");
        let shell = Self(child);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        shell
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        for process in Processes::read()
            .unwrap_or_default()
            .descendants(self.pid())
        {
            let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
            let _ = kill_process(pid.expect("a PID"), Signal::KILL);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{what} did not happen"
        );
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn this_process() {
    let pid = std::process::id();
    let me = process(pid).expect("readable").expect("running");
    assert_eq!(
        (me.pid, me.ppid),
        (pid, std::os::unix::process::parent_id())
    );
    assert_eq!(me.exe, std::env::current_exe().ok());
    assert!(me.threads >= 1 && me.start_ticks > 0 && !me.comm.is_empty());
    let status = status(pid).expect("readable").expect("running");
    let uid = rustix::process::getuid().as_raw();
    assert_eq!((status.uids[0], status.uids[1]), (uid, uid));
    assert!(matches!(status.seccomp, Seccomp::Off | Seccomp::Filter));
}

#[test]
fn a_family() {
    let shell = Shell::start("(sleep 60; true) & sleep 61 & echo ready; wait");
    let mut processes = Processes::default();
    let sleepers = |processes: &Processes| {
        let all = processes.descendants(shell.pid());
        all.iter().filter(|p| p.comm == "sleep").count()
    };
    wait_for("two sleepers", || {
        processes = Processes::read().expect("readable");
        sleepers(&processes) == 2
    });
    let all: Vec<u32> = processes
        .descendants(shell.pid())
        .iter()
        .map(|p| p.pid)
        .collect();
    let children: Vec<u32> = processes.children(shell.pid()).map(|p| p.pid).collect();
    assert_eq!((all.len(), children.len()), (3, 2), "{all:?} {children:?}");
    assert_eq!(all[..2], children, "parents come first");
    assert!(
        processes
            .get(all[2])
            .is_some_and(|p| p.comm == "sleep" && children.contains(&p.ppid))
    );
    let from_here = processes.descendants(std::process::id());
    let pids = all
        .iter()
        .chain([&shell.0.id()])
        .copied()
        .collect::<Vec<u32>>();
    assert!(
        pids.iter()
            .all(|pid| from_here.iter().any(|p| p.pid == *pid))
    );
    let me = processes.get(std::process::id()).expect("this process");
    let ages = pids.iter().filter_map(|pid| processes.get(*pid));
    assert!(ages.clone().count() == 4 && ages.clone().all(|p| p.start_ticks >= me.start_ticks));
}

#[test]
fn counters_are_exact() {
    let directory = tempdir().expect("a directory");
    let file = directory.path().join("file");
    let script = "dd if=/dev/zero bs=1000 count=500 2>/dev/null >\"$0\"; echo ready; read x";
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", script])
        .arg(&file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().expect("a shell");
    let mut line = String::new();
    let output = child.stdout.take().expect("a pipe");
    BufReader::new(output).read_line(&mut line).expect("a line");
    let counters = io(child.id()).expect("readable").expect("running");
    // dd has been waited for, so what it did counts for the shell, and little else.
    assert!((500_000..520_000).contains(&counters.wchar), "{counters:?}");
    assert!((500_000..560_000).contains(&counters.rchar), "{counters:?}");
    assert!((501..600).contains(&counters.syscw), "{counters:?}");
    drop(child.stdin.take());
    child.wait().expect("it ends");
    assert_eq!(fs::metadata(&file).expect("written").len(), 500_000);
    assert_eq!(io(child.id()).expect("no error"), None);
}

#[test]
fn zombies_and_vanished_processes() {
    let mut child = Command::new("/bin/true").spawn().expect("true");
    let pid = child.id();
    wait_for("a zombie", || {
        process(pid)
            .expect("readable")
            .expect("not waited for")
            .state
            == 'Z'
    });
    let zombie = process(pid).expect("readable").expect("not waited for");
    assert_eq!((zombie.exe, zombie.comm.as_str()), (None, "true"));
    assert_eq!(
        has_mapped(pid, Path::new("/bin/true")).expect("readable"),
        Some(false)
    );
    child.wait().expect("it ended");
    assert_eq!(process(pid).expect("no error"), None);
    assert_eq!(status(pid).expect("no error"), None);
    assert_eq!(io(pid).expect("no error"), None);
    assert_eq!(
        has_mapped(pid, Path::new("/bin/true")).expect("no error"),
        None
    );
}

#[test]
fn names_of_programs_may_be_anything() {
    let directory = tempdir().expect("a directory");
    let program = directory.path().join("a) R (1 \n2");
    fs::copy(find_program("sleep").expect("sleep"), &program).expect("a copy");
    let mut command = Command::new(&program);
    command.arg("60");
    let mut child = (0..100)
        .find_map(|_| {
            sleep(Duration::from_millis(5));
            command.spawn().ok()
        })
        .expect("it starts");
    wait_for("exec", || {
        let process = process(child.id()).expect("readable").expect("running");
        process.comm == "a) R (1 \n2" && process.exe.as_deref() == Some(&*program)
    });
    let process = process(child.id()).expect("readable").expect("running");
    assert_eq!((process.ppid, process.threads), (std::process::id(), 1));
    child.kill().expect("our child");
    child.wait().expect("it ends");
}

#[test]
fn mapped_files() {
    let directory = tempdir().expect("a directory");
    let program = directory.path().join("my sleep");
    fs::copy(find_program("sleep").expect("sleep"), &program).expect("a copy");
    let mut command = Command::new(&program);
    command.arg("60");
    let mut child = (0..100)
        .find_map(|_| {
            sleep(Duration::from_millis(5));
            command.spawn().ok()
        })
        .expect("it starts");
    let mapped = |path: &Path| {
        has_mapped(child.id(), path)
            .expect("readable")
            .expect("running")
    };
    wait_for("exec", || mapped(&program));
    assert!(!mapped(Path::new("/bin/sh")));
    assert!(!mapped(&directory.path().join("missing")));
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&program, &link).expect("a link");
    assert!(mapped(&link), "another name for the same file");
    let moved = directory.path().join("moved");
    fs::rename(&program, &moved).expect("renamed");
    assert!(mapped(&moved));
    // A new file under the old name is another one.
    File::create(&program).expect("created");
    assert!(!mapped(&program));
    child.kill().expect("our child");
    child.wait().expect("it ends");
}

#[test]
fn what_may_not_be_read_is_an_error_and_not_absent() {
    // A thread of its own, because the change of user is for one thread only.
    let as_nobody = std::thread::spawn(|| {
        let nobody = rustix::process::Uid::from_raw(65534);
        if crate::is_root() {
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may");
        }
        (io(1), has_mapped(1, Path::new("/")), process(1), status(1))
    });
    let (io, mapped, process, status) = as_nobody.join().expect("no panic");
    assert!(matches!(io, Err(Error::Read { .. })), "{io:?}");
    assert!(matches!(mapped, Err(Error::Read { .. })), "{mapped:?}");
    // These are for everyone, except for the executable.
    assert_eq!(process.expect("readable").expect("init").exe, None);
    assert!(status.expect("readable").is_some());
}
