//! `bonsai why` on real programs that are slow for a known reason.
//!
//! What else runs on the machine may take the CPU away for a while. So a verdict may
//! take several windows; it is never one of several, and no test judges a speed.

use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Place, compiled, skip};

/// How long a verdict may take to come.
const PATIENCE: Duration = Duration::from_secs(20);

/// Asks until the answer is as it should be.
fn ask(place: &Place, name: &str, right: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let value = place.json(&["why", name, "--for", "500ms", "--json"]);
        if right(&value) {
            return value;
        }
        assert!(Instant::now() < end, "never so: {value:#}");
    }
}

/// Asks until the cause is this one.
fn why(place: &Place, name: &str, cause: &str) -> Value {
    ask(place, name, |value| value["cause"] == cause)
}

fn sentence(value: &Value) -> &str {
    value["sentence"].as_str().expect("a sentence")
}

fn row<'a>(value: &'a Value, what: &str) -> &'a Value {
    let rows = value["rows"].as_array().expect("rows");
    rows.iter()
        .find(|row| row["what"] == what)
        .unwrap_or_else(|| panic!("{what}: {value:#}"))
}

fn share(value: &Value, what: &str) -> f64 {
    row(value, what)["share"].as_f64().expect("a share")
}

/// A program of the test itself, ended with it.
struct Own(Child);

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn has(program: &str) -> bool {
    let tried = Command::new(program).arg("--version").output();
    tried.is_ok_and(|output| output.status.success())
}

/// The first CPU that this process may use.
fn a_cpu() -> String {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .expect("a list");
    let first = list.trim().split([',', '-']).next();
    first.expect("a CPU").to_owned()
}

#[test]
fn a_limit_that_holds_a_service_back_is_named() {
    let Some(place) = Place::new("a_limit_that_holds_a_service_back_is_named") else {
        return;
    };
    // Of the limits on the same calls, one binds; another one is on other calls.
    let limits = [
        "-l",
        "write=500kB/s",
        "-l",
        "all=100GB/s",
        "-l",
        "send=1Mbit/s",
    ];
    let copy = ["--", "dd", "if=/dev/zero", "of=/dev/null", "bs=1k"];
    let running = place.start("c", &[&limits[..], &copy].concat());
    let value = why(&place, "c", "bonsai");
    assert!(
        sentence(&value).ends_with(
            "waiting for the limit write=500kB/s (raise it with: bonsai set c write=RATE)"
        ),
        "{value:#}"
    );
    let rows = value["rows"].as_array().expect("rows");
    let of = |limit: &str| {
        let row = rows.iter().find(|row| row["limit"] == limit);
        row.and_then(|row| row["share"].as_f64()).expect("a share")
    };
    assert!(of("write=500kB/s") > 0.5, "{value:#}");
    assert!(
        of("all=100GB/s") < 0.1 && of("send=1Mbit/s") == 0.0,
        "{value:#}"
    );
    let text = place.say(&["why", "c", "--for", "200ms"]);
    assert_eq!(text.code, Some(0));
    let first = text.out.lines().next().expect("a line");
    assert!(
        first.starts_with("c is slow because of Bonsai: "),
        "{text:?}"
    );
    // Lifted, it is not the reason any more: now it works as fast as it can.
    place.say(&["set", "c", "write=unlimited"]);
    why(&place, "c", "cpu");
    running.signal("TERM");
    running.end();
}

#[test]
fn one_wait_that_outlasts_the_window_counts() {
    let Some(place) = Place::new("one_wait_that_outlasts_the_window_counts") else {
        return;
    };
    let mut running = place.start("c", &["-l", "read=1B/s:burst=2B", "--", "cat"]);
    running.write(&"x".repeat(1_000));
    let part = |value: &Value| {
        let (waited, window) = (&row(value, "limit")["ns"], &value["window_ns"]);
        waited.as_f64().expect("ns") / window.as_f64().expect("ns")
    };
    // The wait begins before the window, and is not over: all of the window, no more.
    let value = ask(&place, "c", |value| {
        assert!(part(value) < 1.02, "{value:#}");
        value["cause"] == "bonsai" && part(value) > 0.95
    });
    assert!(
        sentence(&value).contains("the limit read=1B/s"),
        "{value:#}"
    );
    place.say(&["set", "c", "read=unlimited"]);
    assert_eq!(running.end().code, Some(0));
}

