//! Interfaces, kept by root's daemon: in network namespaces that last as long as the test.

mod groups;
pub(crate) mod machine;
mod others;
mod partial;

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use bonsai_api::{LinkBy, LinkState};
use bonsai_client::{ClientError, How};
use bonsai_link::namespace;
use serde_json::json;

use self::machine::{Machine, run, spawned};
use crate::support::{Place, Said, skip};

fn refused(error: ClientError) -> (u16, String) {
    match error {
        ClientError::Refused(problem) => (problem.status, problem.detail),
        other => panic!("{other}"),
    }
}

#[test]
fn what_is_configured_is_in_force_and_what_comes_later_is_limited_then() {
    let config = "[links.v1]\ntx = \"8Mbit/s\"\n[links.later]\nrx = \"4Mbit/s\"\n";
    let name = "what_is_configured_is_in_force_and_what_comes_later_is_limited_then";
    let Some(machine) = Machine::new(name, config) else {
        return;
    };
    machine.until("the limit", || machine.has("v1", "8Mbit"));
    let v1 = machine.link("v1");
    assert_eq!(v1.tx_limit, Some(1_000_000));
    assert_eq!(v1.by, Some(LinkBy::Configuration));
    let later = machine.link("later");
    assert_eq!((later.state, later.index), (LinkState::Waiting, 0));
    machine.pair("later", "eth1");
    machine.until("the limit of what came", || {
        machine.has("bonsai-ifb", "4Mbit")
    });
    machine.until("it is said", || {
        machine.link("later").state == LinkState::InForce
    });
    // One that comes again gets it again.
    machine.host("ip link del later");
    machine.until("it waits", || {
        machine.link("later").state == LinkState::Waiting
    });
    machine.pair("later", "eth1");
    machine.until("the limit again", || machine.has("bonsai-ifb", "4Mbit"));
}

#[test]
fn a_change_by_rest_is_in_force_when_it_is_answered() {
    let Some(machine) = Machine::new("a_change_by_rest_is_in_force_when_it_is_answered", "") else {
        return;
    };
    let before = machine.host("tc qdisc show dev v1");
    let client = machine.client();
    let how = How {
        reason: Some("too loud".to_owned()),
        ..How::default()
    };
    for (rate, shown) in [("20Mbit/s", "20Mbit"), ("5Mbit/s", "5Mbit")] {
        let changed = client.change_link("v1", &json!({"tx": rate}), &how);
        let changed = changed.expect("changed");
        assert!(changed.in_force, "{changed:?}");
        assert!(machine.has("v1", shown), "{rate}");
    }
    let audit = client.audit(None, None, 10).expect("the trail");
    let entry = &audit.entries[0];
    assert_eq!(entry.reason, "too loud");
    assert_eq!(entry.differences[0].path, "links.v1.tx");
    assert_eq!(entry.differences[0].from.as_deref(), Some("20Mbit/s"));
    let metrics = machine.metrics();
    for line in [
        "bonsai_link_limit_bytes_per_second{target=\"v1\",direction=\"tx\"} 625000.0",
        "bonsai_link_in_force{target=\"v1\"} 1.0",
        "bonsai_link_backlog_bytes{target=\"v1\"} 0.0",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let dashboard = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../packaging/grafana/bonsai.json"
    );
    let dashboard = std::fs::read_to_string(dashboard).expect("a dashboard");
    let names = dashboard.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = names.filter(|name| name.starts_with("bonsai_link_"));
    for name in names {
        let has = |line: &str| line.split(['{', ' ']).next() == Some(name);
        assert!(metrics.lines().any(has), "{name}: {metrics}");
    }
    // Back by one step, and then all away.
    client.undo(None, false).expect("undone");
    machine.until("the rate before", || machine.has("v1", "20Mbit"));
    let changed = client.clear_link("v1", &How::default()).expect("cleared");
    assert!(changed.in_force, "{changed:?}");
    assert_eq!(machine.host("tc qdisc show dev v1"), before);
    assert_eq!(machine.link("v1").state, LinkState::Free);
}

