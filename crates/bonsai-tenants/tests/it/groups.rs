//! Control groups that are services: what they move of disks, and what they may have.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bonsai_cgroup::{Device, Disk, Hierarchies, Target};
use bonsai_tenants::bodies::Terms;
use bonsai_tenants::{Bodies, Body};
use bonsai_units::DiskTerms;
use tempfile::{TempDir, tempdir};

use crate::support::{Group, Held, NOTHING, SPARE_DISK, bodies, run, skip, until};

const MIB: u64 = 1 << 20;

/// Something on a real disk that may be read.
struct Medium {
    file: PathBuf,
    device: Device,
    _folder: Option<TempDir>,
}

impl Medium {
    fn new(test: &str) -> Option<Self> {
        if let Some(file) = std::env::var_os(SPARE_DISK) {
            let file = PathBuf::from(file);
            let device = Device::find(file.to_str().expect("a name")).expect("a device");
            return Some(Self {
                file,
                device,
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
        fs::write(&file, vec![7; 8 << 20]).expect("room");
        run(&format!("sync {}", file.display()));
        Some(Self {
            file,
            device,
            _folder: Some(folder),
        })
    }

    /// A command that reads so much of it, past the page cache.
    fn reading<'a>(&self, command: &'a mut Command, bytes: u64) -> &'a mut Command {
        let file = self.file.display();
        command
            .args([format!("if={file}"), "of=/dev/null".to_owned()])
            .args(["iflag=direct,count_bytes", "bs=64K"])
            .arg(format!("count={bytes}"))
            .stderr(Stdio::null())
    }
}

fn done(command: &mut Command) {
    assert!(command.status().expect("started").success(), "{command:?}");
}

fn reads(bytes: u64) -> Terms {
    Terms {
        read: Some(bytes),
        ..Terms::default()
    }
}

fn there(bodies: &mut Bodies) -> Body {
    until(bodies, &NOTHING, "db", |body| body.there)
}

/// All that is written down, and when.
fn written(folder: &Path) -> Vec<(PathBuf, u64, i64)> {
    let entries = fs::read_dir(folder.join(".held")).into_iter().flatten();
    let mut all: Vec<_> = entries
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let meta = fs::metadata(&path).expect("a file");
            (path, meta.ino(), meta.mtime_nsec())
        })
        .collect();
    all.sort();
    all
}

#[test]
fn what_a_group_reads_of_disks_is_counted() {
    let name = "what_a_group_reads_of_disks_is_counted";
    let (Some(group), Some(medium)) = (Group::new(name), Medium::new(name)) else {
        return;
    };
    let folder = tempdir().expect("a folder");
    let mut bodies = bodies(folder.path(), &[("db", &format!("cgroup:{}", group.path))]);
    let process = group.sleeper();
    let before = there(&mut bodies);
    assert_eq!(before.pid, Some(process.pid()));
    assert_eq!(before.totals[..2], [None, None], "it has no interface");
    assert_ne!(before.born_ns, 0);
    done(medium.reading(&mut group.command("dd"), 4 * MIB));
    let wanted = before.totals[2].unwrap_or_default() + 4 * MIB;
    let after = until(&mut bodies, &NOTHING, "db", |body| {
        body.totals[2].unwrap_or_default() >= wanted
    });
    let more = after.totals[2].unwrap_or_default() - wanted;
    // Programs are read from the same disk, if they are not in the page cache.
    assert!(more < 2 * MIB, "{more} B more than were read");
    drop(process);
    let empty = until(&mut bodies, &NOTHING, "db", |body| body.pid.is_none());
    assert!(empty.there && empty.born_ns == before.born_ns, "{empty:?}");
    group.remove();
    let gone = until(&mut bodies, &NOTHING, "db", |body| !body.there);
    let why = gone.why.expect("a reason");
    assert!(why.contains("no control group"), "{why}");
    for folder in &group.folders {
        fs::create_dir(folder).expect("made");
    }
    let other = there(&mut bodies);
    assert_ne!(other.born_ns, before.born_ns, "it is another one");
}

