//! `bonsai serve --users`: players as they are installed, with a password and without.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::clients::{gstreamer, play};
use crate::serve_http::{Server, clip};
use crate::support::{Place, skip};

/// `ann` with `s e:cret` and `bob` with `b`, of the realm `bonsai`.
const ANN: &str = "ann:bonsai:3fdbf97863c35cc7d0dfc546df717deb\n";
const BOB: &str = "bob:bonsai:6e3025385cf4f874419906f4cd240e8d\n";

fn written(place: &Place, text: &str, mode: u32) -> PathBuf {
    let path = place.path().join(".viewers");
    let _ = fs::remove_file(&path);
    fs::write(&path, text).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its own");
    path
}

fn utf8(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// The number of an answer over HTTP, by curl.
fn status(args: &[&str]) -> String {
    let out = [
        "-s",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "--max-time",
        "30",
    ];
    let asked = Command::new("curl").args(out).args(args).output();
    String::from_utf8_lossy(&asked.expect("curl").stdout).into_owned()
}

/// Plays it by RTSP.
fn plays(test: &str, url: &str, protocols: &str) -> (bool, String) {
    let args = [
        "-v",
        "error",
        "-rtsp_transport",
        protocols,
        "-i",
        url,
        "-f",
        "null",
        "-",
    ];
    play(test, "ffmpeg", &args).expect("it made the clip")
}

#[test]
fn users_of_a_file_are_served_and_nobody_else() {
    const TEST: &str = "users of a file";
    let place = Place::bare();
    let Some(clip) = clip(TEST, &place, 2) else {
        return;
    };
    let users = written(&place, ANN, 0o600);
    let folder = utf8(clip.parent().expect("a folder"));
    let args = [
        folder,
        "--rtsp",
        ":0",
        "--http",
        ":0",
        "--users",
        utf8(&users),
    ];
    let (_server, at) = Server::start(&place, &args, 2);
    let of = |scheme: &str| {
        let mut at = at.iter();
        let at = at.find_map(|at| at.strip_prefix(scheme));
        at.expect("it listens").to_owned()
    };
    let (rtsp, http) = (of("rtsp://"), of("http://"));
    for protocols in ["tcp", "udp"] {
        let with = |user: &str| plays(TEST, &format!("rtsp://{user}{rtsp}clip.mp4"), protocols);
        let (is_well, said) = with("ann:s%20e%3Acret@");
        assert!(is_well && said.is_empty(), "{protocols}: {said}");
        for wrong in ["", "ann:secret@", "bob:b@"] {
            let (is_well, said) = with(wrong);
            assert!(!is_well && said.contains("401"), "{wrong}: {said}");
        }
    }
    let url = format!("rtsp://{rtsp}clip.mp4");
    gstreamer(TEST, &url, &["user-id=ann", "user-pw=s e:cret"]);
    let url = format!("http://{http}clip.mp4");
    let has_curl = Command::new("curl")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if has_curl.is_err() {
        return skip(TEST, "curl is not installed");
    }
    assert_eq!(status(&["--digest", "-u", "ann:s e:cret", &url]), "200");
    assert_eq!(status(&["--digest", "-u", "ann:secret", &url]), "401");
    assert_eq!(status(&["-u", "ann:s e:cret", &url]), "401");
    assert_eq!(status(&[&url]), "401");
    // Other users from the next look on: one file in the place of another, and a broken one changes nothing.
    written(&place, &format!("{BOB}broken\n"), 0o600);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(status(&["--digest", "-u", "ann:s e:cret", &url]), "200");
    written(&place, BOB, 0o600);
    let end = Instant::now() + Duration::from_secs(60);
    while status(&["--digest", "-u", "bob:b", &url]) != "200" {
        assert!(Instant::now() < end, "never read again");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(status(&["--digest", "-u", "ann:s e:cret", &url]), "401");
    let (is_well, said) = plays(TEST, &format!("rtsp://bob:b@{rtsp}clip.mp4"), "tcp");
    assert!(is_well, "{said}");
}

#[test]
fn a_file_of_users_that_is_wrong_is_refused_in_a_sentence() {
    let place = Place::bare();
    let root = place.path().join(".clips");
    fs::create_dir(&root).expect("made");
    let refused = |path: &Path, why: &str| {
        let said = place.say(&["serve", utf8(&root), "--rtsp", ":0", "--users", utf8(path)]);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(
            said.err.contains(why) && said.err.lines().count() == 1,
            "{why}: {said:?}"
        );
    };
    refused(&place.path().join(".none"), "No such file");
    refused(&root, "it is no file");
    refused(&written(&place, "", 0o600), "it has no user");
    refused(
        &written(&place, "ann:secret\n", 0o600),
        "line 1: a line is name:realm:MD5",
    );
    refused(&written(&place, ANN, 0o644), "it has mode 644");
    let link = place.path().join(".link");
    symlink(written(&place, ANN, 0o600), &link).expect("linked");
    refused(&link, "it is a link");
}
