//! What strangers do on purpose.

use std::io::{ErrorKind, Read as _, Write as _};
use std::time::Duration;

use bonsai_stream::serve::Engine;

use crate::serve::{TCP, limited, status};
use crate::support::{Served, Viewer, clip, plan, session};

#[test]
fn whoever_takes_no_answers_is_not_listened_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let served = Served::new(plan(folder.path(), Engine::Classic));
    let mut deaf = Viewer::new(served.at);
    let timeout = Some(Duration::from_millis(500));
    deaf.stream.set_write_timeout(timeout).expect("set");
    let request = "OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n".repeat(2_000);
    let mut written = 0_usize;
    // What the kernel keeps of both ways is some megabytes; what the server would, has no end.
    let stuck = loop {
        match deaf.stream.write(request.as_bytes()) {
            Ok(length) => written += length,
            Err(error) => break error,
        }
        assert!(
            written < 128 << 20,
            "{written} bytes of requests were taken"
        );
    };
    assert!(
        matches!(stuck.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        "{stuck}"
    );
    let mut other = Viewer::new(served.at);
    assert_eq!(status(&other.ask("OPTIONS *", "")), 200);
    // It is listened to again when it takes what waits.
    let mut buffer = vec![0; 64 << 10];
    let mut read = 0;
    while read < 1 << 20 {
        read += deaf.stream.read(&mut buffer).expect("answers");
    }
    served.end();
}

#[test]
fn packets_go_by_the_connection_that_their_session_began_in() {
    const TEST: &str = "packets_go_by_the_connection_that_their_session_began_in";
    let folder = tempfile::tempdir().expect("a folder");
    if clip(TEST, folder.path()).is_none() {
        return;
    }
    let served = Served::new(plan(folder.path(), Engine::Classic));
    let url = served.url("clip.mp4");
    let (mut one, mut other) = (Viewer::new(served.at), Viewer::new(served.at));
    let answer = one.ask(&format!("SETUP {url}/track1"), TCP);
    let session = session(&answer);
    let second = |channels: &str| {
        format!("{session}Transport: RTP/AVP/TCP;unicast;interleaved={channels}\r\n")
    };
    let line = format!("SETUP {url}/track2");
    assert_eq!(status(&other.ask(&line, &second("2-3"))), 461);
    assert_eq!(status(&one.ask(&line, &second("1-2"))), 461, "taken");
    assert_eq!(status(&one.ask(&line, &second("2-3"))), 200);
    served.end();
}

#[test]
fn an_address_has_so_many_connections() {
    let folder = tempfile::tempdir().expect("a folder");
    let served = limited(folder.path(), |plan| plan.limits.per_address = 1);
    let mut viewers: Vec<Viewer> = (0..18).map(|_| Viewer::new(served.at)).collect();
    for viewer in &mut viewers {
        assert_eq!(status(&viewer.ask("OPTIONS *", "")), 200);
    }
    let mut late = Viewer::new(served.at);
    served.wait_for("has 18 connections, as many as it may have");
    let mut said = String::new();
    let _ = late.stream.read_to_string(&mut said);
    assert!(said.starts_with("RTSP/1.0 503 "), "{said:?}");
    // Whoever goes makes room.
    drop(viewers.pop());
    let is_in = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        let mut viewer = Viewer::new(served.at);
        viewer.write("OPTIONS *", "");
        let mut buffer = [0; 16];
        viewer.stream.read_exact(&mut buffer).is_ok() && buffer.starts_with(b"RTSP/1.0 200")
    });
    assert!(is_in);
    served.end();
}
