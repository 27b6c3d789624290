//! What strangers, files and viewers do to a server.

use std::io::Write as _;
use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use bonsai_stream::serve::{Engine, Plan, WhenBehind};

use crate::support::{Served, Viewer, clip, plan, session};

pub(crate) const TCP: &str = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n";

pub(crate) fn status(answer: &str) -> u16 {
    let words = answer.split(' ').nth(1);
    words.and_then(|word| word.parse().ok()).expect("a status")
}

/// True if a packet is a report with a farewell.
pub(crate) fn is_bye((channel, bytes): &(u8, Vec<u8>)) -> bool {
    *channel == 1 && has_bye(bytes)
}

/// True where one of the packets of a report is a farewell (RFC 3550, 6.4 and 6.6). Its bytes alone do not tell: the
/// random ones of one report in 6,000 have the same two somewhere.
pub(crate) fn has_bye(report: &[u8]) -> bool {
    let mut rest = report;
    while let [_, kind, high, low, ..] = rest {
        if *kind == 203 {
            return true;
        }
        let words = usize::from(u16::from_be_bytes([*high, *low]));
        rest = rest.get(4 + words * 4..).unwrap_or_default();
    }
    false
}

#[test]
fn a_report_without_a_farewell_may_have_its_bytes() {
    let report = [&[0x80, 200, 0, 2][..], &[0x81, 203].repeat(4)].concat();
    assert!(!has_bye(&report));
    assert!(has_bye(
        &[&report[..], &[0x81, 203, 0, 1, 7, 7, 7, 7]].concat()
    ));
}

/// Sets a clip's pictures up in the connection; its session.
pub(crate) fn set_up(viewer: &mut Viewer, url: &str) -> String {
    let answer = viewer.ask(&format!("SETUP {url}/track1"), TCP);
    assert_eq!(status(&answer), 200, "{answer}");
    session(&answer)
}

#[test]
fn nothing_outside_the_folder_is_sent() {
    let outer = tempfile::tempdir().expect("a folder");
    let root = outer.path().join("root");
    std::fs::create_dir_all(root.join("inner")).expect("made");
    std::fs::write(outer.path().join("secret.mp4"), "secret").expect("written");
    std::fs::write(root.join("text.mp4"), "no film at all, but some text").expect("written");
    std::os::unix::fs::symlink("../secret.mp4", root.join("link.mp4")).expect("linked");
    std::os::unix::fs::symlink("/etc", root.join("etc")).expect("linked");
    std::os::unix::fs::symlink("text.mp4", root.join("near.mp4")).expect("linked");
    nix::unistd::mkfifo(&root.join("queue.mp4"), nix::sys::stat::Mode::S_IRWXU).expect("made");
    let served = Served::new(plan(&root, Engine::Classic));
    let mut viewer = Viewer::new(served.at);
    for (path, expected, why) in [
        ("none.mp4", 404, "no such file"),
        ("inner/none.mp4", 404, "no such file"),
        ("text.mp4/more.mp4", 404, "no such file"),
        ("%2e%2e/secret.mp4", 404, "no such file"),
        ("a%2f..%2f..%2fsecret.mp4", 400, "leads elsewhere"),
        ("link.mp4", 403, "leads out"),
        ("etc/passwd", 403, "leads out"),
        ("inner", 403, "no file"),
        ("queue.mp4", 403, "no file"),
        ("text.mp4", 415, "no MP4"),
        ("near.mp4", 415, "no MP4"),
    ] {
        let answer = viewer.ask(&format!("DESCRIBE {}", served.url(path)), "");
        assert_eq!(status(&answer), expected, "{path}: {answer}");
        served.wait_for(why);
    }
    assert_eq!(served.end().refused, 11);
}

