//! Real guests: kernels of their own, limited at taps of the machine while they run, and on disks that are served.

mod container;
mod disks;
mod envelope;
mod flood;
mod flow;
mod guest;
mod served;

use std::time::{Duration, Instant};

use bonsai_api::{LinkState, LinkView};
use bonsai_client::How;
use serde_json::{Value, json};

use self::envelope::{BLOCK, MBIT, PATIENCE, is_limited};
use self::guest::{Guest, Hypervisor, TAP, connect};
use crate::links::machine::Machine;

/// The tap, as `bonsai link ls` shows it.
fn shown(machine: &Machine) -> LinkView {
    let said = machine.say(&["link", "ls", "--json", "--for", "10ms"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let all: Value = serde_json::from_str(&said.out).expect("JSON");
    let links = all["links"].as_array().expect("a list");
    let tap = links.iter().find(|link| link["name"] == TAP);
    serde_json::from_value(tap.expect("the tap").clone()).expect("a link")
}

/// All that can be done with a guest, at its tap, while it runs.
fn a_guest_is_limited(test: &str, hypervisor: Hypervisor) {
    let Some(machine) = Machine::new(test, "") else {
        return;
    };
    connect(&machine);
    let before = machine.host(&format!("tc qdisc show dev {TAP}"));
    let name = format!("guest-{}-{}", hypervisor.name().len(), std::process::id());
    let Some(guest) = Guest::boot(test, &machine, hypervisor, &name) else {
        return;
    };
    let whose = shown(&machine).whose.unwrap_or_default();
    assert!(
        whose.contains(&format!("machine {name} ({}", hypervisor.name())),
        "{whose}"
    );

    // By the command.
    let said = machine.say(&["link", "set", "--vm", &name, "tx=8Mbit/s", "rx=4Mbit/s"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains("in force"), "{said:?}");
    // What it sends is what the tap receives.
    assert!(machine.has(BLOCK, "8Mbit") && machine.has(TAP, "4Mbit"));
    is_limited(&machine, TAP, &guest.flows, [8.0, 4.0]);

    // By the interface, both ways, up and down.
    let target = format!("vm:{name}");
    let client = machine.client();
    let change = |[tx, rx]: [f64; 2]| {
        let patch = json!({ "tx": format!("{tx}Mbit/s"), "rx": format!("{rx}Mbit/s") });
        let changed = client.change_link(&target, &patch, &How::default());
        assert!(changed.expect("changed").in_force, "{tx} {rx}");
    };
    for limits in [[4.0, 9.0], [9.0, 4.0], [5.0, 5.0]] {
        change(limits);
        is_limited(&machine, TAP, &guest.flows, limits);
    }
    let view = machine.link(&target);
    assert_eq!(
        (view.name.as_str(), view.swapped, view.state),
        (TAP, true, LinkState::InForce)
    );

    // One that is paused is limited, and its limits can be changed.
    guest.pause(true);
    change([3.0, 6.0]);
    std::thread::sleep(Duration::from_millis(500));
    guest.pause(false);
    is_limited(&machine, TAP, &guest.flows, [3.0, 6.0]);

    // Without limits it moves more than it ever might; the connections have survived all of it.
    let cleared = client
        .clear_link(&target, &How::default())
        .expect("cleared");
    assert!(cleared.in_force, "{cleared:?}");
    assert_eq!(machine.host(&format!("tc qdisc show dev {TAP}")), before);
    assert!(!machine.host("ip link").contains(BLOCK));
    let (start, mut last) = (Instant::now(), Instant::now());
    let mut moved = guest.flows.up.bytes();
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let now = guest.flows.up.bytes();
        if (now - moved) as f64 > 12.0 * MBIT * last.elapsed().as_secs_f64() {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "it is still held back");
        (moved, last) = (now, Instant::now());
    }
    assert_eq!(guest.flows.ends(), [None; 2]);

    // What is configured for one that has gone waits for it, and the tap is free meanwhile.
    change([6.0, 7.0]);
    guest.quit();
    machine.until("it waits", || {
        machine.link(&target).state == LinkState::Waiting
    });
    machine.until("the tap is free", || !machine.has(TAP, "7Mbit"));
    let guest = Guest::boot(test, &machine, hypervisor, &name).expect("as before");
    machine.until("it is limited again", || {
        machine.has(BLOCK, "6Mbit") && machine.has(TAP, "7Mbit")
    });
    is_limited(&machine, TAP, &guest.flows, [6.0, 7.0]);
    guest.quit();
}

#[test]
fn a_guest_of_qemu_is_limited_both_ways_while_it_runs() {
    let name = "a_guest_of_qemu_is_limited_both_ways_while_it_runs";
    a_guest_is_limited(name, Hypervisor::Qemu);
}

#[test]
fn a_guest_of_user_mode_linux_is_limited_both_ways_while_it_runs() {
    let name = "a_guest_of_user_mode_linux_is_limited_both_ways_while_it_runs";
    a_guest_is_limited(name, Hypervisor::UserModeLinux);
}
