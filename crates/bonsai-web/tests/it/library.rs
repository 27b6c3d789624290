//! A library: files, searches, personal playlists, and what is imported meanwhile.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use bonsai_web::Limits;
use serde_json::{Value, json};

use crate::support::{Server, add_video, bytes, library};

const JSON: [&str; 1] = ["Content-Type: application/json"];

fn server(root: &Path) -> Server {
    Server::start(None, Some(root), Limits::default())
}

#[test]
fn segments_come_with_ranges_and_etags() {
    let place = tempfile::tempdir().expect("a folder");
    library(place.path());
    let server = server(place.path());
    let path = "/media/match/720p/00001.mp4";
    let file = bytes(5000, 1);
    let whole = server.get(path);
    assert_eq!(
        (whole.status, whole.header("content-type")),
        (200, "video/mp4")
    );
    assert!(whole.body == file && whole.header("cache-control") == "private, no-cache");
    let etag = whole.header("etag").to_owned();
    let part = server.ask("GET", path, &["Range: bytes=100-199"], "");
    assert_eq!(
        (part.status, part.header("content-range")),
        (206, "bytes 100-199/5000")
    );
    assert_eq!(part.body, &file[100..200]);
    let same = server.ask("GET", path, &[&format!("If-None-Match: {etag}")], "");
    assert_eq!((same.status, same.body.len()), (304, 0));
    let head = server.ask("HEAD", path, &[], "");
    assert_eq!(
        (head.status, head.body.len(), head.header("content-length")),
        (200, 0, "5000")
    );
    assert_eq!(
        server
            .get("/media/match/audio/00000.mp4")
            .header("content-type"),
        "audio/mp4"
    );
    let list = server.get("/media/match/master.m3u8");
    assert_eq!(list.header("content-type"), "application/vnd.apple.mpegurl");
    assert_eq!(list.header("cache-control"), "no-cache");
    assert_eq!(server.ask("POST", path, &[], "x").status, 405);
}

#[test]
fn no_path_leads_out_of_the_library() {
    let place = tempfile::tempdir().expect("a folder");
    let root = place.path().join("library");
    fs::create_dir(&root).expect("made");
    library(&root);
    fs::write(place.path().join("secret.mp4"), "secret").expect("written");
    fs::create_dir_all(place.path().join("54p")).expect("made");
    fs::write(place.path().join("54p/00000.mp4"), "secret").expect("written");
    symlink(
        place.path().join("secret.mp4"),
        root.join("match/720p/99999.mp4"),
    )
    .expect("linked");
    symlink("00000.mp4", root.join("match/720p/00098.mp4")).expect("linked");
    symlink(place.path(), root.join("out")).expect("linked");
    let server = server(&root);
    for path in [
        "/media/match/720p/99999.mp4",
        // Not even one that stays inside.
        "/media/match/720p/00098.mp4",
        "/media/out/54p/00000.mp4",
        "/media/../secret.mp4",
        "/media/match/../../secret.mp4",
        "/media/%2e%2e/54p/00000.mp4",
        "/media/match/720p/..%2f..%2f..%2fsecret.mp4",
        "/media/match/720p%2f00000.mp4",
        "/media/match/%2e%2e/00000.mp4",
        "/media/match/720p/%2e%2e%2f00000.mp4",
        "/media/match/720p/00000.mp4%00",
        "/media/match/video.json",
        "/media/match/events.json",
        "/media/.private/index.db",
        "/media/.private/54p/00000.mp4",
        "/media/match/720p/",
        "/media/match/720p",
        "/media/match/",
        "/media/",
        "//etc/passwd",
        "/media/match/720p/00099.mp4",
        "/media/MATCH/master.m3u8",
        "/media/%ff/master.m3u8",
        "/match/master.m3u8",
    ] {
        let said = server.get(path);
        assert!(matches!(said.status, 403 | 404), "{path}: {said:?}");
        assert!(
            !said.body.windows(6).any(|window| window == b"secret"),
            "{path}"
        );
    }
}

