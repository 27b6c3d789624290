//! Services that are no `bonsai run`: real traffic through interfaces in network namespaces that last
//! as long as the test.

mod groups;
mod traffic;

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bonsai_api::{Enforced, Resource, ServiceView, Use};
use bonsai_client::{ClientError, How, Range};
use serde_json::{Value, json};

use self::traffic::{Flow, addresses, forward, pair};
use crate::links::machine::{Machine, run, spawned};
use crate::support::skip;

const MBIT: f64 = 125_000.0;

fn use_of(service: &ServiceView, resource: Resource) -> Use {
    let found = service.resources.iter().find(|of| of.resource == resource);
    found
        .unwrap_or_else(|| panic!("{resource:?} of {service:#?}"))
        .clone()
}

fn service(machine: &Machine, id: &str) -> ServiceView {
    machine.client().service(id).expect("it is known")
}

fn runs(machine: &Machine, id: &str) {
    machine.until(&format!("{id} runs"), || service(machine, id).running);
}

fn change(machine: &Machine, id: &str, patch: &Value) {
    let changed = machine.client().change_service(id, patch, &How::default());
    changed.expect("changed");
}

fn refused(machine: &Machine, id: &str, patch: &Value) -> String {
    let answer = machine.client().change_service(id, patch, &How::default());
    match answer.expect_err("refused") {
        ClientError::Refused(problem) => {
            assert_eq!(problem.status, 422, "{problem:?}");
            problem.detail
        }
        other => panic!("{other}"),
    }
}

/// Bytes per second that arrive, over some time.
fn rate(flow: &Flow, time: Duration) -> f64 {
    let (start, before) = (Instant::now(), flow.arrived());
    std::thread::sleep(time);
    (flow.arrived() - before) as f64 / start.elapsed().as_secs_f64()
}

#[test]
fn what_it_sends_is_counted_limited_and_kept() {
    let config = "[services.web]\ntarget = \"v1\"\n";
    let Some(machine) = Machine::new("what_it_sends_is_counted_limited_and_kept", config) else {
        return;
    };
    addresses(&machine.host, "v1", "10.9.0.1/24");
    addresses(&machine.guest, "eth0", "10.9.0.2/24");
    runs(&machine, "web");
    let flow = Flow::start(&machine.guest, &machine.host, "10.9.0.1:9000", 20.0 * MBIT);
    let sent = |machine: &Machine| -> f64 {
        let metrics = machine.metrics();
        let line = metrics.lines().find(|line| {
            let of_it = ["service=\"web\"", "resource=\"send\""].map(|of| line.contains(of));
            line.starts_with("bonsai_service_bytes_total{") && of_it == [true; 2]
        });
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        value.unwrap_or_else(|| panic!("{metrics}"))
    };
    machine.until("it is seen", || {
        use_of(&service(&machine, "web"), Resource::Send).got > 10.0 * MBIT
    });
    let (before, arrived) = (sent(&machine), flow.arrived());
    std::thread::sleep(Duration::from_secs(2));
    let (counted, came) = (sent(&machine) - before, flow.arrived() - arrived);
    // Two looks and two readings of metrics are a period apart from what arrived.
    let off = counted / came as f64;
    assert!((0.85..1.15).contains(&off), "{counted} of {came}");
    let seen = service(&machine, "web");
    assert_eq!(seen.target.as_deref(), Some("v1"));
    assert_eq!(
        use_of(&seen, Resource::Recv).decision.enforced,
        Enforced::None
    );
    let resources: Vec<Resource> = seen.resources.iter().map(|of| of.resource).collect();
    assert_eq!(resources, [Resource::Send, Resource::Recv]);
    // Limited: never faster from the answer on, but for what was in the queue.
    change(&machine, "web", &json!({"send": {"max": "8Mbit/s"}}));
    machine.until("the limit", || machine.has("bonsai-ifb", "8Mbit"));
    let queue = 70_000.0;
    let (start, before) = (Instant::now(), flow.arrived());
    std::thread::sleep(Duration::from_secs(2));
    let (came, time) = (flow.arrived() - before, start.elapsed().as_secs_f64());
    assert!(
        came as f64 <= time * 8.0 * MBIT + queue,
        "{came} in {time} s"
    );
    assert!(came as f64 >= time * 7.0 * MBIT, "{came} in {time} s");
    let send = || use_of(&service(&machine, "web"), Resource::Send);
    assert_eq!(send().decision.enforced, Enforced::Limit);
    machine.until("it waits", || {
        send().waiting && send().got < 1.1 * 8.0 * MBIT
    });
    // History, trail, undo.
    let range = Range {
        service: Some("web".to_owned()),
        resource: Some(Resource::Send),
        ..Range::default()
    };
    machine.until("the history", || {
        let series = machine.client().history(&range);
        series.is_ok_and(|series| series.points.iter().any(|point| point.got > 6.0 * MBIT))
    });
    let audit = machine
        .client()
        .audit(Some("web"), None, 5)
        .expect("the trail");
    assert_eq!(
        audit.entries[0].differences[0].path,
        "services.web.send.max"
    );
    machine.client().undo(None, false).expect("undone");
    machine.until("it is free", || !machine.has("bonsai-ifb", "8Mbit"));
    let shown = machine.say(&["status"]);
    assert!(shown.out.contains("v1, for"), "{shown:?}");
}

