//! `bonsai trace record`: exports of a server and devices, to their end and to a sudden one.

use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{PATIENCE, Place, Said, signal, skip};

/// Bytes of the images here: 2048 blocks.
const SIZE: u64 = 8 << 20;

/// A process that ends with the test.
struct Going(Option<Child>);

impl Going {
    fn start(place: &Place, args: &[&str]) -> Self {
        let mut command = place.bonsai(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Some(command.spawn().expect("bonsai")))
    }

    fn pid(&self) -> u32 {
        self.0.as_ref().expect("not ended").id()
    }

    /// Sends a signal, and waits for the end.
    fn end(mut self, name: &str) -> Said {
        signal(self.pid(), name);
        let child = self.0.take().expect("not ended");
        child.wait_with_output().expect("ended").into()
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn until(what: &str, mut right: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !right() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A file of the folder, by its path.
fn file(folder: &Path, name: &str) -> String {
    folder.join(name).display().to_string()
}

/// Whether a program is there.
fn has(test: &str, program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        skip(test, &format!("{program} is not installed"));
    }
    there
}

/// A server of an image `web`, and the address of its export.
fn serve(place: &Place, folder: &Path, more: &[&str]) -> (Going, String) {
    let (image, socket) = (file(folder, "web.raw"), file(folder, "socket"));
    let made = std::fs::File::create(&image).expect("an image");
    made.set_len(SIZE).expect("its size");
    let args = ["drive", "serve", &image, "--socket", &socket];
    let going = Going::start(place, &[&args, more].concat());
    until("it listens", || {
        let said = place.say(&["drive", "status"]);
        said.out.contains("web (")
    });
    (going, format!("nbd+unix:///web?socket={socket}"))
}

fn qemu(uri: &str, commands: &[&str]) {
    let mut io = Command::new("qemu-io");
    io.args(["-f", "raw", "--cache=writeback"]);
    for command in commands {
        io.args(["-c", command]);
    }
    let done = io.arg(uri).output().expect("qemu-io");
    assert!(done.status.success(), "{done:?}");
}

fn is_recorded(place: &Place, requests: &str) -> bool {
    let said = place.say(&["drive", "status"]);
    said.out.contains(&format!("is recorded: {requests}"))
}

/// Counts of a trace: requests, reads and writes of blocks, different contents.
fn counts(found: &Value) -> [u64; 4] {
    let of = &found["counts"];
    [
        &of["requests"],
        &of["accesses"][0],
        &of["accesses"][1],
        &of["contents"],
    ]
    .map(|value| value.as_u64().expect("a number"))
}

const ASKED: [&str; 4] = [
    "write -P 1 0 64k",
    "write -P 2 64k 4k",
    "read 0 68k",
    "write -P 1 1M 4k",
];

#[test]
fn a_server_that_runs_is_recorded_until_it_is_enough() {
    const TEST: &str = "a_server_that_runs_is_recorded_until_it_is_enough";
    if !has(TEST, "qemu-io") {
        return;
    }
    let place = Place::bare();
    let folder = tempfile::tempdir().expect("a folder");
    let (server, uri) = serve(&place, folder.path(), &[]);
    let trace = file(folder.path(), "live.btr");
    let args = ["trace", "record", "--nbd", "web", "-o", &trace];
    let recorder = Going::start(&place, &args);
    until("it records", || is_recorded(&place, "0 requests"));
    qemu(&uri, &ASKED);
    let said = recorder.end("INT");
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.err.contains("live.btr: ") && !said.err.contains("lost"),
        "{said:?}"
    );
    let mode = std::fs::metadata(&trace).expect("a trace").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let found = place.json(&["trace", "stat", "--json", &trace]);
    let [_, reads, writes, contents] = counts(&found);
    assert_eq!((reads, writes, contents), (17, 18, 2), "{found:#}");
    assert_eq!(
        (&found["lost"], &found["cut_off"]),
        (&0.into(), &false.into())
    );
    // Its own file is not overwritten.
    let again = place.say(&args);
    assert_eq!(again.code, Some(2), "{again:?}");
    assert!(again.err.contains("is there already"), "{again:?}");
    // One that is killed leaves what came until a second ago.
    let killed = file(folder.path(), "killed.btr");
    let args = ["trace", "record", "--nbd", "web", "-o", &killed];
    let recorder = Going::start(&place, &args);
    until("it records", || is_recorded(&place, "0 requests"));
    qemu(&uri, &ASKED);
    cut_off_but_readable(&place, recorder, &killed);
    assert_eq!(server.end("TERM").code, Some(0));
}

/// Kills who writes a trace once the last request is in it, and looks at what is left.
fn cut_off_but_readable(place: &Place, writer: Going, trace: &str) {
    let stat = ["trace", "stat", "--cut-off", "--json", trace];
    until("its frame is there", || {
        let said = place.say(&stat);
        let found: Option<Value> = serde_json::from_str(&said.out).ok();
        found.is_some_and(|found| counts(&found)[1..] == [17, 18, 2])
    });
    signal(writer.pid(), "KILL");
    drop(writer);
    let said = place.say(&["trace", "stat", trace]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("is cut off after record"), "{said:?}");
    let found = place.json(&stat);
    assert_eq!(counts(&found)[1..], [17, 18, 2]);
    assert_eq!(found["cut_off"], true);
    let said = place.say(&["trace", "stat", "--cut-off", trace]);
    assert!(said.out.starts_with("cut off    the trace is"), "{said:?}");
}

#[test]
fn a_server_records_from_its_start_to_its_end() {
    const TEST: &str = "a_server_records_from_its_start_to_its_end";
    if !has(TEST, "qemu-io") {
        return;
    }
    let place = Place::bare();
    for is_killed in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let trace = file(folder.path(), "all.btr");
        let (server, uri) = serve(&place, folder.path(), &["--record", &trace]);
        let second = file(folder.path(), "second.btr");
        let said = place.say(&["trace", "record", "--nbd", "web", "-o", &second]);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.err.contains("web: is recorded already"), "{said:?}");
        assert!(!Path::new(&second).exists());
        qemu(&uri, &ASKED);
        if is_killed {
            cut_off_but_readable(&place, server, &trace);
            continue;
        }
        let said = server.end("TERM");
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(said.err.contains(" recorded\n"), "{said:?}");
        let found = place.json(&["trace", "stat", "--json", &trace]);
        assert_eq!(counts(&found)[1..], [17, 18, 2]);
        let mode = std::fs::metadata(&trace).expect("a trace").permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
    }
}

