//! Go programs, whose system calls their own instructions make.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use conformance::{finish, skip};
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{bonsai, compiler, scratch};
use crate::probe::{PATIENCE, Probe, Seen};
use crate::statics::{LIMIT, assert_all_written};

/// How Go programs are made: with cgo or without, and `go build`'s options. With cgo,
/// or position-independent, they have a loader; the latter one and no libraries.
pub(crate) const GO_FORMS: [(&str, &str, &[&str]); 5] = [
    ("Go", "0", &[]),
    ("Go, stripped", "0", &["-ldflags", "-s -w"]),
    ("Go, position-independent", "0", &["-buildmode=pie"]),
    ("Go with libc", "1", &[]),
    (
        "Go with libc, linked by gcc",
        "1",
        &["-buildmode=pie", "-ldflags", "-linkmode=external"],
    ),
];

/// A program of `go/` in each of these forms; none without a Go toolchain.
pub(crate) fn go_programs(
    test: &str,
    source: &str,
    forms: &[(&'static str, &str, &[&str])],
) -> Vec<(&'static str, PathBuf)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("go")
        .join(source);
    let mut made = Vec::new();
    for (i, (form, cgo, options)) in forms.iter().enumerate() {
        let program = scratch().join(format!("{test}-{i}"));
        let mut build = Command::new("go");
        build
            .arg("build")
            .args(*options)
            .arg("-o")
            .args([&program, &source])
            .envs([
                ("CGO_ENABLED", *cgo),
                ("GOFLAGS", ""),
                ("GO111MODULE", "off"),
            ])
            .env("GOCACHE", scratch().join("go-cache"));
        if *cgo == "1" && compiler(test).is_none() {
            continue;
        }
        match build.output() {
            Ok(output) if output.status.success() => made.push((*form, program)),
            Ok(output) => panic!("{form}: {}", String::from_utf8_lossy(&output.stderr)),
            Err(_) => skip(test, &format!("{form}: no Go toolchain")),
        }
    }
    made
}

/// Go's own writes and libc's are on one limit, and each is counted once.
#[test]
fn go_and_c_in_one_program_share_a_limit() {
    let test = "go_and_c_in_one_program_share_a_limit";
    for (form, program) in go_programs(test, "cgo/main.go", &GO_FORMS[3..]) {
        let probe = Probe::of(program, &[]);
        let bare = probe.bare();
        assert!(bare.finished.status.success(), "{:?}", bare.finished);
        let seen = probe.through((form, &[]), &[LIMIT]);
        assert_eq!(seen.lines, bare.lines, "{form}: {:?}", seen.finished);
        assert_all_written(&seen, form);
        seen.assert_shaped(192 * 1024, 480_000, 4000);
    }
}

#[test]
fn go_programs_are_shaped_in_all_goroutines() {
    let test = "go_programs_are_shaped_in_all_goroutines";
    for (form, program) in go_programs(test, "main.go", &GO_FORMS) {
        let probe = Probe::of(program, &[]);
        let bare = probe.bare();
        assert!(bare.finished.status.success(), "{:?}", bare.finished);
        for limits in [
            &[
                "write=100GB/s",
                "read=100GB/s",
                "send=100GB/s",
                "recv=100GB/s",
            ] as &[&str],
            &["write=400kB/s:burst=4kB", "recv=10kB/s", "open=100/s"],
        ] {
            let seen = probe.through((form, &[]), limits);
            assert_eq!(seen.lines, bare.lines, "{form}: {:?}", seen.finished);
            let text = &seen.finished.stderr;
            assert!(!text.contains("not covered"), "{form}: {text}");
            let (calls, bytes) = seen.counters.of("write.other");
            assert!(
                calls >= 200 && bytes >= 200_000,
                "{form}: {calls} calls, {bytes} bytes"
            );
            if limits[0].starts_with("write=400kB/s") {
                seen.assert_shaped(200_000, 400_000, 4000);
            }
        }
    }
}

/// A server that ends with this.
#[derive(Debug)]
struct Server {
    child: Child,
    port: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // `bonsai run` passes it on; ended already, if something went wrong.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

/// Starts what says its port in its first line.
fn serving(mut command: Command) -> Server {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut port = String::new();
    let said = child.stdout.take().expect("a pipe");
    BufReader::new(said).read_line(&mut port).expect("a line");
    let port = port.trim().to_owned();
    Server { child, port }
}

const WEB_BYTES: u64 = 6_000_000;
const WEB_RATE: u64 = 10_000_000;
const WEB_BURST: u64 = 100_000;

const WEB_LIMITS: [&str; 2] = ["send=10MB/s:burst=100kB", "recv=10MB/s:burst=100kB"];

fn assert_fetched(seen: &Seen, bare: &Seen, what: &str) {
    assert_eq!(seen.lines, bare.lines, "{what}: {:?}", seen.finished);
    seen.assert_shaped(WEB_BYTES, WEB_RATE, WEB_BURST);
}

#[test]
fn a_web_server_of_go_and_its_client_are_shaped() {
    let test = "a_web_server_of_go_and_its_client_are_shaped";
    let options: Vec<&str> = WEB_LIMITS
        .iter()
        .flat_map(|limit| ["--limit", limit])
        .collect();
    for (form, program) in go_programs(test, "http/main.go", &[GO_FORMS[0], GO_FORMS[3]]) {
        let mut command = Command::new(&program);
        command.arg("serve");
        let free = serving(command);
        let bonsai = bonsai();
        let (name, command) = bonsai.run(&options, &program, &[OsStr::new("serve")]);
        let limited = serving(command);
        let bytes = WEB_BYTES.to_string();
        for way in ["get", "post"] {
            let bare = Probe::of(program.clone(), &[way, &free.port, &bytes]).bare();
            let client = Probe::of(program.clone(), &[way, &free.port, &bytes]);
            let seen = client.through((form, &[]), &WEB_LIMITS);
            assert_fetched(&seen, &bare, &format!("{form}: {way} by a limited client"));
            let seen = Probe::of(program.clone(), &[way, &limited.port, &bytes]).bare();
            assert_fetched(
                &seen,
                &bare,
                &format!("{form}: {way} from a limited server"),
            );
        }
        let status = finish(&mut bonsai.command(&["status", &name]), PATIENCE).expect("status");
        let covered = status
            .stdout
            .lines()
            .any(|line| line.trim_end().ends_with("patched"));
        assert!(
            covered && !status.stdout.contains("not covered") && !status.stdout.contains("unseen"),
            "{form}: {status:?}"
        );
    }
}
