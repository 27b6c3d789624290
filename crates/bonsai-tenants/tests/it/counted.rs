//! What services send and receive.

use std::collections::BTreeMap;
use std::time::Instant;

use bonsai_api as api;
use bonsai_tenants::{Keeper, Wish, wishes};
use tempfile::tempdir;

use crate::support::{Guest, NOTHING, apart, bodies, carry, run, until};

/// What the kernel itself may say in between: addresses looked for, routers looked for.
const WHISPER: u64 = 6_000;

fn wanted(links: serde_json::Value) -> BTreeMap<String, Wish> {
    let links: BTreeMap<String, api::Link> = serde_json::from_value(links).expect("the form");
    wishes(&links).expect("fine")
}

/// Makes it so; where the interfaces are.
fn make(keeper: &mut Keeper, links: serde_json::Value) -> BTreeMap<String, (u64, u32)> {
    let round = keeper.round(&wanted(links), Instant::now()).expect("made");
    assert!(round.problems.is_empty(), "{:?}", round.problems);
    let granted = round.granted.into_iter();
    granted
        .map(|(name, granted)| (name, granted.at.expect("it is there")))
        .collect()
}

#[test]
fn what_a_guest_sends_and_receives_is_counted_from_its_side() {
    if !apart(
        "counted",
        "what_a_guest_sends_and_receives_is_counted_from_its_side",
    ) {
        return;
    }
    let guest = Guest::new("v1", 1);
    let folder = tempdir().expect("a folder");
    let inside = format!("netns:{}", guest.process.pid());
    let end = "v1";
    let mut bodies = bodies(folder.path(), &[("inside", &inside), ("end", end)]);
    let (there, here) = (guest.socket("10.7.1.2:9000"), udp("10.7.1.1:9000"));
    carry(&there, &here, 1);
    let before = bodies.look(&NOTHING).clone();
    for id in ["inside", "end"] {
        let one = &before[id];
        assert!(one.there && one.why.is_none(), "{one:?}");
        assert_eq!(one.turned, id == "end");
        assert!(one.at_ns > 0 && one.born_ns > 0);
        assert_eq!(one.totals[2..], [None, None], "it has no disk");
    }
    assert_eq!(before["inside"].pid, Some(guest.process.pid()));
    let sent = carry(&there, &here, 300);
    let came = carry(&here, &there, 100);
    let after = bodies.look(&NOTHING).clone();
    for id in ["inside", "end"] {
        for (place, bytes) in [sent, came].into_iter().enumerate() {
            let grown = grown(&before[id].totals, &after[id].totals, place);
            assert!(
                (bytes..bytes + WHISPER).contains(&grown),
                "{id} {place}: {grown} B, {bytes} were carried"
            );
        }
        assert_eq!(after[id].born_ns, before[id].born_ns);
        assert!(after[id].at_ns > before[id].at_ns);
        assert_eq!(after[id].waits, [false; 4]);
    }
}

