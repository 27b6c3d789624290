//! Import.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bonsai_davvi::{Error, Import, Library};

use crate::support::{
    events, film, film_of, folder, has, import, name, plain, played, probed, run, skip, tree,
};

#[test]
fn segments_are_of_one_length_and_each_can_be_played_alone() {
    if !has("segments", "ffmpeg") {
        return;
    }
    let folder = folder();
    let file = film(folder.path(), "Match 1.mp4", "9");
    let root = folder.path().join("library");
    let done = import(&root, &plain(&file));
    assert_eq!(done.complaint, None);
    let video = done.video;
    assert_eq!(
        (video.name.as_str(), video.title.as_str()),
        ("match-1", "Match 1")
    );
    assert_eq!((video.segments, video.length_ms()), (5, 9000));
    let heights: Vec<u32> = video
        .qualities
        .iter()
        .map(|quality| quality.height)
        .collect();
    assert_eq!(heights, [180, 144]);
    assert!(video.qualities[0].mean_bits > video.qualities[1].mean_bits);
    for quality in &video.qualities {
        for number in 0..video.segments {
            let segment = root.join(format!("match-1/{}/{number:05}.mp4", quality.name()));
            let stream = probed(
                &segment,
                &[
                    "-count_frames",
                    "-show_entries",
                    "stream=codec_name,height,start_time,nb_read_frames",
                ],
            );
            let pictures = if number == 4 { 25 } else { 50 };
            let expected = format!(
                "codec_name=h264|height={}|start_time={}.000000|nb_read_frames={pictures}",
                quality.height,
                number * 2
            );
            assert_eq!(stream, [expected]);
            let first = probed(
                &segment,
                &["-read_intervals", "%+#1", "-show_entries", "packet=flags"],
            );
            assert!(first[0].starts_with("flags=K"), "{first:?}");
            // Without anything else, decoded without a complaint.
            let path = segment.to_str().expect("UTF-8");
            let output = run(
                "ffmpeg",
                &["-v", "error", "-xerror", "-i", path, "-f", "null", "-"],
            );
            assert!(
                output.stderr.is_empty(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    for number in 0..video.segments {
        let segment = root.join(format!("match-1/audio/{number:05}.mp4"));
        let stream = probed(
            &segment,
            &[
                "-show_entries",
                "stream=codec_name,sample_rate,channels,start_time",
            ],
        );
        let start = stream[0]
            .rsplit_once('=')
            .expect("a time")
            .1
            .parse::<f64>()
            .expect("a time");
        assert!(
            stream[0].starts_with("codec_name=aac|sample_rate=48000|channels=2|"),
            "{stream:?}"
        );
        assert!((start - f64::from(number) * 2.0).abs() < 0.025, "{start}");
    }
    let mode = |path: &str| {
        fs::metadata(root.join(path))
            .expect("there")
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(mode("match-1"), 0o700);
    assert_eq!(mode("match-1/180p"), 0o700);
    assert_eq!(mode("match-1/180p/00000.mp4"), 0o600);
    assert_eq!(mode("match-1/master.m3u8"), 0o600);
    let expected = 1 + 3 + 3 * 6 + 4 + 3;
    assert_eq!(tree(&root).len(), expected, "{:?}", tree(&root));
}

#[test]
fn pictures_that_come_as_they_like_get_a_constant_pace() {
    if !has("paces", "ffmpeg") {
        return;
    }
    let folder = folder();
    // 30000/1001, without sound, in fields, of pixels that are not square.
    let file = folder.path().join("odd.mkv");
    let pictures = "testsrc2=size=180x96:rate=30000/1001,setsar=4/3";
    let path = file.to_str().expect("UTF-8");
    let words = [
        "-v",
        "error",
        "-f",
        "lavfi",
        "-i",
        pictures,
        "-t",
        "5",
        "-c:v",
        "libx264",
        "-preset",
        "ultrafast",
        path,
    ];
    run("ffmpeg", &words);
    let root = folder.path().join("library");
    let how = Import {
        is_readable: true,
        ..plain(&file)
    };
    let video = import(&root, &how).video;
    assert_eq!(video.segments, 3);
    assert!(
        (video.segment_seconds() - 2.002).abs() < 1e-9,
        "{}",
        video.segment_seconds()
    );
    // 180 * 4 / 3 is as wide as it is shown.
    assert_eq!(
        (video.qualities[0].width, video.qualities[0].height),
        (240, 96)
    );
    let frames = |number: u32| {
        let segment = root.join(format!("odd/96p/{number:05}.mp4"));
        probed(
            &segment,
            &["-count_frames", "-show_entries", "stream=nb_read_frames"],
        )
    };
    assert_eq!(frames(0), ["nb_read_frames=60"]);
    assert_eq!(frames(1), ["nb_read_frames=60"]);
    let mode = |path: &str| {
        fs::metadata(root.join(path))
            .expect("there")
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(
        (mode(""), mode("odd"), mode("odd/96p")),
        (0o755, 0o755, 0o755)
    );
    assert_eq!(
        (mode("odd/96p/00000.mp4"), mode(".private")),
        (0o644, 0o700)
    );
    let (pictures, _) = played(
        root.join("odd/master.m3u8").to_str().expect("UTF-8"),
        "0:v:0",
    );
    assert_eq!(pictures, 150);
}

#[test]
fn what_is_no_video_is_refused_and_nothing_is_left() {
    if !has("bad input", "ffmpeg") {
        return;
    }
    let folder = folder();
    let file = film_of(
        folder.path(),
        "good.mp4",
        "6",
        "testsrc2=size=160x90:rate=25",
        &["-movflags", "+faststart"],
    );
    let bytes = fs::read(&file).expect("read");
    let put = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("written");
        path
    };
    let at_end = film_of(
        folder.path(),
        "end.mp4",
        "3",
        "testsrc2=size=160x90:rate=25",
        &[],
    );
    let at_end = fs::read(at_end).expect("read");
    let list = "#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n";
    for (path, why) in [
        (
            put("letter.mp4", b"Dear all,\nthis is no film.\n"),
            "Invalid data",
        ),
        (put("empty.mp4", b""), "cannot be imported"),
        (put("list.m3u8", list.as_bytes()), "cannot be imported"),
        (
            put("cut.mp4", &bytes[..bytes.len() / 2]),
            "it is cut off or damaged",
        ),
        (
            put("cut-end.mp4", &at_end[..at_end.len() / 2]),
            "moov atom not found",
        ),
        (folder.path().join("nowhere.mp4"), "No such file"),
        (folder.path().to_owned(), "it is no file"),
    ] {
        let root = folder.path().join("library");
        let refused = Library::import(
            &root,
            &Import {
                name: Some(name("x")),
                ..plain(&path)
            },
            &mut |_| {},
        );
        let error = refused.expect_err("it is no film");
        let said = error.to_string();
        assert!(error.is_input(), "{said}");
        assert!(said.contains(why) && !said.contains('\n'), "{said}");
        assert!(
            said.contains(path.file_name().expect("a name").to_str().expect("UTF-8")),
            "{said}"
        );
        assert!(
            !root.exists() || tree(&root).is_empty(),
            "{:?}",
            tree(&root)
        );
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_made() {
    if !has("options", "ffmpeg") {
        return;
    }
    let folder = folder();
    let file = film_of(
        folder.path(),
        "film.mp4",
        "2",
        "testsrc2=size=160x90:rate=25",
        &[],
    );
    let root = folder.path().join("library");
    let refused = |import: Import, why: &str| {
        let error = Library::import(&root, &import, &mut |_| {}).expect_err(why);
        assert!(
            error.is_input() && error.to_string().contains(why),
            "{error}"
        );
    };
    refused(
        Import {
            heights: vec![1080],
            ..plain(&file)
        },
        "no quality can have 1080 lines",
    );
    refused(
        Import {
            heights: vec![51],
            ..plain(&file)
        },
        "no quality can have 51 lines",
    );
    refused(
        Import {
            segment: Duration::from_millis(100),
            ..plain(&file)
        },
        "segments of 0.1 s",
    );
    let late = events(folder.path(), &["time,type", "0:01,goal", "0:03,goal"]);
    refused(
        Import {
            events: late,
            ..plain(&file)
        },
        "an event at 0:03 is after the end of the video, 0:02",
    );
    assert!(!root.exists());
    let how = Import {
        heights: vec![48, 90],
        ..plain(&file)
    };
    let video = import(&root, &how).video;
    assert_eq!(
        video
            .qualities
            .iter()
            .map(|quality| quality.height)
            .collect::<Vec<_>>(),
        [90, 48]
    );
    refused(how, "a video is called film already");
    assert_eq!(
        Library::open(&root)
            .expect("a library")
            .list()
            .expect("listed")
            .videos,
        [video]
    );
}

#[test]
fn an_import_that_is_killed_leaves_no_video_and_the_next_one_cleans_up() {
    const HERE: &str = "BONSAI_DAVVI_TEST_IMPORT";
    // This test is also the program that is killed.
    if let Some(folder) = std::env::var_os(HERE) {
        let folder = Path::new(&folder);
        import(&folder.join("library"), &plain(&folder.join("film.mp4")));
        return;
    }
    if !has("killed", "ffmpeg") {
        return;
    }
    let folder = folder();
    // Long enough to be killed in the middle of it.
    let small = film_of(
        folder.path(),
        "small.mp4",
        "4",
        "testsrc2=size=160x90:rate=25",
        &[],
    );
    film_of(
        folder.path(),
        "film.mp4",
        "60",
        "testsrc2=size=640x360:rate=25",
        &[],
    );
    let root = folder.path().join("library");
    let mut child = Command::new(std::env::current_exe().expect("a program"))
        .args([
            "--exact",
            "import::an_import_that_is_killed_leaves_no_video_and_the_next_one_cleans_up",
        ])
        .env(HERE, folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let end = Instant::now() + Duration::from_secs(60);
    // Segments are there, and it is not at its end.
    while !(root.exists()
        && tree(&root)
            .iter()
            .any(|path| path.ends_with("v0/00001.m4s")))
    {
        assert!(
            child.try_wait().expect("asked").is_none() && Instant::now() < end,
            "it was too fast"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("killed");
    child.wait().expect("ended");
    // What it had started ends with it.
    let works_there = || {
        let all = fs::read_dir("/proc").expect("readable").flatten();
        all.filter_map(|entry| fs::read_link(entry.path().join("cwd")).ok())
            .any(|cwd| cwd.starts_with(folder.path()))
    };
    while works_there() {
        assert!(Instant::now() < end, "ffmpeg goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    let library = Library::open(&root).expect("a library");
    let listed = library.list().expect("listed");
    assert!(
        listed.videos.is_empty() && listed.problems.is_empty(),
        "{listed:?}"
    );
    let left = tree(&root)
        .into_iter()
        .filter(|path| path.starts_with(".incoming-"))
        .count();
    assert!(left > 3);
    import(&root, &plain(&small));
    let hidden = tree(&root).into_iter().filter(|path| path.starts_with('.'));
    assert_eq!(hidden.collect::<Vec<_>>(), Vec::<String>::new());
    assert_eq!(library.list().expect("listed").videos.len(), 1);
}

#[test]
fn a_full_disk_ends_an_import_without_a_trace() {
    let test = "full disk";
    if !has(test, "ffmpeg") {
        return;
    }
    let folder = folder();
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).expect("made");
    let path = disk.to_str().expect("UTF-8");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=400k", "none", path])
        .output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        return skip(test, "only root may mount a small file system");
    }
    let file = film(folder.path(), "film.mp4", "10");
    let refused = Library::import(&disk.join("library"), &plain(&file), &mut |_| {});
    let left = tree(&disk);
    run("umount", &[path]);
    let error = refused.expect_err("it is too large");
    let said = error.to_string();
    let is_said = match &error {
        Error::File { error, .. } => error.raw_os_error() == Some(28),
        Error::Program { program, .. } => *program == "ffmpeg",
        _ => false,
    };
    assert!(is_said && !said.contains('\n'), "{said}");
    assert_eq!(left, ["library"]);
}
