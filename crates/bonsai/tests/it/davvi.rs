//! `bonsai davvi`, with the real ffmpeg.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{self, Place};

/// A film of 12 s and its annotations; `None`, and the reason in the log, without ffmpeg.
fn film(test: &str, place: &Place) -> Option<(PathBuf, PathBuf)> {
    let path = place.path().join("match.mp4");
    let sources = ["testsrc2=size=96x54:rate=10", "sine=frequency=440"];
    let film = support::film(test, path, &sources, 12, "")?;
    let events = place.path().join("match.csv");
    let lines = "time,type,players,card,text\n\
                 0:03,tackle,8,yellow,A sliding tackle\n\
                 0:07,goal,10;14,,A header\n\
                 0:09,tackle,18,yellow,Sliding in\n";
    std::fs::write(&events, lines).expect("written");
    Some((film, events))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn a_video_is_imported_found_and_played() {
    let place = Place::bare();
    let Some((film, events)) = film("davvi", &place) else {
        return;
    };
    let library = place.path().join("library");
    let library = text(&library);
    let inside = ["--library", library];
    let davvi = |args: &[&str]| place.say(&[&["davvi"], args, &inside].concat());
    let json = |args: &[&str]| place.json(&[&["davvi"], args, &inside, &["--json"]].concat());
    let done = json(&["import", text(&film), "--events", text(&events)]);
    assert_eq!(
        (&done["video"]["name"], &done["video"]["segments"]),
        (&"match".into(), &6.into())
    );
    let all = davvi(&["ls"]);
    assert!(
        all.out.contains("0:12") && all.out.contains("54p"),
        "{all:?}"
    );
    let found = json(&[
        "search",
        "sliding tackle",
        "--player",
        "8,14",
        "--card",
        "yellow",
    ]);
    assert_eq!(
        (&found["total"], &found["hits"][0]["number"]),
        (&1.into(), &0.into())
    );
    let said = davvi(&["search", "sliding"]);
    assert!(
        said.out.contains("match:0") && said.out.contains("match:2"),
        "{said:?}"
    );
    let nothing = davvi(&["search", "offside"]);
    assert_eq!(
        (nothing.code, nothing.out.as_str()),
        (Some(1), "nothing was found\n")
    );
    let out = place.path().join("mine.m3u8");
    let cut = [
        "--length",
        "4s",
        "--before",
        "1s",
        "--after",
        "1s",
        "--playlist",
        text(&out),
    ];
    let made = json(&[&["search", "sliding"][..], &cut].concat());
    assert_eq!(
        (&made["playlist"]["length_ms"], &made["playlist"]["hits"]),
        (&4000.into(), &2.into())
    );
    let player = Command::new("ffmpeg")
        .args(["-v", "error", "-xerror", "-i", text(&out), "-map", "0:v:0"])
        // Pictures as they come: what is between the clips is not made up for.
        .args(["-vsync", "drop"])
        .args(["-vf", "scale=16:16,format=gray", "-f", "rawvideo", "pipe:1"])
        .stdin(Stdio::null())
        .output()
        .expect("played");
    let errors = String::from_utf8_lossy(&player.stderr);
    assert!(player.status.success() && errors.is_empty(), "{errors}");
    assert_eq!(player.stdout.len() / 256, 40, "4 s at 10 a second");
    assert_eq!(davvi(&["watched", "match:0"]).code, Some(0));
    let liked = json(&["recommend"]);
    assert_eq!(liked["hits"][0]["number"], 2);
    let config = davvi(&["nginx"]);
    assert!(config.out.contains("listen 127.0.0.1:8080;"), "{config:?}");
    assert!(config.err.contains("--web-readable"), "{config:?}");
}

#[test]
fn davvi_refuses_what_makes_no_sense_in_one_sentence() {
    let place = Place::bare();
    let Some((film, events)) = film("davvi refuses", &place) else {
        return;
    };
    let bad = place.path().join("bad.csv");
    std::fs::write(&bad, "time,type\n0:01,goal\nhalf time,goal\n").expect("written");
    let letter = place.path().join("letter.mp4");
    std::fs::write(&letter, "Dear all").expect("written");
    let library = place.path().join("library");
    let inside = ["--library", text(&library)];
    let refused = |args: &[&str], words: &str| {
        let said = place.say(&[&["davvi"], args, &inside].concat());
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(
            said.err.contains(words) && said.err.trim_end().lines().count() == 1,
            "{said:?}"
        );
    };
    refused(
        &["import", text(&film), "--events", text(&bad)],
        "line 3: \"half time\" is no time",
    );
    refused(&["import", text(&letter)], "Invalid data");
    refused(
        &["import", text(&film), "--name", "../x"],
        "no name of a video",
    );
    refused(
        &["import", text(&film), "--qualities", "1080"],
        "no quality can have 1080 lines",
    );
    refused(&["search", "x"], "no library");
    assert!(!library.exists());
    let done = place.say(
        &[
            &["davvi", "import", text(&film), "--events", text(&events)][..],
            &inside,
        ]
        .concat(),
    );
    assert_eq!(done.code, Some(0), "{done:?}");
    refused(&["import", text(&film)], "a video is called match already");
    refused(&["search"], "say what to look for");
    refused(&["search", "\"x"], "a quote is not closed");
    refused(
        &["search", "tackle", "--video", "nowhere"],
        "no video is called nowhere",
    );
    refused(&["search", "tackle", "--length", "1s"], "nothing fits");
    refused(
        &["search", "tackle", "--playlist", "a b.m3u8"],
        "no name for a playlist",
    );
    refused(&["search", "tackle", "--field", "team"], "NAME=VALUE");
    refused(&["watched", "match:99"], "there is no such event");
    refused(&["recommend"], "nothing was watched");
    refused(&["nginx", "--user", "a;b"], "is no user");
}
