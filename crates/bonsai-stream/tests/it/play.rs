//! Players of films over HTTP, of servers that do well and that do not.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bonsai_media::adapt::{Rule, Settings};
use bonsai_stream::play::{Arrivals, Outcome, Plan, Shortfall, Video, play};

use crate::support::{has, skip};
use crate::web::{Answer, Web};

/// Segments of half a second in each of three qualities: kbit/s and bytes.
const QUALITIES: [(usize, usize); 3] = [(200, 12_500), (800, 50_000), (3200, 200_000)];

fn plan(address: &str, viewers: u32, length: Duration) -> Plan {
    let url = url::Url::parse(address).expect("an address");
    let server = url.socket_addrs(|| None).expect("an address")[0];
    Plan {
        videos: vec![Video { url, server }],
        viewers,
        arrivals: Arrivals::Crowd,
        length,
        step: Duration::from_secs(10),
        threads: 1,
        seed: 1,
        settings: Settings {
            rule: Rule::Throughput,
            // A busy machine is no reason to ask for something twice.
            abandon: false,
            ..Settings::default()
        },
        keeps_log: true,
    }
}

const LONG: Duration = Duration::from_secs(60);

fn played(plan: &Plan) -> Outcome {
    let outcome = play(plan, &|_, _| {}).expect("sockets");
    assert_eq!(outcome.players.len(), plan.viewers as usize);
    outcome
}

/// What each player says that it failed by.
fn failures(outcome: &Outcome) -> Vec<(&str, &str)> {
    let failed = outcome.players.iter().map(|player| {
        let why = player.failure.as_deref().expect("a failure");
        (player.failed_at.expect("a step"), why)
    });
    failed.collect()
}

fn master() -> Vec<u8> {
    let variants = QUALITIES.iter().map(|(kbps, _)| {
        format!("#EXT-X-STREAM-INF:BANDWIDTH={kbps}000,RESOLUTION={kbps}x90\n{kbps}/list.m3u8\n")
    });
    format!("#EXTM3U\n{}", variants.collect::<String>()).into_bytes()
}

fn list(segments: usize) -> Vec<u8> {
    let all = (0..segments).map(|n| format!("#EXTINF:0.5,\n{n}.ts\n"));
    let all: String = all.collect();
    format!("#EXTM3U\n#EXT-X-TARGETDURATION:1\n{all}#EXT-X-ENDLIST\n").into_bytes()
}

/// The quality of a path, and its segment.
fn of(path: &str) -> Option<(usize, usize)> {
    let (folder, file) = path.trim_start_matches('/').split_once('/')?;
    let quality = QUALITIES
        .iter()
        .position(|(kbps, _)| folder == kbps.to_string())?;
    Some((quality, file.strip_suffix(".ts")?.parse().ok()?))
}

/// A film of so many segments, as it should be served.
fn film(path: &str, segments: usize) -> Answer {
    match (path, of(path)) {
        ("/master.m3u8", _) => Answer::File(master()),
        (_, Some((quality, segment))) if segment < segments => {
            Answer::File(vec![7; QUALITIES[quality].1])
        }
        (path, None) if path.ends_with("/list.m3u8") => Answer::File(list(segments)),
        _ => Answer::Status("404 Not Found"),
    }
}

