//! The tests of this crate on a kernel of their own, which has version 2 with all controllers.

use crate::support::{SPARE_DISK, is_installed, is_root, skip};
use crate::uml::Kernel;

#[test]
fn all_of_it_holds_on_a_kernel_with_version_two() {
    let name = "all_of_it_holds_on_a_kernel_with_version_two";
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
        tests: "disk:: cpu:: systemd::",
    };
    match kernel.run() {
        Ok(said) => assert!(!said.contains("SKIP: a_limit_is"), "nothing was limited"),
        Err(console) => skip(name, &format!("it does not boot here: {console}")),
    }
}
