//! Names and options of single images, files of exports, limits, discard, and the access to sockets.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;

use super::refused::refused;
use super::server::{Drive, image};
use crate::nbd::{Client, TRIM, ZEROES};
use crate::support::{Place, skip};

const SIZE: u64 = 1 << 20;

/// `VM/disk.raw`, twice; other folders here would be those of services that have ended.
fn machines(place: &Place) -> [String; 2] {
    ["vm1", "vm2"].map(|name| {
        let folder = place.path().join(".machines").join(name);
        std::fs::create_dir_all(folder).expect("a folder");
        image(place, &format!(".machines/{name}/disk.raw"), SIZE)
    })
}

#[test]
fn images_with_files_of_one_name_are_named() {
    let place = Place::bare();
    let [first, second] = machines(&place);
    let sentence = refused(&place, &[&first, &second]);
    assert!(
        sentence.contains("there is an export \"disk\" already"),
        "{sentence}"
    );
    assert!(sentence.contains(&format!("NAME={second}")), "{sentence}");
    let args = [format!("web={first}"), format!("mail={second},ro")];
    let drive = Drive::of(
        place.bonsai(&["drive", "serve", &args[0], &args[1]]),
        &[&second],
    );
    assert_eq!(
        Client::new(&drive.socket, "web").write(0, &[1; 512], false),
        0
    );
    let mut mail = Client::new(&drive.socket, "mail");
    assert_eq!(mail.write(0, &[1; 512], false), 1, "it is read-only");
    assert_eq!(mail.read(0, 512), Ok(vec![0; 512]));
    assert_eq!(drive.end("TERM").code, Some(0));
}