#[test]
fn a_cpu_that_others_use_is_the_reason() {
    let test = "a_cpu_that_others_use_is_the_reason";
    let Some(place) = Place::new(test) else {
        return;
    };
    if !has("taskset") {
        skip(test, "taskset is not installed (apt install util-linux)");
        return;
    }
    let cpu = a_cpu();
    let spin = ["taskset", "-c", &cpu, "sh", "-c", "while :; do :; done"];
    let hog = Command::new(spin[0]).args(&spin[1..]).spawn();
    let _hog = Own(hog.expect("taskset"));
    let running = place.start("c", &[&["-l", "write=1MB/s", "--"][..], &spin].concat());
    // It always wants the CPU; how the system divides a window among those who do is up to
    // it, and to what else runs here.
    let value = ask(&place, "c", |value| {
        let waiting = &row(value, "cpu_waiting")["ns"];
        let part = || share(value, "cpu_waiting");
        value["cause"] == "cpu" && (waiting.is_null() || part() > 0.3)
    });
    assert!(share(&value, "cpu_running") > 0.0, "{value:#}");
    if row(&value, "cpu_waiting")["ns"].is_null() {
        skip(test, "the kernel has no schedstat");
    } else {
        let text = sentence(&value);
        assert!(
            text.starts_with("c is slow because of the CPU") && text.contains("a free CPU"),
            "{value:#}"
        );
    }
    running.signal("TERM");
    running.end();
}

/// The part of the time that writing to a file synchronously is seen in state D, bare.
fn part_in_d(file: &Path) -> f64 {
    let writer = Command::new("dd")
        .args(["if=/dev/zero", "bs=4k", "oflag=dsync"])
        .arg(format!("of={}", file.display()))
        .stderr(Stdio::null())
        .spawn();
    let writer = Own(writer.expect("dd"));
    let looks = 200;
    let in_d = (0..looks).filter(|_| {
        std::thread::sleep(Duration::from_millis(2));
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", writer.0.id()));
        stat.is_ok_and(|stat| stat.contains(") D "))
    });
    in_d.count() as f64 / f64::from(looks)
}

#[test]
fn a_disk_that_is_waited_for_is_the_reason() {
    let test = "a_disk_that_is_waited_for_is_the_reason";
    let Some(place) = Place::new(test) else {
        return;
    };
    // Below the build: /tmp may be in memory.
    let beside = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = tempfile::tempdir_in(beside).expect("a folder");
    let part = part_in_d(&folder.path().join("bare"));
    if part < 0.4 {
        let reason = format!(
            "synchronous writes below {} wait for no device ({:.0} % of the time)",
            beside.display(),
            part * 100.0
        );
        skip(test, &reason);
        return;
    }
    let file = format!("of={}", folder.path().join("x").display());
    let write = [
        "-l",
        "read=1GB/s",
        "--",
        "dd",
        "if=/dev/zero",
        "bs=4k",
        "oflag=dsync",
        &file,
    ];
    let running = place.start("c", &write);
    let value = why(&place, "c", "disk");
    assert!(
        sentence(&value).contains("because of the disk"),
        "{value:#}"
    );
    assert!(share(&value, "disk") > 0.2, "{value:#}");
    running.signal("TERM");
    running.end();
}

#[test]
fn a_peer_that_does_not_read_is_the_reason() {
    let test = "a_peer_that_does_not_read_is_the_reason";
    let Some(place) = Place::new(test) else {
        return;
    };
    if !has("bash") {
        skip(test, "bash is not installed");
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let send = format!("exec dd if=/dev/zero bs=64k >/dev/tcp/127.0.0.1/{port}");
    let running = place.start("c", &["-l", "send=10GB/s", "--", "bash", "-c", &send]);
    let (mut peer, _) = listener.accept().expect("accepted");
    let value = ask(&place, "c", |value| {
        value["cause"] == "network" && share(value, "network_send") > 0.9
    });
    let text = sentence(&value);
    assert!(
        text.contains("waiting for peers to take what was sent ("),
        "{value:#}"
    );
    assert!(
        text.ends_with("in the send queues of 1 of 1 TCP connections)"),
        "{value:#}"
    );
    assert!(value["queues"]["unsent"].as_u64() > Some(0), "{value:#}");
    // Once it reads as fast as it can, it is not the reason any more.
    let reader = std::thread::spawn(move || {
        let mut piece = vec![0_u8; 1 << 20];
        while peer.read(&mut piece).is_ok_and(|read| read > 0) {}
    });
    ask(&place, "c", |value| value["cause"] != "network");
    running.signal("TERM");
    running.end();
    reader.join().expect("ended");
}

/// Serves as many threads as the real ones: one waits for events, one for work. With
/// an argument it connects there instead and sends, without blocking, what is taken.
const SERVER: &str = r#"
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static void *worker(void *p) {
    pthread_mutex_lock(&lock);
    for (;;) pthread_cond_wait(&work, &lock);
    return p;
}
int main(int argc, char **argv) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int s = socket(AF_INET, SOCK_STREAM, 0);
    static char piece[65536];
    pthread_t t;
    if (argc > 1) {
        at.sin_port = htons(atoi(argv[1]));
        if (connect(s, (struct sockaddr *)&at, sizeof at)) return 1;
        fcntl(s, F_SETFL, O_NONBLOCK);
        for (;;) {
            struct pollfd one = {s, POLLOUT, 0};
            if (send(s, piece, sizeof piece, MSG_NOSIGNAL) < 0) poll(&one, 1, -1);
            if (one.revents & (POLLERR | POLLHUP)) return 0;
        }
    }
    if (bind(s, (struct sockaddr *)&at, sizeof at) || listen(s, 8)) return 1;
    int e = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data = {.fd = s}};
    epoll_ctl(e, EPOLL_CTL_ADD, s, &event);
    for (int i = 0; i < 3; i++) pthread_create(&t, 0, worker, 0);
    for (;;) epoll_wait(e, &event, 1, -1);
}
"#;

