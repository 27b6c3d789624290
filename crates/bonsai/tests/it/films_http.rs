//! Films over HTTP as HLS, cut from their files: picture by picture what is in the file.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::serve_http::{Server, clip, get};
use crate::support::Place;

/// Output of ffmpeg, and if it did well.
fn ffmpeg(args: &[&str], folder: &Path) -> (bool, String) {
    let mut command = Command::new("ffmpeg");
    command.args(["-v", "error", "-y"]).args(args);
    let command = command.current_dir(folder).stdin(Stdio::null());
    let done = command.output().expect("it has made the clip");
    let said = [&done.stdout[..], &done.stderr].concat();
    (
        done.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

/// Hashes of the frames of a track as a player decodes them, in order, and the times from one to the next in a thousandth.
fn frames(input: &str, track: &str, folder: &Path) -> (Vec<String>, Vec<i64>) {
    let args = [
        "-i",
        input,
        "-map",
        track,
        "-fps_mode",
        "passthrough",
        "-f",
        "framemd5",
        "-",
    ];
    let args: Vec<&str> = match track.contains('v') {
        true => args.to_vec(),
        // Sound that is decoded depends on where decoding began: compared are the packets.
        false => vec![
            "-i", input, "-map", track, "-c", "copy", "-f", "framemd5", "-",
        ],
    };
    let (is_well, said) = ffmpeg(&args, folder);
    assert!(is_well, "{input} {track}: {said}");
    let scale = said.lines().find_map(|line| line.strip_prefix("#tb 0: "));
    let (of, scale) = scale
        .and_then(|scale| scale.split_once('/'))
        .expect("its clock");
    let number = |text: &str| text.trim().parse::<i64>().expect("a number");
    let (of, scale) = (number(of), number(scale));
    let rows = said.lines().filter(|line| line.starts_with("0,"));
    let rows: Vec<Vec<&str>> = rows.map(|line| line.split(',').collect()).collect();
    let at: Vec<i64> = rows
        .iter()
        .map(|row| number(row[2]) * of * 1000 / scale)
        .collect();
    let hashes = rows.iter().map(|row| row[5].trim().to_owned());
    (
        hashes.collect(),
        at.windows(2).map(|two| two[1] - two[0]).collect(),
    )
}

#[test]
fn films_of_each_kind_come_as_hls_picture_by_picture() {
    const TEST: &str = "films as HLS";
    let place = Place::bare();
    let Some(made) = clip(TEST, &place, 14) else {
        return;
    };
    let root = made.parent().expect("a folder");
    // Pictures out of order and two tracks of sound; fragments; a cut that begins between keys; turned; QuickTime; sound alone.
    for (name, words) in [
        (
            "order.mp4",
            "-i clip.mp4 -map 0:v -map 0:a -map 0:a -c:v libx264 -preset ultrafast -bf 3 -g 60 -c:a copy",
        ),
        (
            "pieces.mp4",
            "-i order.mp4 -c copy -movflags frag_keyframe+empty_moov",
        ),
        ("cut.mp4", "-ss 3.5 -i order.mp4 -c copy"),
        ("turned.mp4", "-display_rotation 90 -i clip.mp4 -c copy"),
        ("quick.mov", "-i order.mp4 -map 0:v -map 0:a:0 -c copy"),
        ("sound.m4a", "-i clip.mp4 -vn -c copy"),
    ] {
        let args: Vec<&str> = words.split(' ').chain([name]).collect();
        let (is_well, said) = ffmpeg(&args, root);
        assert!(is_well || name == "turned.mp4", "{name}: {said}");
    }
    let folder = root.to_str().expect("UTF-8");
    let (_server, at) = Server::start(&place, &[folder, "--http", ":0"], 1);
    for (name, tracks) in [
        ("clip.mp4", &["0:v", "0:a"][..]),
        ("order.mp4", &["0:v", "0:a:0", "0:a:1"]),
        ("pieces.mp4", &["0:v", "0:a:0"]),
        ("cut.mp4", &["0:v", "0:a:0"]),
        ("quick.mov", &["0:v", "0:a"]),
        ("sound.m4a", &["0:a"]),
    ] {
        let address = format!("{}-/hls/{name}/master.m3u8", at[0]);
        for track in tracks {
            let (there, times) = frames(&address, track, root);
            let (here, own) = frames(name, track, root);
            match name {
                // ffmpeg leaves out the pictures before the cut, which are decoded for those behind it, and keeps the sound.
                "cut.mp4" if track.contains('v') => assert!(
                    here.len() > 200 && there.ends_with(&here),
                    "{name} {track}: {} {}",
                    there.len(),
                    here.len()
                ),
                "cut.mp4" => assert!(
                    there.len() > 400 && here.ends_with(&there),
                    "{name} {track}: {} {}",
                    there.len(),
                    here.len()
                ),
                _ => {
                    // An encoder's first frame of sound is there to be left out.
                    let from = there.len() - here.len();
                    assert!(
                        from <= usize::from(track.contains('a')),
                        "{name} {track}: {} {}",
                        there.len(),
                        here.len()
                    );
                    assert!(there[from..] == here, "{name} {track}");
                    let apart = times[from..]
                        .iter()
                        .zip(&own)
                        .map(|(one, other)| (one - other).abs());
                    assert!(apart.max() <= Some(1), "{name} {track}: {times:?} {own:?}");
                }
            }
        }
    }
    if root.join("turned.mp4").exists() {
        let address = format!("{}-/hls/turned.mp4/0.m3u8", at[0]);
        let args = [
            "-select_streams",
            "v",
            "-show_entries",
            "stream_side_data=rotation",
            "-of",
            "csv=p=0",
        ];
        let mut probe = Command::new("ffprobe");
        let probe = probe
            .args(["-v", "error"])
            .args(args)
            .arg(&address)
            .output()
            .expect("ffprobe");
        let said = String::from_utf8_lossy(&probe.stdout).into_owned();
        assert!(
            said.contains("90"),
            "{said} {}",
            String::from_utf8_lossy(&probe.stderr)
        );
    }
}

#[test]
fn a_film_that_is_replaced_sends_no_part_of_another() {
    const TEST: &str = "a film that is replaced";
    let place = Place::bare();
    let Some(film) = clip(TEST, &place, 6) else {
        return;
    };
    let root = film.parent().expect("a folder");
    let (_server, at) = Server::start(&place, &[root.to_str().expect("UTF-8"), "--http", ":0"], 1);
    let read = |path: &str| {
        let (status, body) = get(&at[0], path);
        (status, String::from_utf8_lossy(&body).into_owned())
    };
    let (status, list) = read("/-/hls/clip.mp4/0.m3u8");
    assert_eq!(status, 200, "{list}");
    let segment = list
        .lines()
        .find(|line| line.starts_with("0-1.m4s"))
        .expect("a segment");
    let segment = format!("/-/hls/clip.mp4/{segment}");
    let (status, before) = get(&at[0], &segment);
    assert!(status == 200 && before[4..8] == *b"moof", "{status}");
    // Another film under its name.
    let (is_well, said) = ffmpeg(
        &["-i", "clip.mp4", "-t", "3", "-c", "copy", "other.mp4"],
        root,
    );
    assert!(is_well, "{said}");
    std::fs::rename(root.join("other.mp4"), &film).expect("replaced");
    let (status, said) = read(&segment);
    assert_eq!(status, 404);
    assert!(said.contains("the film has changed"), "{said}");
    assert_eq!(read("/-/hls/clip.mp4/0.m3u8").0, 200);
    for (path, expected) in [
        ("/-/hls/nothing.mp4/master.m3u8", 404),
        ("/-/hls/../clip.mp4/master.m3u8", 404),
        ("/-/hls/clip.mp4/9.m3u8", 404),
        ("/-/hls/clip.mp4/0-99.m4s", 404),
        ("/-/hls/clip.mp4/x", 404),
        ("/-/hls/clip.mp4", 404),
        ("/-/hls/clip.mp4/s0.m3u8", 404),
    ] {
        assert_eq!(read(path).0, expected, "{path}");
    }
    std::fs::write(root.join("none.mp4"), "no film").expect("written");
    let (status, said) = read("/-/hls/none.mp4/master.m3u8");
    assert!(status == 415 && said.contains("no MP4"), "{status} {said}");
}

#[test]
fn the_list_of_films_says_what_of_each_is_not_sent() {
    const TEST: &str = "what of a film is not sent";
    let place = Place::bare();
    let Some(film) = clip(TEST, &place, 1) else {
        return;
    };
    let root = film.parent().expect("a folder");
    let flac = "-i clip.mp4 -c:v copy -c:a flac -strict -2 flac.mp4";
    let mpeg4 = "-i clip.mp4 -c:v mpeg4 -an mpeg4.mp4";
    for words in [flac, mpeg4] {
        let (is_well, said) = ffmpeg(&words.split(' ').collect::<Vec<_>>(), root);
        assert!(is_well, "{said}");
    }
    let (_server, at) = Server::start(&place, &[root.to_str().expect("UTF-8"), "--http", ":0"], 1);
    let read = |path: &str| {
        let (status, body) = get(&at[0], path);
        assert_eq!(status, 200, "{path}");
        serde_json::from_slice::<Value>(&body).expect("JSON")
    };
    let list = read("/clips");
    let of = |name: &str| {
        let mut clips = list["clips"].as_array().expect("clips").iter();
        let clip = clips.find(|clip| clip["path"] == name);
        let facts = clip.unwrap_or_else(|| panic!("{list}"))["film"].as_str();
        read(&format!("/{}", facts.expect("an address")))
    };
    let whole = of("clip.mp4");
    assert_eq!(whole["is_over_rtsp"], true);
    assert_eq!(whole["not_over_rtsp"], Value::Array(Vec::new()));
    let said = of("flac.mp4")["not_over_rtsp"].to_string();
    assert!(said.contains("audio track 2 (fLaC)"), "{said}");
    let none = of("mpeg4.mp4");
    assert_eq!(none["is_over_rtsp"], false, "{none}");
    assert!(none["not_over_rtsp"].to_string().contains("mp4v"), "{none}");
}