/// Something that is mounted for a test.
struct Mounted(PathBuf);

impl Mounted {
    fn new(words: &[&str], at: PathBuf) -> Option<Self> {
        std::fs::create_dir_all(&at).expect("a folder");
        let done = Command::new("mount").args(words).arg(&at).output();
        done.is_ok_and(|done| done.status.success())
            .then_some(Self(at))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_told_and_the_images_are_served_on() {
    const TEST: &str = "a_full_disk_is_told_and_the_images_are_served_on";
    if !has(TEST, "qemu-io") || !has(TEST, "nbdcopy") {
        return;
    }
    let place = Place::bare();
    let folder = tempfile::tempdir().expect("a folder");
    let words = ["-t", "tmpfs", "-o", "size=16k", "none"];
    let Some(full) = Mounted::new(&words, folder.path().join("full")) else {
        return skip(TEST, "no mount without privileges");
    };
    let trace = file(&full.0, "all.btr");
    let (server, uri) = serve(&place, folder.path(), &["--record", &trace]);
    // 2048 different blocks: 32 KiB of fingerprints.
    let source = folder.path().join("source");
    let made = std::fs::File::create(&source).expect("a file");
    for block in 0..SIZE / 4096 {
        let bytes = (block + 1).to_le_bytes().repeat(512);
        made.write_all_at(&bytes, block * 4096).expect("written");
    }
    let mut copy = Command::new("nbdcopy");
    let done = copy.arg(&source).arg(&uri).status();
    assert!(done.expect("nbdcopy").success());
    until("the recording has ended", || !is_recorded(&place, ""));
    qemu(&uri, &["read 8 8", "write -P 9 0 4k", "read -P 9 0 4k"]);
    let said = server.end("TERM");
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.err
            .contains("the recording has ended, the images are served on: No space left"),
        "{said:?}"
    );
}

#[test]
fn what_cannot_be_recorded_is_refused_in_a_sentence() {
    let place = Place::bare();
    let trace = file(place.path(), "x.btr");
    let refused = |args: &[&str], sentence: &str| {
        let said = place.say(&[&["trace", "record", "-o", &trace], args].concat());
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.err.contains(sentence), "{said:?}");
        assert!(!Path::new(&trace).exists(), "nothing is left");
    };
    refused(
        &["--nbd", "web"],
        "web: no images are served (bonsai drive serve)",
    );
    refused(
        &["--device", "nosuch"],
        "nosuch: there is no such block device",
    );
    refused(&[], "--nbd");
    refused(&["--nbd", "a", "--device", "b"], "cannot be used with");
    // Somebody who is not root.
    let disk = std::fs::read_dir("/sys/block")
        .into_iter()
        .flatten()
        .flatten()
        .next();
    let is_root = rustix::process::geteuid().is_root();
    let Some(disk) = disk.filter(|_| is_root) else {
        return;
    };
    let disk = disk.file_name().to_string_lossy().into_owned();
    let mut command = place.bonsai(&["trace", "record", "-o", &trace, "--device", &disk]);
    if let Ok(output) = command.uid(65_534).gid(65_534).output() {
        let said: Said = output.into();
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(
            said.err.contains("only root can record devices"),
            "{said:?}"
        );
    }
}

