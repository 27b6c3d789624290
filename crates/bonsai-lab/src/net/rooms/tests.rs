use super::*;
use crate::net::traffic::{Listen, SendSpec, Traffic};
use std::fs::OpenOptions;

/// Says on standard error, and in the file that `BONSAI_SKIP_LOG` names, that a test was not made.
pub(in crate::net) fn skip(test: &str, reason: &str) {
    let line = format!("SKIP: {test}: {reason}\n");
    eprint!("{line}");
    if let Some(log) = std::env::var_os("BONSAI_SKIP_LOG") {
        let file = OpenOptions::new().append(true).create(true).open(log);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.expect("the file that BONSAI_SKIP_LOG names can be appended to");
    }
}

/// Rooms, or `None` with the reason printed.
pub(in crate::net) fn made<T>(test: &str, room: anyhow::Result<T>) -> Option<T> {
    match room {
        Ok(room) => Some(room),
        Err(error) => {
            skip(test, &format!("{error:#}"));
            None
        }
    }
}

fn names(room: &Room) -> Vec<String> {
    let text = room.within(|| std::fs::read_to_string("/proc/thread-self/net/dev"));
    let text = text.expect("entered").expect("read");
    let lines = text.lines().skip(2);
    lines
        .filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()))
        .collect()
}

#[test]
fn datagrams_cross_a_pair_and_are_all_counted() {
    const TEST: &str = "datagrams_cross_a_pair_and_are_all_counted";
    let Some(pair) = made(TEST, Pair::new(Wire::default())) else {
        return;
    };
    let before = pair.client.counters(ENDPOINT).expect("counters");
    // 20 Mbit/s in two flows.
    let mut spec = SendSpec::udp(Some(2_500_000), Duration::from_millis(300));
    spec.flows = 2;
    let listen = Listen {
        arrivals: true,
        ..Listen::default()
    };
    let traffic = Traffic::start(&pair.client, pair.server(), &spec, listen).expect("started");
    let outcome = traffic.wait().expect("an outcome");
    let after = pair.client.counters(ENDPOINT).expect("counters");
    let total = outcome.received.total();
    assert_eq!(outcome.lost(), 0, "{outcome:?}");
    assert_eq!((total.duplicated, total.reordered), (0, 0));
    assert_eq!(total.layer2, outcome.sent.layer2);
    assert_eq!(total.packets, outcome.sent.flows.iter().sum::<u64>());
    assert_eq!(outcome.received.stamps, "kernel");
    let series = &outcome.received.series;
    assert_eq!(series.bins.iter().sum::<u64>(), total.layer2);
    let arrivals = outcome.received.arrivals.as_ref().expect("kept").0.len();
    assert_eq!(arrivals as u64, total.packets);
    // The kernel counts the same, and a few packets of ARP.
    let counted = after.tx_bytes - before.tx_bytes;
    assert!(
        (total.layer2..total.layer2 + 500).contains(&counted),
        "{counted}"
    );
    // Never more than was asked for, whatever else the machine does.
    assert!(outcome.sent.achieved().expect("a rate") < 1.01);
}

#[test]
fn segments_that_travel_as_one_are_counted_one_by_one() {
    const TEST: &str = "segments_that_travel_as_one_are_counted_one_by_one";
    for whole in [true, false] {
        let wire = Wire {
            whole,
            ..Wire::default()
        };
        let Some(pair) = made(TEST, Pair::new(wire)) else {
            return;
        };
        let mut spec = SendSpec::udp(Some(12_500_000), Duration::from_millis(200));
        spec.segments = 32;
        let traffic =
            Traffic::start(&pair.client, pair.server(), &spec, Listen::default()).expect("started");
        let outcome = traffic.wait().expect("an outcome");
        assert_eq!(outcome.lost(), 0, "{outcome:?}");
        assert_eq!(outcome.received.total().layer2, outcome.sent.layer2);
        assert_eq!(outcome.sent.flows[0] % 32, 0);
    }
}

#[test]
fn connections_have_the_congestion_control_asked_for() {
    const TEST: &str = "connections_have_the_congestion_control_asked_for";
    let Some(house) = made(TEST, House::new(2, Wire::default())) else {
        return;
    };
    let mut spec = SendSpec::tcp(3, "reno", Duration::from_secs(20));
    spec.bytes = Some(3_000_000);
    let from = &house.tenants[1];
    let traffic = Traffic::start(from, house.outside(), &spec, Listen::default()).expect("started");
    let outcome = traffic.wait().expect("an outcome");
    let total = outcome.received.total();
    assert_eq!(
        (total.payload, outcome.sent.payload),
        (3_000_000, 3_000_000)
    );
    assert_eq!(outcome.sent.connections.len(), 3);
    assert_eq!(outcome.sent.connections[0].segment, 1_448);
    let bad = SendSpec::tcp(1, "no-such", Duration::from_millis(1));
    let error = Traffic::start(from, house.outside(), &bad, Listen::default())
        .expect_err("no such congestion control");
    assert!(format!("{error:#}").contains("no-such"), "{error:#}");
}

#[test]
fn rooms_are_apart_from_the_machine_and_each_other() {
    const TEST: &str = "rooms_are_apart_from_the_machine_and_each_other";
    let Some(one) = made(TEST, House::new(1, Wire::default())) else {
        return;
    };
    let mut found = names(&one.host);
    found.sort();
    assert_eq!(found, ["br0", "lo", "tenant0", "up0"]);
    // The same names and addresses once more, at the same time.
    let other = House::new(1, Wire::default()).expect("a second one");
    let own = std::fs::read_to_string("/proc/net/dev").expect("read");
    assert!(!own.contains("tenant0:") && !own.contains("up0:"), "{own}");
    assert_eq!(names(&other.tenants[0]).len(), 2);
    let missing = one.host.counters("nosuch").expect_err("no such interface");
    assert!(format!("{missing:#}").contains("nosuch"), "{missing:#}");
    // Once the room at one end is gone, so is the link.
    let House { host, tenants, .. } = one;
    drop(tenants);
    let end = Instant::now() + Duration::from_secs(20);
    while names(&host).iter().any(|name| name == "tenant0") {
        assert!(Instant::now() < end, "{:?}", names(&host));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn programs_run_inside() {
    const TEST: &str = "programs_run_inside";
    let Some(pair) = made(TEST, Pair::new(Wire::default())) else {
        return;
    };
    let text = pair
        .client
        .run(Command::new("cat").args(["/proc/net/dev", "-"]), "more");
    let text = text.expect("read");
    assert!(text.contains("eth0:") && text.ends_with("more"), "{text}");
    let error = pair.client.run(&mut Command::new("false"), "");
    error.expect_err("it fails");
    pair.client
        .within(|| panic!("for the test"))
        .expect_err("a panic inside is an error outside");
}
