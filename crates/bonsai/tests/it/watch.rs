//! Viewers: of a real server, of servers that go wrong, and of none.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

use conformance::Port;
use serde_json::Value;

use crate::support::{Place, Said, skip};

/// GStreamer's server with a film of its own encoder.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// One with a film of so many seconds, or why there is none.
    fn start(place: &Place, seconds: u32) -> Result<Self, String> {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../bench/rtsp.py");
        let film = place.path().join("film.mp4");
        let python = || {
            // GStreamer is known to the Python of the system.
            let mut command = Command::new("/usr/bin/python3");
            command.arg(&script).stdin(Stdio::null());
            command.stderr(Stdio::null()).stdout(Stdio::piped());
            command
        };
        let mut encode = python();
        encode.arg("encode").arg(&film).arg(seconds.to_string());
        let encoded = encode.output().map_err(|error| error.to_string())?;
        if !encoded.status.success() {
            let said = String::from_utf8_lossy(&encoded.stdout).trim().to_owned();
            return Err(format!("GStreamer has no server or no encoder: {said}"));
        }
        let mut serve = python();
        let mut child = serve.arg("serve").arg(&film).spawn().expect("python3");
        let mut line = String::new();
        let out = child.stdout.take().expect("its output");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let port: u16 = line.trim().parse().expect("its port");
        Ok(Self {
            child,
            address: format!("rtsp://127.0.0.1:{port}/film"),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that answers requests one after the other with what it is told to, and then is silent.
fn scripted(answers: &'static [&'static str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || answer(stream.expect("a viewer"), answers));
        }
    });
    format!("rtsp://127.0.0.1:{port}/clip")
}

fn answer(mut stream: TcpStream, answers: &[&str]) {
    let mut lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
    for (number, answer) in (1..).zip(answers) {
        // None of the requests has a body.
        while let Some(Ok(line)) = lines.next()
            && !line.is_empty()
        {}
        let text = answer.replace("CSEQ", &format!("CSeq: {number}"));
        if stream.write_all(text.as_bytes()).is_err() {
            return;
        }
    }
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
}

fn watched(said: &Said) -> Value {
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
}

#[test]
fn viewers_of_a_real_server_count_each_packet() {
    let test = "viewers_of_a_real_server_count_each_packet";
    let place = Place::bare();
    let server = match Server::start(&place, 4) {
        Ok(server) => server,
        Err(why) => return skip(test, &why),
    };
    for by in ["udp", "tcp"] {
        let csv = place.path().join("streams.csv");
        let csv = csv.to_str().expect("a name");
        let all = ["watch", &server.address, "--clients", "3", "--for", "10s"];
        let said = place.say(&[&all[..], &["--by", by, "--json", "--csv", csv]].concat());
        let value = watched(&said);
        // A machine where this client gets no processor says nothing of the server.
        let is_void = value["void"].as_bool().expect("whether it is");
        assert_eq!(said.code, Some(i32::from(is_void)), "{by}: {said:?}");
        assert_eq!((&value["schema"], &value["by"]), (&1.into(), &by.into()));
        let viewers = value["outcome"]["viewers"].as_array().expect("viewers");
        assert_eq!(viewers.len(), 3);
        for viewer in viewers {
            assert_eq!(viewer["failure"], Value::Null, "{by}: {viewer:#}");
            let [track] = &viewer["tracks"].as_array().expect("tracks")[..] else {
                panic!("{by}: one track: {viewer:#}");
            };
            assert_eq!(
                (&track["kind"], &track["encoding"]),
                (&"video".into(), &"H264".into())
            );
            let stream = |name: &str| track["stream"][name].as_u64().expect("a number");
            let came = stream("received") - stream("duplicates");
            assert_eq!(
                stream("expected"),
                came + stream("lost"),
                "{by}: {viewer:#}"
            );
            assert_eq!(
                (stream("strays"), stream("dropped_here")),
                (0, 0),
                "{by}: {viewer:#}"
            );
            if by == "tcp" {
                assert_eq!(stream("lost"), 0, "{viewer:#}");
                // 100 pictures of 40 ms.
                let media = track["stream"]["covered_ns"].as_f64().expect("a number");
                assert!((media - 4e9).abs() < 1e6, "{viewer:#}");
            }
            // 4 s of 2 Mbit/s, and never more than the film has.
            let film = std::fs::metadata(place.path().join("film.mp4"))
                .expect("a film")
                .len();
            assert!(
                (film / 2..film * 11 / 10).contains(&stream("bytes")),
                "{film}: {viewer:#}"
            );
        }
        let rows = std::fs::read_to_string(csv).expect("written");
        assert_eq!(rows.lines().count(), 4, "{rows}");
        assert!(rows.starts_with("viewer,came_ns,failure,kind,"), "{rows}");
    }
    let text = place.say(&["watch", &server.address, "--for", "1s", "--streams"]);
    assert_eq!(text.code, Some(0), "{text:?}");
    assert!(
        text.out.contains("1 of 1 viewer watched to the end"),
        "{text:?}"
    );
    assert!(text.out.contains("top quality: "), "{text:?}");
}

