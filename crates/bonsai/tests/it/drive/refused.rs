//! What is no way to serve anything: one sentence, exit code 2, nothing left behind.

use std::process::Command;

use super::server::image;
use crate::support::{Place, skip};

pub(super) fn refused(place: &Place, args: &[&str]) -> String {
    let said = place.say(&[&["drive", "serve"], args].concat());
    assert_eq!(said.code, Some(2), "{args:?}: {said:?}");
    assert_eq!(said.out, "", "{args:?}");
    assert_eq!(said.err.lines().count(), 1, "{args:?}: {said:?}");
    let sentence = said.err.strip_prefix("bonsai: ");
    sentence.expect("its name").trim_end().to_owned()
}

#[test]
fn what_cannot_be_served_has_its_sentence() {
    let place = Place::bare();
    let a = image(&place, "a.raw", 1 << 20);
    let a = a.as_str();
    let same = image(&place, "a.img", 1 << 20);
    let empty = image(&place, "empty.raw", 0);
    let file = |name: &str, bytes: &[u8]| {
        let path = place.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        path.display().to_string()
    };
    let qcow = file("q.raw", b"QFI\xfb\0\0\0\x03");
    let text = file("text", b"no certificate");
    let folder = place.path().display().to_string();
    let missing = format!("{folder}/none/s.sock");
    let long = format!("{folder}/{}", "s".repeat(120));
    for (args, words) in [
        (&[][..], "<IMAGE>"),
        (
            &["/no/such.raw"],
            "/no/such.raw: cannot be opened: No such file",
        ),
        (&[&folder], "is neither a file nor a block device"),
        (&["/dev/null"], "is neither a file nor a block device"),
        (&[&empty], "is empty; an image has the size of its disk"),
        (&[&qcow], "looks like qcow2, and only raw images are served"),
        (&[a, &same], "there is an export \"a\" already"),
        (&[a, a], "there is an export \"a\" already"),
        (&["--plain", "--group", "g", a], "--group"),
        (&["--plain", "--scan", a], "--scan"),
        (&["--plain", "--verify", a], "--verify"),
        (
            &["--listen", "here", a],
            "--listen here: is no address such as :10809",
        ),
        (
            &["--listen", "0.0.0.0:0", a],
            "other machines could read and write the images",
        ),
        (&["--insecure", a], "--listen"),
        (&["--listen", ":0", "--tls-cert", &text, a], "--tls-key"),
        (&["--listen", ":0", "--tls-key", &text, a], "--tls-cert"),
        (
            &[
                "--listen",
                ":0",
                "--tls-cert",
                "/no/c.pem",
                "--tls-key",
                &text,
                a,
            ],
            "/no/c.pem: cannot be read: No such file",
        ),
        (
            &["--listen", ":0", "--tls-cert", &text, "--tls-key", &text, a],
            "has no certificate in PEM",
        ),
        (
            &["--listen", "192.0.2.1:10809", "--insecure", a],
            "192.0.2.1:10809: cannot listen",
        ),
        (
            &["--limit", "raed=1MB/s", a],
            "there is no call or class \"raed\"",
        ),
        (
            &["--limit", "read=1MB/s", "--limit", "read=2MB/s", a],
            "is given twice",
        ),
        (&["--tls-client-ca", &text, a], "--tls-cert"),
        (&["--tls-unix", a], "--tls-cert"),
        (&["--format", "qcow2", a], "'--format <FORMAT>'"),
        (&["--exports", &folder], "is no regular file"),
        (&["--exports", &text], "text:1: "),
        (&["--plain", &format!("{a},scan")], "--plain shares nothing"),
        (&["--memory", "0", a], "'--memory <MIB>'"),
        (&["--workers", "0", a], "'--workers <N>'"),
        (&["--connections", "0", a], "'--connections <N>'"),
        (&["--socket", &text, a], "is there, and is no socket"),
        (&["--socket", &missing, a], "cannot listen: No such file"),
        (&["--socket", &long, a], "cannot listen"),
    ] {
        let sentence = refused(&place, args);
        assert!(sentence.contains(words), "{args:?}: {sentence}");
    }
    assert!(!place.path().join("text.lock").exists());
    // A second image that cannot be served takes the first one's service with it.
    refused(&place, &["--limit", "read=1MB/s", a, &empty]);
    let said = place.say(&["status"]);
    assert!(!said.out.contains("read"), "{said:?}");
    let status = place.json(&["drive", "status", "--json"]);
    assert_eq!(status["servers"], serde_json::json!([]));
}

#[test]
fn what_cannot_be_written_is_served_read_only() {
    let test = "what_cannot_be_written_is_served_read_only";
    let place = Place::bare();
    let path = image(&place, "a.raw", 1 << 20);
    let made = Command::new("losetup")
        .args(["-f", "--show", "-r", &path])
        .output();
    let Some(made) = made.ok().filter(|made| made.status.success()) else {
        return skip(test, "no loop device without privileges");
    };
    let device = String::from_utf8(made.stdout).expect("a name");
    let device = device.trim_end();
    let result = std::panic::catch_unwind(|| {
        let sentence = refused(&place, &[device]);
        assert!(sentence.contains("--read-only serves it"), "{sentence}");
        let drive = super::Drive::start(&place, &["--read-only", device]);
        let name = device.rsplit('/').next().expect("a name");
        let mut client = super::Client::new(&drive.socket, name);
        assert_eq!(client.read(0, 4096), Ok(vec![0; 4096]));
        assert_eq!(client.write(0, &[1; 512], false), 1);
        assert_eq!(drive.end("TERM").code, Some(0));
    });
    let freed = Command::new("losetup").args(["-d", device]).status();
    assert!(freed.is_ok_and(|status| status.success()));
    result.expect("as it should be");
}
