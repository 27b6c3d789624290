//! Exports of the past that nobody reads.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bonsai_history::{History, Options, Point, Sample, Tick};
use bonsai_units::Resource;

use super::bounds::{bearer, connected};
use super::fixture::{Answer, Ring, over_tcp, request};
use crate::fixture::PATIENCE;

/// How long the past is: far more of it than what the kernel holds of a connection, 4 MB at most.
const SECONDS: u64 = 2400;

/// As a daemon of before would have left it; its first second.
fn past(state: &Path) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let first = now.expect("a time").as_secs() - SECONDS - 60;
    let mut history = History::open(state, Options::default()).expect("a writer");
    for second in 0..SECONDS {
        let of_one = |service: usize| {
            Resource::ALL.map(|resource| Point {
                service: format!("service-{service}").into(),
                resource,
                sample: Sample {
                    asked: second * 1_000_003,
                    got: second * 999_983,
                    ..Sample::default()
                },
            })
        };
        history.tick(&Tick {
            second: first + second,
            points: (0..6).flat_map(of_one).collect(),
        });
    }
    first
}

/// What has come once the other end has ended it.
fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // An end by a reset is one, too; one by time is none.
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    bytes
}

#[test]
fn who_stalls_an_export_keeps_out_nobody_else_and_is_ended() {
    let mut ring = Ring::new("");
    let first = past(&ring.state());
    let said = ring.start(&["--listen", "127.0.0.1:0"]);
    let address = said.trim().rsplit(' ').next().expect("an address");
    let host = format!("host: {address}");
    let (slow, other) = (bearer(&ring, "slow"), bearer(&ring, "other"));
    let path = format!("/v1/history/export?format=csv&from={}", first * 1000);
    let export = |bearer: &str| -> Answer {
        over_tcp(address, &request("GET", &path, &[&host, bearer], ""))
    };
    let is_whole = |answer: &[u8]| answer.ends_with(b"\r\n0\r\n\r\n");
    let mut stalled = connected(address);
    let begins = request("GET", &path, &[&host, &slow], "");
    stalled.write_all(begins.as_bytes()).expect("sent");
    let mut head = [0; 12];
    stalled.read_exact(&mut head).expect("an answer");
    assert_eq!(&head, b"HTTP/1.1 200");
    let start = Instant::now();
    // Of theirs there is one at a time. Others have theirs, and whatever else they ask for.
    assert_eq!(export(&slow).status, 503);
    let answer = export(&other);
    assert_eq!(answer.status, 200, "{}", answer.head);
    assert!(is_whole(answer.body.as_bytes()));
    assert!(answer.body.len() > 5_000_000, "{}", answer.body.len());
    assert_eq!(ring.get("/v1/status")["services"], 0);
    // What was begun ends, and with it what it keeps.
    while export(&slow).status != 200 {
        assert!(start.elapsed() < PATIENCE, "it is never ended");
        std::thread::sleep(Duration::from_millis(500));
    }
    let got = rest(stalled);
    assert!(!got.is_empty() && !is_whole(&got), "it looks whole");
}
