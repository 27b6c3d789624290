//! Limits that a service has of its own, beside a daemon: there is one truth about them.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use super::fixture::{Ends, Ring};

const EMPTY: &str = "[policy]\nmode = \"dynamic\"\n";

/// A service that reads and writes as fast as it may, with limits of its own.
fn limited(ring: &Ring, name: &str, limits: &[&str]) -> Ends {
    let mut command = ring.command(&["run", "--name", name]);
    for limit in limits {
        command.args(["--limit", limit]);
    }
    command.args(["--", "/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=16k"]);
    let command = command.stdin(Stdio::null()).stderr(Stdio::null());
    let service = Ends(command.spawn().expect("it starts"));
    ring.until(&format!("{name} is known"), |ring| {
        let of = ring.of(name, "read");
        of != Value::Null && of["limit"].is_null() == limits.is_empty()
    });
    service
}

/// Bytes a second, over a while.
fn rate(ring: &Ring, name: &str) -> u64 {
    let before = ring.bytes_read(name);
    std::thread::sleep(Duration::from_millis(500));
    (ring.bytes_read(name) - before) * 2
}

/// Limits of the service that are none of the daemon's.
fn own(ring: &Ring, name: &str) -> Value {
    ring.get(&format!("/v1/services/{name}"))["limits"].clone()
}

#[test]
fn a_limit_of_the_service_itself_is_taken_over_by_a_change() {
    let ring = Ring::started(EMPTY);
    let _vod = limited(&ring, "vod", &["read=2MB/s"]);
    let shown = ring.of("vod", "read");
    assert_eq!(
        (&shown["limit"]["rate"], &shown["limit"]["by"]),
        (&2e6.into(), &"service".into()),
        "{shown}"
    );
    ring.until("it waits", |ring| ring.of("vod", "read")["waiting"] == true);
    let table = ring.done(&["shares"]);
    assert!(
        table.contains("2 MB/s") && table.contains("read, set by bonsai run"),
        "{table}"
    );

    let tried = ring.done(&["set", "vod", "read=20MB/s", "--dry-run"]);
    assert!(
        tried.contains("read=2MB/s of the service itself would be replaced"),
        "{tried}"
    );
    assert_eq!(own(&ring, "vod")["read"], "2MB/s", "only tried");

    let said = ring.done(&["set", "vod", "read=20MB/s"]);
    assert_eq!(said, "vod.read.max: 2MB/s -> 20MB/s\n");
    assert_eq!(own(&ring, "vod"), serde_json::json!({}));
    let shown = ring.of("vod", "read");
    assert_eq!(
        (&shown["limit"]["rate"], &shown["limit"]["by"]),
        (&2e7.into(), &"daemon".into()),
        "{shown}"
    );
    ring.until("it is faster", |ring| rate(ring, "vod") > 6_000_000);
    let log = ring.done(&["log", "vod"]);
    assert!(
        log.contains("take-over: a limit of the service itself")
            && log.contains("vod.read.max nothing -> 2MB/s"),
        "{log}"
    );

    // It is what there was before.
    ring.done(&["undo"]);
    assert_eq!(ring.of("vod", "read")["limit"]["rate"], 2e6);
    assert!(rate(&ring, "vod") < 6_000_000);
    let said = ring.done(&["set", "vod", "read=unlimited"]);
    assert_eq!(said, "vod.read.max: 2MB/s -> nothing\n");
    assert_eq!(ring.of("vod", "read")["limit"], Value::Null);
    ring.until("nothing holds it", |ring| rate(ring, "vod") > 40_000_000);
}

#[test]
fn a_limit_is_lifted_and_comes_back_after_a_time() {
    let ring = Ring::started(EMPTY);
    let _vod = limited(&ring, "vod", &["read=2MB/s"]);
    let said = ring.done(&["set", "vod", "read=unlimited", "--for", "2s"]);
    assert_eq!(said, "vod.read.max: 2MB/s -> nothing\n");
    ring.until("nothing holds it", |ring| rate(ring, "vod") > 10_000_000);
    ring.until("the time is over", |ring| {
        ring.of("vod", "read")["limit"]["rate"] == 2e6
    });
    assert!(rate(&ring, "vod") < 6_000_000);
}

#[test]
fn a_change_that_does_nothing_is_said_and_fails() {
    let ring = Ring::started(EMPTY);
    let _vod = limited(&ring, "vod", &["all=3MB/s", "all=900000/s"]);
    let shown = ring.of("vod", "read");
    assert_eq!(
        (&shown["limit"]["rate"], &shown["limit"]["name"]),
        (&3e6.into(), &"all".into()),
        "{shown}"
    );
    let said = ring.say(&["set", "vod", "read=20MB/s"]);
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    let held =
        "note: vod: all=3 MB/s, set by bonsai run, attach or set --direct, still holds for read\n";
    assert!(said.stdout.ends_with(held), "{said:?}");
    assert!(rate(&ring, "vod") < 7_000_000);
    // A lower one binds.
    ring.done(&["set", "vod", "read=1MB/s"]);
    assert_eq!(ring.of("vod", "read")["limit"]["by"], "daemon");
    // Calls are another thing than bytes, and have a limit of the same name.
    let said = ring.done(&["set", "vod", "--max", "calls=800000/s"]);
    assert_eq!(said, "vod.calls.max: 900000/s -> 800000/s\n");
    assert_eq!(own(&ring, "vod"), serde_json::json!({"all": "3MB/s"}));
}

#[test]
fn a_name_that_is_mistyped_is_no_new_service() {
    let ring = Ring::started(EMPTY);
    let _vod = limited(&ring, "vod", &[]);
    ring.refused(
        &["set", "vdo", "send=1MB/s"],
        "no service vdo runs or is configured (the nearest is vod)",
    );
    assert!(!ring.done(&["config", "show"]).contains("vdo"));
    ring.done(&["config", "set", "services.later.send.max=8Mbit/s"]);
    ring.done(&["set", "later", "send=1MB/s"]);
}