#[test]
fn a_file_of_exports_says_the_same() {
    let place = Place::bare();
    let [_, second] = machines(&place);
    let file = place.path().join(".machines/exports.toml");
    let text = "
[[export]]
name = \"web\"
path = \"vm1/disk.raw\"
group = \"lab\"
limits = [\"write=1000/s\"]

[[export]]
name = \"mail\"
path = \"vm2/disk.raw\"
read_only = true
group = \"lab\"
discard = false
";
    std::fs::write(&file, text).expect("written");
    let file = file.display().to_string();
    let drive = Drive::of(
        place.bonsai(&["drive", "serve", "--exports", &file]),
        &[&second],
    );
    let status = place.json(&["drive", "status", "--json"]);
    let exports = &status["servers"][0]["exports"];
    assert_eq!(
        (&exports[0]["name"], &exports[1]["name"]),
        (&"web".into(), &"mail".into())
    );
    assert_eq!(
        (&exports[0]["read_only"], &exports[1]["read_only"]),
        (&false.into(), &true.into())
    );
    assert_eq!(exports[1]["sharing"]["group"], "lab");
    // The socket of its own has the first name, without what leads out of its folder.
    let own = place.path().join(".drive").join("web.sock");
    assert_eq!(drive.socket, own);
    let services = place.json(&["status", "--interval", "10ms", "--json"]);
    assert!(services.to_string().contains("1000/s"), "{services:#}");
    assert_eq!(drive.end("TERM").code, Some(0));
    std::fs::write(&file, text.replace("\"web\"", "\"../../web\"")).expect("written");
    let drive = Drive::of(
        place.bonsai(&["drive", "serve", "--exports", &file]),
        &[&second],
    );
    let uri = "nbd+unix:///../../web?socket=";
    assert!(drive.uris[0].starts_with(uri), "{:?}", drive.uris);
    assert!(drive.socket.ends_with(".drive/.._.._web.sock"));
    assert_eq!(drive.end("TERM").code, Some(0));
    std::fs::write(&file, text.replace("discard", "dicsard")).expect("written");
    let sentence = refused(&place, &["--exports", &file]);
    assert!(
        sentence.contains("exports.toml:13: there is no setting \"dicsard\" here"),
        "{sentence}"
    );
}

#[test]
fn a_limit_that_an_export_cannot_hold_is_refused_by_whoever_asks() {
    let place = Place::bare();
    let path = image(&place, "a.raw", SIZE);
    let held = "a serves a disk image, and holds limits on all, read, write, disk, pread64, pwrite64 alone";
    let idle = [
        "sync=2/s",
        "fsync=1/s",
        "send=5MB/s",
        "read@/x=1MB/s",
        "read/stream=1MB/s",
        "open=1/s",
    ];
    for limit in idle {
        let sentence = refused(&place, &["--limit", limit, &path]);
        assert!(sentence.starts_with(held), "{limit}: {sentence}");
        let sentence = refused(&place, &[&format!("{path},limit={limit}")]);
        assert!(sentence.starts_with(held), "{limit}: {sentence}");
    }
    let drive = Drive::start(&place, &[&path]);
    for limit in idle {
        let said = place.say(&["set", "a", "read=7MB/s", limit]);
        assert_eq!(said.code, Some(2), "{limit}: {said:?}");
        assert!(said.err.contains(held), "{limit}: {said:?}");
    }
    let status = place.json(&["status", "--interval", "10ms", "--json"]);
    assert!(
        !status.to_string().contains("7MB/s"),
        "nothing is half applied: {status:#}"
    );
    for limit in [
        "read=5MB/s",
        "write=5/s",
        "disk=1GB/s",
        "all=9000/s",
        "pread64=800/s",
        "sync=unlimited",
    ] {
        let said = place.say(&["set", "a", limit]);
        assert_eq!(said.code, Some(0), "{limit}: {said:?}");
    }
    let made = place.say(&["group", "create", "g", "--limit", "read=100MB/s"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    for (args, words) in [
        (
            &["set", "a", "read=1MB/s", "--event-loops", "on"][..],
            "no event loops",
        ),
        (
            &["group", "join", "g", "a"],
            "its requests draw on no group",
        ),
    ] {
        let said = place.say(args);
        assert_eq!(said.code, Some(2), "{args:?}: {said:?}");
        assert!(said.err.contains(words), "{args:?}: {said:?}");
    }
    assert_eq!(drive.end("TERM").code, Some(0));
}

#[test]
fn the_daemon_refuses_what_an_export_cannot_hold() {
    let place = Place::bare();
    let path = image(&place, "a.raw", SIZE);
    let mut daemon = place
        .bonsai(&["daemon"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("bonsai");
    let drive = Drive::start(&place, &[&path]);
    let end = std::time::Instant::now() + crate::support::PATIENCE;
    let result = std::panic::catch_unwind(|| {
        loop {
            // It has seen the service, and is asked from then on.
            let said = place.say(&["set", "a", "write=9/s"]);
            if said.out.contains("a.limits.write") {
                break;
            }
            assert!(std::time::Instant::now() < end, "{said:?}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        for limit in ["sync=2/s", "send=5MB/s", "recv=5MB/s", "read@/x=1MB/s"] {
            let said = place.say(&["set", "a", limit]);
            assert_eq!(said.code, Some(2), "{limit}: {said:?}");
            assert!(said.err.contains("a serves a disk image"), "{said:?}");
        }
        let said = place.say(&["set", "a", "read=5MB/s"]);
        assert_eq!(said.code, Some(0), "{said:?}");
    });
    crate::support::signal(daemon.id(), "TERM");
    assert!(daemon.wait().expect("ended").success());
    assert_eq!(drive.end("TERM").code, Some(0));
    result.expect("as it should be");
}

#[test]
fn without_discard_blocks_stay_allocated() {
    let place = Place::bare();
    let [kept, freed] = machines(&place);
    for path in [&kept, &freed] {
        std::fs::write(path, vec![7; 1 << 20]).expect("written");
    }
    let images = [format!("kept={kept},discard=off"), format!("freed={freed}")];
    let drive = Drive::of(
        place.bonsai(&["drive", "serve", &images[0], &images[1]]),
        &[&freed],
    );
    let blocks = |path: &str| {
        // Space is counted once it is given out.
        std::fs::File::open(path)
            .and_then(|file| file.sync_all())
            .expect("synced");
        std::fs::metadata(path).expect("a file").blocks()
    };
    let before = blocks(&kept);
    assert!(before > 0 && before == blocks(&freed));
    for name in ["kept", "freed"] {
        let mut client = Client::new(&drive.socket, name);
        assert_eq!(client.ask((0, ZEROES), 0, 1 << 19, &[]), 0);
        assert_eq!(client.ask((0, TRIM), 1 << 19, 1 << 19, &[]), 0);
        assert_eq!(client.read(0, 4096), Ok(vec![0; 4096]));
        let other = client.read(1 << 19, 4096).expect("read");
        assert_eq!(
            other == vec![7; 4096],
            name == "kept",
            "a trim is ignored there"
        );
    }
    assert_eq!(blocks(&kept), before);
    assert_eq!(blocks(&freed), 0);
    assert_eq!(drive.end("TERM").code, Some(0));
    let drive = Drive::start(&place, &["--discard", "off", &freed]);
    let info = Command::new("nbdinfo")
        .args(["--json", &drive.uris[0]])
        .output();
    match info {
        Ok(info) => {
            let info = String::from_utf8_lossy(&info.stdout).into_owned();
            assert!(info.contains("\"can_trim\": false"), "{info}");
            assert!(info.contains("\"can_zero\": true"), "{info}");
        }
        Err(_) => skip(
            "without_discard_blocks_stay_allocated",
            "nbdinfo is not installed (libnbd-bin)",
        ),
    }
}

#[test]
fn a_socket_has_the_mode_and_group_that_are_said() {
    let place = Place::bare();
    let path = image(&place, "a.raw", SIZE);
    let socket = place.path().join("s.sock").display().to_string();
    let mode = |drive: &Drive| {
        let meta = std::fs::metadata(&drive.socket).expect("a socket");
        (meta.permissions().mode() & 0o7777, meta.gid())
    };
    let drive = Drive::start(
        &place,
        &["--socket", &socket, "--socket-mode", "0666", &path],
    );
    assert_eq!(mode(&drive).0, 0o666);
    assert_eq!(drive.end("TERM").code, Some(0));
    let own = std::fs::metadata(place.path())
        .expect("a folder")
        .gid()
        .to_string();
    let drive = Drive::start(
        &place,
        &["--socket", &socket, "--socket-group", &own, &path],
    );
    assert_eq!(mode(&drive), (0o660, own.parse().expect("a number")));
    assert_eq!(drive.end("TERM").code, Some(0));
    for (args, words) in [
        (&["--socket-mode", "0660"][..], "--socket"),
        (
            &["--socket", &socket, "--socket-mode", "0888"],
            "octal number such as 0660",
        ),
        (
            &["--socket", &socket, "--socket-group", "no such group"],
            "no such group",
        ),
    ] {
        let sentence = refused(&place, &[args, &[path.as_str()]].concat());
        assert!(sentence.contains(words), "{args:?}: {sentence}");
    }
    assert!(!std::path::Path::new(&socket).exists());
    // What has the name of its lock file is opened only if it is one: a pipe would wait.
    let lock = format!("{socket}.lock");
    let made = Command::new("mkfifo").arg(&lock).status();
    assert!(made.expect("mkfifo").success());
    let sentence = refused(&place, &["--socket", &socket, &path]);
    assert!(sentence.contains("cannot listen"), "{sentence}");
    std::fs::remove_file(&lock).expect("removed");
    std::os::unix::fs::symlink(&path, &lock).expect("a link");
    let sentence = refused(&place, &["--socket", &socket, &path]);
    assert!(sentence.contains("cannot listen"), "{sentence}");
}

#[test]
fn names_of_files_never_reach_a_terminal_as_they_are() {
    let place = Place::bare();
    let path = image(&place, "x\u{1b}[31m\nred\u{9b}1m.raw", SIZE);
    let mut command = place.bonsai(&["drive", "serve", "--verbose"]);
    command.arg(&path);
    let drive = Drive::of(command, &["1m.raw"]);
    let status = place.say(&["drive", "status"]).out;
    let missing = place.say(&["drive", "serve", "no\u{1b}\nsuch.raw"]).err;
    let said = drive.end("TERM").err;
    for text in [status, missing, said] {
        let is_right = |c: char| c == '\n' || !c.is_control();
        assert!(text.chars().all(is_right), "{text:?}");
        assert!(text.contains("\\u{1b}"), "{text:?}");
    }
}
