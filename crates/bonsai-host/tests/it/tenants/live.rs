//! Namespaces, interfaces and machines of this machine.

use std::fs::{self, metadata};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bonsai_host::tenants::{Kind, Network, NsId, Roots, TapKind, Tenants, Who, open_netns};
use tempfile::tempdir;

use super::{described, found, refusal};
use crate::{compile, find_program, is_root, skip};

/// A child that is ended.
struct Held(Child);

impl Held {
    /// Returns when it has printed `ready`.
    fn ready(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut held = Self(child.expect("a program"));
        let output = held.0.stdout.take().expect("a pipe");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("text");
        assert_eq!(line, "ready\n");
        held
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn netns(&self) -> NsId {
        netns_of(&format!("/proc/{}/ns/net", self.pid()))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn netns_of(path: &str) -> NsId {
    let stat = metadata(path).expect("a namespace");
    NsId {
        device: stat.dev(),
        inode: stat.ino(),
    }
}

fn look() -> Tenants {
    Tenants::look(&Roots::default()).expect("procfs")
}

/// Why no network namespaces can be made here.
fn no_namespaces() -> Option<&'static str> {
    if !is_root() {
        return Some("only root can make network namespaces");
    }
    let done = Command::new("unshare").args(["-n", "true"]).output();
    match done {
        Ok(done) if done.status.success() => None,
        Ok(_) => Some("no network namespace can be made here"),
        Err(_) => Some("unshare(1) is not installed"),
    }
}

#[test]
fn a_namespace_of_a_process_is_found_and_opened() {
    if let Some(reason) = no_namespaces() {
        return skip("a_namespace_of_a_process_is_found_and_opened", reason);
    }
    let mut command = Command::new("unshare");
    let child = Held::ready(command.args(["-n", "sh", "-c", "echo ready; exec sleep 60"]));
    let (tenants, id) = (look(), child.netns());
    assert_eq!(tenants.own, netns_of("/proc/self/ns/net"));
    let namespace = &tenants.namespaces[&id];
    assert_eq!(
        (namespace.processes, namespace.first),
        (1, Some(child.pid()))
    );
    assert!(tenants.namespaces[&tenants.own].processes >= 2);
    assert_eq!(
        tenants.behind_netns(id).and_then(|who| who.pid),
        Some(child.pid())
    );
    let target = found(&tenants, Who::Pid(child.pid()));
    assert_eq!(target.network().ok(), Some(Network::Namespace(id)));
    let ours = found(&tenants, Who::Pid(std::process::id()));
    let text = ours.network().expect_err("the machine's").to_string();
    assert!(
        text.contains("shares the machine's network namespace"),
        "{text}"
    );

    assert_eq!(tenants.open_netns(id).expect("open").id, id);
    let path = format!("/proc/{}/ns/net", child.pid());
    for name in [path.as_str(), &child.pid().to_string()] {
        assert_eq!(open_netns(&Roots::default(), name).expect("open").id, id);
        assert_eq!(found(&tenants, Who::Netns(name)).behind.netns, Some(id));
    }
    let text = refusal(
        &tenants,
        Who::Netns(&format!("/proc/{}/ns/uts", child.pid())),
    );
    assert!(text.ends_with("is not a network namespace"), "{text}");
    drop(child);
    let gone = tenants.open_netns(id).expect_err("gone").to_string();
    assert_eq!(
        gone,
        format!("the network namespace net:[{}] is gone", id.inode)
    );
}

fn run(program: &str, words: &[&str]) {
    let done = Command::new(program).args(words).output();
    let done = done.unwrap_or_else(|error| panic!("{program}: {error}"));
    let text = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {words:?}: {text}");
}

/// A namespace of ip-netns(8).
struct Named(String);

impl Drop for Named {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

#[test]
fn a_namespace_with_a_name_is_found_without_a_process() {
    let test = "a_namespace_with_a_name_is_found_without_a_process";
    if let Some(reason) = no_namespaces() {
        return skip(test, reason);
    }
    if find_program("ip").is_none() {
        return skip(test, "ip(8) is not installed");
    }
    let pid = std::process::id();
    let names = ["a", "b"].map(|end| Named(format!("bonsai-test-{pid}-{end}")));
    for name in &names {
        let command = ["netns", "add", &name.0];
        let done = Command::new("ip").args(command).output().expect("ip(8)");
        if !done.status.success() {
            return skip(test, "ip(8) may not add a network namespace");
        }
    }
    let [name, other] = names;
    let tenants = look();
    let id = netns_of(&format!("/run/netns/{}", name.0));
    let namespace = &tenants.namespaces[&id];
    assert_eq!((namespace.processes, namespace.names.len()), (0, 1));
    assert_eq!(
        described(tenants.behind_netns(id)),
        format!("namespace {}", name.0)
    );
    assert_eq!(tenants.open_netns(id).expect("open").id, id);
    let target = found(&tenants, Who::Netns(&name.0));
    assert_eq!(target.network().ok(), Some(Network::Namespace(id)));
    // Another namespace in its place is not taken for it.
    let [path, others] = [&name, &other].map(|name| format!("/run/netns/{}", name.0));
    run("umount", &[&path]);
    run("mount", &["--bind", &others, &path]);
    let text = tenants.open_netns(id).expect_err("gone").to_string();
    assert_eq!(
        text,
        format!("the network namespace net:[{}] is gone", id.inode)
    );
    // What stays of a name when only its mount goes is no namespace.
    run("umount", &[&path]);
    assert!(fs::exists(&path).is_ok_and(|exists| exists));
    let tenants = look();
    assert!(
        !tenants
            .namespaces
            .values()
            .any(|one| one.names.iter().any(|(named, _)| *named == name.0))
    );
    let text = refusal(&tenants, Who::Netns(&name.0));
    assert!(text.ends_with("is not a network namespace"), "{text}");
}

/// Makes a TAP with two queues in a new namespace, and goes back to the old one if it is told so.
const HOLDER: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
static int queue(void) {
    struct ifreq request = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_MULTI_QUEUE };
    strcpy(request.ifr_name, "bonsaitest0");
    int tun = open("/dev/net/tun", O_RDWR);
    return tun >= 0 && ioctl(tun, TUNSETIFF, &request) == 0;
}
int main(int count) {
    int old = open("/proc/self/ns/net", O_RDONLY);
    int done = old >= 0 && unshare(CLONE_NEWNET) == 0 && queue() && queue();
    if (done && count > 1) done = setns(old, CLONE_NEWNET) == 0;
    puts(done ? "ready" : "no TAP can be made here");
    fflush(stdout);
    while (done) pause();
    return 1;
}
"#;

#[test]
fn a_tap_is_known_by_who_holds_it_and_by_where_it_is() {
    let test = "a_tap_is_known_by_who_holds_it_and_by_where_it_is";
    if let Some(reason) = no_namespaces() {
        return skip(test, reason);
    }
    if !fs::exists("/dev/net/tun").is_ok_and(|exists| exists) {
        return skip(test, "there is no /dev/net/tun");
    }
    let directory = tempdir().expect("a directory");
    let program = match compile(directory.path(), HOLDER, &[]) {
        Ok(program) => program,
        Err(reason) => return skip(test, &reason),
    };
    let inside = Held::ready(&mut Command::new(&program));
    let back = Held::ready(Command::new(&program).arg("back"));
    let tenants = look();
    let held = |child: &Held| {
        let taps = tenants.taps.iter().filter(|tap| tap.pid == child.pid());
        let taps: Vec<_> = taps.collect();
        assert_eq!(taps.len(), 1, "{taps:?}");
        assert_eq!(
            (taps[0].name.as_deref(), taps[0].queues),
            (Some("bonsaitest0"), 2)
        );
        assert_eq!((taps[0].kind, taps[0].netns_is_exact), (TapKind::Tap, true));
        taps[0].netns.expect("known")
    };
    assert_eq!(held(&inside), inside.netns());
    let behind = |netns| {
        tenants
            .behind_tap("bonsaitest0", netns)
            .and_then(|who| who.pid)
    };
    assert_eq!(behind(inside.netns()), Some(inside.pid()));
    // The other process is in our namespace again; its interface is not, and has no other way in.
    let netns = held(&back);
    assert_eq!(back.netns(), tenants.own);
    assert!(netns != tenants.own && netns != inside.netns());
    assert_eq!(
        (behind(netns), behind(tenants.own)),
        (Some(back.pid()), None)
    );
    assert_eq!(tenants.namespaces[&netns].processes, 0);
    let without = Tenants::look_without_taps(&Roots::default()).expect("procfs");
    assert!(without.taps.is_empty() && without.processes.contains_key(&back.pid()));
}

#[test]
fn a_machine_of_qemu_is_known_by_its_name_and_its_tap() {
    let test = "a_machine_of_qemu_is_known_by_its_name_and_its_tap";
    if let Some(reason) = no_namespaces() {
        return skip(test, reason);
    }
    if find_program("qemu-system-x86_64").is_none() {
        return skip(test, "qemu-system-x86_64 is not installed");
    }
    let name = format!("bonsai,test-{}", std::process::id());
    let mut command = Command::new("unshare");
    command.args([
        "-n",
        "qemu-system-x86_64",
        "-S",
        "-display",
        "none",
        "-machine",
        "none",
    ]);
    command.args([
        "-name",
        &format!("guest={},debug-threads=on", name.replace(',', ",,")),
    ]);
    command.args([
        "-netdev",
        "tap,id=n0,ifname=bonsaitest1,script=no,downscript=no",
    ]);
    command
        .args(["-monitor", "none", "-serial", "none"])
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let mut machine = Held(command.spawn().expect("unshare(1)"));
    let start = Instant::now();
    let (tenants, target) = loop {
        let tenants = look();
        let target = tenants.find(Who::Machine(&name));
        if let Some(target) = target.ok().filter(|target| !target.taps.is_empty()) {
            break (tenants, target);
        }
        if machine.0.try_wait().is_ok_and(|ended| ended.is_some()) {
            return skip(test, "qemu-system-x86_64 cannot make a TAP here");
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "QEMU does not start"
        );
        sleep(Duration::from_millis(50));
    };
    let pid = machine.pid();
    assert_eq!(
        target.behind.describe(),
        format!("machine {name} (qemu, PID {pid})")
    );
    let Ok(Network::Taps(taps)) = target.network() else {
        panic!("{:?}", target.network());
    };
    assert_eq!(
        (taps.len(), taps[0].kind, taps[0].netns),
        (1, TapKind::Tap, Some(machine.netns()))
    );
    let behind = tenants
        .behind_tap("bonsaitest1", machine.netns())
        .expect("somebody");
    assert!(matches!(behind.kind, Kind::Machine { .. }) && behind.pid == Some(pid));
}
