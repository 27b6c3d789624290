//! What a server is allotted, what its viewers report, and which way its clips go.

use std::io::Write as _;

use bonsai_stream::serve::{Engine, Pipelines, WhenBehind};

use crate::serve::{TCP, is_bye, limited, set_up, status};
use crate::support::{Served, Viewer, clip, plan, session};

#[test]
fn what_is_allotted_is_kept_to_by_all_alike() {
    const TEST: &str = "what_is_allotted_is_kept_to_by_all_alike";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = clip(TEST, folder.path()) else {
        return;
    };
    // Pictures and sound of four seconds.
    let rate = std::fs::metadata(path).expect("a clip").len() / 4;
    for engine in [Engine::Classic, Engine::Fast] {
        let plan = plan(folder.path(), engine);
        let allotted = plan.allotted.clone();
        allotted.set(Some(rate * 4 * 2 / 3));
        let served = Served::new(plan);
        let url = served.url("clip.mp4");
        let mut viewers: Vec<Viewer> = (0..4).map(|_| Viewer::new(served.at)).collect();
        for viewer in &mut viewers {
            for track in ["track1", "track2"] {
                let channels = if track == "track1" { "0-1" } else { "2-3" };
                let headers = format!(
                    "Transport: RTP/AVP/TCP;unicast;interleaved={channels}\r\n{}",
                    viewer.session
                );
                let answer = viewer.ask(&format!("SETUP {url}/{track}"), &headers);
                assert_eq!(status(&answer), 200, "{answer}");
                viewer.session = session(&answer);
            }
        }
        for viewer in &mut viewers {
            let name = viewer.session.clone();
            assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &name)), 200);
        }
        served.wait_for("Level {");
        let sent: Vec<usize> = viewers
            .iter_mut()
            .map(|viewer| {
                while !viewer.packets.iter().any(is_bye) {
                    assert_eq!(viewer.next(), None);
                }
                viewer
                    .packets
                    .iter()
                    .map(|(_, bytes)| bytes.len() + 4)
                    .sum()
            })
            .collect();
        let (least, most) = (sent.iter().min(), sent.iter().max());
        let (least, most) = (least.expect("four"), most.expect("four"));
        assert!(*most < least * 4 / 3, "{engine:?}: {sent:?}");
        let sum: usize = sent.iter().sum();
        let sum = u64::try_from(sum).expect("small");
        // Of the clip's mean, which a part of it may be above; until all play, nothing is left out.
        assert!(
            sum < rate * 16 * 4 / 5,
            "{engine:?}: {sum} of {}",
            rate * 16
        );
        assert!(sum > rate * 16 / 3, "{engine:?}: {sum} of {}", rate * 16);
        let summary = served.end();
        assert!(summary.dropped > 0, "{summary:?}");
    }
}

#[test]
fn who_does_not_fit_in_what_is_allotted_is_not_let_in() {
    const TEST: &str = "who_does_not_fit_in_what_is_allotted_is_not_let_in";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = clip(TEST, folder.path()) else {
        return;
    };
    let rate = std::fs::metadata(path).expect("a clip").len() / 4;
    let mut plan = plan(folder.path(), Engine::Classic);
    plan.when_behind = WhenBehind::Refuse;
    let allotted = plan.allotted.clone();
    allotted.set(Some(rate * 5 / 2));
    let served = Served::new(plan);
    let line = format!("SETUP {}/track1", served.url("clip.mp4"));
    let mut viewers: Vec<Viewer> = (0..3).map(|_| Viewer::new(served.at)).collect();
    let statuses: Vec<u16> = viewers
        .iter_mut()
        .map(|viewer| status(&viewer.ask(&line, TCP)))
        .collect();
    assert_eq!(statuses, [200, 200, 453]);
    served.wait_for("that the server is allotted");
    // There is more, or one goes.
    allotted.set(Some(rate * 4));
    assert_eq!(status(&viewers[2].ask(&line, TCP)), 200);
    allotted.set(None);
    assert_eq!(status(&Viewer::new(served.at).ask(&line, TCP)), 200);
}

#[test]
fn what_viewers_report_is_told() {
    const TEST: &str = "what_viewers_report_is_told";
    let folder = tempfile::tempdir().expect("a folder");
    if clip(TEST, folder.path()).is_none() {
        return;
    }
    let served = Served::new(plan(folder.path(), Engine::Classic));
    let url = served.url("clip.mp4");
    let mut viewer = Viewer::new(served.at);
    let answer = viewer.ask(&format!("SETUP {url}/track1"), TCP);
    let ssrc = answer.split("ssrc=").nth(1).expect("its sender");
    let ssrc = u32::from_str_radix(&ssrc[..8], 16).expect("a number");
    let name = session(&answer);
    assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &name)), 200);
    // RFC 3550, 6.4.2: half was lost, 90 ticks of 90,000 a second of jitter.
    let report = |ssrc: u32| {
        let words = [0x81c9_0007, 7, ssrc, 0x8000_0005, 10, 90, 0, 0];
        let words: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
        [&b"$\x01\0\x20"[..], &words].concat()
    };
    // One of another stream is not believed.
    viewer.stream.write_all(&report(!ssrc)).expect("sent");
    viewer.stream.write_all(&report(ssrc)).expect("sent");
    let told = served.wait_for("reports: 1");
    assert!(told.contains("loss: Some(0.5"), "{told}");
    assert!(told.contains("jitter_ms: Some(1.0)"), "{told}");
}

#[test]
fn a_clip_goes_the_way_that_a_file_names_for_it() {
    const TEST: &str = "a_clip_goes_the_way_that_a_file_names_for_it";
    const WAYS: &str = "[[pipeline]]\nclips = [\"cl*\"]\nsource = \"sample\"\npacketiser = 300\n\
                        handlers = [\"keys\"]\nsink = [\"tcp\"]\n";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = clip(TEST, folder.path()) else {
        return;
    };
    std::fs::copy(path, folder.path().join("other.mp4")).expect("copied");
    let served = limited(folder.path(), |plan| {
        let read = Pipelines::read(WAYS, Engine::Classic, &plan.parts);
        plan.pipelines = read.expect("right");
    });
    let datagrams = "Transport: RTP/AVP;unicast;client_port=50000-50001\r\n";
    for (name, expected) in [("clip.mp4", 461), ("other.mp4", 200)] {
        let line = format!("SETUP {}/track1", served.url(name));
        let answer = Viewer::new(served.at).ask(&line, datagrams);
        assert_eq!(status(&answer), expected, "{answer}");
    }
    let url = served.url("clip.mp4");
    let mut viewer = Viewer::new(served.at);
    let name = set_up(&mut viewer, &url);
    assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &name)), 200);
    while !viewer.packets.iter().any(is_bye) {
        assert_eq!(viewer.next(), None);
    }
    let packets = viewer.packets.iter().filter(|(channel, _)| *channel == 0);
    let most = packets.map(|(_, bytes)| bytes.len()).max();
    assert_eq!(most, Some(12 + 300));
    assert_eq!(served.end().samples, 4);
}
