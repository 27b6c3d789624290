//! Playlists, played by ffmpeg.

use std::fs;

use bonsai_davvi::{Clip, Import, Show};
use m3u8_rs::{MediaPlaylist, Playlist};

use crate::support::{film, folder, has, import, name, plain, played, run};

/// Microseconds of sound, within two frames and the delay of the encoder.
fn about(us: u64, seconds: f64) {
    let seen = us as f64 / 1e6;
    assert!((seen - seconds).abs() < 0.1, "{seen} s of {seconds} s");
}

#[test]
fn a_video_is_played_from_end_to_end_by_hls_and_by_dash() {
    if !has("a video", "ffmpeg") {
        return;
    }
    let folder = folder();
    let file = film(folder.path(), "film.mp4", "7");
    let root = folder.path().join("library");
    import(&root, &plain(&file));
    let path = |file: &str| {
        root.join("film")
            .join(file)
            .to_str()
            .expect("UTF-8")
            .to_owned()
    };
    for video in ["0:v:0", "0:v:1"] {
        let (pictures, time) = played(&path("master.m3u8"), video);
        assert_eq!(pictures, 175, "{video}");
        about(time, 7.0);
    }
    let (pictures, time) = played(&path("manifest.mpd"), "0:v:0");
    assert_eq!(pictures, 175);
    about(time, 7.0);
    let text = fs::read(path("180p.m3u8")).expect("read");
    let Ok(Playlist::MediaPlaylist(list)) = m3u8_rs::parse_playlist_res(&text) else {
        panic!("no playlist: {}", String::from_utf8_lossy(&text));
    };
    let MediaPlaylist {
        segments,
        end_list,
        target_duration,
        ..
    } = list;
    assert_eq!((segments.len(), end_list, target_duration), (4, true, 2));
}

#[test]
fn pictures_and_sound_are_together() {
    if !has("together", "ffmpeg") {
        return;
    }
    let folder = folder();
    // Dark and silent for 3 s; then light and loud.
    let path = folder.path().join("flash.mp4");
    let file = path.to_str().expect("UTF-8");
    let light = "color=black:size=160x90:rate=25:duration=3[a];color=white:size=160x90:rate=25:duration=3[b];[a][b]concat=n=2[v]";
    let loud = "anullsrc=r=44100:cl=mono,atrim=duration=3[c];sine=frequency=440:sample_rate=44100:duration=3[d];[c][d]concat=n=2:v=0:a=1[s]";
    let graph = format!("{light};{loud}");
    run(
        "ffmpeg",
        &[
            "-v",
            "error",
            "-filter_complex",
            &graph,
            "-map",
            "[v]",
            "-map",
            "[s]",
            "-c:v",
            "libx264",
            "-preset",
            "ultrafast",
            "-c:a",
            "aac",
            file,
        ],
    );
    let root = folder.path().join("library");
    import(&root, &plain(&path));
    let master = root.join("flash/master.m3u8");
    let master = master.to_str().expect("UTF-8");
    let found = |map: &str, filter: &str, word: &str| -> f64 {
        let kind = if map.contains(":v") { "-vf" } else { "-af" };
        let output = run(
            "ffmpeg",
            &[
                "-v",
                "info",
                "-nostats",
                "-allowed_extensions",
                "ALL",
                "-i",
                master,
                "-map",
                map,
                kind,
                filter,
                "-f",
                "null",
                "-",
            ],
        );
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let at = text
            .find(word)
            .unwrap_or_else(|| panic!("no {word}: {text}"));
        let number: String = text[at + word.len()..]
            .trim_start()
            .chars()
            .take_while(|c| c.is_ascii_digit() || *c == '.')
            .collect();
        number.parse().expect("a time")
    };
    let dark_until = found("0:v:0", "blackdetect=d=1", "black_end:");
    let silent_until = found("0:a:0", "silencedetect=n=-40dB:d=1", "silence_end:");
    assert!((dark_until - 3.0).abs() < 0.05, "{dark_until}");
    assert!((silent_until - dark_until).abs() < 0.05, "{silent_until}");
}

#[test]
fn clips_of_several_videos_are_played_one_after_the_other() {
    if !has("clips", "ffmpeg") {
        return;
    }
    let folder = folder();
    let first = film(folder.path(), "one.mp4", "8");
    // Another size, another pace, no sound.
    let second = folder.path().join("two.mp4");
    let path = second.to_str().expect("UTF-8");
    run(
        "ffmpeg",
        &[
            "-v",
            "error",
            "-f",
            "lavfi",
            "-i",
            "testsrc=size=256x144:rate=30",
            "-t",
            "6",
            "-c:v",
            "libx264",
            "-preset",
            "ultrafast",
            path,
        ],
    );
    let root = folder.path().join("library");
    let one = import(&root, &plain(&first)).video;
    let two = import(
        &root,
        &Import {
            name: Some(name("second")),
            ..plain(&second)
        },
    )
    .video;
    let clip = |video, first, count| Clip {
        video,
        first,
        count,
    };
    let show = Show::new(vec![clip(&one, 0, 1), clip(&one, 2, 2), clip(&two, 1, 2)]);
    assert_eq!(show.milliseconds(), 10_000);
    let place = |name: &bonsai_davvi::Name| format!("library/{name}/");
    let put = |file: &str, text: &str| {
        let path = folder.path().join(file);
        fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    for track in show.tracks() {
        let text = show
            .media(&track, &place)
            .expect("written")
            .expect("a track");
        assert_eq!(text.matches("#EXT-X-DISCONTINUITY\n").count(), 2);
        put(&format!("{track}.m3u8"), &text);
    }
    let master = put(
        "master.m3u8",
        &show
            .master(&|track| format!("{track}.m3u8"))
            .expect("written"),
    );
    let (pictures, time) = played(&master, "0:v:0");
    // At 25, 30 and 25 a second.
    assert_eq!(pictures, 100 + 120 + 50);
    about(time, 10.0);
    // Of periods, this player shows the longest; each is whole.
    let mpd = put("manifest.mpd", &show.mpd(&place).expect("written"));
    let (pictures, _) = played(&mpd, "0:v:0");
    assert!(pictures == 100 || pictures == 120, "{pictures}");
}
