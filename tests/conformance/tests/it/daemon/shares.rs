//! Who gets how much.

use std::process::Stdio;
use std::time::{Duration, Instant};

use super::fixture::{Ends, RATE, Ring};

/// What may be ahead in a window: a burst of 20 ms, a round of the pool, leases, and the calls
/// that were under way at either end.
const AHEAD: u64 = RATE / 20 + 16 * 16_384;

const FILE: &str = "[capacity]\nread = \"20MB/s\"\n[services.vod.read]\nmin = \"15MB/s\"\n";

/// What both get in a while: together never more than there is.
fn together_at_most(ring: &Ring, rate: u64, names: &[&str], what: &str) -> Vec<u64> {
    let read = || {
        names
            .iter()
            .map(|name| ring.bytes_read(name))
            .collect::<Vec<u64>>()
    };
    // The window begins before the first is read, and ends after the last.
    let start = Instant::now();
    let before = read();
    std::thread::sleep(Duration::from_millis(700));
    let after = read();
    let time = start.elapsed().as_secs_f64();
    let got: Vec<u64> = after
        .iter()
        .zip(&before)
        .map(|(after, before)| after - before)
        .collect();
    #[expect(clippy::cast_precision_loss, reason = "amounts are small")]
    let (sum, most) = (
        got.iter().sum::<u64>() as f64,
        rate as f64 * time + AHEAD as f64,
    );
    assert!(sum <= most, "{what}: {got:?} bytes in {time} s");
    got
}

fn is_pooled(ring: &Ring, name: &str) {
    ring.until(&format!("{name} is in the pool"), |ring| {
        ring.of(name, "read")["enforced"] == "pool"
    });
}

#[test]
fn services_that_run_are_adopted_and_share_what_there_is() {
    let mut ring = Ring::new(FILE);
    let _vod = ring.reader("vod");
    ring.start(&[]);
    is_pooled(&ring, "vod");
    // It borrows all of it, until somebody comes.
    together_at_most(&ring, RATE, &["vod"], "alone");
    let _bulk = ring.reader("bulk");
    is_pooled(&ring, "bulk");
    std::thread::sleep(Duration::from_millis(100));
    // A daemon that gets no processor for a window shows the same numbers twice.
    let windows = || together_at_most(&ring, RATE, &["vod", "bulk"], "both");
    let got = std::iter::repeat_with(windows)
        .take(10)
        .find(|got| got.iter().sum::<u64>() > 0)
        .expect("something is read");
    // 15 MB/s and half of the 5 that are left, against the other half: 7 to 1.
    assert!(got[0] > 2 * got[1], "the guarantee: {got:?}");
    let of = ring.of("vod", "read");
    assert_eq!(of["min"], 15_000_000.0, "{of}");
    let table = ring.done(&["shares"]);
    assert!(table.contains("15 MB/s"), "{table}");
}

#[test]
fn a_change_is_in_force_when_it_is_answered_and_can_be_taken_back() {
    let ring = Ring::started(FILE);
    let _bulk = ring.reader("bulk");
    is_pooled(&ring, "bulk");
    let said = ring.done(&["set", "bulk", "read=2MB/s", "--reason", "a test"]);
    assert_eq!(said, "bulk.read.max: nothing -> 2MB/s\n");
    together_at_most(&ring, 2_000_000, &["bulk"], "under a ceiling");
    let said = ring.done(&["log", "bulk"]);
    assert!(
        said.contains("change: a test") && said.contains("bulk.read.max nothing -> 2MB/s"),
        "{said}"
    );
    let said = ring.done(&["undo"]);
    let (whose, what) = said.split_once('\n').expect("lines");
    assert!(
        whose.starts_with("the change of ") && whose.contains(", revision "),
        "{said}"
    );
    assert_eq!(what, "bulk.read.max: 2MB/s -> nothing\n");
    assert!(ring.of("bulk", "read")["max"].is_null());
    ring.refused(&["undo"], "there is no change to undo");
}