#[test]
fn the_most_viewers_are_searched_for() {
    let test = "the_most_viewers_are_searched_for";
    let place = Place::bare();
    let server = match Server::start(&place, 2) {
        Ok(server) => server,
        Err(why) => return skip(test, &why),
    };
    let all = [
        "watch",
        &server.address,
        "--find-max",
        "--most",
        "3",
        "--runs",
        "1",
    ];
    let said = place.say(&[&all[..], &["--for", "1s", "--arrivals", "all", "--json"]].concat());
    let value = watched(&said);
    // How many there can be is the machine's business; that one follows the other is ours.
    let tries = value["tries"].as_array().expect("tries");
    assert_eq!(tries[0]["viewers"], 1, "{value:#}");
    for one in tries {
        let viewers = one["viewers"].as_u64().expect("a number");
        assert!((1..=3).contains(&viewers), "{value:#}");
        let short = one["short_of"].as_object().expect("an object");
        assert_eq!(
            one["honest"].as_u64() == Some(viewers),
            short.is_empty(),
            "{value:#}"
        );
    }
    match value["found"]["viewers"].as_u64() {
        Some(found) => {
            let good = tries.iter().filter(|one| one["viewers"] == found);
            assert!(good.clone().any(|one| one["honest"] == found), "{value:#}");
            assert_eq!(said.code, Some(0));
        }
        None => assert_eq!(said.code, Some(1), "{value:#}"),
    }
}

#[test]
fn whoever_sees_nothing_says_in_which_step_and_why() {
    let place = Place::bare();
    let closed = Port::free();
    let port = closed.number();
    const OPTIONS: &str = "RTSP/1.0 200 OK\r\nCSEQ\r\nPublic: DESCRIBE, SETUP, PLAY\r\n\r\n";
    const DESCRIBE: &str = "RTSP/1.0 200 OK\r\nCSEQ\r\nContent-Type: application/sdp\r\n\
        Content-Length: 118\r\n\r\nv=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\n\
        m=video 0 RTP/AVP 33\r\na=control:one\r\nm=audio 0 RTP/AVP 0\r\na=control:two  \r\n";
    const SETUP: &str =
        "RTSP/1.0 200 OK\r\nCSEQ\r\nSession: 7\r\nTransport: RTP/AVP;unicast\r\n\r\n";
    for (address, step, why) in [
        (format!("rtsp://127.0.0.1:{port}/"), "connect", "refused"),
        (scripted(&[]), "OPTIONS", "no answer in 1 s"),
        (
            scripted(&["HTTP/1.1 400 Bad Request\r\n\r\n"]),
            "OPTIONS",
            "no RTSP",
        ),
        (
            scripted(&[OPTIONS, "RTSP/1.0 404 Not Found\r\nCSEQ\r\n\r\n"]),
            "DESCRIBE",
            "404 Not Found",
        ),
        // A track that is refused is no track without loss.
        (
            scripted(&[
                OPTIONS,
                DESCRIBE,
                SETUP,
                "RTSP/1.0 400 Bad Request\r\nCSEQ\r\n\r\n",
            ]),
            "SETUP",
            "400 Bad Request",
        ),
        (
            scripted(&[
                OPTIONS,
                DESCRIBE,
                SETUP,
                SETUP,
                "RTSP/1.0 200 OK\r\nCSEQ\r\n\r\n",
            ]),
            "playing",
            "no packet in 1 s",
        ),
    ] {
        let all = ["watch", &address, "--clients", "2", "--arrivals", "all"];
        let said = place.say(&[&all[..], &["--patience", "1s", "--json"]].concat());
        assert_eq!(said.code, Some(1), "{said:?}");
        let value = watched(&said);
        let viewers = value["outcome"]["viewers"].as_array().expect("viewers");
        assert_eq!(viewers.len(), 2);
        for viewer in viewers {
            assert_eq!(viewer["failed_at"], step, "{viewer:#}");
            let failure = viewer["failure"].as_str().expect("a reason");
            assert!(failure.contains(why), "{failure:?} and not {why:?}");
        }
        assert_eq!(value["quality"]["paper"], 0, "{value:#}");
    }
}
