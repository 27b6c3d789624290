//! A disk that is slow, and a thread that dies.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

use rustix::process::Signal;

use super::fixture::{Ends, Ring};
use crate::fixture::{PATIENCE, compiler};

const FILE: &str = "[policy]\nmode = \"static\"\n";

/// A daemon with a library that makes calls fail while a file is there; the file.
fn faulty(test: &str, variable: &str) -> Option<(Ring, PathBuf, Ends)> {
    let made = compiler(test)?.make(
        "faulty.so",
        &["daemon/faulty.c"],
        &["-shared", "-fPIC", "-ldl"],
    );
    let library = made.unwrap_or_else(|error| panic!("{error}"));
    let ring = Ring::new(FILE);
    let file = ring.config().with_file_name("fault");
    let mut command = ring.daemon_command(&[]);
    command.env("LD_PRELOAD", library).env(variable, &file);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let daemon = Ends(command.spawn().expect("it starts"));
    ring.until("it answers", |ring| {
        ring.socket().exists() && ring.ask("GET", "/v1/status", "").status == 200
    });
    Some((ring, file, daemon))
}

fn on_disk(ring: &Ring) -> String {
    std::fs::read_to_string(ring.state().join("changes.json")).unwrap_or_default()
}

#[test]
fn a_change_is_in_force_before_a_slow_disk_has_it() {
    let test = "a_change_is_in_force_before_a_slow_disk_has_it";
    let Some((ring, fault, daemon)) = faulty(test, "FAULTY_FSYNC") else {
        return;
    };
    let _vod = ring.reader("vod");
    ring.until("it is known", |ring| {
        ring.of("vod", "read")["got"].is_number()
    });
    let said = ring.done(&["set", "vod", "read=6MB/s"]);
    assert_eq!(
        said, "vod.read.max: nothing -> 6MB/s\n",
        "on a disk that is quick"
    );
    assert!(on_disk(&ring).contains("6MB/s"));

    std::fs::write(&fault, "").expect("a file");
    let periods = |ring: &Ring| {
        ring.get("/v1/status")["periods"]
            .as_u64()
            .expect("a number")
    };
    let before = periods(&ring);
    let said = ring.done(&["set", "vod", "read=2MB/s"]);
    assert!(
        said.contains("nothing -> 2MB/s") || said.contains("6MB/s -> 2MB/s"),
        "{said}"
    );
    assert!(
        said.contains("note: the change is in force, and not on the disk yet"),
        "{said}"
    );
    let status = ring.done(&["status", "vod", "--json"]);
    assert!(
        status.contains("2000000") && !on_disk(&ring).contains("2MB/s"),
        "{status}"
    );
    ring.until("it goes on to decide", |ring| periods(ring) > before + 5);
    // Some more, which are written together.
    for rate in ["3MB/s", "4MB/s", "5MB/s"] {
        ring.done(&["set", "vod", &format!("read={rate}")]);
    }
    std::fs::remove_file(&fault).expect("it was there");
    ring.until("it is on the disk", |ring| on_disk(ring).contains("5MB/s"));
    let said = ring.done(&["set", "vod", "read=7MB/s"]);
    assert_eq!(said, "vod.read.max: 5MB/s -> 7MB/s\n");
    daemon.signal(Signal::KILL);
    assert!(
        on_disk(&ring).contains("7MB/s"),
        "what was answered is there"
    );
}

#[test]
fn a_daemon_ends_with_a_thread_that_it_needs() {
    let test = "a_daemon_ends_with_a_thread_that_it_needs";
    let Some((_ring, fault, mut daemon)) = faulty(test, "FAULTY_CLOCK") else {
        return;
    };
    std::fs::write(fault, "").expect("a file");
    let start = Instant::now();
    let status = loop {
        if let Some(status) = daemon.0.try_wait().expect("a child") {
            break status;
        }
        assert!(start.elapsed() < PATIENCE, "it goes on to look healthy");
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(1));
    let mut said = String::new();
    let output = daemon.0.stderr.as_mut().expect("its output");
    std::io::Read::read_to_string(output, &mut said).expect("text");
    assert!(said.contains("the thread ring has ended"), "{said}");
}