#[test]
fn a_stream_is_played_paused_moved_and_ended_in_a_connection() {
    const TEST: &str = "a_stream_is_played_paused_moved_and_ended_in_a_connection";
    let folder = tempfile::tempdir().expect("a folder");
    if clip(TEST, folder.path()).is_none() {
        return;
    }
    for engine in [Engine::Classic, Engine::Fast] {
        let served = Served::new(plan(folder.path(), engine));
        let url = served.url("clip.mp4");
        let mut viewer = Viewer::new(served.at);
        let name = set_up(&mut viewer, &url);
        let answer = viewer.ask(
            &format!("PLAY {url}"),
            &format!("{name}Range: npt=2.5-\r\n"),
        );
        // A picture that decoding can begin with is there each second.
        assert!(answer.contains("Range: npt=2.000-"), "{answer}");
        while viewer.packets.len() < 20 {
            assert_eq!(viewer.next(), None);
        }
        let (_, first) = viewer
            .packets
            .iter()
            .find(|(channel, _)| *channel == 0)
            .expect("a packet");
        let number = u16::from_be_bytes([first[2], first[3]]);
        let timestamp = u32::from_be_bytes([first[4], first[5], first[6], first[7]]);
        assert!(
            answer.contains(&format!(";seq={number};rtptime={timestamp}\r\n")),
            "{answer}"
        );
        // Parameter sets go before it.
        assert_eq!(first[12] & 0x1f, 24);
        assert!(
            viewer
                .packets
                .iter()
                .any(|(channel, bytes)| *channel == 1 && bytes[1] == 200)
        );
        assert_eq!(status(&viewer.ask(&format!("PAUSE {url}"), &name)), 200);
        let before = viewer.packets.len();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(
            status(&viewer.ask(&format!("GET_PARAMETER {url}"), &name)),
            200
        );
        assert_eq!(
            viewer.packets.len(),
            before,
            "nothing comes of what is paused"
        );
        assert_eq!(
            status(&viewer.ask(
                &format!("PLAY {url}"),
                &format!("{name}Range: npt=3.5-\r\n")
            )),
            200
        );
        // To the farewell.
        while !viewer.packets.iter().any(is_bye) {
            assert_eq!(viewer.next(), None);
        }
        let numbers: Vec<u16> = viewer
            .packets
            .iter()
            .filter(|(channel, _)| *channel == 0)
            .map(|(_, bytes)| u16::from_be_bytes([bytes[2], bytes[3]]))
            .collect();
        let follows = numbers
            .windows(2)
            .all(|two| two[1] == two[0].wrapping_add(1));
        assert!(follows, "numbers go on over it all");
        assert_eq!(status(&viewer.ask(&format!("TEARDOWN {url}"), &name)), 200);
        served.wait_for("its viewer said so");
        assert_eq!(served.end().sessions, 1);
    }
}

#[test]
fn a_file_that_changes_ends_its_streams_and_no_other() {
    const TEST: &str = "a_file_that_changes_ends_its_streams_and_no_other";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = clip(TEST, folder.path()) else {
        return;
    };
    let other = folder.path().join("other.mp4");
    std::fs::copy(&path, &other).expect("copied");
    let served = Served::new(plan(folder.path(), Engine::Classic));
    let [mut one, mut two] = ["clip.mp4", "other.mp4"].map(|name| {
        let mut viewer = Viewer::new(served.at);
        let url = served.url(name);
        let session = set_up(&mut viewer, &url);
        assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &session)), 200);
        viewer
    });
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(4096))
        .expect("cut off");
    let ended = served.wait_for("Ended");
    assert!(
        ended.contains("clip.mp4") && ended.contains("become shorter"),
        "{ended}"
    );
    while !one.packets.iter().any(is_bye) {
        assert_eq!(one.next(), None);
    }
    while !two.packets.iter().any(is_bye) {
        assert_eq!(two.next(), None);
    }
    assert!(two.packets.len() > one.packets.len());
}

pub(crate) fn limited(root: &Path, change: impl Fn(&mut Plan)) -> Served {
    let mut plan = plan(root, Engine::Classic);
    change(&mut plan);
    Served::new(plan)
}

