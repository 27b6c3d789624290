//! `bonsai serve` over HTTP, beside RTSP and alone, with real clips, players and limits.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use conformance::Port;
use serde_json::Value;

use crate::support::{Place, Said, film, signal};

const PATIENCE: Duration = Duration::from_secs(20);

/// A clip of so many seconds in a folder of clips; `None`, and the reason in the log, without ffmpeg.
pub(crate) fn clip(test: &str, place: &Place, seconds: u64) -> Option<PathBuf> {
    let folder = place.path().join("clips");
    std::fs::create_dir(&folder).expect("made");
    let sources = [
        "testsrc2=size=160x90:rate=25",
        "sine=frequency=440:sample_rate=48000",
    ];
    let words = "-preset veryfast -g 25 -pix_fmt yuv420p -c:a aac -movflags +faststart";
    film(test, folder.join("clip.mp4"), &sources, seconds, words)
}

/// A server, until its end is asked for or the test fails.
pub(crate) struct Server {
    child: Option<Child>,
    /// What else it says.
    rest: Option<JoinHandle<String>>,
}

impl Server {
    /// Starts `bonsai serve ARGS`, and reads as many addresses as it is to have from what it says.
    pub(crate) fn start(place: &Place, args: &[&str], addresses: usize) -> (Self, Vec<String>) {
        let mut child = place
            .bonsai(&[&["serve"], args].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("bonsai");
        let lines = BufReader::new(child.stderr.take().expect("its errors")).lines();
        let mut lines = lines.map_while(Result::ok);
        let at: Vec<String> = lines
            .by_ref()
            .filter(|line| line.contains("://"))
            .take(addresses)
            .collect();
        let rest = std::thread::spawn(move || lines.collect::<Vec<_>>().join("\n"));
        let server = Self {
            child: Some(child),
            rest: Some(rest),
        };
        assert_eq!(at.len(), addresses, "it listens: {at:?}");
        (server, at)
    }

    pub(crate) fn end(mut self, name: &str) -> Said {
        let child = self.child.take().expect("it runs");
        signal(child.id(), name);
        let said = child.wait_with_output().expect("ended").into();
        let rest = self.rest.take().expect("it is read");
        Said {
            err: rest.join().expect("read"),
            ..said
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn of<'a>(addresses: &'a [String], scheme: &str) -> &'a str {
    let found = addresses.iter().find(|at| at.starts_with(scheme));
    found.expect("an address")
}

/// What a GET is answered with: the status, and the body.
pub(crate) fn get(address: &str, path: &str) -> (u16, Vec<u8>) {
    let host = address.trim_start_matches("http://").trim_end_matches('/');
    let at: SocketAddr = host.parse().expect("an address");
    let mut stream = TcpStream::connect_timeout(&at, PATIENCE).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("asked");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an answer");
    let end = bytes
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .expect("a head");
    let status = String::from_utf8_lossy(&bytes[9..12])
        .parse()
        .expect("a status");
    (status, bytes[end + 4..].to_vec())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn the_same_clip_is_sent_both_ways_at_once() {
    let place = Place::bare();
    let Some(clip) = clip("both ways", &place, 4) else {
        return;
    };
    let folder = text(clip.parent().expect("a folder"));
    let args = [folder, "--rtsp", ":0", "--http", ":0", "--json"];
    let (server, at) = Server::start(&place, &args, 2);
    let (rtsp, http) = (of(&at, "rtsp"), of(&at, "http").to_owned());
    let viewer = format!("{rtsp}clip.mp4");
    let mut viewer = place
        .bonsai(&["watch", &viewer, "--clients", "3", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("bonsai watch");
    let film = std::fs::read(&clip).expect("read");
    let mut downloads = 0;
    while viewer.try_wait().expect("asked").is_none() || downloads == 0 {
        let (status, body) = get(&http, "/clip.mp4");
        assert!(status == 200 && body == film, "{status}");
        downloads += 1;
    }
    let seen: Said = viewer.wait_with_output().expect("ended").into();
    assert_eq!(seen.code, Some(0), "{seen:?}");
    assert_eq!(get(&http, "/../clips/../clip.mp4").0, 404);
    let said = server.end("INT");
    assert_eq!(said.code, Some(0), "{said:?}");
    let errors = said.err;
    let said: Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(said["served"]["sessions"], 3, "{said}");
    assert_eq!(said["http"]["requests"], downloads + 1, "{said}");
    assert_eq!(
        said["http"]["bytes"],
        downloads * film.len() as u64,
        "{said}"
    );
    assert_eq!(said["http"]["refused"], 1, "{said}");
    assert!(
        errors.contains("refused: GET /../clips/../clip.mp4: 404"),
        "{errors}"
    );
}

#[test]
fn http_alone_ends_with_what_it_has_served() {
    let place = Place::bare();
    std::fs::write(place.path().join("a.mp4"), "film").expect("written");
    let (server, at) = Server::start(&place, &[text(place.path()), "--http", ":0"], 1);
    assert!(at[0].starts_with("http://127.0.0.1:"), "{at:?}");
    assert_eq!(get(&at[0], "/a.mp4"), (200, b"film".to_vec()));
    let said = server.end("TERM");
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.out.contains("HTTP: 1 requests by 1 connections"),
        "{said:?}"
    );
    assert!(!said.out.contains("sessions"), "{said:?}");
}

#[test]
fn what_cannot_be_served_is_refused_in_one_sentence() {
    let place = Place::bare();
    let folder = text(place.path()).to_owned();
    let file = place.path().join("a.mp4");
    std::fs::write(&file, "film").expect("written");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = listener.local_addr().expect("an address").to_string();
    let nowhere = place.path().join("nowhere");
    for (args, words) in [
        (
            vec![&*folder, "--http", "8080"],
            "--http \"8080\": write :PORT",
        ),
        (
            vec![&*folder, "--http", ":99999"],
            "--http \":99999\": write :PORT",
        ),
        (vec![&*folder, "--http", "host:80"], "write :PORT"),
        (vec![&*folder, "--http", &*taken], "cannot listen on"),
        (
            vec![&*folder, "--http", ":0", "--rtsp", &*taken],
            "cannot listen on",
        ),
        (
            vec![&*folder, "--http", "192.0.2.1:8080"],
            "cannot listen on",
        ),
        (vec![text(&nowhere), "--http", ":0"], "No such file"),
        (vec![text(&file), "--http", ":0"], "Not a directory"),
        (
            vec![&*folder, "--http", ":0", "--library", &*folder],
            "no library",
        ),
        (vec![&*folder, "--library", &*folder], "--http"),
        (vec![&*folder, "--http", ":0", "--sessions", "0"], "0"),
    ] {
        let said = place.say(&[&["serve"], &args[..]].concat());
        assert_eq!(said.code, Some(2), "{args:?}: {said:?}");
        let own: Vec<&str> = said
            .err
            .lines()
            .filter(|line| line.starts_with("bonsai: "))
            .collect();
        assert!(
            own.len() == 1 && own[0].contains(words),
            "{args:?}: {said:?}"
        );
    }
    drop(listener);
}

#[test]
fn a_library_is_searched_and_played_over_http() {
    let place = Place::bare();
    let Some(film) = clip("a library over HTTP", &place, 12) else {
        return;
    };
    let events = place.path().join("events.csv");
    let lines = "time,type,players,text\n0:03,goal,8,A header\n0:09,tackle,14,Sliding\n";
    std::fs::write(&events, lines).expect("written");
    let library = place.path().join("library");
    let import = [
        "davvi",
        "import",
        text(&film),
        "--events",
        text(&events),
        "--library",
        text(&library),
    ];
    let done = place.say(&import);
    assert_eq!(done.code, Some(0), "{done:?}");
    // By itself it has HTTP at a port of its own, which is taken here, and no RTSP.
    let taken = TcpListener::bind(("127.0.0.1", 8080));
    let said = place.say(&["serve", text(&library)]);
    assert!(
        said.code == Some(2) && said.err.contains("cannot listen on 127.0.0.1:8080"),
        "{taken:?}: {said:?}"
    );
    drop(taken);
    let said = place.say(&["serve", text(&library), "--rtsp", ":0"]);
    assert!(
        said.code == Some(2) && said.err.contains("played over HTTP alone"),
        "{said:?}"
    );
    let clips = text(film.parent().expect("a folder"));
    let (server, at) = Server::start(
        &place,
        &[clips, "--library", text(&library), "--http", ":0"],
        1,
    );
    let pictures = |path: &str| {
        let player = Command::new("ffmpeg")
            .args([
                "-v",
                "error",
                "-i",
                &format!("{}{path}", at[0]),
                "-map",
                "0:v:0",
            ])
            .args([
                "-vsync",
                "drop",
                "-vf",
                "scale=16:16,format=gray",
                "-f",
                "rawvideo",
                "pipe:1",
            ])
            .stdin(Stdio::null())
            .output()
            .expect("played");
        let errors = String::from_utf8_lossy(&player.stderr);
        assert!(player.status.success(), "{path}: {errors}");
        player.stdout.len() / 256
    };
    assert_eq!(pictures("media/clip/master.m3u8"), 300);
    // A second on each side of 3 s, and of 9 s: a segment each.
    assert_eq!(
        pictures("personal/master.m3u8?q=header&before=1s&after=1s"),
        50
    );
    assert_eq!(
        pictures("personal/master.m3u8?events=clip:0,clip:1&before=1s&after=1s"),
        100
    );
    // A clip of the folder has the same address as ever, and the page is there.
    assert_eq!(pictures("clip.mp4"), 300);
    assert_eq!(get(&at[0], "/").0, 200);
    assert_eq!(server.end("TERM").code, Some(0));
    // The folder of the library alone is known to be one.
    let (server, at) = Server::start(&place, &[text(&library), "--http", ":0"], 1);
    assert_eq!(get(&at[0], "/videos").0, 200);
    assert_eq!(get(&at[0], "/clips").0, 404);
    assert_eq!(server.end("INT").code, Some(0));
}

#[test]
fn it_is_a_service_like_any_other_under_a_limit() {
    for (name, loops) in [("waits", "off"), ("serves-others", "on")] {
        let Some(place) = Place::new("bonsai serve under a limit") else {
            return;
        };
        let film = vec![7; 4_000_000];
        std::fs::create_dir(place.path().join(".clips")).expect("made");
        std::fs::write(place.path().join(".clips/a.mp4"), &film).expect("written");
        let folder = place.path().join(".clips");
        let held = Port::free();
        let port = format!(":{}", held.number());
        let serve = [
            "--",
            env!("CARGO_BIN_EXE_bonsai"),
            "serve",
            text(&folder),
            "--http",
            &port,
        ];
        let run = ["--event-loops", loops, "--limit", "send=2MB/s"];
        let running = place.start(name, &[&run[..], &serve].concat());
        let address = format!("http://127.0.0.1{port}/");
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect(format!("127.0.0.1{port}")).is_err() {
            assert!(Instant::now() < end, "it never listened");
            std::thread::sleep(Duration::from_millis(20));
        }
        let begun = Instant::now();
        let (status, body) = get(&address, "/a.mp4");
        let took = begun.elapsed();
        assert!(status == 200 && body == film);
        // Two seconds, less what may go at once: never faster than its limit.
        assert!(took >= Duration::from_millis(1700), "{name}: {took:?}");
        let counted = place.until(name, |service| service["processes"].is_array());
        assert!(counted.to_string().contains("send"), "{counted}");
        running.signal("TERM");
        let said = running.end();
        assert!(said.out.contains("HTTP: 4.0 MB"), "{name}: {said:?}");
    }
}
