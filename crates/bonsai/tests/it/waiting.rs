//! Who waits: shown while it does, and never afterwards.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Place, compiled, signal};

fn waiting(service: &Value) -> &Vec<Value> {
    service["waiting"].as_array().expect("a list")
}

#[test]
fn status_says_who_waits_for_which_limit_and_for_how_long() {
    let Some(place) = Place::new("status_says_who_waits_for_which_limit_and_for_how_long") else {
        return;
    };
    // Of two limits, the one that holds it back is named.
    let limits = ["-l", "all=1GB/s", "-l", "read=1B/s:burst=2B"];
    let mut running = place.start("c", &[&limits[..], &["--", "cat"]].concat());
    running.write(&"x".repeat(1_000));
    let first = place.until("c", |service| waiting(service).len() == 1);
    let who = &waiting(&first)[0];
    let pid = first["processes"][0]["pid"].as_u64().expect("a number");
    for (field, value) in [("pid", pid), ("tid", pid)] {
        assert_eq!(who[field].as_u64(), Some(value), "{who}");
    }
    for (field, text) in [
        ("program", "cat"),
        ("limit", "read"),
        ("setting", "1B/s:burst=2B"),
        ("call", "read"),
        ("kind", "other"),
    ] {
        assert_eq!(who[field], text, "{who}");
    }
    // The whole wait takes about 1000 s; what has passed and what is left add up.
    let sum = |who: &Value| who["waited_ns"].as_u64().zip(who["due_in_ns"].as_u64());
    let (waited, left) = sum(who).expect("times");
    assert!(
        (900..=1_010).contains(&((waited + left) / 1_000_000_000)),
        "{who}"
    );
    let later = place.until("c", |service| {
        waiting(service)
            .first()
            .is_some_and(|who| who["waited_ns"].as_u64() >= Some(waited + 300_000_000))
    });
    assert!(
        waiting(&later)[0]["due_in_ns"].as_u64() < Some(left),
        "{later:#}"
    );
    for args in [
        &["status", "--interval", "10ms"][..],
        &["top", "--once", "--interval", "10ms"],
    ] {
        let text = place.say(args).out;
        let line = text
            .lines()
            .find(|line| line.contains(&pid.to_string()) && line.contains("read"))
            .unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains("cat"), "{text}");
    }
    place.say(&["set", "c", "read=unlimited"]);
    assert_eq!(running.end().code, Some(0));
}

#[test]
fn a_thread_killed_in_its_wait_is_not_shown() {
    let Some(place) = Place::new("a_thread_killed_in_its_wait_is_not_shown") else {
        return;
    };
    let script = "head -c 1000 /dev/zero >/dev/null; read x";
    let running = place.start("c", &["-l", "read=1B/s:burst=2B", "--", "sh", "-c", script]);
    let seen = place.until("c", |service| waiting(service).len() == 1);
    let pid = waiting(&seen)[0]["pid"].as_u64().expect("a number");
    signal(u32::try_from(pid).expect("a process id"), "KILL");
    let end = Instant::now() + Duration::from_secs(2);
    // The shell itself waits as soon as it has read something; nobody wrote anything.
    while Instant::now() < end {
        let status = place.json(&["status", "c", "--interval", "10ms", "--json"]);
        let service = &status["services"][0];
        let lives = service["processes"]
            .as_array()
            .is_some_and(|all| all.iter().any(|p| p["pid"].as_u64() == Some(pid)));
        assert!(lives || waiting(service).is_empty(), "{service:#}");
    }
    running.end();
}

/// The first thread waits for its limit when another one makes the process another
/// program, in which the first thread's id is the only one; or when a signal handler
/// leaves the wait by `siglongjmp`.
const LEAVES: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
static sigjmp_buf out;
static void leave(int s) { siglongjmp(out, s); }
static void *exec(void *p) { usleep(900000); execlp("sleep", "sleep", "3", (char *)0); return p; }
int main(int argc, char **argv) {
    static char buffer[1000];
    int zero = open("/dev/zero", O_RDONLY);
    pthread_t t;
    if (argc > 1) {
        signal(SIGALRM, leave);
        ualarm(900000, 0);
        if (sigsetjmp(out, 1) == 0) read(zero, buffer, sizeof buffer);
        for (;;) pause();
    }
    pthread_create(&t, 0, exec, 0);
    read(zero, buffer, sizeof buffer);
    return 1;
}
"#;

#[test]
fn a_wait_that_was_left_is_not_shown() {
    let test = "a_wait_that_was_left_is_not_shown";
    let Some(place) = Place::new(test) else {
        return;
    };
    let Some(program) = compiled(test, &place, LEAVES, ".leaves", &["-pthread"]) else {
        return;
    };
    let program = program.to_str().expect("text");
    for (name, args) in [("exec", vec![]), ("jump", vec!["jump"])] {
        let command = [&["-l", "read=1B/s:burst=2B", "--", program][..], &args].concat();
        let running = place.start(name, &command);
        let seen = place.until(name, |service| waiting(service).len() == 1);
        let pid = waiting(&seen)[0]["pid"].as_u64().expect("a number");
        let left = |service: &Value| {
            let what = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
            let sleeps = service["processes"][0]["program"] == "sleep";
            // pause(2)
            sleeps || what.starts_with("34 ")
        };
        place.until(name, left);
        // From here on never again, however young the note is.
        let end = Instant::now() + Duration::from_millis(1_500);
        while Instant::now() < end {
            let status = place.json(&["status", name, "--interval", "10ms", "--json"]);
            assert!(waiting(&status["services"][0]).is_empty(), "{status:#}");
        }
        running.signal("TERM");
        running.end();
    }
}
