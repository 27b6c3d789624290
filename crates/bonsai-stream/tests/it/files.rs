//! The files of clips of several qualities: which they are, and who waits for them.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bonsai_stream::serve::{Engine, Lower, Plan};

use crate::qualities::{QUALITIES, film, film_of, layered, pictures, read_until, reports};
use crate::serve::{is_bye, set_up, status};
use crate::support::{Served, Viewer, plan, session};

#[test]
fn files_of_all_qualities_are_open_once_and_watched_for_changes() {
    const TEST: &str = "files_of_all_qualities_are_open_once_and_watched_for_changes";
    let folder = tempfile::tempdir().expect("a folder");
    // A file is looked at with each report, up to 7.5 s after the one before: three of them, and time to read them.
    if film_of(TEST, folder.path(), 60).is_none() {
        return;
    }
    let served = Served::new(layered(folder.path(), Engine::Classic));
    let url = served.url("clip.mp4");
    let mut viewers: Vec<Viewer> = (0..5).map(|_| Viewer::new(served.at)).collect();
    for viewer in &mut viewers {
        let name = set_up(viewer, &url);
        assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &name)), 200);
    }
    let open = || {
        let all = std::fs::read_dir("/proc/self/fd").expect("its files");
        let open = all
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok());
        open.filter(|path| path.starts_with(folder.path())).count()
    };
    // The folder itself, too; what was opened for the last request is closed a second later.
    let begin = Instant::now();
    while open() != 1 + QUALITIES.len() {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "{} are open",
            open()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let write = |name: &str| {
        let file = std::fs::File::options()
            .append(true)
            .open(folder.path().join(name));
        file.expect("there").write_all(b"more").expect("written");
    };
    // One that nobody is sent anything of: what comes behind the next report is seen, too.
    write("clip-2.mp4");
    for viewer in &mut viewers {
        read_until(viewer, |viewer| reports(viewer) == 2);
        let before = pictures(viewer).len();
        read_until(viewer, |viewer| pictures(viewer).len() > before + 10);
    }
    write("clip.mp4");
    for _ in 0..viewers.len() {
        let ended = served.wait_for("Ended");
        assert!(ended.contains("its file has changed"), "{ended}");
    }
    for viewer in &mut viewers {
        while !viewer.packets.iter().any(is_bye) {
            assert_eq!(viewer.next(), None);
        }
    }
}

#[test]
fn a_file_that_is_no_lower_quality_is_told_once_and_its_clip_is_served() {
    const TEST: &str = "a_file_that_is_no_lower_quality_is_told_once_and_its_clip_is_served";
    let folder = tempfile::tempdir().expect("a folder");
    if film(TEST, folder.path()).is_none() {
        return;
    }
    let at = |name: &str| folder.path().join(name);
    std::fs::rename(at("clip-2.mp4"), at("clip-3.mp4")).expect("named");
    std::fs::write(at("clip-1.mp4"), "no film at all, but some text").expect("written");
    // One that is larger than the clip, one that is shorter, and one of sound alone.
    let clip = at("clip.mp4").to_string_lossy().into_owned();
    for (name, args) in [
        ("clip-2.mp4", &["-t", "8", "-an", "-c", "copy"][..]),
        ("clip-4.mp4", &["-vn", "-c", "copy"]),
        ("clip-5.mp4", &["-an", "-c", "copy"]),
    ] {
        let mut command = Command::new("ffmpeg");
        command
            .args(["-v", "error", "-i", &clip])
            .args(args)
            .arg(at(name));
        assert!(
            command
                .stdin(Stdio::null())
                .status()
                .expect("ffmpeg")
                .success()
        );
    }
    let names = ["{}-1.mp4", "{}-2.mp4", "{}-3.mp4", "{}-4.mp4", "{}-5.mp4"];
    let served = Served::new(Plan {
        lower: Lower::list(&names).expect("right"),
        ..plan(folder.path(), Engine::Classic)
    });
    let url = served.url("clip.mp4");
    for _ in 0..3 {
        let answer = Viewer::new(served.at).ask(&format!("DESCRIBE {url}"), "");
        assert_eq!(status(&answer), 200, "{answer}");
    }
    for why in [
        "file: \"clip-1.mp4\", why: \"it is no MP4",
        "file: \"clip-2.mp4\", why: \"it is 8.",
        "file: \"clip-4.mp4\", why: \"it has no track of pictures",
        "file: \"clip-5.mp4\", why: \"its pictures take",
    ] {
        let told = served.wait_for(why);
        assert!(told.contains("Unfit { clip: \"clip.mp4\""), "{told}");
    }
    let mut viewer = Viewer::new(served.at);
    viewer.ask(&format!("SETUP {url}/track3"), crate::serve::TCP);
    let refused = served.wait_for("Refused");
    assert!(refused.contains("no such track"), "{refused}");
    served.end();
}

#[test]
fn requests_wait_for_their_clip_in_their_order_and_whoever_leaves_is_forgotten() {
    const TEST: &str =
        "requests_wait_for_their_clip_in_their_order_and_whoever_leaves_is_forgotten";
    let folder = tempfile::tempdir().expect("a folder");
    if film(TEST, folder.path()).is_none() {
        return;
    }
    let served = Served::new(layered(folder.path(), Engine::Classic));
    let url = served.url("clip.mp4");
    // Some go before it is there.
    for _ in 0..20 {
        Viewer::new(served.at).write(&format!("DESCRIBE {url}"), "");
    }
    let mut viewers: Vec<Viewer> = (0..20).map(|_| Viewer::new(served.at)).collect();
    for viewer in &mut viewers {
        viewer.write(&format!("DESCRIBE {url}"), "");
        viewer.write("OPTIONS *", "");
        viewer.write(&format!("SETUP {url}/track1"), crate::serve::TCP);
    }
    for viewer in &mut viewers {
        for (number, words) in [
            (1, "sprop-parameter-sets"),
            (2, "Public: "),
            (3, "Session: "),
        ] {
            let answer = viewer.next().expect("an answer");
            assert_eq!(status(&answer), 200);
            let has = |words: &str| answer.contains(words);
            assert!(
                has(&format!("CSeq: {number}\r\n")) && has(words),
                "{answer}"
            );
            if number == 3 {
                let name = session(&answer);
                let answer = viewer.ask(&format!("TEARDOWN {url}"), &name);
                assert_eq!(status(&answer), 200);
            }
        }
    }
    let summary = served.end();
    assert_eq!((summary.sessions, summary.refused), (20, 0));
}