#[test]
fn of_many_groups_that_rest_each_is_read_now_and_then_and_nothing_is_lost() {
    let name = "of_many_groups_that_rest_each_is_read_now_and_then_and_nothing_is_lost";
    let Some(medium) = Medium::new(name) else {
        return;
    };
    let groups: Option<Vec<Group>> = (0..70).map(|_| Group::new(name)).collect();
    let Some(groups) = groups else {
        return;
    };
    let folder = tempdir().expect("a folder");
    let places: Vec<_> = groups
        .iter()
        .map(|group| (group.path.clone(), format!("cgroup:{}", group.path)))
        .collect();
    let places = places.iter().map(|(id, place)| (&**id, &**place));
    let mut bodies = bodies(folder.path(), &places.collect::<Vec<_>>());
    for _ in 0..4 {
        let all = bodies.look(&NOTHING);
        assert!(all.values().all(|body| body.there));
    }
    let group = &groups[35];
    let total = |body: &Body| body.totals[2].expect("it is read");
    let before = total(&bodies.look(&NOTHING)[&group.path]);
    done(medium.reading(&mut group.command("dd"), 4 * MIB));
    let (mut last, mut most) = (before, 0);
    let end = std::time::Instant::now() + crate::support::PATIENCE;
    while last < before + 4 * MIB {
        let now = total(&bodies.look(&NOTHING)[&group.path]);
        most = most.max(now - last);
        last = now;
        assert!(std::time::Instant::now() < end, "{last} B");
    }
    assert!(last - before < 6 * MIB, "{last} B after {before} B");
    // It was read after three looks, so it comes in three parts.
    assert!(most < 2 * MIB, "{most} B at once");
}

#[test]
fn a_disk_limit_holds_is_kept_by_the_next_process_and_is_given_back() {
    let name = "a_disk_limit_holds_is_kept_by_the_next_process_and_is_given_back";
    let (Some(group), Some(medium)) = (Group::new(name), Medium::new(name)) else {
        return;
    };
    if !Device::disks().is_ok_and(|disks| disks.contains(&medium.device)) {
        return skip(name, "the file is on no disk of this machine");
    }
    let folder = tempdir().expect("a folder");
    // What somebody had set by hand before.
    let hand = DiskTerms::parse(["read=90MB/s", "write=80MB/s"]).expect("terms");
    let hierarchies = Hierarchies::read().expect("/proc is there");
    let records = tempdir().expect("a folder");
    let by_hand = Disk::open(hierarchies, &records.path().join("held")).expect("records");
    let target = Target::Cgroup(group.path.clone());
    let device = std::slice::from_ref(&medium.device);
    by_hand.set(&target, device, &hand).expect("set");
    let number = medium.device.number.to_string();
    let limit = |group: &Group| {
        let all = group.reads();
        all.lines()
            .find(|line| line.starts_with(&number))
            .map(str::to_owned)
    };
    let at_first = limit(&group);
    let place = format!("cgroup:{}", group.path);
    let mut first = bodies(folder.path(), &[("db", &place)]);
    there(&mut first);
    assert_eq!(limit(&group), at_first, "a look changes nothing");
    first.put("db", &Terms::default()).expect("nothing");
    assert_eq!(limit(&group), at_first, "nothing is wanted");

    first.put("db", &reads(2 * MIB)).expect("set");
    let set = limit(&group).expect("a limit");
    assert!(
        set.contains("2097152") && !set.contains("90000000"),
        "{set}"
    );
    let mut child = Held(
        medium
            .reading(&mut group.command("dd"), 8 * MIB)
            .spawn()
            .expect("started"),
    );
    let before = there(&mut first);
    let waits = until(&mut first, &NOTHING, "db", |body| body.waits[2]);
    let grown = waits.totals[2].unwrap_or_default() - before.totals[2].unwrap_or_default();
    let allowed = 2 * MIB * (waits.at_ns - before.at_ns) / 1_000_000_000 + MIB / 2;
    assert!(grown <= allowed, "{grown} B, {allowed} allowed");
    assert!(!waits.waits[3], "{waits:?}");
    child.end();
    until(&mut first, &NOTHING, "db", |body| !body.waits[2]);

    // The process ends as by a kill, and the limit stays; the next one has nothing to write.
    let kept = written(folder.path());
    drop(first);
    let mut next = bodies(folder.path(), &[("db", &place)]);
    there(&mut next);
    assert_eq!(limit(&group), Some(set.clone()));
    next.put("db", &reads(2 * MIB)).expect("as it is");
    next.put("db", &reads(2 * MIB)).expect("as it is");
    assert_eq!(there(&mut next).disk_why, None);
    assert_eq!(written(folder.path()), kept, "nothing was to be written");

    // Somebody else changes it.
    let file = group.file("io.max", "blkio.throttle.read_bps_device");
    let line = match group.file("io.max", "io.max").is_some() {
        true => format!("{number} rbps=7000000"),
        false => format!("{number} 7000000"),
    };
    fs::write(file.expect("a file"), line).expect("written");
    let told = until(&mut next, &NOTHING, "db", |body| body.disk_why.is_some());
    let why = told.disk_why.expect("words");
    assert!(why.contains("another program"), "{why}");
    assert_eq!(limit(&group), Some(set));
    until(&mut next, &NOTHING, "db", |body| body.disk_why.is_none());

    // Writes instead of reads: reads are as they were.
    let writes = Terms {
        write: Some(3 * MIB),
        ..Terms::default()
    };
    next.put("db", &writes).expect("set");
    let both = group.file("io.max", "blkio.throttle.write_bps_device");
    let text = fs::read_to_string(both.expect("a file")).expect("readable");
    assert!(text.contains("3145728"), "{text}");
    assert!(limit(&group).is_some_and(|line| line.contains("90000000")));
    next.release("db");
    assert_eq!(limit(&group), at_first);
    by_hand.clear(&target, None).expect("cleared");
    assert!(!group.reads().contains("90000000"));
}

