//! Limits that a service has of its own, beside a daemon: there is one truth about them.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
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

#[test]
fn a_limit_that_is_set_past_the_daemon_says_what_is_lower() {
    let ring =
        Ring::started("[capacity]\nread = \"20MB/s\"\n[services.vod.read]\nmax = \"4MB/s\"\n");
    let _vod = ring.reader("vod");
    ring.until("it is in the pool", |ring| {
        ring.of("vod", "read")["enforced"] == "pool"
    });
    let lower = "note: vod: the group daemon-pool still lets it have at most 4 MB/s of read\n";
    for limit in ["read=9MB/s", "read=unlimited"] {
        let said = ring.done(&["set", "--direct", "vod", limit]);
        assert!(said.ends_with(lower), "{said}");
    }
    let said = ring.done(&["set", "--direct", "vod", "read=3MB/s"]);
    assert!(!said.contains("note"), "{said}");
    let ring = Ring::started("[services.vod.read]\nmax = \"4MB/s\"\n");
    let _vod = ring.reader("vod");
    ring.until("it has its limit", |ring| {
        ring.done(&["status", "vod"]).contains("read/daemon")
    });
    let said = ring.done(&["set", "--direct", "vod", "read=9MB/s"]);
    let lower = "note: vod: read=4 MB/s, set by the daemon, still holds\n";
    assert!(said.ends_with(lower), "{said}");
}

#[test]
fn a_change_that_a_group_holds_or_is_only_tried_says_so() {
    let ring = Ring::started(EMPTY);
    ring.done(&["group", "create", "g", "--limit", "read=4MB/s"]);
    let _vod = limited(&ring, "vod", &["read=2MB/s"]);
    let tried = ring.say(&["set", "vod", "read=9MB/s", "--dry-run"]);
    assert_eq!(tried.status.code(), Some(1), "{tried:?}");
    let still = "vod: read=2 MB/s, set by bonsai run, attach or set --direct, still holds for read";
    assert!(tried.stdout.contains(still), "{tried:?}");
    let tried = ring.say(&["set", "vod", "read=1MB/s", "--dry-run"]);
    assert_eq!(tried.status.code(), Some(0), "{tried:?}");
    ring.done(&["set", "--direct", "vod", "read=unlimited"]);
    ring.done(&["group", "join", "g", "vod"]);
    let held = ring.say(&["set", "vod", "read=9MB/s"]);
    assert_eq!(held.status.code(), Some(1), "{held:?}");
    let still = "vod: the group g still lets it have at most 4 MB/s of read (bonsai group set g changes it)";
    assert!(held.stdout.contains(still), "{held:?}");
    ring.done(&["set", "vod", "read=3MB/s"]);
}

#[test]
fn the_pool_is_not_changed_past_the_daemon_that_keeps_it() {
    let mut ring = Ring::started("[capacity]\nread = \"20MB/s\"\n");
    let _vod = ring.reader("vod");
    ring.until("it is in the pool", |ring| {
        ring.of("vod", "read")["enforced"] == "pool"
    });
    let expected = "bonsai config set capacity.write=RATE";
    ring.refused(&["group", "set", "daemon-pool", "read=30MB/s"], expected);
    ring.refused(&["group", "remove", "daemon-pool"], expected);
    // Nothing else can change it once no daemon does.
    ring.end(Signal::KILL);
    let said = ring.done(&["group", "set", "daemon-pool", "read=30MB/s"]);
    assert!(said.contains("20 MB/s -> 30 MB/s"), "{said}");
}