#[test]
fn a_server_without_clients_is_idle() {
    let test = "a_server_without_clients_is_idle";
    let Some(place) = Place::new(test) else {
        return;
    };
    let Some(server) = compiled(test, &place, SERVER, ".server", &["-pthread"]) else {
        return;
    };
    let server = server.to_str().expect("text");
    let running = place.start("c", &["-l", "send=8Mbit/s", "--", server]);
    // While it starts, it works, and has fewer threads.
    let value = ask(&place, "c", |value| {
        value["cause"] == "idle" && value["threads"] == 4
    });
    assert!(
        sentence(&value).starts_with("c is idle: it spent 100 % of the last "),
        "{value:#}"
    );
    running.signal("TERM");
    running.end();
}

#[test]
fn whoever_waits_for_events_is_judged_by_its_connections() {
    let test = "whoever_waits_for_events_is_judged_by_its_connections";
    let Some(place) = Place::new(test) else {
        return;
    };
    let Some(server) = compiled(test, &place, SERVER, ".server", &["-pthread"]) else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port().to_string();
    let server = server.to_str().expect("text");
    let running = place.start("c", &["-l", "send=10GB/s", "--", server, &port]);
    let (_peer, _) = listener.accept().expect("accepted");
    let value = why(&place, "c", "network");
    assert!(
        sentence(&value).contains("peers to take what was sent"),
        "{value:#}"
    );
    running.signal("TERM");
    running.end();
}

#[test]
fn who_waits_for_an_answer_or_a_timer_is_told_apart() {
    let test = "who_waits_for_an_answer_or_a_timer_is_told_apart";
    let Some(place) = Place::new(test) else {
        return;
    };
    let running = place.start("t", &["-l", "read=1MB/s", "--", "sleep", "60"]);
    let value = why(&place, "t", "itself");
    assert!(
        sentence(&value).contains("is not held back by Bonsai"),
        "{value:#}"
    );
    running.signal("TERM");
    running.end();
    if !has("bash") {
        skip(test, "bash is not installed");
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let ask = format!("exec cat </dev/tcp/127.0.0.1/{port}");
    let running = place.start("a", &["-l", "recv=8Mbit/s", "--", "bash", "-c", &ask]);
    let (_peer, _) = listener.accept().expect("accepted");
    let value = why(&place, "a", "network");
    assert!(
        sentence(&value).contains("waiting for answers of those"),
        "{value:#}"
    );
    running.signal("TERM");
    running.end();
}

#[test]
fn what_cannot_be_seen_is_said() {
    let Some(place) = Place::new("what_cannot_be_seen_is_said") else {
        return;
    };
    let running = place.start("c", &["-l", "read=1MB/s", "--", "sleep", "60"]);
    let value = place.json(&["why", "c", "--for", "100ms", "--json"]);
    let missing = value["missing"].as_array().expect("a list");
    let said = |text: &str| {
        missing
            .iter()
            .any(|m| m.as_str().is_some_and(|m| m.contains(text)))
    };
    let accounting = std::fs::read_to_string("/proc/sys/kernel/task_delayacct");
    let counts = accounting.is_ok_and(|text| text.trim() != "0");
    assert_eq!(said("delay accounting"), !counts, "{value:#}");
    for resource in ["io", "cpu"] {
        let kept = Path::new("/proc/pressure").join(resource).exists();
        let row = value["pressure"].as_array().expect("rows").iter();
        let row = row
            .into_iter()
            .find(|row| row["resource"] == resource)
            .expect("a row");
        assert_eq!(row["machine"].is_null(), !kept, "{value:#}");
        assert_eq!(said(&format!("no {resource} pressure")), !kept, "{value:#}");
    }
    running.signal("TERM");
    running.end();
}
