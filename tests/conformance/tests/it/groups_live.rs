//! Services that come into a group and leave it while they run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use conformance::{Bonsai, Finished, finish, skip};
use rustix::process::{Pid, Signal, kill_process};

use crate::busy::Attacher;
use crate::fixture::{bonsai, compiler, scratch};
use crate::go::{GO_FORMS, go_programs};
use crate::probe::PATIENCE;

/// What the groups of these tests have: bytes written a second.
const RATE: u64 = 4_000_000;

/// Threads of the program that writes, and bytes of each of its writes.
const THREADS: usize = 8;
const SIZE: u64 = 4096;

/// What may be ahead in a window: the group's burst of 20 ms, a round and leases, and a
/// write of each thread that was under way at either end.
const AHEAD: u64 = RATE / 20 + 2 * THREADS as u64 * SIZE;

/// A process that is told to end with its test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        drop(self.0.wait());
    }
}

/// A program that writes as much as it can.
struct Writer {
    bonsai: Arc<Bonsai>,
    name: String,
    counts: PathBuf,
    run: Option<Ends>,
    _folder: tempfile::TempDir,
}

fn say(bonsai: &Bonsai, args: &[&str]) -> Finished {
    finish(&mut bonsai.command(args), PATIENCE).expect("it ends")
}

fn done(bonsai: &Bonsai, args: &[&str]) -> String {
    let said = say(bonsai, args);
    assert!(said.status.success(), "{args:?}: {}", said.stderr);
    said.stdout
}

