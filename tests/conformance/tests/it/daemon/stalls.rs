//! A disk that is slow, and a thread that dies.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::fixture::{Ends, Ring};
use crate::fixture::{PATIENCE, compiler};

const FILE: &str = "[policy]\nmode = \"static\"\n";

/// A daemon with a library that makes calls fail while a file is there; the file.
fn faulty(test: &str, variable: &str, thread: &str) -> Option<(Ring, PathBuf, Ends)> {
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
    command.env("FAULTY_THREAD", thread);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let daemon = Ends(command.spawn().expect("it starts"));
    ring.until("it answers", |ring| {
        // The socket has its name a moment before it is listened on.
        std::os::unix::net::UnixStream::connect(ring.socket()).is_ok()
            && ring.ask("GET", "/v1/status", "").status == 200
    });
    Some((ring, file, daemon))
}

fn on_disk(ring: &Ring) -> String {
    std::fs::read_to_string(ring.state().join("changes.json")).unwrap_or_default()
}

#[test]
fn a_change_is_in_force_before_a_slow_disk_has_it() {
    let test = "a_change_is_in_force_before_a_slow_disk_has_it";
    let Some((ring, fault, daemon)) = faulty(test, "FAULTY_FSYNC", "") else {
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

/// Exit code of a daemon that ends, and its words.
fn ended(daemon: &mut Ends) -> (Option<i32>, String) {
    let start = Instant::now();
    let status = loop {
        if let Some(status) = daemon.0.try_wait().expect("a child") {
            break status;
        }
        assert!(start.elapsed() < PATIENCE, "it goes on to look healthy");
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut said = String::new();
    let output = daemon.0.stderr.as_mut().expect("its output");
    std::io::Read::read_to_string(output, &mut said).expect("text");
    (status.code(), said)
}

#[test]
fn a_daemon_ends_with_a_thread_that_it_needs() {
    let test = "a_daemon_ends_with_a_thread_that_it_needs";
    for thread in ["ring", "history"] {
        let Some((_ring, fault, mut daemon)) = faulty(test, "FAULTY_CLOCK", thread) else {
            return;
        };
        std::fs::write(fault, "").expect("a file");
        let (code, said) = ended(&mut daemon);
        assert_eq!(code, Some(1), "{thread}: {said}");
        let expected = format!("the thread {thread} has ended");
        assert!(said.contains(&expected), "{said}");
    }
}

#[test]
fn while_the_disk_hangs_a_second_signal_ends_it_at_once() {
    let test = "while_the_disk_hangs_a_second_signal_ends_it_at_once";
    let Some((ring, fault, mut daemon)) = faulty(test, "FAULTY_FSYNC", "") else {
        return;
    };
    std::fs::write(&fault, "").expect("a file");
    ring.done(&["config", "set", "services.vod.read.max=2MB/s"]);
    daemon.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(1500));
    let still = daemon.0.try_wait().expect("a child");
    assert_eq!(still, None, "it waits for the disk for a while");
    let start = Instant::now();
    daemon.signal(Signal::TERM);
    let (code, said) = ended(&mut daemon);
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "at once: {:?}",
        start.elapsed()
    );
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("told to end once more"), "{said}");
    assert!(said.contains("limits stay in force"), "{said}");
}

#[test]
fn a_configuration_file_on_a_disk_that_hangs_holds_no_period() {
    let test = "a_configuration_file_on_a_disk_that_hangs_holds_no_period";
    let Some((ring, fault, _daemon)) = faulty(test, "FAULTY_READ", "") else {
        return;
    };
    let periods = |ring: &Ring| {
        ring.get("/v1/status")["periods"]
            .as_u64()
            .expect("a number")
    };
    std::fs::write(&fault, "").expect("a file");
    // The next look at the file is within a second, and does not come back.
    std::thread::sleep(Duration::from_millis(1500));
    ring.configure("[policy]\nmode = \"static\"\n[services.web.read]\nmax = \"3MB/s\"\n");
    let (before, start) = (periods(&ring), Instant::now());
    std::thread::sleep(Duration::from_secs(3));
    let (after, took) = (periods(&ring), start.elapsed());
    let least = u64::try_from(took.as_millis() / 200).expect("few");
    assert!(
        after - before >= least,
        "{} periods in {took:?}",
        after - before
    );
    ring.done(&["config", "set", "services.vod.read.max=2MB/s"]);
    let web = |ring: &Ring| ring.get("/v1/config")["services"]["web"].clone();
    assert!(web(&ring).is_null(), "the file has not been read");
    std::fs::remove_file(&fault).expect("it was there");
    ring.until("it is read", |ring| web(ring)["read"]["max"] == "3MB/s");
}
