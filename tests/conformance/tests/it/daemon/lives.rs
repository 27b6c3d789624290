//! Starts, ends, kills; files that are damaged, changed, or cannot be written.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use conformance::{finish, skip};
use rustix::process::Signal;

use super::fixture::Ring;
use crate::fixture::{PATIENCE, PYTHON, installed};

const FILE: &str = "[capacity]\nread = \"20MB/s\"\n[services.vod.read]\nmin = \"15MB/s\"\n";

#[test]
fn there_is_one_daemon() {
    let ring = Ring::started(FILE);
    let second = finish(&mut ring.daemon_command(&[]), PATIENCE).expect("it ends");
    assert_eq!(second.status.code(), Some(2), "{second:?}");
    assert!(
        second.stderr.contains("a daemon runs already, process "),
        "{second:?}"
    );
    ring.get("/v1/status");
}

#[test]
fn a_state_directory_has_one_daemon_also_with_another_runtime_directory() {
    let mut ring = Ring::started(FILE);
    let other = Ring::new(FILE);
    let mut command = other.daemon_command(&[]);
    command.env("BONSAI_STATE_DIR", ring.state());
    let second = finish(&mut command, PATIENCE).expect("it ends");
    assert_eq!(second.status.code(), Some(2), "{second:?}");
    assert!(
        second.stderr.contains("another daemon keeps its changes"),
        "{second:?}"
    );
    // Killed, it holds nothing back.
    ring.end(Signal::KILL);
    ring.start(&[]);
}

#[test]
fn a_daemon_that_ends_removes_no_socket_of_another() {
    let mut ring = Ring::started(FILE);
    let mut other = Ring::new(FILE);
    // Without its lock, as in an emptied runtime directory, it does not keep another one out.
    fs::remove_file(ring.bonsai.services().join(".daemon.lock")).expect("it was there");
    let socket = ring.socket();
    let mut command = other.daemon_command(&[]);
    command.env("BONSAI_RUNTIME_DIR", ring.bonsai.services());
    other.start_by(command);
    assert_eq!(ring.ended(), Some(1), "it gives way");
    assert!(socket.exists(), "it is of the other one");
    assert!(ring.say(&["shares"]).status.success());
    other.end(Signal::TERM);
    assert!(!socket.exists());
}

#[test]
fn a_daemon_without_its_lock_or_its_socket_ends() {
    for name in [".daemon.lock", "daemon.sock"] {
        let mut ring = Ring::started(FILE);
        fs::remove_file(ring.bonsai.services().join(name)).expect("it was there");
        assert_eq!(ring.ended(), Some(1), "without {name}");
        // The next one finds nothing in its way.
        ring.start(&[]);
        ring.get("/v1/status");
    }
}

/// Nothing is drawn while nobody looks; whoever looks then sees what is, not what was.
#[test]
fn after_a_silence_the_first_answer_is_of_now() {
    let ring = Ring::started(FILE);
    let periods = || {
        ring.get("/v1/status")["periods"]
            .as_u64()
            .expect("a number")
    };
    let before = periods();
    // Pictures are made for two seconds after the last look, which are 20 periods of these 60.
    std::thread::sleep(Duration::from_secs(6));
    let after = periods();
    assert!(after > before + 30, "{before} {after}");
}

#[test]
fn a_killed_daemon_changes_nothing_and_the_next_one_takes_over() {
    let mut ring = Ring::started(FILE);
    let _vod = ring.reader("vod");
    ring.until("it is in the pool", |ring| {
        ring.of("vod", "read")["enforced"] == "pool"
    });
    ring.done(&["set", "vod", "read=16MB/s"]);
    ring.end(Signal::KILL);
    assert!(ring.socket().exists(), "it had no time to remove that");
    // Nobody is asked any more, and the limits hold.
    let status = ring.done(&["group", "status", "daemon-pool"]);
    assert!(
        status.contains("vod") && status.contains("16 MB/s"),
        "{status}"
    );
    let before = ring.bytes_read("vod");
    ring.until("it goes on", |ring| ring.bytes_read("vod") > before);
    ring.start(&[]);
    ring.until("it is in the pool", |ring| {
        ring.of("vod", "read")["enforced"] == "pool"
    });
    assert_eq!(
        ring.of("vod", "read")["max"],
        16_000_000.0,
        "the change was kept"
    );
    assert_eq!(
        ring.get("/v1/services/vod")["problems"]
            .as_array()
            .map(Vec::len),
        Some(0)
    );
    assert!(
        ring.done(&["log"])
            .contains("vod.read.max nothing -> 16MB/s")
    );
}