#[test]
fn sessions_are_limited_in_all_and_for_an_address() {
    const TEST: &str = "sessions_are_limited_in_all_and_for_an_address";
    let folder = tempfile::tempdir().expect("a folder");
    if clip(TEST, folder.path()).is_none() {
        return;
    }
    let in_all: fn(&mut Plan) = |plan| plan.limits.sessions = 2;
    let each: fn(&mut Plan) = |plan| plan.limits.per_address = 2;
    for (change, why) in [
        (in_all, "as many as may be"),
        (each, "as many as it may have"),
    ] {
        let served = limited(folder.path(), change);
        let line = format!("SETUP {}/track1", served.url("clip.mp4"));
        let mut viewers: Vec<Viewer> = (0..3).map(|_| Viewer::new(served.at)).collect();
        let answers: Vec<String> = viewers
            .iter_mut()
            .map(|viewer| viewer.ask(&line, TCP))
            .collect();
        let statuses: Vec<u16> = answers.iter().map(|answer| status(answer)).collect();
        assert_eq!(statuses, [200, 200, 453]);
        served.wait_for(why);
        // Whoever goes makes room.
        drop(viewers.remove(0));
        served.wait_for("its connection is gone");
        assert_eq!(status(&viewers[1].ask(&line, TCP)), 200);
    }
}

#[test]
fn half_open_and_slow_connections_are_closed() {
    let folder = tempfile::tempdir().expect("a folder");
    let served = limited(folder.path(), |plan| {
        plan.limits.idle = Duration::from_millis(1500);
        plan.limits.request = Duration::from_millis(300);
        plan.limits.connections = 3;
    });
    let mut silent = Viewer::new(served.at);
    let mut slow = Viewer::new(served.at);
    slow.stream
        .write_all(b"OPTIONS * RTSP/1.0\r\nCS")
        .expect("sent");
    let mut large = Viewer::new(served.at);
    large
        .stream
        .write_all(b"OPTIONS * RTSP/1.0\r\nCSeq: 1\r\nX: ")
        .expect("sent");
    let _ = large.stream.write_all(&vec![b'x'; 64 << 10]);
    served.wait_for("400: it sends a message without an end");
    assert!(large.is_closed());
    served.wait_for("its request takes too long");
    assert!(slow.is_closed());
    served.wait_for("it asks for nothing");
    assert!(silent.is_closed());
    let mut foreign = Viewer::new(served.at);
    foreign
        .stream
        .write_all(b"GET / HTTP/1.1\r\n\r\n")
        .expect("sent");
    assert!(
        foreign
            .next()
            .expect("an answer")
            .starts_with("RTSP/1.0 400 ")
    );
    assert!(foreign.is_closed());
    let _three: Vec<Viewer> = (0..3).map(|_| Viewer::new(served.at)).collect();
    assert!(Viewer::new(served.at).is_closed());
    served.wait_for("connections, as many as may be");
}

#[test]
fn a_viewer_that_vanishes_is_sent_nothing_for_long() {
    const TEST: &str = "a_viewer_that_vanishes_is_sent_nothing_for_long";
    let folder = tempfile::tempdir().expect("a folder");
    if clip(TEST, folder.path()).is_none() {
        return;
    }
    let served = limited(folder.path(), |plan| {
        plan.limits.session = Duration::from_secs(1);
    });
    let url = served.url("clip.mp4");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("set");
    let port = socket.local_addr().expect("its address").port();
    let transport = format!(
        "Transport: RTP/AVP;unicast;client_port={port}-{}\r\n",
        port ^ 1
    );
    let mut viewer = Viewer::new(served.at);
    let answer = viewer.ask(&format!("SETUP {url}/track1"), &transport);
    assert!(answer.contains(";timeout=1\r\n"), "{answer}");
    assert_eq!(
        status(&viewer.ask(&format!("PLAY {url}"), &session(&answer))),
        200
    );
    let mut buffer = [0; 2000];
    let length = socket.recv(&mut buffer).expect("a packet");
    assert_eq!((buffer[0], length > 12), (0x80, true));
    served.wait_for("nothing was heard of its viewer");
    let answer = viewer.ask(&format!("PLAY {url}"), &session(&answer));
    assert_eq!(status(&answer), 454);
}

