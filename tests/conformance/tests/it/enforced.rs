//! Hostile programs under `bonsai run --enforce`. What they move is counted here, at the
//! other end, by this clock.

mod killed;

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use conformance::{Bonsai, for_each, skip};

use self::killed::{child_of, kill};
use crate::fixture::{assert_none, bonsai, compiler};

const RATE: u64 = 400_000;
const BURST: u64 = 4_000;
const WRITE: &str = "write=400kB/s:burst=4kB";

/// What may come in before it is paid for, and what a pipe holds beside it.
const AHEAD: u64 = 256 * 1024;
const PIPE: u64 = 64 * 1024;

/// Longer than any trick takes, also where the machine stands still for a while: a second
/// each, two where it has to wait, and forty where one is interrupted.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often a trick is tried of which nothing was seen: its second passes as well while
/// the machine stands still, or while others have its processors.
const TRIES: usize = 5;

struct Tools {
    // Where everybody may look.
    _folder: tempfile::TempDir,
    attacker: PathBuf,
    fixed: Option<PathBuf>,
    set_user: PathBuf,
    without: PathBuf,
}

fn tools(test: &str) -> Option<&'static Tools> {
    static TOOLS: OnceLock<Tools> = OnceLock::new();
    let compiler = compiler(test)?;
    Some(TOOLS.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("a mode");
        };
        mode(folder.path(), 0o755);
        let source = ["enforced/attacker.c", "enforced/inward.c"].map(Path::new);
        let made = |name: &str, from: &Path, bits| {
            let to = folder.path().join(name);
            std::fs::copy(from, &to).expect("copied");
            mode(&to, bits);
            to
        };
        let attacker = compiler.make("attacker", &source, &[]).expect("compiled");
        let fixed = compiler.make("attacker-static", &source, &["-static"]).ok();
        let without = compiler.make("without", &[Path::new("enforced/without.c")], &[]);
        Tools {
            attacker: made("attacker", &attacker, 0o755),
            fixed: fixed.map(|path| made("attacker-static", &path, 0o755)),
            set_user: made("attacker-set-user", &attacker, 0o4755),
            without: made("without", &without.expect("compiled"), 0o755),
            _folder: folder,
        }
    }))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether limits can be enforced here; otherwise a skip.
pub(crate) fn can_enforce(test: &str) -> bool {
    let bonsai = bonsai();
    let mut command = bonsai.command(&["run", "--enforce", "-l", WRITE, "--", "/bin/true"]);
    let output = command.output().expect("bonsai");
    if output.status.code() == Some(2) {
        skip(test, String::from_utf8_lossy(&output.stderr).trim());
        return false;
    }
    assert!(output.status.success(), "{output:?}");
    true
}

/// A program as an enforced service; as somebody else, if we are root.
fn enforced(bonsai: &Bonsai, limits: &[&str], program: &Path, args: &[&str]) -> Command {
    let mut options = vec!["--enforce"];
    if is_root() {
        options.extend(["--user", "nobody"]);
    }
    for limit in limits {
        options.extend(["--limit", limit]);
    }
    let (_, mut command) = bonsai.run(&options, program, args);
    command.stdin(Stdio::null());
    command
}

/// What came through, and what it said.
struct Seen {
    moved: u64,
    elapsed: Duration,
    said: String,
}

/// Receives until the end, and complains about the first byte that came too early.
fn receive(mut from: impl Read, start: Instant, (rate, burst): (u64, u64)) -> Result<u64, String> {
    let (mut moved, mut bytes) = (0, vec![0; 1 << 20]);
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return Ok(moved),
            Ok(got) => moved += got as u64,
            Err(error) => return Err(error.to_string()),
        }
        let elapsed = start.elapsed();
        if moved > allowed(elapsed, rate) + burst {
            return Err(format!("{moved} bytes after {elapsed:?}"));
        }
    }
}

fn allowed(elapsed: Duration, rate: u64) -> u64 {
    u64::try_from(elapsed.as_nanos() * u128::from(rate) / 1_000_000_000).unwrap_or(u64::MAX)
}