#[test]
fn further_limits_that_are_taken_out_while_no_daemon_runs_do_not_stay() {
    let mut ring = Ring::started("[services.vod.limits]\nopen = \"7/s\"\nstat = \"9/s\"\n");
    let _vod = ring.reader("vod");
    let has = |ring: &Ring, name: &str| ring.done(&["status", "vod"]).contains(name);
    ring.until("it has them", |ring| has(ring, "open") && has(ring, "stat"));
    ring.end(Signal::KILL);
    assert!(has(&ring, "open"), "they stay without a daemon");
    ring.configure("[services.vod.limits]\nstat = \"9/s\"\n");
    ring.start(&[]);
    ring.until("it is gone", |ring| !has(ring, "open"));
    assert!(has(&ring, "stat"));
}

#[test]
fn without_a_daemon_commands_go_to_the_ledger() {
    let ring = Ring::new(FILE);
    let _vod = ring.reader("vod");
    let said = ring.done(&["set", "vod", "read=9MB/s"]);
    assert_eq!(said, "vod: read unlimited -> 9 MB/s\n");
    ring.refused(
        &["set", "vod", "read=9MB/s", "--for", "1min"],
        "need the daemon",
    );
    ring.refused(&["undo"], "no daemon runs");
    // What a killed one left behind is nobody.
    drop(std::os::unix::net::UnixListener::bind(ring.socket()));
    ring.done(&["set", "vod", "read=8MB/s"]);
}

#[test]
fn configuration_files_are_checked_before_they_are_used() {
    let mut ring = Ring::new("[capacity]\nread = \"20MB\"\n");
    let path = ring.config().display().to_string();
    ring.refused(&["config", "check", &path], "bonsai.toml: line 2: ");
    let second = finish(&mut ring.daemon_command(&[]), PATIENCE).expect("it ends");
    assert_eq!(second.status.code(), Some(2), "{second:?}");
    ring.configure("[groups.a]\nparent = \"b\"\n[groups.b]\nparent = \"a\"\n");
    ring.refused(&["config", "check", &path], "a in b in a");
    ring.configure(FILE);
    assert!(ring.done(&["config", "check", &path]).contains("fine"));
    ring.start(&[]);
    // One that is changed while it runs.
    ring.configure(&FILE.replace("15MB/s", "10MB/s"));
    let min = |ring: &Ring| ring.get("/v1/config")["services"]["vod"]["read"]["min"].clone();
    ring.until("it is read again", |ring| min(ring) == "10MB/s");
    ring.configure(&FILE.replace("15MB/s", "25MB/s"));
    ring.until("it is refused", |ring| {
        ring.get("/v1/status")["problems"]
            .to_string()
            .contains("is not taken")
    });
    assert_eq!(min(&ring), "10MB/s", "what was in force still is");
    ring.configure(FILE);
    ring.until("the problem is over", |ring| {
        ring.get("/v1/status")["problems"]
            .as_array()
            .is_some_and(Vec::is_empty)
    });
    assert!(ring.done(&["log"]).contains("file, refuse"));
}

#[test]
fn damaged_files_are_moved_aside_and_said() {
    let mut ring = Ring::started(FILE);
    ring.done(&["set", "vod", "read=16MB/s"]);
    ring.until("a history", |ring| {
        ring.state().join("history.sqlite").exists()
    });
    ring.end(Signal::TERM);
    assert!(!ring.socket().exists(), "it cleans up after itself");
    for name in ["history.sqlite", "audit.sqlite"] {
        let path = ring.state().join(name);
        assert_eq!(
            fs::metadata(&path).expect(name).permissions().mode() & 0o777,
            0o600,
            "{name}"
        );
        fs::write(
            path,
            "this is no database, and long enough to be read as one".repeat(100),
        )
        .expect(name);
    }
    fs::write(ring.state().join("changes.json"), "{\"version\":1,").expect("damage");
    ring.start(&[]);
    let problems = ring.get("/v1/status")["problems"].to_string();
    assert!(problems.contains("changes.json: is damaged"), "{problems}");
    ring.until("a fresh history", |ring| {
        ring.get("/v1/status")["history"]["keeping"] == true
    });
    let kept: Vec<String> = fs::read_dir(ring.state())
        .expect("a folder")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    assert_eq!(
        kept.iter()
            .filter(|name| name.contains("sqlite.corrupt-"))
            .count(),
        2,
        "{kept:?}"
    );
}

