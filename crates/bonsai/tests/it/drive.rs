//! `bonsai drive serve` and `bonsai drive status`: what a user and a client meet.

mod dirty;
mod formats;
mod journal;
mod kills;
mod managed;
mod options;
mod outside;
mod powercut;
mod refused;
mod server;
pub(crate) mod tls;
mod vanish;

use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::process::Stdio;

use server::{Drive, image};

use crate::nbd::{Client, FLUSH};
use crate::support::Place;

const SIZE: u64 = 1 << 20;

#[test]
fn two_images_of_a_group_share_and_status_says_so() {
    let place = Place::bare();
    let images = ["a.raw", "b.img"].map(|name| image(&place, name, SIZE));
    let [a, b] = images.each_ref().map(String::as_str);
    let drive = Drive::start(&place, &["--group", "lab", "--verbose", a, b]);
    let mode = std::fs::metadata(&drive.socket)
        .expect("a socket")
        .permissions();
    assert_eq!(mode.mode() & 0o7777, 0o600);
    let [mut first, mut second] = ["a", "b"].map(|name| Client::new(&drive.socket, name));
    for client in [&mut first, &mut second] {
        assert_eq!(client.write(8192, &[7; 4096], false), 0);
        assert_eq!(client.ask((0, FLUSH), 0, 0, &[]), 0);
    }
    let end = std::time::Instant::now() + crate::support::PATIENCE;
    let status = loop {
        let status = place.json(&["drive", "status", "--json"]);
        let export = &status["servers"][0]["exports"][0];
        if export["sharing"]["known_blocks"] == 2 {
            break status;
        }
        assert!(std::time::Instant::now() < end, "{status:#}");
    };
    let of = |at: usize| &status["servers"][0]["exports"][at];
    assert_eq!(status["servers"][0]["pid"], drive.pid());
    assert_eq!((&of(0)["name"], &of(1)["name"]), (&"a".into(), &"b".into()));
    assert_eq!(of(0)["sharing"]["group"], "lab");
    assert_eq!(of(0)["sharing"]["contents"], 1, "both have the same");
    assert_eq!(
        (&of(1)["writes"], &of(1)["written_bytes"]),
        (&1.into(), &4096.into())
    );
    assert_eq!(
        (&of(1)["flushes"], &of(1)["connections"]),
        (&1.into(), &1.into())
    );
    // Out of the page cache: the read of one comes from the other.
    drive.evict(a);
    assert_eq!(first.read(8192, 4096), Ok(vec![7; 4096]));
    assert_eq!(first.read(1 << 20, 1), Err(22));
    let said = place.say(&["drive", "status"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    for words in [
        "server ",
        "  a (",
        "1 connections",
        "group lab: 1 reads saved, 4096 bytes redirected",
        "1 refused, 0 failed",
        "2 blocks known, dedup factor 2.00",
    ] {
        assert!(said.out.contains(words), "{words:?} is not in {}", said.out);
    }
    drop((first, second));
    let said = drive.end("TERM");
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.err.contains("b: process "), "{}", said.err);
    let said = place.say(&["drive", "status"]);
    assert_eq!(
        (said.code, said.out.as_str()),
        (Some(0), "no images are served\n")
    );
}

#[test]
fn the_end_writes_all_and_a_killed_server_is_replaced() {
    let place = Place::bare();
    let path = image(&place, "my disk, 1.raw", SIZE);
    let socket = place.path().join("s.sock").display().to_string();
    // A comma of a path is written twice.
    let doubled = path.replace(',', ",,");
    let args = ["--socket", &socket, &doubled];
    let serve = || {
        Drive::of(
            place.bonsai(&[&["drive", "serve"], &args[..]].concat()),
            &[&path],
        )
    };
    let drive = serve();
    assert!(
        drive.uris[0].contains("/my%20disk%2C%201?socket="),
        "{:?}",
        drive.uris
    );
    let mut client = Client::new(&drive.socket, "my disk, 1");
    assert_eq!(client.write(0, &[5; 4096], false), 0);
    let said = place.say(&[
        "drive",
        "serve",
        "--socket",
        &socket,
        "--read-only",
        &doubled,
    ]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.err.contains("is in use by another program"),
        "{said:?}"
    );
    let other = image(&place, "other.raw", SIZE);
    let said = place.say(&["drive", "serve", "--socket", &socket, &other]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.err.contains("another server listens there"),
        "{said:?}"
    );
    let said = drive.end("KILL");
    assert_eq!(said.code, None, "{said:?}");
    assert!(std::path::Path::new(&socket).exists(), "nobody removed it");
    let drive = serve();
    let mut client = Client::new(&drive.socket, "my disk, 1");
    assert_eq!(client.read(0, 4096), Ok(vec![5; 4096]));
    assert_eq!(client.write(4096, &[6; 4096], false), 0);
    assert_eq!(drive.end("TERM").code, Some(0));
    let bytes = std::fs::read(&path).expect("the image");
    assert!(bytes[..4096] == [5; 4096] && bytes[4096..8192] == [6; 4096]);
    assert!(
        !std::path::Path::new(&socket).exists(),
        "it takes its socket with it"
    );
    for signal in ["INT", "HUP"] {
        assert_eq!(serve().end(signal).code, Some(0));
    }
}

#[test]
fn limits_are_those_of_a_service_and_change_while_a_client_waits() {
    let place = Place::bare();
    let path = image(&place, "a.raw", SIZE);
    let drive = Drive::start(&place, &["--limit", "read=5/s", &path]);
    let mut client = Client::new(&drive.socket, "a");
    let start = std::time::Instant::now();
    // As many as the burst lets through, and some more.
    for _ in 0..12 {
        assert!(client.read(0, 512).is_ok());
    }
    let limited = start.elapsed();
    let said = place.say(&["set", "a", "read=1000000/s"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    for at in 0..1000 {
        assert!(client.read(at, 512).is_ok());
    }
    // At 5 a second it would have taken 200 s.
    assert!(start.elapsed() < std::time::Duration::from_secs(100));
    assert!(limited.as_millis() >= 500, "{limited:?}");
    let status = place.json(&["status", "--interval", "10ms", "--json"]);
    assert!(status.to_string().contains("1000000"), "{status:#}");
    let said = drive.end("TERM");
    assert_eq!(said.code, Some(0), "{said:?}");
    let said = place.say(&["status"]);
    assert!(!said.out.contains("read"), "the service has gone: {said:?}");
}

#[test]
fn who_reads_its_words_may_go_and_it_serves_on() {
    let place = Place::bare();
    let path = image(&place, "a.raw", SIZE);
    let mut drive = Drive::start(&place, &["--verbose", &path]);
    drive.is_left_talking();
    // It tells of each that comes and goes.
    for byte in 1..4 {
        let mut client = Client::new(&drive.socket, "a");
        assert_eq!(client.write(0, &[byte; 512], false), 0);
        assert_eq!(client.read(0, 512), Ok(vec![byte; 512]));
    }
    assert_eq!(drive.end("TERM").code, Some(0));
}

#[test]
fn a_scan_ends_when_it_is_asked_to() {
    let place = Place::bare();
    let path = image(&place, "a.raw", 16 << 30);
    // Some in each mebibyte, so that all of it is read.
    let file = std::fs::File::options().write(true).open(&path);
    let file = file.expect("an image");
    for at in (0..16 << 30).step_by(1 << 20) {
        file.write_all_at(&[1; 4096], at).expect("written");
    }
    let socket = place.path().join("s.sock");
    let mut command = place.bonsai(&["drive", "serve", "--group", "g", "--scan", "--socket"]);
    command.arg(&socket).arg(&path).stderr(Stdio::piped());
    let server = command.spawn().expect("bonsai");
    // By then it hears signals.
    let end = std::time::Instant::now() + crate::support::PATIENCE;
    while !socket.exists() {
        assert!(std::time::Instant::now() < end, "it does not listen");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    crate::support::signal(server.id(), "TERM");
    let said = server.wait_with_output().expect("ended");
    let words = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(0), "{words}");
    assert!(!words.contains(": scanned, "), "{words}");
    assert!(!socket.exists(), "it takes its socket with it");
}
