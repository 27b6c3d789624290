//! Control groups that are services: their disks and CPUs, and what they send by an uplink.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bonsai_api::{Enforced, Resource};
use bonsai_cgroup::{Controller, Device, Hierarchies, Unified};
use bonsai_client::How;
use serde_json::json;

use super::traffic::{Flow, addresses, pair};
use super::{MBIT, change, runs, service, use_of};
use crate::links::machine::{Machine, spawned};
use crate::support::skip;

/// A group that goes at the end, and whatever is in it.
struct Group {
    path: String,
    folders: Vec<PathBuf>,
    inside: Option<Child>,
}

impl Group {
    /// In these hierarchies; `None`, and the reason in the log, where it cannot be made.
    fn new(test: &str, name: &str, mounts: &[PathBuf]) -> Option<Self> {
        let name = format!("bonsai-test.{}.{name}", std::process::id());
        let mut folders: Vec<PathBuf> = mounts.iter().map(|mount| mount.join(&name)).collect();
        folders.dedup();
        let group = Self {
            path: format!("/{name}"),
            folders,
            inside: None,
        };
        for folder in &group.folders {
            if let Err(error) = fs::create_dir(folder) {
                skip(test, &format!("no control group can be made: {error}"));
                return None;
            }
        }
        Some(group)
    }

    /// A shell that goes into it first.
    fn shell(&self, script: &str) -> Command {
        let enter = self.folders.iter().map(|folder| {
            let file = folder.join("cgroup.procs");
            format!("echo 0 > '{}' && ", file.display())
        });
        let mut shell = Command::new("bash");
        shell.args(["-c", &(enter.collect::<String>() + script)]);
        shell
    }

    /// What the first file of that name has, of one version or the other.
    fn reads(&self, names: [&str; 2]) -> Option<String> {
        let mut files = self
            .folders
            .iter()
            .flat_map(|folder| names.map(|name| folder.join(name)));
        files.find_map(|file| fs::read_to_string(file).ok())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(mut child) = self.inside.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let end = Instant::now() + Duration::from_secs(5);
        for folder in &self.folders {
            while fs::remove_dir(folder).is_err() && folder.exists() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

const READS: [&str; 2] = ["io.max", "blkio.throttle.read_bps_device"];
const WEIGHT: [&str; 2] = ["cpu.weight", "cpu.shares"];

#[test]
fn a_control_group_has_its_part_of_disks_and_cpus_for_as_long_as_it_is_a_service() {
    let name = "a_control_group_has_its_part_of_disks_and_cpus_for_as_long_as_it_is_a_service";
    let Some(mut machine) = Machine::new(name, "") else {
        return;
    };
    let hierarchies = Hierarchies::read().expect("/proc");
    let mount = |of| hierarchies.with(of).ok().map(|of| of.mount.clone());
    let (Some(io), Some(cpu)) = (mount(Controller::Io), mount(Controller::Cpu)) else {
        return skip(name, "a hierarchy with disks or CPUs is not mounted");
    };
    let Some(mut group) = Group::new(name, "parts", &[io, cpu]) else {
        return;
    };
    let (Some(before), Some(shares)) = (group.reads(READS), group.reads(WEIGHT)) else {
        return skip(name, "the controllers are not enabled for groups here");
    };
    if Device::disks().map_or(true, |disks| disks.is_empty()) {
        return skip(name, "there is no disk that could be limited");
    }
    let mut sleeper = group.shell("exec sleep 60");
    group.inside = Some(sleeper.spawn().expect("started"));
    let settings = json!({
        "target": format!("cgroup:{}", group.path),
        "read": {"max": "5MB/s"},
        "cpu": {"weight": 200},
    });
    change(&machine, "db", &settings);
    runs(&machine, "db");
    let is_limited = |group: &Group| {
        let reads = group.reads(READS).is_some_and(|of| of.contains("5000000"));
        reads && group.reads(WEIGHT) != Some(shares.clone())
    };
    machine.until("its part", || is_limited(&group));
    let db = service(&machine, "db");
    let resources: Vec<Resource> = db.resources.iter().map(|of| of.resource).collect();
    assert_eq!(resources, [Resource::Read, Resource::Write]);
    let read = use_of(&db, Resource::Read);
    assert_eq!(read.decision.enforced, Enforced::Limit, "{db:?}");
    assert_eq!(db.problems, Vec::<String>::new());
    let inside = group.inside.as_ref().map(Child::id);
    machine.until("its process", || service(&machine, "db").keeper == inside);
    // A killed daemon leaves it, and the next one goes on.
    machine.kill();
    assert!(is_limited(&group));
    machine.start();
    runs(&machine, "db");
    change(&machine, "db", &json!({"read": {"max": "6MB/s"}}));
    machine.until("what was changed", || {
        group.reads(READS).is_some_and(|of| of.contains("6000000"))
    });
    // Then it is as it was.
    let client = machine.client();
    let gone = client.change_config(&json!({"services": {"db": null}}), &How::default());
    gone.expect("changed");
    machine.until("it is as it was", || {
        group.reads(READS).as_ref() == Some(&before)
            && group.reads(WEIGHT).as_ref() == Some(&shares)
    });
}

#[test]
fn what_a_control_group_sends_has_its_class_on_the_uplink() {
    let name = "what_a_control_group_sends_has_its_class_on_the_uplink";
    let Some(machine) = Machine::new(name, "[links.out]\ntx = \"40Mbit/s\"\n") else {
        return;
    };
    let unified = match Unified::find() {
        Ok(unified) => unified.folder("/"),
        Err(error) => return skip(name, &error.to_string()),
    };
    let Some(mut group) = Group::new(name, "sends", &[unified]) else {
        return;
    };
    let far = bonsai_link::namespace::make().expect("a namespace");
    pair(&machine.host, &far, "out", "eth0");
    addresses(&machine.host, "out", "10.9.9.1/24");
    addresses(&far, "eth0", "10.9.9.2/24");
    change(
        &machine,
        "db",
        &json!({
            "target": format!("cgroup:{}", group.path),
            "uplink": "out",
            "send": {"max": "8Mbit/s"},
        }),
    );
    runs(&machine, "db");
    machine.until("its class", || {
        let shown = machine.host("tc class show dev out");
        shown.contains("ceil 8Mbit")
    });
    let flow = Flow::arriving(&far, "10.9.9.2:9000");
    let mut shell = group.shell(
        "exec 3> /dev/udp/10.9.9.2/9000; while :; do printf %01200d 0 >&3; done 2> /dev/null",
    );
    group.inside = Some(spawned(&machine.host, shell.stderr(Stdio::null())));
    machine.until("it sends", || flow.arrived() > 0);
    let (start, before) = (Instant::now(), flow.arrived());
    std::thread::sleep(Duration::from_secs(2));
    let (came, time) = (flow.arrived() - before, start.elapsed().as_secs_f64());
    assert!(
        came as f64 <= time * 8.0 * MBIT + 100_000.0,
        "{came} in {time} s"
    );
    machine.until("what it sends is counted", || {
        let send = use_of(&service(&machine, "db"), Resource::Send);
        let rate = send.got / MBIT;
        send.decision.enforced == Enforced::Uplink && (5.0..9.0).contains(&rate)
    });
}
