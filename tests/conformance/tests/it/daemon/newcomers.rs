//! A newcomer is limited from its first byte where the whole is shared: what it sends is counted where it arrives.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::fixture::{Ends, RATE, Ring};
use super::machine::Machine;
use crate::fixture::PATIENCE;

const FILE: &str = "[capacity]\nwrite = \"20MB/s\"\n";

/// Bytes that may be ahead: a burst of 20 ms, a round of the pool, leases, and a full pipe.
const AHEAD: u64 = RATE / 20 + 16 * 16_384 + 65_536;

/// Arrivals at a pipe: the time, and all bytes up to then.
type Came = Vec<(Instant, u64)>;

/// A program that writes, and what of it arrives.
struct Writer {
    _ends: Option<Ends>,
    arrives: JoinHandle<Came>,
    first: Receiver<()>,
}

fn arrive(mut from: ChildStdout, first: SyncSender<()>) -> JoinHandle<Came> {
    std::thread::spawn(move || {
        let (mut came, mut total) = (Came::new(), 0);
        let mut buffer = vec![0; 1 << 16];
        while let Ok(bytes @ 1..) = from.read(&mut buffer) {
            total += bytes as u64;
            came.push((Instant::now(), total));
            // Only the first one is waited for, if any is.
            let _ = first.try_send(());
        }
        came
    })
}

impl Writer {
    fn start(mut command: Command) -> Self {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child: Child = command.spawn().expect("it starts");
        let (sends, first) = sync_channel(1);
        let arrives = arrive(child.stdout.take().expect("its output"), sends);
        Self {
            _ends: Some(Ends(child)),
            arrives,
            first,
        }
    }

    /// Waits so long from the first byte on.
    fn go_on(&self, time: Duration) {
        self.first.recv_timeout(PATIENCE).expect("it writes");
        std::thread::sleep(time);
    }

    /// Ends it; what came.
    fn end(mut self) -> Came {
        self._ends = None;
        self.arrives.join().expect("counted")
    }
}

const DD: [&str; 4] = ["/bin/dd", "if=/dev/zero", "bs=16k", "status=none"];

fn writer(ring: &Ring, more: &[&str], program: &[&str]) -> Writer {
    let mut command = ring.command(&["run"]);
    command.args(more).arg("--").args(program);
    Writer::start(command)
}

/// The most that came before its time by a rate, from the first byte on, in the first `time`.
fn ahead(mut came: Came, rate: u64, time: Duration) -> (u64, u64) {
    came.sort();
    let Some((start, _)) = came.first().copied() else {
        return (0, 0);
    };
    let mut within = came.iter().filter(|(at, _)| *at - start <= time);
    let early = within.clone().map(|(at, total)| {
        let by_rate = u128::from(rate) * (*at - start).as_micros() / 1_000_000;
        u128::from(*total).saturating_sub(by_rate)
    });
    let most = u64::try_from(early.max().unwrap_or(0)).expect("few");
    (most, within.next_back().map_or(0, |(_, total)| *total))
}

/// Arrivals at several pipes, as if at one.
fn together(all: Vec<Came>) -> Came {
    let mut steps: Vec<(Instant, u64)> = Vec::new();
    for came in all {
        let mut before = 0;
        for (at, total) in came {
            steps.push((at, total - before));
            before = total;
        }
    }
    steps.sort();
    let mut total = 0;
    let sum = steps.into_iter().map(|(at, bytes)| {
        total += bytes;
        (at, total)
    });
    sum.collect()
}

/// The daemon has decided once.
fn started(file: &str) -> Ring {
    let ring = Ring::started(file);
    ring.until("it is published what newcomers have", |ring| {
        ring.bonsai.services().join(".initial-limits.json").exists()
    });
    ring
}

#[test]
fn the_first_second_of_a_service_is_within_what_is_shared() {
    let ring = started(FILE);
    for i in 0..3 {
        let writer = writer(&ring, &["--name", &format!("one{i}")], &DD);
        writer.go_on(Duration::from_millis(1100));
        let (most, bytes) = ahead(writer.end(), RATE, Duration::from_secs(1));
        assert!(most <= AHEAD, "{most} bytes ahead, {AHEAD} may be");
        // Unused bandwidth is there at once, too.
        assert!(bytes >= RATE / 4, "{bytes} bytes in the first second");
    }
}