/// A loop device of a file.
struct Loop(String);

impl Loop {
    fn new(image: &str) -> Option<Self> {
        let made = Command::new("losetup")
            .args(["--find", "--show", image])
            .output();
        let made = made.ok().filter(|made| made.status.success())?;
        let name = String::from_utf8(made.stdout).expect("UTF-8");
        Some(Self(name.trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// Where tracefs is, or is mounted for as long as the test.
fn tracefs(folder: &Path) -> Option<(PathBuf, Option<Mounted>)> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let found = mounts.lines().find(|line| line.contains(" - tracefs "));
    if let Some(line) = found {
        return Some((line.split(' ').nth(4)?.into(), None));
    }
    let mounted = Mounted::new(&["-t", "tracefs", "tracefs"], folder.join("tracefs"))?;
    Some((mounted.0.clone(), Some(mounted)))
}

fn dd(words: &[&str]) {
    let done = Command::new("dd").args(words).output().expect("dd");
    assert!(done.status.success(), "{done:?}");
}

/// A loop device, and where tracefs is.
fn device(test: &str, folder: &Path) -> Option<(Loop, PathBuf, Option<Mounted>)> {
    let image = file(folder, "image");
    let made = std::fs::File::create(&image).expect("an image");
    made.set_len(SIZE).expect("its size");
    let Some(device) = Loop::new(&image) else {
        skip(test, "no loop device (root and losetup)");
        return None;
    };
    let Some((root, mounted)) = tracefs(folder) else {
        skip(test, "no tracefs, or no mount without privileges");
        return None;
    };
    if !root.join("events/block/block_rq_issue").exists() {
        skip(test, "the kernel has no events of block devices");
        return None;
    }
    Some((device, root, mounted))
}

/// A recorder of a device that takes events already, and its instance.
fn recorded(place: &Place, device: &Loop, root: &Path, trace: &str) -> (Going, PathBuf) {
    let args = ["trace", "record", "--device", &device.0, "-o", trace];
    let recorder = Going::start(place, &args);
    let instance = root.join(format!("instances/bonsai-{}", recorder.pid()));
    until("the recorder is ready", || {
        let enabled = instance.join("events/block/block_rq_issue/enable");
        std::fs::read_to_string(enabled).is_ok_and(|text| text.trim() == "1")
    });
    (recorder, instance)
}

#[test]
fn events_that_the_kernel_has_no_room_for_are_counted() {
    const TEST: &str = "events_that_the_kernel_has_no_room_for_are_counted";
    const ALL: u64 = 16_384;
    let place = Place::bare();
    let folder = tempfile::tempdir().expect("a folder");
    let Some((device, root, _mounted)) = device(TEST, folder.path()) else {
        return;
    };
    let trace = file(folder.path(), "live.btr");
    let (recorder, instance) = recorded(&place, &device, &root, &trace);
    // A recorder that sleeps, with room for some hundred events.
    signal(recorder.pid(), "STOP");
    std::fs::write(instance.join("buffer_size_kb"), "64").expect("less room");
    let from = format!("if={}", device.0);
    let count = format!("count={ALL}");
    dd(&[&from, "of=/dev/null", "bs=512", &count, "iflag=direct"]);
    signal(recorder.pid(), "CONT");
    let said = recorder.end("INT");
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.err.contains("requests were lost"), "{said:?}");
    let found = place.json(&["trace", "stat", "--json", &trace]);
    let lost = found["lost"].as_u64().expect("a number");
    let there = counts(&found)[0];
    // Whatever looks at new devices may have read some of it, too.
    assert!(
        (ALL..ALL + 100).contains(&(there + lost)),
        "{there} and {lost}"
    );
    assert!(lost > 0 && there > 0, "{there} and {lost}");
}

#[test]
fn a_device_is_recorded_by_the_kernels_events() {
    const TEST: &str = "a_device_is_recorded_by_the_kernels_events";
    let place = Place::bare();
    let folder = tempfile::tempdir().expect("a folder");
    let Some((device, root, _mounted)) = device(TEST, folder.path()) else {
        return;
    };
    let trace = file(folder.path(), "live.btr");
    let (recorder, instance) = recorded(&place, &device, &root, &trace);
    let (from, to) = (format!("if={}", device.0), format!("of={}", device.0));
    dd(&[&from, "of=/dev/null", "bs=8k", "count=100", "iflag=direct"]);
    let more = ["bs=4k", "count=20", "seek=1000", "oflag=direct"];
    dd(&[&["if=/dev/zero", &to][..], &more].concat());
    // Another device's are not in it.
    let said = recorder.end("INT");
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.err.contains("there are no contents"), "{said:?}");
    assert!(!instance.exists(), "nothing is left in tracefs");
    let said = place.say(&["trace", "export", &trace, "--to", "csv", "-o", "-"]);
    let name = device.0.trim_start_matches("/dev/");
    let of = |op: &str, offset: u64, length: u64| {
        let wanted = format!(",{name},{offset},{length},{op},");
        said.out
            .lines()
            .filter(|line| line.ends_with(&wanted))
            .count()
    };
    // Whatever looks at new devices may have read some of it, too.
    assert!(
        (0..100).all(|n| of("read", n * 8192, 8192) >= 1),
        "{said:?}"
    );
    assert!(
        (1000..1020).all(|n| of("write", n * 4096, 4096) == 1),
        "{said:?}"
    );
    let writes = said.out.lines().filter(|line| line.contains(",write,"));
    assert_eq!(writes.count(), 20);
    let found = place.json(&["trace", "stat", "--json", &trace]);
    assert_eq!(found["volumes"][0]["bytes"], SIZE);
    assert_eq!(
        (&found["lost"], &found["cut_off"]),
        (&0.into(), &false.into())
    );
    // One that is killed leaves its instance to the next one, which removes it.
    let killed = file(folder.path(), "killed.btr");
    let args = ["trace", "record", "--device", &device.0, "-o", &killed];
    let recorder = Going::start(&place, &args);
    let left = root.join(format!("instances/bonsai-{}", recorder.pid()));
    until("the recorder has begun", || left.exists());
    signal(recorder.pid(), "KILL");
    drop(recorder);
    let next = file(folder.path(), "next.btr");
    let said = place.say(&[
        "trace", "record", "--device", name, "-o", &next, "--for", "50ms",
    ]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(!left.exists(), "{}", left.display());
}
