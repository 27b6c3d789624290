//! Those tests of this crate that ask for no speed, on a kernel of their own, which has other queueing
//! disciplines: User Mode Linux is a program, and has the file system of this machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::room::{alone, skip};

/// It takes a minute on two slow CPUs.
const PATIENCE: Duration = Duration::from_secs(240);

/// Set within it.
const INSIDE: &str = "BONSAI_LINK_MACHINE";

/// Where Debian's package has the modules of its kernel, and those that are needed, in order.
const MODULES: &str = "/usr/lib/uml/modules/*/kernel";
const NEEDED: [&str; 14] = [
    "lib/crc-ccitt",
    "net/ipv6/ipv6",
    "net/llc/llc",
    "net/802/stp",
    "net/bridge/bridge",
    "drivers/net/veth",
    "drivers/net/ifb",
    "net/sched/sch_ingress",
    "net/sched/cls_bpf",
    "net/sched/cls_u32",
    "net/sched/act_mirred",
    "net/sched/sch_htb",
    "net/sched/sch_tbf",
    "net/sched/sch_fq_codel",
];

#[test]
fn all_of_it_holds_on_a_kernel_with_other_queues() {
    let name = "all_of_it_holds_on_a_kernel_with_other_queues";
    if std::env::var_os(INSIDE).is_some() {
        return;
    }
    for tool in ["linux.uml", "busybox"] {
        if Command::new(tool).arg("--help").output().is_err() {
            return skip(
                name,
                &format!("{tool} is not installed (user-mode-linux, busybox-static)"),
            );
        }
    }
    if !rustix::process::geteuid().is_root() {
        return skip(name, "only root sees all of its files in it");
    }
    let _alone = alone();
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let own = std::env::current_exe().expect("this test");
    let script = format!(
        "#!/bin/sh\n\
         export PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/mnt {INSIDE}=1\n\
         mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs tmp /mnt; ip link set lo up\n\
         for of in {needed}; do busybox insmod {MODULES}/$of.ko; done && touch {out}.booted\n\
         {own} --test-threads=1 --nocapture faults:: queues:: without:: > {out} 2>&1\n\
         halt -f || echo o > /proc/sysrq-trigger\n",
        needed = NEEDED.join(" "),
        own = own.display(),
        out = path("out").display(),
    );
    let init = path("init");
    fs::write(&init, script).expect("made");
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).expect("made");
    let console = fs::File::create(path("console")).expect("made");
    let mut child = Command::new("linux.uml")
        .args(["mem=256M", "root=/dev/root", "rootfstype=hostfs"])
        .args(["rootflags=/", "rw", "con=null", "con0=null,fd:1", "quiet"])
        .arg(format!("init={}", init.display()))
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
        return skip(name, &format!("it does not boot here: {}", read("console")));
    }
    let said = read("out");
    eprintln!("{said}");
    assert!(said.contains("test result: ok."), "{}", read("console"));
    assert!(!said.contains("SKIP:"), "not all of it was run: {said}");
}
