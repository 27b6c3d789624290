//! Disks: devices, errors of theirs, and what they lose.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bonsai_nbd::image::{Image, ImageError};

use crate::client::{Client, FLUSH, TRIM, ZEROES};
use crate::house::{House, Sharing, fused, has, skip};

const SIZE: u64 = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

fn run(program: &str, args: &[&str], path: &Path) -> bool {
    let output = Command::new(program).args(args).arg(path).output();
    output.is_ok_and(|output| output.status.success())
}

/// A loop device, until the end.
pub(crate) struct Loop(pub(crate) PathBuf);

impl Loop {
    /// Over a file; `None`, and the reason in the log, where there can be none.
    pub(crate) fn new(test: &str, file: &Path, options: &[&str]) -> Option<Self> {
        let output = Command::new("losetup")
            .args(["-f", "--show"])
            .args(options)
            .arg(file)
            .output();
        match output {
            Ok(output) if output.status.success() => {
                let name = String::from_utf8(output.stdout).unwrap();
                Some(Self(PathBuf::from(name.trim_end())))
            }
            _ => {
                skip(test, "no loop device without privileges");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["-d"], &self.0);
    }
}

/// A mounted file system, until the end.
pub(crate) struct Mount(pub(crate) PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        run("umount", &[], &self.0);
    }
}

#[test]
fn a_device_takes_zeroes_and_trims_of_any_size() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    File::create(&file).unwrap().set_len(SIZE).unwrap();
    let test = "a_device_takes_zeroes_and_trims_of_any_size";
    let Some(device) = Loop::new(test, &file, &["--sector-size", "4096"]) else {
        return;
    };
    symlink(&device.0, folder.path().join("a")).unwrap();
    let house = House::over(folder, &["a"], SIZE, |_| {});
    assert!(house.exports[0].image().is_device());
    assert_eq!(house.exports[0].info().size, SIZE);
    let mut client = Client::new(&house.socket(), "a");
    let mut model = vec![0x5a; 1 << 20];
    assert_eq!(client.write(0, &model, true), 0);
    // Flags: none, no hole, and quick.
    for (flags, start, length) in [
        (0, 1000, 200),
        (2, 5000, 20_000),
        (16, 40_000, 100),
        (18, 50_001, 65_536),
        (0, 200_000, 8192),
        (0, 212_992, 8192),
        (0, 300_000, 1),
    ] {
        let error = client.ask((flags, ZEROES), start as u64, length, &[]);
        assert_eq!(error, 0, "{flags} {start} {length}");
        model[start..start + length as usize].fill(0);
        assert_eq!(client.read(0, 1 << 20).unwrap(), model, "{start} {length}");
    }
    for (start, length) in [(500_000, 10), (500_001, 9000), (507_904, 4096)] {
        assert_eq!(
            client.ask((0, TRIM), start, length, &[]),
            0,
            "{start} {length}"
        );
    }
    // What is trimmed may be anything; what is beside it may not.
    for part in [0..500_000, 512_000..1 << 20] {
        let read = client.read(part.start as u64, part.len()).unwrap();
        assert_eq!(read, model[part]);
    }
    assert_eq!(client.ask((0, FLUSH), 0, 0, &[]), 0);
    drop(client);
    drop(house);
    let bytes = std::fs::read(&device.0).unwrap();
    assert_eq!(bytes[..500_000], model[..500_000]);
}

#[test]
fn a_device_that_is_mounted_is_refused() {
    let test = "a_device_that_is_mounted_is_refused";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    File::create(&file).unwrap().set_len(SIZE).unwrap();
    if !has(test, "mkfs.ext4") {
        return;
    }
    let Some(device) = Loop::new(test, &file, &[]) else {
        return;
    };
    assert!(run("mkfs.ext4", &["-q"], &device.0));
    let mounted = Command::new("mount")
        .args([&device.0, folder.path()])
        .status();
    assert!(mounted.unwrap().success());
    let mount = Mount(folder.path().to_owned());
    let error = Image::open(&device.0, false).unwrap_err();
    assert!(matches!(error, ImageError::InUse { .. }), "{error}");
    assert!(Image::open(&device.0, true).is_ok(), "readers harm nobody");
    drop(mount);
    let image = Image::open(&device.0, false).unwrap();
    let mounted = Command::new("mount")
        .args([&device.0, folder.path()])
        .stderr(Stdio::null())
        .status();
    assert!(!mounted.unwrap().success(), "nor can it be mounted now");
    drop(image);
}

