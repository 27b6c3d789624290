//! Viewers of several videos, viewers who come by a trace, and viewers who cannot keep up themselves.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::serve_http::{Server, clip};
use crate::support::{Place, Said, film, signal};
use crate::watch_http::{library, serve};

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn json_of(said: &Said) -> Value {
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
}

/// A server of two clips, and their addresses.
fn two_clips(test: &str, place: &Place) -> Option<(Server, [String; 2])> {
    let path = clip(test, place, 3)?;
    let folder = path.parent().expect("a folder");
    std::fs::copy(&path, folder.join("other.mp4")).expect("copied");
    let (server, at) = Server::start(place, &[text(folder), "--rtsp", "127.0.0.1:0"], 1);
    let at = at[0].split("rtsp://").nth(1).expect("an address");
    let end = at.find(|of: char| of == '/' || of.is_whitespace());
    let at = &at[..end.unwrap_or(at.len())];
    let urls = ["clip.mp4", "other.mp4"].map(|name| format!("rtsp://{at}/{name}"));
    Some((server, urls))
}

/// The video and the time of arrival, ms, of each viewer.
fn who(value: &Value, of: &str) -> Vec<(u64, u64)> {
    let viewers = value["outcome"][of].as_array().expect("viewers").iter();
    let one = |viewer: &Value| {
        assert_eq!(viewer["failure"], Value::Null, "{viewer:#}");
        let number = |name: &str| viewer[name].as_u64().expect("a number");
        (number("video"), number("came_ns") / 1_000_000)
    };
    viewers.map(one).collect()
}

#[test]
fn viewers_of_several_clips_watch_them_in_turns_and_reports_say_which() {
    let test = "viewers_of_several_clips_watch_them_in_turns_and_reports_say_which";
    let place = Place::bare();
    let Some((_server, [one, two])) = two_clips(test, &place) else {
        return;
    };
    let csv = place.path().join("rows.csv");
    let all = ["watch", &one, &two, "--clients", "3", "--arrivals", "100/s"];
    let said = place.say(&[&all[..], &["--for", "1s", "--json", "--csv", text(&csv)]].concat());
    let value = json_of(&said);
    assert_eq!(value["videos"], json!([one, two]));
    assert_eq!(who(&value, "viewers"), [(1, 0), (2, 10), (1, 20)]);
    let rows = std::fs::read_to_string(csv).expect("written");
    let ends: Vec<&str> = rows
        .lines()
        .filter(|row| row.contains(",video,H264,"))
        .collect();
    assert!(
        rows.lines().next().expect("names").ends_with(",video,url"),
        "{rows}"
    );
    assert!(ends[0].ends_with(&format!(",1,{one}")), "{rows}");
    assert!(ends[1].ends_with(&format!(",2,{two}")), "{rows}");
    let said = place.say(&[&all[..], &["--for", "1s", "--streams"]].concat());
    assert!(
        said.out.starts_with(&format!("{one} and 1 more: 3 of 3 ")),
        "{said:?}"
    );
    let line = said.out.lines().find(|line| line.contains(&two));
    let words: Vec<&str> = line.expect("its line").split_whitespace().collect();
    assert_eq!(words[..4], ["2", &two, "1", "1"], "{said:?}");
    // What the server refuses is no fault of this client.
    let none = one.replace("clip", "none");
    let value = json_of(&place.say(&["watch", &none, "--for", "1s", "--json"]));
    let refused = |value: &Value, of: &str| value["outcome"][of][0]["is_refused"].clone();
    assert_eq!(refused(&value, "viewers"), true, "{value:#}");
    let value = json_of(&place.say(&["watch", "rtsp://127.0.0.1:9/a", "--json"]));
    assert_eq!(refused(&value, "viewers"), false, "{value:#}");
    // The largest number is one of viewers of both.
    let find = [
        "--find-max",
        "--most",
        "2",
        "--runs",
        "1",
        "--for",
        "1s",
        "--json",
    ];
    let value = json_of(&place.say(&[&["watch", &one, &two][..], &find].concat()));
    assert_eq!(value["videos"], json!([one, two]));
    assert_eq!(value["tries"][0]["viewers"], 1, "{value:#}");
}