#[test]
fn a_search_is_asked_and_answered() {
    let place = tempfile::tempdir().expect("a folder");
    library(place.path());
    let server = server(place.path());
    let found = server
        .get("/search?q=header&player=8,9&type=goal&team=Brann&card=&video=")
        .json();
    assert_eq!(
        (&found["total"], &found["hits"][0]["video"]),
        (&json!(1), &json!("match"))
    );
    assert_eq!(found["hits"][0]["event"]["at_ms"], 3000);
    let many = format!("/search?player={}", "8,".repeat(300));
    for (path, words) in [
        ("/search", "what to look for"),
        ("/search?q=%22", "quote"),
        ("/search?q=a%00b", "control character"),
        ("/search?colour=red", "colour"),
        ("/search?q=a&from=90", "MM:SS"),
        ("/search?q=a&video=..", "no name of a video"),
        ("/search?q=a&video=nowhere", "no video is called nowhere"),
        ("/search?q=a&fields=team", "NAME=VALUE"),
        ("/search?q=a&most=-1", "most"),
        (many.as_str(), "more than 200 values"),
        ("/personal/master.m3u8?q=header&length=5", "length"),
        ("/personal/master.m3u8?q=header&before=11min", "before"),
        ("/personal/master.m3u8?q=header&after=1h", "10min is too"),
        ("/personal/master.m3u8?q=header%22%0a&length=2min", "quote"),
        ("/personal/master.m3u8?q=offside", "nothing was found"),
        (
            "/personal/master.m3u8?events=match:99",
            "there is no such event",
        ),
        ("/personal/master.m3u8?events=..:1", "VIDEO:NUMBER"),
        ("/personal/master.m3u8?clips=match:1", "VIDEO:FIRSTxCOUNT"),
        (
            "/personal/master.m3u8?clips=nowhere:0x1",
            "no video is called nowhere",
        ),
        (
            "/personal/master.m3u8?clips=match:99x1",
            "nothing was found",
        ),
    ] {
        let said = server.get(path);
        assert_eq!(said.status, 400, "{path}: {said:?}");
        let text = said.error();
        assert!(text.contains(words), "{path}: {text}");
    }
    assert_eq!(server.get("/search?a%0a%1bb=1").status, 400);
    server.until_told(r"`a\n\u{1b}b`");
    let long = format!("/personal/master.m3u8?clips={}", "match:0x10,".repeat(500));
    assert_eq!(server.get(&long).status, 200);
    assert_eq!(server.get("/personal/nothing.txt?q=header").status, 404);
    assert_eq!(server.get("/personal/9p.m3u8?q=header").status, 404);
    let videos = server.get("/videos").json();
    assert_eq!(
        (&videos["videos"][0]["length_ms"], &videos["has_clips"]),
        (&json!(20_000), &json!(false))
    );
    let fields = server.get("/fields").json();
    assert_eq!(fields["fields"]["player"], json!(["8", "14", "9"]));
    assert_eq!(fields["fields"]["type"], json!(["goal", "tackle"]));
}

