//! Services that share a rate, with real processes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use conformance::{Bonsai, finish, skip};
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{bonsai, compiler, scratch};
use crate::probe::PATIENCE;

pub(crate) const S: u64 = 1_000_000_000;
pub(crate) const MS: u64 = 1_000_000;

/// What the group of these tests has: bytes written a second.
const RATE: u64 = 16_000_000;

/// How often a test of shares may fail: a thread that gets no CPU gets no share.
pub(crate) const TRIES: u32 = 3;

/// A group with services.
struct Group {
    bonsai: std::sync::Arc<Bonsai>,
    program: PathBuf,
    name: String,
    folder: tempfile::TempDir,
}

/// A service in it.
struct Member {
    run: Child,
    notes: PathBuf,
}

/// The program of a member, made once: other tests may be running it.
fn program(test: &str) -> Option<PathBuf> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let compiler = compiler(test)?;
    let made = PROGRAM.get_or_init(|| {
        let made = compiler.make("member", &["transparency/member.c"], &[]);
        made.unwrap_or_else(|error| panic!("{error}"))
    });
    Some(made.clone())
}

/// When it had written how much.
pub(crate) type Notes = Vec<(u64, u64)>;

impl Group {
    fn new(test: &str, name: &str) -> Option<Self> {
        let group = Self {
            program: program(test)?,
            bonsai: bonsai(),
            name: name.to_owned(),
            folder: tempfile::tempdir_in(scratch()).expect("a folder"),
        };
        let limit = format!("write={RATE}B/s");
        group.say(&["group", "create", name, "--limit", &limit]);
        Some(group)
    }

    fn say(&self, args: &[&str]) -> String {
        let said = finish(&mut self.bonsai.command(args), PATIENCE).expect("it ends");
        assert!(said.status.success(), "{args:?}: {}", said.stderr);
        said.stdout
    }

    fn start(&self, name: &str, options: &[&str], args: &[&str]) -> Member {
        let notes = self.folder.path().join(name);
        fs::write(&notes, "").expect("a file");
        let mut all = vec!["--group", &self.name];
        all.extend(options);
        let file = notes.display().to_string();
        let args = [&[file.as_str()], args].concat();
        let (_, mut command) = self.bonsai.run(&all, &self.program, &args);
        let run = command
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("bonsai starts");
        Member { run, notes }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let args = ["group", "remove", &self.name];
        drop(self.bonsai.command(&args).output());
    }
}

impl Member {
    fn notes(&self) -> Notes {
        notes(&self.notes)
    }

    fn wait(mut self) -> Notes {
        let status = self.run.wait().expect("it ends");
        assert!(status.success(), "{status}");
        self.notes()
    }

