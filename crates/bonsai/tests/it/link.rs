//! `bonsai link`, in network namespaces of its own.

mod killed;

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bonsai_link::namespace;
use serde_json::Value;

use crate::support::{Place, Said, skip};

/// A host with a bridge and guests, each a process with a namespace of its own.
struct Room {
    place: Place,
    host: OwnedFd,
    guests: Vec<Child>,
}

impl Room {
    fn new(test: &str, guests: usize) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip(test, "making network namespaces needs root");
            return None;
        }
        if Command::new("ip").arg("-V").output().is_err() {
            skip(test, "iproute2 is not installed");
            return None;
        }
        let host = namespace::make().expect("a namespace");
        let guest = || {
            let sleep = Command::new("unshare").args(["-n", "sleep", "600"]).spawn();
            sleep.expect("a guest")
        };
        let mut room = Self {
            place: Place::bare(),
            guests: (0..guests).map(|_| guest()).collect(),
            host,
        };
        room.sh("ip link add br0 type bridge && ip link set br0 up");
        for index in 0..guests {
            room.connect(index);
        }
        Some(room)
    }

    /// Gives a guest its `eth0`, and the host the other end, `v0` for the first.
    fn connect(&mut self, index: usize) {
        let pid = self.guests[index].id();
        // Until `unshare` has done its work, the pair would be in one namespace.
        let ours = std::fs::read_link("/proc/self/ns/net").expect("ours");
        for _ in 0..1000 {
            let theirs = std::fs::read_link(format!("/proc/{pid}/ns/net")).expect("theirs");
            if theirs != ours {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.sh(&format!(
            "ip link add v{index} type veth peer name eth0 netns {pid} &&
             ip link set v{index} master br0 up"
        ));
    }

    fn inside(&self, mut command: Command) -> Said {
        let output = namespace::inside(self.host.as_fd(), || command.output());
        output.expect("entered").expect("started").into()
    }

    fn sh(&self, line: &str) -> String {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        let said = self.inside(command);
        assert_eq!(said.code, Some(0), "{line}: {said:?}");
        said.out
    }

    fn bonsai(&self, line: &str) -> Said {
        let args: Vec<&str> = line.split_whitespace().collect();
        self.inside(self.place.bonsai(&args))
    }

    fn works(&self, line: &str) -> String {
        let said = self.bonsai(line);
        assert_eq!(said.code, Some(0), "{line}: {said:?}");
        said.out
    }

    fn links(&self) -> Vec<Value> {
        let text = self.works("link ls --for 10ms --json");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["schema"], 1);
        value["links"].as_array().expect("a list").clone()
    }

    fn link(&self, name: &str) -> Value {
        let links = self.links();
        let link = links.into_iter().find(|link| link["name"] == name);
        link.unwrap_or_else(|| panic!("there is no {name}"))
    }

    fn traces(&self) -> String {
        self.sh("tc qdisc show; ip -o link show")
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        for guest in &mut self.guests {
            let _ = guest.kill();
            let _ = guest.wait();
        }
    }
}

#[test]
fn an_interface_is_limited_by_its_name_or_by_whose_it_is() {
    let Some(room) = Room::new("an_interface_is_limited", 2) else {
        return;
    };
    let before = room.traces();
    let said = room.works("link set v0 tx=20Mbit/s rx=50Mbit/s");
    assert_eq!(said, "v0: tx=20Mbit/s rx=50Mbit/s: in force\n");
    let again = room.works("link set v0 tx=20Mbit/s");
    assert_eq!(again, "v0: tx=20Mbit/s rx=50Mbit/s: as it was already\n");
    // Of a guest it is what that sends, which the host's end receives.
    let pid = room.guests[1].id();
    let said = room.works(&format!("link set --pid {pid} eth0 tx=30Mbit/s burst=5ms"));
    assert!(
        said.contains("eth0 of sleep") && said.contains("at v1"),
        "{said}"
    );
    assert!(
        said.contains("tx=30Mbit/s rx=unlimited burst=5 ms: in force"),
        "{said}"
    );
    let (one, other) = (room.link("v0"), room.link("v1"));
    assert_eq!(
        (&one["tx_limit"], &one["rx_limit"]),
        (&2_500_000.into(), &6_250_000.into())
    );
    assert_eq!(
        (&other["tx_limit"], &other["rx_limit"]),
        (&Value::Null, &3_750_000.into())
    );
    assert!(
        other["whose"]
            .as_str()
            .expect("whose")
            .contains(&format!("PID {pid}")),
        "{other}"
    );
    assert!(
        room.sh("tc class show dev v0")
            .contains("rate 20Mbit ceil 20Mbit")
    );
    assert!(
        room.sh("tc class show dev bonsai-ifb")
            .contains("rate 30Mbit ceil 30Mbit")
    );

    let said = room.works("link set v0 tx=unlimited");
    assert!(
        said.contains("tx=unlimited rx=50Mbit/s: in force"),
        "{said}"
    );
    assert_eq!(room.works("link clear v0"), "v0: as it was before\n");
    assert_eq!(
        room.works(&format!("link clear --pid {pid}")),
        "v1: as it was before\n"
    );
    assert_eq!(
        room.works("link clear --all"),
        "no interface: there was no limit\n"
    );
    assert_eq!(room.traces(), before);
}