#[test]
fn each_client_is_told_once_of_what_the_disk_lost() {
    let test = "each_client_is_told_once_of_what_the_disk_lost";
    let place = tempfile::tempdir().unwrap();
    if !run(
        "mount",
        &["-t", "tmpfs", "-o", "size=1m", "none"],
        place.path(),
    ) {
        return skip(test, "no mount without privileges");
    }
    let _mount = Mount(place.path().to_owned());
    let file = place.path().join("file");
    File::create(&file).unwrap().set_len(SIZE).unwrap();
    let Some(device) = Loop::new(test, &file, &[]) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    symlink(&device.0, folder.path().join("a")).unwrap();
    let mut house = House::over(folder, &["a"], SIZE, |_| {});
    let flush = |client: &mut Client| client.ask((0, FLUSH), 0, 0, &[]);
    let mut clients = [(); 3].map(|()| Client::new(&house.socket(), "a"));
    assert_eq!(flush(&mut clients[0]), 0);
    // More than the file system beneath can take. The page cache can.
    for at in 0..SIZE / 65536 {
        let bytes = [u8::try_from(at + 1).unwrap(); 65536];
        assert_eq!(clients[0].write(at * 65536, &bytes, false), 0);
    }
    for client in &mut clients {
        assert_ne!(flush(client), 0, "what it was told is written is not");
    }
    for client in &mut clients {
        assert_eq!(flush(client), 0, "nothing was lost since");
    }
    let member = house.exports[0].member().unwrap();
    assert_eq!(
        member.extent().known_blocks,
        0,
        "what the disk has is not known"
    );
    assert_eq!(house.exports[0].counters.failed.load(Ordering::Relaxed), 3);
    let events = house.events.lock().unwrap().clone();
    let flushes = events.iter().filter(|of| of.contains("\"flush\""));
    assert_eq!(flushes.count(), 3, "{events:?}");
    assert_eq!(flush(&mut Client::new(&house.socket(), "a")), 0);
    drop(clients);
    let failures = house.try_end().unwrap_err().0;
    assert_eq!(
        failures[0].0, "a",
        "whoever started the server is told as well"
    );
}

#[test]
fn at_the_end_each_image_is_flushed_and_each_failure_named() {
    let test = "at_the_end_each_image_is_flushed_and_each_failure_named";
    let places = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut held = Vec::new();
    for (place, name) in places.iter().zip(["a", "c"]) {
        let options = ["-t", "tmpfs", "-o", "size=1m", "none"];
        if !run("mount", &options, place.path()) {
            return skip(test, "no mount without privileges");
        }
        let mount = Mount(place.path().to_owned());
        let file = place.path().join("file");
        File::create(&file).unwrap().set_len(SIZE).unwrap();
        let Some(device) = Loop::new(test, &file, &[]) else {
            return;
        };
        symlink(&device.0, folder.path().join(name)).unwrap();
        held.push((device, mount));
    }
    let mut house = House::over(folder, &["a", "b", "c"], SIZE, |_| {});
    for name in ["a", "b", "c"] {
        let mut client = Client::new(&house.socket(), name);
        // More than the file systems beneath the devices can take. The page cache can.
        for at in 0..SIZE / 65536 {
            let bytes = [u8::try_from(at + 1).unwrap(); 65536];
            assert_eq!(client.write(at * 65536, &bytes, false), 0);
        }
    }
    let error = house.try_end().unwrap_err();
    let names: Vec<&str> = error.0.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "c"], "{error}");
    let text = error.to_string();
    assert!(text.contains("a: ") && text.contains("c: "), "{text}");
    let lost = |at: usize| house.exports[at].member().unwrap().extent().known_blocks;
    assert!(
        lost(1) <= SIZE / 4096,
        "what the failing disks have is not known"
    );
    assert!(!house.socket().exists());
}