#[test]
fn viewers_come_as_a_trace_says() {
    let test = "viewers_come_as_a_trace_says";
    let place = Place::bare();
    let Some((_server, [one, two])) = two_clips(test, &place) else {
        return;
    };
    let trace = place.path().join("evening.csv");
    let lines = format!("# an evening\nat_s,for_s,video\n0.4,0.5\n0,0.5,{two}\n0.2,1.5,1\n");
    std::fs::write(&trace, lines).expect("written");
    let arrivals = format!("trace:{}", text(&trace));
    let all = ["watch", &one, "--arrivals", &arrivals, "--json"];
    let value = json_of(&place.say(&all));
    assert_eq!(value["clients"], 3);
    assert_eq!(value["videos"], json!([one, two]));
    assert_eq!(who(&value, "viewers"), [(2, 0), (1, 200), (1, 400)]);
    let elapsed = |viewer: usize| {
        let track = &value["outcome"]["viewers"][viewer]["tracks"][0];
        track["stream"]["elapsed_ns"].as_u64().expect("a number") / 1_000_000
    };
    assert_eq!([elapsed(0), elapsed(1), elapsed(2)], [500, 1_500, 500]);
    let value = json_of(&place.say(&[&all[..], &["--clients", "2"]].concat()));
    assert_eq!(who(&value, "viewers"), [(2, 0), (1, 200)]);
}

#[test]
fn a_trace_or_addresses_that_make_no_sense_are_refused_before_anything_is_asked() {
    let place = Place::bare();
    let url = "rtsp://127.0.0.1:9/clip.mp4";
    let trace = place.path().join("trace.csv");
    let arrivals = format!("trace:{}", text(&trace));
    let with = ["watch", url, "--arrivals", &arrivals];
    for (lines, more, words) in [
        (
            "0\nsoon\n",
            &[][..],
            "line 2: \"soon\" is no time of arrival: write seconds",
        ),
        (
            "0,,2\n",
            &[],
            "line 1: there is no video 2: the command line names 1 video",
        ),
        (
            "0,,http://h/a.mpd",
            &[],
            "line 1: \"http://h/a.mpd\": write rtsp://HOST",
        ),
        ("# none\n", &[], "nobody comes"),
        (
            "0\n1\n",
            &["--clients", "3"],
            "it has 2 viewers, and --clients says 3",
        ),
        (
            "0\n",
            &["--find-max"],
            "a trace has its own number of viewers",
        ),
    ] {
        std::fs::write(&trace, lines).expect("written");
        let said = place.say(&[&with[..], more].concat());
        assert_eq!(said.code, Some(2), "{lines:?}: {said:?}");
        assert!(said.err.contains(words), "{lines:?}: {said:?}");
        assert_eq!(said.err.trim_end().lines().count(), 1, "{said:?}");
    }
    for (args, words) in [
        (
            &["watch", url, "http://h/a.m3u8"][..],
            "are of two kinds: name clips (rtsp) or playlists",
        ),
        (
            &["watch", url, "--arrivals", "trace:/none/at/all"],
            "No such file",
        ),
        (
            &["watch", url, "--arrivals", "evening.csv"],
            "or trace:FILE",
        ),
    ] {
        let said = place.say(args);
        assert_eq!(said.code, Some(2), "{args:?}: {said:?}");
        assert!(said.err.contains(words), "{args:?}: {said:?}");
    }
}

/// Runs `bonsai watch`, which is stopped after so long, and goes on after another time.
fn stopped(place: &Place, args: &[&str], after: Duration, held: Duration) -> Said {
    let mut command = place.bonsai(&[&["watch"], args].concat());
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("bonsai");
    std::thread::sleep(after);
    signal(child.id(), "STOP");
    std::thread::sleep(held);
    signal(child.id(), "CONT");
    child.wait_with_output().expect("ended").into()
}

/// The same later and later, as it has to watch by then, and for longer, as a busy server sends little meanwhile,
/// until it says that it is void, and why in these words.
fn void(place: &Place, args: &[&str], held: Duration, words: &str) -> Said {
    let mut last = None;
    for attempt in 1..=3 {
        let said = stopped(
            place,
            args,
            attempt * Duration::from_secs(2),
            attempt * held,
        );
        let is_it = |line: &str| line.starts_with("VOID: ") && line.contains(words);
        if said.out.lines().any(is_it) {
            return said;
        }
        last = Some(said);
    }
    panic!("it never says so: {last:?}");
}