    /// The process of the program itself.
    fn program(&self) -> Pid {
        let children = format!("/proc/{0}/task/{0}/children", self.run.id());
        let start = Instant::now();
        loop {
            let text = fs::read_to_string(&children).unwrap_or_default();
            let first = text
                .split_whitespace()
                .next()
                .and_then(|pid| pid.parse().ok());
            if let Some(pid) = first.and_then(Pid::from_raw)
                && !self.notes().is_empty()
            {
                return pid;
            }
            assert!(start.elapsed() < PATIENCE, "it does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Ok(None) = self.run.try_wait()
            && let Some(pid) = i32::try_from(self.run.id()).ok().and_then(Pid::from_raw)
        {
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
            drop(self.run.wait());
        }
    }
}

pub(crate) fn notes(path: &Path) -> Notes {
    let bytes = fs::read(path).unwrap_or_default();
    let mut words = bytes.chunks_exact(8).map(|word| {
        let mut eight = [0_u8; 8];
        eight.copy_from_slice(word);
        u64::from_le_bytes(eight)
    });
    let count = words.next().unwrap_or(0);
    let count = usize::try_from(count).unwrap_or(0);
    let pairs = std::iter::from_fn(|| Some((words.next()?, words.next()?)));
    pairs.take(count).collect()
}

/// Bytes written between two instants.
pub(crate) fn got(notes: &Notes, from: u64, to: u64) -> u64 {
    let at = |ns: u64| {
        let before = notes.partition_point(|(at, _)| *at <= ns);
        before.checked_sub(1).map_or(0, |i| notes[i].1)
    };
    at(to) - at(from)
}

/// No window is over the rate, of all that was written by members.
pub(crate) fn assert_within(all: &[&Notes], rate: u64, ahead: u64, what: &str) {
    let mut steps: Vec<(u64, u64)> = Vec::new();
    for notes in all {
        steps.extend(
            notes
                .windows(2)
                .map(|pair| (pair[1].0, pair[1].1 - pair[0].1)),
        );
    }
    steps.sort_unstable();
    let (mut level, mut last, mut most) = (0_f64, 0, 0_f64);
    for (at, bytes) in steps {
        level = (level - (at - last) as f64 * rate as f64 / S as f64).max(0.0) + bytes as f64;
        (last, most) = (at, most.max(level));
    }
    assert!(
        most <= ahead as f64,
        "{what}: {most} bytes ahead of its rate, {ahead} allowed"
    );
}

/// What all members together may be ahead: the burst of 20 ms, guarantees of 10 ms and half
/// a turn, two turns of each member of a pair, and what happens between two notes.
const AHEAD: u64 = RATE / 50 + RATE / 80 + 4 * RATE / 225 + RATE / 200;

/// The time in which all of them were there.
fn common(all: &[&Notes]) -> (u64, u64) {
    let first = all.iter().filter_map(|notes| notes.first());
    let last = all.iter().filter_map(|notes| notes.last());
    let from = first.map(|(at, _)| *at).max().expect("notes");
    let to = last.map(|(at, _)| *at).min().expect("notes");
    // While they start, they are not all there.
    (from + 100 * MS, to)
}

#[test]
fn two_greedy_members_share_by_weight() {
    let test = "two_greedy_members_share_by_weight";
    let Some(group) = Group::new(test, "weights") else {
        return;
    };
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let args = ["4096", "3400"];
        let one = group.start("one", &["--weight", "1"], &args);
        let three = group.start("three", &["--weight", "3"], &args);
        let (one, three) = (one.wait(), three.wait());
        assert_within(&[&one, &three], RATE, AHEAD, "both");
        let (from, to) = common(&[&one, &three]);
        let windows = (0..(to - from) / S).map(|i| from + i * S);
        // A thread that got no CPU for longer than its turns last could not use them.
        let fed = |at: &u64| [&one, &three].iter().all(|n| longest(n, *at, at + S) < FED);
        let shares = windows.filter(fed).map(|at| {
            let [a, b] = [&one, &three].map(|notes| got(notes, at, at + S) as f64);
            a / (a + b)
        });
        let shares: Vec<f64> = shares.collect();
        // 2 % of the share, and a note of 2 ms at either end of a window.
        let exact = |share: &f64| (share / 0.25 - 1.0).abs() < 0.024;
        if !shares.is_empty() && shares.iter().all(exact) {
            return;
        }
        seen.extend(shares);
    }
    if seen.is_empty() {
        skip(
            test,
            "the machine is too busy: no second without a pause of 15 ms",
        );
        return;
    }
    panic!("shares of the one, for 0.25: {seen:?}");
}

/// Members that always want more are never held back for longer than this, ns.
const FED: u64 = 15 * MS;

/// The longest time between two notes.
fn longest(notes: &Notes, from: u64, to: u64) -> u64 {
    let within = notes
        .windows(2)
        .filter(|pair| pair[0].0 >= from && pair[1].0 <= to);
    within.map(|pair| pair[1].0 - pair[0].0).max().unwrap_or(S)
}

#[test]
fn one_alone_gets_what_the_others_leave_up_to_its_ceiling() {
    let test = "one_alone_gets_what_the_others_leave_up_to_its_ceiling";
    let Some(group) = Group::new(test, "alone") else {
        return;
    };
    // There is another one, but it does nothing.
    let idle = group.start("idle", &["--weight", "1000"], &["1", "2600", "0", "2500"]);
    let part = |name: &str, options: &[&str]| {
        let notes = group.start(name, options, &["4096", "1000"]).wait();
        let (from, to) = common(&[&notes]);
        assert_within(&[&notes], RATE, AHEAD, name);
        (
            got(&notes, from, to) as f64 * S as f64 / (to - from) as f64,
            notes,
        )
    };
    let (all, _) = part("all", &["--weight", "1"]);
    let ceiling = 2_000_000_u64;
    let (some, notes) = part("some", &["--ceiling", "write=2MB/s"]);
    // Its ceiling's burst of 20 ms, and two calls.
    assert_within(
        &[&notes],
        ceiling,
        ceiling / 40 + 2 * RATE / 200,
        "the ceiling",
    );
    // By weight it would get a thousandth: this is no judgement of speed.
    assert!(
        all > 4.0 * some && some > 200_000.0,
        "{all} and {some} bytes/s"
    );
    drop(idle);
}

#[test]
fn guarantees_hold_beside_greedy_members() {
    let test = "guarantees_hold_beside_greedy_members";
    let Some(group) = Group::new(test, "guarantees") else {
        return;
    };
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let greedy = group.start("greedy", &["--weight", "100"], &["16384", "2200"]);
        let options = ["--guarantee", "write=4MB/s", "--weight", "1"];
        let promised = group.start("promised", &options, &["4096", "2200"]);
        let (greedy, promised) = (greedy.wait(), promised.wait());
        assert_within(&[&greedy, &promised], RATE, AHEAD, "both");
        let (from, to) = common(&[&greedy, &promised]);
        let [mine, others] = [&promised, &greedy].map(|notes| got(notes, from, to) as f64);
        // A quarter of it is its own, and a 101st of the rest. By weight alone it would get
        // a hundredth. Where the other one gets no CPU, it borrows more.
        let share = mine / (mine + others);
        if share > 0.25 * 0.97 {
            return;
        }
        seen.push(share);
    }
    panic!("shares of the one with a quarter guaranteed: {seen:?}");
}