/// The leader's image loses a write that its guest has not flushed: the page cache has it no more, and the disk never had.
#[test]
fn a_leader_that_has_lost_a_write_leads_nobody() {
    const BLOCK: usize = 4096;
    let test = "a_leader_that_has_lost_a_write_leads_nobody";
    let place = tempfile::tempdir().unwrap();
    if !run(
        "mount",
        &["-t", "tmpfs", "-o", "size=1m", "none"],
        place.path(),
    ) {
        return skip(test, "no mount without privileges");
    }
    let _mount = Mount(place.path().to_owned());
    let file = place.path().join("file");
    File::create(&file).unwrap().set_len(SIZE).unwrap();
    let Some(device) = Loop::new(test, &file, &[]) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    symlink(&device.0, folder.path().join("leader")).unwrap();
    let how = Sharing {
        verify: false,
        ..Sharing::default()
    };
    let house = House::sharing_over(folder, &["leader", "other"], SIZE, &how);
    let [mut leader, mut other] =
        ["leader", "other"].map(|name| Client::new(&house.socket(), name));
    let block = |at: u64| (at + 1).to_le_bytes().repeat(BLOCK / 8);
    let member = house.exports[1].member().unwrap();
    let blocks = SIZE / BLOCK as u64;
    for (count, client) in (1..).zip([&mut other, &mut leader]) {
        for at in 0..blocks {
            assert_eq!(client.write(at * BLOCK as u64, &block(at), false), 0);
            // What the learner has no room for is not learned.
            let end = Instant::now() + PATIENCE;
            while member.extent().known_blocks < (count - 1) * blocks + at + 1 {
                assert!(Instant::now() < end, "{:?}", member.extent());
                std::thread::yield_now();
            }
        }
    }
    assert_eq!(member.extent().contents, blocks, "the last written leads");
    // The kernel writes it back some day: three quarters have no room there.
    assert!(File::open(&device.0).unwrap().sync_data().is_err());
    for export in &house.exports {
        let _ = export.image().forget(0, SIZE);
    }
    for at in 0..blocks {
        assert_eq!(
            other.read(at * BLOCK as u64, BLOCK),
            Ok(block(at)),
            "block {at}"
        );
    }
    let redirected = member.counters.redirected_bytes.load(Ordering::Relaxed);
    assert!(
        redirected <= BLOCK as u64,
        "found at the first: {redirected}"
    );
    // And the client of the leader is told, though another one found it out.
    assert_ne!(leader.ask((0, FLUSH), 0, 0, &[]), 0);
    drop((leader, other));
    let mut house = house;
    house.try_end().unwrap_err();
}

/// A file that is another one, by nbdfuse over nbdkit, until the end. Reads and writes of it fail while a file of
/// that name is there.
struct Failing {
    nbdfuse: Child,
    folder: tempfile::TempDir,
}

