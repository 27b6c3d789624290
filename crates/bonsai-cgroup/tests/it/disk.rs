//! Limits on a real block device.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use bonsai_cgroup::disk::{Escape, limits_of};
use bonsai_cgroup::{Controller, Device, DeviceNumber, Disk, Error, Holder, Target, Version};
use bonsai_units::DiskTerms;
use tempfile::TempDir;

use crate::support::{Group, SPARE_DISK, run, skip};

/// Something on a real disk that may be read and written, and the disk.
struct Medium {
    device: Device,
    file: PathBuf,
    _folder: Option<TempDir>,
}

const SIZE: usize = 8 << 20;

impl Medium {
    fn new(test: &str) -> Option<Self> {
        if let Some(file) = std::env::var_os(SPARE_DISK) {
            let file = PathBuf::from(file);
            let device = Device::find(file.to_str().expect("a name")).expect("a device");
            return Some(Self {
                device,
                file,
                _folder: None,
            });
        }
        let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let device = match Device::find(folder.path().to_str().expect("a name")) {
            Ok(device) => device,
            Err(error) => {
                skip(test, &error.to_string());
                return None;
            }
        };
        let file = folder.path().join("file");
        fs::write(&file, vec![7; SIZE]).expect("room");
        run(std::process::Command::new("sync").arg(&file));
        Some(Self {
            device,
            file,
            _folder: Some(folder),
        })
    }

    /// Moves `count` blocks past the page cache, by a process of the group. Seconds by our clock.
    fn moved(&self, group: &Group, write: bool, block: usize, count: usize) -> f64 {
        let mut command = group.command("dd");
        let file = self.file.display();
        if write {
            command.args(["if=/dev/zero", "oflag=direct", "conv=notrunc"]);
            command.arg(format!("of={file}"));
        } else {
            command.args(["of=/dev/null", "iflag=direct"]);
            command.arg(format!("if={file}"));
        }
        command.args([format!("bs={block}"), format!("count={count}")]);
        let start = Instant::now();
        run(&mut command);
        start.elapsed().as_secs_f64()
    }
}

fn terms(words: &[&str]) -> DiskTerms {
    DiskTerms::parse(words.iter().copied()).expect("terms")
}

struct Fixture {
    group: Group,
    medium: Medium,
    records: TempDir,
}

impl Fixture {
    fn new(test: &str) -> Option<Self> {
        Some(Self {
            group: Group::new(test, Controller::Io)?,
            medium: Medium::new(test)?,
            records: TempDir::new().expect("a folder"),
        })
    }

    fn disk(&self) -> Disk {
        let folder = self.records.path().join("held");
        Disk::open(self.group.hierarchies.clone(), &folder).expect("records")
    }

    fn is_v2(&self) -> bool {
        self.group.has("io.max")
    }

    /// All limits of the group, as the kernel writes them.
    fn raw(&self) -> Vec<String> {
        let files: &[&str] = if self.is_v2() {
            &["io.max"]
        } else {
            &[
                "blkio.throttle.read_bps_device",
                "blkio.throttle.write_bps_device",
                "blkio.throttle.read_iops_device",
                "blkio.throttle.write_iops_device",
            ]
        };
        files.iter().map(|name| self.group.read(name)).collect()
    }

    /// What somebody else does: a limit on bytes written.
    fn others_limit(&self, bytes: u64) {
        let number = self.medium.device.number;
        if self.is_v2() {
            let line = format!("{number} wbps={bytes}");
            self.group.write("io.max", &line);
        } else {
            let line = format!("{number} {bytes}");
            self.group.write("blkio.throttle.write_bps_device", &line);
        }
    }
}