#[test]
fn the_first_second_is_within_a_ceiling_of_a_service_and_of_its_class() {
    let file = "[services.vod.write]\nmax = \"4MB/s\"\n[classes.default.write]\nmax = \"8MB/s\"\n";
    for whole in ["", FILE] {
        let ring = started(&format!("{whole}{file}"));
        for (name, rate) in [("vod", 4_000_000), ("other", 8_000_000)] {
            let writer = writer(&ring, &["--name", name], &DD);
            writer.go_on(Duration::from_millis(1100));
            let (most, bytes) = ahead(writer.end(), rate, Duration::from_secs(1));
            assert!(most <= AHEAD / 2, "{name}: {most} bytes ahead");
            assert!(
                bytes >= rate / 4,
                "{name}: {bytes} bytes in the first second"
            );
        }
    }
}

#[test]
fn short_jobs_one_after_another_are_together_within_what_is_shared() {
    let ring = started(FILE);
    let mut program = DD.to_vec();
    program.push("count=128");
    let mut all = Vec::new();
    for _ in 0..12 {
        all.push(
            writer(&ring, &["--name", "job"], &program)
                .arrives
                .join()
                .expect("counted"),
        );
    }
    let (most, bytes) = ahead(together(all), RATE, Duration::from_secs(60));
    assert_eq!(bytes, 12 * 128 * 16_384);
    assert!(most <= AHEAD, "{most} bytes ahead, {AHEAD} may be");
}

#[test]
fn more_at_once_than_the_pool_has_places_are_within_what_is_shared() {
    let ring = started(FILE);
    // The pool has 64 places.
    let writers: Vec<Writer> = (0..70).map(|_| writer(&ring, &[], &DD)).collect();
    ring.until("all run", |ring| ring.get("/v1/status")["services"] == 70);
    std::thread::sleep(Duration::from_secs(1));
    let all: Vec<Came> = writers.into_iter().map(Writer::end).collect();
    assert!(all.iter().filter(|came| !came.is_empty()).count() >= 60);
    // Each member has a burst, and a pipe, of its own.
    let most_ahead = AHEAD + 70 * 4 * 65_536;
    let (most, _) = ahead(together(all), RATE, Duration::from_secs(60));
    assert!(
        most <= most_ahead,
        "{most} bytes ahead, {most_ahead} may be"
    );
}

#[test]
fn what_is_attached_is_within_what_is_shared_from_then_on() {
    let ring = started(FILE);
    let writer = Writer::start({
        let mut command = Command::new(DD[0]);
        command.args(&DD[1..]);
        command
    });
    let ends = writer._ends.as_ref().expect("it runs");
    let mut command = ring.command(&["attach", "--name", "late", &ends.0.id().to_string()]);
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let said = BufReader::new(child.stderr.take().expect("its words"));
    let attached = Ends(child);
    let line = said
        .lines()
        .map_while(Result::ok)
        .find(|line| line.contains("under limits"));
    line.expect("it is attached");
    let from = Instant::now();
    std::thread::sleep(Duration::from_millis(700));
    // After the end it is unlimited again.
    let to = Instant::now();
    drop(attached);
    let came = writer.end();
    let before = came
        .iter()
        .rev()
        .find(|(at, _)| *at <= from)
        .map_or(0, |(_, total)| *total);
    let came: Came = came
        .into_iter()
        .filter(|(at, _)| (from..to).contains(at))
        .map(|(at, total)| (at, total - before))
        .collect();
    assert!(!came.is_empty());
    let (most, _) = ahead(came, RATE, Duration::from_secs(1));
    assert!(most <= AHEAD, "{most} bytes ahead, {AHEAD} may be");
}

#[test]
fn a_service_goes_from_the_pool_into_a_group_and_is_limited_all_the_time() {
    let ring = started(FILE);
    ring.done(&["group", "create", "g", "--limit", "write=10MB/s"]);
    let vod = writer(&ring, &["--name", "vod"], &DD);
    ring.until("it is in the pool", |ring| {
        ring.of("vod", "write")["enforced"] == "pool"
    });
    ring.refused(&["group", "leave", "vod"], "bonsai group join GROUP vod");
    let from = Instant::now();
    ring.done(&["group", "join", "g", "vod"]);
    ring.until("it has a limit instead", |ring| {
        ring.of("vod", "write")["enforced"] == "limit"
    });
    std::thread::sleep(Duration::from_millis(500));
    assert!(ring.done(&["group", "status", "g"]).contains("vod"));
    // One that is started in a group is there, with a limit of the daemon's beside it.
    let bulk = writer(&ring, &["--name", "bulk", "--group", "g"], &DD);
    ring.until("it is known", |ring| {
        ring.of("bulk", "write")["enforced"] == "limit"
    });
    assert!(ring.done(&["group", "status", "g"]).contains("bulk"));
    let came = vod.end();
    let (most, _) = ahead(came.clone(), RATE, Duration::from_secs(60));
    assert!(most <= AHEAD, "{most} bytes ahead, {AHEAD} may be");
    assert!(came.last().is_some_and(|(at, _)| *at > from), "it goes on");
    drop(bulk.end());
}