impl Failing {
    fn new(test: &str, file: &Path) -> Option<Self> {
        if !has(test, "nbdkit") || !has(test, "nbdfuse") {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let [mount, pid] = ["mount", "pid"].map(|name| folder.path().join(name));
        std::fs::create_dir(&mount).unwrap();
        let path = |name| folder.path().join(name).display().to_string();
        let mut command = Command::new("nbdfuse");
        command.arg("--pidfile").arg(&pid).arg(mount.join("a"));
        command.args(["--command", "nbdkit", "-s", "--exit-with-parent"]);
        command.args(["--filter=error", "file"]).arg(file);
        for (what, file) in [("pread", "pread"), ("pwrite", "pwrite"), ("zero", "pwrite")] {
            command.arg(format!("error-{what}=EIO"));
            command.arg(format!("error-{what}-rate=100%"));
            command.arg(format!("error-{what}-file={}", path(file)));
        }
        let nbdfuse = fused(test, &mut command, &pid)?;
        Some(Self { nbdfuse, folder })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("mount/a")
    }

    fn set(&self, what: &str, fails: bool) {
        let path = self.folder.path().join(what);
        match fails {
            true => drop(File::create(path).unwrap()),
            false => std::fs::remove_file(path).unwrap(),
        }
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        // Threads of the server may have the file open for a moment.
        let end = Instant::now() + PATIENCE;
        while !run("umount", &[], self.path().parent().unwrap()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        // It has ended, unless it could not be unmounted.
        let _ = self.nbdfuse.kill();
        self.nbdfuse.wait().unwrap();
    }
}

#[test]
fn errors_from_below_are_told_and_not_remembered() {
    const BLOCK: usize = 4096;
    let test = "errors_from_below_are_told_and_not_remembered";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, [7].repeat(4 << 20)).unwrap();
    let Some(failing) = Failing::new(test, &file) else {
        return;
    };
    symlink(failing.path(), folder.path().join("a")).unwrap();
    let house = House::over(folder, &["a", "b"], SIZE, |_| {});
    let [mut a, mut b] = ["a", "b"].map(|name| Client::new(&house.socket(), name));
    let failed = || house.exports[0].counters.failed.load(Ordering::Relaxed);
    let b_failed = || house.exports[1].counters.failed.load(Ordering::Relaxed);
    let member = house.exports[1].member().unwrap();
    let until_known = |count| {
        let end = Instant::now() + PATIENCE;
        while member.extent().known_blocks != count {
            assert!(Instant::now() < end, "{:?}", member.extent());
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let evict = |at: usize| {
        let image = house.exports[at].image();
        image.flush().unwrap();
        image.forget(0, SIZE).unwrap();
    };
    // What was read to know its format.
    evict(0);
    failing.set("pread", true);
    for _ in 0..3 {
        assert_eq!(a.read(0, BLOCK), Err(5));
    }
    assert_eq!((failed(), member.extent().known_blocks), (3, 0));
    // The error has gone: so is all of it.
    failing.set("pread", false);
    assert_eq!(a.read(0, BLOCK), Ok(vec![7; BLOCK]));
    until_known(1);
    // The other image's block has the same content, and leads: what fails is not read.
    assert_eq!(b.write(0, &[7; BLOCK], false), 0);
    until_known(2);
    evict(0);
    failing.set("pread", true);
    assert_eq!(a.read(0, BLOCK), Ok(vec![7; BLOCK]));
    // Then the first one's leads, and fails: the second one reads its own.
    failing.set("pread", false);
    assert_eq!(a.write(0, &[7; BLOCK], false), 0);
    until_known(2);
    evict(0);
    evict(1);
    failing.set("pread", true);
    let before = member.counters.cold.load(Ordering::Relaxed);
    assert_eq!(b.read(0, BLOCK), Ok(vec![7; BLOCK]));
    assert!(
        member.counters.cold.load(Ordering::Relaxed) > before,
        "it was tried"
    );
    assert_eq!((failed(), b_failed()), (3, 0));
    failing.set("pread", false);
    failing.set("pwrite", true);
    assert_eq!(a.write(0, &[8; BLOCK], false), 5);
    assert_eq!(a.write(BLOCK as u64, &[8; BLOCK], true), 5);
    assert_eq!(a.ask((2, ZEROES), 8192, 4096, &[]), 5);
    failing.set("pwrite", false);
    evict(0);
    assert_eq!(a.read(0, 2 * BLOCK), Ok(vec![7; 2 * BLOCK]), "as before");
    assert_eq!(a.write(0, &[9; BLOCK], true), 0);
    evict(0);
    assert_eq!(a.read(0, BLOCK), Ok(vec![9; BLOCK]));
}

/// A file of a FUSE file system whose server stands still.
struct Hung {
    fuse: Child,
    server: Child,
    mount: PathBuf,
}

impl Hung {
    fn signal(&self, signal: &str) {
        let id = self.fuse.id().to_string();
        let done = Command::new("kill").args(["-s", signal, &id]).status();
        assert!(done.unwrap().success());
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        self.signal("CONT");
        for program in [&mut self.fuse, &mut self.server] {
            let _ = program.kill();
            let _ = program.wait();
        }
        run("umount", &["-l"], &self.mount);
    }
}

/// Its image alone is not served: others have clients that come and are served, their looks, and are flushed at the end.
#[test]
fn a_file_system_that_hangs_holds_up_no_other_image() {
    let test = "a_file_system_that_hangs_holds_up_no_other_image";
    if !has(test, "nbdfuse") || !has(test, "nbdkit") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let [mount, socket, pid] = ["mount", "socket", "pid"].map(|name| place.path().join(name));
    std::fs::create_dir(&mount).unwrap();
    let mut server = Command::new("nbdkit")
        .args(["-f", "-U"])
        .arg(&socket)
        .args(["memory", "4M"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + PATIENCE;
    while !socket.exists() {
        assert!(Instant::now() < end, "nbdkit serves");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut nbdfuse = Command::new("nbdfuse");
    nbdfuse.arg("--pidfile").arg(&pid).arg(&mount);
    nbdfuse.arg(format!("nbd+unix:///?socket={}", socket.display()));
    let Some(fuse) = fused(test, &mut nbdfuse, &pid) else {
        let _ = server.kill();
        let _ = server.wait();
        return;
    };
    let hung = Hung {
        fuse,
        server,
        mount: mount.clone(),
    };
    let folder = tempfile::tempdir().unwrap();
    symlink(mount.join("nbd"), folder.path().join("hung")).unwrap();
    let mut house = House::over(folder, &["hung", "a"], SIZE, |_| {});
    let path = house.folder.path().join("a");
    hung.signal("STOP");
    // More than one look.
    for round in 0..30_u8 {
        let mut client = Client::new(&house.socket(), "a");
        assert_eq!(client.write(0, &[round; 4096], false), 0);
        std::thread::sleep(Duration::from_millis(100));
    }
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(SIZE / 2).unwrap();
    let end = Instant::now() + PATIENCE;
    let told = || {
        house
            .events
            .lock()
            .unwrap()
            .iter()
            .any(|of| of.contains("shrunk"))
    };
    while !told() {
        assert!(Instant::now() < end, "the other one is looked at");
        std::thread::sleep(Duration::from_millis(5));
    }
    // So that the end can end; it waits for the flush of this one alone.
    hung.signal("CONT");
    let _ = house.try_end();
}