/// Waits for a command; its complaints without the remark about root.
fn ended(mut child: Child) -> Result<String, String> {
    let start = Instant::now();
    let mut stderr = child.stderr.take().expect("piped");
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = stderr.read_to_string(&mut text);
        text
    });
    while child.try_wait().map_err(|e| e.to_string())?.is_none() {
        if start.elapsed() > PATIENCE {
            child_of(child.id()).into_iter().for_each(kill);
            let _ = child.kill();
            let _ = child.wait();
            return Err("it hangs".to_owned());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = reader.join().unwrap_or_default();
    let remark = |line: &&str| {
        line.contains("runs as root") || line.contains("processes that it started go on")
    };
    let lines = text.lines().filter(|line| !remark(line));
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// Runs a command that moves bytes out through its standard output.
fn outward(command: &mut Command, by_socket: bool, limit: (u64, u64)) -> Result<Seen, String> {
    let (ours, theirs): (Box<dyn Read + Send>, OwnedFd) = if by_socket {
        let (ours, theirs) = UnixStream::pair().map_err(|e| e.to_string())?;
        (Box::new(ours), theirs.into())
    } else {
        let (ours, theirs): (PipeReader, PipeWriter) = pipe().map_err(|e| e.to_string())?;
        (Box::new(ours), theirs.into())
    };
    let start = Instant::now();
    command.stdout(theirs).stderr(Stdio::piped());
    let child = command.spawn().map_err(|e| e.to_string())?;
    // The parent's copy of the other end.
    command.stdout(Stdio::null());
    let moved = std::thread::scope(|scope| {
        let receiver = scope.spawn(move || receive(ours, start, limit));
        let said = ended(child);
        let moved = receiver.join().map_err(|_| "no receiver".to_owned())??;
        Ok::<_, String>((moved, said?))
    });
    let (moved, said) = moved?;
    Ok(Seen {
        moved,
        elapsed: start.elapsed(),
        said,
    })
}

/// What moves bytes to standard output, and whether that is a socket.
const OUTWARD: [(&str, bool); 27] = [
    ("plain", false),
    ("raw", false),
    ("no-environment", false),
    ("scribble", false),
    ("child", false),
    ("threads", false),
    ("attack-others", false),
    ("close-all", false),
    ("splice", false),
    ("sendfile", false),
    ("vmsplice", false),
    ("tee", false),
    ("vector-race", false),
    ("message-race", true),
    ("descriptor-race", true),
    ("vector-descriptor-race", true),
    ("number-again", true),
    ("number-of-a-child", true),
    ("closed-descriptors", true),
    ("interruptions", false),
    ("interrupted-vectors", false),
    ("daemon", false),
    ("filters", false),
    ("name-spaces", false),
    ("priorities", false),
    ("closed-memory", false),
    ("traced", false),
];

fn attack(tools: &Tools, trick: &str, by_socket: bool) -> Result<Seen, String> {
    let bonsai = bonsai();
    let limit = if by_socket {
        "send=400kB/s:burst=4kB"
    } else {
        WRITE
    };
    let mut command = enforced(&bonsai, &[limit], &tools.attacker, &[trick]);
    outward(&mut command, by_socket, (RATE, BURST))
}

/// Tries until something is seen, which says that it was tried at all; each try may fail.
fn until_seen<T>(
    mut attempt: impl FnMut() -> Result<T, String>,
    is_seen: impl Fn(&T) -> bool,
) -> Result<T, String> {
    let mut seen = attempt()?;
    for _ in 1..TRIES {
        if is_seen(&seen) {
            break;
        }
        seen = attempt()?;
    }
    Ok(seen)
}

impl Seen {
    fn is_any(&self) -> bool {
        self.moved > 0 || !self.said.is_empty()
    }
}

#[test]
fn a_hostile_program_moves_no_more_than_its_limit() {
    let test = "a_hostile_program_moves_no_more_than_its_limit";
    let Some(tools) = tools(test).filter(|_| can_enforce(test)) else {
        return;
    };
    let complaints = for_each(&OUTWARD, 4, |(trick, by_socket)| {
        let seen = until_seen(|| attack(tools, trick, *by_socket), Seen::is_any);
        let seen = seen.map_err(|error| format!("{trick}: {error}"))?;
        if !seen.said.is_empty() {
            return Err(format!("{trick}: {}", seen.said));
        }
        if seen.moved == 0 {
            let last = seen.elapsed;
            return Err(format!(
                "{trick}: nothing came through {TRIES} times, in {last:?} at last"
            ));
        }
        Ok(())
    });
    assert_none(&complaints);
}

/// A signal each half of a millisecond, and more than a second until it is its turn.
#[test]
fn whoever_is_interrupted_all_the_time_keeps_its_place() {
    let test = "whoever_is_interrupted_all_the_time_keeps_its_place";
    let Some(tools) = tools(test).filter(|_| can_enforce(test)) else {
        return;
    };
    let bonsai = bonsai();
    let limit = ["write=20kB/s:burst=2kB"];
    let mut command = enforced(&bonsai, &limit, &tools.attacker, &["interrupted-call"]);
    let seen = outward(&mut command, false, (20_000, 2_000)).expect("limited");
    let elapsed = seen.elapsed;
    assert_eq!((seen.moved, &*seen.said), (32_768, ""), "{elapsed:?}");
}

/// Each trick works where nobody enforces anything: otherwise the test above shows nothing.
#[test]
fn the_tricks_work_where_nothing_is_enforced() {
    let test = "the_tricks_work_where_nothing_is_enforced";
    let Some(tools) = tools(test) else {
        return;
    };
    let tried = [
        ("plain", false),
        ("threads", false),
        ("splice", false),
        ("vmsplice", false),
        ("vector-race", false),
        ("message-race", true),
        ("descriptor-race", true),
        ("vector-descriptor-race", true),
        ("number-again", true),
        ("number-of-a-child", true),
        ("traced", false),
    ];
    let complaints = for_each(&tried, 2, |(trick, by_socket)| {
        let mut moved = 0;
        for _ in 0..TRIES {
            let mut command = Command::new(&tools.attacker);
            command.arg(trick);
            match outward(&mut command, *by_socket, (RATE, BURST)) {
                Err(_) => return Ok(()),
                Ok(seen) => moved = seen.moved,
            }
        }
        Err(format!("{trick} moved {moved} bytes only, {TRIES} times"))
    });
    assert_none(&complaints);
}

#[test]
fn a_static_program_is_no_way_out() {
    let test = "a_static_program_is_no_way_out";
    let Some(tools) = tools(test).filter(|_| can_enforce(test)) else {
        return;
    };
    let Some(program) = &tools.fixed else {
        return skip(test, "no static C library to link with (libc.a)");
    };
    let bonsai = bonsai();
    for trick in ["raw", "vector-race"] {
        let attempt = || {
            let mut command = enforced(&bonsai, &[WRITE], program, &[trick]);
            outward(&mut command, false, (RATE, BURST))
        };
        let seen = until_seen(attempt, Seen::is_any).expect(trick);
        assert!(seen.moved > 0, "{trick}: {}", seen.said);
    }
}

#[test]
fn what_cannot_be_charged_is_denied() {
    let test = "what_cannot_be_charged_is_denied";
    let Some(tools) = tools(test).filter(|_| can_enforce(test)) else {
        return;
    };
    for trick in ["int80", "x32", "io_uring", "aio"] {
        let seen = until_seen(|| attack(tools, trick, false), Seen::is_any).expect(trick);
        assert_eq!((seen.moved, &*seen.said), (0, "denied 38"), "{trick}");
    }
}

#[test]
fn a_call_of_any_size_waits_for_all_of_it() {
    let test = "a_call_of_any_size_waits_for_all_of_it";
    let Some(tools) = tools(test).filter(|_| can_enforce(test)) else {
        return;
    };
    // 256 MB at 400 kB/s; an alarm ends it.
    let seen = attack(tools, "large", false).expect("an end");
    assert_eq!(seen.moved, 0);
}

#[test]
fn a_set_user_id_program_gains_nothing() {
    let test = "a_set_user_id_program_gains_nothing";
    let Some(tools) = tools(test).filter(|_| can_enforce(test)) else {
        return;
    };
    if !is_root() {
        return skip(
            test,
            "only root can make a set-user-ID program of another user",
        );
    }
    let bonsai = bonsai();
    let attempt = || {
        let mut command = enforced(&bonsai, &[WRITE], &tools.set_user, &["set-user"]);
        outward(&mut command, false, (RATE, BURST))
    };
    let seen = until_seen(attempt, Seen::is_any).expect("limited");
    assert_eq!(seen.said, "");
    assert!(seen.moved > 0);
}

#[test]
fn bombs_of_processes_and_threads_are_as_many_as_may_be() {
    let test = "bombs_of_processes_and_threads_are_as_many_as_may_be";
    let Some(tools) = tools(test).filter(|_| can_enforce(test)) else {
        return;
    };
    let bonsai = bonsai();
    for trick in ["forks", "thread-bomb"] {
        // Each of them writes one byte.
        let attempt = || {
            let limit = ["fork=50/s:burst=1calls"];
            let mut command = enforced(&bonsai, &limit, &tools.attacker, &[trick]);
            outward(&mut command, false, (50, 1))
        };
        let seen = until_seen(attempt, |seen| seen.moved > 10).expect(trick);
        assert!(
            seen.moved > 10,
            "{trick}: {} in {:?}",
            seen.moved,
            seen.elapsed
        );
    }
}

/// Runs a trick that takes bytes in, and counts what it took.
fn inward(command: &mut Command, limit: (u64, u64)) -> Result<u64, String> {
    let (theirs, mut ours) = pipe().map_err(|e| e.to_string())?;
    let start = Instant::now();
    command
        .stdin(theirs)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let child = command.spawn().map_err(|e| e.to_string())?;
    command.stdin(Stdio::null());
    let taken = Arc::new(Mutex::new(Ok(0)));
    let writer = std::thread::spawn({
        let taken = Arc::clone(&taken);
        move || {
            let piece = [0; 4096];
            while ours.write_all(&piece).is_ok() {
                let Ok(mut taken) = taken.lock() else { return };
                if let Ok(bytes) = &mut *taken {
                    *bytes += piece.len() as u64;
                    let elapsed = start.elapsed();
                    if *bytes > allowed(elapsed, limit.0) + limit.1 {
                        *taken = Err(format!("{bytes} bytes after {elapsed:?}"));
                    }
                }
            }
        }
    });
    let said = ended(child)?;
    writer.join().map_err(|_| "no writer".to_owned())?;
    if !said.is_empty() {
        return Err(said);
    }
    let taken = taken.lock().map_err(|e| e.to_string())?;
    taken.clone()
}

#[test]
fn a_hostile_reader_gets_no_more_than_its_limit() {
    let test = "a_hostile_reader_gets_no_more_than_its_limit";
    let Some(tools) = tools(test).filter(|_| can_enforce(test)) else {
        return;
    };
    let bonsai = bonsai();
    let tricks = ["read", "read-threads", "read-children", "read-race"];
    let complaints = for_each(&tricks, 2, |trick| {
        let attempt = || {
            let limit = ["read=400kB/s:burst=4kB"];
            let mut command = enforced(&bonsai, &limit, &tools.attacker, &[trick]);
            inward(&mut command, (RATE, BURST + AHEAD + PIPE))
        };
        let taken = until_seen(attempt, |taken| *taken > PIPE);
        match taken.map_err(|error| format!("{trick}: {error}"))? {
            ..=PIPE => Err(format!("{trick}: nothing was read")),
            _ => Ok(()),
        }
    });
    assert_none(&complaints);
}

#[test]
fn without_the_means_it_is_refused_in_one_sentence() {
    let test = "without_the_means_it_is_refused_in_one_sentence";
    let Some(tools) = tools(test).filter(|_| can_enforce(test)) else {
        return;
    };
    let bonsai = bonsai();
    let refused = |number: &str, errno: &str, sentence: &str| {
        let (_, bare) = bonsai.run(
            &["--enforce", "-l", WRITE],
            Path::new("/bin/true"),
            &[] as &[&str],
        );
        let mut command = Command::new(&tools.without);
        command
            .args([number, errno])
            .arg(bare.get_program())
            .args(bare.get_args());
        for (name, value) in bare.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        let output = command.output().expect("bonsai");
        let said = String::from_utf8_lossy(&output.stderr);
        let lines = said.lines().filter(|line| !line.contains("runs as root"));
        let said: Vec<&str> = lines.collect();
        assert_eq!(output.status.code(), Some(2), "{number}: {said:?}");
        assert!(
            said.len() == 1 && said[0].contains(sentence),
            "{number}: {said:?}"
        );
    };
    // seccomp(2): not there, and forbidden.
    refused("317", "38", "no seccomp listener");
    refused("317", "1", "refuses seccomp(2)");
    // landlock_create_ruleset(2).
    refused("444", "38", "no Landlock");
    // prctl(2), by which new privileges are given up: refused by the container.
    refused("446", "1", "Landlock");
    // Within another, there is a listener already.
    let binary = bonsai.command::<&str>(&[]).get_program().to_owned();
    let mut inner = bonsai.command(&["run", "--enforce", "-l", WRITE, "--"]);
    inner
        .arg(binary)
        .args(["run", "--enforce", "-l", WRITE, "--", "/bin/true"]);
    let output = inner.output().expect("bonsai");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("a seccomp listener already"), "{said}");
}

#[test]
fn few_descriptors_make_it_slower_and_not_looser() {
    let test = "few_descriptors_make_it_slower_and_not_looser";
    let Some(tools) = tools(test).filter(|_| can_enforce(test)) else {
        return;
    };
    let bonsai = bonsai();
    for (trick, limit) in [
        ("read-threads", "read=400kB/s:burst=4kB"),
        ("threads", WRITE),
    ] {
        let bare = enforced(&bonsai, &[limit], &tools.attacker, &[trick]);
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "ulimit -n 24; exec \"$0\" \"$@\""]);
        command
            .arg(bare.get_program())
            .args(bare.get_args())
            .stdin(Stdio::null());
        for (name, value) in bare.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        if trick == "threads" {
            outward(&mut command, false, (RATE, BURST)).expect(trick);
        } else {
            inward(&mut command, (RATE, BURST + AHEAD + PIPE)).expect(trick);
        }
    }
}

