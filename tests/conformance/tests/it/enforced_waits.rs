//! Who waits for what in an enforced service: a call that hangs for its file, and nobody else for it; nobody for what is not
//! moved.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use conformance::{finish, skip};

use crate::enforced::can_enforce;
use crate::fixture::{bonsai, compiler};
use crate::probe::PATIENCE;

/// A file whose reads take ten seconds, until the end.
struct Slow {
    nbdfuse: Child,
    folder: tempfile::TempDir,
}

impl Slow {
    fn new(test: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new("nbdfuse");
        command.arg(folder.path().join("a"));
        command.args(["--command", "nbdkit", "-s", "--exit-with-parent"]);
        command.args(["--filter=delay", "memory", "4M", "delay-read=10"]);
        let started = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
        let Ok(nbdfuse) = started else {
            skip(test, "nbdfuse is not installed");
            return None;
        };
        let mut slow = Self { nbdfuse, folder };
        let end = Instant::now() + PATIENCE;
        while !slow.path().exists() {
            if slow.nbdfuse.try_wait().expect("a child").is_some() || Instant::now() > end {
                skip(test, "nbdfuse mounts nothing here (nbdkit, /dev/fuse)");
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(slow)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("a")
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        let umount = || {
            let mut command = Command::new("umount");
            let quiet = command.stderr(Stdio::null()).arg(self.folder.path());
            quiet.status().is_ok_and(|status| status.success())
        };
        // Whoever was ended in a read waits for its answer.
        let end = Instant::now() + PATIENCE;
        while self.path().exists() && !umount() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.nbdfuse.kill();
        let _ = self.nbdfuse.wait();
    }
}

#[test]
fn calls_that_hang_stop_nobody_else() {
    let test = "calls_that_hang_stop_nobody_else";
    let Some(gcc) = compiler(test).filter(|_| can_enforce(test)) else {
        return;
    };
    let Some(slow) = Slow::new(test) else {
        return;
    };
    let made = gcc.make("hanging", &[Path::new("enforced/hanging.c")], &[]);
    let program = made.unwrap_or_else(|error| panic!("{error}"));
    let limits = ["read", "write", "send", "recv"].map(|class| format!("{class}=100MB/s"));
    let mut options = vec!["--enforce"];
    options.extend(limits.iter().flat_map(|limit| ["--limit", limit]));
    let (_, mut command) = bonsai().run(&options, &program, &[slow.path()]);
    let seen = finish(&mut command, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    let expected = "150 of 150 went well while others waited\n";
    assert_eq!(seen.stdout, expected, "{}", seen.stderr);
}

/// What is offered and not taken is not waited for: 3 MB at 1 MB/s, in writes of 8 MiB of which a socket takes a fortieth.
#[test]
fn what_a_socket_does_not_take_is_not_waited_for() {
    let test = "what_a_socket_does_not_take_is_not_waited_for";
    let Some(gcc) = compiler(test).filter(|_| can_enforce(test)) else {
        return;
    };
    let made = gcc.make("impatient", &[Path::new("enforced/impatient.c")], &[]);
    let program = made.unwrap_or_else(|error| panic!("{error}"));
    let (_, mut command) = bonsai().run(&["--enforce", "-l", "send=1MB/s"], &program, &["3"]);
    // For the whole of each, it would take two minutes.
    let seen = finish(&mut command, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        seen.stdout, "3000000 bytes have passed\n",
        "{}",
        seen.stderr
    );
}
