//! What goes wrong under a daemon that runs: the clock is set, databases are damaged, folders are
//! taken away, keepers are killed.

use std::fs;
use std::io::{Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::fixture::Ring;
use super::machine::started;
use crate::fixture::{PATIENCE, compiler, scratch};

const FILE: &str = "[capacity]\nread = \"20MB/s\"\n[services.vod.read]\nmin = \"15MB/s\"\n";

/// The wall clock of a daemon, which a test sets.
struct Clock(tempfile::NamedTempFile);

impl Clock {
    fn new() -> Self {
        fs::create_dir_all(scratch()).expect("a folder");
        let mut clock = Self(tempfile::NamedTempFile::new_in(scratch()).expect("a file"));
        clock.ahead(0);
        clock
    }

    /// Seconds beyond the machine's.
    fn ahead(&mut self, seconds: i64) {
        self.0.rewind().expect("a file");
        self.0.write_all(&seconds.to_ne_bytes()).expect("written");
    }
}

#[test]
fn a_clock_that_is_set_changes_no_limit_and_no_time() {
    let test = "a_clock_that_is_set_changes_no_limit_and_no_time";
    let Some(compiler) = compiler(test) else {
        return;
    };
    let options = ["-shared", "-fPIC"];
    let library = compiler.make("clock.so", &[Path::new("faults/clock.c")], &options);
    let library = library.unwrap_or_else(|error| panic!("{error}"));
    let (ring, mut clock) = (Ring::new(FILE), Clock::new());
    let mut command = ring.daemon_command(&[]);
    command
        .env("LD_PRELOAD", library)
        .env("CLOCK_FILE", clock.0.path());
    let _daemon = started(&mut command);
    let _vod = ring.reader("vod");
    ring.until("it is in the pool", |ring| {
        ring.of("vod", "read")["enforced"] == "pool"
    });
    let wall = |ring: &Ring| ring.get("/v1/status")["unix_ms"].as_u64().expect("a time");
    let before = wall(&ring);
    let start = Instant::now();
    ring.done(&["set", "vod", "read=16MB/s", "--for", "6s"]);
    for hours in [2_i64, -2, 0, -24 * 365] {
        clock.ahead(hours * 3600);
        let told = i64::try_from(wall(&ring)).expect("a time");
        let by = told - i64::try_from(before).expect("a time") - hours * 3_600_000;
        assert!((0..60_000).contains(&by), "it has that clock: {by} ms");
        std::thread::sleep(Duration::from_millis(300));
        let of = ring.of("vod", "read");
        assert_eq!(of["enforced"], "pool", "{hours} h: {of}");
        if start.elapsed() < Duration::from_secs(5) {
            assert_eq!(of["max"], 16_000_000.0, "{hours} h: {of}");
        }
    }
    ring.until("it has ended", |ring| {
        ring.of("vod", "read")["max"].is_null()
    });
    assert!(
        start.elapsed() >= Duration::from_secs(6),
        "not before its time"
    );
    assert!(
        start.elapsed() < Duration::from_secs(3600),
        "nor an hour after it"
    );
    assert!(ring.done(&["log"]).contains("the machine's clock was set"));
    // Limits are by another clock.
    let read = ring.bytes_read("vod");
    ring.until("it goes on", |ring| ring.bytes_read("vod") > read);
    ring.done(&["set", "vod", "read=17MB/s", "--for", "1s"]);
    ring.until("it has ended", |ring| {
        ring.of("vod", "read")["max"].is_null()
    });
}

#[test]
fn databases_that_are_damaged_while_it_runs_are_moved_aside() {
    let ring = Ring::started(FILE);
    let _vod = ring.reader("vod");
    let known = |ring: &Ring| ring.ask("GET", "/v1/history?service=vod&resource=read", "");
    ring.until("a history", |ring| {
        let answer = known(ring);
        answer.status == 200 && answer.json()["points"].as_array().map(Vec::len) > Some(1)
    });
    ring.done(&["set", "vod", "read=16MB/s"]);
    for name in ["history.sqlite", "audit.sqlite"] {
        let path = ring.state().join(name);
        let mut file = fs::OpenOptions::new().write(true).open(&path).expect(name);
        let len = usize::try_from(file.metadata().expect(name).len()).expect("a length");
        file.write_all(&vec![0x5a; len.max(65_536)]).expect(name);
        // What is in the log beside it is no help.
        for end in ["-wal", "-shm"] {
            let mut beside = path.clone().into_os_string();
            beside.push(end);
            if let Ok(mut file) = fs::OpenOptions::new().write(true).open(beside) {
                let _ = file.write_all(&[0x5a; 32_768]);
            }
        }
    }
    let aside = |ring: &Ring| {
        let names = fs::read_dir(ring.state()).expect("a folder");
        let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names
            .filter(|name| name.contains("history.sqlite.corrupt-"))
            .count()
    };
    ring.until("it is moved aside, and a fresh one has points", |ring| {
        let answer = known(ring);
        let _ = ring.ask("GET", "/v1/audit", "");
        assert!([200, 503].contains(&answer.status), "{answer:?}");
        aside(ring) > 0
            && answer.status == 200
            && answer.json()["points"].as_array().map(Vec::len) > Some(1)
    });
    assert_eq!(
        ring.of("vod", "read")["max"],
        16_000_000.0,
        "what is in force still is"
    );
    ring.done(&["set", "vod", "read=17MB/s"]);
    // The trail is moved aside where it is read, by itself.
    ring.until("the trail has it", |ring| {
        let said = ring.say(&["log"]);
        said.stdout.contains("16MB/s -> 17MB/s")
    });
    assert_eq!(ring.get("/v1/status")["history"]["keeping"], true);
}

#[test]
fn who_keeps_a_service_is_known_and_a_dead_one_goes() {
    let ring = Ring::started(FILE);
    let reader = ring.reader("vod");
    let keeper = |ring: &Ring| ring.get("/v1/services/vod")["keeper"].clone();
    ring.until("its keeper is known", |ring| {
        keeper(ring) == u64::from(reader.0.id())
    });
    ring.until("it reads", |ring| ring.bytes_read("vod") > 0);
    // Its program goes on without it.
    reader.signal(Signal::KILL);
    ring.until("it has none any more", |ring| keeper(ring).is_null());
    assert_eq!(ring.get("/v1/services/vod")["running"], true);
    // And when that ends, too, nothing is left of it.
    let status: serde_json::Value =
        serde_json::from_str(&ring.done(&["status", "vod", "--json"])).expect("JSON");
    let pid = status["services"][0]["processes"][0]["pid"]
        .as_i64()
        .expect("a process");
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a number"));
    rustix::process::kill_process(pid.expect("a number"), Signal::KILL).expect("ended");
    let start = Instant::now();
    ring.until("it is gone", |ring| {
        ring.get("/v1/services/vod")["running"] == false
    });
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn a_runtime_directory_that_is_taken_away_is_said() {
    let ring = Ring::started(FILE);
    let path = ring.bonsai.services();
    let aside = path.with_extension("aside");
    let socket = aside.join("daemon.sock");
    fs::rename(&path, &aside).expect("moved");
    let ask = || {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).expect("a connection");
        let request = super::fixture::request("GET", "/v1/status", &[], "");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut text = String::new();
        let _ = std::io::Read::read_to_string(&mut stream, &mut text);
        text
    };
    let start = Instant::now();
    while !ask().contains("services cannot be looked at") {
        assert!(start.elapsed() < PATIENCE, "{}", ask());
        std::thread::sleep(Duration::from_millis(50));
    }
    fs::rename(&aside, &path).expect("moved back");
    ring.until("it goes on", |ring| {
        ring.get("/v1/status")["problems"].as_array().map(Vec::len) == Some(0)
    });
}