#[test]
fn an_undo_says_whose_change_it_takes_back() {
    let ring = Ring::started(FILE);
    ring.done(&["token", "create", "other", "--scope", "write"]);
    ring.done(&["config", "set", "services.vod.send.weight=7"]);
    let revision = ring.get("/v1/status")["revision"]
        .as_u64()
        .expect("a number");
    let actor = ring.get("/v1/audit?limit=1")["entries"][0]["actor"].clone();
    let would = ring.ask("POST", "/v1/undo?dry_run=true", "{}");
    assert_eq!(would.status, 200, "{would:?}");
    let would = would.json();
    assert_eq!(would["undone"][0]["actor"], actor);
    assert_eq!(would["undone"][0]["revision"], revision);
    assert_eq!(would["differences"][0]["path"], "services.vod.send.weight");
    assert_eq!(
        ring.get("/v1/status")["revision"],
        revision,
        "nothing was done"
    );
    let whose = format!(
        "the change of {}, revision {revision}\n",
        actor.as_str().expect("a name")
    );
    assert!(ring.done(&["undo", "--dry-run"]).starts_with(&whose));
    assert_eq!(
        ring.get("/v1/status")["revision"],
        revision,
        "nothing was done"
    );
    let undone: serde_json::Value =
        serde_json::from_str(&ring.done(&["undo", "--json"])).expect("JSON");
    assert_eq!(undone["undone"], would["undone"]);
    assert_eq!(undone["differences"], would["differences"]);
    ring.refused(
        &["undo", "--dry-run", "--to", "4000000000"],
        "no change to undo",
    );
}

#[test]
fn a_dry_run_changes_nothing_and_says_what_all_would_get() {
    let ring = Ring::started(FILE);
    let _bulk = ring.reader("bulk");
    is_pooled(&ring, "bulk");
    let before = ring.get("/v1/config");
    let said = ring.done(&["set", "bulk", "read=2MB/s", "--dry-run"]);
    assert!(
        said.contains("nothing was changed") && said.contains("2 MB/s"),
        "{said}"
    );
    assert_eq!(ring.get("/v1/config"), before);
    assert!(ring.of("bulk", "read")["max"].is_null());
}

#[test]
fn a_change_for_a_time_ends_by_itself() {
    let ring = Ring::started(FILE);
    let _bulk = ring.reader("bulk");
    is_pooled(&ring, "bulk");
    ring.done(&["set", "bulk", "read=2MB/s", "--for", "1s"]);
    assert_eq!(ring.of("bulk", "read")["max"], 2_000_000.0);
    ring.until("it has ended", |ring| {
        ring.of("bulk", "read")["max"].is_null()
    });
    let said = ring.done(&["log"]);
    assert!(
        said.contains("timer, expire: a change for a time, made by"),
        "{said}"
    );
}

#[test]
fn without_a_pool_each_has_a_limit_that_follows_its_share() {
    let file = format!("{FILE}[daemon]\npool = false\n");
    let ring = Ring::started(&file);
    let (_vod, _bulk) = (ring.reader("vod"), ring.reader("bulk"));
    for name in ["vod", "bulk"] {
        ring.until(&format!("{name} has a limit"), |ring| {
            ring.of(name, "read")["enforced"] == "limit"
        });
    }
    // Limits are made when both are known to want more; then they hold.
    std::thread::sleep(Duration::from_millis(500));
    together_at_most(&ring, RATE, &["vod", "bulk"], "by limits");
    let status = ring.done(&["status", "vod"]);
    assert!(status.contains("read/daemon"), "{status}");
    ring.refused(
        &["set", "--direct", "vod", "read/daemon=1MB/s"],
        "the daemon sets by itself",
    );
}

#[test]
fn other_limits_of_a_service_are_set_and_lifted() {
    let ring = Ring::started(FILE);
    let _bulk = ring.reader("bulk");
    is_pooled(&ring, "bulk");
    ring.done(&["set", "bulk", "open=5/s"]);
    assert!(ring.done(&["status", "bulk"]).contains("open"));
    ring.done(&["set", "bulk", "open=unlimited"]);
    assert!(!ring.done(&["status", "bulk"]).contains("open"));
    ring.refused(
        &["set", "bulk", "opne=5/s"],
        "there is no call or class \"opne\"",
    );
    ring.refused(
        &["set", "bulk", "--min", "open=5/s"],
        "the daemon shares out read, write",
    );
}