#[test]
fn what_one_leaves_is_lent_and_given_back() {
    let config = "[capacity]\nsend = \"40Mbit/s\"\n[services.a]\ntarget = \"v1\"\n\
                  [services.b]\ntarget = \"v2\"\n";
    let Some(machine) = Machine::new("what_one_leaves_is_lent_and_given_back", config) else {
        return;
    };
    machine.pair("v2", "eth1");
    addresses(&machine.host, "v1", "10.9.1.1/24");
    addresses(&machine.host, "v2", "10.9.2.1/24");
    addresses(&machine.guest, "eth0", "10.9.1.2/24");
    addresses(&machine.guest, "eth1", "10.9.2.2/24");
    runs(&machine, "a");
    runs(&machine, "b");
    let a = Flow::start(&machine.guest, &machine.host, "10.9.1.1:9000", 60.0 * MBIT);
    machine.until("all of it is lent", || {
        rate(&a, Duration::from_millis(300)) > 35.0 * MBIT
    });
    let b = Flow::start(&machine.guest, &machine.host, "10.9.2.1:9000", 60.0 * MBIT);
    machine.until("it is given back", || {
        let (start, before) = (Instant::now(), [a.arrived(), b.arrived()]);
        std::thread::sleep(Duration::from_millis(500));
        let time = start.elapsed().as_secs_f64();
        let rates = [a.arrived() - before[0], b.arrived() - before[1]].map(|of| of as f64 / time);
        rates
            .iter()
            .all(|rate| (16.0..24.0).contains(&(rate / MBIT)))
    });
    // Together they have never more than there is.
    let (start, before) = (Instant::now(), a.arrived() + b.arrived());
    std::thread::sleep(Duration::from_secs(2));
    let (came, time) = (
        a.arrived() + b.arrived() - before,
        start.elapsed().as_secs_f64(),
    );
    assert!(
        came as f64 <= time * 40.0 * MBIT + 400_000.0,
        "{came} in {time} s"
    );
    // What moves is nobody else's doing.
    let audit = machine.client().audit(None, None, 50).expect("the trail");
    let repairs = audit
        .entries
        .iter()
        .filter(|entry| entry.action == "repair");
    assert_eq!(repairs.count(), 0, "{audit:?}");
    drop(b);
    machine.until("it is lent again", || {
        rate(&a, Duration::from_millis(300)) > 35.0 * MBIT
    });
}

/// A machine whose guests leave by `out`, behind which `far` is.
struct Routed {
    machine: Machine,
    other: OwnedFd,
    far: OwnedFd,
}

impl Routed {
    fn new(test: &str, config: &str) -> Option<Self> {
        let machine = Machine::new(test, config)?;
        let make = || bonsai_link::namespace::make().expect("a namespace");
        let routed = Self {
            machine,
            other: make(),
            far: make(),
        };
        let host = &routed.machine.host;
        pair(host, &routed.other, "v2", "eth0");
        pair(host, &routed.far, "out", "eth0");
        addresses(host, "v1", "10.9.1.1/24");
        addresses(host, "v2", "10.9.2.1/24");
        addresses(host, "out", "10.9.9.1/24");
        addresses(&routed.machine.guest, "eth0", "10.9.1.2/24");
        addresses(&routed.other, "eth0", "10.9.2.2/24");
        addresses(&routed.far, "eth0", "10.9.9.2/24");
        run(&routed.machine.guest, "ip route add default via 10.9.1.1");
        run(&routed.other, "ip route add default via 10.9.2.1");
        forward(host);
        Some(routed)
    }
}

