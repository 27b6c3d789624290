//! What one client may keep busy, and for how long: others are answered all the same.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::fixture::{Ring, over_tcp, request};
use super::machine::Machine;
use crate::fixture::{PATIENCE, installed};

/// A daemon that listens on TCP: with its address and a token.
fn over_loopback(config: &str) -> (Ring, String, String) {
    let mut ring = Ring::new(config);
    let said = ring.start(&["--listen", "127.0.0.1:0"]);
    let address = said.trim().rsplit(' ').next().expect("an address");
    let bearer = bearer(&ring, "reader");
    (ring, address.to_owned(), bearer)
}

fn status(address: &str, headers: &[&str]) -> u16 {
    let host = format!("host: {address}");
    let headers = [&[&*host], headers].concat();
    over_tcp(address, &request("GET", "/v1/status", &headers, "")).status
}

/// A line that shows a token of that name.
pub(super) fn bearer(ring: &Ring, name: &str) -> String {
    let token = ring.done(&["token", "create", name, "--scope", "read"]);
    format!("authorization: Bearer {}", token.trim())
}

pub(super) fn connected(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    stream
}

/// Whatever still comes, until the other end ends it.
fn to_the_end(mut stream: impl Read) -> String {
    let mut text = Vec::new();
    // An end by a reset is one, too; one by time is none.
    if let Err(error) = stream.read_to_end(&mut text) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn who_stays_silent_is_given_up() {
    let (ring, address, bearer) = over_loopback("");
    let head = "PATCH /v1/config HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                content-length: 10\r\n\r\n";
    let mut body = UnixStream::connect(ring.socket()).expect("a connection");
    body.set_read_timeout(Some(PATIENCE)).expect("a time");
    body.write_all(head.as_bytes()).expect("sent");
    // Two connections that ask once, with a token and without, and stay.
    let get = format!("GET /v1/status HTTP/1.1\r\nhost: {address}\r\n");
    let mut known = connected(&address);
    write!(known, "{get}{bearer}\r\ncontent-length: 10\r\n\r\n").expect("sent");
    let mut unknown = connected(&address);
    write!(unknown, "{get}\r\n").expect("sent");
    let listening = "GET /v1/events?interval=1s HTTP/1.1";
    let mut stream = connected(&address);
    write!(stream, "{listening}\r\nhost: {address}\r\n{bearer}\r\n\r\n").expect("sent");
    let answer = to_the_end(body);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("application/problem+json"), "{answer}");
    let answer = to_the_end(unknown);
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    let mut first = [0; 12];
    known.read_exact(&mut first).expect("an answer");
    assert_eq!(&first, b"HTTP/1.1 200");
    // Whoever has shown a token goes on.
    std::thread::sleep(Duration::from_secs(2));
    let start = Instant::now();
    let mut got = [0; 65_536];
    while start.elapsed() < Duration::from_secs(3) {
        assert_ne!(stream.read(&mut got).expect("events"), 0, "it has ended");
    }
}

#[test]
fn a_stream_ends_with_its_token() {
    let (ring, address, bearer) = over_loopback("");
    let listen = |bearer: &str| {
        let mut stream = connected(&address);
        let path = "/v1/events?interval=60s";
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: {address}\r\n{bearer}\r\n\r\n"
        )
        .expect("sent");
        let mut first = [0; 12];
        stream.read_exact(&mut first).expect("an answer");
        assert_eq!(&first, b"HTTP/1.1 200");
        stream
    };
    let short = ["token", "create", "short", "--for", "4s"];
    let short = format!("authorization: Bearer {}", ring.done(&short).trim());
    let (revoked, over) = (listen(&bearer), listen(&short));
    ring.done(&["token", "revoke", "reader"]);
    let told = to_the_end(revoked);
    assert!(told.contains("event: services"), "{told}");
    let told = to_the_end(over);
    assert!(told.contains("event: status"), "{told}");
}

#[test]
fn who_shows_no_token_keeps_no_page_from_its_files() {
    let (_ring, address, bearer) = over_loopback("[api]\nrequests = 20\n");
    let host = format!("host: {address}");
    let get = |path: &str| over_tcp(&address, &request("GET", path, &[&host], "")).status;
    let start = Instant::now();
    while status(&address, &[]) != 429 {
        assert!(start.elapsed() < PATIENCE, "nobody is told to wait");
    }
    // A browser asks for them without a token, from the same address.
    for path in ["/", "/js/main.js"] {
        assert_eq!(get(path), 200, "{path}");
    }
    assert_eq!(get("/none"), 404);
    // How often on a connection has an end.
    let mut often = connected(&address);
    let one = format!("GET / HTTP/1.1\r\n{host}\r\n\r\n");
    let last = request("GET", "/", &[&host], "");
    let text = format!("{}{last}", one.repeat(200));
    let answers = std::thread::scope(|scope| {
        let reader = often.try_clone().expect("the other end");
        let answers = scope.spawn(move || to_the_end(reader));
        often.write_all(text.as_bytes()).expect("sent");
        answers.join().expect("answers")
    });
    let count = |status: &str| answers.matches(&format!("HTTP/1.1 {status}")).count();
    assert_eq!(count("200") + count("429"), 201);
    assert!(count("200") >= 20 && count("429") > 0, "{}", count("200"));
    assert_eq!(get("/"), 200);
    assert_eq!(status(&address, &[&bearer]), 200);
}

