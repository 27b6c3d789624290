//! Groups of processes, limited at their uplink by root's daemon.

use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bonsai_api::LinkState;
use bonsai_cgroup::Unified;
use bonsai_link::{Handle, Site};

use super::machine::{Machine, run, spawned};
use crate::support::{Place, skip};

/// What is in no class of its own.
const OTHERS: Handle = Handle::of(0xb05a, 2);

/// A part of the hierarchy of version 2, which goes with the test and what is in it.
struct Slice {
    folder: PathBuf,
    path: String,
}

impl Slice {
    fn new(test: &str) -> Option<Self> {
        let unified = match Unified::find() {
            Ok(unified) => unified,
            Err(error) => {
                skip(test, &error.to_string());
                return None;
            }
        };
        let path = format!("/bonsai-test.{}.links", std::process::id());
        let folder = unified.folder(&path);
        if let Err(error) = fs::create_dir(&folder) {
            skip(test, &format!("no control group can be made: {error}"));
            return None;
        }
        Some(Self { folder, path })
    }

    /// Starts a shell in a new group that sends datagrams to the guest without end.
    fn start(&self, machine: &Machine, name: &str) -> Child {
        let folder = self.folder.join(name);
        fs::create_dir(&folder).expect("made");
        let script = "echo 0 > \"$0/cgroup.procs\"; exec 3> /dev/udp/10.9.0.100/9000; \
                      while :; do printf %01400d 0 >&3; done";
        let mut shell = Command::new("bash");
        shell.args(["-c", script]).arg(folder);
        spawned(&machine.host, shell.stderr(Stdio::null()))
    }

    fn stop(&self, mut child: Child, name: &str) {
        child.kill().expect("ended");
        child.wait().expect("ended");
        fs::remove_dir(self.folder.join(name)).expect("nobody is in it");
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        let _ = fs::write(self.folder.join("cgroup.kill"), "1");
        for _ in 0..200 {
            for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
                let _ = fs::remove_dir(entry.path());
            }
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// What has left by `v1` in a class, bytes.
fn sent(machine: &Machine, class: Handle) -> u64 {
    let mut site = Site::open(Some(machine.host.as_fd())).expect("a site");
    let links = site.links().expect("links");
    let v1 = bonsai_link::named(&links, "v1").expect("v1").index;
    let mut bytes = 0;
    site.classes(v1, |of| {
        if let Some(of) = of.filter(|of| of.handle == class) {
            bytes = of.counters.bytes;
        }
    })
    .expect("classes");
    bytes
}

#[test]
fn a_service_is_limited_at_its_uplink_however_often_it_and_the_daemon_restart() {
    let test = "a_service_is_limited_at_its_uplink_however_often_it_and_the_daemon_restart";
    let Some(slice) = Slice::new(test) else {
        return;
    };
    let target = format!("cgroup:{}/db", slice.path);
    let config = format!(
        "[links.v1]\ntx = \"400Mbit/s\"\n[links.\"{target}\"]\ntx = \"4Mbit/s\"\nuplink = \"v1\"\n"
    );
    let Some(mut machine) = Machine::new(test, &config) else {
        return;
    };
    machine.host("ip addr add 10.9.0.1/24 dev v1");
    run(&machine.guest, "ip addr add 10.9.0.100/24 dev eth0");
    run(&machine.guest, "ip link set eth0 up");
    machine.until("it waits", || {
        machine.link(&target).state == LinkState::Waiting
    });
    let before = sent(&machine, OTHERS);
    for _ in 0..10 {
        let sender = slice.start(&machine, "db");
        std::thread::sleep(Duration::from_millis(40));
        slice.stop(sender, "db");
    }
    let sender = slice.start(&machine, "db");
    machine.until("it is limited", || {
        machine.link(&target).state == LinkState::InForce
    });
    machine.until("its traffic is shown", || machine.link(&target).tx > 1000.0);
    let said = machine.say(&["link", "ls", "--limited", "--for", "200ms"]);
    let line = said.out.lines().find(|line| line.contains(&slice.path));
    let line = line.expect("it is listed");
    assert!(line.contains("group") && line.contains("of v1"), "{said:?}");

    // While nobody is there to say who they are, all that come there are held.
    machine.kill();
    let other = slice.start(&machine, "other");
    std::thread::sleep(Duration::from_millis(300));
    let escaped = sent(&machine, OTHERS) - before;
    assert!(escaped < 2000, "{escaped} B escaped");
    machine.start();
    machine.until("others are let go", || {
        sent(&machine, OTHERS) - before > 1_000_000
    });
    slice.stop(other, "other");

    let said = machine.say(&["link", "set", &target, "tx=2Mbit/s"]);
    assert!(said.out.contains("in force"), "{said:?}");
    let classes = machine.host("tc class show dev v1");
    assert!(classes.contains("ceil 2Mbit"), "{classes}");
    machine.until("it is shown", || {
        let share = machine.link(&target).share;
        share.and_then(|share| share.ceiling) == Some(250_000)
    });
    let said = machine.say(&["link", "set", &target, "rx=2Mbit/s"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("receives cannot be limited"), "{said:?}");
    let said = machine.say(&["link", "clear", &target]);
    assert!(said.out.contains("as it was before"), "{said:?}");
    let before = sent(&machine, OTHERS);
    machine.until("it is free", || sent(&machine, OTHERS) - before > 1_000_000);
    slice.stop(sender, "db");
}

#[test]
fn a_group_is_not_limited_by_hand() {
    let place = Place::bare();
    let said = place.say(&["link", "set", "unit:db.service", "tx=1Mbit/s"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.err.contains("only root's daemon limits those"),
        "{said:?}"
    );
}
