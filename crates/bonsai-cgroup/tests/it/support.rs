//! Groups and processes of a test.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bonsai_cgroup::{Controller, Hierarchies, Target};

/// Set where the tests run on a kernel of their own: a block device that may be written over.
pub(crate) const SPARE_DISK: &str = "BONSAI_TEST_SPARE_DISK";

/// Says on standard error, and in the file that `BONSAI_SKIP_LOG` names, that a test was not made.
pub(crate) fn skip(test: &str, reason: &str) {
    let line = format!("SKIP: {test}: {reason}\n");
    eprint!("{line}");
    if let Some(log) = std::env::var_os("BONSAI_SKIP_LOG") {
        let file = OpenOptions::new().append(true).create(true).open(log);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.expect("the file that BONSAI_SKIP_LOG names can be appended to");
    }
}

/// A group of a test's own. It is removed at the end, and what is in it ended before.
pub(crate) struct Group {
    pub(crate) path: String,
    pub(crate) folder: PathBuf,
    pub(crate) hierarchies: Hierarchies,
}

impl Group {
    /// None, and why it is skipped, where no group can be made.
    pub(crate) fn new(test: &str, controller: Controller) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let hierarchies = Hierarchies::read().expect("/proc is there");
        let Ok(hierarchy) = hierarchies.with(controller) else {
            skip(test, "no hierarchy with the controller is mounted");
            return None;
        };
        let (pid, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let name = format!("bonsai-test.{pid}.{next}");
        let path = format!("{}/{name}", hierarchy.root.trim_end_matches('/'));
        let folder = hierarchy.mount.join(&name);
        let probe = match controller {
            Controller::Io => ["io.max", "blkio.throttle.read_bps_device"],
            Controller::Cpu => ["cpu.max", "cpu.cfs_quota_us"],
        };
        if let Err(error) = fs::create_dir(&folder) {
            skip(test, &format!("no control group can be made: {error}"));
            return None;
        }
        let group = Self {
            path,
            folder,
            hierarchies,
        };
        if !probe.iter().any(|name| group.folder.join(name).exists()) {
            skip(test, "the controller is not enabled for groups here");
            return None;
        }
        Some(group)
    }

    pub(crate) fn target(&self) -> Target {
        Target::Cgroup(self.path.clone())
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).expect(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.join(name), text).expect(name);
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.folder.join(name).exists()
    }

    /// A command whose process is in the group before it begins.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("sh");
        let script = "echo 0 > \"$0\"/cgroup.procs && exec \"$@\"";
        command.args(["-c", script]).arg(&self.folder).arg(program);
        command
    }

    pub(crate) fn remove(&self) {
        for _ in 0..200 {
            if fs::remove_dir(&self.folder).is_ok() || !self.folder.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        eprintln!("{}: cannot be removed", self.folder.display());
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Python with threads that sleep, which does what it is told.
pub(crate) struct Python {
    pub(crate) child: Child,
    answers: BufReader<ChildStdout>,
}

const PROGRAM: &str = r#"
import os, sys, threading, time
def start():
    threading.Thread(target=lambda: time.sleep(1000), daemon=True).start()
os.nice(5)
start(); start()
print("ready", flush=True)
for line in sys.stdin:
    if line == "thread\n":
        start()
        print("started", flush=True)
    if line == "fork\n":
        child = os.fork()
        if child == 0:
            os._exit(os.sched_getscheduler(0))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"#;

impl Python {
    /// None where there is no Python.
    pub(crate) fn start(group: Option<&Group>) -> Option<Self> {
        let mut command = match group {
            Some(group) => group.command("python3"),
            None => Command::new("python3"),
        };
        command.args(["-c", PROGRAM]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().ok()?;
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut python = Self { child, answers };
        (python.answer() == "ready").then_some(python)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn tell(&mut self, word: &str) -> String {
        let input = self.child.stdin.as_mut().expect("a pipe");
        writeln!(input, "{word}").expect("it listens");
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("a pipe");
        line.trim().to_owned()
    }

    /// Policy and nice value of each of its threads.
    pub(crate) fn scheduled(&self) -> Vec<(u32, i32)> {
        let folder = format!("/proc/{}/task", self.pid());
        let mut tids: Vec<PathBuf> = fs::read_dir(folder)
            .expect("it lives")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        tids.sort();
        tids.iter().map(|path| scheduled(path)).collect()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Fields 41 and 19 of `stat` (proc_pid_stat(5)).
fn scheduled(task: &Path) -> (u32, i32) {
    let stat = fs::read_to_string(task.join("stat")).expect("it lives");
    let (_, after) = stat.rsplit_once(')').expect("a name");
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    let nice = fields[16].parse().expect("a number");
    (fields[38].parse().expect("a number"), nice)
}

/// Runs a command to its end, and shows what it said if it failed.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().expect("it can be started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether a program is in PATH.
pub(crate) fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

/// Whether this process may change what belongs to the machine.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
