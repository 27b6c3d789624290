//! Calls on descriptors of which all is known: they are made without the slow path (`crates/bonsai-preload/gen/quick.rs`).

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use conformance::finish;
use serde_json::Value;

use crate::fixture::{bonsai, compiler};
use crate::probe::PATIENCE;

/// A program that stays until its input ends; killed at the latest here.
struct Held(Child);

impl Held {
    fn start(command: &mut Command, output: &Path) -> Self {
        let output = File::create(output).expect("a file");
        command.stdin(Stdio::piped()).stdout(output);
        Self(command.stderr(Stdio::null()).spawn().expect("it starts"))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let began = Instant::now();
        while began.elapsed() < PATIENCE && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        // An error says that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Bytes that all streams of the program have moved under a limit, by the ledger; not those of its input and output.
fn charged(status: &Value, name: &str) -> Option<u64> {
    let limits = status["services"][0]["limits"].as_array()?;
    let limit = limits.iter().find(|limit| limit["name"] == name)?;
    let own = limit["streams"]
        .as_array()?
        .iter()
        .filter(|stream| stream["fd"].as_u64() > Some(2));
    own.map(|stream| stream["used"].as_u64()).sum()
}

/// The sums are right while limits change (which ends all leases), leases end in the middle of a call, threads share a stream, and
/// numbers are given out anew.
#[test]
fn streams_are_charged_what_they_have_moved() {
    let test = "streams_are_charged_what_they_have_moved";
    let Some(gcc) = compiler(test) else { return };
    let made = gcc.make("known", &["narrowed/known.c"], &["-pthread"]);
    let program = made.unwrap_or_else(|error| panic!("{error}"));
    for rate in ["1GB/s", "40MB/s:burst=64kB"] {
        for all in ["unlimited", "2GB/s"] {
            assert_charged(&program, rate, all);
        }
    }
}

fn assert_charged(program: &Path, rate: &str, all: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let [file, output] = ["file", "output"].map(|name| folder.path().join(name));
    let of = |call| [format!("{call}/stream={rate}"), format!("{call}={all}")];
    let limits = ["send", "recv", "read", "write"].map(of);
    let mut options = vec!["--event-loops", "off"];
    options.extend(limits.iter().flatten().flat_map(|limit| ["-l", limit]));
    let args = ["30000", file.to_str().expect("a path of UTF-8")];
    let bonsai = bonsai();
    let (name, mut command) = bonsai.run(&options, program, &args);
    let _held = Held::start(&mut command, &output);
    let began = Instant::now();
    let mut others = ["fsync=100/s", "fsync=200/s"].into_iter().cycle();
    let moved = loop {
        let text = std::fs::read_to_string(&output).expect("a file");
        if text.lines().count() == 4 && text.ends_with('\n') {
            break text;
        }
        assert!(began.elapsed() < PATIENCE, "{rate}, {all}: {text:?}");
        std::thread::sleep(Duration::from_millis(20));
        // The service may be about to begin: then there is nothing to set.
        let set = ["set", &name, others.next().unwrap_or_default()];
        finish(&mut bonsai.command(&set), PATIENCE).expect("it ends");
    };
    let asked = ["status", "--streams", "--json", &name];
    let said = finish(&mut bonsai.command(&asked), PATIENCE).expect("it ends");
    let status: Value = serde_json::from_str(&said.stdout).expect("JSON");
    for line in moved.lines() {
        let (call, bytes) = line.split_once(' ').expect("a name and a number");
        let charged = charged(&status, &format!("{call}/stream"));
        assert_eq!(
            charged,
            bytes.parse().ok(),
            "{rate}, {all}: {line}: {status}"
        );
    }
}

/// What was remembered of descriptors under earlier limits says nothing under later ones.
#[test]
fn a_limit_that_comes_later_is_on_known_descriptors() {
    const RATE: u64 = 5_000_000;
    for (first, later) in [
        ("read@/nowhere/**=1MB/s", "read@/dev/zero=5MB/s"),
        ("read@/nowhere/**=1MB/s", "read/stream=5MB/s"),
        ("read/stream=100GB/s", "read=5MB/s"),
        ("read@/dev/zero=100GB/s", "read/stream=5MB/s"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let bonsai = bonsai();
        let args = ["if=/dev/zero", "of=/dev/null", "bs=4k"];
        let (name, mut command) = bonsai.run(&["--limit", first], Path::new("/bin/dd"), &args);
        let service = Held::start(&mut command, &folder.path().join("output"));
        let read = || {
            let said = finish(&mut bonsai.command(&["stats", &name, "--json"]), PATIENCE)
                .expect("it ends");
            let stats: Value = serde_json::from_str(&said.stdout).unwrap_or_default();
            let classes = stats["classes"].as_array().cloned().unwrap_or_default();
            let read = classes.iter().find(|class| class["class"] == "read");
            read.and_then(|read| read["bytes"].as_u64()).unwrap_or(0)
        };
        let began = Instant::now();
        while read() < 100_000_000 {
            assert!(began.elapsed() < PATIENCE, "{first}: it does not read");
        }
        let set = finish(&mut bonsai.command(&["set", &name, later]), PATIENCE).expect("it ends");
        assert!(set.status.success(), "{set:?}");
        // Looking takes its time on a busy machine, which is part of what is measured.
        let (start, before) = (Instant::now(), read());
        std::thread::sleep(Duration::from_millis(600));
        let got = read() - before;
        // What is read for longer than is measured; a burst, and what was ahead under the limits before.
        #[expect(clippy::cast_precision_loss, reason = "amounts are small")]
        let most = RATE as f64 * start.elapsed().as_secs_f64() + 300_000.0;
        #[expect(clippy::cast_precision_loss, reason = "amounts are small")]
        let is_limited = got as f64 <= most;
        let pid = rustix::process::Pid::from_child(&service.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a child");
        assert!(
            is_limited,
            "{first}, then {later}: {got} bytes of {most} at most"
        );
    }
}

/// A handler may take the place of the lease that a call is to be paid from, or gives back to.
#[test]
fn handlers_that_take_other_leases_cost_no_limit_anything() {
    let test = "handlers_that_take_other_leases_cost_no_limit_anything";
    let Some(gcc) = compiler(test) else { return };
    let made = gcc.make("handlers", &["narrowed/handlers.c"], &[]);
    let program = made.unwrap_or_else(|error| panic!("{error}"));
    for (way, rate, burst) in [("in", 20, 8_000_000.0), ("out", 40, 20_000_000.0)] {
        let folder = tempfile::tempdir().expect("a folder");
        let fifo = folder.path().join("fifo");
        let fifo = fifo.to_str().expect("a path of UTF-8");
        let limits = match way {
            "in" => [
                format!("read@{fifo}=20MB/s:burst=8MB"),
                "read@/dev/zero=100GB/s".to_owned(),
            ],
            _ => [
                format!("write@{fifo}=10GB/s"),
                "write@/dev/null=40MB/s:burst=20MB".to_owned(),
            ],
        };
        let options: Vec<&str> = limits
            .iter()
            .flat_map(|limit| ["-l", limit.as_str()])
            .collect();
        let (_, mut command) = bonsai().run(&options, &program, &[way, "1500", fifo]);
        let done = finish(&mut command, PATIENCE).expect("an end");
        assert!(done.status.success(), "{way}: {done:?}");
        let number = |name: &str| -> f64 {
            let line = done.stdout.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|number| number.trim().parse().ok())
                .expect(name)
        };
        let most = f64::from(rate) * 1000.0 * number("ms") + burst + 100_000.0;
        assert!(number("bytes") <= most, "{way}: {done:?}, {most} at most");
        assert!(number("bytes") > 0.0, "{way}: {done:?}");
    }
}
