//! Strangers: many, slow, silent, under false names.

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bonsai_stream::serve::Allotted;
use bonsai_web::Limits;

use crate::support::{PATIENCE, Said, Server, bytes, until};

fn clips() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("a.mp4"), bytes(32 << 20, 7)).expect("written");
    folder
}

fn short() -> Limits {
    Limits {
        request: Duration::from_millis(300),
        stall: Duration::from_millis(1500),
        ..Limits::default()
    }
}

/// By the safe side alone: never faster than that, counted in bytes.
#[test]
fn files_are_read_at_what_streams_leave_of_a_rate() {
    const RATE: u64 = 4 << 20;
    let folder = clips();
    let rate = Arc::new(Allotted::default());
    rate.set(Some(RATE));
    let server = Server::beside(
        Some(Arc::clone(&rate)),
        Some(folder.path()),
        None,
        Limits::default(),
    );
    let began = Instant::now();
    let part = |from: u64| {
        let range = format!("Range: bytes={from}-{}", from + (1 << 20) - 1);
        let said = server.ask("GET", "/a.mp4", &[&range], "");
        assert_eq!((said.status, said.body.len()), (206, 1 << 20));
    };
    std::thread::scope(|scope| {
        for from in 0..4 {
            scope.spawn(move || part(from << 20));
        }
    });
    let most = began.elapsed().as_secs_f64() * RATE as f64 + f64::from(128 << 10);
    assert!(f64::from(4 << 20) <= most, "4 MiB, {most} bytes may go");
    // Whoever leaves in the middle takes nothing along.
    let mut gone = server.connect();
    let request = "GET /a.mp4 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    gone.write_all(request.as_bytes()).expect("asked");
    drop(gone);
    // A rate that nobody says any more holds nobody back.
    rate.set(None);
    assert_eq!(server.get("/a.mp4").body.len(), 32 << 20);
}

#[test]
fn an_address_has_so_many_connections_and_others_are_told_why() {
    let folder = clips();
    let limits = Limits {
        per_address: 3,
        ..Limits::default()
    };
    let server = Server::start(Some(folder.path()), None, limits);
    let mut kept: Vec<_> = (0..3).map(|_| server.connect()).collect();
    let refused = server.get("/clips");
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.error().contains("of its address"));
    server.until_told("too many connections of its address");
    // Those that are in are served, and whoever goes makes room.
    let request = "GET /clips HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut last = kept.pop().expect("a connection");
    last.write_all(request.as_bytes()).expect("asked");
    assert_eq!(Said::read(last).status, 200);
    until("there is room", || server.get("/clips").status == 200);
    assert!(server.end().refused >= 1);
}

#[test]
fn there_are_so_many_connections_in_all() {
    let folder = clips();
    let limits = Limits {
        connections: 2,
        ..Limits::default()
    };
    let server = Server::start(Some(folder.path()), None, limits);
    let _kept: Vec<_> = (0..2).map(|_| server.connect()).collect();
    assert_eq!(server.get("/clips").status, 503);
    assert_eq!(server.end().most_connections, 2);
}

#[test]
fn a_request_that_comes_drop_by_drop_is_not_waited_for() {
    let folder = clips();
    let server = Server::start(Some(folder.path()), None, short());
    let mut silent = server.connect();
    let mut slow = server.connect();
    let mut sent = 0;
    // A letter each 50 ms keeps no connection, nor does silence.
    until("the slow one is shut out", || {
        std::thread::sleep(Duration::from_millis(50));
        sent += 1;
        slow.write_all(b"G").is_err()
    });
    assert!(sent >= 2, "it was waited for, for a while");
    assert_eq!(silent.read(&mut [0; 10]).expect("closed"), 0);
    server.until_told("its request does not come");
    assert_eq!(server.get("/clips").status, 200);
}

#[test]
fn who_takes_nothing_of_an_answer_is_gone() {
    let folder = clips();
    let limits = Limits {
        connections: 1,
        ..short()
    };
    let server = Server::start(Some(folder.path()), None, limits);
    let mut stuck = server.connect();
    stuck
        .write_all(b"GET /a.mp4 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("asked");
    // Its place is free when the kernel has given it up.
    until("there is room", || server.get("/clips").status == 200);
    let mut bytes = Vec::new();
    let _ = stuck.read_to_end(&mut bytes);
    assert!(bytes.len() < 32 << 20, "{} came", bytes.len());
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    crate::support::library(folder.path());
    let server = Server::start(None, Some(folder.path()), short());
    let mut stream = server.connect();
    let head = "POST /watched HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 1000\r\nConnection: close\r\n\r\n{";
    stream.write_all(head.as_bytes()).expect("asked");
    assert_eq!(Said::read(stream).status, 503);
    let large = "x".repeat(70_000);
    let lines = ["Content-Type: application/json"];
    assert_eq!(server.ask("POST", "/watched", &lines, &large).status, 413);
}

#[test]
fn a_server_of_this_machine_has_no_other_name() {
    let folder = clips();
    let server = Server::of_clips(folder.path());
    for (host, status) in [
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:8080", 421),
    ] {
        let mut stream = server.connect();
        let request = format!("GET /clips HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("asked");
        assert_eq!(Said::read(stream).status, status, "{host}");
    }
    server.until_told("called by another name");
    for (request, status) in [
        ("GET /clips HTTP/1.0\r\n", 200),
        ("GET /clips HTTP/1.1\r\n", 400),
        ("GET /clips HTTP/1.1\r\nHost: a\r\nHost: a\r\n", 400),
    ] {
        let mut stream = server.connect();
        let request = format!("{request}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("asked");
        assert_eq!(Said::read(stream).status, status, "{request}");
    }
}

#[test]
fn what_is_no_request_is_refused_and_told_of_on_one_line() {
    let folder = clips();
    let server = Server::of_clips(folder.path());
    for bad in [
        "DESCRIBE rtsp://x/ RTSP/1.0\r\n\r\n".to_owned(),
        "\u{1}\u{2}\r\n\r\n".to_owned(),
        format!(
            "GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
            "x".repeat(300_000)
        ),
        format!(
            "GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "x".repeat(300_000)
        ),
    ] {
        let mut stream = server.connect();
        let _ = stream.write_all(bad.as_bytes());
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    server.until_told("what it says is no request");
    assert!(
        server
            .told()
            .iter()
            .all(|line| !line.contains('\n') && line.len() < 400)
    );
    assert_eq!(server.get("/clips").status, 200);
}

#[test]
fn the_end_waits_for_nobody_for_long() {
    let folder = clips();
    let server = Server::of_clips(folder.path());
    let _silent = server.connect();
    let mut stuck = server.connect();
    stuck
        .write_all(b"GET /a.mp4 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("asked");
    let mut start = [0; 100];
    stuck.read_exact(&mut start).expect("its start");
    let begun = std::time::Instant::now();
    server.end();
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
}