#[test]
fn the_others_go_on_when_a_member_is_killed_or_stopped() {
    let test = "the_others_go_on_when_a_member_is_killed_or_stopped";
    let Some(group) = Group::new(test, "killed") else {
        return;
    };
    let other = group.start("other", &["--weight", "1"], &["4096", "4000"]);
    other.program();
    let start = Instant::now();
    let mut random = 7_u64;
    while start.elapsed() < Duration::from_millis(2500) {
        let member = group.start("victim", &["--weight", "9"], &["4096", "60000"]);
        let victim = member.program();
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        std::thread::sleep(Duration::from_micros((random >> 33) % 40_000));
        kill_process(victim, Signal::STOP).expect("it lives");
        std::thread::sleep(Duration::from_millis(30));
        if random & 1 << 40 == 0 {
            kill_process(victim, Signal::CONT).expect("it lives");
        }
        kill_process(victim, Signal::KILL).expect("it lives");
        let mut member = member;
        drop(member.run.wait());
    }
    let notes = other.wait();
    assert_within(&[&notes], RATE, AHEAD, "the other");
    let longest = notes.windows(2).map(|pair| pair[1].0 - pair[0].0).max();
    assert!(longest < Some(S), "it stood still for {longest:?} ns");
    let left = group.say(&["group", "status", "killed", "--json", "--interval", "10ms"]);
    assert!(left.contains("\"members\": []"), "{left}");
}

#[test]
fn a_stopped_member_leaves_its_part_to_the_others() {
    let test = "a_stopped_member_leaves_its_part_to_the_others";
    let Some(group) = Group::new(test, "stopped") else {
        return;
    };
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let other = group.start("other", &["--weight", "1"], &["4096", "2500"]);
        let greedy = group.start("stopped", &["--weight", "9"], &["4096", "2500"]);
        let (_, pid) = (other.program(), greedy.program());
        std::thread::sleep(Duration::from_millis(500));
        kill_process(pid, Signal::STOP).expect("it lives");
        let from = monotonic();
        std::thread::sleep(Duration::from_millis(1000));
        let to = monotonic();
        kill_process(pid, Signal::CONT).expect("it lives");
        let (other, greedy) = (other.wait(), greedy.wait());
        assert_within(&[&other, &greedy], RATE, AHEAD, "both");
        // A tenth is its part: it has far more while it is alone.
        let alone = got(&other, from, to) as f64 / (RATE as f64 * (to - from) as f64 / S as f64);
        if alone > 0.5 {
            return;
        }
        seen.push(alone);
    }
    panic!("parts of the rate beside a stopped member: {seen:?}");
}

fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * S + u64::try_from(now.tv_nsec).unwrap_or(0)
}