#[test]
fn players_fetch_each_segment_once_and_count_its_bytes() {
    let web = Web::new(|path, _| film(path, 6));
    let outcome = played(&plan(&web.url("/master.m3u8"), 3, LONG));
    let mut due: BTreeMap<usize, usize> = BTreeMap::new();
    for player in &outcome.players {
        assert_eq!(player.failure, None);
        let seen = player.seen.as_ref().expect("seen");
        let log = seen.log.as_ref().expect("a log");
        let segments: Vec<usize> = log.segments.iter().map(|of| of.segment).collect();
        assert_eq!(segments, [0, 1, 2, 3, 4, 5]);
        assert_eq!(log.segments[0].quality, 0, "nothing was measured yet");
        let bytes: usize = log.segments.iter().map(|of| QUALITIES[of.quality].1).sum();
        assert!((seen.summary.bits - bytes as f64 * 8.0).abs() < 1.0);
        assert_eq!((seen.summary.fetched, seen.times.segments), (6, 6));
        assert!((seen.summary.played_ms - 3_000.0).abs() < 1.0, "{seen:?}");
        assert_eq!(seen.connections, 1);
        for of in &log.segments {
            *due.entry(of.quality).or_default() += 1;
        }
    }
    for (quality, (kbps, _)) in QUALITIES.iter().enumerate() {
        let asked = web.asked();
        let asked = asked
            .iter()
            .filter(|(path, _)| of(path).is_some_and(|of| of.0 == quality));
        assert_eq!(asked.count(), due.get(&quality).copied().unwrap_or(0));
        assert_eq!(web.times(&format!("/{kbps}/list.m3u8")), 3);
    }
    assert_eq!(web.connections(), 3);
    let film = outcome.film.as_ref().expect("a film");
    assert_eq!((film.qualities.len(), film.segments), (3, 6));
    assert_eq!(film.qualities[2].size, Some((3200, 90)));
    assert_eq!(outcome.times.segments, 18);
    let fairness = outcome.fairness.expect("players");
    assert!((1.0 / 3.0..=1.0).contains(&fairness), "{fairness}");
    assert!(outcome.score.is_some() && outcome.cpu_s > 0.0);
}

#[test]
fn a_slow_server_never_gets_the_highest_quality_shown() {
    // 100 kB/s at the most.
    let web = Web::new(|path, _| match film(path, 12) {
        Answer::File(bytes) if of(path).is_some() => Answer::Slow(bytes, 1_000),
        other => other,
    });
    let outcome = played(&plan(&web.url("/master.m3u8"), 2, Duration::from_secs(3)));
    for player in &outcome.players {
        let seen = player.seen.as_ref().expect("seen");
        assert_eq!(player.failure, None);
        assert_eq!(seen.summary.in_quality_ms[2], 0.0, "{seen:?}");
        assert!(seen.short_of.contains(&Shortfall::Late), "{seen:?}");
        assert!(!player.is_top());
    }
}

#[test]
fn a_download_that_crawls_is_given_up() {
    // The lowest quality comes at once, and says nothing of the others.
    let web = Web::new(|path, _| match film(path, 12) {
        Answer::File(bytes) if of(path).is_some_and(|of| of.0 > 0) => Answer::Slow(bytes, 200),
        other => other,
    });
    let mut plan = plan(&web.url("/master.m3u8"), 1, Duration::from_secs(5));
    plan.settings.abandon = true;
    let outcome = played(&plan);
    let seen = outcome.players[0].seen.as_ref().expect("seen");
    assert_eq!(outcome.players[0].failure, None);
    assert!(
        seen.summary.abandoned > 0 && seen.summary.wasted_bits > 0.0,
        "{seen:?}"
    );
    assert!(seen.connections > 1, "what is given up ends its connection");
}