#[test]
fn shares_of_an_uplink_are_shown_and_guarded() {
    let Some(room) = Room::new("shares_of_an_uplink", 3) else {
        return;
    };
    room.works("link set v2 tx=100Mbit/s");
    room.works("link set v0 guarantee=60Mbit/s ceiling=90Mbit/s weight=3 uplink=v2");
    let said = room.bonsai("link set v1 guarantee=50Mbit/s uplink=v2");
    assert_eq!(said.code, Some(2));
    assert!(
        said.err
            .contains("110Mbit/s together, 10Mbit/s more than its tx limit"),
        "{said:?}"
    );
    room.works("link set v1 guarantee=40Mbit/s uplink=v2");
    let share = &room.link("v0")["share"];
    assert_eq!(share["uplink"], "v2");
    assert_eq!(share["guarantee"], 7_500_000);
    assert_eq!(share["weight"], 3);
    let said = room.bonsai("link clear v2");
    assert_eq!(said.code, Some(2));
    assert!(
        said.err
            .contains("v2 is the uplink of v0, v1: clear those first"),
        "{said:?}"
    );
    let said = room.bonsai("link set v2 tx=90Mbit/s");
    assert!(
        said.err
            .contains("10Mbit/s more than its tx limit of 90Mbit/s"),
        "{said:?}"
    );
    // Nothing of what was refused is in the record.
    assert_eq!(room.link("v2")["tx_limit"], 12_500_000);
    room.works("link clear --all");
}

#[test]
fn slips_are_answered_in_one_sentence() {
    let Some(room) = Room::new("slips_are_answered", 2) else {
        return;
    };
    room.sh("tc qdisc add dev v1 root handle 7: bfifo limit 100000");
    let before = room.traces();
    for (line, words) in [
        ("link set v9 tx=1Mbit/s", "there is no interface `v9`"),
        ("link set v0", "write KEY=VALUE"),
        ("link set tx=1Mbit/s", "name an interface"),
        ("link set v0 v1 tx=1Mbit/s", "two interfaces"),
        ("link set v0 tx=9", "no unit"),
        ("link set v0 tx=9/s", "counts calls"),
        (
            "link set v0 tx=1kbit/s",
            "too small: a packet of 1500 bytes would take",
        ),
        ("link set v0 speed=1Mbit/s", "cannot be set"),
        ("link set v0 weight=3", "by which interface"),
        ("link set v0 weight=3 uplink=v0", "no tx limit"),
        ("link set v0 weight=3 uplink=nix", "no interface `nix`"),
        (
            "link set --netns nix tx=1Mbit/s",
            "no network namespace `nix`",
        ),
        (
            "link set --netns ../nix tx=1Mbit/s",
            "not the name of a network namespace",
        ),
        (
            "link set --container nix tx=1Mbit/s",
            "no running container `nix`",
        ),
        ("link set --vm nix tx=1Mbit/s", "`nix`"),
        ("link set --pid 0 tx=1Mbit/s", "no process"),
        ("link set v1 tx=1Mbit/s", "--adopt takes its place"),
        ("link clear", "name an interface"),
        ("link ls --for 1us", "out of range"),
    ] {
        let said = room.bonsai(line);
        assert_eq!(said.code, Some(2), "{line}: {said:?}");
        assert!(said.err.contains(words), "{line}: {said:?}");
        assert_eq!(said.err.trim_end().lines().count(), 1, "{line}: {said:?}");
    }
    assert_eq!(room.traces(), before);
    let said = room.works("link set v1 tx=1Mbit/s --adopt");
    assert!(said.contains("the bfifo of v1 was taken over"), "{said}");
    let said = room.works("link clear v1");
    assert!(said.contains("the bfifo of v1 is back"), "{said}");
    assert_eq!(room.traces(), before);
}