#[test]
fn a_limit_is_set_and_exactly_what_was_there_before_is_restored() {
    let name = "a_limit_is_set_and_exactly_what_was_there_before_is_restored";
    let Some(fixture) = Fixture::new(name) else {
        return;
    };
    let device = fixture.medium.device.clone();
    fixture.others_limit(7_000_000);
    let before = fixture.raw();
    let disk = fixture.disk();
    let target = fixture.group.target();
    let seen = disk.look(Some(&fixture.group.path)).expect("a look");
    assert_eq!(seen[0].devices[0].holder, Holder::Other);

    let wanted = terms(&["read=50MB/s", "read=200/s", "write=1000/s"]);
    let done = disk.set(&target, std::slice::from_ref(&device), &wanted);
    let done = done.expect("in force");
    let limits = done.devices[0].1;
    let expected = [Some(50_000_000), Some(7_000_000), Some(200), Some(1_000)];
    assert_eq!(limits.as_array(), expected);
    let is_v1 = done.version == Some(Version::V1);
    assert_eq!(done.escapes == [Escape::BufferedV1], is_v1);
    let raw = fixture.raw().concat();
    assert!(raw.contains("50000000") && raw.contains("200"), "{raw}");
    // A second change keeps in mind what was there before the first.
    let wanted = terms(&["read=unlimited", "write=1MB/s"]);
    let done = disk.set(&target, std::slice::from_ref(&device), &wanted);
    let limits = done.expect("in force").devices[0].1;
    assert_eq!(
        limits.as_array(),
        [None, Some(1_000_000), None, Some(1_000)]
    );
    let seen = disk.look(Some(&fixture.group.path)).expect("a look");
    assert_eq!(seen[0].devices[0].holder, Holder::Bonsai);
    let was = seen[0].devices[0].before.expect("it is Bonsai's");
    assert_eq!(was.as_array(), [None, Some(7_000_000), None, None]);

    // Whoever takes it back is another process than the one that set it.
    let done = fixture.disk().clear(&target, None).expect("cleared");
    assert_eq!(done.changed_since, []);
    assert_eq!(fixture.raw(), before);
    let error = fixture.disk().clear(&target, None).expect_err("nothing");
    assert!(matches!(error, Error::NothingHeld { .. }), "{error}");
}

#[test]
fn a_limit_is_never_exceeded() {
    let Some(fixture) = Fixture::new("a_limit_is_never_exceeded") else {
        return;
    };
    let device = fixture.medium.device.clone();
    let target = fixture.group.target();
    // The kernel lets what belongs to its slice of 100 ms go at once; 20 ms are for its clock.
    const SLICE: f64 = 0.12;
    const BLOCK: usize = 64 << 10;
    for (word, write, block, count) in [
        ("read=4MB/s", false, BLOCK, 128),
        ("write=4MB/s", true, BLOCK, 96),
        ("read=100/s", false, 4_096, 200),
        ("write=100/s", true, 4_096, 150),
    ] {
        let wanted = terms(&["read=unlimited", "write=unlimited", word]);
        let disk = fixture.disk();
        disk.set(&target, std::slice::from_ref(&device), &wanted)
            .expect("in force");
        let seconds = fixture.medium.moved(&fixture.group, write, block, count);
        let (rate, moved) = match wanted {
            _ if word.contains("MB") => (4e6, (block * (count - 1)) as f64),
            _ => (100.0, (count - 1) as f64),
        };
        assert!(
            moved <= rate * (seconds + SLICE),
            "{word}: {moved} in {seconds} s"
        );
        eprintln!(
            "{word}: {:.1} % of the rate",
            moved / seconds / rate * 100.0
        );
    }
    let seen = fixture.disk().look(Some(&fixture.group.path));
    let seen = seen.expect("a look").remove(0);
    let mut devices = seen.devices.iter();
    let one = devices.find(|one| one.device == device).expect("used");
    let read = 128 * BLOCK as u64 + 200 * 4_096;
    let written = 96 * BLOCK as u64 + 150 * 4_096;
    assert!(one.total.read_bytes >= read, "{one:?}");
    assert!(one.total.write_bytes >= written, "{one:?}");
    assert!(one.total.writes >= 96 + 150, "{one:?}");
    fixture.disk().clear(&target, None).expect("cleared");
}

#[test]
fn a_device_that_is_refused_takes_the_others_back() {
    let name = "a_device_that_is_refused_takes_the_others_back";
    let Some(fixture) = Fixture::new(name) else {
        return;
    };
    fixture.others_limit(7_000_000);
    let before = fixture.raw();
    let number = DeviceNumber {
        major: 511,
        minor: 77,
    };
    let lost = Device {
        number,
        name: "lost".to_owned(),
    };
    let disk = fixture.disk();
    let target = fixture.group.target();
    let devices = [fixture.medium.device.clone(), lost];
    let error = disk.set(&target, &devices, &terms(&["read=5MB/s", "write=5/s"]));
    let error = error.expect_err("there is no such device");
    assert!(matches!(error, Error::NoDevice { .. }), "{error}");
    assert_eq!(fixture.raw(), before);
    let error = disk.clear(&target, None).expect_err("nothing was set");
    assert!(matches!(error, Error::NothingHeld { .. }), "{error}");
}