#[test]
fn sound_headers_and_clips_of_several_videos_are_fetched_as_they_are_due() {
    const MASTER: &str = "#EXTM3U\n#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"a\",NAME=\"a\",URI=\"sound.m3u8\"\n\
         #EXT-X-STREAM-INF:BANDWIDTH=1000000,AUDIO=\"a\",CODECS=\"avc3.64001e,mp4a.40.2\"\npictures.m3u8\n";
    const PICTURES: &str = "#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-TARGETDURATION:1\n#EXT-X-MAP:URI=\"a/init.mp4\"\n\
         #EXTINF:1,\na/4.mp4\n#EXTINF:0.5,\na/5.mp4\n#EXT-X-DISCONTINUITY\n#EXT-X-MAP:URI=\"b/init.mp4\"\n\
         #EXTINF:1,\nb/0.mp4\n#EXT-X-DISCONTINUITY\n#EXT-X-MAP:URI=\"a/init.mp4\"\n#EXTINF:0.5,\na/9.mp4\n#EXT-X-ENDLIST\n";
    // Its segments are shorter, and end a little earlier or later.
    const SOUND: &str = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXT-X-MAP:URI=\"s/init.mp4\"\n#EXTINF:0.51,\ns/0.mp4\n\
         #EXTINF:0.48,\ns/1.mp4\n#EXTINF:0.5,\ns/2.mp4\n#EXTINF:0.99,\ns/3.mp4\n#EXTINF:0.5,\ns/4.mp4\n#EXTINF:0.02,\ns/5.mp4\n#EXT-X-ENDLIST\n";
    let web = Web::new(|path, _| match path {
        "/p/master.m3u8" => Answer::File(MASTER.into()),
        "/p/pictures.m3u8" => Answer::File(PICTURES.into()),
        "/p/sound.m3u8" => Answer::File(SOUND.into()),
        _ => Answer::File(vec![7; 10_000]),
    });
    let outcome = played(&plan(&web.url("/p/master.m3u8"), 1, LONG));
    assert_eq!(outcome.players[0].failure, None);
    let asked = web.asked();
    let asked: Vec<&str> = asked.iter().map(|(path, _)| &path[3..]).collect();
    assert_eq!(
        asked,
        [
            "master.m3u8",
            "pictures.m3u8",
            "sound.m3u8",
            "a/init.mp4",
            "a/4.mp4",
            "s/init.mp4",
            "s/0.mp4",
            "s/1.mp4",
            "a/5.mp4",
            "s/2.mp4",
            "b/init.mp4",
            "b/0.mp4",
            "s/3.mp4",
            "a/9.mp4",
            "s/4.mp4",
            "s/5.mp4",
        ]
    );
    let seen = outcome.players[0].seen.as_ref().expect("seen");
    let bytes: u64 = seen
        .log
        .iter()
        .flat_map(|log| &log.segments)
        .map(|of| of.sound_bytes)
        .sum();
    // With its header.
    assert_eq!(bytes, 70_000);
    assert!((seen.summary.bits - 13.0 * 80_000.0).abs() < 1.0);
}

#[test]
fn parts_of_files_are_asked_for_by_their_bytes() {
    const LIST: &str = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXT-X-MAP:URI=\"all.mp4\",BYTERANGE=\"500@0\"\n\
         #EXTINF:0.5,\n#EXT-X-BYTERANGE:2000@500\nall.mp4\n#EXTINF:0.5,\n#EXT-X-BYTERANGE:3000\nall.mp4\n#EXT-X-ENDLIST\n";
    let web = Web::new(|path, _| match path {
        "/list.m3u8" => Answer::File(LIST.into()),
        _ => Answer::File(vec![7; 5_500]),
    });
    let outcome = played(&plan(&web.url("/list.m3u8"), 1, LONG));
    assert_eq!(outcome.players[0].failure, None);
    let ranges: Vec<_> = web
        .asked()
        .into_iter()
        .filter_map(|(_, range)| range)
        .collect();
    assert_eq!(ranges, [(0, 499), (500, 2_499), (2_500, 5_499)]);
    // What a single list carries is known at the end: 5,500 bytes of a second.
    let seen = outcome.players[0].seen.as_ref().expect("seen");
    assert!((seen.summary.mean_kbps - 44.0).abs() < 0.1, "{seen:?}");
    let rude = Web::new(|path, _| match path {
        "/list.m3u8" => Answer::File(LIST.into()),
        _ => Answer::Whole(vec![7; 5_500]),
    });
    let outcome = played(&plan(&rude.url("/list.m3u8"), 1, LONG));
    let all = failures(&outcome);
    assert!(
        all[0].1.contains("all of a file of which a part"),
        "{all:?}"
    );
}

