//! Bad input: one sentence, the right exit code, nothing left behind.

use crate::support::{Place, skip};

/// What `bonsai ARGS` answers.
fn refused(place: &Place, args: &[&str], code: i32) -> String {
    let said = place.say(args);
    assert_eq!(said.code, Some(code), "{args:?}: {said:?}");
    assert_eq!(said.out, "", "{args:?}");
    assert!(said.err.starts_with("bonsai: "), "{args:?}: {said:?}");
    assert_eq!(said.err.lines().count(), 1, "{args:?}: {said:?}");
    said.err["bonsai: ".len()..].trim_end().to_owned()
}

#[test]
fn each_mistake_has_its_sentence() {
    let place = Place::bare();
    let run = |limit: &'static str| ["run", "--limit", limit, "--", "true"];
    for (args, sentence) in [
        (
            &run("raed=1MB/s")[..],
            "limit \"raed=1MB/s\": there is no call or class \"raed\", the nearest is \"read\" (bonsai run --help lists the classes)",
        ),
        (
            &run("send@10.1.0.0/8=1MB/s"),
            "limit \"send@10.1.0.0/8=1MB/s\": \"10.1.0.0/8\" has bits set beyond its first 8: write 10.0.0.0/8",
        ),
        (
            &run("stat/stream=1/s"),
            "limit \"stat/stream=1/s\": stat has no streams, so it cannot be limited per stream: such limits are on calls that move bytes, as in send/stream or read/stream",
        ),
        (
            &run("read@video/**=1MB/s"),
            "limit \"read@video/**=1MB/s\": \"video/**\" is a relative path: write it from / on, as in /srv/video/**",
        ),
        (
            &run("open=10MB/s"),
            "limit \"open=10MB/s\": open moves no bytes, so its limit is in calls, such as open=100/s, and not 10MB/s",
        ),
        (
            &[
                "run",
                "--limit",
                "read=1MB/s",
                "--limit",
                "read=2MB/s",
                "--",
                "true",
            ],
            "the limit on read is given twice: write it once",
        ),
        (
            &["link", "set", "lo", "tx=10Mbit/s", "tx=20Mbit/s"],
            "tx is given twice: write it once",
        ),
        (
            &["serve", "/", "--lower", "../{}.mp4"],
            "--lower \"../{}.mp4\": it leads out of the folder, or to what is hidden; write a path below the folder, as low/{}.mp4",
        ),
        (
            &["run", "--name", "a/b", "--", "true"],
            "\"a/b\" cannot be the name of a service, it has '/' in it: names are made of letters, digits, dots, underscores and dashes, such as vod-1",
        ),
        (
            &["run", "--limts", "x", "--", "true"],
            "unexpected argument '--limts' found; a similar argument exists: '--limits' (--help says what there is)",
        ),
        (
            &["set", "nope", "read=1MB/s"],
            "there is no service \"nope\"; none is running",
        ),
        (
            &["stats", "nope"],
            "there is no service \"nope\"; none is running",
        ),
        (
            &["why", "nope"],
            "there is no service \"nope\"; none is running",
        ),
        (
            &["why", "nope", "--for", "1h"],
            "invalid value '1h' for '--for <TIME>': \"1h\" is too short or too long to watch a service: write a time from 100ms to 10min (--help says what there is)",
        ),
        (
            &["why", "nope", "--for", "1"],
            "invalid value '1' for '--for <TIME>': \"1\" has no unit such as microseconds, milliseconds or seconds: write 500us, 10ms or 1.5s (--help says what there is)",
        ),
        (
            &["top"],
            "top needs a terminal: bonsai top --once prints one picture, --json lines of JSON, bonsai status text",
        ),
    ] {
        assert_eq!(refused(&place, args, 2), sentence);
    }
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn quantities_are_refused_by_name() {
    let place = Place::bare();
    for limit in [
        "read=10",
        "read=0MB/s",
        "read=10MB",
        "read=10MBps",
        "read=1e6B/s",
        "read=1MB/s:burst=0B",
        "read=900TB/s",
        "read",
        "=1MB/s",
        "read=1MB/s:burst=3calls",
    ] {
        let sentence = refused(&place, &["run", "-l", limit, "--", "true"], 2);
        let value = limit.rsplit('=').next().expect("a value");
        assert!(sentence.contains(value), "{limit}: {sentence}");
    }
}

#[test]
fn programs_that_cannot_be_run_have_the_codes_of_shells() {
    let Some(place) = Place::new("programs_that_cannot_be_run_have_the_codes_of_shells") else {
        return;
    };
    let file = |name: &str, mode: u32, content: &[u8]| {
        use std::os::unix::fs::PermissionsExt;
        let path = place.path().join(name);
        std::fs::write(&path, content).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
        path.display().to_string()
    };
    let plain = file(".plain", 0o644, b"echo");
    let lost = file(".lost", 0o755, b"#!/bin/no-such-shell\n");
    let dos = file(".dos", 0o755, b"#!/bin/sh\r\necho\r\n");
    // An ELF header for 64-bit ARM (e_machine 183) and nothing else.
    let mut arm = [&b"\x7fELF\x02\x01\x01"[..], &[0; 57]].concat();
    (arm[16], arm[18], arm[20], arm[52], arm[54]) = (2, 183, 1, 64, 56);
    let arm = file(".arm", 0o755, &arm);
    for (program, code, words) in [
        (
            "no-such-program",
            127,
            "no program `no-such-program` was found",
        ),
        (plain.as_str(), 126, "cannot be executed: Permission denied"),
        ("cd", 127, "a command of shells, for example sh -c 'cd ...'"),
        ("A_1=b c", 127, "run env A_1=b c PROGRAM"),
        ("ls -l", 127, "its arguments are words of their own"),
        ("no=such/program", 127, "was found: to set a variable"),
        ("-n=1", 127, "no program `-n=1` was found"),
        (lost.as_str(), 126, "/bin/no-such-shell"),
        (dos.as_str(), 126, "`/bin/sh` and a carriage return"),
        ("/", 126, "cannot be executed"),
    ] {
        let sentence = refused(&place, &["run", "--", program], code);
        assert!(sentence.contains(words), "{program}: {sentence}");
    }
    let said = place.say(&["run", "--", &arm]);
    assert_eq!(said.code, Some(126), "{said:?}");
    assert!(said.err.contains("is built for 64-bit ARM"), "{said:?}");
    refused(&place, &["run", "--strict", "--", &arm], 2);
    assert_eq!(
        place
            .left()
            .iter()
            .filter(|name| !name.starts_with('.'))
            .count(),
        0
    );
}

#[test]
fn a_limits_file_says_line_and_column() {
    let place = Place::bare();
    let path = place.path().join(".limits.toml");
    let path = path.to_str().expect("a path");
    let answer = |text: &str| {
        std::fs::write(path, text).expect("written");
        refused(&place, &["run", "--limits", path, "--", "true"], 2)
    };
    let sentence = answer("[limits]\nread = \"10MB/s\"\n  sned = \"1MB/s\"\n");
    assert_eq!(
        sentence,
        format!(
            "{path}:3:3: there is no call or class \"sned\", the nearest is \"send\" (bonsai run --help lists the classes)"
        )
    );
    assert!(answer("[limits]\nread = 10\n").starts_with(&format!("{path}:2:8: ")));
    assert!(answer("[limits\n").starts_with(&format!("{path}:1:8: ")));
    let missing = refused(
        &place,
        &["run", "--limits", "/no/such/file", "--", "true"],
        2,
    );
    assert!(
        missing.contains("/no/such/file") && missing.contains("No such file"),
        "{missing}"
    );
}

#[test]
fn an_unsafe_runtime_directory_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let Some(place) = Place::new("an_unsafe_runtime_directory_is_refused") else {
        return;
    };
    let mode = |mode| {
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(mode)).expect("set");
    };
    mode(0o755);
    for args in [
        &["run", "--", "true"][..],
        &["status"],
        &["set", "x", "read=1MB/s"],
    ] {
        let sentence = refused(&place, args, 2);
        assert!(sentence.contains("mode 755"), "{sentence}");
    }
    mode(0o700);
    let command = place
        .bonsai(&["run", "--", "true"])
        .env("BONSAI_RUNTIME_DIR", "x/y")
        .output();
    let said = String::from_utf8_lossy(&command.expect("bonsai").stderr).into_owned();
    assert!(said.contains("must be an absolute path"), "{said}");
}