const ROUTED: &str = "[links.out]\ntx = \"40Mbit/s\"\n\
     [services.web]\ntarget = \"v1\"\nuplink = \"out\"\nsend = { min = \"30Mbit/s\" }\n\
     [services.bulk]\ntarget = \"v2\"\nuplink = \"out\"\nsend = { max = \"35Mbit/s\" }\n";

#[test]
fn a_guarantee_holds_on_the_uplink_and_what_it_leaves_is_lent() {
    let name = "a_guarantee_holds_on_the_uplink_and_what_it_leaves_is_lent";
    let Some(routed) = Routed::new(name, ROUTED) else {
        return;
    };
    let machine = &routed.machine;
    runs(machine, "web");
    runs(machine, "bulk");
    machine.until("the classes", || {
        machine.has("out", "30Mbit")
            && machine
                .host("tc class show dev out")
                .contains("ceil 35Mbit")
    });
    let bulk = Flow::start(&routed.other, &routed.far, "10.9.9.2:9002", 60.0 * MBIT);
    machine.until("it is lent", || {
        rate(&bulk, Duration::from_millis(300)) > 32.0 * MBIT
    });
    assert!(
        rate(&bulk, Duration::from_secs(1)) < 36.0 * MBIT,
        "its max holds"
    );
    let web = Flow::start(&machine.guest, &routed.far, "10.9.9.2:9001", 60.0 * MBIT);
    machine.until("the guarantee", || {
        rate(&web, Duration::from_millis(500)) > 29.0 * MBIT
    });
    let seen = service(machine, "web");
    let send = use_of(&seen, Resource::Send);
    assert_eq!(send.decision.enforced, Enforced::Uplink, "{send:?}");
    machine.until("what is counted", || {
        let got = use_of(&service(machine, "web"), Resource::Send).got / MBIT;
        (28.0..42.0).contains(&got)
    });
    // A guarantee that moves is in force when it is answered, and is nobody else's doing.
    for (min, shown) in [
        ("10Mbit/s", "10Mbit"),
        ("20Mbit/s", "20Mbit"),
        ("25Mbit/s", "25Mbit"),
    ] {
        change(machine, "web", &json!({"send": {"min": min}}));
        machine.until("it moved", || machine.has("out", shown));
    }
    let audit = machine.client().audit(None, None, 50).expect("the trail");
    assert!(
        audit.entries.iter().all(|entry| entry.action != "repair"),
        "{audit:?}"
    );
    // More than the uplink has is refused.
    let why = refused(machine, "bulk", &json!({"send": {"min": "16Mbit/s"}}));
    assert!(
        why.contains("links.out: the guarantees on it are 41Mbit/s together"),
        "{why}"
    );
}

#[test]
fn a_killed_daemon_leaves_shares_and_the_next_one_touches_nothing() {
    let name = "a_killed_daemon_leaves_shares_and_the_next_one_touches_nothing";
    let Some(mut routed) = Routed::new(name, ROUTED) else {
        return;
    };
    let machine = &mut routed.machine;
    runs(machine, "web");
    machine.until("the classes", || machine.has("out", "30Mbit"));
    change(
        machine,
        "web",
        &json!({"send": {"min": "22Mbit/s"}, "recv": {"max": "9Mbit/s"}}),
    );
    machine.until("what was changed", || {
        machine.has("out", "22Mbit") && machine.has("v1", "9Mbit")
    });
    machine.kill();
    assert!(machine.has("out", "22Mbit") && machine.has("v1", "9Mbit"));
    let mut tc = Command::new("tc");
    let mut monitor = spawned(&machine.host, tc.arg("monitor").stdout(Stdio::piped()));
    let mut heard = BufReader::new(monitor.stdout.take().expect("its output")).lines();
    std::thread::sleep(Duration::from_millis(200));
    machine.host("tc qdisc replace dev lo root pfifo limit 7");
    machine.start();
    runs(machine, "web");
    // Some periods, in which it could have.
    std::thread::sleep(Duration::from_millis(1500));
    machine.host("tc qdisc replace dev lo root pfifo limit 99");
    let heard: Vec<String> = heard
        .by_ref()
        .map_while(Result::ok)
        .take_while(|line| !line.contains("limit 99p"))
        .collect();
    monitor.kill().expect("ended");
    monitor.wait().expect("ended");
    assert!(
        heard.iter().any(|line| line.contains("limit 7p")),
        "it listened"
    );
    let touched = heard
        .iter()
        .any(|line| line.contains("v1") || line.contains("out"));
    assert!(!touched, "{heard:#?}");
}

