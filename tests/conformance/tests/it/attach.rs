//! Processes that run already, put under limits and out of them again, while they do
//! everything that can be in the way: `c/attach/busy.c` says what. It checks itself, and
//! so does the Go server; here is checked what is counted, and how fast they are.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use conformance::{Bonsai, Counters, finish, skip};
use rustix::process::{Pid, Signal, kill_process};

use crate::busy::{Attacher, Busy, run, runs};
use crate::fixture::{bonsai, compiler, installed, scratch};
use crate::probe::PATIENCE;

/// The busy program in each form that can be made here.
fn forms(test: &str) -> Vec<(&'static str, PathBuf)> {
    forms_of("attach/busy.c", test, &[])
}

/// A program in each form that can be made here, with further options.
pub(crate) fn forms_of(source: &str, test: &str, more: &[&str]) -> Vec<(&'static str, PathBuf)> {
    let Some(gcc) = compiler(test) else {
        return Vec::new();
    };
    let musl = gcc.by("musl-gcc");
    let loader = Path::new("/lib/ld-musl-x86_64.so.1").exists();
    let mut made = Vec::new();
    for (i, (form, compiler, options)) in [
        ("glibc", Some(gcc), &["-pthread"] as &[&str]),
        ("static glibc", Some(gcc), &["-pthread", "-static"]),
        (
            "static glibc, position-independent",
            Some(gcc),
            &["-pthread", "-static-pie"],
        ),
        ("static musl", musl.as_ref(), &["-static"]),
        ("musl", musl.as_ref().filter(|_| loader), &[]),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("form-{test}-{i}");
        let options = [options, more].concat();
        let program = compiler.and_then(|gcc| gcc.make(&name, &[source], &options).ok());
        match program {
            Some(program) => made.push((form, program)),
            None => skip(test, &format!("{form}: cannot be linked here")),
        }
    }
    made
}

fn one(test: &str) -> Option<PathBuf> {
    let source = Path::new("attach/busy.c");
    let made = compiler(test)?.make(&format!("busy-{test}"), &[source], &["-pthread"]);
    Some(made.unwrap_or_else(|error| panic!("{error}")))
}

/// The Go server, static and with libc.
fn go_servers(test: &str) -> Vec<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("go/server/main.go");
    let mut made = Vec::new();
    for cgo in ["0", "1"] {
        let program = scratch().join(format!("server-{test}-{cgo}"));
        let mut build = Command::new("go");
        build
            .args(["build", "-o"])
            .args([&program, &source])
            .envs([
                ("CGO_ENABLED", cgo),
                ("GOFLAGS", ""),
                ("GO111MODULE", "off"),
            ])
            .env("GOCACHE", scratch().join("go-cache"));
        match build.output() {
            Ok(output) if output.status.success() => made.push(program),
            Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
            Err(_) => skip(test, "no Go toolchain"),
        }
    }
    made
}