#[test]
fn what_was_watched_is_kept_and_others_like_it_are_recommended() {
    let place = tempfile::tempdir().expect("a folder");
    library(place.path());
    let server = server(place.path());
    assert_eq!(
        server.get("/recommended").json(),
        json!({"watched": 0, "hits": []})
    );
    let post = |body: &str| server.ask("POST", "/watched", &JSON, body).status;
    assert_eq!(
        post(r#"{"events": [{"video": "match", "number": 0}]}"#),
        204
    );
    assert_eq!(
        server.get("/watched").json(),
        json!({"events": [{"video": "match", "number": 0}]})
    );
    let liked = server.get("/recommended").json();
    assert_eq!(
        (&liked["watched"], &liked["hits"][0]["number"]),
        (&json!(1), &json!(2))
    );
    for (bad, status) in [
        (r#"{"events": [{"video": "../x", "number": 0}]}"#, 422),
        (r#"{"events": [{"video": "match", "number": 3}]}"#, 400),
        (r#"{"events": 1}"#, 422),
        ("{", 400),
        (r#"{"events": [], "more": 1}"#, 422),
    ] {
        assert_eq!(post(bad), status, "{bad}");
    }
    let one = r#"{"video": "match", "number": 0}"#;
    let many = format!("{{\"events\": [{}]}}", vec![one; 1001].join(","));
    assert_eq!(post(&many), 400);
    // As a form of another site would have it sent, without being asked.
    let form = server.ask(
        "POST",
        "/watched",
        &["Content-Type: text/plain"],
        "{\"events\": []}",
    );
    assert_eq!(form.status, 415);
    assert_eq!(
        server.get("/watched").json()["events"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
}

#[test]
fn a_personal_playlist_stays_what_it_is_while_others_are_imported() {
    let place = tempfile::tempdir().expect("a folder");
    library(place.path());
    let server = server(place.path());
    let asked = "q=header&before=1s&after=1s&length=1min";
    let playlist = server
        .get(&format!("/personal/playlist.json?{asked}"))
        .json();
    assert_eq!(playlist["length_ms"], 4000);
    let clip = |at: usize| {
        let clip = &playlist["clips"][at];
        [&clip["from_ms"], &clip["to_ms"], &clip["shown_ms"]].map(|ms| ms.as_u64())
    };
    assert_eq!(clip(0), [Some(2000), Some(4000), Some(0)]);
    assert_eq!(clip(1), [Some(14_000), Some(16_000), Some(2000)]);
    let shown: Vec<&Value> = playlist["events"]
        .as_array()
        .expect("events")
        .iter()
        .map(|e| &e["shown_ms"])
        .collect();
    assert_eq!(shown, [1000, 3000]);
    let hls = format!("/{}", playlist["hls"].as_str().expect("an address"));
    let master = String::from_utf8(server.get(&hls).body).expect("UTF-8");
    assert_eq!(
        server.get(&format!("/personal/master.m3u8?{asked}")).body,
        master.as_bytes()
    );
    let track = master
        .lines()
        .find(|line| line.starts_with("360p"))
        .expect("a track");
    let track = format!("/personal/{track}");
    let before = server.get(&track);
    assert_eq!(
        (before.status, before.header("content-type")),
        (200, "application/vnd.apple.mpegurl")
    );
    // A match with better hits comes, and comes first.
    let better =
        json!({"at_ms": 1000, "type": "goal", "players": ["8"], "text": "Header header header"});
    add_video(place.path(), "again", 7, &[better]);
    let after = server.get(&track);
    assert_eq!(after.body, before.body);
    let text = String::from_utf8(before.body).expect("UTF-8");
    let segments: Vec<&str> = text.lines().filter(|line| line.starts_with("..")).collect();
    assert_eq!(
        segments,
        [
            "../media/match/360p/00001.mp4",
            "../media/match/360p/00007.mp4"
        ]
    );
    assert_eq!(server.get("/media/match/360p/00007.mp4").status, 200);
    assert_eq!(
        server.get(&format!("/search?{}", "q=header")).json()["total"],
        3
    );
    let now = server
        .get(&format!("/personal/playlist.json?{asked}"))
        .json();
    assert_eq!(now["clips"].as_array().map(Vec::len), Some(3));
    // What is named is played, whatever else there is.
    let named = server
        .get("/personal/playlist.json?events=again:0,match:1&before=1s&after=1s")
        .json();
    assert_eq!(named["events"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        server
            .get("/personal/manifest.mpd?clips=match:0x2")
            .header("content-type"),
        "application/dash+xml"
    );
}

#[test]
fn a_damaged_video_is_told_of_and_the_others_are_found() {
    let place = tempfile::tempdir().expect("a folder");
    library(place.path());
    add_video(
        place.path(),
        "torn",
        3,
        &[json!({"at_ms": 0, "text": "A header"})],
    );
    fs::write(place.path().join("torn/events.json"), "[{").expect("written");
    fs::create_dir(place.path().join("empty")).expect("made");
    let server = server(place.path());
    for _ in 0..2 {
        let found = server.get("/search?q=header").json();
        assert_eq!(found["total"], 2, "{found}");
        let problems = found["problems"].to_string();
        assert!(
            problems.contains("torn/events.json") && problems.contains("empty/video.json"),
            "{problems}"
        );
        assert!(
            !problems.contains(place.path().to_str().expect("UTF-8")),
            "{problems}"
        );
    }
    // Once it is whole, it is found.
    fs::write(
        place.path().join("torn/events.json"),
        r#"[{"at_ms": 0, "text": "A header"}]"#,
    )
    .expect("written");
    assert_eq!(server.get("/search?q=header").json()["total"], 3);
    // One that goes is not found any more.
    fs::remove_dir_all(place.path().join("match")).expect("removed");
    assert_eq!(server.get("/search?q=header").json()["total"], 1);
}

#[test]
fn searches_go_on_while_videos_come_and_go() {
    let place = tempfile::tempdir().expect("a folder");
    library(place.path());
    let server = server(place.path());
    let header = json!({"at_ms": 1000, "type": "goal", "players": ["8"], "text": "A header"});
    std::thread::scope(|scope| {
        let searchers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..40 {
                        let said = server.get("/search?q=header");
                        assert_eq!(said.status, 200, "{said:?}");
                        // Two of the match that is always there, and what else is there just then.
                        let total = said.json()["total"].as_u64().expect("a number");
                        assert!((2..=6).contains(&total), "{total}");
                        let noted = r#"{"events": [{"video": "match", "number": 1}]}"#;
                        assert_eq!(server.ask("POST", "/watched", &JSON, noted).status, 204);
                        assert_eq!(server.get("/recommended").status, 200);
                    }
                })
            })
            .collect();
        for round in 0..10_u32 {
            for number in 0..4 {
                let name = format!("guest-{number}");
                let root = place.path();
                if root.join(&name).exists() {
                    // As whoever removes a video does it: in no order.
                    let _ = fs::remove_dir_all(root.join(&name));
                }
                add_video(
                    root,
                    &name,
                    100 + round * 10 + number,
                    std::slice::from_ref(&header),
                );
            }
        }
        for searcher in searchers {
            searcher.join().expect("it found what is there");
        }
    });
    assert_eq!(server.get("/search?q=header").json()["total"], 6);
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let place = tempfile::tempdir().expect("a folder");
    library(place.path());
    let clips = tempfile::tempdir().expect("a folder");
    fs::write(clips.path().join("a.mp4"), "film").expect("written");
    let server = Server::start(Some(clips.path()), Some(place.path()), Limits::default());
    let page = server.get("/");
    assert_eq!(
        (page.status, page.header("content-type")),
        (200, "text/html; charset=utf-8")
    );
    let policy = page.header("content-security-policy");
    assert!(
        policy.contains("default-src 'none'") && !policy.contains("http"),
        "{policy}"
    );
    assert!(!policy.contains("unsafe"), "{policy}");
    let text = String::from_utf8(page.body).expect("UTF-8");
    let mut files = 0;
    for part in text.split(['"']).filter(|part| part.starts_with("-/")) {
        let file = server.get(&format!("/{part}"));
        assert_eq!(
            (file.status, file.header("x-content-type-options")),
            (200, "nosniff"),
            "{part}"
        );
        files += 1;
    }
    assert!(files >= 5, "{text}");
    let player = server.get("/-/vendor/hls.min.mjs");
    assert_eq!(
        player.header("content-type"),
        "text/javascript; charset=utf-8"
    );
    // Both are there.
    assert_eq!(server.get("/a.mp4").body, b"film");
    assert_eq!(server.get("/videos").json()["has_clips"], true);
}