#[test]
fn what_an_earlier_process_limited_is_given_back_when_nobody_wants_it_any_more() {
    let name = "what_an_earlier_process_limited_is_given_back_when_nobody_wants_it_any_more";
    let (Some(group), Some(other)) = (Group::new(name), Group::new(name)) else {
        return;
    };
    let Ok(disks) = Device::disks() else {
        return skip(name, "this machine has no disk");
    };
    let folder = tempdir().expect("a folder");
    let at_first = group.reads();
    let place = format!("cgroup:{}", group.path);
    let mut first = bodies(folder.path(), &[("db", &place)]);
    // It is put before it was looked for, and comes into force when it is there.
    first.put("db", &reads(MIB)).expect("noted");
    there(&mut first);
    let number = disks[0].number.to_string();
    assert!(group.reads().contains(&number), "{}", group.reads());
    drop(first);
    // Before it is said what is wanted, all stays.
    let mut next = Bodies::new(folder.path().to_owned());
    next.look(&NOTHING);
    assert!(group.reads().contains(&number));
    drop(next);
    // The same name is another place now.
    let mut next = bodies(folder.path(), &[("db", &format!("cgroup:{}", other.path))]);
    there(&mut next);
    assert_eq!(group.reads(), at_first);
    next.put("db", &reads(MIB)).expect("set");
    assert!(other.reads().contains(&number));
    next.want(std::collections::BTreeMap::new());
    let end = std::time::Instant::now() + crate::support::PATIENCE;
    while other.reads() != at_first {
        next.look(&NOTHING);
        assert!(std::time::Instant::now() < end, "{}", other.reads());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn a_group_that_is_made_again_has_its_limits_again() {
    let name = "a_group_that_is_made_again_has_its_limits_again";
    let (Some(group), Ok(_)) = (Group::new(name), Device::disks()) else {
        return;
    };
    let folder = tempdir().expect("a folder");
    let mut bodies = bodies(folder.path(), &[("db", &format!("cgroup:{}", group.path))]);
    let first = there(&mut bodies);
    let terms = Terms {
        cpu: Some("weight=300".parse().expect("terms")),
        ..reads(MIB)
    };
    bodies.put("db", &terms).expect("set");
    let set = group.reads();
    for _ in 0..3 {
        group.remove();
        for folder in &group.folders {
            fs::create_dir(folder).expect("made");
        }
        assert_ne!(group.reads(), set, "a new group has no limit");
        let end = std::time::Instant::now() + crate::support::PATIENCE;
        loop {
            let body = bodies.look(&NOTHING)["db"].clone();
            if group.reads() == set {
                assert!(body.there && body.born_ns != first.born_ns, "{body:?}");
                assert_eq!((body.disk_why, body.cpu_why), (None, None));
                break;
            }
            assert!(std::time::Instant::now() < end, "{body:?}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    bodies.release("db");
}

#[test]
fn a_part_of_the_cpus_is_set_changed_and_given_back() {
    let name = "a_part_of_the_cpus_is_set_changed_and_given_back";
    let Some(group) = Group::new(name) else {
        return;
    };
    let folder = tempdir().expect("a folder");
    let mut bodies = bodies(folder.path(), &[("db", &format!("cgroup:{}", group.path))]);
    there(&mut bodies);
    let weight = group.file("cpu.weight", "cpu.shares").expect("a file");
    let quota = group.file("cpu.max", "cpu.cfs_quota_us").expect("a file");
    let read = |path: &Path| {
        fs::read_to_string(path)
            .expect("readable")
            .trim()
            .to_owned()
    };
    let at_first = (read(&weight), read(&quota));
    let cpu = |text: &str| Terms {
        cpu: Some(text.parse().expect(text)),
        ..Terms::default()
    };
    bodies.put("db", &cpu("weight=200,quota=50%")).expect("set");
    assert!(
        ["200", "2048"].contains(&&*read(&weight)),
        "{}",
        read(&weight)
    );
    assert!(read(&quota).starts_with("50000"), "{}", read(&quota));
    // Without a quota that is as it was before, and the weight stays.
    bodies.put("db", &cpu("weight=300")).expect("set");
    assert!(
        ["300", "3072"].contains(&&*read(&weight)),
        "{}",
        read(&weight)
    );
    assert_eq!(read(&quota), at_first.1);
    fs::write(&weight, "77").expect("written");
    let told = until(&mut bodies, &NOTHING, "db", |body| body.cpu_why.is_some());
    assert!(
        told.cpu_why
            .is_some_and(|why| why.contains("another program"))
    );
    assert!(
        ["300", "3072"].contains(&&*read(&weight)),
        "{}",
        read(&weight)
    );
    // What cannot be had is told, and tried again.
    let error = bodies.put("db", &cpu("reserve=9ms/10ms")).err();
    assert_eq!(
        error.map(|error| error.sentence()),
        None,
        "nobody is in it yet"
    );
    bodies.put("db", &Terms::default()).expect("given back");
    assert_eq!((read(&weight), read(&quota)), at_first);
}

#[test]
fn processes_that_come_later_have_the_reserve_as_well() {
    let name = "processes_that_come_later_have_the_reserve_as_well";
    let Some(group) = Group::new(name) else {
        return;
    };
    let folder = tempdir().expect("a folder");
    let first = group.sleeper();
    let mut bodies = bodies(folder.path(), &[("db", &format!("cgroup:{}", group.path))]);
    there(&mut bodies);
    let terms = Terms {
        cpu: Some("reserve=1ms/100ms".parse().expect("terms")),
        ..Terms::default()
    };
    if let Err(error) = bodies.put("db", &terms) {
        return skip(name, &error.sentence());
    }
    assert_eq!(policy(first.pid()), 6, "SCHED_DEADLINE");
    let later = group.sleeper();
    until(&mut bodies, &NOTHING, "db", |_| policy(later.pid()) == 6);
    bodies.release("db");
    assert_eq!((policy(first.pid()), policy(later.pid())), (0, 0));
}

/// How a process is scheduled: field 41 of proc_pid_stat(5).
fn policy(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let (_, rest) = stat.rsplit_once(')').expect("a name");
    let field = rest.split_ascii_whitespace().nth(38).expect("a field");
    field.parse().expect("a number")
}

#[test]
fn what_a_place_cannot_have_is_refused_in_a_sentence() {
    let name = "what_a_place_cannot_have_is_refused_in_a_sentence";
    let folder = tempdir().expect("a folder");
    let unit = "unit:bonsai-no-such.service";
    let mut bodies = bodies(folder.path(), &[("lo", "lo"), ("unit", unit)]);
    for (id, words) in [
        ("nobody", "there is no service"),
        ("lo", "no control group"),
    ] {
        let error = bodies.put(id, &reads(MIB)).expect_err(id);
        assert!(
            error.is_input() && error.sentence().contains(words),
            "{error}"
        );
    }
    let none = until(&mut bodies, &NOTHING, "unit", |body| body.why.is_some());
    let why = none.why.expect("words");
    assert!(
        !none.there && why.contains("systemd") && why.contains("bonsai-no-such"),
        "{why}"
    );
    if !crate::support::is_root() {
        return skip(
            name,
            "other users may write to no group, which is not asked here",
        );
    }
    // A record that is none keeps nobody from looking.
    fs::create_dir_all(folder.path().join(".held")).expect("made");
    fs::write(folder.path().join(".held/services.json"), "{").expect("written");
    let Some(group) = Group::new(name) else {
        return;
    };
    let mut bodies =
        crate::support::bodies(folder.path(), &[("db", &format!("cgroup:{}", group.path))]);
    there(&mut bodies);
    let error = bodies.put("db", &reads(MIB)).expect_err("damaged");
    assert!(error.sentence().contains("is damaged"), "{error}");
    let body = there(&mut bodies);
    assert!(body.disk_why.is_some_and(|why| why.contains("is damaged")));
}