#[test]
fn a_path_that_ld_preload_cannot_hold_is_refused() {
    let Some(place) = Place::new("a_path_that_ld_preload_cannot_hold_is_refused") else {
        return;
    };
    for name in ["a b", "a:b"] {
        let output = place
            .bonsai(&["run", "--", "true"])
            .env("BONSAI_RUNTIME_DIR", place.path().join(name))
            .output()
            .expect("bonsai");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(
            text.contains("has a blank or a colon in its path"),
            "{text}"
        );
    }
}

#[test]
fn a_missing_library_is_said() {
    let place = Place::bare();
    let output = place
        .bonsai(&["run", "--", "true"])
        .env("BONSAI_PRELOAD", "/no/such.so")
        .output();
    let text = String::from_utf8_lossy(&output.expect("bonsai").stderr).into_owned();
    assert_eq!(
        text,
        "bonsai: BONSAI_PRELOAD must name the file libbonsai_preload.so, but /no/such.so is no file\n"
    );
    let said = place.say(&["doctor", "--json"]);
    let without = said.out.contains("\"library\": null");
    // A build may have put the library beside the program.
    assert_eq!(said.code, Some(i32::from(without)), "{said:?}");
}

#[test]
fn a_full_shared_memory_is_said_and_nothing_is_left() {
    let name = "a_full_shared_memory_is_said_and_nothing_is_left";
    let Some(place) = Place::new(name) else {
        return;
    };
    let script = "mount -t tmpfs -o size=64k,mode=700 none \"$0\" || exit 77; \"$@\"; code=$?; \
                  ls -A \"$0\"; exit $code";
    let bonsai = place.bonsai(&[] as &[&str]);
    let mut command = std::process::Command::new("unshare");
    command
        .args(["-m", "sh", "-c", script])
        .arg(place.path())
        .arg(bonsai.get_program());
    command.args(["run", "--", "true"]);
    for (key, value) in bonsai.get_envs() {
        if let Some(value) = value {
            command.env(key, value);
        }
    }
    let Ok(output) = command.output() else {
        return skip(name, "no unshare (util-linux)");
    };
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(77) || text.starts_with("unshare:") {
        return skip(name, "only root may mount a file system");
    }
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("no room for the"), "{text}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "left behind");
}

