//! The tests of groups on a kernel of their own, which has version 2 with all controllers: User Mode
//! Linux is a program, and has the file system of this machine and a disk that is a file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::support::{SPARE_DISK, is_installed, is_root, skip};

const PATIENCE: Duration = Duration::from_secs(240);

#[test]
fn groups_are_services_on_a_kernel_with_version_two() {
    let name = "groups_are_services_on_a_kernel_with_version_two";
    if std::env::var_os(SPARE_DISK).is_some() {
        return;
    }
    if !is_installed("linux.uml") {
        return skip(name, "User Mode Linux is not installed (linux.uml)");
    }
    if !is_root() {
        return skip(name, "only root sees all of its files in it");
    }
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let disk = fs::File::create(path("disk")).expect("made");
    disk.set_len(64 << 20).expect("room");
    let own = std::env::current_exe().expect("this test");
    let script = format!(
        "#!/bin/sh\n\
         export PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/mnt {SPARE_DISK}=/dev/ubda\n\
         mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev\n\
         mount -t tmpfs tmp /mnt; mkdir /dev/shm; mount -t tmpfs tmp /dev/shm\n\
         mount -t cgroup2 none /sys/fs/cgroup\n\
         echo +io +cpu +memory > /sys/fs/cgroup/cgroup.subtree_control && touch {out}.booted\n\
         {own} --test-threads=1 --nocapture groups:: units:: whose::a_machine > {out} 2>&1\n\
         halt -f || echo o > /proc/sysrq-trigger\n",
        own = own.display(),
        out = path("out").display(),
    );
    let init = path("init");
    fs::write(&init, script).expect("made");
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).expect("made");
    let console = fs::File::create(path("console")).expect("made");
    let mut child = Command::new("linux.uml")
        .args(["mem=384M", "root=/dev/root", "rootfstype=hostfs"])
        .args(["rootflags=/", "rw", "con=null", "con0=null,fd:1", "quiet"])
        .arg(format!("init={}", init.display()))
        .arg(format!("ubd0={}", path("disk").display()))
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
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let _ = kill_process_group(group.expect("a number"), Signal::KILL);
    let _ = child.wait();
    let read = |name: &str| fs::read_to_string(path(name)).unwrap_or_default();
    if !path("out.booted").exists() {
        return skip(name, &format!("it does not boot here: {}", read("console")));
    }
    let said = read("out");
    eprintln!("{said}");
    assert!(said.contains("test result: ok."), "{}", read("console"));
    assert!(!said.contains("SKIP: a_disk_limit"), "nothing was limited");
}
