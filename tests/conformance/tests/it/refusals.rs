//! Why a process cannot be put under limits: each reason in one sentence, with exit code
//! 2, and nothing has changed.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use conformance::{finish, skip};

use crate::busy::runs;
use crate::fixture::{bonsai, compiler, installed, scratch};
use crate::probe::PATIENCE;

/// A process that does nothing, and is killed at the end.
struct Idle {
    child: Child,
    /// The number that it says.
    said: String,
}

impl Drop for Idle {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Idle {
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be started");
        let mut said = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut said).expect("text");
        Self {
            said: said.trim().to_owned(),
            child,
        }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

fn waiting(test: &str, how: &str) -> Option<Idle> {
    let source = Path::new("attach/wait.c");
    let made = compiler(test)?.make(&format!("wait-{test}"), &[source], &["-pthread"]);
    let program = made.unwrap_or_else(|error| panic!("{error}"));
    Some(Idle::start(Command::new(program).arg(how)))
}

fn refuses(args: &[&str], sentence: &str) {
    let bonsai = bonsai();
    let finished = finish(&mut bonsai.command(args), PATIENCE).expect("bonsai");
    assert_eq!(finished.status.code(), Some(2), "{args:?}: {finished:?}");
    let text = &finished.stderr;
    assert!(text.contains(sentence), "{args:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn numbers_of_no_process_are_refused() {
    refuses(&["attach", "2147483647"], "there is no such process");
    for number in ["0", "-1", "x", "99999999999"] {
        refuses(&["attach", "--", number], number);
    }
    refuses(&["detach", "2147483647"], "is not under limits");
    refuses(&["detach", "nobody"], "there is no service \"nobody\"");
    let own = std::process::id().to_string();
    refuses(&["attach", &own, "-l", "nonsense=1MB/s"], "nonsense");
}

#[test]
fn a_kernel_thread_is_refused() {
    let test = "a_kernel_thread_is_refused";
    match std::fs::read_to_string("/proc/2/comm") {
        Ok(name) if name == "kthreadd\n" => refuses(&["attach", "2"], "a thread of the kernel"),
        _ => skip(test, "the threads of the kernel are not seen here"),
    }
}

#[test]
fn a_thread_and_a_zombie_are_refused() {
    let test = "a_thread_and_a_zombie_are_refused";
    let Some(parent) = waiting(test, "zombie") else {
        return;
    };
    refuses(&["attach", &parent.said], "has ended");
    if let Some(headless) = waiting(test, "headless") {
        let stat = format!("/proc/{}/stat", headless.pid());
        let began = Instant::now();
        while !std::fs::read_to_string(&stat)
            .expect("it lives")
            .contains(") Z ")
        {
            assert!(began.elapsed() < PATIENCE, "its first thread lives");
            std::thread::sleep(Duration::from_millis(2));
        }
        refuses(&["attach", &headless.pid()], "its first thread has ended");
    }
    // This test runs in a thread of its own.
    let thread = std::fs::read_link("/proc/thread-self").expect("procfs");
    let tid = thread.file_name().unwrap_or_default().to_string_lossy();
    let sentence = format!("a thread of process {}", std::process::id());
    refuses(&["attach", &tid], &sentence);
}

#[test]
fn a_process_with_a_filter_of_its_own_is_refused() {
    let test = "a_process_with_a_filter_of_its_own_is_refused";
    if let Some(idle) = waiting(test, "filter") {
        refuses(&["attach", &idle.pid()], "seccomp filter of its own");
    }
}

#[test]
fn a_traced_process_is_refused_with_its_tracer() {
    let test = "a_traced_process_is_refused_with_its_tracer";
    let (Some(strace), Some(idle)) = (installed(test, "/usr/bin/strace"), waiting(test, "bare"))
    else {
        return;
    };
    let mut tracer = Command::new(strace);
    tracer.args(["-o", "/dev/null", "-p", &idle.pid()]);
    let tracer = tracer.stderr(Stdio::null()).spawn().expect("strace");
    let tracer = Idle {
        said: tracer.id().to_string(),
        child: tracer,
    };
    let status = format!("/proc/{}/status", idle.pid());
    let began = Instant::now();
    while std::fs::read_to_string(&status)
        .expect("it lives")
        .contains("TracerPid:\t0")
    {
        if began.elapsed() > Duration::from_secs(5) {
            skip(test, "strace cannot trace here");
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let sentence = format!("process {} (strace)", tracer.said);
    refuses(&["attach", &idle.pid()], &sentence);
}

#[test]
fn a_process_under_limits_is_refused_with_its_service() {
    let test = "a_process_under_limits_is_refused_with_its_service";
    let Some(idle) = waiting(test, "bare") else {
        return;
    };
    let bonsai = bonsai();
    runs(&bonsai, &["attach", "--keep", "-n", "under", &idle.pid()]);
    refuses(
        &["attach", &idle.pid()],
        "is under limits already, in the service under",
    );
    runs(&bonsai, &["detach", &idle.pid()]);
    refuses(&["detach", &idle.pid()], "is not under limits");
    let script = "echo $$; read end; true";
    let args = ["-c", script];
    let (name, mut command) = bonsai.run(&[], Path::new("/bin/sh"), &args);
    let started = Idle::start(&mut command);
    let sentence = format!("is under limits already, in the service {name}");
    refuses(&["attach", &started.said], &sentence);
    let sentence = format!("was started in the service {name}");
    refuses(&["detach", &started.said], &sentence);
    refuses(&["detach", &name], "were started in it");
}

/// `eax = 29 (pause); int $0x80; jmp` back: the smallest 32-bit program.
fn small_32_bit_program() -> PathBuf {
    let code = [0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7];
    let mut file = vec![0x7f, b'E', b'L', b'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let words = |words: &[u32]| {
        words
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect::<Vec<_>>()
    };
    // ET_EXEC, EM_386; version, entry, program headers, sections, flags; sizes.
    file.extend([2, 0, 3, 0]);
    file.extend(words(&[1, 0x10_0054, 52, 0, 0]));
    file.extend([52, 0, 32, 0, 1, 0, 40, 0, 0, 0, 0, 0]);
    // PT_LOAD, all of the file, readable and executable.
    let len = 84 + 9;
    file.extend(words(&[1, 0, 0x10_0000, 0x10_0000, len, len, 5, 0x1000]));
    file.extend(code);
    let path = scratch().join("small32");
    std::fs::write(&path, file).expect("room");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("ours");
    path
}

#[test]
fn a_32_bit_process_is_refused() {
    let test = "a_32_bit_process_is_refused";
    let Ok(mut child) = Command::new(small_32_bit_program()).spawn() else {
        skip(test, "the kernel runs no 32-bit programs");
        return;
    };
    refuses(&["attach", &child.id().to_string()], "a 32-bit program");
    child.kill().expect("ours");
    child.wait().expect("it ends");
}

/// Another user's process, and one that hides from its own user.
#[test]
fn a_process_that_may_not_be_traced_is_refused_with_the_reason() {
    let test = "a_process_that_may_not_be_traced_is_refused_with_the_reason";
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        skip(test, "only root can be two users");
        return;
    }
    let Some(idle) = waiting(test, "bare") else {
        return;
    };
    let bonsai = bonsai();
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).expect("root");
    let as_nobody = |command: &mut Command| {
        command.uid(NOBODY).gid(NOBODY);
    };
    let attach = |pid: &str, sentence: &str| {
        let mut command = bonsai.command(&["attach", pid]);
        as_nobody(command.env("BONSAI_RUNTIME_DIR", folder.path()));
        match finish(&mut command, PATIENCE) {
            Ok(finished) => {
                assert_eq!(finished.status.code(), Some(2), "{finished:?}");
                assert!(finished.stderr.contains(sentence), "{finished:?}");
            }
            // Built in a folder of root's own.
            Err(error) => skip(test, &format!("nobody cannot run bonsai: {error}")),
        }
    };
    attach(&idle.pid(), "it belongs to user 0, and you are user 65534");
    let program = std::fs::read_link(format!("/proc/{}/exe", idle.pid())).expect("ours");
    let copy = folder.path().join("wait");
    std::fs::copy(program, &copy).expect("a copy");
    let mut hidden = Command::new(&copy);
    as_nobody(hidden.arg("hidden"));
    let hidden = Idle::start(&mut hidden);
    attach(&hidden.pid(), "it has asked not to be looked at");
}

/// A filter that kills ends the caller without a word.
#[test]
fn what_a_filter_around_it_denies_is_said_before_anything_is_begun() {
    const SECCOMP: &str = "317";
    const LANDLOCK_RESTRICT_SELF: &str = "446";
    const PIDFD_GETFD: &str = "438";
    let test = "what_a_filter_around_it_denies_is_said_before_anything_is_begun";
    let Some(gcc) = compiler(test) else {
        return;
    };
    let made = gcc.make("denied", &[Path::new("faults/denied.c")], &[]);
    let denied = made.unwrap_or_else(|error| panic!("{error}"));
    let (trap, enforce) = (&["--unpatched", "trap"][..], &["--enforce"][..]);
    for (number, answer, ways, reason) in [
        (
            SECCOMP,
            "kill",
            &[trap, enforce][..],
            "kills any process that calls seccomp(2)",
        ),
        (
            SECCOMP,
            "1",
            &[trap, enforce],
            "refuses seccomp(2): Operation not permitted",
        ),
        (
            LANDLOCK_RESTRICT_SELF,
            "kill",
            &[enforce],
            "kills any process that calls landlock_restrict_self(2)",
        ),
        (
            PIDFD_GETFD,
            "kill",
            &[enforce],
            "kills any process that calls pidfd_getfd(2)",
        ),
        (
            PIDFD_GETFD,
            "1",
            &[enforce],
            "refuses pidfd_getfd(2): Operation not permitted",
        ),
    ] {
        let within: [&OsStr; 3] = [denied.as_os_str(), number.as_ref(), answer.as_ref()];
        let bonsai = bonsai().within(&within).expect("a folder");
        for way in ways {
            let args = [&["run"][..], *way, &["-l", "write=1GB/s", "--", "true"]].concat();
            let finished = finish(&mut bonsai.command(&args), PATIENCE).expect("bonsai");
            let said = (finished.status.code(), finished.stderr.lines().count());
            assert_eq!(said, (Some(2), 1), "{args:?}: {finished:?}");
            assert!(finished.stderr.contains(reason), "{args:?}: {finished:?}");
        }
        let finished = finish(&mut bonsai.command(&["doctor"]), PATIENCE).expect("bonsai");
        assert!(finished.stdout.contains(reason), "{finished:?}");
        // A run that needs none of that call goes on.
        let args = ["run", "-l", "write=1GB/s", "--", "true"];
        let finished = finish(&mut bonsai.command(&args), PATIENCE).expect("bonsai");
        assert_eq!((finished.status.code(), &*finished.stderr), (Some(0), ""));
    }
}