#[test]
fn terms_change_while_members_wait() {
    let test = "terms_change_while_members_wait";
    let Some(group) = Group::new(test, "terms") else {
        return;
    };
    let slow = "write=10kB/s";
    group.say(&["group", "set", "terms", slow]);
    let member = group.start("changed", &[], &["65536", "1500"]);
    std::thread::sleep(Duration::from_millis(600));
    group.say(&["group", "set", "terms", &format!("write={RATE}B/s")]);
    let notes = member.wait();
    // 64 KiB take 6.5 s at 10 kB/s: it would not have ended.
    assert!(notes.len() > 2, "{notes:?}");
    assert_within(&[&notes], RATE, AHEAD + 65536, "afterwards");
}

#[test]
fn a_member_that_changes_its_user_stays_one() {
    let test = "a_member_that_changes_its_user_stays_one";
    if !rustix::process::geteuid().is_root() {
        skip(test, "only root can become another user");
        return;
    }
    let Some(group) = Group::new(test, "changes") else {
        return;
    };
    let options = ["--ceiling", "write=1MB/s"];
    let notes = group
        .start("nobody", &options, &["4096", "500", "0", "0", "65534"])
        .wait();
    assert!(notes.len() > 3);
    assert_within(&[&notes], 1_000_000, 25_000 + 2 * RATE / 200, "as nobody");
}

#[test]
fn services_of_two_users_share_a_group_of_root() {
    let test = "services_of_two_users_share_a_group_of_root";
    if !rustix::process::geteuid().is_root() {
        skip(test, "only root can make a group for other users");
        return;
    }
    let Some(program) = program(test) else {
        return;
    };
    let bonsai = bonsai();
    let name = format!("test-{}", std::process::id());
    let limit = format!("write={RATE}B/s");
    let say = |args: &[&str]| finish(&mut bonsai.command(args), PATIENCE).expect("it ends");
    let create = [
        "group",
        "create",
        &name,
        "--limit",
        &limit,
        "--unix-group",
        "65534",
    ];
    let made = say(&create);
    assert!(made.status.success(), "{}", made.stderr);
    // nobody has a copy of its own of all that it needs.
    let folder = tempfile::tempdir().expect("a folder");
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
    };
    open(folder.path(), 0o755);
    let built = built();
    for file in ["bonsai", "libbonsai_preload.so", "libbonsai_extension.so"] {
        fs::copy(built.join(file), folder.path().join(file)).expect("a copy");
    }
    let copy = folder.path().join("member");
    fs::copy(&program, &copy).expect("a copy");
    let as_user = |uid: u32, gid: u32| {
        let runtime = folder.path().join(format!("runtime-{uid}"));
        fs::create_dir(&runtime).expect("a folder");
        open(&runtime, 0o700);
        let notes = folder.path().join(format!("notes-{uid}"));
        fs::write(&notes, "").expect("a file");
        for path in [&runtime, &notes] {
            std::os::unix::fs::chown(path, Some(uid), Some(gid)).expect("root may");
        }
        let mut command = Command::new(folder.path().join("bonsai"));
        command
            .args(["run", "--group", &name, "--"])
            .arg(&copy)
            .arg(&notes)
            .args(["4096", "1500"])
            .env("BONSAI_RUNTIME_DIR", &runtime)
            .env_remove("BONSAI_PRELOAD")
            .env_remove("XDG_RUNTIME_DIR")
            .stdin(Stdio::null())
            .uid(uid)
            .gid(gid);
        (command, notes)
    };
    let (mut nobody, a) = as_user(65534, 65534);
    let (mut other, b) = as_user(65533, 65534);
    let (mut stranger, _) = as_user(65532, 65532);
    let [mut nobody, mut other] = [&mut nobody, &mut other].map(|c| c.spawn().expect("it starts"));
    let refused = finish(&mut stranger, PATIENCE).expect("it ends");
    assert!(nobody.wait().expect("it ends").success());
    assert!(other.wait().expect("it ends").success());
    let removed = say(&["group", "remove", &name]);
    assert!(removed.status.success(), "{}", removed.stderr);
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("is for members of the Unix group"),
        "{}",
        refused.stderr
    );
    let (a, b) = (notes(&a), notes(&b));
    assert!(a.len() > 3 && b.len() > 3);
    assert_within(&[&a, &b], RATE, AHEAD, "of two users");
}

/// Where the built files are.
fn built() -> PathBuf {
    let default = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bonsai");
    std::env::var_os("BONSAI_BIN_DIR").map_or(default, PathBuf::from)
}
