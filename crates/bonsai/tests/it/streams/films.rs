//! Films as cameras, editors and recorders write them: every picture of the file comes, and what does not is told.

use std::path::Path;
use std::process::{Command, Stdio};

use super::Served;
use crate::support::skip;

const PICTURES: &[&str] = &["-f", "lavfi", "-i", "testsrc2=size=320x240:rate=25"];
const SOUND: &[&str] = &["-f", "lavfi", "-i", "sine=frequency=440:sample_rate=48000"];
const H264: &str = "-c:v libx264 -preset ultrafast -g 50 -bf 2 -pix_fmt yuv420p";
const H265: &str = "-c:v libx265 -preset ultrafast -x265-params log-level=error:keyint=50 -pix_fmt yuv420p -tag:v hvc1";

/// Makes a film of 4 s; whether ffmpeg can.
fn make(path: &Path, words: &str) -> bool {
    let mut command = Command::new("ffmpeg");
    command.args(["-y", "-nostdin", "-v", "error"]);
    command.args(PICTURES).args(SOUND).args(["-t", "4"]);
    command.args(words.split_whitespace()).arg(path);
    let made = command.stdin(Stdio::null()).status();
    made.is_ok_and(|status| status.success())
}

/// Rewrites a film without encoding it again.
fn rewrite(from: &Path, before: &[&str], behind: &[&str], to: &Path) {
    let mut command = Command::new("ffmpeg");
    command.args(["-y", "-nostdin", "-v", "error"]).args(before);
    command
        .arg("-i")
        .arg(from)
        .args(["-c", "copy"])
        .args(behind);
    let made = command.arg(to).stdin(Stdio::null()).status();
    assert!(made.expect("ffmpeg").success(), "{}", to.display());
}

/// When each decoded frame of a stream is shown, milliseconds, and what it is.
fn frames(at: &str, stream: &str) -> Vec<(i64, String)> {
    let mut command = Command::new("ffmpeg");
    command.args(["-nostdin", "-v", "error"]);
    if at.starts_with("rtsp") {
        command.args(["-rtsp_transport", "tcp", "-timeout", "20000000"]);
    }
    command.args(["-i", at, "-map", stream, "-fps_mode", "passthrough"]);
    command.args(["-enc_time_base", "1:1000", "-f", "framemd5", "-"]);
    let out = command.stdin(Stdio::null()).output().expect("ffmpeg");
    let text = String::from_utf8(out.stdout).expect("text");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let each = lines.filter_map(|line| {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        Some((fields.get(2)?.parse().ok()?, (*fields.get(5)?).to_owned()))
    });
    each.collect()
}

/// Every picture of the file is there, in order and 40 ms apart as there; those beyond are shown at no time of
/// theirs.
fn assert_whole(name: &str, file: &[(i64, String)], came: &[(i64, String)], beyond: bool) {
    let wanted: Vec<&String> = file.iter().map(|(_, hash)| hash).collect();
    let shown: Vec<&(i64, String)> = came.iter().filter(|(_, of)| wanted.contains(&of)).collect();
    let hashes: Vec<&String> = shown.iter().map(|(_, of)| of).collect();
    assert_eq!(hashes, wanted, "{name}");
    assert!(beyond || came.len() == file.len(), "{name}: {}", came.len());
    // Sound begins before the pictures, by a frame of priming; ffmpeg counts the first picture from there,
    // and all behind it from their own times.
    let times = |of: &[i64]| of.windows(2).map(|two| two[1] - two[0]).collect::<Vec<_>>();
    let came_at: Vec<i64> = shown.iter().skip(1).map(|of| of.0).collect();
    let there_at: Vec<i64> = file.iter().skip(1).map(|of| of.0).collect();
    for (one, other) in times(&came_at).into_iter().zip(times(&there_at)) {
        assert!((one - other).abs() <= 1, "{name}: {one} ms, {other} ms");
    }
    let first = shown[0].0;
    let early = came.iter().take_while(|of| *of != shown[0]);
    assert!(early.into_iter().all(|(at, _)| *at <= first), "{name}");
}

#[test]
fn every_picture_of_a_film_comes_and_what_does_not_is_told() {
    const TEST: &str = "every_picture_of_a_film_comes_and_what_does_not_is_told";
    let place = tempfile::tempdir().expect("a folder");
    let path = |name: &str| place.path().join(format!("{name}.mp4"));
    if !make(&path("base"), &format!("{H264} -c:a aac")) {
        return skip(TEST, "ffmpeg is not installed, or has no libx264");
    }
    let base = path("base");
    rewrite(&base, &[], &["-movflags", "frag_keyframe"], &path("hybrid"));
    let flags = "frag_keyframe+empty_moov+default_base_moof";
    rewrite(&base, &[], &["-movflags", flags], &path("fragments"));
    rewrite(&base, &["-ss", "1.3"], &[], &path("cut"));
    rewrite(&base, &[], &["-t", "2.5"], &path("trimmed"));
    rewrite(&base, &[], &["-metadata:s:v", "rotate=90"], &path("turned"));
    let mut films = vec!["base", "hybrid", "fragments", "cut", "trimmed"];
    for (name, words) in [
        ("hevc", format!("{H265} -c:a libopus")),
        ("mp3", format!("{H264} -c:a libmp3lame")),
    ] {
        match make(&path(name), &words) {
            true => films.push(name),
            false => skip(TEST, &format!("ffmpeg makes no {name}")),
        }
    }
    assert!(make(&path("mute"), &format!("{H264} -c:a flac -strict -2")));
    assert!(make(&path("black"), "-c:v mpeg4 -c:a aac"));
    let mut serve = Command::new(env!("CARGO_BIN_EXE_bonsai"));
    serve.arg("serve");
    let served = Served::start(serve, place.path(), &[]);
    let url = |name: &str| served.url.replace("film.mp4", &format!("{name}.mp4"));
    for name in films {
        let file = frames(&path(name).to_string_lossy(), "0:v");
        assert!(file.len() > 60, "{name}");
        // Decoded for others, and before the beginning: of the film that was cut.
        assert_whole(name, &file, &frames(&url(name), "0:v"), name == "cut");
        assert!(frames(&url(name), "0:a").len() > 90, "{name} has sound");
    }
    for (name, track, words) in [
        ("mute", "0:v", "audio track 2 (fLaC)"),
        ("black", "0:a", "video track 1 (mp4v)"),
        ("turned", "0:v", "turned by 270 degrees clockwise"),
    ] {
        assert!(frames(&url(name), track).len() > 90, "{name}");
        let line = served.wait_for(words);
        assert!(line.starts_with(&format!("{name}.mp4: ")), "{line}");
    }
    served.end();
}
