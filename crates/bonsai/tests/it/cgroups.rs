//! `bonsai disk`, `bonsai cpu` and `bonsai run --cpu`, on groups that a test makes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::{Place, Said, skip};

/// A group in a hierarchy of version 1 or 2; it is removed at the end.
struct Group {
    path: String,
    folder: PathBuf,
}

impl Group {
    /// None where there is no such file in groups that are made here. Of the names of a file in
    /// both versions the one that is there is taken.
    fn new(test: &str, name: &str, files: [&str; 2]) -> Option<Self> {
        let path = format!("/bonsai-test.{}.{name}", std::process::id());
        let mounts = fs::read_to_string("/proc/self/mounts").expect("/proc");
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            if !matches!(fields[2], "cgroup" | "cgroup2") {
                continue;
            }
            let folder = Path::new(fields[1]).join(&path[1..]);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            if files.iter().any(|name| folder.join(name).exists()) {
                return Some(Self { path, folder });
            }
            fs::remove_dir(&folder).expect("empty");
        }
        skip(
            test,
            "no control group with the controller can be made here",
        );
        None
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).unwrap_or_default()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A process that sleeps, ended with the test.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Self {
        let child = Command::new("sleep").arg("1000").spawn();
        Self(child.expect("sleep"))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn refused(place: &Place, args: &[&str]) -> String {
    let said = place.say(args);
    assert_eq!(said.code, Some(2), "{args:?}: {said:?}");
    assert_eq!(said.err.lines().count(), 1, "{args:?}: {said:?}");
    said.err
}

fn ok(said: Said) -> String {
    assert_eq!(said.code, Some(0), "{said:?}");
    said.out
}

/// A disk of this machine, if it has one.
fn disk() -> Option<String> {
    let entries = fs::read_dir("/sys/block").ok()?.flatten();
    let mut names = entries.filter(|entry| entry.path().join("device").exists());
    names.next()?.file_name().into_string().ok()
}

#[test]
fn a_group_is_limited_shown_and_cleared() {
    let name = "a_group_is_limited_shown_and_cleared";
    let files = ["io.max", "blkio.throttle.read_bps_device"];
    let (Some(group), Some(disk)) = (Group::new(name, "disk", files), disk()) else {
        return;
    };
    let place = Place::bare();
    let raw = || files.map(|name| group.read(name));
    let before = raw();
    let at = ["--cgroup", group.path.as_str()];
    let with = |words: &[&'static str], more: &[&'static str]| {
        let mut args: Vec<String> = words.iter().map(ToString::to_string).collect();
        args.extend(at.map(str::to_owned));
        args.extend(more.iter().map(ToString::to_string));
        args
    };
    let said = place.say(&with(&["disk", "set"], &["read=50MB/s", "write=1000/s"]));
    let line = format!("{} on {disk}: read=50MB/s write=1000/s\n", group.path);
    assert!(said.out.contains(&line), "{said:?}");
    let is_v1 = group.read("io.max").is_empty();
    assert_eq!(said.err.contains("version 1 limit direct"), is_v1);
    assert!(raw().concat().contains("50000000"));

    let seen: Value = {
        let args = with(&["disk", "ls"], &["--interval", "10ms", "--json"]);
        serde_json::from_str(&ok(place.say(&args))).expect("JSON")
    };
    assert_eq!(seen["schema"], 1);
    let mut disks = seen["disks"].as_array().expect("disks").iter();
    let one = disks.find(|one| one["device"] == disk).expect("limited");
    assert_eq!(one["limits"]["read_bytes"], 50_000_000);
    assert_eq!(one["before"]["read_bytes"], Value::Null);
    assert_eq!(one["set_by"], "bonsai");
    let text = ok(place.say(&["disk", "ls", "--interval", "10ms"]));
    let mut lines = text.lines();
    let line = lines.find(|line| line.contains(&group.path)).expect("seen");
    assert!(
        line.contains("read=50MB/s") && line.ends_with("Bonsai"),
        "{line}"
    );

    let cleared = ok(place.say(&with(&["disk", "clear"], &[])));
    assert!(
        cleared.contains(&format!("on {disk}: unlimited")),
        "{cleared}"
    );
    assert_eq!(raw(), before);
}

#[test]
fn a_change_that_was_killed_at_any_time_is_taken_back_by_the_next() {
    let name = "a_change_that_was_killed_at_any_time_is_taken_back_by_the_next";
    let files = ["io.max", "blkio.throttle.read_bps_device"];
    let (Some(group), Some(_)) = (Group::new(name, "killed", files), disk()) else {
        return;
    };
    let place = Place::bare();
    let raw = || files.map(|name| group.read(name));
    let before = raw();
    let at = ["--cgroup", group.path.as_str()];
    for i in 0..30 {
        let set = [&["disk", "set"], &at[..], &["read=50MB/s", "write=9MB/s"]].concat();
        let mut command = place.bonsai(&set);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("bonsai");
        std::thread::sleep(Duration::from_micros(300 * i));
        // It may have done all of it.
        let _ = child.kill();
        child.wait().expect("ours");
        let said = place.say(&[&["disk", "clear"], &at[..]].concat());
        let nothing = said.err.contains("nothing to take back");
        assert!(said.code == Some(0) || nothing, "{said:?}");
        assert_eq!(raw(), before, "killed after {i} steps: {said:?}");
    }
}

#[test]
fn a_part_of_the_cpus_is_given_shown_and_taken_back() {
    let name = "a_part_of_the_cpus_is_given_shown_and_taken_back";
    let files = ["cpu.max", "cpu.cfs_quota_us"];
    let Some(group) = Group::new(name, "cpu", files) else {
        return;
    };
    let place = Place::bare();
    let raw = || files.map(|name| group.read(name));
    let before = raw();
    let path = group.path.as_str();
    let set = ["cpu", "set", "--cgroup", path, "weight=200", "quota=150%"];
    let said = ok(place.say(&set));
    assert_eq!(
        said,
        format!("{path}: weight=200, quota=150%, reserve=none\n")
    );
    assert!(raw().concat().contains("150000"));
    let seen = ok(place.say(&["cpu", "ls"]));
    let mut lines = seen.lines();
    let line = lines.find(|line| line.contains(path)).expect("seen");
    assert!(line.contains("150%") && line.ends_with("Bonsai"), "{line}");
    ok(place.say(&["cpu", "clear", "--cgroup", path]));
    assert_eq!(raw(), before);
}

#[test]
fn what_cannot_be_limited_is_refused_in_one_sentence() {
    let place = Place::bare();
    let set = |words: &[&'static str]| -> Vec<&'static str> {
        [&["disk", "set", "--cgroup", "/no/such"], words].concat()
    };
    for (args, hint) in [
        (set(&["read=50MB/s"]), "no control group /no/such"),
        (set(&["read=0MB/s"]), "is zero"),
        (set(&["read=1B/s"]), "is too small"),
        (set(&["read=50"]), "has no unit"),
        (set(&["send=50MB/s"]), "nothing that a disk does"),
        (
            set(&["--device", "nodisk", "read=50MB/s"]),
            "is no block device",
        ),
        (set(&["--device", "/proc", "read=50MB/s"]), "is on proc"),
        (
            vec!["disk", "clear", "--cgroup", "x"],
            "is no path of a control",
        ),
        (vec!["disk", "set", "read=50MB/s"], "--cgroup <PATH>"),
        (
            vec!["disk", "set", "--cgroup", "/a", "--unit", "b", "read=1MB/s"],
            "cannot be used with",
        ),
        (
            vec!["cpu", "set", "--cgroup", "/no/such", "weight=5"],
            "no control group",
        ),
        (
            vec!["cpu", "set", "--pid", "1", "weight=0"],
            "from 1 to 10000",
        ),
        (
            vec!["cpu", "set", "--pid", "1", "speed=5"],
            "nothing that there is of a CPU",
        ),
        (
            vec!["cpu", "set", "--pid", "1", "reserve=2ms"],
            "has no period",
        ),
        (
            vec!["run", "--cpu", "weight=x", "--", "true"],
            "from 1 to 10000",
        ),
    ] {
        // A machine without these hierarchies has another reason, as good.
        let sentence = refused(&place, &args);
        let is_other = sentence.contains("no hierarchy of control groups")
            || sentence.contains("no disk of its own");
        assert!(sentence.contains(hint) || is_other, "{args:?}: {sentence}");
    }
    if !Path::new("/run/systemd/system").exists() {
        let args = ["disk", "set", "--unit", "db.service", "read=50MB/s"];
        let sentence = refused(&place, &args);
        assert!(sentence.contains("systemd does not run here"), "{sentence}");
    }
}

#[test]
fn a_process_has_time_reserved_until_it_is_cleared() {
    let name = "a_process_has_time_reserved_until_it_is_cleared";
    let place = Place::bare();
    let sleeper = Sleeper::new();
    let pid = sleeper.0.id().to_string();
    let said = place.say(&["cpu", "set", "--pid", &pid, "reserve=1ms/100ms"]);
    if said.code != Some(0) {
        assert_eq!(said.err.lines().count(), 1, "{said:?}");
        return skip(name, said.err.trim());
    }
    let line = format!("process {pid}: reserve=1ms/100ms (1 thread)\n");
    assert_eq!(said.out, line);
    let policy = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
        let (_, after) = stat.rsplit_once(')').expect("a name");
        after.split_ascii_whitespace().nth(38).map(str::to_owned)
    };
    assert_eq!(policy().as_deref(), Some("6"));
    let sentence = refused(&place, &["cpu", "set", "--pid", &pid, "weight=5"]);
    assert!(sentence.contains("belong to a control group"), "{sentence}");
    ok(place.say(&["cpu", "clear", "--pid", &pid]));
    assert_eq!(policy().as_deref(), Some("0"));
    let sentence = refused(&place, &["cpu", "clear", "--pid", &pid]);
    assert!(sentence.contains("nothing to take back"), "{sentence}");
}

#[test]
fn a_reserve_that_cannot_be_had_is_refused_before_anything_starts() {
    let name = "a_reserve_that_cannot_be_had_is_refused_before_anything_starts";
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < 2 {
        return skip(
            name,
            "with one CPU there is no thread that may run on some only",
        );
    }
    let place = Place::bare();
    let made = place.path().join("made");
    let bonsai = place.bonsai(&[] as &[&str]);
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(bonsai.get_program());
    command.args(["run", "--enforce", "--limit", "write=unlimited"]);
    command.args(["--cpu", "weight=50,reserve=1ms/100ms", "--", "touch"]);
    command.arg(&made);
    for (key, value) in bonsai.get_envs() {
        if let Some(value) = value {
            command.env(key, value);
        }
    }
    let Ok(output) = command.output() else {
        return skip(name, "no taskset (util-linux)");
    };
    let said = Said::from(output);
    assert_eq!(said.code, Some(2), "{said:?}");
    let is_root = said.err.contains("it may run on 1 of");
    assert!(is_root || said.err.contains("takes root"), "{said:?}");
    assert!(!made.exists());
    assert_eq!(place.left(), [".held"], "a service is left behind");
}

/// A program that says which group it is in.
const SAY_GROUP: &str = "folder=$(awk -v n=cpu -F: '$2 ~ \"(^|,)\"n\"(,|$)\" || \
                         ($1==0 && $2==\"\") {print $3; exit}' /proc/self/cgroup); \
                         echo \"group $folder\"";

/// And waits until it and what it has started are scheduled by deadlines.
const AWAIT_DEADLINE: &str = "sleep 1000 & for p in $$ $!; do for i in $(seq 100); do \
                              q=$(awk '{print $41}' /proc/$p/stat); [ $q = 6 ] && break; \
                              sleep 0.1; done; echo policy $q; done; kill $!";

/// What a service that was run so said, and its group.
fn shown(place: &Place, before: &[&str], more: &str) -> (Said, String) {
    let script = format!("{SAY_GROUP}; {more}");
    let args = [before, &["--", "sh", "-c", &script]].concat();
    let mut command = place.bonsai(&args);
    let output = command.stdin(Stdio::null()).output().expect("bonsai");
    let said = Said::from(output);
    let group = said
        .out
        .lines()
        .find_map(|line| line.strip_prefix("group "));
    let group = group.unwrap_or_default().to_owned();
    (said, group)
}

#[test]
fn a_service_has_a_group_of_its_own_until_it_ends() {
    let name = "a_service_has_a_group_of_its_own_until_it_ends";
    let files = ["cpu.max", "cpu.cfs_quota_us"];
    let Some(probe) = Group::new(name, "run", files) else {
        return;
    };
    let Some(place) = Place::new(name) else {
        return;
    };
    let cpu = ["run", "--name", "vod", "--cpu", "weight=200,quota=50%"];
    let (said, group) = shown(&place, &cpu, "true");
    assert_eq!(said.code, Some(0), "{said:?}");
    if group == "/" {
        return skip(name, "the hierarchy of this machine is of another form");
    }
    assert!(group.contains("/bonsai-vod-"), "{said:?}");
    let mount = probe.folder.parent().expect("a mount");
    assert!(!mount.join(&group[1..]).exists(), "left behind");
    assert_eq!(place.left(), [".held"]);
    let held = fs::read_dir(place.path().join(".held")).expect("records");
    let names = held.map(|entry| entry.expect("an entry").file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["lock"], "left behind");
}

#[test]
fn an_enforced_service_with_a_reserve_reaches_its_children() {
    let name = "an_enforced_service_with_a_reserve_reaches_its_children";
    let place = Place::bare();
    let (said, group) = shown(
        &place,
        &[
            "run",
            "--enforce",
            "--limit",
            "write=unlimited",
            "--name",
            "vod",
            "--cpu",
            "reserve=1ms/100ms",
        ],
        AWAIT_DEADLINE,
    );
    if said.code != Some(0) || group == "/" {
        assert_eq!(said.code, Some(2), "{said:?}");
        return skip(name, said.err.trim());
    }
    assert!(group.contains("/bonsai-vod-"), "{said:?}");
    let reserved = said.out.matches("policy 6\n").count();
    assert_eq!(reserved, 2, "{said:?}");
    assert_eq!(place.left(), [".held"]);
}

#[test]
fn what_this_machine_is_in_is_limited_only_when_that_is_confirmed() {
    let place = Place::bare();
    let own = fs::read_to_string("/proc/self/cgroup").expect("/proc");
    let own = own.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let mounts = fs::read_to_string("/proc/self/mounts").expect("/proc");
    let mounts = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let mut folders = mounts.filter(|fields| matches!(fields[2], "cgroup" | "cgroup2"));
    // The root, by its path and by its folder, and the groups of the caller.
    let folder = folders.next().map(|fields| fields[1].to_owned());
    let folder = folder.as_deref().unwrap_or("/");
    let groups: std::collections::BTreeSet<&str> = own.chain(["/", folder]).collect();
    for group in groups {
        for args in [
            ["disk", "set", "--cgroup", group, "read=50MB/s"],
            ["disk", "set", "--cgroup", group, "write=1000/s"],
            ["cpu", "set", "--cgroup", group, "quota=50%"],
        ] {
            let said = place.say(&args);
            assert_eq!(said.code, Some(2), "{args:?}: {said:?}");
            assert!(said.err.contains("--force"), "{args:?}: {said:?}");
        }
    }
}