#[test]
fn without_a_daemon_a_service_has_no_limit_and_waits_for_nothing() {
    let mut ring = started(FILE);
    // Killed: what it has published stays.
    ring.end(rustix::process::Signal::KILL);
    assert!(ring.bonsai.services().join(".initial-limits.json").exists());
    let one = writer(&ring, &["--name", "one"], &DD);
    ring.until("it runs", |ring| {
        ring.say(&["stats", "one", "--json"]).status.success()
    });
    assert!(!ring.done(&["status", "one"]).contains("daemon-pool"));
    one.go_on(Duration::from_millis(500));
    let (most, _) = ahead(one.end(), RATE, Duration::from_secs(1));
    assert!(most > 2 * AHEAD, "{most}: it was limited");
}

#[test]
fn a_part_up_to_the_first_look_is_lifted_if_the_daemon_ends_before_that() {
    let file = "[classes.default.send]\nmax = \"4MB/s\"\n";
    let mut ring = started(&format!("{FILE}{file}"));
    ring.done(&["group", "create", "g", "--limit", "write=200MB/s"]);
    // No look comes, also none that would find the service half made.
    ring.signal(rustix::process::Signal::STOP);
    let one = writer(&ring, &["--name", "one", "--group", "g"], &DD);
    ring.until("it has a part", |ring| {
        ring.say(&["status", "one"]).stdout.contains("write/daemon")
    });
    ring.end(rustix::process::Signal::KILL);
    ring.until("it has none", |ring| {
        !ring.say(&["status", "one"]).stdout.contains("write/daemon")
    });
    let status = ring.done(&["status", "one"]);
    assert!(status.contains("send/daemon"), "a ceiling stays: {status}");
    assert!(status.contains("group g write"), "{status}");
    drop(one.end());
}

/// Kills a daemon that hangs once a service has a limit up to its first look, which the command that ends lifts.
fn lifts_without_a_look(ring: &mut Ring, service: &str, args: &[&str]) {
    ring.signal(rustix::process::Signal::STOP);
    // Its socket would be waited for by each look of this test.
    std::fs::remove_file(ring.socket()).expect("it was there");
    let mut command = ring.command(args);
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut joins = Ends(command.spawn().expect("it starts"));
    ring.until("it has a part", |ring| {
        ring.say(&["status", service])
            .stdout
            .contains("write/daemon")
    });
    ring.end(rustix::process::Signal::KILL);
    let status = joins.0.wait().expect("it ends");
    assert!(status.success(), "{args:?}: {status}");
    let status = ring.done(&["status", service]);
    assert!(!status.contains("write/daemon"), "{status}");
}

#[test]
fn a_command_that_does_not_stay_lifts_a_part_whose_daemon_has_ended() {
    let mut ring = started(&format!("{FILE}[daemon]\npool = false\n"));
    let mut sleeper = Command::new("/bin/sleep");
    let sleeper = Ends(sleeper.arg("600").spawn().expect("it starts"));
    let pid = sleeper.0.id().to_string();
    lifts_without_a_look(
        &mut ring,
        "late",
        &["attach", "--keep", "--name", "late", &pid],
    );
    drop(sleeper);

    let mut ring = started(FILE);
    ring.done(&["group", "create", "g", "--limit", "write=200MB/s"]);
    let one = writer(&ring, &["--name", "one"], &DD);
    ring.until("it is in the pool", |ring| {
        ring.of("one", "write")["enforced"] == "pool"
    });
    lifts_without_a_look(&mut ring, "one", &["group", "join", "g", "one"]);
    let status = ring.done(&["status", "one"]);
    assert!(status.contains("group g write"), "{status}");
    drop(one.end());
}

#[test]
fn the_group_that_a_person_names_is_quicker_than_the_daemon() {
    let ring = started(&format!("{FILE}[daemon]\nperiod = \"10ms\"\n"));
    ring.done(&["group", "create", "g", "--limit", "write=200MB/s"]);
    for i in 0..40 {
        let name = format!("b{i}");
        ring.done(&["run", "--name", &name, "--group", "g", "--", "/bin/true"]);
    }
}

#[test]
fn what_a_newer_daemon_publishes_is_refused_and_said_once() {
    let ring = Ring::new(FILE);
    // As a daemon does: written and locked by a process that lives.
    let path = ring.bonsai.services().join(".initial-limits.json");
    std::fs::write(&path, "{\"version\":2,\"shares\":{}}").expect("a file");
    let file = std::fs::OpenOptions::new().write(true).open(&path);
    let file = file.expect("the file");
    let how = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::fcntl_lock(&file, how).expect("a lock");
    let said = ring.say(&["run", "--name", "new", "--", "/bin/true"]);
    assert!(said.status.success(), "{said:?}");
    let refused = said.stderr.matches("is of version 2").count();
    assert_eq!(refused, 1, "{}", said.stderr);
    drop(file);
    let said = ring.say(&["run", "--name", "new", "--", "/bin/true"]);
    assert!(!said.stderr.contains("version"), "{}", said.stderr);
}

