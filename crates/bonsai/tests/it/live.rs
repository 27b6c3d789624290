//! Watching and changing services that run.

use std::time::{Duration, Instant};

use crate::support::Place;

/// Copies zeros in pieces of 1 kB.
const COPY: [&str; 4] = ["dd", "if=/dev/zero", "of=/dev/null", "bs=1k"];

#[test]
fn status_shows_the_rate_that_a_limit_gets() {
    let Some(place) = Place::new("status_shows_the_rate_that_a_limit_gets") else {
        return;
    };
    let running = place.start("c", &[&["-l", "write=500kB/s", "--"][..], &COPY].concat());
    let status = place.json(&["status", "c", "--interval", "1s", "--json"]);
    let service = &status["services"][0];
    let limit = &service["limits"][0];
    assert_eq!(
        (&limit["name"], &limit["unit"], &limit["asked"]),
        (&"write".into(), &"bytes".into(), &500_000.0.into())
    );
    let got = limit["got"].as_f64().expect("a rate");
    // No more than the limit and its burst; less where other programs have the processors.
    assert!((1.0..=550_000.0).contains(&got), "{got}");
    assert!(limit["waits"]["count"].as_u64() > Some(0), "{limit}");
    assert!(
        limit["recent"]["p99_ns"].as_u64() >= limit["recent"]["p50_ns"].as_u64(),
        "{limit}"
    );
    let process = &service["processes"][0];
    assert_eq!(process["program"], "dd");
    assert!(
        ["patched", "symbols_only"].contains(&process["covered"].as_str().expect("a word")),
        "{process}"
    );
    let text = place.say(&["status", "--interval", "100ms"]).out;
    assert!(
        text.contains("write") && text.contains("500 kB/s") && text.contains(" dd "),
        "{text}"
    );
    let picture = place.say(&["top", "--once", "--interval", "200ms"]).out;
    assert!(
        picture.contains("500 kB/s") && picture.contains('█'),
        "{picture}"
    );
    running.signal("TERM");
    assert_eq!(running.end().code, Some(143));
}