#[test]
fn a_stream_goes_through_the_handlers_that_are_named() {
    const TEST: &str = "a_stream_goes_through_the_handlers_that_are_named";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(_) = clip(TEST, folder.path()) else {
        return;
    };
    for engine in [Engine::Classic, Engine::Fast] {
        let tee = tempfile::tempdir().expect("a folder");
        let mut plan = plan(folder.path(), engine);
        for handler in ["keys".to_owned(), format!("tee={}", tee.path().display())] {
            plan.parts.append(&handler).expect("known");
        }
        let served = Served::new(plan);
        let url = served.url("clip.mp4");
        let mut viewer = Viewer::new(served.at);
        let name = set_up(&mut viewer, &url);
        assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &name)), 200);
        while !viewer.packets.iter().any(is_bye) {
            assert_eq!(viewer.next(), None);
        }
        let packets: Vec<&Vec<u8>> = viewer
            .packets
            .iter()
            .filter(|(channel, _)| *channel == 0)
            .map(|(_, bytes)| bytes)
            .collect();
        let times: std::collections::BTreeSet<&[u8]> = packets.iter().map(|of| &of[4..8]).collect();
        assert_eq!(
            times.len(),
            4,
            "a picture that decoding can begin with is there each second"
        );
        let summary = served.end();
        assert_eq!((summary.samples, summary.dropped), (4, 96));
        // What was written down is what came.
        let written = std::fs::read(tee.path().join("stream-0.rtpdump")).expect("a file");
        let bytes: usize = packets.iter().map(|of| of.len() + 8).sum();
        let line = written
            .iter()
            .position(|byte| *byte == b'\n')
            .expect("a line")
            + 1;
        assert_eq!(written.len(), line + 16 + bytes);
        assert_eq!(&written[line + 24..][..packets[0].len()], &packets[0][..]);
    }
}

#[test]
fn a_server_that_is_behind_leaves_pictures_out_or_lets_nobody_in() {
    const TEST: &str = "a_server_that_is_behind_leaves_pictures_out_or_lets_nobody_in";
    let folder = tempfile::tempdir().expect("a folder");
    if clip(TEST, folder.path()).is_none() {
        return;
    }
    for when_behind in [WhenBehind::DropPictures, WhenBehind::Refuse] {
        let served = limited(folder.path(), |plan| {
            // Nobody sends earlier than that.
            plan.late = Duration::ZERO;
            plan.when_behind = when_behind;
        });
        let url = served.url("clip.mp4");
        let mut viewer = Viewer::new(served.at);
        let name = set_up(&mut viewer, &url);
        assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &name)), 200);
        if when_behind == WhenBehind::DropPictures {
            served.wait_for("Level { quality: 0, pictures: Needed }");
            served.wait_for("Level { quality: 0, pictures: Keys }");
        }
        while viewer.packets.len() < 30 {
            assert_eq!(viewer.next(), None);
        }
        std::thread::sleep(Duration::from_millis(700));
        let answer = Viewer::new(served.at).ask(&format!("SETUP {url}/track1"), TCP);
        assert_eq!(status(&answer), 453, "{answer}");
        served.wait_for("the server is behind");
        while !viewer.packets.iter().any(is_bye) {
            assert_eq!(viewer.next(), None);
        }
        let dropped = served.end().dropped;
        assert_eq!(
            dropped > 0,
            when_behind == WhenBehind::DropPictures,
            "{dropped}"
        );
    }
}