#[test]
fn guarantees_that_do_not_fit_are_refused_with_the_arithmetic() {
    let ring = Ring::started(FILE);
    let _bulk = ring.reader("bulk");
    is_pooled(&ring, "bulk");
    ring.refused(&["set", "bulk", "--min", "read=6MB/s"], "21 MB/s");
    ring.done(&["config", "set", "policy.overcommit=scale"]);
    ring.done(&["set", "bulk", "--min", "read=5MB/s"]);
    ring.done(&["set", "bulk", "--min", "read=15MB/s"]);
    let [vod, bulk] = ["vod", "bulk"].map(|name| ring.get(&format!("/v1/services/{name}")));
    assert_eq!(bulk["resources"][0]["min"], 10_000_000.0, "{vod} {bulk}");
}

#[test]
fn whether_streams_fit_is_answered_with_a_reason() {
    let ring = Ring::started(FILE);
    let _bulk = ring.reader("bulk");
    is_pooled(&ring, "bulk");
    let asked = |service, streams| {
        let (of, rate) = (["--resource", "read"], ["--rate", "1MB/s"]);
        let args = [&["admit", service, "--streams", streams][..], &of, &rate];
        ring.say(&args.concat())
    };
    // Of the 15 MB/s that it is promised, it needs nothing yet.
    let said = asked("vod", "1");
    assert!(said.stdout.starts_with("yes: "), "{said:?}");
    // One that takes all there is wants all of that promised, and more.
    let said = asked("bulk", "30");
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    assert!(said.stdout.starts_with("no: "), "{said:?}");
    ring.refused(
        &["admit", "bulk", "--rate", "1MB/s", "--streams", "1"],
        "send has no capacity",
    );
    ring.refused(
        &["admit", "nobody", "--rate", "1MB/s", "--streams", "1"],
        "nobody",
    );
}

#[test]
fn what_is_written_in_bits_is_repeated_in_bits() {
    let ring = Ring::started("[capacity]\nsend = \"1Gbit/s\"\nrecv = \"125MB/s\"\n");
    ring.done(&["config", "set", "services.vod.mode=static"]);
    let said = ring.done(&[
        "set",
        "vod",
        "send=40Mbit/s",
        "recv=5MB/s",
        "--min",
        "send=1.5Mbit/s",
    ]);
    let all = [
        said,
        ring.done(&["log"]),
        ring.done(&["config", "show"]),
        ring.get("/v1/config").to_string(),
    ]
    .concat();
    for (text, least) in [
        ("40Mbit/s", 4),
        ("1.5Mbit/s", 4),
        ("5MB/s", 4),
        ("1Gbit/s", 2),
    ] {
        assert!(all.matches(text).count() >= least, "{text}: {all}");
    }
    for text in ["125000000B/s", "187.5kB/s"] {
        assert!(!all.contains(text), "{text}: {all}");
    }
    assert_eq!(ring.get("/v1/status")["capacity"]["send"], 125e6);
}

#[test]
fn services_beyond_the_pool_have_a_note_and_no_problem() {
    let ring = Ring::started(FILE);
    let sleeper = |number: usize| {
        let mut command = ring.command(&[
            "run",
            "--name",
            &format!("s{number}"),
            "--",
            "/bin/sleep",
            "600",
        ]);
        let command = command.stdin(Stdio::null()).stderr(Stdio::null());
        Ends(command.spawn().expect("it starts"))
    };
    let _sleepers: Vec<_> = (0..68).map(sleeper).collect();
    let beyond = |ring: &Ring| {
        let services = ring.get("/v1/services")["services"].clone();
        let services = services.as_array().cloned().expect("services");
        let noted = |service: &&serde_json::Value| {
            service["notes"].to_string().contains("the pool is full")
        };
        services.iter().filter(noted).cloned().collect::<Vec<_>>()
    };
    ring.until("some are beyond the pool", |ring| beyond(ring).len() == 4);
    for service in beyond(&ring) {
        assert_eq!(service["problems"], serde_json::json!([]), "{service}");
    }
    let shares = ring.done(&["shares"]);
    let lines: Vec<_> = shares
        .lines()
        .filter(|line| line.contains("the pool is full"))
        .collect();
    assert!(
        lines.len() == 1 && lines[0].contains(" and 3 more: "),
        "{lines:?}"
    );
}
