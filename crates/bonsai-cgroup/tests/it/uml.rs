//! Tests on a kernel of their own: User Mode Linux is a program, and has the file system of this
//! machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

/// It takes a minute on two slow CPUs.
const PATIENCE: Duration = Duration::from_secs(240);

/// Bytes of a disk that is a file.
const DISK: u64 = 64 << 20;

/// A kernel, and what is run there.
pub(crate) struct Kernel<'a> {
    /// Its memory, as `384M`.
    pub(crate) memory: &'a str,
    /// Whether it has a disk, `/dev/ubda`.
    pub(crate) has_disk: bool,
    /// Lines of a shell that make it ready, of which the last tells whether that was done.
    pub(crate) ready: &'a str,
    /// Which of this program's tests are run.
    pub(crate) tests: &'a str,
}

impl Kernel<'_> {
    /// Runs them, and what they said; all that are run have to pass. Where it does not boot here, what
    /// is on its console instead.
    pub(crate) fn run(&self) -> Result<String, String> {
        let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let own = std::env::current_exe().expect("this test");
        let script = format!(
            "#!/bin/sh\n\
             export PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/mnt\n\
             mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs tmp /mnt\n\
             {ready} && touch {out}.booted\n\
             {own} --test-threads=1 --nocapture {tests} > {out} 2>&1\n\
             halt -f || echo o > /proc/sysrq-trigger\n",
            ready = self.ready,
            own = own.display(),
            tests = self.tests,
            out = path("out").display(),
        );
        let init = path("init");
        fs::write(&init, script).expect("made");
        fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).expect("made");
        let console = fs::File::create(path("console")).expect("made");
        let mut command = Command::new("linux.uml");
        command
            .arg(format!("mem={}", self.memory))
            .args(["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw"])
            .args(["con=null", "con0=null,fd:1", "quiet"])
            .arg(format!("init={}", init.display()));
        if self.has_disk {
            let disk = fs::File::create(path("disk")).expect("made");
            disk.set_len(DISK).expect("room");
            command.arg(format!("ubd0={}", path("disk").display()));
        }
        let mut child = command
            .stdin(Stdio::null())
            .stderr(console.try_clone().expect("a file"))
            .stdout(console)
            .process_group(0)
            .spawn()
            .expect("it can be started");
        let end = Instant::now() + PATIENCE;
        while child.try_wait().expect("ours").is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        // It is made of several processes, which are a group of their own. All may have gone.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let _ = child.wait();
        let read = |name: &str| fs::read_to_string(path(name)).unwrap_or_default();
        if !path("out.booted").exists() {
            return Err(read("console"));
        }
        let said = read("out");
        eprintln!("{said}");
        assert!(said.contains("test result: ok."), "{}", read("console"));
        Ok(said)
    }
}