#[test]
fn a_viewer_who_takes_nothing_holds_nobody_up_and_is_closed() {
    const TEST: &str = "a_viewer_who_takes_nothing_holds_nobody_up_and_is_closed";
    let folder = tempfile::tempdir().expect("a folder");
    if clip(TEST, folder.path()).is_none() {
        return;
    }
    for engine in [Engine::Classic, Engine::Fast] {
        let mut plan = plan(folder.path(), engine);
        plan.limits.stall = Duration::from_secs(1);
        let served = Served::new(plan);
        let url = served.url("clip.mp4");
        let mut slow = Viewer::new(served.at);
        // More than a connection takes by itself.
        for _ in 0..12 {
            let name = set_up(&mut slow, &url);
            slow.write(&format!("PLAY {url}"), &name);
        }
        let mut quick = Viewer::new(served.at);
        let name = set_up(&mut quick, &url);
        assert_eq!(status(&quick.ask(&format!("PLAY {url}"), &name)), 200);
        while !quick.packets.iter().any(is_bye) {
            assert_eq!(quick.next(), None);
        }
        let frames = quick.packets.iter().filter(|(channel, _)| *channel == 0);
        let times: std::collections::BTreeSet<&[u8]> =
            frames.map(|(_, bytes)| &bytes[4..8]).collect();
        // Steps between them, ticks of 90 kHz: 3600, or less where pictures are out of order.
        let at = |of: &&[u8]| u32::from_be_bytes([of[0], of[1], of[2], of[3]]);
        let ticks: Vec<u32> = times.iter().map(at).collect();
        let steps: Vec<u32> = ticks.windows(2).map(|of| of[1] - of[0]).collect();
        let heard = served.heard();
        assert_eq!(
            times.len(),
            100,
            "{engine:?}: {steps:?} from {} on: {heard:?}",
            ticks[0]
        );
        served.wait_for("it takes nothing of what is sent");
        assert_eq!(served.end().most_sessions, 13);
    }
}

#[test]
fn a_datagram_to_keep_a_way_open_says_that_somebody_is_there() {
    const TEST: &str = "a_datagram_to_keep_a_way_open_says_that_somebody_is_there";
    let folder = tempfile::tempdir().expect("a folder");
    if clip(TEST, folder.path()).is_none() {
        return;
    }
    let served = limited(folder.path(), |plan| {
        plan.limits.session = Duration::from_secs(2);
    });
    let url = served.url("clip.mp4");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket
        .set_read_timeout(Some(Duration::from_millis(100)))
        .expect("set");
    let port = socket.local_addr().expect("its address").port();
    let transport = format!(
        "Transport: RTP/AVP;unicast;client_port={port}-{}\r\n",
        port ^ 1
    );
    let mut viewer = Viewer::new(served.at);
    let answer = viewer.ask(&format!("SETUP {url}/track1"), &transport);
    let server = answer.split("server_port=").nth(1).expect("its ports");
    let server: u16 = server
        .split('-')
        .next()
        .and_then(|port| port.parse().ok())
        .expect("a port");
    let name = session(&answer);
    assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &name)), 200);
    let mut times = std::collections::BTreeSet::new();
    let mut buffer = [0; 2000];
    for _ in 0..10_000 {
        if times.len() == 100 {
            break;
        }
        socket
            .send_to(b"\0\0\0\0", ("127.0.0.1", server))
            .expect("sent");
        if let Ok(length) = socket.recv(&mut buffer) {
            assert!(length > 12);
            times.insert(buffer[4..8].to_vec());
        }
    }
    assert_eq!(times.len(), 100, "four seconds of it");
    assert_eq!(status(&viewer.ask(&format!("TEARDOWN {url}"), &name)), 200);
    served.wait_for("its viewer said so");
}