/// Ten seconds of noise, 20 Mbit/s and more; `None`, and the reason in the log, without ffmpeg.
fn noise(test: &str, place: &Place) -> Option<PathBuf> {
    let path = place.path().join("noise.mp4");
    let pictures = "testsrc2=size=640x360:rate=25,noise=alls=100:allf=t";
    let words = "-preset ultrafast -qp 20 -pix_fmt yuv420p";
    let path = film(test, path, &[pictures], 10, words)?;
    let bytes = std::fs::metadata(&path).expect("a clip").len();
    assert!(bytes > 25_000_000, "20 Mbit/s are {bytes} bytes");
    Some(path)
}

#[test]
fn a_client_that_cannot_keep_up_says_that_its_run_is_void() {
    let test = "a_client_that_cannot_keep_up_says_that_its_run_is_void";
    let place = Place::bare();
    let Some(path) = noise(test, &place) else {
        return;
    };
    let folder = path.parent().expect("a folder");
    let (_server, at) = Server::start(&place, &[text(folder), "--rtsp", "127.0.0.1:0"], 1);
    let at = at[0].split("rtsp://").nth(1).expect("an address");
    let end = at.find(|of: char| of == '/' || of.is_whitespace());
    let url = format!("rtsp://{}/noise.mp4", &at[..end.unwrap_or(at.len())]);
    // More comes in that time than its sockets hold.
    let held = Duration::from_secs(2);
    let words = "found no room here, so this says nothing of the server";
    let said = void(&place, &[&url, "--for", "8s"], held, words);
    assert_eq!(said.code, Some(1), "{said:?}");
    // What waits in a connection is not lost, and has the time when it is read.
    let words = "this client was late by ";
    let said = void(&place, &[&url, "--for", "8s", "--by", "tcp"], held, words);
    assert_eq!(said.code, Some(1), "{said:?}");
    let all = [&url, "--for", "8s", "--by", "tcp", "--json"];
    let value = json_of(&stopped(&place, &all, Duration::from_secs(3), held));
    assert_eq!(value["void"], true, "{value:#}");
    let why = value["void_because"].as_str().expect("why");
    assert!(why.starts_with("this client was late by "), "{why}");
    assert!(value["outcome"]["late_ns"].as_u64().expect("a number") > 1_000_000_000);
}

#[test]
fn a_player_that_was_stopped_says_that_its_run_is_void() {
    let test = "a_player_that_was_stopped_says_that_its_run_is_void";
    let place = Place::bare();
    let Some(library) = library(test, &place) else {
        return;
    };
    let nginx = serve(&place, &library, "");
    let [one, two] = ["master.m3u8", "manifest.mpd"].map(|name| {
        let at = nginx.address;
        format!("http://{at}/match/{name}")
    });
    // Its buffer is shorter than it is stopped for: it stalls by its own fault.
    let more = ["--buffer", "2s", "--for", "20s", "--abr", "throughput"];
    let held = Duration::from_secs(4);
    let all = [&[&*one][..], &more].concat();
    let said = void(&place, &all, held, "this client was late by ");
    assert_eq!(said.code, Some(1), "{said:?}");
    let none = one.replace("master", "none");
    let value = json_of(&place.say(&["watch", &none, "--for", "2s", "--json"]));
    assert_eq!(value["outcome"]["players"][0]["is_refused"], true);
    // Players of several playlists, by a trace.
    let trace = place.path().join("trace.csv");
    std::fs::write(&trace, "0,2\n0.1,2\n0.2,2,1\n").expect("written");
    let arrivals = format!("trace:{}", text(&trace));
    let all = ["watch", &one, &two, "--arrivals", &arrivals, "--json"];
    let value = json_of(&place.say(&all));
    assert_eq!(who(&value, "players"), [(1, 0), (2, 100), (1, 200)]);
    let films = value["outcome"]["films"].as_array().expect("films");
    assert!(films.iter().all(|film| film["segments"] == 6), "{value:#}");
}
