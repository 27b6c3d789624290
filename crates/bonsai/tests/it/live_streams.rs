//! `bonsai serve --live`: a stream of another server is asked for once and given to all viewers, picture by picture.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use conformance::Port;

use crate::serve_http::{Server, clip, get};
use crate::support::{Place, film};

const PATIENCE: Duration = Duration::from_secs(60);

/// Hashes of the pictures that a player decodes.
fn pictures(input: &str, seconds: &str) -> Vec<String> {
    let live = ["-live_start_index", "0"];
    let live = live.iter().filter(|_| input.starts_with("http"));
    let mut command = Command::new("ffmpeg");
    command.args(["-v", "error"]).args(live).args(["-i", input]);
    command.args(["-map", "0:v", "-t", seconds, "-fps_mode", "passthrough"]);
    let done = command.args(["-f", "framemd5", "-"]).stdin(Stdio::null());
    let done = done.output().expect("it has made the clip");
    let said = String::from_utf8_lossy(&done.stdout);
    let rows = said.lines().filter(|line| line.starts_with("0,"));
    let hashes = rows.filter_map(|line| line.rsplit(',').next());
    let hashes: Vec<String> = hashes.map(|hash| hash.trim().to_owned()).collect();
    assert!(
        !hashes.is_empty(),
        "{input}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    hashes
}

/// Waits until a playlist has something in it.
fn until(at: &str, path: &str, is_it: impl Fn(&str) -> bool) -> String {
    let began = Instant::now();
    loop {
        let (_, body) = get(at, path);
        let list = String::from_utf8_lossy(&body).into_owned();
        if is_it(&list) {
            return list;
        }
        assert!(began.elapsed() < PATIENCE, "{path}: {list}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A film of pictures in order, as cameras send them.
fn camera(test: &str, folder: &Path, seconds: u64) -> Option<()> {
    let sources = [
        "testsrc2=size=160x90:rate=25",
        "sine=frequency=440:sample_rate=48000",
    ];
    let words = "-preset veryfast -bf 0 -g 25 -pix_fmt yuv420p -c:a aac -movflags +faststart";
    film(test, folder.join("camera.mp4"), &sources, seconds, words).map(|_| ())
}

#[test]
fn a_source_is_asked_for_once_and_given_to_all_picture_by_picture() {
    const TEST: &str = "a live source";
    let place = Place::bare();
    // With pictures out of order.
    let Some(made) = clip(TEST, &place, 60) else {
        return;
    };
    let root = made.parent().expect("a folder");
    if camera(TEST, root, 60).is_none() {
        return;
    }
    let (_source, from) =
        Server::start(&place, &[root.to_str().expect("UTF-8"), "--rtsp", ":0"], 1);
    let address = |name: &str| format!("{name}={}{name}.mp4", from[0]);
    let file = place.path().join("address");
    let named = address("clip").replace("rtsp://", "rtspu://");
    let (_, url) = named.split_once('=').expect("a name");
    std::fs::write(&file, format!("{url}\n")).expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("its own");
    let nothing = place.path().join("nothing");
    std::fs::create_dir(&nothing).expect("made");
    let args = [
        nothing.to_str().expect("UTF-8").to_owned(),
        "--http".to_owned(),
        ":0".to_owned(),
        "--live".to_owned(),
        address("camera"),
        "--live".to_owned(),
        format!("clip=@{}", file.display()),
    ];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (_server, at) = Server::start(&place, &args, 1);
    let list = until(&at[0], "/-/live/camera/live.m3u8", |list| {
        list.matches("#EXTINF").count() >= 2
    });
    assert!(
        list.contains("#EXT-X-PRELOAD-HINT") && list.contains("INDEPENDENT=YES"),
        "{list}"
    );
    for name in ["camera", "clip"] {
        let input = format!("{}-/live/{name}/master.m3u8", at[0]);
        let viewers: Vec<_> = (0..2)
            .map(|_| {
                let input = input.clone();
                std::thread::spawn(move || pictures(&input, "5"))
            })
            .collect();
        let whole = pictures(
            root.join(format!("{name}.mp4")).to_str().expect("UTF-8"),
            "60",
        );
        for viewer in viewers {
            let seen = viewer.join().expect("it plays");
            let from = whole.iter().position(|hash| *hash == seen[0]);
            let from = from.expect("a picture of the film");
            assert!(seen.len() >= 100, "{name}: {}", seen.len());
            assert!(
                whole[from..].starts_with(&seen),
                "{name}: {} pictures from {from} on",
                seen.len()
            );
        }
    }
    // A playlist that is asked for ahead has that part.
    let list = until(&at[0], "/-/live/camera/live.m3u8", |_| true);
    let hint = list
        .split("PRELOAD-HINT:TYPE=PART,URI=\"")
        .nth(1)
        .expect("a hint");
    let (hint, _) = hint.split_once('"').expect("its end");
    let (segment, part) = hint
        .trim_end_matches(".m4s")
        .split_once('.')
        .expect("two numbers");
    let path = format!("/-/live/camera/live.m3u8?_HLS_msn={segment}&_HLS_part={part}");
    let (status, body) = get(&at[0], &path);
    let text = String::from_utf8_lossy(&body).into_owned();
    assert!(
        status == 200 && text.contains(&format!("URI=\"{hint}\"")),
        "{hint}: {text}"
    );
    let next: u64 = segment.parse().expect("a number");
    for (path, expected) in [
        (
            format!("/-/live/camera/live.m3u8?_HLS_msn={}", next + 100),
            400,
        ),
        ("/-/live/camera/999999.m4s".to_owned(), 404),
        ("/-/live/camera/header-9.mp4".to_owned(), 404),
        ("/-/live/other/master.m3u8".to_owned(), 404),
        ("/-/live/camera/x".to_owned(), 404),
    ] {
        assert_eq!(get(&at[0], &path).0, expected, "{path}");
    }
}

#[test]
fn a_source_that_goes_and_comes_back_goes_on_behind_a_break() {
    const TEST: &str = "a live source that goes";
    let place = Place::bare();
    let folder = place.path().join("films");
    std::fs::create_dir(&folder).expect("made");
    if camera(TEST, &folder, 60).is_none() {
        return;
    }
    let port = Port::free();
    let listen = port.address().to_string();
    let folder = folder.to_str().expect("UTF-8");
    let nothing = place.path().join("nothing");
    std::fs::create_dir(&nothing).expect("made");
    let address = format!("cam=rtsp://{listen}/camera.mp4");
    let args = [
        nothing.to_str().expect("UTF-8"),
        "--http",
        ":0",
        "--live",
        &address,
    ];
    // Before its source is there.
    let (_server, at) = Server::start(&place, &args, 1);
    let start = || Server::start(&place, &[folder, "--rtsp", &listen], 1).0;
    let source = start();
    let is_there = |list: &str| list.matches("#EXTINF").count() >= 2;
    let list = until(&at[0], "/-/live/cam/live.m3u8", is_there);
    assert!(!list.contains("DISCONTINUITY"), "{list}");
    drop(source);
    let _source = start();
    let list = until(&at[0], "/-/live/cam/live.m3u8", |list| {
        let after = list.split("#EXT-X-DISCONTINUITY\n").nth(1);
        after.is_some_and(|after| after.contains("#EXTINF"))
    });
    assert_eq!(list.matches("#EXT-X-DISCONTINUITY\n").count(), 1, "{list}");
    pictures(&format!("{}-/live/cam/master.m3u8", at[0]), "3");
}

#[test]
fn live_sources_that_make_no_sense_are_refused_in_one_sentence() {
    let place = Place::bare();
    let folder = place.path().to_str().expect("UTF-8");
    let file = place.path().join("address");
    std::fs::write(&file, "rtsp://ann:secret@host/a").expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("its own");
    let open = format!("a=@{}", file.display());
    for (sources, words) in [
        (&["cam"][..], "NAME=rtsp://HOST/PATH"),
        (&["a=http://ann:secret@host/"], "rtsp://"),
        (&["a/b=rtsp://ann:secret@host/"], "letters, digits"),
        (&["a=rtsp://x/", "a=rtsp://y/"], "two streams are called a"),
        (&["a=@/nothing/there"], "No such file"),
        (&[&open], "chmod 640"),
    ] {
        let mut args = vec!["serve", folder, "--http", ":0"];
        for source in sources {
            args.extend(["--live", source]);
        }
        let done = place.bonsai(&args).output().expect("bonsai");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{sources:?}: {said}");
        assert!(
            said.contains(words) && !said.contains("secret"),
            "{sources:?}: {said}"
        );
        assert_eq!(said.trim_end().lines().count(), 1, "{sources:?}: {said}");
    }
}