#[test]
fn sessions_that_never_play_are_bounded_and_end() {
    const TEST: &str = "sessions_that_never_play_are_bounded_and_end";
    const MOST: usize = 2000;
    let folder = tempfile::tempdir().expect("a folder");
    if clip(TEST, folder.path()).is_none() {
        return;
    }
    let served = limited(folder.path(), |plan| {
        plan.limits.session = Duration::from_secs(10);
        plan.limits.per_address = u32::try_from(MOST).expect("small");
    });
    let line = format!("SETUP {}/track1", served.url("clip.mp4"));
    let mut viewer = Viewer::new(served.at);
    let mut granted = Vec::new();
    for turn in 0..MOST + 50 {
        let answer = viewer.ask(&line, TCP);
        match status(&answer) {
            200 => granted.push(session(&answer)),
            other => assert_eq!((other, turn >= MOST), (453, true), "{answer}"),
        }
    }
    assert_eq!(granted.len(), MOST);
    // They end by themselves, although their connection goes on.
    for _ in 0..MOST {
        served.wait_for("nothing was heard of its viewer");
    }
    assert_eq!(status(&viewer.ask(&line, TCP)), 200);
    let summary = served.end();
    assert_eq!((summary.sessions, summary.refused), (2001, 50));
}

#[test]
fn a_clip_that_was_not_written_to_its_end_is_no_clip() {
    const TEST: &str = "a_clip_that_was_not_written_to_its_end_is_no_clip";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = clip(TEST, folder.path()) else {
        return;
    };
    let bytes = std::fs::read(path).expect("a clip");
    let served = Served::new(plan(folder.path(), Engine::Classic));
    let mut viewer = Viewer::new(served.at);
    for part in [1, bytes.len() / 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(folder.path().join("part.mp4"), &bytes[..part]).expect("written");
        let answer = viewer.ask(&format!("DESCRIBE {}", served.url("part.mp4")), "");
        assert_eq!(status(&answer), 415, "{part}: {answer}");
    }
    std::fs::write(folder.path().join("part.mp4"), &bytes).expect("written");
    let answer = viewer.ask(&format!("DESCRIBE {}", served.url("part.mp4")), "");
    assert_eq!(status(&answer), 200, "{answer}");
}

#[test]
fn a_file_that_is_replaced_is_seen_to_its_end_by_whoever_sees_it() {
    const TEST: &str = "a_file_that_is_replaced_is_seen_to_its_end_by_whoever_sees_it";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = clip(TEST, folder.path()) else {
        return;
    };
    let served = Served::new(plan(folder.path(), Engine::Fast));
    let url = served.url("clip.mp4");
    let mut viewer = Viewer::new(served.at);
    let name = set_up(&mut viewer, &url);
    assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &name)), 200);
    let other = folder.path().join("other.mp4");
    std::fs::write(&other, "no film at all, but some text").expect("written");
    std::fs::rename(&other, &path).expect("replaced");
    let answer = Viewer::new(served.at).ask(&format!("DESCRIBE {url}"), "");
    assert_eq!(status(&answer), 415, "{answer}");
    while !viewer.packets.iter().any(is_bye) {
        assert_eq!(viewer.next(), None);
    }
    assert_eq!(served.end().samples, 100);
}

#[test]
fn each_session_has_a_name_of_its_own_in_reports() {
    const TEST: &str = "each_session_has_a_name_of_its_own_in_reports";
    let folder = tempfile::tempdir().expect("a folder");
    if clip(TEST, folder.path()).is_none() {
        return;
    }
    let served = limited(folder.path(), |_| {});
    let url = served.url("clip.mp4");
    let mut names = Vec::new();
    for _ in 0..2 {
        let mut viewer = Viewer::new(served.at);
        let answer = viewer.ask(&format!("SETUP {url}/track1"), TCP);
        viewer.ask(&format!("PLAY {url}"), &session(&answer));
        // A sender's report, with its source's description: 202, a list with a CNAME of 24 letters.
        let report = loop {
            viewer.next();
            let of = viewer.packets.iter().find(|(channel, _)| channel % 2 == 1);
            if let Some((_, report)) = of {
                break report.clone();
            }
        };
        let at = report.windows(2).position(|two| *two == [1, 24]);
        let at = at.expect("a name of 24 letters") + 2;
        names.push(report[at..at + 24].to_vec());
    }
    assert_ne!(names[0], names[1]);
}