#[test]
fn a_group_that_is_made_anew_is_another_one() {
    let name = "a_group_that_is_made_anew_is_another_one";
    let Some(fixture) = Fixture::new(name) else {
        return;
    };
    let devices = [fixture.medium.device.clone()];
    let disk = fixture.disk();
    let target = fixture.group.target();
    disk.set(&target, &devices, &terms(&["read=5MB/s"]))
        .expect("in force");
    let found = fixture
        .group
        .hierarchies
        .group(Controller::Io, &fixture.group.path);
    let found = found.expect("a group");
    fixture.group.remove();
    let error = limits_of(&found).expect_err("it has gone meanwhile");
    assert!(matches!(error, Error::Vanished { .. }), "{error}");
    let error = disk.set(&target, &devices, &terms(&["read=5MB/s"]));
    let text = error.expect_err("it is gone").to_string();
    assert!(text.contains("there is no control group"), "{text}");
    fs::create_dir(&fixture.group.folder).expect("made anew");
    fixture.others_limit(7_000_000);
    let before = fixture.raw();
    let error = disk.clear(&target, None).expect_err("nothing of its own");
    assert!(matches!(error, Error::NothingHeld { .. }), "{error}");
    assert_eq!(fixture.raw(), before);
}

#[test]
fn what_others_change_is_seen_and_said() {
    let Some(fixture) = Fixture::new("what_others_change_is_seen_and_said") else {
        return;
    };
    let devices = [fixture.medium.device.clone()];
    let disk = fixture.disk();
    let target = fixture.group.target();
    disk.set(&target, &devices, &terms(&["write=5MB/s"]))
        .expect("in force");
    fixture.others_limit(6_000_000);
    let seen = disk.look(Some(&fixture.group.path)).expect("a look");
    assert_eq!(seen[0].devices[0].holder, Holder::OtherSince);
    let all = disk.look(None).expect("a look at all");
    assert!(all.iter().any(|one| one.group == fixture.group.path));
    let done = disk.clear(&target, Some(&devices)).expect("cleared");
    assert_eq!(done.changed_since, devices);
    assert!(done.devices[0].1.is_unlimited());
}

#[test]
fn targets_that_are_not_there_are_refused() {
    let Some(fixture) = Fixture::new("targets_that_are_not_there_are_refused") else {
        return;
    };
    let devices = [fixture.medium.device.clone()];
    let disk = fixture.disk();
    let wanted = terms(&["read=5MB/s"]);
    for (path, hint) in [
        ("no-slash", "is no path of a control group"),
        ("/no/such/group", "there is no control group /no/such/group"),
        ("/../x", "is no path of a control group"),
    ] {
        let target = Target::Cgroup(path.to_owned());
        let error = disk.set(&target, &devices, &wanted).expect_err(path);
        assert!(error.to_string().contains(hint), "{error}");
    }
}

#[test]
fn partitions_and_paths_are_their_whole_disk() {
    let Some(medium) = Medium::new("partitions_and_paths_are_their_whole_disk") else {
        return;
    };
    let number = medium.device.number.to_string();
    let file = medium.device.file();
    let file = file.to_str().expect("a name");
    for name in [number.as_str(), medium.device.name.as_str(), file] {
        assert_eq!(Device::find(name).expect(name), medium.device);
    }
    if let Ok(disks) = Device::disks() {
        let is_put_together = |disk: &Device| disk.name.starts_with("loop");
        assert!(!disks.iter().any(is_put_together), "{disks:?}");
    }
    for entry in fs::read_dir("/sys/class/block").expect("sysfs").flatten() {
        if entry.path().join("partition").exists() {
            let name = entry.file_name();
            let name = name.to_str().expect("a name");
            let whole = Device::find(name).expect("a partition");
            assert!(name.starts_with(&whole.name) && name != whole.name);
        }
    }
    for (path, hint) in [("/dev/shm", "in memory"), ("/proc", "no block device")] {
        let error = Device::find(path).expect_err("no device");
        assert!(error.to_string().contains(hint), "{error}");
    }
}
