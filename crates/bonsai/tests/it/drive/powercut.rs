//! Power cuts: `BONSAI_NBD_CUTS` is how many, of ext4 and XFS in turn (10 of each if nothing is said).
//!
//! Images are on a file system in a loop device. The power cut is a copy of the device's file while the server is stopped under
//! load: what the page cache has and the device has not is lost, as are times of change that were not written. Then a server
//! that is started on the copy must give what was flushed, and nothing that another image's client wrote. Before each cut the
//! fingerprints of both images are kept by a clean end and loaded again, and sometimes another program writes to an image while
//! no server runs.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::journal::{Allowed, BLOCK, BLOCKS, Dice, LOAD, content, expect_ends, load};
use super::server::Drive;
use crate::nbd::Client;
use crate::support::{PATIENCE, Place, signal, skip};

/// A file system in a file, which is mounted until the end.
struct Disk {
    file: PathBuf,
    mount: PathBuf,
    mounted: bool,
}

impl Disk {
    fn new(place: &Place, kind: &str) -> Option<Self> {
        let disk = Self {
            file: place.path().join(format!("{kind}.disk")),
            mount: place.path().join(kind),
            mounted: false,
        };
        std::fs::create_dir(&disk.mount).expect("made");
        // The least that mkfs.xfs takes.
        let size = if kind == "xfs" { 320 << 20 } else { 32 << 20 };
        let file = std::fs::File::create(&disk.file).expect("a file");
        file.set_len(size).expect("made long");
        let made = Command::new(format!("mkfs.{kind}"))
            .arg("-q")
            .arg(&disk.file)
            .status();
        made.is_ok_and(|made| made.success()).then_some(disk)
    }

    fn mount(&mut self) -> bool {
        let done = Command::new("mount")
            .args(["-o", "loop"])
            .arg(&self.file)
            .arg(&self.mount)
            .output();
        self.mounted = done.is_ok_and(|done| done.status.success());
        self.mounted
    }