#[test]
fn totals_go_on_when_limits_come_change_and_go() {
    if !apart("counted", "totals_go_on_when_limits_come_change_and_go") {
        return;
    }
    let guest = Guest::new("v1", 1);
    let outside = Guest::new("out", 2);
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("written");
    guest.inside("ip route add default via 10.7.1.1");
    outside.inside("ip route add default via 10.7.2.1");
    let folder = tempdir().expect("a folder");
    let target = format!("netns:{}", guest.process.pid());
    let mut bodies = bodies(folder.path(), &[(&target, &target), ("out", "out")]);
    let mut keeper = Keeper::new(folder.path().to_owned());
    let (there, here) = (
        guest.socket("10.7.1.2:9000"),
        outside.socket("10.7.2.2:9000"),
    );
    carry(&there, &here, 1);
    let limits = |tx: &str, rx: &str| serde_json::json!({&*target: {"tx": tx, "rx": rx}});
    let share = serde_json::json!({
        "out": {"tx": "800Mbit/s"},
        &*target: {"guarantee": "80Mbit/s", "uplink": "out"},
    });
    let both = serde_json::json!({
        "out": {"tx": "800Mbit/s"},
        &*target: {"tx": "200Mbit/s", "rx": "200Mbit/s", "guarantee": "80Mbit/s", "uplink": "out"},
    });
    let mut last = bodies.look(&NOTHING)[&target].clone();
    let first = last.clone();
    let (mut sent, mut came) = (0, 0);
    // Without, with, changed, with a part of an uplink, with all of it, and without again.
    for links in [
        serde_json::json!({}),
        limits("100Mbit/s", "100Mbit/s"),
        limits("200Mbit/s", "50Mbit/s"),
        both,
        share,
        serde_json::json!({}),
    ] {
        let at = make(&mut keeper, links);
        // What is limited now is looked for first, and counts from then on.
        for _ in 0..8 {
            bodies.look(&at);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        sent += carry(&there, &here, 200);
        came += carry(&here, &there, 100);
        let now = bodies.look(&at)[&target].clone();
        assert_eq!(now.born_ns, first.born_ns, "it is the same one");
        for place in 0..2 {
            assert!(
                now.totals[place] >= last.totals[place],
                "{now:?} after {last:?}"
            );
        }
        last = now;
    }
    for (place, bytes) in [sent, came].into_iter().enumerate() {
        let grown = grown(&first.totals, &last.totals, place);
        assert!(
            (bytes..bytes + WHISPER).contains(&grown),
            "{place}: {grown} B, {bytes} were carried"
        );
    }
}

#[test]
fn whoever_wants_more_than_its_limit_waits() {
    if !apart("counted", "whoever_wants_more_than_its_limit_waits") {
        return;
    }
    let guest = Guest::new("v1", 1);
    let folder = tempdir().expect("a folder");
    let target = format!("netns:{}", guest.process.pid());
    let mut bodies = bodies(folder.path(), &[(&target, &target)]);
    let mut keeper = Keeper::new(folder.path().to_owned());
    let links = serde_json::json!({&*target: {"tx": "8Mbit/s", "rx": "8Mbit/s"}});
    let at = make(&mut keeper, links);
    let (there, here) = (guest.socket("10.7.1.2:9000"), udp("10.7.1.1:9000"));
    carry(&there, &here, 1);
    let quiet = until(&mut bodies, &at, &target, |body| {
        body.there && !body.waits[0]
    });
    assert!(!quiet.waits[1], "{quiet:?}");
    // More than a burst of 1 MB/s, at once.
    for (from, to, place) in [(&there, "10.7.1.1:9000", 0), (&here, "10.7.1.2:9000", 1)] {
        let start = Instant::now();
        let before = until(&mut bodies, &at, &target, |body| body.waits == [false; 4]);
        for _ in 0..100 {
            from.send_to(&[0; 1400], to).expect("sent");
        }
        let waits = until(&mut bodies, &at, &target, |body| body.waits[place]);
        assert!(!waits.waits[1 - place], "{waits:?}");
        // Never faster than the limit: what was counted is what was let through.
        let done = until(&mut bodies, &at, &target, |body| body.waits == [false; 4]);
        let ns = done.at_ns - before.at_ns;
        let grown = grown(&before.totals, &done.totals, place);
        let allowed = ns / 1000 + 2 * 1514 + 2_000;
        assert!(grown <= allowed, "{grown} B in {:?}", start.elapsed());
        assert!(grown > 0, "{done:?}");
    }
}

#[test]
fn an_interface_that_is_renamed_or_goes_is_not_there_until_one_of_its_name_comes() {
    let name = "an_interface_that_is_renamed_or_goes_is_not_there_until_one_of_its_name_comes";
    if !apart("counted", name) {
        return;
    }
    let folder = tempdir().expect("a folder");
    let mut bodies = bodies(folder.path(), &[("one", "v1")]);
    let none = until(&mut bodies, &NOTHING, "one", |body| body.why.is_some());
    assert!(!none.there, "{none:?}");
    assert!(
        none.why.as_ref().is_some_and(|why| why.contains("v1")),
        "{none:?}"
    );
    let guest = Guest::new("v1", 1);
    let first = until(&mut bodies, &NOTHING, "one", |body| body.there);
    run("ip link set v1 name v9");
    let gone = until(&mut bodies, &NOTHING, "one", |body| !body.there);
    assert_eq!(gone.totals, [None; 4]);
    run("ip link set v9 name v1");
    let back = until(&mut bodies, &NOTHING, "one", |body| body.there);
    assert_eq!(back.born_ns, first.born_ns, "it is the same one");
    assert!(back.totals[0] >= first.totals[0] && back.totals[1] >= first.totals[1]);
    run("ip link del v1");
    until(&mut bodies, &NOTHING, "one", |body| !body.there);
    guest.pair(1);
    let other = until(&mut bodies, &NOTHING, "one", |body| body.there);
    assert_ne!(other.born_ns, first.born_ns, "it is another one");
}

#[test]
fn an_interface_without_an_end_here_is_counted_inside_and_let_go() {
    let name = "an_interface_without_an_end_here_is_counted_inside_and_let_go";
    if !apart("counted", name) {
        return;
    }
    // Both ends are there: none is here.
    let mut guest = Guest::new("v1", 1);
    guest.inside("ip link add a0 type veth peer name a1");
    guest.inside("ip addr add 10.8.0.1/24 dev a0");
    for link in ["a0", "a1"] {
        guest.inside(&format!("ip link set {link} up"));
    }
    let folder = tempdir().expect("a folder");
    let target = format!("netns:{}/a0", guest.process.pid());
    let mut bodies = bodies(folder.path(), &[("one", &target)]);
    let before = until(&mut bodies, &NOTHING, "one", |body| {
        body.totals[0].is_some()
    });
    let socket = guest.socket("10.8.0.1:9000");
    // Nobody answers who has the address, so what is asked is all that is sent.
    let _ = socket.send_to(b"hello", "10.8.0.9:9");
    let sent = until(&mut bodies, &NOTHING, "one", |body| {
        grown(&before.totals, &body.totals, 0) >= 42
    });
    assert!(sent.there, "{sent:?}");
    // The namespace ends with what is in it: nobody here keeps it.
    drop(socket);
    guest.namespace = None;
    guest.process.end();
    until(&mut bodies, &NOTHING, "one", |body| !body.there);
    let end = Instant::now() + crate::support::PATIENCE;
    while run("ip -o link show").contains("v1@") {
        assert!(Instant::now() < end, "the namespace is kept");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn grown(before: &[Option<u64>; 4], after: &[Option<u64>; 4], place: usize) -> u64 {
    let bytes = |totals: &[Option<u64>; 4]| totals[place].unwrap_or_default();
    bytes(after).checked_sub(bytes(before)).expect("never less")
}

fn udp(address: &str) -> std::net::UdpSocket {
    let end = Instant::now() + crate::support::PATIENCE;
    loop {
        match std::net::UdpSocket::bind(address) {
            Ok(socket) => return socket,
            Err(error) => assert!(Instant::now() < end, "{address}: {error}"),
        }
    }
}
