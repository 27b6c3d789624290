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

/// A change that does nothing: exit code 1, and which limit still holds.
fn is_held(ring: &Ring, args: &[&str], said: &str) {
    let held = ring.say(args);
    assert_eq!(held.status.code(), Some(1), "{args:?}: {held:?}");
    assert_eq!(held.stdout, said, "{args:?}");
}

#[test]
fn the_limit_that_is_shown_is_the_lowest_with_its_owner() {
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
    // One that is lower is the daemon's, and binds.
    ring.done(&["set", "vod", "read=1MB/s"]);
    let shown = ring.of("vod", "read");
    assert_eq!(
        (&shown["limit"]["rate"], &shown["limit"]["by"]),
        (&1e6.into(), &"daemon".into()),
        "{shown}"
    );
    assert!(rate(&ring, "vod") < 3_000_000);
    // One that is configured under another name is the daemon's, too.
    ring.done(&["set", "vod", "all=500kB/s"]);
    ring.until("it is seen", |ring| {
        ring.of("vod", "read")["limit"]["rate"] == 5e5
    });
    assert_eq!(ring.of("vod", "read")["limit"]["by"], "daemon");
}

#[test]
fn a_change_that_does_nothing_is_said_and_fails() {
    let ring = Ring::started(EMPTY);
    let _vod = limited(&ring, "vod", &["read=2MB/s"]);
    let still = "note: vod: read=2 MB/s, set by bonsai run, attach or set --direct, still holds for read (bonsai set --direct vod read=RATE changes it)\n";
    let lines = |first: &str| format!("{first}\n{still}");
    is_held(
        &ring,
        &["set", "vod", "read=20MB/s"],
        &lines("vod.read.max: nothing -> 20MB/s"),
    );
    is_held(
        &ring,
        &["config", "set", "services.vod.read.max=30MB/s"],
        &lines("vod.read.max: 20MB/s -> 30MB/s"),
    );
    is_held(
        &ring,
        &["set", "vod", "read=unlimited"],
        &lines("vod.read.max: 30MB/s -> nothing"),
    );
    is_held(
        &ring,
        &["set", "vod", "read=unlimited"],
        &lines("nothing is different"),
    );
    assert!(rate(&ring, "vod") < 6_000_000, "it holds");
    // What is advised is so.
    ring.done(&["set", "--direct", "vod", "read=unlimited"]);
    ring.done(&["set", "vod", "read=20MB/s"]);
    ring.until("it is faster", |ring| rate(ring, "vod") > 6_000_000);
    // Under other names: for all calls, and in calls.
    ring.done(&["set", "--direct", "vod", "all=3MB/s", "open=7/s"]);
    ring.until("it is seen", |ring| {
        ring.of("vod", "read")["limit"]["rate"] == 3e6
    });
    let still = "note: vod: all=3 MB/s, set by bonsai run, attach or set --direct, still holds for read (bonsai set --direct vod all=RATE changes it)\n";
    is_held(
        &ring,
        &["set", "vod", "read=21MB/s"],
        &format!("vod.read.max: 20MB/s -> 21MB/s\n{still}"),
    );
    let still = "note: vod: open=7/s, set by bonsai run, attach or set --direct, still holds (bonsai set --direct vod open=RATE changes it)\n";
    is_held(
        &ring,
        &["set", "vod", "open=unlimited"],
        &format!("nothing is different\n{still}"),
    );
    // One that the daemon has set is lifted by it.
    ring.done(&["set", "vod", "stat=5/s"]);
    ring.done(&["set", "vod", "stat=unlimited"]);
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