#[test]
fn what_is_elsewhere_is_fetched_from_there() {
    let there = Web::new(|path, _| film(path.trim_start_matches("/there"), 4));
    let place = there.url("/there");
    let here = Web::new(move |path, _| match path {
        "/start" => Answer::Moved("/again".to_owned()),
        "/again" => Answer::Moved(format!("{place}/master.m3u8")),
        _ => Answer::Status("404 Not Found"),
    });
    let outcome = played(&plan(&here.url("/start"), 1, LONG));
    assert_eq!(outcome.players[0].failure, None);
    // Lists next to where the first was found.
    assert_eq!(there.times("/there/200/list.m3u8"), 1);
    assert_eq!(here.asked().len(), 2);
}

#[test]
fn playlists_that_are_none_fail_players_in_words() {
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port");
    let nobody = format!(
        "http://{}/master.m3u8",
        closed.local_addr().expect("an address")
    );
    drop(closed);
    let web = Web::new(|path, _| match path {
        "/none" => Answer::Status("404 Not Found"),
        "/busy" => Answer::Status("503 Service Unavailable"),
        "/silent" => Answer::Silence,
        "/text" => Answer::File(b"Dear all".to_vec()),
        "/binary" => Answer::File(vec![0xff; 1_000]),
        "/live" => Answer::File(b"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n0.ts\n".to_vec()),
        "/half" => Answer::Cut(list(9), 50),
        "/huge" => Answer::Endless(Some(3 << 30)),
        "/endless" => Answer::Endless(None),
        "/loop" => Answer::Moved("/loop".to_owned()),
        "/safe" => Answer::Moved("https://127.0.0.1/master.m3u8".to_owned()),
        "/nowhere" => Answer::Status("302 Found"),
        "/itself" => Answer::File(b"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=9\nitself\n".to_vec()),
        "/other" => Answer::Raw(b"RTSP/1.0 200 OK\r\n\r\n"),
        "/crawl" => Answer::Slow(list(9), 1),
        _ => Answer::Raw(b"HTTP/1.1 200 OK\r\nX: 1"),
    });
    for (address, step, words) in [
        (nobody, "connect", "refused"),
        (web.url("/none"), "playlist", "404 Not Found: \"/none\""),
        (web.url("/busy"), "playlist", "503"),
        (web.url("/silent"), "playlist", "no answer in 1 s"),
        (web.url("/text"), "playlist", "name an HLS playlist"),
        (web.url("/binary"), "playlist", "name an HLS playlist"),
        (web.url("/live"), "playlist", "no end"),
        (web.url("/half"), "playlist", ""),
        (web.url("/huge"), "playlist", "more than 4 MiB"),
        (web.url("/endless"), "playlist", "more than 4 MiB"),
        (web.url("/loop"), "playlist", "more than 5 times"),
        (web.url("/safe"), "playlist", "https is not supported"),
        (web.url("/nowhere"), "playlist", "no address says where"),
        (web.url("/itself"), "playlist", "leads to other lists"),
        (web.url("/other"), "playlist", ""),
        (web.url("/crawl"), "playlist", "no answer in 1 s"),
        (web.url("/cut"), "playlist", ""),
    ] {
        let plan = Plan {
            step: Duration::from_secs(1),
            ..plan(&address, 2, LONG)
        };
        let outcome = played(&plan);
        for (at, why) in failures(&outcome) {
            assert_eq!(at, step, "{address}: {why}");
            assert!(why.contains(words), "{address}: {why:?} and not {words:?}");
        }
        assert!(outcome.players.iter().all(|player| player.seen.is_none()));
    }
}

#[test]
fn segments_that_do_not_come_fail_a_player_after_some_tries() {
    let cases = [
        ("404", "404 Not Found"),
        ("cut", ""),
        ("empty", "0 bytes came"),
        ("crawl", "bytes in 1 s"),
        ("elsewhere", "more than 5 times"),
        ("list", "all have to have as many"),
    ];
    // Each waits for seconds.
    std::thread::scope(|scope| {
        for (what, words) in cases {
            scope.spawn(move || fails(what, words));
        }
    });
}