#[test]
fn a_full_disk_costs_the_history_and_nothing_else() {
    let test = "a_full_disk_costs_the_history_and_nothing_else";
    let mut ring = Ring::new(FILE);
    fs::create_dir_all(ring.state()).expect("a folder");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs"])
        .arg(ring.state())
        .output();
    if !mounted.is_ok_and(|mounted| mounted.status.success()) {
        return skip(test, "a file system cannot be mounted here (needs root)");
    }
    struct Mounted(std::path::PathBuf);
    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
    let _mounted = Mounted(ring.state());
    fs::write(ring.state().join("ballast"), vec![1; 1020 * 1024]).expect("ballast");
    ring.start(&[]);
    let _vod = ring.reader("vod");
    ring.until("it is in the pool", |ring| {
        ring.of("vod", "read")["enforced"] == "pool"
    });
    ring.until("it is said", |ring| {
        ring.get("/v1/status")["history"]["keeping"] == false
    });
    ring.done(&["set", "vod", "read=16MB/s"]);
    assert_eq!(
        ring.of("vod", "read")["max"],
        16_000_000.0,
        "it is in force"
    );
    assert!(
        ring.done(&["log"])
            .contains("vod.read.max nothing -> 16MB/s")
    );
    // The token of a page is kept where its port is root's.
    assert_eq!(ring.ask("POST", "/v1/page", "").status, 200);
    let problems = |ring: &Ring| ring.get("/v1/status")["problems"].to_string();
    fs::remove_file(ring.state().join("ballast")).expect("room");
    ring.until("nothing is left to be written", |ring| {
        problems(ring) == "[]"
    });
    let kept = fs::read_to_string(ring.state().join("changes.json")).expect("it is written");
    assert!(kept.contains("16MB/s"), "{kept}");
}

/// Opens a socket, and becomes another program with it as the first descriptor that is passed
/// (sd_listen_fds(3)).
const PASS: &str = "import os, socket, sys\n\
    s = socket.socket(socket.AF_UNIX)\n\
    s.bind(sys.argv[1])\n\
    s.listen()\n\
    os.dup2(s.fileno(), 3)\n\
    os.set_inheritable(3, True)\n\
    os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))\n\
    os.execv(sys.argv[2], sys.argv[2:])\n";

#[test]
fn a_socket_may_be_passed_to_it() {
    let test = "a_socket_may_be_passed_to_it";
    let Some(python) = installed(test, PYTHON) else {
        return;
    };
    let ring = Ring::new(FILE);
    let daemon = ring.daemon_command(&[]);
    let mut command = Command::new(python);
    command.args(["-c", PASS]).arg(ring.socket());
    command.arg(daemon.get_program()).args(daemon.get_args());
    for (name, value) in daemon.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let started = super::machine::started(&mut command);
    ring.get("/v1/status");
    drop(started);
    // Whoever has passed it may start the next one with it.
    assert!(ring.socket().exists(), "it is not removed");
    // What is no socket is refused.
    let command = ring.daemon_command(&[]);
    let said = finish(
        Command::new("/bin/sh")
            .args([
                "-c",
                "LISTEN_FDS=1 LISTEN_PID=$$ exec 3</dev/null \"$@\"",
                "sh",
            ])
            .arg(command.get_program())
            .args(command.get_args())
            .envs(
                command
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            ),
        PATIENCE,
    )
    .expect("it ends");
    assert_eq!(said.status.code(), Some(2), "{said:?}");
    assert!(said.stderr.contains("LISTEN_FDS"), "{said:?}");
}

#[test]
fn what_was_got_can_be_looked_back_at() {
    let ring = Ring::started(FILE);
    let _vod = ring.reader("vod");
    ring.until("points", |ring| {
        let series = ring.get("/v1/history?service=vod&resource=read");
        series["points"]
            .as_array()
            .is_some_and(|points| points.iter().any(|p| p["got"].as_f64() > Some(0.0)))
    });
    let said = ring.done(&["history", "vod", "--resource", "read"]);
    assert!(said.contains("MB/s"), "{said}");
    let csv = ring.done(&["history", "--export", "csv"]);
    assert!(csv.starts_with("time,") && csv.contains("vod"), "{csv}");
    let path = ring.state().join("x.parquet");
    ring.done(&[
        "history",
        "--export",
        "parquet",
        "--output",
        &path.display().to_string(),
    ]);
    assert!(fs::read(&path).expect("a file").starts_with(b"PAR1"));
}
