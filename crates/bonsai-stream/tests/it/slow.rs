//! A viewer by TCP that pauses, and one that takes less than is sent.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bonsai_stream::serve::Engine;
use nix::sys::socket::{setsockopt, sockopt::RcvBuf};

use crate::serve::{is_bye, set_up, status};
use crate::support::{Served, Viewer, plan, skip};

const SECONDS: u64 = 6;

/// A film of about 2 MB/s with a key picture each 2 s, in which each other picture is predicted from the one before.
fn large(test: &str, folder: &Path) -> bool {
    let source = format!("testsrc2=size=640x360:rate=25:duration={SECONDS},noise=alls=60:allf=t");
    let made = Command::new("ffmpeg")
        .args(["-v", "error", "-f", "lavfi", "-i", &source])
        .args([
            "-c:v",
            "libx264",
            "-preset",
            "ultrafast",
            "-pix_fmt",
            "yuv420p",
        ])
        .args([
            "-g", "50", "-bf", "0", "-b:v", "16M", "-maxrate", "16M", "-bufsize", "8M",
        ])
        .arg(folder.join("large.mp4"))
        .status();
    let is_made = made.is_ok_and(|status| status.success());
    if !is_made {
        skip(test, "ffmpeg is not installed, or has no libx264");
    }
    is_made
}

/// A viewer with a small receive buffer that plays.
fn plays(served: &Served) -> (Viewer, String) {
    let mut viewer = Viewer::new(served.at);
    setsockopt(&viewer.stream, RcvBuf, &(32 << 10)).expect("set");
    let url = served.url("large.mp4");
    let session = set_up(&mut viewer, &url);
    assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &session)), 200);
    (viewer, session)
}

/// Pictures of what came up to the end.
fn pictures(viewer: &mut Viewer) -> usize {
    while !viewer.packets.iter().any(is_bye) {
        viewer.next();
    }
    let frames = viewer.packets.iter().filter(|(channel, _)| *channel == 0);
    let times: BTreeSet<&[u8]> = frames.map(|(_, bytes)| &bytes[4..8]).collect();
    times.len()
}

#[test]
fn a_viewer_who_pauses_misses_nothing_and_one_who_is_slow_is_told_of() {
    let test = "a_viewer_who_pauses_misses_nothing_and_one_who_is_slow_is_told_of";
    let folder = tempfile::tempdir().expect("a folder");
    if !large(test, folder.path()) {
        return;
    }
    let all = usize::try_from(SECONDS * 25).expect("few");
    for engine in [Engine::Classic, Engine::Fast] {
        let served = Served::new(plan(folder.path(), engine));
        let (mut viewer, _) = plays(&served);
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(pictures(&mut viewer), all, "{engine:?}");
        assert_eq!(served.end().dropped, 0, "{engine:?}");

        let served = Served::new(plan(folder.path(), engine));
        let (mut viewer, _) = plays(&served);
        let (mut other, session) = plays(&served);
        for _ in 0..2 {
            served.wait_for("Slow");
        }
        // A request is heard although nothing is taken.
        other.write(&format!("TEARDOWN {}", served.url("large.mp4")), &session);
        served.wait_for("Ended");
        let came = pictures(&mut viewer);
        // The pictures that waited then, and those behind the next key picture.
        assert!(
            (all / 2..all).contains(&came),
            "{engine:?}: {came} of {all}"
        );
        let summary = served.end();
        assert!(
            summary.dropped >= (all - came) as u64,
            "{engine:?}: {summary:?}"
        );
    }
}