#[test]
fn whoever_comes_after_a_crash_completes_what_was_begun() {
    let Some(room) = Room::new("whoever_comes_after_a_crash", 6) else {
        return;
    };
    let before = room.traces();
    for round in 0..12_u64 {
        let rate = 20 + round;
        let names = room.guests.len();
        for index in 0..names {
            let line = format!("link set v{index} tx={rate}Mbit/s rx={rate}Mbit/s");
            let args: Vec<&str> = line.split_whitespace().collect();
            let mut command = room.place.bonsai(&args);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let child = namespace::inside(room.host.as_fd(), || command.spawn());
            let mut child = child.expect("entered").expect("started");
            // From before anything is read until after all is done.
            std::thread::sleep(Duration::from_micros(700 * (round * 6 + index as u64)));
            let _ = child.kill();
            let _ = child.wait();
        }
        room.works("link set v0 tx=15Mbit/s");
        for link in room.links() {
            assert_eq!(link["problem"], Value::Null, "{link}");
        }
    }
    room.works("link clear --all");
    assert_eq!(room.traces(), before);
}

#[test]
fn an_interface_with_the_number_of_a_removed_one_has_no_limit() {
    let Some(room) = Room::new("an_interface_with_the_number_of_a_removed_one", 1) else {
        return;
    };
    room.sh(
        "ip link add old index 900 type dummy || ip link add old index 900 type veth peer name p1",
    );
    room.works("link set old tx=10Mbit/s rx=10Mbit/s");
    // Another name for the same one changes nothing.
    room.sh("ip link set old down; ip link set old name older");
    room.works("link set v0 tx=5Mbit/s");
    let older = room.link("older");
    assert_eq!(
        (&older["tx_limit"], &older["state"]),
        (&1_250_000.into(), &"in-force".into())
    );
    room.sh("ip link del older");
    room.sh(
        "ip link add new index 900 type dummy || ip link add new index 900 type veth peer name p2",
    );
    let before = room.sh("tc qdisc show dev new");
    room.works("link set v0 tx=6Mbit/s");
    assert_eq!(room.sh("tc qdisc show dev new"), before);
    let new = room.link("new");
    assert_eq!(
        (&new["tx_limit"], &new["state"]),
        (&Value::Null, &"free".into())
    );
    room.works("link clear --all");
}

#[test]
fn several_at_once_do_not_lose_what_others_asked_for() {
    let Some(room) = Room::new("several_at_once", 6) else {
        return;
    };
    std::thread::scope(|scope| {
        for index in 0..room.guests.len() {
            let room = &room;
            scope.spawn(move || room.works(&format!("link set v{index} rx=1{index}Mbit/s")));
        }
    });
    for index in 0..room.guests.len() as u64 {
        let link = room.link(&format!("v{index}"));
        assert_eq!(link["rx_limit"], (10 + index) * 125_000, "{link}");
    }
    room.works("link clear --all");
}

#[test]
fn a_process_is_paced_until_it_is_let_go() {
    let place = Place::bare();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let one = std::net::TcpStream::connect(address).expect("connected");
    let me = std::process::id().to_string();
    let said = place.say(&["link", "pace", &me, "20Mbit/s", "--for", "200ms"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains(" at 20Mbit/s"), "{said:?}");
    assert!(said.out.ends_with(": as it was before\n"), "{said:?}");
    drop(one);
    for (args, words) in [
        (["4194304", "20Mbit/s"], "there is no process"),
        (["0", "20Mbit/s"], "no process ID"),
        ([&me, "20/s"], "counts calls"),
        ([&me, "1B/s"], "too slow"),
        ([&me, "20"], "no unit"),
    ] {
        let said = place.say(&[&["link", "pace"], &args[..]].concat());
        assert_eq!(said.code, Some(2), "{args:?}: {said:?}");
        assert!(said.err.contains(words), "{args:?}: {said:?}");
    }
}