    fn unmount(&mut self) {
        let end = Instant::now() + PATIENCE;
        while std::mem::take(&mut self.mounted) {
            let done = Command::new("umount")
                .arg(&self.mount)
                .output()
                .expect("umount");
            if !done.status.success() {
                // A server that was killed may have a file open for a moment.
                assert!(Instant::now() < end, "{done:?}");
                self.mounted = true;
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Sectors that the device was asked to write, as the kernel counts them.
    fn written(&self) -> String {
        let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
        let mount = format!(" {} ", self.mount.display());
        let line = mounts
            .lines()
            .find(|line| line.contains(&mount))
            .expect("mounted");
        let device = line
            .split(' ')
            .next()
            .and_then(|path| path.strip_prefix("/dev/"));
        let stat = format!("/sys/block/{}/stat", device.expect("a device"));
        std::fs::read_to_string(stat).expect("counters")
    }

    /// The power cut: what is on the device now is all that there will be. A server that is stopped goes.
    fn cut(&mut self, server: Option<Drive>) {
        let copy = self.file.with_extension("cut");
        // The kernel writes when it wants to: a copy is of one moment only if it did not.
        let end = Instant::now() + PATIENCE;
        loop {
            let before = self.written();
            let done = Command::new("cp")
                .arg("--sparse=always")
                .args([&self.file, &copy])
                .status();
            assert!(done.expect("cp").success());
            if self.written() == before {
                break;
            }
            assert!(Instant::now() < end, "the device is never quiet");
        }
        if let Some(server) = server {
            assert_eq!(server.end("KILL").code, None);
        }
        self.unmount();
        std::fs::rename(&copy, &self.file).expect("exchanged");
        assert!(self.mount(), "the file system is whole");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted {
            let _ = Command::new("umount").arg("-l").arg(&self.mount).output();
        }
    }
}

struct State {
    name: &'static str,
    allowed: Allowed,
    dice: Dice,
    number: u64,
}

/// Another program writes one block, and has the bytes of the file on the disk, but not its times.
fn write_outside(image: &Path, state: &mut State, dice: &mut Dice) {
    let block = dice.below(BLOCKS);
    state.number += 1;
    let what = state.number << 8 | block;
    let file = std::fs::File::options()
        .write(true)
        .open(image)
        .expect("opened");
    file.write_all_at(&content(what), block * BLOCK as u64)
        .expect("written");
    file.sync_data().expect("on the disk");
    state.allowed.0[usize::try_from(block).expect("small")].push(what);
    state.allowed.flushed();
}

fn cut_often(test: &str, kind: &str, cuts: u64) {
    let place = Place::bare();
    let Some(mut disk) = Disk::new(&place, kind) else {
        return skip(test, &format!("no mkfs.{kind}"));
    };
    if !disk.mount() {
        return skip(test, "no mount without privileges");
    }
    let images = ["a", "b"].map(|name| disk.mount.join(format!("{name}.raw")));
    for image in &images {
        let file = std::fs::File::create(image).expect("a file");
        // All of it has a place, as a guest's disk has: writes change no metadata of the file system but times.
        file.write_all_at(&vec![0; BLOCK * usize::try_from(BLOCKS).expect("small")], 0)
            .expect("written");
        file.sync_all().expect("on the disk");
    }
    let states = ["a", "b"].map(|name| {
        Mutex::new(State {
            name,
            allowed: Allowed::zeroes(),
            dice: Dice(77 + u64::from(name.as_bytes()[0])),
            number: 0,
        })
    });
    expect_ends();
    let paths = images.each_ref().map(|image| image.display().to_string());
    let start = || {
        let [a, b] = paths.each_ref().map(String::as_str);
        let mut drive = Drive::start(&place, &["--group", "g", "--scan", a, b]);
        let said = drive.wait_for("all images are scanned");
        assert!(!said.contains("without sharing"), "{said}");
        drive
    };
    let check = |drive: &Drive| {
        for state in &states {
            let mut state = state.lock().expect("no other");
            let State { name, allowed, .. } = &mut *state;
            allowed.check(&mut Client::new(&drive.socket, name), name);
        }
    };
    let mut dice = Dice(9);
    let mut shared = 0;
    for cut in 0..cuts {
        // What is there after the last cut, without and with what was kept of it.
        let drive = start();
        check(&drive);
        assert_eq!(drive.end("TERM").code, Some(0));
        if cut % 3 == 1 {
            let which = usize::try_from(dice.below(2)).expect("small");
            let mut state = states[which].lock().expect("no other");
            write_outside(&images[which], &mut state, &mut dice);
            if cut % 2 == 1 {
                drop(state);
                disk.cut(None);
                continue;
            }
        }
        let drive = start();
        check(&drive);
        shared += shared_bytes(&place);
        let socket = drive.socket.clone();
        std::thread::scope(|scope| {
            for state in &states {
                let socket = &socket;
                let thread = std::thread::Builder::new().name(LOAD.to_owned());
                let started = thread.spawn_scoped(scope, move || {
                    let mut state = state.lock().expect("no other");
                    let State {
                        name,
                        allowed,
                        dice,
                        number,
                    } = &mut *state;
                    load(socket, name, allowed, dice, number);
                });
                started.expect("a thread");
            }
            std::thread::sleep(Duration::from_millis(dice.below(80)));
            // What was answered before this is in the sockets; nothing is answered after it.
            signal(drive.pid(), "STOP");
            std::thread::sleep(Duration::from_millis(5));
            disk.cut(Some(drive));
        });
    }
    let drive = start();
    check(&drive);
    assert_eq!(drive.end("TERM").code, Some(0));
    disk.unmount();
    let written: u64 = states
        .iter()
        .map(|state| state.lock().expect("no other").number)
        .sum();
    println!("{kind}: {cuts} cuts, {written} blocks written, {shared} bytes shared");
    assert!(
        shared > 0,
        "nothing was redirected, so that nothing was tried"
    );
    assert!(written > cuts, "nothing was under way");
}

/// Bytes of both exports that came from another block, or were zeroes.
fn shared_bytes(place: &Place) -> u64 {
    let status = place.json(&["drive", "status", "--json"]);
    let exports = status["servers"][0]["exports"].as_array().expect("exports");
    let of = |name: &str| -> u64 {
        let counts = exports
            .iter()
            .map(|export| export["sharing"][name].as_u64());
        counts.map(|count| count.expect("a count")).sum()
    };
    assert_eq!(of("wrong"), 0, "{exports:#?}");
    of("redirected_bytes") + of("zero_bytes")
}

fn cuts() -> u64 {
    let cuts = std::env::var("BONSAI_NBD_CUTS").ok();
    cuts.map_or(20, |text| text.parse().expect("a number of power cuts")) / 2
}

#[test]
fn what_was_flushed_is_there_after_each_power_cut_on_ext4() {
    let test = "what_was_flushed_is_there_after_each_power_cut_on_ext4";
    cut_often(test, "ext4", cuts());
}

#[test]
fn what_was_flushed_is_there_after_each_power_cut_on_xfs() {
    let test = "what_was_flushed_is_there_after_each_power_cut_on_xfs";
    cut_often(test, "xfs", cuts());
}
