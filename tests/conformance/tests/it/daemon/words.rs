//! Words and names: text of others, names that every command takes, unknown names, mistakes of files, and what is idle.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use super::fixture::{Ends, Ring, request};
use super::machine::Machine;

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
    // Files that are no service, in the folder of services.
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

#[test]
fn a_name_that_is_not_known_is_said_wherever_it_is_asked_for() {
    let ring = Ring::started("[capacity]\nread = \"20MB/s\"\n");
    let _vod = ring.reader("vod");
    ring.until("it is seen", |ring| ring.of("vod", "read").is_object());
    assert_eq!(ring.ask("GET", "/v1/history?service=vdo", "").status, 404);
    assert_eq!(ring.ask("GET", "/v1/history?service=vod", "").status, 200);
    ring.refused(&["history", "vdo"], "there is no service \"vdo\"");
    let answer = ring
        .ask("PATCH", "/v1/services/vdo", r#"{"send":{"max":"1MB/s"}}"#)
        .json();
    assert!(
        answer["problems"].to_string().contains("is vod meant?"),
        "{answer}"
    );
    let answer = ring
        .ask("PATCH", "/v1/services/vod", r#"{"send":{"max":"1MB/s"}}"#)
        .json();
    assert!(
        !answer["problems"].to_string().contains("meant"),
        "{answer}"
    );
    ring.refused(&["config", "set", "polcy.mode=static"], "is policy meant?");
    ring.refused(
        &["config", "set", "policy.mode=dynamik"],
        "is dynamic meant?",
    );
    ring.refused(&["config", "set", "services.vod.class=nosuch"], "nosuch");
    ring.refused(&["config", "set", "services.vod.group=nosuch"], "nosuch");
    ring.refused(&["history", "vod", "--since", "0s"], "too short");
}

#[test]
fn a_file_is_checked_as_the_daemon_takes_it() {
    let ring = Ring::new("");
    let check = |text: &str| {
        ring.configure(text);
        ring.say(&["config", "check", ring.config().to_str().expect("UTF-8")])
    };
    for (text, expected) in [
        (
            "[services.vod]\nsend = \"40Mbit/s\"\n",
            "write { max = \"40Mbit/s\" }",
        ),
        ("[policy]\nmode = 5\n", "line 2: "),
        ("[polcy]\nmode = \"static\"\n", "is policy meant?"),
        (
            "[daemon]\nstate = \"relative\"\n",
            "daemon.state: relative is no absolute path",
        ),
        (
            "[daemon]\nsocket = \"/nowhere/x.sock\"\n",
            "there is no folder /nowhere",
        ),
        (
            "[api]\ntls = { certificate = \"/nowhere/x\", key = \"/nowhere/y\" }\n",
            "/nowhere/x",
        ),
        ("[daemon]\nusers = [\"/run/bonsai\"]\n", "daemon.users: "),
    ] {
        let said = check(text);
        assert_eq!(said.status.code(), Some(2), "{text}: {said:?}");
        assert!(said.stderr.contains(expected), "{text}: {}", said.stderr);
        for word in [
            "struct",
            "expected",
            "invalid type",
            "serde",
            "variant",
            "field",
        ] {
            assert!(!said.stderr.contains(word), "{text}: {}", said.stderr);
        }
        // A file that is refused here is refused by the start, too.
        let started = conformance::finish(&mut ring.daemon_command(&[]), crate::fixture::PATIENCE);
        assert_eq!(started.expect("it ends").status.code(), Some(2), "{text}");
    }
    let said = check("[api]\nread-group = \"no-such-group-anywhere\"\n");
    assert!(
        said.status.success() && said.stdout.contains("there is no group"),
        "{said:?}"
    );
    let said = check("[services.vod.send]\nmax = \"1MB/s\"\n");
    assert!(
        said.stdout.contains("fine: 1 service, 0 groups, 0 classes"),
        "{said:?}"
    );
    let start = std::time::Instant::now();
    for args in [
        &["config", "check", "/dev/zero"][..],
        &["run", "--limits", "/dev/zero", "--", "true"],
    ] {
        ring.refused(args, "more than");
    }
    assert!(
        start.elapsed() < std::time::Duration::from_secs(20),
        "it is bounded"
    );
}

#[test]
fn a_file_with_the_time_and_length_of_the_one_before_is_noticed() {
    let ring = Ring::started("[services.vod.send]\nmax = \"40MB/s\"\n");
    let max = |ring: &Ring| ring.get("/v1/config")["services"]["vod"]["send"]["max"].clone();
    assert_eq!(max(&ring), "40MB/s");
    let time = fs::metadata(ring.config())
        .and_then(|meta| meta.modified())
        .expect("a time");
    let new = ring.config().with_extension("new");
    fs::write(&new, "[services.vod.send]\nmax = \"60MB/s\"\n").expect("a file");
    fs::File::options()
        .write(true)
        .open(&new)
        .and_then(|file| file.set_modified(time))
        .expect("a time");
    fs::rename(&new, ring.config()).expect("a file");
    ring.until("it is taken", |ring| max(ring) == "60MB/s");
}

#[test]
fn weights_are_those_that_were_written_and_what_does_nothing_is_idle() {
    let ring = Ring::started(
        "[capacity]\nread = \"20MB/s\"\n[groups.g.read]\nmax = \"80%\"\n\
         [services.a.read]\nweight = 1\n[services.b.read]\nweight = 2\n",
    );
    let (_a, _b) = (ring.reader("a"), ring.reader("b"));
    let mut command = ring.command(&["run", "--name", "idle", "--", "/bin/sleep", "60"]);
    let _idle = Ends(
        command
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts"),
    );
    let of = |ring: &Ring, name: &str| ring.of(name, "read");
    ring.until("both want more", |ring| {
        of(ring, "a")["waiting"] == true && of(ring, "b")["waiting"] == true
    });
    ring.until("the third does nothing", |ring| {
        of(ring, "idle")["reason"] == "idle"
    });
    assert_eq!(
        [
            of(&ring, "a")["weight"].clone(),
            of(&ring, "b")["weight"].clone()
        ],
        [1, 2]
    );
    let idle = of(&ring, "idle");
    assert_eq!(
        (idle["asked"].as_f64(), idle["share"].as_f64()),
        (Some(0.0), Some(0.0)),
        "{idle}"
    );
    let shares = ring.done(&["shares"]);
    let line = shares
        .lines()
        .find(|line| line.contains("idle") && line.contains("read"));
    assert!(
        line.is_some_and(|line| line.trim_end().ends_with("idle")),
        "{shares}"
    );
    assert!(
        !shares.contains("1000") && !shares.contains("333"),
        "{shares}"
    );
}

#[test]
fn each_command_takes_the_names_that_the_daemon_prints() {
    let test = "each_command_takes_the_names_that_the_daemon_prints";
    let Some(machine) = Machine::started(test, "[capacity]\nread = \"20MB/s\"\n") else {
        return;
    };
    let _vod = machine.alice.reader("vod");
    machine.governs("54321:vod");
    let all = machine.root.done(&["status"]);
    assert!(all.contains("54321:vod"), "{all}");
    for args in [
        &["status", "54321:vod"][..],
        &["stats", "54321:vod"],
        &["why", "54321:vod", "--for", "200ms"],
        &["audit", "54321:vod"],
        &["top", "54321:vod", "--once"],
        &["shares", "54321:vod"],
        &["history", "54321:vod"],
        &["log", "54321:vod"],
    ] {
        let said = machine.root.say(args);
        assert!(
            matches!(said.status.code(), Some(0 | 1)),
            "{args:?}: {said:?}"
        );
        assert!(
            !said.stderr.contains("cannot be the name"),
            "{args:?}: {said:?}"
        );
    }
    let why = machine.root.done(&["why", "54321:vod", "--for", "200ms"]);
    assert!(why.contains("54321:vod"), "its advice is for root: {why}");
    // Detaching is of processes that were attached, and says so of these.
    let said = machine.root.say(&["detach", "54321:vod"]);
    assert!(said.stderr.contains("were started in it"), "{said:?}");
    machine.alice.done(&["status", "54321:vod"]);
    let said = machine.bob.say(&["status", "54321:vod"]);
    assert_eq!(said.status.code(), Some(2), "{said:?}");
    let said = machine.root.say(&["status", "54321:nosuch"]);
    assert_eq!(said.status.code(), Some(2), "{said:?}");
    let said = machine.root.say(&["status", "nobody-here:vod"]);
    assert!(
        said.status.code() == Some(2) && said.stderr.contains("no user"),
        "{said:?}"
    );
}
