//! What others do at an interface that is limited: a limit that does not hold is never said to be in force.

use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bonsai_api::LinkState;
use bonsai_client::How;
use bonsai_link::namespace;
use serde_json::json;

use super::machine::{Machine, run, spawned};
use crate::support::{Said, skip};

/// A filter that accepts everything, as the newest of those that are asked first.
const ACCEPT: &str = "tc filter add dev v1 ingress pref 1 bpf bytecode '1,6 0 0 0,' direct-action";

fn shell(machine: &Machine, line: &str) {
    let output = namespace::inside(machine.host.as_fd(), || {
        Command::new("sh").args(["-c", line]).output()
    });
    let output = output.expect("entered").expect("a shell");
    assert!(output.status.success(), "{line}: {output:?}");
}

#[test]
fn a_limit_behind_a_filter_of_others_is_a_problem_with_its_name() {
    let name = "a_limit_behind_a_filter_of_others_is_a_problem_with_its_name";
    let Some(machine) = Machine::new(name, "") else {
        return;
    };
    machine.host("tc qdisc add dev v1 clsact");
    machine.host("tc filter add dev v1 ingress pref 1 u32 match u32 0 0 classid 1:1");
    let client = machine.client();
    let changed = client.change_link("v1", &json!({"rx": "8Mbit/s"}), &How::default());
    let changed = changed.expect("changed");
    let why = changed.why.unwrap_or_default();
    assert!(
        !changed.in_force && why.contains("u32 with priority 1"),
        "{why}"
    );
    // Without it the limit holds at once, and comes first.
    machine.host("tc filter del dev v1 ingress pref 1");
    let in_force = || machine.link("v1").state == LinkState::InForce;
    machine.until("it is in force", in_force);
    machine.until("it is counted", || {
        machine
            .metrics()
            .contains("bonsai_link_in_force{target=\"v1\"} 1.0")
    });

    // One that comes later, ahead of ours.
    shell(&machine, ACCEPT);
    machine.until("it is named", || {
        let link = machine.link("v1");
        let problem = link.problem.unwrap_or_default();
        link.state == LinkState::Problem && problem.contains("the filter bpf")
    });
    machine.until("it is counted", || {
        machine
            .metrics()
            .contains("bonsai_link_in_force{target=\"v1\"} 0.0")
    });
    let said = machine.say(&["link", "set", "v1", "rx=9Mbit/s"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(
        said.out.contains("v1: not in force: the filter bpf"),
        "{said:?}"
    );
    machine.host("tc filter del dev v1 ingress pref 1 handle 1 bpf");
    machine.until("it is in force again", in_force);
}

#[test]
fn a_filter_of_others_is_said_within_a_second() {
    let name = "a_filter_of_others_is_said_within_a_second";
    let Some(machine) = Machine::new(name, "[links.v1]\nrx = \"8Mbit/s\"\n") else {
        return;
    };
    let in_force = || machine.link("v1").state == LinkState::InForce;
    let is_named = || {
        let problem = machine.link("v1").problem.unwrap_or_default();
        problem.contains("the filter bpf")
    };
    let mut took = Vec::new();
    for _ in 0..5 {
        machine.until("it is in force", in_force);
        shell(&machine, ACCEPT);
        let start = Instant::now();
        machine.until("it is named", is_named);
        took.push(start.elapsed());
        machine.host("tc filter del dev v1 ingress pref 1 handle 1 bpf");
    }
    println!("named after {took:?}");
    took.sort();
    // Most of them: a machine that does something else for a second is no fault of what is tested.
    assert!(took[2] < Duration::from_secs(1), "{took:?}");
}

#[test]
fn what_goes_around_a_limit_is_a_problem_and_an_alarm() {
    let name = "what_goes_around_a_limit_is_a_problem_and_an_alarm";
    let Some(machine) = Machine::new(name, "[links.v1]\ntx = \"8Mbit/s\"\n") else {
        return;
    };
    let python = "/usr/bin/python3";
    if Command::new(python).arg("-V").output().is_err() {
        return skip(name, "python3 is not installed: it has packet sockets");
    }
    run(&machine.guest, "ip link set eth0 up");
    let in_force = || machine.link("v1").state == LinkState::InForce;
    machine.until("it is in force", in_force);
    // SOL_PACKET, PACKET_QDISC_BYPASS: a megabyte each tenth of a second, until it is ended.
    let script = "import socket, time\n\
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\n\
        s.setsockopt(263, 20, 1)\n\
        s.bind(('v1', 0))\n\
        end = time.time() + 30\n\
        while time.time() < end:\n  \
          for i in range(100): s.send(bytes(1400))\n  \
          time.sleep(0.01)\n";
    let mut sender = Command::new(python);
    sender.args(["-c", script]).stderr(Stdio::null());
    let mut sender = spawned(&machine.host, &mut sender);
    machine.until("it is said", || {
        let link = machine.link("v1");
        let problem = link.problem.unwrap_or_default();
        link.state == LinkState::Problem && problem.contains("went around its limit")
    });
    let _ = sender.kill();
    sender.wait().expect("ended");
    let audit = machine.client().audit(None, None, 20).expect("the trail");
    let alarm = audit
        .entries
        .iter()
        .find(|entry| entry.reason.contains("went around"));
    assert!(alarm.is_some(), "{:?}", audit.entries);
    machine.until("it is over", in_force);
}

#[test]
fn one_that_is_fought_over_keeps_no_other_from_its_limit() {
    let name = "one_that_is_fought_over_keeps_no_other_from_its_limit";
    let Some(machine) = Machine::new(name, "[links.v1]\ntx = \"8Mbit/s\"\n") else {
        return;
    };
    machine.pair("v2", "eth2");
    machine.until("the limit", || machine.has("v1", "8Mbit"));
    let mut other = Command::new("sh");
    other.args([
        "-c",
        "for i in $(seq 2000); do tc qdisc del dev v1 root; sleep 0.01; done",
    ]);
    let mut other = spawned(&machine.host, other.stderr(Stdio::null()));
    machine.until("it is left", || {
        let link = machine.link("v1");
        let problem = link.problem.unwrap_or_default();
        link.state == LinkState::Problem && problem.contains("keeps reverting")
    });
    let client = machine.client();
    let changed = client.change_link("v2", &json!({"tx": "5Mbit/s"}), &How::default());
    assert!(changed.expect("changed").in_force);
    assert!(machine.has("v2", "5Mbit"));
    machine.host("tc qdisc del dev v2 root");
    machine.until("the other is put right", || machine.has("v2", "5Mbit"));
    let _ = other.kill();
    other.wait().expect("ended");
    machine.until("it is put right in the end", || machine.has("v1", "8Mbit"));
}

#[test]
fn a_name_of_an_interface_steers_no_terminal() {
    let Some(machine) = Machine::new("a_name_of_an_interface_steers_no_terminal", "") else {
        return;
    };
    let odd = "e\u{1b}[7m\u{7}";
    machine.pair(odd, "eth1");
    let links = machine.client().links().expect("they are shown").links;
    let shown = links.iter().find(|link| link.name == "e\\u{1b}[7m\\u{7}");
    assert_eq!(
        shown.expect("it is").target,
        None,
        "it cannot be asked for by that name"
    );
    for lines in [&["link", "ls"][..], &["link", "set", odd, "tx=1Mbit/s"]] {
        let mut command = machine.place.bonsai(lines);
        let output = namespace::inside(machine.host.as_fd(), || command.output());
        let said: Said = output.expect("entered").expect("started").into();
        let text = said.out + &said.err;
        assert!(text.contains("e\\u{1b}[7m"), "{text:?}");
        assert!(
            text.chars().all(|c| c == '\n' || !c.is_control()),
            "{text:?}"
        );
    }
}
