//! `bonsai run`: the program is what it is without it, under its limits.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{PATIENCE, Place, Said, signal};

#[test]
fn exit_codes_are_the_programs() {
    let Some(place) = Place::new("exit_codes_are_the_programs") else {
        return;
    };
    for (script, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
    ] {
        let said = place.say(&["run", "--", "sh", "-c", script]);
        assert_eq!((said.code, said.err.as_str()), (Some(code), ""), "{script}");
    }
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn arguments_streams_and_environment_go_through() {
    let Some(place) = Place::new("arguments_streams_and_environment_go_through") else {
        return;
    };
    let script = "printf '%s|' \"$0\" \"$@\"; cat; pwd; echo error >&2; printf '%s' \"$X\"";
    let mut command = place.bonsai(&["run", "--", "sh", "-c", script, "zero", "a b", "--json", ""]);
    let folder = place.path().canonicalize().expect("a path");
    command.current_dir(&folder).env("X", "y z");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("bonsai");
    child
        .stdin
        .take()
        .expect("input")
        .write_all(b"in\n")
        .expect("written");
    let said: Said = child.wait_with_output().expect("ended").into();
    assert_eq!(
        said.out,
        format!("zero|a b|--json||in\n{}\ny z", folder.display())
    );
    assert_eq!((said.err.as_str(), said.code), ("error\n", Some(0)));
}

#[test]
fn a_script_without_an_interpreter_line_is_run_by_the_shell() {
    let Some(place) = Place::new("a_script_without_an_interpreter_line_is_run_by_the_shell") else {
        return;
    };
    let script = place.path().join(".script");
    std::fs::write(&script, "echo \"$#\" \"$1\"\nexit 3\n").expect("written");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("set");
    let said = place.say(&["run", "--", script.to_str().expect("a path"), "x y"]);
    assert_eq!(
        (said.out.as_str(), said.code),
        ("1 x y\n", Some(3)),
        "{said:?}"
    );
}

#[test]
fn other_preloads_stay_in_front() {
    let Some(place) = Place::new("other_preloads_stay_in_front") else {
        return;
    };
    let mut command = place.bonsai(&["run", "--name", "p", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let output = command
        .env("LD_PRELOAD", "libm.so.6")
        .output()
        .expect("bonsai");
    let ours = place.path().join("p/preload.so");
    let wanted = format!("libm.so.6:{}\n", ours.display());
    assert_eq!(String::from_utf8_lossy(&output.stdout), wanted);
}

#[test]
fn a_limit_holds_and_a_looser_one_does_not_bind() {
    let Some(place) = Place::new("a_limit_holds_and_a_looser_one_does_not_bind") else {
        return;
    };
    let copy = |rate: &str| {
        let start = Instant::now();
        let limit = format!("write={rate}");
        let dd = ["dd", "if=/dev/zero", "of=/dev/null", "bs=10k", "count=100"];
        let said = place.say(&[&["run", "-v", "-l", &limit, "--"][..], &dd].concat());
        assert_eq!(said.code, Some(0), "{said:?}");
        (start.elapsed(), said)
    };
    // 1 MB at 1 MB/s, less a burst of 10 ms.
    let (time, said) = copy("1MB/s");
    assert!(time >= Duration::from_millis(990), "{time:?}");
    assert!(!said.err.contains("; 0 waits"), "{said:?}");
    // What takes long then, on a busy machine, is not the limit: all of it is one burst.
    let (_, said) = copy("10GB/s");
    assert!(said.err.contains("; 0 waits"), "{said:?}");
}

#[test]
fn limits_of_a_file_hold_and_name_the_service() {
    let Some(place) = Place::new("limits_of_a_file_hold_and_name_the_service") else {
        return;
    };
    let file = place.path().join(".limits.toml");
    std::fs::write(
        &file,
        "name = \"fromfile\"\n[limits]\nread = \"1MB/s\"\nsend = \"8Mbit/s\"\n",
    )
    .expect("written");
    let mut command = place.bonsai(&[
        "run",
        "--limits",
        file.to_str().expect("a path"),
        "-l",
        "read=2MB/s",
        "--",
        "cat",
    ]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("bonsai");
    let service = place.until("fromfile", |service| service["processes"][0].is_object());
    let settings: Vec<_> = service["limits"]
        .as_array()
        .expect("limits")
        .iter()
        .map(|l| (&l["name"], &l["setting"]))
        .collect();
    let text = format!("{settings:?}");
    assert!(
        text.contains("\"2MB/s\"") && text.contains("\"1MB/s\"") && settings.len() == 2,
        "{text}"
    );
    drop(child.stdin.take());
    assert!(child.wait().expect("ended").success());
    assert_eq!(place.left(), [".limits.toml"]);
}

#[test]
fn a_signal_at_the_start_leaves_nothing_behind() {
    let Some(place) = Place::new("a_signal_at_the_start_leaves_nothing_behind") else {
        return;
    };
    for _ in 0..5 {
        let mut command = place.bonsai(&["run", "--name", "s", "--", "sleep", "60"]);
        let mut child = command.stderr(Stdio::null()).spawn().expect("bonsai");
        // There is a service before there is a program.
        let end = Instant::now() + PATIENCE;
        while place.left().is_empty() {
            assert!(Instant::now() < end, "there is no service");
        }
        // At once: kill(1) takes as long as the start does.
        kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
        assert_eq!(child.wait().expect("ended").code(), Some(143));
        assert_eq!(place.left(), Vec::<String>::new());
    }
}

/// Whether whoever started these tests had SIGHUP set to be ignored (proc(5): `SigIgn`, of which
/// the first bit is that signal).
fn is_hup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = u64::from_str_radix(mask.expect("a mask").trim(), 16).expect("a number");
    mask & 1 != 0
}

#[test]
fn signals_reach_the_program_once() {
    let Some(place) = Place::new("signals_reach_the_program_once") else {
        return;
    };
    let script = "trap 'echo usr1' USR1; trap 'echo hup' HUP; trap 'echo term; exit 9' TERM; \
                  echo ready; while :; do sleep 0.02; done";
    let running = place.start("s", &["--", "sh", "-c", script]);
    // Until the traps are set, the signals would end it.
    std::thread::sleep(Duration::from_millis(300));
    for name in ["USR1", "HUP", "TERM"] {
        running.signal(name);
        std::thread::sleep(Duration::from_millis(200));
    }
    let said = running.end();
    // Where these tests run under nohup, it stays ignored.
    let hup = if is_hup_ignored() { "" } else { "hup\n" };
    assert_eq!(
        (said.out, said.code),
        (format!("ready\nusr1\n{hup}term\n"), Some(9))
    );
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn a_stop_stops_both_and_goes_on_with_both() {
    let Some(place) = Place::new("a_stop_stops_both_and_goes_on_with_both") else {
        return;
    };
    let mut running = place.start("s", &["--", "cat"]);
    let service = place.until("s", |service| service["processes"][0]["program"] == "cat");
    let program = service["processes"][0]["pid"]
        .as_u64()
        .expect("a process id");
    let both = |wanted: bool| {
        let stopped = |pid: u64| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("readable");
            stat.rsplit_once(") ")
                .is_some_and(|(_, rest)| rest.starts_with('T'))
        };
        let end = Instant::now() + Duration::from_secs(10);
        for pid in [program, u64::from(running.pid())] {
            while stopped(pid) != wanted {
                assert!(Instant::now() < end, "{pid} stopped: {}", !wanted);
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    };
    running.signal("TSTP");
    both(true);
    running.signal("CONT");
    both(false);
    running.write("on\n");
    assert_eq!(running.end().out, "on\n");
}

#[test]
fn a_name_in_use_is_refused_and_default_names_are_numbered() {
    let Some(place) = Place::new("a_name_in_use_is_refused_and_default_names_are_numbered") else {
        return;
    };
    let first = place.start("cat", &["--", "cat"]);
    let refused = place.say(&["run", "--name", "cat", "--", "true"]);
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.err.contains("the name \"cat\" is in use"),
        "{refused:?}"
    );
    let mut second = place
        .bonsai(&["run", "--", "cat"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("bonsai");
    place.until("cat-2", |service| service["processes"][0].is_object());
    drop(second.stdin.take());
    assert!(second.wait().expect("ended").success());
    assert_eq!(first.end().code, Some(0));
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Rust's runtime ignores SIGPIPE, and gives its children the default.
#[test]
fn sigpipe_is_as_the_caller_left_it() {
    let Some(place) = Place::new("sigpipe_is_as_the_caller_left_it") else {
        return;
    };
    // Text that names no interpreter is run by the shell, in another way.
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("script");
    std::fs::write(&script, "grep SigIgn /proc/self/status\n").expect("a file");
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("our own");
    let ignored = |way: &str, bonsai: &[&str], program: &[&str]| {
        let way = format!("{way}; exec \"$@\"");
        let run = place.bonsai(&[] as &[&str]);
        let output = Command::new("sh")
            .args(["-c", &way, "sh"])
            .args(bonsai)
            .args(program)
            .envs(
                run.get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .output()
            .expect("a shell");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mask = text.trim().strip_prefix("SigIgn:").map(str::trim_start);
        let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok());
        mask.unwrap_or_else(|| panic!("{output:?}"))
    };
    let grep = ["grep", "SigIgn", "/proc/self/status"];
    let script = [script.to_str().expect("text")];
    let run = [env!("CARGO_BIN_EXE_bonsai"), "run", "--"];
    for (way, bit) in [("trap '' PIPE", 1 << 12), ("true", 0)] {
        let bare = ignored(way, &[], &grep);
        assert_eq!(bare & 1 << 12, bit, "{way}");
        assert_eq!(ignored(way, &run, &grep) & 1 << 12, bit, "{way}");
        assert_eq!(ignored(way, &run, &script) & 1 << 12, bit, "{way}, script");
    }
}

#[test]
fn a_service_within_a_service_is_refused() {
    let Some(place) = Place::new("a_service_within_a_service_is_refused") else {
        return;
    };
    let bonsai = env!("CARGO_BIN_EXE_bonsai");
    let inner = [bonsai, "run", "--name", "inner", "--", "echo", "no"];
    // Also where nothing in the environment says so.
    let without = ["--", "env", "-u", "BONSAI_LEDGER", "-u", "LD_PRELOAD"];
    for way in [&["--"] as &[&str], &without] {
        let said = place.say(&[&["run", "--name", "outer"], way, &inner].concat());
        assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{said:?}");
        assert!(
            said.err
                .contains("a process of the service \"outer\" already"),
            "{said:?}"
        );
    }
    let left_over = place.path().join("gone/ledger");
    let output = place
        .bonsai(&["run", "--", "echo", "yes"])
        .env("BONSAI_LEDGER", left_over)
        .output();
    assert_eq!(
        String::from_utf8_lossy(&output.expect("bonsai").stdout),
        "yes\n"
    );
}

#[test]
fn a_daemon_keeps_its_service_until_it_ends() {
    let Some(place) = Place::new("a_daemon_keeps_its_service_until_it_ends") else {
        return;
    };
    let said = place.say(&[
        "run",
        "--name",
        "d",
        "-l",
        "read=1MB/s",
        "--",
        "sh",
        "-c",
        "sleep 2 >/dev/null 2>&1 & exit 4",
    ]);
    assert_eq!(said.code, Some(4));
    assert!(
        said.err
            .contains("processes that it started go on as the service d"),
        "{said:?}"
    );
    let service = place.until("d", |service| service["processes"][0]["program"] == "sleep");
    assert_eq!(service["keeper"], serde_json::Value::Null);
    assert_eq!(
        place.say(&["run", "--name", "d", "--", "true"]).code,
        Some(2),
        "its name is in use"
    );
    assert_eq!(
        place.say(&["set", "d", "read=2MB/s"]).out,
        "d: read 1 MB/s -> 2 MB/s\n"
    );
    let pid = service["processes"][0]["pid"]
        .as_u64()
        .and_then(|pid| u32::try_from(pid).ok());
    signal(pid.expect("a process id"), "KILL");
    let end = Instant::now() + Duration::from_secs(10);
    while place.json(&["status", "--json"])["services"][0].is_object() {
        assert!(Instant::now() < end, "it never goes");
    }
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn a_killed_bonsai_run_leaves_the_program_and_its_limits() {
    let Some(place) = Place::new("a_killed_bonsai_run_leaves_the_program_and_its_limits") else {
        return;
    };
    let running = place.start(
        "k",
        &[
            "-l",
            "write=1kB/s",
            "--",
            "dd",
            "if=/dev/zero",
            "of=/dev/null",
            "bs=1k",
        ],
    );
    let before = place.until("k", |service| service["keeper"] == running.pid());
    running.signal("KILL");
    let after = place.until("k", |service| service["keeper"].is_null());
    assert_eq!(before["processes"][0]["pid"], after["processes"][0]["pid"]);
    assert_eq!(after["limits"][0]["setting"], "1kB/s");
    let pid = after["processes"][0]["pid"]
        .as_u64()
        .and_then(|pid| u32::try_from(pid).ok());
    signal(pid.expect("a process id"), "KILL");
    let again = place.say(&["run", "--name", "k", "--", "true"]);
    assert_eq!(
        (again.code, again.err.as_str()),
        (Some(0), ""),
        "the name is free again"
    );
}

#[test]
fn verbose_says_what_was_covered_and_json_what_was_counted() {
    let Some(place) = Place::new("verbose_says_what_was_covered_and_json_what_was_counted") else {
        return;
    };
    let said = place.say(&[
        "run",
        "--name",
        "v",
        "--verbose",
        "--json",
        "--",
        "head",
        "-c",
        "5000",
        "/dev/zero",
    ]);
    let (line, json) = said.err.split_once('\n').expect("two lines");
    assert!(line.starts_with("bonsai: v: 1 process covered"), "{line}");
    let value: serde_json::Value = serde_json::from_str(json).expect("JSON");
    let calls = value["calls"].as_array().expect("calls");
    let read = calls
        .iter()
        .find(|call| call["call"] == "read" && call["kind"] == "other")
        .expect("reads");
    assert_eq!(read["bytes"], 5000, "{read}");
}
