//! Formats: what guests write never changes how their images are opened, and what is not raw is refused.

use std::os::unix::fs::FileExt as _;
use std::process::Command;

use super::refused::refused;
use super::server::{Drive, image};
use crate::nbd::Client;
use crate::support::{Place, skip};

const SIZE: u64 = 1 << 20;

/// Signatures that a guest may write, and where.
const SIGNATURES: [(u64, &[u8]); 4] = [
    (0, b"QFI\xfb\0\0\0\x03"),
    (64, &[0x7f, 0x10, 0xda, 0xbe]),
    (SIZE - 512, b"conectix"),
    (0, &[0x1f, 0x8b, 8]),
];

#[test]
fn a_guest_keeps_no_server_from_starting_again() {
    for (at, magic) in SIGNATURES {
        let place = Place::bare();
        let [evil, good] = ["evil.raw", "good.raw"].map(|name| image(&place, name, SIZE));
        let args = [evil.as_str(), good.as_str()];
        let drive = Drive::start(&place, &args);
        let mut client = Client::new(&drive.socket, "evil");
        assert_eq!(client.write(at, magic, true), 0);
        // A kill leaves no time for anything to be recorded at the end.
        drop(client);
        assert_eq!(drive.end("KILL").code, None);
        let drive = Drive::start(&place, &args);
        let mut client = Client::new(&drive.socket, "evil");
        assert_eq!(client.read(at, magic.len()), Ok(magic.to_vec()));
        assert_eq!(drive.end("TERM").code, Some(0));
        // Moved and resized by the administrator, it is the same image.
        let moved = place.path().join("moved.raw").display().to_string();
        std::fs::rename(&evil, &moved).expect("renamed");
        let file = std::fs::File::options().write(true).open(&moved);
        file.and_then(|file| file.set_len(2 * SIZE)).expect("grown");
        let drive = Drive::start(&place, &[&moved]);
        assert_eq!(drive.end("TERM").code, Some(0));
        // A copy is another file, which nobody has served.
        std::fs::copy(&moved, &evil).expect("copied");
        let at_end = at > SIZE / 2;
        if at_end {
            let file = std::fs::File::options().write(true).open(&evil);
            file.and_then(|file| file.set_len(SIZE)).expect("cut");
        }
        let sentence = refused(&place, &[&evil, &good]);
        assert!(
            sentence.contains("only raw images are served"),
            "{sentence}"
        );
        assert!(sentence.contains("say format=raw"), "{sentence}");
        assert!(
            sentence.contains("--keep-going serves the others"),
            "{sentence}"
        );
        assert!(sentence.contains("backing file"), "{sentence}");
        // Of those that are to be served, the others are; or it is said to be raw, and that holds.
        let drive = Drive::start(&place, &["--keep-going", &evil, &good]);
        assert_eq!(drive.uris.len(), 1, "{:?}", drive.uris);
        let said = drive.end("TERM");
        assert!(said.err.contains("the others are served"), "{said:?}");
        let raw = format!("{evil},format=raw");
        let drive = Drive::of(place.bonsai(&["drive", "serve", &raw]), &[&evil]);
        assert_eq!(drive.end("TERM").code, Some(0));
        let drive = Drive::start(&place, &[&evil]);
        assert_eq!(drive.end("TERM").code, Some(0));
    }
}

#[test]
fn an_image_that_is_written_over_by_another_format_is_looked_at_again() {
    let place = Place::bare();
    let path = image(&place, "a.raw", SIZE);
    let drive = Drive::start(&place, &[&path]);
    assert_eq!(drive.end("TERM").code, Some(0));
    // What `qemu-img create` and `cp` do to a file that is there.
    let file = std::fs::File::create(&path).expect("a file");
    file.write_all_at(b"QFI\xfb\0\0\0\x03", 0).expect("written");
    file.set_len(196_616).expect("made long");
    assert!(refused(&place, &[&path]).contains("looks like qcow2"));
    // Of an image that was served for reading alone, nothing is known that a guest could not have changed.
    let path = image(&place, "b.raw", SIZE);
    let drive = Drive::start(&place, &["--read-only", &path]);
    assert_eq!(drive.end("TERM").code, Some(0));
    let file = std::fs::File::options().write(true).open(&path);
    let file = file.expect("a file");
    file.write_all_at(b"QED\0", 0).expect("written");
    assert!(refused(&place, &[&path]).contains("looks like qed"));
    let drive = Drive::start(&place, &["--format", "raw", &path]);
    assert_eq!(drive.end("TERM").code, Some(0));
}

#[test]
fn what_cannot_be_recorded_is_said() {
    let place = Place::bare();
    let path = image(&place, "a.raw", SIZE);
    // A file where the folder of records would be.
    let state = place.path().join("state");
    std::fs::create_dir(&state).expect("a folder");
    std::fs::write(state.join("drive.raw-images"), b"").expect("written");
    let drive = Drive::start(&place, &[&path]);
    let said = drive.end("TERM");
    assert!(said.err.contains("cannot be recorded"), "{said:?}");
    assert!(said.err.contains("say format=raw"), "{said:?}");
    let drive = Drive::start(&place, &["--format", "raw", &path]);
    let said = drive.end("TERM");
    assert!(!said.err.contains("cannot be recorded"), "{said:?}");
}

#[test]
fn a_loop_device_and_its_file_are_one_image() {
    let test = "a_loop_device_and_its_file_are_one_image";
    let place = Place::bare();
    let path = image(&place, "a.raw", SIZE);
    let made = Command::new("losetup")
        .args(["-f", "--show", &path])
        .output();
    let Some(made) = made.ok().filter(|made| made.status.success()) else {
        return skip(test, "no loop device without privileges");
    };
    let device = String::from_utf8(made.stdout).expect("a name");
    let device = device.trim_end();
    let result = std::panic::catch_unwind(|| {
        let drive = Drive::start(&place, &[device]);
        let name = device.rsplit('/').next().expect("a name");
        let mut client = Client::new(&drive.socket, name);
        assert_eq!(client.write(0, b"KDMV", true), 0);
        let said = drive.end("TERM");
        assert!(!said.err.contains("cannot be recorded"), "{said:?}");
        let drive = Drive::start(&place, &[device]);
        assert_eq!(drive.end("TERM").code, Some(0));
    });
    let freed = Command::new("losetup").args(["-d", device]).status();
    assert!(freed.is_ok_and(|status| status.success()));
    result.expect("as it should be");
    let drive = Drive::start(&place, &[&path]);
    assert_eq!(drive.end("TERM").code, Some(0));
}
