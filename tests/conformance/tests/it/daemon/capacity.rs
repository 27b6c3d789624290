//! Capacities that are measured.

use std::time::{Duration, Instant};

use conformance::skip;
use rustix::fs::{Mode, OFlags, open};
use serde_json::{Value, json};

use super::fixture::Ring;

/// A folder on a disk, for the tests that need one.
fn disk(test: &str, ring: &Ring) -> Option<String> {
    let folder = ring.config().parent().expect("a folder").to_owned();
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::DIRECT;
    if open(&folder, flags, Mode::RUSR | Mode::WUSR).is_err() {
        skip(
            test,
            "the folder of the tests is on no disk that reads and writes directly",
        );
        return None;
    }
    folder.to_str().map(str::to_owned)
}

fn probe(ring: &Ring, body: &Value) -> super::fixture::Answer {
    ring.ask("POST", "/v1/capacity/probe", &body.to_string())
}

/// Files of that folder, and blocks that they take.
fn files(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        entry
            .expect("an entry")
            .file_name()
            .to_string_lossy()
            .into_owned()
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

/// What the measurement of a disk says; for as long as it takes, since others may keep the disk busy.
fn measured(ring: &Ring, args: &[&str]) -> String {
    let within = |time| {
        let probe = [&["capacity", "probe"], args, &["--for", time]].concat();
        let said = ring.say(&probe);
        let is_short = said.stderr.contains("measure for longer");
        assert!(said.status.success() || is_short, "{probe:?}: {said:?}");
        (!is_short).then_some(said.stdout)
    };
    let mut times = ["1s", "4s", "16s"].into_iter();
    times.find_map(within).expect("it is measured in 16 s")
}

#[test]
fn a_disk_is_measured_and_configured_only_when_that_is_wanted() {
    let ring = Ring::started("");
    let Some(folder) = disk("a_disk_is_measured", &ring) else {
        return;
    };
    let before = files(&folder);
    for resource in ["read", "write"] {
        let start = Instant::now();
        let said = measured(&ring, &[resource, "--path", &folder, "--json"]);
        let said: Value = serde_json::from_str(&said).expect("JSON");
        assert!(start.elapsed() < Duration::from_secs(90), "bounded");
        let probed = &said["probed"];
        let of = |field: &str| probed[field].as_f64().expect(field);
        assert!(0.0 < of("low") && of("low") <= of("median") && of("median") <= of("high"));
        assert!(
            probed["slices"]
                .as_array()
                .is_some_and(|slices| slices.len() >= 3),
            "{said}"
        );
        // Never faster than what was really moved in that time.
        assert!(of("moved") > 0.0 && of("moved") <= (5_u64 << 30) as f64 || resource == "read");
        assert!(
            probed["reason"]
                .as_str()
                .is_some_and(|r| r.starts_with("measured on "))
        );
        assert_eq!(said["changed"], Value::Null);
        assert_eq!(files(&folder), before, "nothing is left");
    }
    assert_eq!(
        ring.get("/v1/status")["capacity"],
        json!({}),
        "nothing was configured"
    );
    let show = ring.done(&["capacity", "show"]);
    assert_eq!(show.matches("not configured").count(), 5, "{show}");
    measured(&ring, &["read", "--path", &folder, "--apply"]);
    assert!(ring.get("/v1/status")["capacity"]["read"].as_f64() > Some(0.0));
    let show = ring.done(&["capacity", "show"]);
    assert!(
        show.contains("measured on ") && show.contains("median"),
        "{show}"
    );
    let log = ring.done(&["log"]);
    assert!(
        log.contains("change: measured on ") && log.contains("capacity.read nothing -> "),
        "{log}"
    );
    ring.done(&["undo"]);
    assert_eq!(ring.get("/v1/status")["capacity"], json!({}));
}

#[test]
fn what_services_do_meanwhile_is_counted_and_decided_on() {
    let ring = Ring::started("[daemon]\nperiod = \"50ms\"\n");
    let Some(folder) = disk("what_services_do_meanwhile_is_counted", &ring) else {
        return;
    };
    // Somebody else writes to the same disk, past its caches.
    let busy = format!("{folder}/busy");
    let mut command = std::process::Command::new("/bin/dd");
    command.args(["if=/dev/zero", &format!("of={busy}"), "bs=1M", "count=64"]);
    command.args(["oflag=direct", "status=none"]);
    assert!(command.status().expect("dd").success());
    let mut command = std::process::Command::new("/bin/sh");
    command.args([
        "-c",
        "while :; do dd if=\"$0\" of=/dev/null bs=1M iflag=direct status=none; done",
    ]);
    command.arg(&busy);
    let _busy = super::fixture::Ends(command.spawn().expect("it starts"));
    let periods = |ring: &Ring| {
        ring.get("/v1/status")["periods"]
            .as_u64()
            .expect("a number")
    };
    let before = periods(&ring);
    let start = Instant::now();
    let body = json!({"resource": "read", "path": folder, "for": "2s"});
    let answer = std::thread::scope(|scope| {
        let asked = scope.spawn(|| probe(&ring, &body));
        std::thread::sleep(Duration::from_millis(500));
        // One at a time, and nobody else waits for it.
        let second = probe(&ring, &body);
        assert_eq!(second.status, 409, "{second:?}");
        asked.join().expect("an answer")
    });
    assert_eq!(answer.status, 200, "{answer:?}");
    let decided = periods(&ring) - before;
    assert!(decided >= 10, "{decided} periods in {:?}", start.elapsed());
    let probed = answer.json();
    if probed["others"].is_null() {
        skip(
            "what_services_do_meanwhile_is_counted",
            "the kernel does not count this file system's device",
        );
        return;
    }
    assert!(probed["others"].as_f64() > Some(0.0), "{probed}");
    // On a machine with more to do than this, they may hardly have come to it.
    if probed["others"].as_f64() > probed["median"].as_f64().map(|median| median / 4.0) {
        let doubts = probed["doubts"].to_string();
        assert!(doubts.contains("others were busy"), "{probed}");
    }
}

#[test]
fn what_cannot_be_measured_is_said() {
    let ring = Ring::started("");
    let file = ring.config().display().to_string();
    for (body, status, expected) in [
        (json!({"resource": "calls"}), 422, "cannot be measured"),
        (
            json!({"resource": "send", "interface": "lo"}),
            422,
            "no speed of its own",
        ),
        (
            json!({"resource": "recv", "interface": "../lo"}),
            422,
            "no network interface",
        ),
        (
            json!({"resource": "send", "path": "/"}),
            422,
            "is of a link",
        ),
        (
            json!({"resource": "read", "interface": "lo"}),
            422,
            "is of a disk",
        ),
        (
            json!({"resource": "read", "path": "here"}),
            422,
            "no whole path",
        ),
        (json!({"resource": "read", "path": file}), 422, "no folder"),
        (
            json!({"resource": "write", "path": "/proc"}),
            422,
            "/proc: ",
        ),
        (json!({"resource": "read", "for": "21s"}), 422, "1s to 20s"),
        (json!({"resource": "read", "for": "10ms"}), 422, "1s to 20s"),
        (
            json!({"resource": "read", "apply": true}),
            400,
            "there is no setting",
        ),
        (json!({"resource": "disk"}), 400, "there is no word"),
    ] {
        let answer = probe(&ring, &body);
        assert_eq!(answer.status, status, "{body}: {answer:?}");
        assert!(answer.body.contains(expected), "{body}: {answer:?}");
    }
    ring.refused(&["capacity", "probe", "calls"], "cannot be measured");
    ring.refused(
        &["capacity", "probe", "send", "--interface", "lo"],
        "configure",
    );
    let shares = ring.done(&["shares"]);
    assert!(shares.contains("no capacity is configured"), "{shares}");
    // Who may only look may not measure either.
    let mut listening = Ring::new("");
    let said = listening.start(&["--listen", "127.0.0.1:0"]);
    let address = said
        .trim()
        .rsplit(' ')
        .next()
        .expect("an address")
        .to_owned();
    let token = listening.done(&["token", "create", "eyes", "--scope", "read"]);
    let token = token
        .split_whitespace()
        .find(|word| word.len() == 64)
        .expect("a token");
    let headers = [
        format!("authorization: Bearer {token}"),
        format!("host: {address}"),
    ];
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    let body = json!({"resource": "calls"}).to_string();
    let text = super::fixture::request("POST", "/v1/capacity/probe", &headers, &body);
    let answer = super::fixture::over_tcp(&address, &text);
    assert_eq!(answer.status, 403, "{answer:?}");
}