#[test]
fn who_shows_no_token_keeps_out_nobody_who_does() {
    let (ring, address, bearer) = over_loopback("[api]\nrequests = 20\n");
    // As often as they like, from the same address.
    let start = Instant::now();
    while status(&address, &[]) != 429 {
        assert!(start.elapsed() < PATIENCE, "nobody is told to wait");
    }
    assert_eq!(status(&address, &[&bearer]), 200);
    // As many as they like: more than there are places, and more after those.
    let silent: Vec<TcpStream> = (0..600).map(|_| connected(&address)).collect();
    assert_eq!(status(&address, &[&bearer]), 200);
    let mut begun = connected(&address);
    write!(
        begun,
        "GET /v1/status HTTP/1.1\r\nhost: {address}\r\n{bearer}\r\n\r\n"
    )
    .expect("sent");
    let mut first = [0; 12];
    begun.read_exact(&mut first).expect("an answer");
    let more: Vec<TcpStream> = (0..100).map(|_| connected(&address)).collect();
    assert_eq!(status(&address, &[&bearer]), 200);
    drop(to_the_end(&silent[0]));
    ring.get("/v1/status");
    drop((silent, more));
}

/// Events that a listener gets until that text comes, once it has shown the id of its last one.
fn events_until(ring: &Ring, last: &str, expected: &str) -> String {
    let mut stream = UnixStream::connect(ring.socket()).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    let header = match last {
        "" => String::new(),
        last => format!("last-event-id: {last}\r\n"),
    };
    write!(
        stream,
        "GET /v1/events?interval=100ms HTTP/1.1\r\nhost: localhost\r\n{header}\r\n"
    )
    .expect("sent");
    let mut text = String::new();
    let mut piece = [0; 4096];
    while !text.contains(expected) {
        let read = stream.read(&mut piece).expect("events");
        assert_ne!(read, 0, "it has ended: {text}");
        text.push_str(&String::from_utf8_lossy(&piece[..read]));
    }
    text
}

#[test]
fn a_listener_who_comes_back_is_told_what_was_done_meanwhile() {
    let ring = Ring::started("");
    let set = |weight: usize| {
        let body = format!("{{\"services\":{{\"vod\":{{\"send\":{{\"weight\":{weight}}}}}}}}}");
        assert_eq!(ring.ask("PATCH", "/v1/config", &body).status, 200);
    };
    set(1);
    let first = events_until(&ring, "", "event: status");
    let id = first
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("id: "));
    let id: u64 = id.and_then(|id| id.trim().parse().ok()).expect("an id");
    set(2);
    set(3);
    let text = events_until(&ring, &id.to_string(), &format!("id: {}\n", id + 2));
    let told = |entry: u64| text.contains(&format!("event: audit\nid: {entry}\n"));
    assert!(told(id + 1) && told(id + 2), "{text}");
    assert!(!told(id) && !text.contains("event: skipped"), "{text}");
    // More than there is in memory: what is not told is said.
    for weight in 4..600 {
        set(weight);
    }
    let text = events_until(&ring, &id.to_string(), "event: audit");
    let skipped = text.find("event: skipped").expect("it is said");
    assert!(
        text[skipped..].contains(&format!("\"after\":{id},")),
        "{text}"
    );
    // A number of another trail is none.
    let text = events_until(&ring, "99999999", "event: status");
    assert!(!text.contains("event: skipped"), "{text}");
}

#[test]
fn one_user_who_floods_a_listener_takes_no_place_of_another() {
    let test = "one_user_who_floods_a_listener_takes_no_place_of_another";
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let address = free.expect("an address").to_string();
    let config = format!("[api]\nlisten = \"{address}\"\n");
    let Some(machine) = Machine::started(test, &config) else {
        return;
    };
    if installed(test, "/usr/bin/python3").is_none() {
        return;
    }
    let token = machine.root.done(&["token", "create", "reader"]);
    let bearer = format!("authorization: Bearer {}", token.trim());
    let port = address.rsplit(':').next().expect("a port");
    let flood = format!(
        "import socket\nkept = [socket.create_connection(('127.0.0.1', {port}), 20) for i in range(700)]\nprint('ready')"
    );
    let text = request(
        "GET",
        "/v1/status",
        &[&format!("host: {address}"), &bearer],
        "",
    );
    let start = Instant::now();
    let answer = loop {
        // A connection of the user of this test, and slow.
        let (mut slow, since) = (connected(&address), Instant::now());
        let mut python = machine.alice.bare("/usr/bin/python3", &["-c", &flood]);
        let said = conformance::finish(&mut python, PATIENCE).expect("it ends");
        assert_eq!(said.stdout.trim(), "ready", "{said:?}");
        if since.elapsed() < Duration::from_secs(8) {
            slow.write_all(text.as_bytes()).expect("sent");
            break to_the_end(slow);
        }
        // After 10 s without a token it ends anyway: this machine was busy.
        assert!(start.elapsed() < 3 * PATIENCE, "the flood is never quick");
    };
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