/// A group that is gone at the end.
struct Group(Arc<Bonsai>, &'static str);

impl Group {
    fn new(name: &'static str, rate: u64) -> Self {
        let bonsai = bonsai();
        let limit = format!("write={rate}B/s");
        done(&bonsai, &["group", "create", name, "--limit", &limit]);
        Self(bonsai, name)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(say(&self.0, &["group", "remove", self.1]));
    }
}

fn compiled(test: &str, options: &[&str]) -> Option<PathBuf> {
    let name = format!("writers-{test}");
    let made = compiler(test)?.make(&name, &["transparency/writers.c"], options);
    made.inspect_err(|error| skip(test, &error.to_string()))
        .ok()
}

impl Writer {
    /// Nothing runs yet; `args` come behind the number of threads and the size.
    fn command(program: &Path, args: &[&str]) -> (Self, Vec<String>) {
        let folder = tempfile::tempdir_in(scratch()).expect("a folder");
        let counts = folder.path().join("counts");
        fs::write(&counts, "").expect("a file");
        let mut all = vec![counts.display().to_string(), THREADS.to_string()];
        all.push(SIZE.to_string());
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let writer = Self {
            bonsai: bonsai(),
            name: program.display().to_string(),
            counts,
            run: None,
            _folder: folder,
        };
        (writer, all)
    }

    /// Runs as a service of its own.
    fn start(program: &Path, options: &[&str], args: &[&str]) -> Self {
        let (mut writer, args) = Self::command(program, args);
        let (name, mut command) = writer.bonsai.run(options, program, &args);
        let child = command.stdin(Stdio::null()).spawn().expect("it starts");
        (writer.name, writer.run) = (name, Some(Ends(child)));
        writer.moves("at the start");
        writer
    }

    fn counts(&self) -> Vec<u64> {
        let bytes = fs::read(&self.counts).unwrap_or_default();
        let words = bytes.chunks_exact(8).take(THREADS).map(|word| {
            let mut eight = [0; 8];
            eight.copy_from_slice(word);
            u64::from_le_bytes(eight)
        });
        words.collect()
    }

    fn written(&self) -> u64 {
        self.counts().iter().sum()
    }

    /// Each of its threads writes.
    fn moves(&self, what: &str) {
        let (before, start) = (self.counts(), Instant::now());
        loop {
            let now = self.counts();
            let at = |i: usize| before.get(i).copied().unwrap_or(0);
            if !now.is_empty() && now.iter().enumerate().all(|(i, count)| *count > at(i)) {
                return;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "{what}: {before:?} is {now:?} still"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn join(&self, group: &str, options: &[&str]) -> String {
        let args = [&["group", "join", group, &self.name], options].concat();
        done(&self.bonsai, &args)
    }

    fn leave(&self) {
        done(&self.bonsai, &["group", "leave", &self.name]);
    }

    /// What it writes in a while, under a rate: never more than that.
    fn is_held_to(&self, rate: u64, what: &str) {
        // Calls that were under way when it joined.
        std::thread::sleep(Duration::from_millis(50));
        let (from, before) = (Instant::now(), self.written());
        std::thread::sleep(Duration::from_millis(400));
        let bytes = self.written() - before;
        let time = from.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "amounts are small")]
        let (most, got) = (rate as f64 * time + AHEAD as f64, bytes as f64);
        assert!(got <= most, "{what}: {got} bytes in {time} s");
        assert!(bytes > 0, "{what}: it stands still");
    }

    /// It writes more than the group has, as soon as the machine lets it.
    fn is_free(&self, what: &str) {
        let (before, start) = (self.written(), Instant::now());
        // At the rate of the group, that takes 25 s.
        while self.written() - before < 25 * RATE {
            assert!(start.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn status(&self) -> serde_json::Value {
        let text = done(&self.bonsai, &["status", "--json", &self.name]);
        let document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        document["services"][0].clone()
    }

    fn has_no_unshaped(&self, what: &str) {
        let view = self.status();
        assert_eq!(view["unshaped"], serde_json::json!([]), "{what}");
    }
}

/// In, out, in again, into another one, with all of its threads.
fn comes_and_goes(writer: &Writer, [one, other]: [&str; 2], what: &str) {
    writer.is_free(what);
    let said = writer.join(one, &["--guarantee", "write=1MB/s", "--weight", "3"]);
    assert!(
        said.contains("guarantee 1 MB/s, no ceiling, weight 3"),
        "{said}"
    );
    writer.is_held_to(RATE, what);
    assert_eq!(writer.status()["group"]["name"], one, "{what}");
    writer.moves(what);
    writer.leave();
    writer.is_free(what);
    assert_eq!(writer.status()["group"], serde_json::Value::Null, "{what}");
    writer.join(one, &["--ceiling", "write=2MB/s"]);
    writer.is_held_to(RATE / 2, what);
    writer.leave();
    writer.join(other, &[]);
    writer.is_held_to(RATE / 4, what);
    let again = say(&writer.bonsai, &["group", "join", one, &writer.name]);
    assert!(
        again
            .stderr
            .contains(&format!("is in the group {other} already")),
        "{again:?}"
    );
    writer.leave();
    writer.is_free(what);
    writer.has_no_unshaped(what);
}

#[test]
fn a_running_service_joins_leaves_and_joins_again() {
    let test = "a_running_service_joins_leaves_and_joins_again";
    let Some(program) = compiled(test, &[]) else {
        return;
    };
    let groups = [Group::new("live-a", RATE), Group::new("live-b", RATE / 4)];
    let names = [groups[0].1, groups[1].1];
    // Beside a limit of its own, too.
    for options in [&[][..], &["--limit", "write=10GB/s"]] {
        let writer = Writer::start(&program, options, &[]);
        comes_and_goes(&writer, names, test);
    }
}

#[test]
fn programs_without_a_loader_join_and_leave() {
    let test = "programs_without_a_loader_join_and_leave";
    let groups = [
        Group::new("static-a", RATE),
        Group::new("static-b", RATE / 4),
    ];
    let names = [groups[0].1, groups[1].1];
    let mut programs: Vec<_> = compiled(test, &["-static"])
        .map(|program| ("glibc", program))
        .into_iter()
        .collect();
    programs.extend(go_programs(test, "writers/main.go", &GO_FORMS[..1]));
    for (form, program) in programs {
        let writer = Writer::start(&program, &[], &[]);
        comes_and_goes(&writer, names, form);
    }
}

#[test]
fn a_process_that_was_attached_joins_and_leaves() {
    let test = "a_process_that_was_attached_joins_and_leaves";
    let Some(program) = compiled(test, &[]) else {
        return;
    };
    let groups = [
        Group::new("attached-a", RATE),
        Group::new("attached-b", RATE / 4),
    ];
    let (mut writer, args) = Writer::command(&program, &[]);
    let mut bare = Command::new(&program);
    let child = bare.args(args).stdin(Stdio::null()).spawn();
    let child = child.expect("it starts");
    let pid = child.id().to_string();
    writer.run = Some(Ends(child));
    writer.name = "attached-live".to_owned();
    writer.moves("bare");
    let attacher = Attacher::start(&writer.bonsai, &["attach", "-n", &writer.name, &pid]);
    let start = Instant::now();
    while !say(&writer.bonsai, &["status", &writer.name])
        .status
        .success()
    {
        assert!(start.elapsed() < PATIENCE, "it is not attached");
        std::thread::sleep(Duration::from_millis(5));
    }
    comes_and_goes(&writer, [groups[0].1, groups[1].1], test);
    // Whoever waits for the group goes on when the limits are taken off.
    writer.join(groups[1].1, &["--ceiling", "write=1kB/s"]);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(attacher.interrupt(), "");
    writer.is_free(test);
    let status = done(&writer.bonsai, &["group", "status", "-i", "10ms"]);
    assert!(!status.contains("attached-live"), "{status}");
}

/// In so slow a group that nobody would come out of it, threads go on when it is left, and
/// are neither stuck nor unshaped, in whatever they were when it changed.
#[test]
fn calls_that_wait_go_on_when_their_service_leaves() {
    let test = "calls_that_wait_go_on_when_their_service_leaves";
    let Some(program) = compiled(test, &[]) else {
        return;
    };
    let slow = Group::new("slow", 1000);
    let fast = Group::new("fast", 100_000_000);
    let writer = Writer::start(&program, &[], &[]);
    for i in 0..30 {
        writer.join(slow.1, &[]);
        // A thread has its turn once in four seconds.
        std::thread::sleep(Duration::from_millis(i));
        let stuck = writer.written();
        writer.leave();
        writer.moves("it has left");
        assert!(writer.written() > stuck);
        writer.join(fast.1, &[]);
        writer.moves("in the fast one");
        writer.leave();
    }
    writer.has_no_unshaped(test);
    let status = done(&writer.bonsai, &["group", "status", "slow", "-i", "10ms"]);
    assert!(status.contains("0 members"), "{status}");
}

/// Its place in the group belongs to a process of it then, and it can leave and join.
#[test]
fn a_service_whose_keeper_was_killed_joins_and_leaves() {
    let test = "a_service_whose_keeper_was_killed_joins_and_leaves";
    let Some(program) = compiled(test, &[]) else {
        return;
    };
    let groups = [
        Group::new("orphan-a", RATE),
        Group::new("orphan-b", RATE / 4),
    ];
    let mut writer = Writer::start(&program, &[], &[]);
    writer.join(groups[0].1, &[]);
    writer.is_held_to(RATE, "with its keeper");
    let keeper = writer.run.as_ref().expect("it runs").0.id();
    let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"));
    let children = children.expect("it lives");
    let pid: i32 = children.trim().parse().expect("one child");
    let mut run = writer.run.take().expect("it runs");
    kill_process(Pid::from_child(&run.0), Signal::KILL).expect("it lives");
    drop(run.0.wait());
    let end = EndsProcess(pid);
    // Its terms hold, whoever is dead.
    writer.is_held_to(RATE, "without its keeper");
    writer.leave();
    writer.is_free("without its keeper");
    writer.join(groups[1].1, &[]);
    writer.is_held_to(RATE / 4, "again");
    let list = ["group", "status", "--json", "-i", "10ms", groups[1].1];
    let member = |text: &str| {
        let document: serde_json::Value = serde_json::from_str(text).expect("JSON");
        document["groups"][0]["shares"][0]["members"][0].clone()
    };
    let seen = member(&done(&writer.bonsai, &list));
    assert_eq!((&seen["alive"], &seen["pid"]), (&true.into(), &pid.into()));
    drop(end);
    let start = Instant::now();
    while member(&done(&writer.bonsai, &list))["alive"] == true {
        assert!(start.elapsed() < PATIENCE, "it is alive still");
        std::thread::sleep(Duration::from_millis(5));
    }
    // It is nobody's: the group can be removed.
    done(&writer.bonsai, &["group", "remove", groups[1].1]);
}

struct EndsProcess(i32);

impl Drop for EndsProcess {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.0) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// What cannot open the group's memory is not held, and that is said.
#[test]
fn a_process_that_has_changed_its_user_is_said_to_be_unshaped() {
    let test = "a_process_that_has_changed_its_user_is_said_to_be_unshaped";
    if !rustix::process::geteuid().is_root() {
        skip(test, "only root can become another user");
        return;
    }
    let Some(program) = compiled(test, &[]) else {
        return;
    };
    let group = Group::new("other-user", RATE);
    let writer = Writer::start(&program, &[], &["65534"]);
    writer.join(group.1, &[]);
    writer.is_free("as nobody");
    let view = writer.status();
    let unshaped = view["unshaped"].as_array().expect("a list");
    assert!(!unshaped.is_empty(), "{view}");
    writer.leave();
    writer.moves("afterwards");
}

#[test]
fn an_enforced_service_joins_no_group() {
    let test = "an_enforced_service_joins_no_group";
    if !rustix::process::geteuid().is_root() {
        skip(test, "what the sentence is about is made by root here");
        return;
    }
    let Some(program) = compiled(test, &[]) else {
        return;
    };
    let group = Group::new("not-enforced", RATE);
    let (writer, args) = Writer::command(&program, &[]);
    let options = ["--enforce", "--limit", "write=1MB/s"];
    let (name, mut command) = writer.bonsai.run(&options, &program, &args);
    let run = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
    let run = Ends(run.expect("it starts"));
    let start = Instant::now();
    while writer.written() == 0 {
        if start.elapsed() > PATIENCE {
            skip(test, "nothing can be enforced here");
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let said = say(&writer.bonsai, &["group", "join", group.1, &name]);
    assert_eq!(said.status.code(), Some(2));
    assert!(
        said.stderr
            .contains("is enforced, and what is enforced is in no group"),
        "{said:?}"
    );
    drop(run);
}
