//! `bonsai davvi play`, with a real library, its server, and real players.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{self, Place, signal, skip};

const SECONDS: u64 = 16;

/// A library with a film of 16 s, 1 s to a segment; `None`, and the reason in the log, without ffmpeg.
fn library(test: &str, place: &Place) -> Option<PathBuf> {
    let path = place.path().join("film.mp4");
    let sources = [
        "testsrc2=size=160x90:rate=25",
        "sine=frequency=440:sample_rate=48000",
    ];
    let words = "-preset ultrafast -c:a aac";
    let film = support::film(test, path, &sources, SECONDS, words)?;
    let root = place.path().join("library");
    let said = place.say(&[
        "davvi",
        "import",
        text(&film),
        "--library",
        text(&root),
        "--segment",
        "1s",
        "--qualities",
        "90,46",
    ]);
    assert_eq!(said.code, Some(0), "{said:?}");
    Some(root)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A program that says an address first.
struct Running {
    child: Child,
    at: String,
}

impl Running {
    fn start(place: &Place, args: &[&str]) -> Self {
        let mut child = place
            .bonsai(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("bonsai");
        let lines = BufReader::new(child.stderr.take().expect("its errors")).lines();
        let mut lines = lines.map_while(Result::ok);
        let at = lines
            .find(|line| line.starts_with("http://"))
            .unwrap_or_default();
        std::thread::spawn(move || lines.count());
        Self { child, at }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(place: &Place, root: &Path) -> Running {
    let server = Running::start(place, &["serve", text(root), "--http", ":0"]);
    assert!(!server.at.is_empty(), "it listens");
    server
}

fn film(server: &Running) -> String {
    format!("{}media/film/master.m3u8", server.at)
}

/// Plays it by this player, which must end well, and reads the report.
fn played(place: &Place, url: &str, player: &[&str]) -> Value {
    let command = ["davvi", "play", url, "--buffer", "5s", "--json", "--"];
    let report = place.json(&[&command[..], &["timeout", "120"], player].concat());
    assert_eq!(report["player"], 0, "{report}");
    report["played"].clone()
}

fn segments(report: &Value, wants: impl Fn(&Value) -> bool) -> Vec<u64> {
    let all = report["segments"].as_array().expect("segments");
    let mut found: Vec<u64> = all
        .iter()
        .filter(|of| wants(of))
        .filter_map(|of| of["segment"].as_u64())
        .collect();
    found.dedup();
    found
}

#[test]
fn a_player_is_run_with_the_address_and_it_ends_with_it() {
    let place = Place::bare();
    let Some(root) = library("davvi play", &place) else {
        return;
    };
    let server = serve(&place, &root);
    let out = place.path().join("pictures.raw");
    let grey = [
        "-vsync",
        "passthrough",
        "-vf",
        "scale=16:16,format=gray",
        "-f",
        "rawvideo",
    ];
    for address in [
        film(&server),
        film(&server).replace("master.m3u8", "manifest.mpd"),
    ] {
        let player = [
            "ffmpeg", "-v", "error", "-xerror", "-y", "-i", "{}", "-map", "0:v",
        ];
        let player = [&player[..], &grey, &[text(&out)]].concat();
        let report = played(&place, &address, &player);
        let pictures = std::fs::metadata(&out).expect("written").len() / 256;
        assert_eq!(pictures, SECONDS * 25, "{address}");
        let given = segments(&report, |of| of["waited_ms"].is_number());
        assert_eq!(given, (0..SECONDS).collect::<Vec<_>>(), "{address}");
        assert_eq!(report["servers"][0]["segments"], SECONDS, "{report}");
        assert_eq!(
            report["film"]["qualities"].as_array().map(Vec::len),
            Some(2)
        );
    }
    // What a player writes is not in the report.
    let report = played(&place, &film(&server), &["sh", "-c", "echo words"]);
    assert_eq!(report["waits"]["given"], 0, "{report}");
    // A player's own code is that of it all, and a player that says nothing is not one that failed here.
    let said = place.say(&["davvi", "play", &film(&server), "--", "sh", "-c", "exit 7"]);
    assert_eq!(said.code, Some(7), "{said:?}");
    assert!(said.out.contains("segment  quality"), "{said:?}");
}

#[test]
fn without_a_player_it_serves_until_it_is_to_end() {
    let place = Place::bare();
    let Some(root) = library("davvi play without a player", &place) else {
        return;
    };
    let server = serve(&place, &root);
    let playing = Running::start(
        &place,
        &["davvi", "play", &film(&server), "--buffer", "4s", "--json"],
    );
    let pictures = Command::new("timeout")
        .args([
            "120",
            "ffmpeg",
            "-v",
            "error",
            "-xerror",
            "-i",
            &playing.at,
            "-map",
            "0:v",
            "-t",
            "3",
            "-f",
            "null",
            "-",
        ])
        .stdin(Stdio::null())
        .output()
        .expect("ffmpeg");
    assert!(
        pictures.status.success() && pictures.stderr.is_empty(),
        "{pictures:?}"
    );
    signal(playing.child.id(), "INT");
    let mut playing = playing;
    let out = playing.child.stdout.take().expect("its output");
    let report: Value = serde_json::from_reader(out).expect("JSON");
    assert!(playing.child.wait().expect("ended").success());
    assert!(
        report["played"]["waits"]["given"].as_u64() >= Some(3),
        "{report}"
    );
}

#[test]
fn vlc_plays_it_and_goes_elsewhere() {
    const TEST: &str = "davvi play with VLC";
    let place = Place::bare();
    let is_there = Command::new("cvlc")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if is_there.is_err() {
        return skip(TEST, "VLC is not installed (vlc-bin)");
    }
    let Some(root) = library(TEST, &place) else {
        return;
    };
    let server = serve(&place, &root);
    // VLC runs for nobody that is root.
    let home = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .tempdir()
        .expect("a folder");
    let home = format!("HOME={}", home.path().display());
    let away = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let away = match rustix::process::geteuid().is_root() {
        true => &away[..],
        false => &[],
    };
    let vlc = [
        "env", &home, "cvlc", "--quiet", "--vout", "dummy", "--aout", "dummy",
    ];
    let end = ["--play-and-exit", "--rate", "4", "{}"];
    let report = played(&place, &film(&server), &[away, &vlc, &end].concat());
    let given = segments(&report, |of| of["waited_ms"].is_number());
    assert_eq!(given, (0..SECONDS).collect::<Vec<_>>(), "{report}");
    let report = played(
        &place,
        &film(&server),
        &[away, &vlc, &["--start-time=11"], &end].concat(),
    );
    let given = segments(&report, |of| of["waited_ms"].is_number());
    assert!(given.ends_with(&[11, 12, 13, 14, 15]), "{given:?}");
    assert!(!given.contains(&8), "{given:?}");
}

/// Plays an address to its end, from a time on if that is said, and says how many pictures were shown and the time of
/// the last.
const GSTREAMER: &str = r#"
import sys, gi
gi.require_version("Gst", "1.0")
from gi.repository import Gst, GLib
Gst.init(None)
player = Gst.ElementFactory.make("playbin")
pictures, sound = (Gst.ElementFactory.make("fakesink") for _ in range(2))
shown = {"pictures": 0, "last": 0}
start = float(sys.argv[2])
def show(sink, buffer, pad):
    shown["pictures"] += 1
    shown["last"] = buffer.pts / Gst.SECOND
pictures.set_property("signal-handoffs", True)
pictures.connect("handoff", show)
for name, value in (("video-sink", pictures), ("audio-sink", sound), ("uri", sys.argv[1])):
    player.set_property(name, value)
loop = GLib.MainLoop()
def heard(bus, message):
    global start
    if message.type == Gst.MessageType.ERROR:
        sys.exit("%s: %s" % message.parse_error())
    elif message.type == Gst.MessageType.EOS:
        loop.quit()
    elif message.type == Gst.MessageType.ASYNC_DONE and start:
        shown["pictures"] = 0
        player.seek_simple(Gst.Format.TIME, Gst.SeekFlags.FLUSH | Gst.SeekFlags.KEY_UNIT, int(start * Gst.SECOND))
        start = 0
        player.set_state(Gst.State.PLAYING)
    return True
bus = player.get_bus()
bus.add_signal_watch()
bus.connect("message", heard)
GLib.timeout_add_seconds(60, lambda: sys.exit("it does not end"))
player.set_state(Gst.State.PAUSED if start else Gst.State.PLAYING)
loop.run()
player.set_state(Gst.State.NULL)
open(sys.argv[3], "w").write("%d %.2f" % (shown["pictures"], shown["last"]))
"#;

#[test]
fn gstreamer_plays_it_and_goes_elsewhere() {
    const TEST: &str = "davvi play with GStreamer";
    let place = Place::bare();
    let needs = "import gi\ngi.require_version('Gst', '1.0')\nfrom gi.repository import Gst\nGst.init(None)\n\
                 assert all(map(Gst.ElementFactory.find, ('playbin', 'hlsdemux', 'qtdemux', 'openh264dec', 'souphttpsrc')))";
    let python = ["/usr/bin/python3", "python3"].into_iter().find(|python| {
        let mut command = Command::new(python);
        let command = command.args(["-c", needs]);
        let ran = command.stdout(Stdio::null()).stderr(Stdio::null());
        ran.status().is_ok_and(|status| status.success())
    });
    let Some(python) = python else {
        return skip(
            TEST,
            "there is no GStreamer with python3-gi, hlsdemux and openh264dec",
        );
    };
    let Some(root) = library(TEST, &place) else {
        return;
    };
    let server = serve(&place, &root);
    let out = place.path().join("shown");
    for (start, most) in [("0", SECONDS * 25), ("11", 5 * 25)] {
        let player = [python, "-c", GSTREAMER, "{}", start, text(&out)];
        let report = played(&place, &film(&server), &player);
        let shown = std::fs::read_to_string(&out).expect("said");
        let (pictures, last) = shown.split_once(' ').expect("two numbers");
        let pictures: u64 = pictures.parse().expect("a number");
        // Its decoder loses some where the size of pictures changes, and at a seek those that wait in it.
        assert!(
            (most - 25..=most + 25).contains(&pictures),
            "{shown}: {report}"
        );
        assert!(last.parse::<f64>().is_ok_and(|last| last > 15.9), "{shown}");
        // One that goes elsewhere before it has asked for anything has only begun there.
        let most = if start == "0" { 0 } else { 1 };
        assert!(
            report["seeks"].as_u64().is_some_and(|seeks| seeks <= most),
            "{report}"
        );
    }
}

#[test]
fn what_cannot_be_played_is_refused_in_one_sentence() {
    let place = Place::bare();
    let Some(root) = library("davvi play refuses", &place) else {
        return;
    };
    let server = serve(&place, &root);
    let film = film(&server);
    let other = film.replace("master", "90p");
    let page = server.at.clone();
    for (args, code, words) in [
        (vec!["https://a/b.m3u8"], 2, "https is not supported"),
        (vec!["film.mp4"], 2, "no address"),
        (vec![&*page], 2, "period"),
        (vec!["http://127.0.0.1:1/a.m3u8"], 1, "refused"),
        (
            vec![&*film, "--buffer", "1s"],
            2,
            "two of the film's segments, 2 s",
        ),
        (vec![&*film, "--abr", "best"], 2, "davvi"),
        (vec![&*film, "--allow-origin", "a\"b"], 2, "HOST"),
        (vec![&*film, &*other], 2, "it is not the film of"),
        (
            vec![&*film, "--", "/nonexistent/player"],
            2,
            "cannot be started",
        ),
        (vec![&*film, "--listen", "192.0.2.1:1"], 2, "cannot listen"),
    ] {
        let said = place.say(&[&["davvi", "play"], &args[..]].concat());
        assert_eq!(said.code, Some(code), "{args:?}: {said:?}");
        let lines: Vec<&str> = said
            .err
            .lines()
            .filter(|line| !line.starts_with("http://"))
            .collect();
        assert!(
            lines.len() == 1 && lines[0].contains(words),
            "{args:?}: {said:?}"
        );
    }
    // A film that needs a key.
    let list = root.join("film/90p.m3u8");
    let open = std::fs::read_to_string(&list).expect("a list");
    let key = "#EXT-X-KEY:METHOD=SAMPLE-AES,URI=\"key\"\n#EXTINF:";
    std::fs::write(&list, open.replacen("#EXTINF:", key, 1)).expect("written");
    let said = place.say(&["davvi", "play", &film]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("it is encrypted"), "{said:?}");
}