#[test]
fn limits_named_at_the_start_change_live() {
    let test = "limits_named_at_the_start_change_live";
    if !can_enforce(test) {
        return;
    }
    let bonsai = bonsai();
    let options = ["--enforce", "-l", "write=1kB/s", "-l", "open=unlimited"];
    let args = ["if=/dev/zero", "of=/dev/null", "bs=100k", "count=1"];
    let (name, mut command) = bonsai.run(&options, Path::new("/bin/dd"), &args);
    let mut child = command.stderr(Stdio::null()).spawn().expect("bonsai");
    let set = |limit: &str| {
        bonsai
            .command(&["set", &name, limit])
            .output()
            .expect("bonsai")
    };
    let start = Instant::now();
    while !set("open=unlimited").status.success() {
        assert!(start.elapsed() < PATIENCE, "it is there some day");
        std::thread::sleep(Duration::from_millis(20));
    }
    let refused = set("read=1MB/s");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(set("open=100/s").status.success());
    assert_eq!(child.try_wait().expect("ours"), None, "100 seconds to wait");
    assert!(set("write=100MB/s").status.success());
    let start = Instant::now();
    while child.try_wait().expect("ours").is_none() {
        assert!(start.elapsed() < PATIENCE, "the change woke nobody");
        std::thread::sleep(Duration::from_millis(5));
    }
}