#[test]
fn a_daemon_that_shares_nothing_takes_services_out_of_the_pool_of_the_one_before() {
    for (file, enforced) in [
        ("", "none"),
        (
            "[capacity]\nwrite = \"20MB/s\"\n[daemon]\npool = false\n",
            "limit",
        ),
    ] {
        let mut ring = started(FILE);
        let vod = writer(&ring, &["--name", "vod"], &DD);
        ring.until("it is in the pool", |ring| {
            ring.of("vod", "write")["enforced"] == "pool"
        });
        ring.end(rustix::process::Signal::KILL);
        ring.configure(file);
        ring.start(&[]);
        ring.until("it is in no pool", |ring| {
            !ring.done(&["status", "vod"]).contains("daemon-pool")
        });
        ring.until("it is shown so", |ring| {
            ring.of("vod", "write")["enforced"] == enforced
        });
        drop(vod.end());
    }
}

#[test]
fn what_newcomers_have_is_published_again_where_it_was_removed() {
    let mut ring = started(FILE);
    let path = ring.bonsai.services().join(".initial-limits.json");
    std::fs::remove_file(&path).expect("it was there");
    ring.until("it is there again", |_| path.exists());
    std::fs::write(path.with_extension("new"), "{}").expect("a file");
    std::fs::rename(path.with_extension("new"), &path).expect("another");
    ring.until("it is the daemon's again", |_| {
        std::fs::read_to_string(&path).is_ok_and(|text| text.contains("\"pool\":true"))
    });
    ring.end(rustix::process::Signal::TERM);
    assert!(!path.exists(), "it goes with its daemon");
}

#[test]
fn a_newcomer_in_a_pid_namespace_of_its_own_is_within_what_is_shared() {
    let ring = started(FILE);
    let unshare = ["/usr/bin/unshare", "--pid", "--fork", "--mount-proc"];
    let is_possible = Command::new(unshare[0])
        .args(&unshare[1..])
        .arg("true")
        .status();
    if !is_possible.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no PID namespace can be made (unshare)");
        return;
    }
    let run = ring.command(&["run", "--name", "apart", "--"]);
    let mut command = Command::new(unshare[0]);
    command.args(&unshare[1..]).args(["--kill-child", "--"]);
    command.arg(run.get_program()).args(run.get_args()).args(DD);
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    // It ends by itself: unshare passes no signal on.
    command.arg("count=2000");
    // Only what was published holds.
    ring.signal(rustix::process::Signal::STOP);
    let came = Writer::start(command).arrives.join().expect("counted");
    ring.signal(rustix::process::Signal::CONT);
    let (most, bytes) = ahead(came, RATE, Duration::from_secs(1));
    assert!(most <= AHEAD, "{most} bytes ahead, {AHEAD} may be");
    assert!(bytes >= RATE / 4, "{bytes} bytes in the first second");
}

#[test]
fn one_that_hangs_keeps_no_service_waiting_and_its_pool_holds() {
    let ring = started(FILE);
    ring.signal(rustix::process::Signal::STOP);
    let start = Instant::now();
    let one = writer(&ring, &["--name", "one"], &DD);
    one.go_on(Duration::from_millis(2100));
    let took = start.elapsed();
    let came = one.end();
    ring.signal(rustix::process::Signal::CONT);
    assert!(took < PATIENCE / 2, "{took:?}");
    let (most, bytes) = ahead(came, RATE, Duration::from_secs(2));
    assert!(most <= AHEAD, "{most} bytes ahead, {AHEAD} may be");
    assert!(bytes > RATE / 4, "{bytes} bytes");
}

#[test]
fn the_first_second_of_another_users_service_is_within_what_is_shared() {
    let test = "the_first_second_of_another_users_service_is_within_what_is_shared";
    let Some(machine) = Machine::started(test, FILE) else {
        return;
    };
    let published = machine.path("/run/bonsai/.initial-limits-of-users.json");
    machine.until("it is published", |_| published.exists());
    let mut command = machine.alice.command(&["run", "--name", "vod", "--"]);
    command.args(DD);
    let vod = Writer::start(command);
    vod.go_on(Duration::from_millis(2100));
    let (most, bytes) = ahead(vod.end(), RATE, Duration::from_secs(2));
    assert!(most <= AHEAD, "{most} bytes ahead, {AHEAD} may be");
    assert!(bytes > RATE / 4, "{bytes} bytes");
}
