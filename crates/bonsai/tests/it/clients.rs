//! Players as they are installed, from the first request to the end of a film.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::serve_http::{Server, clip};
use crate::support::{Place, skip};

/// Seconds after which a player is ended: the films have three.
const MOST: &str = "60";

/// How a player that is installed ended, and what it said.
pub(crate) fn play(test: &str, program: &str, args: &[&str]) -> Option<(bool, String)> {
    let asked = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if asked.is_err() {
        skip(test, &format!("{program} is not installed"));
        return None;
    }
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", MOST, program]).args(args);
    let ended = command.stdin(Stdio::null()).output().expect("timeout");
    let said = [ended.stdout, ended.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    Some((ended.status.success(), said))
}

/// GStreamer, if it is installed, comes to the end of the pictures of a film without an error.
pub(crate) fn gstreamer(test: &str, url: &str, settings: &[&str]) {
    let source = format!("location={url}");
    let after = ["!", "rtph264depay", "!", "h264parse", "!", "fakesink"];
    let args = [&["rtspsrc", &source], settings, &after].concat();
    let Some((is_well, said)) = play(test, "gst-launch-1.0", &args) else {
        return;
    };
    // Without the plug-ins there is no player.
    if said.contains("no element") {
        skip(test, "plug-ins of GStreamer are missing");
    } else {
        assert!(is_well && !said.contains("ERROR"), "{settings:?}: {said}");
    }
}

#[test]
fn players_come_to_the_end_of_a_film_without_an_error() {
    const TEST: &str = "players to the end";
    let place = Place::bare();
    let Some(clip) = clip(TEST, &place, 3) else {
        return;
    };
    let folder = clip.parent().and_then(Path::to_str).expect("UTF-8");
    let (_server, at) = Server::start(&place, &[folder, "--rtsp", ":0"], 1);
    let url = format!("{}clip.mp4", at[0]);
    for protocols in ["tcp", "udp"] {
        let by = format!("protocols={protocols}");
        gstreamer(TEST, &url, &[&by]);
        let args = [
            "-v",
            "error",
            "-rtsp_transport",
            protocols,
            "-i",
            &url,
            "-f",
            "null",
            "-",
        ];
        let (is_well, said) = play(TEST, "ffmpeg", &args).expect("it made the clip");
        assert!(is_well && said.is_empty(), "{protocols}: {said}");
    }
    let args = [
        "--no-config",
        "--vo=null",
        "--ao=null",
        "--rtsp-transport=tcp",
        &url,
    ];
    if let Some((is_well, said)) = play(TEST, "mpv", &args) {
        assert!(is_well && said.contains("End of file"), "{said}");
    }
}

#[test]
fn players_ask_for_names_as_they_were_typed() {
    const TEST: &str = "names as typed";
    let place = Place::bare();
    let Some(clip) = clip(TEST, &place, 1) else {
        return;
    };
    let root = clip.parent().expect("a folder");
    let folder = root.join("sub dir");
    std::fs::create_dir(&folder).expect("made");
    let names = [
        "a b.mp4",
        "日本語.mp4",
        "100% [x] 'y'.mp4",
        "a,b;c.mp4",
        "a|b^c{d}.mp4",
        "a#b.mp4",
    ];
    for name in names {
        std::fs::copy(&clip, folder.join(name)).expect("copied");
    }
    let root = root.to_str().expect("UTF-8");
    let (_server, at) = Server::start(&place, &[root, "--rtsp", ":0"], 1);
    for name in names {
        let url = format!("{}sub dir/{name}", at[0]);
        let args = [
            "-v",
            "error",
            "-rtsp_transport",
            "tcp",
            "-i",
            &url,
            "-map",
            "0:v",
            "-c",
            "copy",
            "-f",
            "framemd5",
            "-",
        ];
        let (is_well, said) = play(TEST, "ffmpeg", &args).expect("it made the clip");
        let pictures = said.lines().filter(|line| line.starts_with("0,")).count();
        assert!(
            is_well && pictures == 25,
            "{name}: {pictures} pictures: {said}"
        );
    }
}
