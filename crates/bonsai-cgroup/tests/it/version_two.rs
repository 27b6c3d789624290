//! Tests on a kernel of their own, which has version 2 with all controllers, and a disk to spare.

use crate::support::{SPARE_DISK, is_installed, is_root, skip};
use crate::uml::Kernel;

/// Runs `tests` there for the test `name`. `unlimited` is what is said where nothing could be limited.
pub(crate) fn run(name: &str, tests: &str, unlimited: &str) {
    if std::env::var_os(SPARE_DISK).is_some() {
        return;
    }
    if !is_installed("linux.uml") {
        return skip(name, "User Mode Linux is not installed (linux.uml)");
    }
    if !is_root() {
        return skip(name, "only root sees all of its files in it");
    }
    let ready = format!(
        "export {SPARE_DISK}=/dev/ubda; mount -t devtmpfs dev /dev\n\
         mkdir /dev/shm; mount -t tmpfs tmp /dev/shm; mount -t cgroup2 none /sys/fs/cgroup\n\
         echo +io +cpu +memory > /sys/fs/cgroup/cgroup.subtree_control"
    );
    let kernel = Kernel {
        memory: "384M",
        has_disk: true,
        ready: &ready,
        tests,
    };
    match kernel.run() {
        Ok(said) => assert!(!said.contains(unlimited), "nothing was limited"),
        Err(console) => skip(name, &format!("it does not boot here: {console}")),
    }
}