#[test]
fn the_command_goes_through_the_daemon() {
    let Some(machine) = Machine::new("the_command_goes_through_the_daemon", "") else {
        return;
    };
    let said = machine.say(&["link", "set", "v1", "tx=8Mbit/s", "--dry-run"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.out.contains("links.v1.tx: nothing -> 8Mbit/s"),
        "{said:?}"
    );
    assert!(!machine.has("v1", "8Mbit"));
    let said = machine.say(&["link", "set", "v1", "tx=8Mbit/s", "rx=9Mbit/s"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains("v1: in force"), "{said:?}");
    assert!(machine.has("v1", "8Mbit") && machine.has("bonsai-ifb", "9Mbit"));
    // For a time, then what was before is back.
    let said = machine.say(&["link", "set", "v1", "tx=2Mbit/s", "--for", "1s"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(machine.has("v1", "2Mbit"));
    machine.until("its end", || machine.has("v1", "8Mbit"));
    // What the kernel has is in the record a moment later.
    machine.until("it is listed", || {
        let said = machine.say(&["link", "ls", "--limited", "--for", "10ms"]);
        said.out.contains("in force") && said.out.contains("8Mbit/s")
    });
    let said = machine.say(&["link", "clear", "v1"]);
    assert!(said.out.contains("v1: as it was before"), "{said:?}");
    let said = machine.say(&["link", "set", "v1", "tx=8Mbit/s"]);
    assert!(said.out.contains("v1: in force"), "{said:?}");
    let said = machine.say(&["link", "set", "v1", "tx=unlimited"]);
    assert!(said.out.contains("v1: as it was before"), "{said:?}");
    assert!(machine.client().config().expect("it").links.is_empty());
    assert!(!machine.has("v1", "8Mbit"));
    assert!(!machine.host("ip link").contains("bonsai-ifb"));
}

#[test]
fn all_limits_go_at_once_and_one_that_the_file_gets_later_holds() {
    let file = "[links.v1]\ntx = \"8Mbit/s\"\n";
    let test = "all_limits_go_at_once_and_one_that_the_file_gets_later_holds";
    let Some(mut machine) = Machine::new(test, file) else {
        return;
    };
    machine.pair("v2", "eth1");
    machine.until("the limit", || machine.has("v1", "8Mbit"));
    machine.kill();
    let said = machine.say(&["link", "set", "v2", "tx=7Mbit/s"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    machine.start();
    machine.until("both are shown", || {
        let said = machine.say(&["link", "ls", "--limited", "--for", "10ms"]);
        said.out.contains("v1") && said.out.contains("by hand")
    });
    let said = machine.say(&["link", "clear", "--all", "--dry-run"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    for expected in [
        "links.v1.tx: 8Mbit/s -> nothing",
        "v2: would be as it was before",
    ] {
        assert!(said.out.contains(expected), "{expected}: {said:?}");
    }
    assert!(machine.has("v1", "8Mbit") && machine.has("v2", "7Mbit"));
    let said = machine.say(&["link", "clear", "--all"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains("v2: as it was before"), "{said:?}");
    assert!(!machine.has("v1", "8Mbit") && !machine.has("v2", "7Mbit"));
    // Only limits that there were are taken away: the file may have others.
    let more = format!("{file}[links.v2]\ntx = \"6Mbit/s\"\n");
    std::fs::write(machine.place.path().join("bonsai.toml"), more).expect("written");
    machine.until("the limit of the file", || machine.has("v2", "6Mbit"));
    assert!(!machine.has("v1", "8Mbit"), "it is taken away");
}

#[test]
fn what_others_change_is_put_right_and_said() {
    let config = "[links.v1]\ntx = \"8Mbit/s\"\nrx = \"9Mbit/s\"\n";
    let Some(machine) = Machine::new("what_others_change_is_put_right_and_said", config) else {
        return;
    };
    let whole = || machine.has("v1", "8Mbit") && machine.has("bonsai-ifb", "9Mbit");
    machine.until("the limit", whole);
    for hand in [
        "tc qdisc del dev v1 root",
        "tc qdisc del dev v1 clsact",
        "ip link del bonsai-ifb",
    ] {
        machine.host(hand);
        machine.until(hand, whole);
    }
    let client = machine.client();
    machine.until("it is said", || {
        let audit = client.audit(None, None, 50).expect("the trail");
        audit.entries.iter().any(|entry| entry.action == "repair")
    });
    // A program that goes on is not answered without end, and is told of after ten repairs. Between two are up to
    // five times what one takes.
    machine.until_in(Duration::from_secs(120), "the alarm", || {
        let gone = namespace::inside(machine.host.as_fd(), || {
            Command::new("tc")
                .args(["qdisc", "del", "dev", "v1", "root"])
                .stderr(Stdio::null())
                .status()
        });
        gone.expect("entered").expect("tc");
        let audit = client.audit(None, None, 5).expect("the trail");
        audit.entries.iter().any(|entry| entry.action == "alarm")
    });
    machine.until("it is put right all the same", whole);
}

#[test]
fn a_killed_daemon_leaves_limits_and_the_next_one_heals() {
    let config = "[links.v1]\ntx = \"8Mbit/s\"\n";
    let name = "a_killed_daemon_leaves_limits_and_the_next_one_heals";
    let Some(mut machine) = Machine::new(name, config) else {
        return;
    };
    machine.until("the limit", || machine.has("v1", "8Mbit"));
    let client = machine.client();
    let changed = client.change_link("v1", &json!({"tx": "6Mbit/s"}), &How::default());
    assert!(changed.expect("changed").in_force);
    machine.kill();
    assert!(machine.has("v1", "6Mbit"));
    machine.host("tc qdisc del dev v1 root");
    machine.start();
    machine.until("healed", || machine.has("v1", "6Mbit"));
    // What is wanted no more when the next one starts is taken away by it.
    machine.kill();
    std::fs::write(machine.place.path().join("bonsai.toml"), "").expect("written");
    let _ = std::fs::remove_file(machine.state.path().join("changes.json"));
    machine.start();
    machine.until("given free", || !machine.has("v1", "6Mbit"));
}

#[test]
fn a_daemon_that_starts_again_touches_nothing() {
    let config = "[links.v1]\ntx = \"8Mbit/s\"\n";
    let name = "a_daemon_that_starts_again_touches_nothing";
    let Some(mut machine) = Machine::new(name, config) else {
        return;
    };
    machine.until("the limit", || machine.has("v1", "8Mbit"));
    machine.kill();
    let mut tc = Command::new("tc");
    let mut monitor = spawned(&machine.host, tc.arg("monitor").stdout(Stdio::piped()));
    let mut heard = BufReader::new(monitor.stdout.take().expect("its output")).lines();
    // Whether it listened before the daemon started is told by this.
    std::thread::sleep(Duration::from_millis(200));
    machine.host("tc qdisc replace dev lo root pfifo limit 7");
    machine.start();
    machine.until("it is in force", || {
        machine.link("v1").state == LinkState::InForce
    });
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
    assert!(!heard.iter().any(|line| line.contains("v1")), "{heard:#?}");
}

#[test]
fn what_was_done_by_hand_stays_and_comes_back() {
    let Some(mut machine) = Machine::new("what_was_done_by_hand_stays_and_comes_back", "") else {
        return;
    };
    machine.kill();
    let said = machine.say(&["link", "set", "v1", "tx=8Mbit/s", "rx=9Mbit/s"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    machine.start();
    machine.until("it is shown", || {
        machine.link("v1").by == Some(LinkBy::Hand)
    });
    // What is not said stays.
    let client = machine.client();
    let changed = client.change_link("v1", &json!({"tx": "3Mbit/s"}), &How::default());
    assert!(changed.expect("changed").in_force);
    assert!(machine.has("v1", "3Mbit") && machine.has("bonsai-ifb", "9Mbit"));
    assert!(
        client
            .clear_link("v1", &How::default())
            .expect("cleared")
            .in_force
    );
    assert!(machine.has("v1", "8Mbit") && machine.has("bonsai-ifb", "9Mbit"));
    assert_eq!(machine.link("v1").by, Some(LinkBy::Hand));
    let said = machine.say(&["link", "clear", "v1"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(!machine.has("v1", "8Mbit"));
}

#[test]
fn one_that_cannot_be_does_not_hinder_the_others() {
    let config = "[links.v1]\ntx = \"8Mbit/s\"\n[links.v2]\ntx = \"7Mbit/s\"\n";
    let name = "one_that_cannot_be_does_not_hinder_the_others";
    let Some(machine) = Machine::new(name, "") else {
        return;
    };
    machine.pair("v2", "eth1");
    machine.host("tc qdisc add dev v2 root handle 7: pfifo limit 77");
    std::fs::write(machine.place.path().join("bonsai.toml"), config).expect("written");
    machine.until("the limit of the one", || machine.has("v1", "8Mbit"));
    machine.until("the problem of the other", || {
        let v2 = machine.link("v2");
        v2.state == LinkState::Problem && v2.problem.is_some_and(|why| why.contains("pfifo"))
    });
    // Taken over when that is said, and back afterwards.
    let client = machine.client();
    let changed = client.change_link("v2", &json!({"adopt": true}), &How::default());
    assert!(changed.expect("changed").in_force);
    assert!(machine.has("v2", "7Mbit"));
    client.undo(None, false).expect("undone");
    let cleared = client.clear_link("v2", &How::default()).expect("cleared");
    assert!(cleared.in_force, "{cleared:?}");
    let qdisc = machine.host("tc qdisc show dev v2");
    assert!(
        qdisc.contains("pfifo 7: root") && qdisc.contains("limit 77p"),
        "{qdisc}"
    );
    assert!(machine.has("v1", "8Mbit"));
}

#[test]
fn a_namespace_is_limited_at_our_end_and_guarantees_are_not_overcommitted() {
    let name = "a_namespace_is_limited_at_our_end_and_guarantees_are_not_overcommitted";
    let Some(machine) = Machine::new(name, "") else {
        return;
    };
    machine.pair("out", "eth9");
    let mut inside = Command::new("sleep");
    let mut inside = spawned(&machine.guest, inside.arg("60"));
    let target = format!("netns:{}/eth0", inside.id());
    let client = machine.client();
    let change = |target: &str, patch: serde_json::Value| {
        let changed = client.change_link(target, &patch, &How::default());
        changed.map_err(refused)
    };
    let changed = change(&target, json!({"tx": "8Mbit/s"})).expect("changed");
    assert!(changed.in_force, "{changed:?}");
    // What the guest sends is what our end receives.
    assert!(machine.has("bonsai-ifb", "8Mbit"));
    let view = machine.link(&target);
    assert_eq!((view.name.as_str(), view.swapped), ("v1", true));
    let (status, why) = change("v1", json!({"tx": "1Mbit/s"})).expect_err("the same");
    assert!(status == 409 && why.contains(&target), "{why}");
    assert!(
        change("out", json!({"tx": "10Mbit/s"}))
            .expect("changed")
            .in_force
    );
    let share = json!({"guarantee": "6Mbit/s", "uplink": "out"});
    assert!(change(&target, share).expect("changed").in_force);
    assert!(machine.has("out", "6Mbit"));
    let (status, why) = change("later", json!({"guarantee": "5Mbit/s", "uplink": "out"}))
        .expect_err("more than there is");
    assert!(
        status == 422 && why.contains("1Mbit/s more than its tx"),
        "{why}"
    );
    // What has no end here is limited inside, for as long as somebody is there.
    run(&machine.guest, "ip link add d0 type veth peer name d1");
    let inner = format!("netns:{}/d0", inside.id());
    let changed = change(&inner, json!({"tx": "3Mbit/s"})).expect("changed");
    assert!(changed.in_force, "{changed:?}");
    let there = || run(&machine.guest, "tc class show dev d0").contains("rate 3Mbit ");
    assert!(there());
    run(&machine.guest, "tc qdisc del dev d0 root");
    machine.until("it is put right inside, too", there);
    inside.kill().expect("ended");
    inside.wait().expect("ended");
    machine.until("they wait", || {
        [&target, &inner]
            .iter()
            .all(|of| machine.link(of).state == LinkState::Waiting)
    });
    machine.until("our end is free", || !machine.has("bonsai-ifb", "8Mbit"));
}

#[test]
fn a_users_daemon_has_no_interfaces() {
    let name = "a_users_daemon_has_no_interfaces";
    if !rustix::process::geteuid().is_root() {
        return skip(name, "becoming somebody else needs root");
    }
    for (config, words) in [
        ("[links.v1]\ntx = \"8Mbit/s\"\n", "limited by root's daemon"),
        (
            "[services.web]\ntarget = \"v1\"\n",
            "governed by root's daemon",
        ),
    ] {
        let place = Place::bare();
        let file = place.path().join("bonsai.toml");
        std::fs::write(&file, config).expect("written");
        let nobody = Some(65534);
        std::os::unix::fs::chown(place.path(), nobody, nobody).expect("given away");
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .args([env!("CARGO_BIN_EXE_bonsai"), "daemon", "--config"])
            .arg(&file)
            .env("BONSAI_RUNTIME_DIR", place.path())
            .env("BONSAI_STATE_DIR", place.path().join("state"))
            .output();
        let said = match output.map(Said::from) {
            Ok(said) if !matches!(said.code, Some(126 | 127)) => said,
            _ => {
                return skip(
                    name,
                    "setpriv (util-linux) is not installed, or may not run the program",
                );
            }
        };
        assert_eq!(
            (said.code, said.err.lines().count()),
            (Some(2), 1),
            "{said:?}"
        );
        assert!(said.err.contains(words), "{said:?}");
    }
}

#[test]
fn what_makes_no_sense_and_who_may_not_is_answered_in_a_sentence() {
    let name = "what_makes_no_sense_and_who_may_not_is_answered_in_a_sentence";
    let Some(machine) = Machine::new(name, "") else {
        return;
    };
    let client = machine.client();
    for (target, patch, words) in [
        ("docker:web", json!({}), "is no target"),
        ("v1", json!({"tx": "5%"}), "links.v1.tx: 5% of what?"),
        ("v1", json!({"tx": "1bit/s"}), "out of range"),
        ("v1", json!({"weight": 0}), "1 to 1000"),
        ("v1", json!({"burst": "1h"}), "1ms to 1s"),
        ("v1", json!({"speed": "1Mbit/s"}), "there is no setting"),
        ("v1", json!([]), "JSON object"),
    ] {
        let error = client.change_link(target, &patch, &How::default());
        let (status, why) = refused(error.expect_err(words));
        assert_eq!(status, 422, "{why}");
        assert!(why.contains(words) && !why.contains('\n'), "{patch}: {why}");
    }
    let (status, _) = refused(client.clear_link("v1", &How::default()).expect_err("none"));
    assert_eq!(status, 404);
    let said = machine.say(&["link", "set", "v1", "tx=5/s"]);
    assert_eq!(
        (said.code, said.err.lines().count()),
        (Some(2), 1),
        "{said:?}"
    );
    // A user may neither look nor change.
    let socket = machine.place.path().join("daemon.sock");
    open_to_all(machine.place.path());
    let ask = |method: &str| {
        let output = Command::new("setpriv")
            .args([
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "curl",
                "-s",
                "-X",
            ])
            .args([
                method,
                "-H",
                "Content-Type: application/json",
                "-d",
                "{\"tx\":\"1Mbit/s\"}",
            ])
            .arg("--unix-socket")
            .arg(&socket)
            .arg("http://localhost/v1/links/v1")
            .output();
        output.map(Said::from)
    };
    let Ok(said) = ask("PATCH") else {
        return skip(name, "setpriv (util-linux) or curl is not installed");
    };
    assert!(said.out.contains("forbidden"), "{said:?}");
    for method in ["GET", "DELETE"] {
        let said = ask(method).expect("curl");
        assert!(said.out.contains("forbidden"), "{method}: {said:?}");
    }
    assert!(!machine.has("v1", "1Mbit"));
}

fn open_to_all(path: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("opened");
    };
    open(path, 0o711);
    open(&path.join("daemon.sock"), 0o666);
}
