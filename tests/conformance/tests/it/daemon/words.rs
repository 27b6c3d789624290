//! Text that others wrote: refused where it comes in, escaped where it is printed.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use super::fixture::{Ends, Ring, request};

/// Steers a terminal, turns text round, and begins a line that looks like another's.
const HOSTILE: &str = "x\u{1b}[31mR\u{1b}]0;t\u{7}\r\nrevision 99\u{202e}\u{9b}2J";

fn is_plain(c: char) -> bool {
    c == '\n' || bonsai_plain(c)
}

/// Independent of the program's own table: general categories of the characters that matter here.
fn bonsai_plain(c: char) -> bool {
    !c.is_control()
        && !('\u{200b}'..='\u{200f}').contains(&c)
        && !('\u{202a}'..='\u{202e}').contains(&c)
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

#[test]
fn text_that_steers_a_terminal_is_refused_where_it_comes_in() {
    let ring = Ring::started("");
    let set = |reason: &str| {
        ring.say(&[
            "config",
            "set",
            "services.g.send.max=24Mbit/s",
            "--reason",
            reason,
        ])
    };
    for reason in [HOSTILE, "a\u{202e}b", "a\nb", &"x".repeat(1001)] {
        let said = set(reason);
        assert_eq!(said.status.code(), Some(2), "{said:?}");
        assert!(said.stderr.chars().all(is_plain), "{:?}", said.stderr);
        assert_eq!(said.stderr.lines().count(), 1, "{:?}", said.stderr);
        let path = format!("/v1/config?reason={}", encoded(reason));
        let answer = ring.ask(
            "PATCH",
            &path,
            r#"{"services":{"g":{"send":{"max":"1MB/s"}}}}"#,
        );
        assert_eq!(answer.status, 422, "{answer:?}");
        assert!(
            answer.json()["detail"]
                .as_str()
                .expect("why")
                .chars()
                .all(bonsai_plain)
        );
    }
    assert_eq!(
        ring.get("/v1/audit")["entries"].as_array().map(Vec::len),
        Some(0)
    );
    let said = set(&"ä".repeat(1000));
    assert!(
        said.status.success(),
        "as long as the document says: {said:?}"
    );

    // Names and texts of each body that is taken.
    let odd = serde_json::to_string(HOSTILE).expect("JSON");
    for (method, path, body) in [
        (
            "PATCH",
            "/v1/config",
            format!(r#"{{"groups":{{{odd}:{{"send":{{"weight":2}}}}}}}}"#),
        ),
        (
            "PATCH",
            "/v1/config",
            format!(r#"{{"classes":{{{odd}:{{"send":{{"weight":2}}}}}}}}"#),
        ),
        (
            "PATCH",
            "/v1/config",
            format!(r#"{{"services":{{"g":{{"target":{odd}}}}}}}"#),
        ),
        ("PATCH", "/v1/services/g", format!(r#"{{"class":{odd}}}"#)),
        (
            "POST",
            "/v1/tokens",
            format!(r#"{{"name":{odd},"scope":"read"}}"#),
        ),
        (
            "POST",
            "/v1/reports",
            format!(r#"{{"service":"g","source":{odd},"loss":0.1}}"#),
        ),
        (
            "POST",
            "/v1/admit",
            format!(r#"{{"service":{odd},"streams":1,"rate":"1MB/s"}}"#),
        ),
    ] {
        let answer = ring.ask(method, path, &body);
        assert_eq!(answer.status, 422, "{method} {path} {body}: {answer:?}");
        assert!(
            answer.json()["detail"]
                .as_str()
                .expect("why")
                .chars()
                .all(bonsai_plain)
        );
    }
    // A path is answered with its name escaped.
    let answer = ring.raw(
        request(
            "GET",
            &format!("/v1/services/{}", encoded(HOSTILE)),
            &[],
            "",
        )
        .as_bytes(),
    );
    assert_eq!(answer.status, 404, "{answer:?}");
    assert!(
        answer.json()["detail"]
            .as_str()
            .expect("why")
            .chars()
            .all(bonsai_plain)
    );
}

#[test]
fn names_of_others_steer_no_terminal_wherever_they_are_printed() {
    let ring = Ring::started("[capacity]\nread = \"20MB/s\"\n");
    let folder = tempfile::tempdir_in(crate::fixture::scratch()).expect("a folder");
    // A program, its folder and a file that it reads, each named to deceive; a slash is no part of a name.
    let place: PathBuf = folder.path().join(HOSTILE);
    fs::create_dir(&place).expect("a folder");
    let program = place.join(HOSTILE);
    fs::copy("/bin/dd", &program).expect("a copy");
    let file = place.join("data");
    fs::write(&file, vec![0; 1 << 20]).expect("a file");
    let mut command = ring.command(&[
        "run",
        "--name",
        "vod",
        "--limit",
        "read=20kB/s",
        "--limit",
        "read/stream=30kB/s",
        "--",
    ]);
    command
        .arg(&program)
        .arg(format!("if={}", file.display()))
        .args(["of=/dev/null", "bs=4k"]);
    let _vod = Ends(
        command
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts"),
    );
    ring.until("it waits", |ring| {
        let status = ring.say(&["status", "vod", "--json"]);
        status.status.success()
            && status.stdout.contains("\"program\"")
            && status.stdout.contains("\"waiting\": [\n        {")
    });
    // What is no service, in the folder of services.
    fs::create_dir(ring.bonsai.services().join(HOSTILE)).expect("a folder");
    fs::write(ring.bonsai.services().join("y\u{1b}[2J\nz"), "").expect("a file");
    let (path, folder) = (
        file.to_str().expect("UTF-8"),
        place.to_str().expect("UTF-8"),
    );
    let mut seen = 0;
    for args in [
        &["status"][..],
        &["status", "vod", "--streams"],
        &["status", "vod", "--json"],
        &["top", "--once"],
        &["why", "vod"],
        &["why", "vod", "--json"],
        &["stats", "vod"],
        &["audit", "vod"],
        &["audit", "vod", "--json"],
        &["shares"],
        &["log"],
        &["history", "vod"],
        &["config", "show"],
        &["link", "ls"],
        &["group", "show"],
        &["status", HOSTILE],
        &["set", HOSTILE, "read=1MB/s"],
        &["why", HOSTILE],
        &["group", "create", HOSTILE, "--limit", "read=1MB/s"],
        &["config", "check", path],
        &["run", "--name", HOSTILE, "--", "true"],
        &["run", "--", folder],
        &["serve", path],
        &["trace", "stat", path],
        &["davvi", "ls", "--library", path],
        &["attach", "1", "--name", HOSTILE],
        &["doctor", path],
        &[HOSTILE],
    ] {
        let said = ring.say(args);
        for text in [&said.stdout, &said.stderr] {
            let odd = text.chars().find(|c| !is_plain(*c));
            assert_eq!(odd, None, "{args:?}: {text:?}");
            assert!(
                !text.lines().any(|line| line.starts_with("revision 99")),
                "{args:?}: {text:?}"
            );
            seen += usize::from(text.contains("\\u{1b}") || text.contains("\\\\u{1b}"));
        }
    }
    assert!(seen >= 5, "such names were printed at all: {seen}");
    for path in ["/metrics", "/v1/history/export?format=csv"] {
        let answer = ring.ask("GET", path, "");
        let lines = answer.body.replace("\r\n", "\n");
        assert_eq!(
            lines.chars().find(|c| !is_plain(*c)),
            None,
            "{path}: {lines:?}"
        );
    }
}