/// The third segment, or the list of the second quality, is not as it should be.
fn fails(what: &'static str, words: &str) {
    let web = Web::new(move |path, _| match (of(path), what) {
        (Some((_, 2)), "404") => Answer::Status("404 Not Found"),
        (Some((_, 2)), "cut") => Answer::Cut(vec![7; 50_000], 20_000),
        (Some((_, 2)), "empty") => Answer::File(Vec::new()),
        (Some((_, 2)), "crawl") => Answer::Slow(vec![7; 50_000], 1),
        (Some((_, 2)), "elsewhere") => Answer::Moved(path.to_owned()),
        (None, "list") if path == "/800/list.m3u8" => Answer::File(list(5)),
        _ => film(path, 40),
    });
    let plan = Plan {
        step: Duration::from_secs(1),
        ..plan(&web.url("/master.m3u8"), 1, LONG)
    };
    let outcome = played(&plan);
    let [(step, why)] = failures(&outcome)[..] else {
        panic!("{what}");
    };
    let expected = if what == "list" {
        "playlist"
    } else {
        "segment"
    };
    assert_eq!(step, expected, "{what}: {why}");
    assert!(why.contains(words), "{what}: {why}");
    let seen = outcome.players[0]
        .seen
        .as_ref()
        .expect("what it saw before");
    if what != "list" {
        assert_eq!(
            (seen.summary.fetched, seen.summary.failed),
            (2, 4),
            "{what}"
        );
    }
    assert!(!outcome.players[0].is_top());
}

#[test]
fn a_server_that_dies_in_mid_segment_and_comes_back_is_gone_on_with() {
    let web = Web::new(|path, before| match of(path) {
        Some((_, 3)) if before == 0 => Answer::Cut(vec![7; 12_500], 6_000),
        _ => film(path, 8),
    });
    let outcome = played(&plan(&web.url("/master.m3u8"), 1, LONG));
    assert_eq!(outcome.players[0].failure, None);
    let seen = outcome.players[0].seen.as_ref().expect("seen");
    assert!(
        seen.summary.failed >= 1 && seen.summary.wasted_bits > 0.0,
        "{seen:?}"
    );
    assert_eq!(
        (seen.summary.fetched, seen.connections),
        (8, 1 + seen.summary.failed)
    );
}

#[test]
fn a_connection_that_ended_between_two_answers_is_no_failure() {
    let web = Web::new(|path, _| match film(path, 4) {
        Answer::File(bytes) => Answer::Last(bytes),
        other => other,
    });
    let outcome = played(&plan(&web.url("/master.m3u8"), 1, LONG));
    assert_eq!(outcome.players[0].failure, None);
    let seen = outcome.players[0].seen.as_ref().expect("seen");
    assert_eq!((seen.summary.fetched, seen.summary.failed), (4, 0));
    // Four lists and four segments.
    assert_eq!((seen.connections, web.asked().len()), (8, 8));
}

#[test]
fn a_crowd_on_two_threads_is_told_of() {
    let web = Web::new(|path, _| film(path, 4));
    let plan = Plan {
        threads: 2,
        viewers: 60,
        keeps_log: false,
        ..plan(&web.url("/master.m3u8"), 60, LONG)
    };
    let told = std::sync::Mutex::new([(0, 0, 0); 2]);
    let outcome = play(&plan, &|thread, at| {
        told.lock().expect("told")[thread] = (at.came, at.done, at.packets);
    });
    let outcome = outcome.expect("sockets");
    assert!(
        outcome
            .players
            .iter()
            .all(|player| player.failure.is_none())
    );
    assert!(
        outcome
            .players
            .iter()
            .all(|player| player.seen.as_ref().is_some_and(|seen| seen.log.is_none()))
    );
    assert_eq!(*told.lock().expect("told"), [(30, 30, 120); 2]);
}