#[test]
fn what_cannot_be_watched_has_its_sentence() {
    let place = Place::bare();
    let folder = place.path().to_str().expect("a name").to_owned();
    for (args, words) in [
        (&["watch", "clip.mp4"][..], "\"clip.mp4\": no address"),
        (&["watch"], "<URL>"),
        (
            &["watch", "rtsp://127.0.0.1/clip", "--capture", "x"],
            "--capture",
        ),
        (
            &["watch", "rtsp://127.0.0.1/clip", "--clock", "96=90000"],
            "--clock",
        ),
        (
            &["watch", "--capture", "x", "--clock", "128=1"],
            "as 97=48000",
        ),
        (
            &["watch", "--capture", "/no/such.pcap"],
            "/no/such.pcap: No such file",
        ),
        (&["watch", "--capture", &folder], "it cannot be read"),
        (
            &["watch", "--capture", "/etc/passwd"],
            "/etc/passwd: it is no capture: pcap and pcapng are known",
        ),
        (
            &["watch", "ftp://127.0.0.1/clip"],
            "write rtsp://HOST[:PORT]/PATH",
        ),
        (
            &["watch", "rtsp://me:secret@127.0.0.1/clip"],
            "names and passwords are not sent",
        ),
        (
            &["watch", "rtsp://no-such-host.invalid/clip"],
            "no-such-host.invalid",
        ),
        (
            &["watch", "rtsp://127.0.0.1/clip", "--arrivals", "20"],
            "--arrivals \"20\": write all, a rate such as 20/s, random:20/s, or trace:FILE",
        ),
        (
            &["watch", "rtsp://127.0.0.1/clip", "--clients", "0"],
            "--clients",
        ),
        (
            &["watch", "rtsp://127.0.0.1/clip", "--for", "0s"],
            "out of range: 100ms to 24h",
        ),
        (
            &["watch", "rtsp://127.0.0.1/clip", "--csv", &folder],
            "it is a folder; name a file",
        ),
        (
            &[
                "watch",
                "rtsp://127.0.0.1/clip",
                "--clients",
                "100000",
                "--for",
                "1s",
                "--csv",
                "/no/such/place",
            ],
            "/no/such/place",
        ),
    ] {
        let said = refused(&place, args, 2);
        assert!(said.contains(words), "{args:?}: {said}");
    }
}