#[test]
fn a_change_reaches_a_call_that_would_wait_for_hours() {
    let Some(place) = Place::new("a_change_reaches_a_call_that_would_wait_for_hours") else {
        return;
    };
    let mut running = place.start("c", &["-l", "read=1B/s:burst=2B", "--", "cat"]);
    // Read at once, and handed over 100,000 s later.
    running.write(&"x".repeat(100_000));
    let asleep =
        |service: &serde_json::Value| service["limits"][0]["level"].as_i64() < Some(-1_000);
    place.until("c", asleep);
    let start = Instant::now();
    let said = place.say(&["set", "c", "read=unlimited"]);
    assert_eq!(
        said.out, "c: read 1 B/s (burst 2B) -> unlimited\n",
        "{said:?}"
    );
    let end = running.end();
    assert_eq!((end.out.len(), end.code), (100_000, Some(0)));
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn several_limits_are_one_change_and_a_wrong_one_changes_nothing() {
    let Some(place) = Place::new("several_limits_are_one_change_and_a_wrong_one_changes_nothing")
    else {
        return;
    };
    let running = place.start("c", &["-l", "read=1MB/s", "--", "cat"]);
    let settings = || {
        let status = place.json(&["status", "--interval", "10ms", "--json"]);
        let limits = status["services"][0]["limits"]
            .as_array()
            .expect("limits")
            .clone();
        let mut all: Vec<String> = limits
            .iter()
            .map(|l| format!("{}={}", l["name"], l["setting"]).replace('"', ""))
            .collect();
        all.sort();
        all
    };
    let wrong = place.say(&["set", "c", "read=2MB/s", "open=1MB/s"]);
    assert_eq!((wrong.code, wrong.out.as_str()), (Some(2), ""));
    assert_eq!(settings(), ["read=1MB/s"]);
    let said = place.say(&[
        "set",
        "c",
        "read=2MB/s",
        "send=8Mbit/s",
        "open=5/s",
        "sync=unlimited",
    ]);
    assert_eq!(
        said.out,
        "c: read 1 MB/s -> 2 MB/s\nc: send unlimited -> 8 Mbit/s\nc: open unlimited -> 5/s\n\
         c: sync had no limit: nothing to lift\n"
    );
    assert_eq!(settings(), ["open=5/s", "read=2MB/s", "send=1MB/s"]);
    let changes = place.json(&["set", "c", "read=unlimited", "--json"]);
    assert_eq!(changes["changes"][0]["from"][0], "2MB/s");
    assert_eq!(changes["changes"][0]["to"], "unlimited");
    running.end();
}

#[test]
fn stats_have_every_counter() {
    let Some(place) = Place::new("stats_have_every_counter") else {
        return;
    };
    let mut running = place.start(
        "c",
        &[
            "-l",
            "read=100kB/s",
            "--",
            "sh",
            "-c",
            "cat >/dev/null; sleep 5",
        ],
    );
    running.write(&"x".repeat(50_000));
    place.until("c", |service| {
        service["processes"]
            .as_array()
            .is_some_and(|all| all.iter().any(|p| p["program"] == "sleep"))
    });
    let stats = place.json(&["stats", "c", "--json"]);
    let class = |name: &str| {
        let classes = stats["classes"].as_array().expect("classes");
        classes
            .iter()
            .find(|class| class["class"] == name)
            .cloned()
            .unwrap_or_default()
    };
    assert!(class("read")["bytes"].as_u64() >= Some(50_000), "{stats:#}");
    assert!(
        class("write")["bytes"].as_u64() >= Some(50_000),
        "{stats:#}"
    );
    assert!(class("exec")["bytes"].is_null() && class("exec")["calls"].as_u64() > Some(0));
    let calls = stats["calls"].as_array().expect("calls");
    let waited = calls
        .iter()
        .find(|call| call["waits"]["count"].as_u64() > Some(0))
        .expect("a wait");
    let sum: u64 = waited["waits"]["histogram"]
        .as_array()
        .expect("a histogram")
        .iter()
        .filter_map(|bin| bin["count"].as_u64())
        .sum();
    assert_eq!(Some(sum), waited["waits"]["count"].as_u64());
    assert!(place.say(&["stats", "c"]).out.contains("waits of read"));
    running.signal("TERM");
    running.end();
}

#[test]
fn the_audit_agrees_with_the_kernel() {
    let Some(place) = Place::new("the_audit_agrees_with_the_kernel") else {
        return;
    };
    let script = "dd if=/dev/zero of=/dev/null bs=64k count=160 2>/dev/null; read x; exit 0";
    let mut running = place.start("c", &["--", "sh", "-c", script]);
    // Until the shell waits for its line, dd has been waited for.
    place.until("c", |service| {
        let all = service["processes"].as_array().expect("processes");
        all.len() == 1 && all[0]["calls"].as_u64() > Some(1)
    });
    let end = Instant::now() + Duration::from_secs(10);
    let audit = loop {
        let audit = place.json(&["audit", "c", "--json"]);
        let one = audit["processes"]
            .as_array()
            .is_some_and(|all| all.len() == 1);
        if one && audit["total"]["written"]["kernel"].as_u64() >= Some(10_485_760) {
            break audit;
        }
        assert!(Instant::now() < end, "{audit:#}");
    };
    let total = &audit["total"];
    assert_eq!(audit["total_includes_ended"], true);
    for side in ["read", "written"] {
        assert!(
            total[side]["seen"].as_u64() >= Some(10_485_760),
            "{audit:#}"
        );
        assert!(
            total[side]["unseen_percent"].as_f64() < Some(1.0),
            "{audit:#}"
        );
    }
    let shell = &audit["processes"][0];
    assert!(
        shell["read"]["kernel"].as_u64() < Some(1_000_000),
        "without its children: {shell:#}"
    );
    let text = place.say(&["audit", "c"]).out;
    assert!(
        text.contains("the whole service") && text.contains("/proc counts neither send"),
        "{text}"
    );
    running.write("x\n");
    assert_eq!(running.end().code, Some(0));
}

#[test]
fn the_doctor_tries_the_library_out() {
    let Some(place) = Place::new("the_doctor_tries_the_library_out") else {
        return;
    };
    let value = place.json(&["doctor", "--json"]);
    assert_eq!(value["ok"], true);
    let trial = &value["machine"]["trial"];
    assert!(trial["attach_cost_ns"].as_u64() > Some(0), "{trial}");
    assert_eq!(place.left(), Vec::<String>::new());
    let program = place.json(&["doctor", "dd", "--json"]);
    assert_eq!(program["program"]["linkage"], "dynamic");
    let sites = program["program"]["libraries"][0]["sites"].as_u64();
    assert!(sites > Some(40), "{program:#}");
    assert_eq!(place.say(&["doctor", "no-such-program"]).code, Some(127));
}

#[test]
fn no_service_is_no_error() {
    let place = Place::bare();
    for command in ["status", "top"] {
        let args = if command == "top" {
            vec!["top", "--once"]
        } else {
            vec![command]
        };
        let said = place.say(&args);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(said.out.contains("no service is running"), "{said:?}");
    }
}

#[test]
fn a_ledger_that_cannot_be_read_hides_no_other_service() {
    let Some(place) = Place::new("a_ledger_that_cannot_be_read_hides_no_other_service") else {
        return;
    };
    let others =
        ["a", "c"].map(|name| place.start(name, &["-l", "read=1MB/s", "--", "sleep", "60"]));
    let folder = place.path().join("b");
    let broken = place.start("b", &["--", "sleep", "60"]);
    std::fs::write(folder.join("ledger.new"), "no ledger").expect("written");
    std::fs::rename(folder.join("ledger.new"), folder.join("ledger")).expect("replaced");
    let status = place.json(&["status", "--interval", "100ms", "--json"]);
    let services = status["services"].as_array().expect("services");
    let of = |name: &str| {
        services
            .iter()
            .find(|service| service["name"] == name)
            .expect("it")
    };
    assert!(of("b")["error"].is_string(), "{}", of("b"));
    for name in ["a", "c"] {
        assert!(of(name)["error"].is_null(), "{}", of(name));
        assert_eq!(of(name)["limits"][0]["name"], "read");
    }
    for command in [
        &["status", "--interval", "100ms"][..],
        &["top", "--once", "--interval", "100ms"],
    ] {
        let said = place.say(command);
        assert_eq!(said.code, Some(0), "{command:?}: {said:?}");
        assert!(said.out.contains("1 MB/s"), "{command:?}: {said:?}");
    }
    for running in others.iter().chain([&broken]) {
        running.signal("TERM");
    }
}