/// A film of 4 s in two qualities, cut by ffmpeg; `None`, and the reason in the log, where it cannot be.
fn cut(test: &str, folder: &Path, format: &[&str]) -> Option<()> {
    let args = [
        "-v",
        "error",
        "-f",
        "lavfi",
        "-i",
        "testsrc2=size=160x90:rate=25",
        "-f",
        "lavfi",
        "-i",
        "sine=frequency=440:sample_rate=48000",
        "-t",
        "4",
        "-map",
        "0:v",
        "-map",
        "0:v",
        "-map",
        "1:a",
        "-c:v",
        "libx264",
        "-preset",
        "ultrafast",
        "-g",
        "25",
        "-keyint_min",
        "25",
        "-sc_threshold",
        "0",
        "-b:v:0",
        "60k",
        "-b:v:1",
        "300k",
        "-s:v:0",
        "80x44",
        "-c:a",
        "aac",
    ];
    let made = Command::new("ffmpeg")
        .args(args)
        .args(format)
        .current_dir(folder)
        .status();
    if !made.is_ok_and(|status| status.success()) {
        skip(test, "ffmpeg has no libx264");
        return None;
    }
    Some(())
}

#[test]
fn films_that_ffmpeg_cuts_are_played_to_their_end() {
    let test = "films_that_ffmpeg_cuts_are_played_to_their_end";
    if !has("ffmpeg", "-version") {
        return skip(test, "there is no ffmpeg");
    }
    let hls = [
        "-f",
        "hls",
        "-hls_time",
        "1",
        "-hls_playlist_type",
        "vod",
        "-master_pl_name",
        "all.m3u8",
        "-var_stream_map",
        "v:0,agroup:a v:1,agroup:a a:0,agroup:a",
    ];
    let dash = [
        "-f",
        "dash",
        "-seg_duration",
        "1",
        "-adaptation_sets",
        "id=0,streams=v id=1,streams=a",
    ];
    let kinds: [(&str, &[&str], &[&str], &str); 4] = [
        ("MPEG-TS", &hls, &["%v.m3u8"], "all.m3u8"),
        (
            "fMP4",
            &hls,
            &["-hls_segment_type", "fmp4", "%v.m3u8"],
            "all.m3u8",
        ),
        (
            "one file",
            &hls,
            &[
                "-hls_segment_type",
                "fmp4",
                "-hls_flags",
                "single_file",
                "%v.m3u8",
            ],
            "all.m3u8",
        ),
        ("DASH", &dash, &["-use_timeline", "1", "all.mpd"], "all.mpd"),
    ];
    for (what, format, more, name) in kinds {
        let folder = tempfile::tempdir().expect("a folder");
        let words = [format, more].concat();
        if cut(test, folder.path(), &words).is_none() {
            return;
        }
        let root = folder.path().to_owned();
        let web = Web::new(move |path, _| match std::fs::read(root.join(&path[1..])) {
            Ok(bytes) => Answer::File(bytes),
            Err(_) => Answer::Status("404 Not Found"),
        });
        let outcome = played(&plan(&web.url(&format!("/{name}")), 2, LONG));
        let film = outcome.film.as_ref();
        let film = film.unwrap_or_else(|| panic!("{what}: {:?}", outcome.players));
        assert_eq!(
            (film.qualities.len(), film.segments),
            (2, 4),
            "{what}: {film:?}"
        );
        assert!(film.sound.is_some(), "{what}");
        for player in &outcome.players {
            assert_eq!(player.failure, None, "{what}");
            let seen = player.seen.as_ref().expect("seen");
            assert_eq!(seen.summary.fetched, 4, "{what}: {seen:?}");
            assert!(
                (seen.summary.played_ms - 4_000.0).abs() < 100.0,
                "{what}: {seen:?}"
            );
            let log = seen.log.as_ref().expect("a log");
            assert!(
                log.segments
                    .iter()
                    .all(|of| of.bytes > 0 && of.sound_bytes > 0),
                "{what}"
            );
        }
    }
}
