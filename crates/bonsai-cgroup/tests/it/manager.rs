//! A systemd of our own: process 1 of namespaces, with units of a folder and nothing else of this
//! machine's, in control groups of its own, and all files read-only.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bonsai_cgroup::{Controller, Device, Hierarchies, Version};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::support::{SPARE_DISK, is_installed, is_root, skip};

const PATIENCE: Duration = Duration::from_secs(60);
/// Set where process 1 is that systemd.
const WITHIN: &str = "BONSAI_TEST_WITHIN_SYSTEMD";
/// What is said there at the end.
pub(crate) const ALL_OF_IT: &str = "all of it was made within systemd";
const SYSTEMD: &str = "/lib/systemd/systemd";
const MOUNTED: &str = "/sys/fs/cgroup";

/// The disk whose limits are changed, and that others have limited already.
pub(crate) fn device() -> Option<Device> {
    match std::env::var(SPARE_DISK) {
        Ok(name) => Device::find(&name).ok(),
        Err(_) => Device::disks().ok()?.into_iter().next(),
    }
}

/// Groups of its own in all hierarchies, which are removed at the end.
struct Groups(Vec<std::path::PathBuf>);

impl Groups {
    fn new() -> std::io::Result<Self> {
        let mut groups = Self(Vec::new());
        let all = Hierarchies::read().expect("/proc is there").all;
        for hierarchy in all {
            let name = format!("bonsai-test.{}.systemd", std::process::id());
            let folder = hierarchy.mount.join(name);
            // What is mounted without rights to it is not needed.
            if fs::create_dir(&folder).is_ok() {
                if let Ok(parent) = fs::read_to_string(hierarchy.mount.join("cpuset.cpus")) {
                    let _ = fs::write(folder.join("cpuset.cpus"), parent);
                    let mems = fs::read_to_string(hierarchy.mount.join("cpuset.mems"))?;
                    let _ = fs::write(folder.join("cpuset.mems"), mems);
                }
                groups.0.push(folder);
            }
        }
        Ok(groups)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for folder in &self.0 {
            for _ in 0..100 {
                let mut find = Command::new("find");
                find.arg(folder).args(["-depth", "-type", "d"]);
                find.args(["-exec", "rmdir", "{}", ";"]);
                let _ = find.stderr(Stdio::null()).status();
                if !folder.exists() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Mounts what systemd finds, and becomes it. Without nosuid and the like: nobody else is in it.
fn script(hierarchies: &Hierarchies, work: &Path) -> String {
    let mut text = format!(
        "set -e\nmount --make-rprivate /\nmount -t tmpfs tmpfs /run\nmkdir /run/lock\n\
         for d in /lib/systemd/system-generators /lib/systemd/system-environment-generators \
         /etc/systemd; do [ -d $d ] && mount -t tmpfs tmpfs $d; done\n\
         mount --bind {work} {work}\numount -l {MOUNTED}\n",
        work = work.display()
    );
    let is_v2_only = hierarchies.all.iter().all(|one| one.version == Version::V2);
    if is_v2_only {
        text += &format!("mount -t cgroup2 none {MOUNTED}\n");
    } else {
        text += &format!("mount -t tmpfs tmpfs {MOUNTED}\n");
        text += &format!("mkdir {MOUNTED}/systemd {MOUNTED}/unified\n");
        text += &format!("mount -t cgroup -o none,name=systemd none {MOUNTED}/systemd\n");
        text += &format!("mount -t cgroup2 none {MOUNTED}/unified\n");
        for name in ["cpu", "blkio"] {
            text += &format!("mkdir {MOUNTED}/{name}\n");
            text += &format!("mount -t cgroup -o {name} none {MOUNTED}/{name}\n");
        }
    }
    text += &format!(
        "touch {work}/console\nmount --bind {work}/console /dev/console\n\
         mount -o remount,bind,ro /\n\
         exec env -i container=bonsai SYSTEMD_UNIT_PATH={work}/units:/run/systemd/system.control \
         PATH=/usr/sbin:/usr/bin:/sbin:/bin {SYSTEMD} --system --unit=bonsai-test.target \
         --log-target=console --show-status=0\n",
        work = work.display()
    );
    text
}

fn units(work: &Path, device: &Device, within: &str) {
    let folder = work.join("units");
    fs::create_dir(&folder).expect("made");
    let unit = |name: &str, text: &str| fs::write(folder.join(name), text).expect("made");
    let plain = "[Unit]\nDefaultDependencies=no\n";
    unit(
        "bonsai-test.target",
        &format!("{plain}Wants=db.service bonsai-test.service\n"),
    );
    unit(
        "dbus.socket",
        &format!("{plain}[Socket]\nListenStream=/run/dbus/system_bus_socket\n"),
    );
    unit(
        "dbus.service",
        &format!(
            "{plain}Requires=dbus.socket\n[Service]\nType=notify\nNotifyAccess=main\n\
             ExecStart=/usr/bin/dbus-daemon --system --address=systemd: --nofork --nopidfile \
             --systemd-activation\n"
        ),
    );
    let file = device.file();
    unit(
        "db.service",
        &format!(
            "{plain}[Service]\nExecStart=/bin/sleep 1000\nCPUQuota=70%\n\
             IOWriteBandwidthMax={} 9000000\n",
            file.display()
        ),
    );
    let spare = std::env::var(SPARE_DISK);
    let spare = spare.map(|name| format!("Environment={SPARE_DISK}={name}\n"));
    unit(
        "bonsai-test.service",
        &format!(
            "{plain}Requires=dbus.service\nAfter=db.service dbus.service\nSuccessAction=exit-force\n\
             FailureAction=exit-force\n[Service]\nType=oneshot\nEnvironment=TMPDIR=/run {WITHIN}=1\n{spare}\
             ExecStart={own} --exact {within} --nocapture\n\
             StandardOutput=append:{work}/out\nStandardError=append:{work}/out\n",
            spare = spare.unwrap_or_default(),
            own = std::env::current_exe().expect("this test").display(),
            work = work.display(),
        ),
    );
}

/// Whether process 1 is that systemd.
pub(crate) fn is_within() -> bool {
    std::env::var_os(WITHIN).is_some()
}

/// Runs a part of the test `name`, which is a test of its own, where process 1 is a systemd with a
/// unit `db.service`. It says [`ALL_OF_IT`] at its end.
pub(crate) fn within(name: &str, part: &str) {
    if !is_root() || !Path::new(SYSTEMD).exists() || !is_installed("dbus-daemon") {
        return skip(name, "this takes root, systemd and dbus-daemon");
    }
    let Some(device) = device() else {
        return skip(name, "this machine has no disk");
    };
    let hierarchies = Hierarchies::read().expect("/proc is there");
    if hierarchies.with(Controller::Io).is_err() || hierarchies.with(Controller::Cpu).is_err() {
        return skip(name, "no controllers are mounted");
    }
    let work = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    units(work.path(), &device, part);
    let script = script(&hierarchies, work.path());
    fs::write(work.path().join("script"), script).expect("made");
    let groups = Groups::new().expect("readable");
    // Whoever stays outside of the namespace stays out of its groups: with version 2 a group with
    // processes of its own gives no controllers to those below it.
    let enter = "for g in \"$@\"; do echo 0 > \"$g\"/cgroup.procs; done; exec unshare -C sh \"$0\"";
    let mut command = Command::new("unshare");
    command
        .args(["-mpfuni", "--kill-child", "--mount-proc", "sh", "-c", enter])
        .arg(work.path().join("script"))
        .args(&groups.0)
        .stdin(Stdio::null())
        .stdout(fs::File::create(work.path().join("err")).expect("made"))
        .stderr(fs::File::create(work.path().join("err")).expect("made"))
        .process_group(0);
    let mut child = command.spawn().expect("unshare(1)");
    let end = Instant::now() + PATIENCE;
    while child.try_wait().expect("ours").is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    // With the one above it, process 1 of the namespace ends, and all that is in it.
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let _ = kill_process_group(group.expect("a number"), Signal::KILL);
    let _ = child.wait();
    drop(groups);
    let read = |name: &str| fs::read_to_string(work.path().join(name)).unwrap_or_default();
    let said = read("out");
    if said.is_empty() {
        let why = format!("{}{}", read("err"), read("console"));
        return skip(name, &format!("systemd does not start here: {why}"));
    }
    assert!(said.contains(ALL_OF_IT), "{said}");
}
