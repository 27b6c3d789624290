//! Connections without end, of one user, while others ask.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use conformance::skip;

use super::fixture::{Ends, Ring, request};
use crate::fixture::{PYTHON, installed};

const FILE: &str = "[capacity]\nread = \"20MB/s\"\n";

/// Connects and goes away without end. It waits while the queue is full.
const FLOOD: &str = "
import socket, sys
while True:
    one = socket.socket(socket.AF_UNIX)
    one.connect(sys.argv[1])
    one.close()
";

/// Processes of another user that do so, where this one may start some.
fn flood(ring: &Ring, test: &str) -> Option<Vec<Ends>> {
    if !rustix::process::geteuid().is_root() {
        skip(test, "processes of other users are started by root alone");
        return None;
    }
    let python = installed(test, PYTHON)?;
    let folder = ring.bonsai.services();
    let open = std::fs::Permissions::from_mode(0o711);
    std::fs::set_permissions(folder, open).expect("a mode");
    let start = || {
        let mut command = Command::new(&python);
        command.args(["-c", FLOOD]).arg(ring.socket());
        command.uid(54_321).gid(54_321).current_dir("/");
        let command = command.stdin(Stdio::null()).stderr(Stdio::null());
        Ends(command.spawn().expect("it starts"))
    };
    Some((0..4).map(|_| start()).collect())
}

#[test]
fn no_command_goes_past_a_daemon_that_is_flooded_with_connections() {
    let ring = Ring::started(FILE);
    let _vod = ring.reader("vod");
    let test = "no_command_goes_past_a_daemon_that_is_flooded_with_connections";
    let Some(mut flood) = flood(&ring, test) else {
        return;
    };
    for rate in 2..12 {
        let said = ring.done(&["set", "vod", &format!("read={rate}MB/s")]);
        assert!(said.starts_with("vod.read.max: "), "{said}");
    }
    for process in &mut flood {
        assert_eq!(process.0.try_wait().expect("known"), None, "it has ended");
    }
    drop(flood);
    let last = ring.of("vod", "read");
    assert_eq!(last["max"], 11e6, "{last}");
}

#[test]
fn beside_a_daemon_that_hangs_commands_that_look_go_on_and_changes_say_so() {
    let ring = Ring::started(FILE);
    let _vod = ring.reader("vod");
    ring.signal(rustix::process::Signal::STOP);
    let start = Instant::now();
    let status = ring.done(&["status", "vod"]);
    let took = start.elapsed();
    let said = ring.say(&["set", "vod", "read=3MB/s"]);
    let direct = ring.done(&["set", "--direct", "vod", "read=4MB/s"]);
    ring.signal(rustix::process::Signal::CONT);
    assert!(status.contains("running for"), "{status}");
    assert!(took < Duration::from_secs(12), "{took:?}");
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    let expected = "runs and does not answer: nothing has come in time";
    assert!(said.stderr.contains(expected), "{}", said.stderr);
    assert!(direct.contains("read unlimited -> 4 MB/s"), "{direct}");
}

#[test]
fn a_head_is_held_up_to_a_bound() {
    let ring = Ring::started(FILE);
    let with = |bytes: usize| {
        let long = format!("x-long: {}", "x".repeat(bytes));
        request("GET", "/v1/status", &[&long], "")
    };
    assert_eq!(ring.raw(with(16_000).as_bytes()).status, 200);
    assert_eq!(ring.raw(with(100_000).as_bytes()).status, 431);
}
