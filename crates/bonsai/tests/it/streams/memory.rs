//! Viewers by TCP that take nothing: what waits for all of them together is bounded.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt::RcvBuf};

use super::Served;
use crate::support::{self, Place, skip};

/// Viewers: each would have 16 MiB waiting, a GiB together.
const VIEWERS: usize = 64;

/// What waits for all is 256 MiB (docs/16, Limits); the rest is the program, and what a viewer may have beyond that.
const MOST_KIB: u64 = 400 << 10;

/// A viewer that plays, and reads nothing from then on.
fn plays(at: SocketAddr, url: &str) -> TcpStream {
    let mut stream = TcpStream::connect(at).expect("a connection");
    setsockopt(&stream, RcvBuf, &4096).expect("set");
    let limit = Some(Duration::from_secs(60));
    stream.set_read_timeout(limit).expect("a limit");
    let mut ask = |request: String| {
        stream.write_all(request.as_bytes()).expect("asked");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("an answer");
            head.push(byte[0]);
        }
        String::from_utf8_lossy(&head).into_owned()
    };
    let way = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1";
    let said = ask(format!(
        "SETUP {url}/track1 RTSP/1.0\r\nCSeq: 1\r\n{way}\r\n\r\n"
    ));
    let session = said.lines().find_map(|line| line.strip_prefix("Session: "));
    let session = session.unwrap_or_else(|| panic!("{said}"));
    let session = session.split(';').next().expect("a name");
    let said = ask(format!(
        "PLAY {url} RTSP/1.0\r\nCSeq: 2\r\nSession: {session}\r\n\r\n"
    ));
    assert!(said.starts_with("RTSP/1.0 200"), "{said}");
    stream
}

/// The most memory that a process has had in use, KiB (proc_pid_status(5)).
fn most(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.expect("a number").parse().expect("a number")
}

#[test]
fn viewers_who_take_nothing_cost_the_server_bounded_memory() {
    let test = "viewers_who_take_nothing_cost_the_server_bounded_memory";
    let place = Place::bare();
    let folder = place.path().join("films");
    std::fs::create_dir(&folder).expect("made");
    // Noise, of 8 MB/s and more.
    let sources = ["testsrc2=size=640x360:rate=25,noise=alls=100:allf=t"];
    let words = "-preset ultrafast -g 25 -bf 0 -pix_fmt yuv420p -qp 12";
    let path = folder.join("film.mp4");
    if support::film(test, path, &sources, 4, words).is_none() {
        return;
    }
    serve_them(test, &place, &folder);
}

fn serve_them(test: &str, place: &Place, folder: &Path) {
    let film = std::fs::metadata(folder.join("film.mp4")).expect("a film");
    if film.len() < 24 << 20 {
        return skip(test, "this encoder makes no film of 6 MB/s of noise");
    }
    let served = Served::start(place.bonsai(&["serve"]), folder, &["--behind", "wait"]);
    let at = served.url.trim_start_matches("rtsp://");
    let at = at.split('/').next().expect("an address");
    let at = at.parse().expect("an address");
    let viewers: Vec<TcpStream> = (0..VIEWERS).map(|_| plays(at, &served.url)).collect();
    let pid = served.child.as_ref().expect("it runs").id();
    // Up to their end: nothing is taken for longer than that.
    let end = Instant::now() + Duration::from_secs(15);
    while Instant::now() < end {
        let kib = most(pid);
        assert!(kib < MOST_KIB, "{kib} KiB for {VIEWERS} viewers");
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("{} KiB at most for {VIEWERS} viewers", most(pid));
    drop(viewers);
    let summary = served.end();
    assert_eq!(summary["sessions"], VIEWERS, "{summary:#}");
}