#[test]
fn a_namespace_that_goes_and_comes_is_the_same_service() {
    let name = "a_namespace_that_goes_and_comes_is_the_same_service";
    let Some(machine) = Machine::new(name, "") else {
        return;
    };
    let mut inside = Command::new("sleep");
    let mut inside = spawned(&machine.guest, inside.arg("60"));
    let target = format!("netns:{}/eth0", inside.id());
    change(
        &machine,
        "web",
        &json!({"target": target, "send": {"max": "8Mbit/s"}}),
    );
    runs(&machine, "web");
    machine.until("the limit", || machine.has("bonsai-ifb", "8Mbit"));
    inside.kill().expect("ended");
    inside.wait().expect("ended");
    machine.until("it is gone, and why is said", || {
        let web = service(&machine, "web");
        !web.running && !web.problems.is_empty()
    });
    // What is named by itself comes again.
    change(
        &machine,
        "web",
        &json!({"target": "later", "send": {"max": "6Mbit/s"}}),
    );
    machine.until("it is not there", || {
        let web = service(&machine, "web");
        !web.running && web.target.as_deref() == Some("later")
    });
    for _ in 0..2 {
        machine.pair("later", "eth1");
        runs(&machine, "web");
        machine.until("its limit", || machine.has("bonsai-ifb", "6Mbit"));
        machine.host("ip link del later");
        machine.until("it is gone", || !service(&machine, "web").running);
    }
}

#[test]
fn what_it_has_not_is_refused_in_a_sentence() {
    let config = "[services.web]\ntarget = \"v1\"\n";
    let Some(machine) = Machine::new("what_it_has_not_is_refused_in_a_sentence", config) else {
        return;
    };
    for (patch, words) in [
        (
            json!({"calls": {"max": "5/s"}}),
            "calls are seen inside programs only",
        ),
        (json!({"read": {"max": "5MB/s"}}), "it has no control group"),
        (json!({"cpu": {"weight": 200}}), "no control group"),
        (json!({"uplink": "v1"}), "its own uplink"),
        (
            json!({"target": "docker:x"}),
            "is nothing that a service can be",
        ),
        (
            json!({"limits": {"open": "5/s"}}),
            "further limits are of calls",
        ),
        (
            json!({"target": null, "uplink": "v1"}),
            "a bonsai run is shaped inside",
        ),
    ] {
        let why = refused(&machine, "web", &patch);
        assert!(why.contains(words) && !why.contains('\n'), "{patch}: {why}");
    }
    let client = machine.client();
    let both = client.change_link("v1", &json!({"tx": "1Mbit/s"}), &How::default());
    let Err(ClientError::Refused(problem)) = both else {
        panic!("{both:?}");
    };
    assert!(
        problem.detail.contains("service web is that"),
        "{problem:?}"
    );
    // The page's weight, and that of the command line, is of what it has.
    runs(&machine, "web");
    let said = machine.say(&["set", "web", "--weight", "3", "send=8Mbit/s"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let settings = service(&machine, "web").settings;
    assert!(settings.calls.is_none() && settings.send.is_some_and(|of| of.weight == Some(3)));
}

#[test]
fn a_bonsai_run_of_the_same_name_is_said() {
    let name = "a_bonsai_run_of_the_same_name_is_said";
    let config = "[services.web]\ntarget = \"v1\"\n";
    let Some(machine) = Machine::new(name, config) else {
        return;
    };
    runs(&machine, "web");
    let Some(library) = crate::support::library() else {
        return skip(name, "libbonsai_preload.so is not built (make build)");
    };
    let begun = machine.place.path().join(".begun");
    let line = format!("echo > {}; exec sleep 30", begun.display());
    let mut command = machine
        .place
        .bonsai(&["run", "--name", "web", "--", "sh", "-c", &line]);
    let mut other = command
        .env("BONSAI_PRELOAD", library)
        .spawn()
        .expect("bonsai");
    machine.until("it is said", || {
        let status = machine.client().status().expect("status");
        status.problems.iter().any(|of| of.contains("called web"))
    });
    assert_eq!(service(&machine, "web").target.as_deref(), Some("v1"));
    // Ceilings of the service with a target are none of its own, not even for the time up to the daemon's first look: with those
    // the program could not begin, and nothing would change that.
    machine.until("the program has begun", || begun.exists());
    // Passed on to the program.
    crate::support::signal(other.id(), "TERM");
    other.wait().expect("ended");
}
