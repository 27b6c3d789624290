//! Players over HTTP: of videos that were imported and are served by nginx, and of addresses that are none.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use conformance::Port;
use serde_json::Value;

use crate::support::{Place, Said, film, skip};

/// nginx with a library, until the test ends.
pub(crate) struct Nginx {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Its workers end with it only when it is asked to end.
        let _ = Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status();
        let _ = self.child.wait();
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn has(program: &str, version: &str) -> bool {
    let mut command = Command::new(program);
    command
        .arg(version)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A library with a film of 6 s in two qualities; `None`, and the reason in the log, where there cannot be one.
pub(crate) fn library(test: &str, place: &Place) -> Option<PathBuf> {
    if !has("nginx", "-v") {
        skip(test, "nginx is not installed");
        return None;
    }
    let path = place.path().join("match.mp4");
    let sources = ["testsrc2=size=320x180:rate=25", "sine=frequency=440"];
    let film = film(test, path, &sources, 6, "-preset ultrafast")?;
    let events = place.path().join("match.csv");
    std::fs::write(&events, "time,type,text\n0:01,goal,one\n0:05,goal,two\n").expect("written");
    let library = place.path().join("library");
    let words = [
        "davvi",
        "import",
        text(&film),
        "--events",
        text(&events),
        "--segment",
        "1s",
    ];
    let more = [
        "--qualities",
        "180,90",
        "--web-readable",
        "--library",
        text(&library),
    ];
    let said = place.say(&[&words[..], &more].concat());
    assert_eq!(said.code, Some(0), "{said:?}");
    Some(library)
}

/// Serves it, with more words for nginx.
pub(crate) fn serve(place: &Place, library: &Path, more: &str) -> Nginx {
    let port = Port::free();
    let address = port.address();
    let id = Command::new("id").arg("-u").output().expect("id");
    let listen = address.to_string();
    let mut words = vec![
        "davvi",
        "nginx",
        "--library",
        text(library),
        "--listen",
        &listen,
    ];
    if id.stdout.starts_with(b"0\n") {
        // The folder above is the test's own, and closed.
        words.extend(["--user", "root"]);
    }
    let said = place.say(&words);
    assert_eq!(said.code, Some(0), "{said:?}");
    let config = said
        .out
        .replace("server_name _;", &format!("server_name _; {more}"));
    let path = place.path().join("nginx.conf");
    std::fs::write(&path, config).expect("written");
    let child = Command::new("nginx")
        .args(["-e", "stderr", "-c", text(&path)])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let nginx = Nginx {
        child: child.expect("started"),
        address,
    };
    let end = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(address).is_err() {
        assert!(Instant::now() < end, "it does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    nginx
}

fn watched(said: &Said) -> Value {
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
}

#[test]
fn an_imported_video_is_watched_by_hls_and_by_dash() {
    let test = "an_imported_video_is_watched_by_hls_and_by_dash";
    let place = Place::bare();
    let Some(library) = library(test, &place) else {
        return;
    };
    let nginx = serve(&place, &library, "");
    for name in ["master.m3u8", "manifest.mpd"] {
        let address = format!("http://{}/match/{name}", nginx.address);
        let (csv, folder) = (place.path().join("rows.csv"), place.path().join("p1203"));
        let all = [
            "watch",
            &address,
            "--clients",
            "3",
            "--for",
            "20s",
            "--abr",
            "throughput",
            "--json",
        ];
        let more = [
            "--buffer",
            "4s",
            "--csv",
            text(&csv),
            "--p1203",
            text(&folder),
        ];
        let said = place.say(&[&all[..], &more].concat());
        let value = watched(&said);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(
            (&value["schema"], &value["abr"]),
            (&1.into(), &"throughput".into())
        );
        let film = &value["outcome"]["film"];
        assert_eq!(
            (
                &film["segments"],
                film["qualities"].as_array().map(Vec::len)
            ),
            (&6.into(), Some(2))
        );
        assert_eq!(film["qualities"][1]["size"], serde_json::json!([320, 180]));
        for player in value["outcome"]["players"].as_array().expect("players") {
            assert_eq!(player["failure"], Value::Null, "{player:#}");
            let seen = &player["seen"];
            assert_eq!(
                (&seen["fetched"], &seen["segments"]),
                (&6.into(), &6.into()),
                "{player:#}"
            );
            assert_eq!(
                seen["played_ms"].as_f64().expect("a number").round(),
                6_000.0
            );
            assert!(
                seen["startup_ms"].as_f64().is_some_and(|ms| ms > 0.0),
                "{player:#}"
            );
        }
        let rows = std::fs::read_to_string(csv).expect("written");
        assert!(
            rows.starts_with("viewer,came_ns,failure,startup_ms,") && rows.lines().count() == 4,
            "{rows}"
        );
        let file = std::fs::read(folder.join("player-3.json")).expect("written");
        let input: Value = serde_json::from_slice(&file).expect("JSON");
        let segments = input["I13"]["segments"].as_array().expect("segments");
        assert_eq!((segments.len(), &segments[0]["codec"]), (6, &"h264".into()));
        assert_eq!(
            (&segments[0]["resolution"], &segments[0]["fps"]),
            (&"160x90".into(), &25.0.into())
        );
        assert_eq!(
            (&segments[5]["start"], &segments[5]["duration"]),
            (&5.0.into(), &1.0.into())
        );
        assert!(
            segments.iter().all(|of| of["bitrate"].as_f64() > Some(0.0)),
            "{input:#}"
        );
        assert_eq!(input["I11"]["segments"].as_array().map(Vec::len), Some(6));
        assert_eq!(input["I11"]["segments"][0]["codec"], "aaclc");
        // Until the first picture nothing moved.
        let stalls = input["I23"]["stalling"].as_array().expect("stalls");
        assert!(
            stalls[0][0] == 0.0 && stalls[0][1].as_f64() > Some(0.0),
            "{input:#}"
        );
        assert_eq!(input["IGen"]["device"], "pc");
    }
    let address = format!("http://{}/match/180p.m3u8", nginx.address);
    let said = place.say(&["watch", &address, "--for", "1s", "--streams"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    for words in [
        "1 of 1 viewer watched to the end, by dynamic",
        "fairness",
        "score",
        "top quality: 1 of 1",
    ] {
        assert!(said.out.contains(words), "{words}: {said:?}");
    }
}

#[test]
fn a_personal_playlist_is_watched() {
    let test = "a_personal_playlist_is_watched";
    let place = Place::bare();
    let Some(library) = library(test, &place) else {
        return;
    };
    let nginx = serve(&place, &library, "");
    let mine = place.path().join("mine");
    std::fs::create_dir(&mine).expect("made");
    let out = mine.join("master.m3u8");
    let base = format!("http://{}/", nginx.address);
    let words = [
        "davvi", "search", "--type", "goal", "--length", "10s", "--before", "0s", "--after", "1s",
    ];
    let more = [
        "--playlist",
        text(&out),
        "--address",
        &base,
        "--library",
        text(&library),
    ];
    let said = place.say(&[&words[..], &more].concat());
    assert_eq!(said.code, Some(0), "{said:?}");
    // Lists come from one server, and segments from the other.
    let listed = Listed::new(&mine);
    let said = place.say(&[
        "watch",
        &format!("{}/master.m3u8", listed.url),
        "--for",
        "9s",
        "--json",
    ]);
    let value = watched(&said);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(
        value["outcome"]["players"][0]["failure"],
        Value::Null,
        "{value:#}"
    );
    assert_eq!(value["outcome"]["film"]["segments"], 2, "{value:#}");
}

/// A web server of one folder, for a test.
struct Listed {
    url: String,
    child: Child,
}

impl Listed {
    fn new(folder: &Path) -> Self {
        let port = Port::free();
        let address = port.address();
        let child = Command::new("/usr/bin/python3")
            .args([
                "-m",
                "http.server",
                "--bind",
                "127.0.0.1",
                "--directory",
                text(folder),
            ])
            .arg(address.port().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let listed = Self {
            url: format!("http://{address}"),
            child: child.expect("python3"),
        };
        let end = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < end, "it does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        listed
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_server_under_a_rate_makes_viewers_choose_less() {
    let test = "a_server_under_a_rate_makes_viewers_choose_less";
    let place = Place::bare();
    let Some(library) = library(test, &place) else {
        return;
    };
    // Of the higher quality a second is larger than that.
    let nginx = serve(&place, &library, "limit_rate 12k;");
    let address = format!("http://{}/match/master.m3u8", nginx.address);
    let all = [
        "watch",
        &address,
        "--clients",
        "2",
        "--for",
        "4s",
        "--arrivals",
        "all",
        "--abr",
        "davvi",
    ];
    let said = place.say(&[&all[..], &["--json"]].concat());
    let value = watched(&said);
    let highest = value["outcome"]["film"]["qualities"][1]["kbps"]
        .as_f64()
        .expect("a rate");
    assert!(
        highest > 12.0 * 8.0 * 1.024,
        "the film is too small: {value:#}"
    );
    for player in value["outcome"]["players"].as_array().expect("players") {
        assert_eq!(player["failure"], Value::Null, "{player:#}");
        let short = player["seen"]["short_of"].as_array().expect("reasons");
        assert!(!short.is_empty(), "{player:#}");
    }
    assert_eq!(value["quality"]["top"], 0, "{value:#}");
    let said = place.say(&[
        "watch",
        &address,
        "--find-max",
        "--most",
        "2",
        "--runs",
        "1",
        "--for",
        "2s",
        "--json",
    ]);
    let value = watched(&said);
    assert_eq!(
        (said.code, &value["found"]),
        (Some(1), &Value::Null),
        "{value:#}"
    );
    assert_eq!(
        (&value["tries"][0]["viewers"], &value["abr"]),
        (&1.into(), &"dynamic".into())
    );
}

#[test]
fn what_makes_no_sense_is_refused_in_one_sentence() {
    let place = Place::bare();
    for (args, words) in [
        (
            &["https://127.0.0.1/a.m3u8"][..],
            "https is not supported: write http://",
        ),
        (
            &["ftp://127.0.0.1/a.m3u8"],
            "write rtsp://HOST[:PORT]/PATH, or http://",
        ),
        (&["http://user:pass@127.0.0.1/a"], "names and passwords"),
        (
            &["http://127.0.0.1/a", "--by", "tcp"],
            "--by is for addresses of rtsp",
        ),
        (
            &["rtsp://127.0.0.1/a", "--abr", "bola"],
            "--abr is for addresses of http",
        ),
        (
            &["rtsp://127.0.0.1/a", "--buffer", "9s"],
            "--buffer is for addresses of http",
        ),
        (
            &["rtsp://127.0.0.1/a", "--p1203", "x"],
            "--p1203 is for addresses of http",
        ),
        (
            &["http://127.0.0.1/a", "--abr", "best"],
            "invalid value 'best'",
        ),
        (&["http://127.0.0.1/a", "--buffer", "1ms"], "out of range"),
        (&["http://127.0.0.1/a", "--arrivals", "often"], "--arrivals"),
        (
            &["http://127.0.0.1/a", "--p1203", "/proc/no"],
            "--p1203 /proc/no",
        ),
    ] {
        let said = place.say(&[&["watch"], args].concat());
        assert_eq!(said.code, Some(2), "{args:?}: {said:?}");
        assert!(said.err.contains(words), "{args:?}: {said:?}");
    }
}

#[test]
fn whoever_sees_nothing_says_in_which_step_and_why() {
    let place = Place::bare();
    let closed = Port::free();
    let address = format!("http://{}/master.m3u8", closed.address());
    let said = place.say(&[
        "watch",
        &address,
        "--clients",
        "2",
        "--arrivals",
        "all",
        "--json",
    ]);
    assert_eq!(said.code, Some(1), "{said:?}");
    let value = watched(&said);
    for player in value["outcome"]["players"].as_array().expect("players") {
        assert_eq!(
            (&player["failed_at"], &player["seen"]),
            (&"connect".into(), &Value::Null)
        );
    }
    let said = place.say(&["watch", &address]);
    assert!(
        said.out.contains("1 failed: connect: 127.0.0.1:"),
        "{said:?}"
    );
}