pub(crate) fn counters(bonsai: &Bonsai, name: &str) -> Counters {
    let finished = run(bonsai, &["stats", name, "--json"]);
    Counters::parse(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

/// The most that one call moves in these programs.
const CALL: u64 = 65_536;

/// No more than `rate` in a time, and what may be under way at its ends.
#[expect(clippy::cast_precision_loss, reason = "some megabytes")]
fn assert_slow(moved: u64, extra: u64, rate: u64, time: Duration) {
    let most = time.as_secs_f64() * rate as f64;
    let counted = moved.saturating_sub(extra);
    assert!(counted as f64 <= most, "{counted} of {most} bytes");
}

/// Attaches, and checks: all is counted, none of it too fast; and after the end nothing
/// is counted any more, and it goes on.
fn under_limits(name: &str, program: &Path, [class, entry]: [&str; 2]) {
    const RATE: u64 = 8_000_000;
    const BURST: u64 = 100_000;
    let bonsai = bonsai();
    let limit = format!("{class}={RATE}B/s:burst={BURST}B");
    let busy = Busy::start(program, name, "interrupt");
    let pid = busy.pid();
    let before = busy.shown();
    runs(&bonsai, &["attach", "-k", "-n", name, "-l", &limit, &pid]);
    // What it shows may be of a time before: the second change is not.
    busy.goes_on(name);
    busy.goes_on(name);
    let (began, from) = (Instant::now(), busy.shown());
    std::thread::sleep(Duration::from_millis(700));
    let to = busy.shown();
    let moved = to.sent - from.sent;
    assert_slow(moved, 4 * CALL + BURST, RATE, began.elapsed());
    busy.goes_on(name);
    let seen = counters(&bonsai, name);
    busy.goes_on(name);
    busy.goes_on(name);
    let after = busy.shown();
    let (_, bytes) = seen.of(entry);
    let least = moved.saturating_sub(4 * CALL);
    // Children write, too.
    let most = after.sent - before.sent + 4 * CALL;
    assert!(
        (least..=most).contains(&bytes),
        "{name}: {bytes} bytes of {entry} counted, {least} to {most} moved"
    );
    runs(&bonsai, &["detach", &pid]);
    busy.goes_on(name);
    // A child that it has just made has the ledger in its memory, as long as it lives.
    let began = Instant::now();
    loop {
        let gone = run(&bonsai, &["stats", name, "--json"]);
        if gone.stderr.contains("there is no service") {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(5), "{name}: {gone:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    busy.goes_on(name);
    busy.ends_well(name);
}

#[test]
fn running_processes_are_shaped_in_every_form() {
    let test = "running_processes_are_shaped_in_every_form";
    for (i, (_, program)) in forms(test).into_iter().enumerate() {
        under_limits(&format!("form{i}"), &program, ["write", "write.other"]);
    }
}

#[test]
fn running_go_servers_are_shaped() {
    for (i, program) in go_servers("running_go_servers_are_shaped")
        .iter()
        .enumerate()
    {
        under_limits(&format!("server{i}"), program, ["send", "write.socket"]);
    }
}

/// Attaches and detaches again and again while it works.
fn again_and_again(name: &str, program: &Path, how: &str, times: u32) {
    let bonsai = bonsai();
    let busy = Busy::start(program, name, how);
    let pid = busy.pid();
    for i in 0..times {
        let limit = format!("write={}MB/s", 20 + i);
        runs(&bonsai, &["attach", "-k", "-n", name, "-l", &limit, &pid]);
        if i % 8 == 0 {
            busy.goes_on(name);
        }
        runs(&bonsai, &["detach", &pid]);
    }
    busy.goes_on(name);
    busy.ends_well(name);
}

#[test]
fn fifty_times_on_and_off_loses_nothing() {
    let test = "fifty_times_on_and_off_loses_nothing";
    let (plain, servers) = (one(test), go_servers(test));
    std::thread::scope(|scope| {
        if let Some(program) = &plain {
            scope.spawn(|| again_and_again("fifty", program, "interrupt", 50));
            scope.spawn(|| again_and_again("fifty-r", program, "restart", 5));
        }
        for (i, program) in servers.iter().enumerate() {
            scope.spawn(move || again_and_again(&format!("fifty-go{i}"), program, "", 5));
        }
    });
}

/// `bonsai ARGS`, killed after a time.
fn killed_after(bonsai: &Bonsai, args: &[&str], time: Duration, before: impl FnOnce()) {
    let mut command = bonsai.command(args);
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("bonsai");
    std::thread::sleep(time);
    before();
    child.kill().expect("ours");
    child.wait().expect("it ends");
}

/// Takes the limits off, if there are any; if there is nothing, that is said.
fn takes_off(form: &str, bonsai: &Bonsai, pid: &str) {
    let off = run(bonsai, &["detach", pid]);
    let nothing = off.stderr.contains("is not under limits");
    assert!(off.status.success() || nothing, "{form}: {off:?}");
}

/// Whoever attaches or detaches is killed, at some instant: the process goes on, and can
/// be put under limits and out of them again. At every other instant it is stopped
/// before, so that a thread that was borrowed is not back when the next one comes.
#[test]
fn whoever_attaches_may_be_killed_at_any_instant() {
    let test = "whoever_attaches_may_be_killed_at_any_instant";
    let bonsai = bonsai();
    for (form, program) in forms(test).into_iter().take(4) {
        let busy = Busy::start(&program, "killed", "interrupt");
        let pid = busy.pid();
        // Spread over the time that it takes here: 16 instants.
        let began = Instant::now();
        runs(&bonsai, &["attach", "--keep", &pid]);
        let takes = began.elapsed();
        runs(&bonsai, &["detach", &pid]);
        let attach = ["attach", &pid, "-l", "write=50MB/s"];
        for i in 0..16_u32 {
            let stops = i % 2 == 1;
            killed_after(&bonsai, &attach, takes * i / 14, || {
                if stops {
                    busy.signal(Signal::STOP);
                }
            });
            std::thread::scope(|scope| {
                if stops {
                    scope.spawn(|| {
                        std::thread::sleep(Duration::from_millis(30));
                        busy.signal(Signal::CONT);
                    });
                }
                takes_off(form, &bonsai, &pid);
            });
            if i % 5 == 4 {
                busy.goes_on(form);
                runs(&bonsai, &["attach", "--keep", &pid, "-l", "write=50MB/s"]);
                killed_after(&bonsai, &["detach", &pid], takes * i / 40, || ());
                takes_off(form, &bonsai, &pid);
            }
        }
        runs(&bonsai, &["attach", "--keep", &pid, "-l", "write=50MB/s"]);
        busy.goes_on(form);
        runs(&bonsai, &["detach", &pid]);
        busy.ends_well(form);
    }
}

#[test]
fn an_interrupt_takes_the_limits_off() {
    let test = "an_interrupt_takes_the_limits_off";
    let Some(program) = one(test) else { return };
    let bonsai = bonsai();
    let busy = Busy::start(&program, "interrupted", "restart");
    let pid = busy.pid();
    // So slow that everybody waits when it comes.
    let limits = ["-l", "write=1kB/s", "-l", "read=1kB/s"];
    let args = [&["attach", "-n", "interrupted"], &limits[..], &[&pid]].concat();
    let attacher = Attacher::start(&bonsai, &args);
    std::thread::sleep(Duration::from_millis(300));
    let seen = counters(&bonsai, "interrupted");
    assert!(seen.of("write.other").1 <= 2 * CALL, "{seen:?}");
    assert_eq!(attacher.interrupt(), "");
    busy.goes_on(test);
    let status = run(&bonsai, &["stats", "interrupted"]);
    assert!(status.stderr.contains("there is no service"), "{status:?}");
    busy.ends_well(test);
}

#[test]
fn it_ends_with_the_last_process() {
    let test = "it_ends_with_the_last_process";
    let Some(program) = one(test) else { return };
    let bonsai = bonsai();
    let busy = Busy::start(&program, "ended", "restart");
    let args = ["attach", "--name", "ended", &busy.pid()];
    let attacher = Attacher::start(&bonsai, &args);
    busy.ends_well(test);
    assert_eq!(attacher.ends(), "");
}

/// One more process in a service that runs; the other one stays when it goes.
#[test]
fn a_process_joins_a_service() {
    const RATE: u64 = 2_000_000;
    let test = "a_process_joins_a_service";
    let Some(program) = one(test) else { return };
    let bonsai = bonsai();
    let first = Busy::start(&program, "joined1", "restart");
    let second = Busy::start(&program, "joined2", "restart");
    let limit = ["-n", "joined", "-l", "write=2MB/s"];
    runs(
        &bonsai,
        &[&["attach", "-k"], &limit[..], &[&first.pid()]].concat(),
    );
    let refused = run(
        &bonsai,
        &[&["attach"], &limit[..], &[&second.pid()]].concat(),
    );
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let text = &refused.stderr;
    assert!(text.contains("join it without --limit"), "{refused:?}");
    let attacher = Attacher::start(&bonsai, &["attach", "-n", "joined", &second.pid()]);
    let sent = || first.shown().sent + second.shown().sent;
    let (began, from) = (Instant::now(), sent());
    std::thread::sleep(Duration::from_millis(600));
    assert_slow(sent() - from, 6 * CALL, RATE, began.elapsed());
    assert_eq!(attacher.interrupt(), "");
    let status = run(&bonsai, &["status", "joined", "--json"]);
    assert!(status.stdout.contains(&first.pid()), "{status:?}");
    assert!(!status.stdout.contains(&second.pid()), "{status:?}");
    second.goes_on(test);
    runs(&bonsai, &["detach", "joined"]);
    first.ends_well(test);
    second.ends_well(test);
}

#[test]
fn a_stopped_process_stays_stopped() {
    let test = "a_stopped_process_stays_stopped";
    let Some(program) = one(test) else { return };
    let bonsai = bonsai();
    let busy = Busy::start(&program, "stopped", "restart");
    let pid = busy.pid();
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    busy.signal(Signal::STOP);
    for action in [&["attach", "--keep", &pid] as &[&str], &["detach", &pid]] {
        runs(&bonsai, action);
        let began = Instant::now();
        while !state().contains(") T ") {
            assert!(began.elapsed() < PATIENCE, "{action:?}: it runs");
        }
        let before = busy.shown();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(before.got, busy.shown().got, "{action:?}");
        busy.signal(Signal::CONT);
        busy.goes_on(test);
        busy.signal(Signal::STOP);
    }
    busy.signal(Signal::CONT);
    busy.ends_well(test);
}

#[test]
fn a_child_forked_after_a_detach_is_in_no_service() {
    let bonsai = bonsai();
    let mut shell = Command::new("/bin/sh")
        // What runs in the background has an empty input of its own.
        .args(["-c", "exec 3<&0; read go; (read end <&3; :) & wait"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("a shell");
    let pid = shell.id().to_string();
    let limit = ["-n", "forked", "-l", "read=6MB/s"];
    runs(&bonsai, &[&["attach", "-k"], &limit[..], &[&pid]].concat());
    runs(&bonsai, &["detach", &pid]);
    let mut stdin = shell.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut stdin, b"go\n").expect("it reads");
    let children = format!("/proc/{pid}/task/{pid}/children");
    let began = Instant::now();
    while std::fs::read_to_string(&children).is_ok_and(|list| list.trim().is_empty()) {
        assert!(began.elapsed() < PATIENCE, "no child");
        std::thread::sleep(Duration::from_millis(5));
    }
    let status = run(&bonsai, &["stats", "forked"]);
    assert!(status.stderr.contains("there is no service"), "{status:?}");
    drop(stdin);
    assert!(shell.wait().expect("it ends").success());
}

#[test]
fn what_they_start_belongs_to_the_service() {
    let bonsai = bonsai();
    let script = "read go; head -c 3000000 /dev/zero | cat >/dev/null; read end";
    let mut shell = Command::new("/bin/sh")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .spawn()
        .expect("a shell");
    let pid = shell.id().to_string();
    let args = ["attach", "-n", "starts", "-l", "write=6MB/s", &pid];
    let attacher = Attacher::start(&bonsai, &args);
    let began = Instant::now();
    let mut stdin = shell.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut stdin, b"go\n").expect("it reads");
    loop {
        let seen = counters(&bonsai, "starts");
        // Both write it, the one into a pipe, the other elsewhere.
        if seen.of("write.other").1 >= 6_000_000 {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{seen:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(950), "{took:?}");
    drop(stdin);
    shell.wait().expect("it ends");
    assert_eq!(attacher.ends(), "");
}

/// A server that is ended at the end.
struct Master(std::process::Child);

impl Drop for Master {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

/// nginx with two workers, and a file to fetch from it.
fn nginx(program: &Path, folder: &Path, len: usize) -> (Master, String) {
    let at = folder.display();
    let file = folder.join("file");
    std::fs::write(&file, vec![b'x'; len]).expect("room");
    // Its workers read it as another user.
    for path in [folder, &file] {
        let allow = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path, allow).expect("ours");
    }
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address").port()
    };
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("{name}_temp_path {at}/{name};"))
        .collect();
    let config = format!(
        "worker_processes 2; pid {at}/pid; error_log {at}/error; daemon off;\n\
         events {{}}\n\
         http {{ access_log off; {temporary} server {{ listen 127.0.0.1:{port}; root {at}; }} }}\n"
    );
    std::fs::write(folder.join("conf"), config).expect("room");
    let master = Command::new(program)
        .args(["-c", &format!("{at}/conf")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("nginx");
    let master = Master(master);
    let began = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(began.elapsed() < PATIENCE, "no server");
        std::thread::sleep(Duration::from_millis(10));
    }
    (master, format!("http://127.0.0.1:{port}/file"))
}

/// A master and its workers, which belong to another user if root runs this.
#[test]
fn a_tree_of_processes_is_attached() {
    const FILE: usize = 3_000_000;
    let test = "a_tree_of_processes_is_attached";
    let programs = ["/usr/sbin/nginx", "/usr/bin/curl"].map(|program| installed(test, program));
    let [Some(server), Some(curl)] = programs else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (mut master, url) = nginx(&server, folder.path(), FILE);
    let bonsai = bonsai();
    let pid = master.0.id().to_string();
    let limit = ["-n", "tree", "-l", "send=3MB/s:burst=60kB"];
    let args = [&["attach", "--tree"], &limit[..], &[&pid]].concat();
    let attacher = Attacher::start(&bonsai, &args);
    let fetch = || {
        let began = Instant::now();
        let got = finish(Command::new(&curl).args(["-s", &url]), PATIENCE).expect("curl");
        assert_eq!(got.stdout.len(), FILE, "{got:?}");
        began.elapsed()
    };
    let took = fetch();
    assert!(took >= Duration::from_millis(950), "{took:?}");
    let seen = counters(&bonsai, "tree");
    let sent = ["writev.socket", "write.socket", "sendfile.file"]
        .iter()
        .map(|entry| seen.of(entry).1)
        .sum::<u64>();
    assert!(sent >= FILE as u64, "{seen:?}");
    let status = run(&bonsai, &["status", "tree"]);
    assert_eq!(status.stdout.matches("patched").count(), 3, "{status:?}");
    assert_eq!(attacher.interrupt(), "");
    fetch();
    kill_process(Pid::from_child(&master.0), Signal::TERM).expect("ours");
    assert!(master.0.wait().expect("it ends").success());
}

/// An interpreter, with the bytes that it moves summed up on both sides.
#[test]
fn a_python_process_is_shaped_from_then_on() {
    let test = "a_python_process_is_shaped_from_then_on";
    let Some(python) = installed(test, crate::fixture::PYTHON) else {
        return;
    };
    let script = "import hashlib, sys, os\n\
        sum = hashlib.sha256()\n\
        for i in range(300):\n \
         block = bytes([i % 251]) * 10000\n \
         sum.update(block)\n \
         sys.stdout.buffer.write(block)\n \
         if i == 0: sys.stdout.flush(); sys.stdin.readline()\n\
        sys.stdout.flush()\n\
        print(sum.hexdigest(), file=sys.stderr)\n";
    let bonsai = bonsai();
    let mut child = Command::new(python)
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python");
    let mut stdout = child.stdout.take().expect("a pipe");
    let mut bytes = vec![0; 10_000];
    stdout.read_exact(&mut bytes).expect("the first block");
    let pid = child.id().to_string();
    let args = [
        "attach",
        "-n",
        "python",
        "-l",
        "write=3MB/s:burst=30kB",
        &pid,
    ];
    let attacher = Attacher::start(&bonsai, &args);
    let began = Instant::now();
    drop(child.stdin.take());
    stdout.read_to_end(&mut bytes).expect("the rest");
    let took = began.elapsed();
    assert_slow(bytes.len() as u64 - 10_000, 30_000 + CALL, 3_000_000, took);
    let expected: Vec<u8> = (0..300_u32)
        .flat_map(|i| vec![u8::try_from(i % 251).expect("small"); 10_000])
        .collect();
    assert!(bytes == expected, "{} bytes, others", bytes.len());
    assert!(child.wait().expect("it ends").success());
    assert_eq!(attacher.ends(), "");
}
