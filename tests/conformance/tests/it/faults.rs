//! What goes wrong around a program has a defined outcome, and nothing hangs.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use conformance::skip;
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{bonsai, compiler, scratch};
use crate::probe::{PATIENCE, Probe};

/// A probe of `c/transparency`, with a loader and without, as far as they can be made.
fn forms(test: &str, probe: &str) -> Vec<(&'static str, PathBuf)> {
    let Some(compiler) = compiler(test) else {
        return Vec::new();
    };
    let source = Path::new("transparency").join(format!("{probe}.c"));
    let mut made = Vec::new();
    for (form, options) in [("with a loader", [].as_slice()), ("static", &["-static"])] {
        let name = format!("{probe}-{}", form.replace(' ', "-"));
        match compiler.make(&name, &[&source], options) {
            Ok(program) => made.push((form, program)),
            Err(error) => skip(test, &format!("{form}: {error}")),
        }
    }
    made
}

/// A 32-bit program runs as ever, and is named.
#[test]
fn a_32_bit_program_runs_and_is_named() {
    let test = "a_32_bit_program_runs_and_is_named";
    let Some(compiler) = compiler(test) else {
        return;
    };
    let options = ["-m32", "-nostdlib", "-static", "-fno-stack-protector"];
    let Ok(program) = compiler.make("small", &[Path::new("faults/small.c")], &options) else {
        return skip(test, "no 32-bit programs can be made");
    };
    let bare = Probe::of(program.clone(), &[]).bare();
    if bare.finished.status.code() != Some(5) {
        return skip(test, "the kernel runs no 32-bit programs");
    }
    let script = format!("'{}'; echo $?", program.display());
    let probe = Probe::of(PathBuf::from("/bin/sh"), &["-c", &script]);
    let seen = probe.through(("by a shell", &[]), &["write=100GB/s"]);
    assert_eq!(seen.lines, ["32 bits", "5"], "{:?}", seen.finished);
    let text = &seen.finished.stderr;
    assert!(text.contains("small, for another architecture"), "{text}");
}

/// The kernel's own answer.
#[test]
fn a_script_without_its_interpreter_fails_as_bare() {
    let script = scratch().join("orphan");
    std::fs::create_dir_all(scratch()).expect("a folder");
    std::fs::write(&script, "#!/there/is/nothing\n").expect("written");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("set");
    let run = format!("'{}' 2>/dev/null; echo $?", script.display());
    let probe = Probe::of(PathBuf::from("/bin/sh"), &["-c", &run]);
    let bare = probe.bare();
    assert_eq!(bare.lines, ["127"]);
    for seen in probe.same(&["write=100GB/s"]) {
        let text = &seen.finished.stderr;
        assert!(!text.contains("not covered"), "{text}");
    }
}

/// Every step between the question and the program's first instruction takes some
/// hundred microseconds: whenever its helper is killed, a program ends well, shaped or
/// named, or is ended by the kernel in the middle of being entered.
#[test]
fn a_helper_that_is_killed_freezes_nobody() {
    let test = "a_helper_that_is_killed_freezes_nobody";
    let Some((_, program)) = forms(test, "threads").into_iter().nth(1) else {
        return;
    };
    let folder = tempfile::tempdir_in(scratch()).expect("a folder");
    let [done, enough] = ["done", "enough"].map(|name| folder.path().join(name));
    // A helper is soon gone: where others want the processors, many are not found.
    const KILLED: u32 = 8;
    let script = format!(
        "while [ ! -e '{enough}' ]; do '{}' >/dev/null 2>&1; echo $?; done >'{done}.new'
         mv '{done}.new' '{done}'",
        program.display(),
        done = done.display(),
        enough = enough.display(),
    );
    let bonsai = bonsai();
    let args = [OsStr::new("-c"), OsStr::new(&script)];
    let (_, mut command) = bonsai.run(&[], Path::new("/bin/sh"), &args);
    let mut keeper = command
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("bonsai");
    let began = Instant::now();
    let mut killed = 0;
    let mut last = None;
    while !done.is_file() {
        let waited = began.elapsed();
        assert!(waited < 3 * PATIENCE, "{killed} killed in {waited:?}");
        let helper = helper_of(keeper.id()).filter(|pid| Some(*pid) != last);
        if let Some(helper) = helper {
            // Each one a bit later than the one before: it has been started for a question.
            std::thread::sleep(Duration::from_micros(1500 * u64::from(killed % KILLED)));
            let _ = kill_process(helper, Signal::KILL);
            killed += 1;
            last = Some(helper);
            if killed == KILLED {
                std::fs::write(&enough, "").expect("room");
            }
        }
        // Who looks without a break takes a processor from those that are looked for.
        std::thread::sleep(Duration::from_micros(200));
    }
    keeper.wait().expect("it ends");
    let codes = std::fs::read_to_string(&done).expect("ours");
    // For one program at most the resident helper is killed, and the one that was started in its place.
    assert!(2 * codes.lines().count() >= KILLED as usize, "{codes}");
    for code in codes.lines() {
        assert!(matches!(code, "0" | "137"), "{codes}");
    }
}

/// The helper that stays for the next static program is no process of the service, and outlives `bonsai run` by no more than it takes
/// to find out.
#[test]
fn a_resident_helper_is_not_of_the_service_and_ends_with_its_keeper() {
    let test = "a_resident_helper_is_not_of_the_service_and_ends_with_its_keeper";
    let Some((_, program)) = forms(test, "threads").into_iter().nth(1) else {
        return;
    };
    let script = format!("'{}' >/dev/null 2>&1; exec sleep 60", program.display());
    let bonsai = bonsai();
    let args = [OsStr::new("-c"), OsStr::new(&script)];
    let (name, mut command) = bonsai.run(&[], Path::new("/bin/sh"), &args);
    let mut keeper = command.spawn().expect("bonsai");
    let until = |what: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !what() {
            assert!(began.elapsed() < PATIENCE, "{test}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let status = || {
        let mut command = bonsai.command(&["status", &name, "--json"]);
        let seen = conformance::finish(&mut command, PATIENCE).expect("an end");
        seen.stdout
    };
    until(&|| status().contains("\"sleep\""));
    let helper = helper_of(keeper.id()).expect("it stays");
    let number = helper.as_raw_nonzero().to_string();
    let said = status();
    assert!(!said.contains(&number), "{number} in {said}");
    let all = all_children(keeper.id());
    keeper.kill().expect("ours");
    keeper.wait().expect("it ends");
    until(&|| !Path::new(&format!("/proc/{number}")).exists());
    for child in all.into_iter().filter(|child| *child != helper) {
        let _ = kill_process(child, Signal::KILL);
    }
}

/// A child of the keeper that enters a program.
fn helper_of(keeper: u32) -> Option<Pid> {
    let enters = |child: &Pid| {
        let line = std::fs::read(format!("/proc/{}/cmdline", child.as_raw_nonzero()));
        line.unwrap_or_default().split(|b| *b == 0).nth(1) == Some(b"enter")
    };
    all_children(keeper).into_iter().find(enters)
}

/// The children of all threads of a process.
fn all_children(process: u32) -> Vec<Pid> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let children = threads.map(|thread| std::fs::read_to_string(thread.path().join("children")));
    let all: String = children.map(Result::unwrap_or_default).collect();
    let numbers = all
        .split_whitespace()
        .filter_map(|number| number.parse().ok());
    numbers.filter_map(Pid::from_raw).collect()
}

/// Also one that is stopped while a helper holds it.
#[test]
fn a_program_that_is_stopped_at_its_start_stays_stopped() {
    let test = "a_program_that_is_stopped_at_its_start_stays_stopped";
    for (form, program) in forms(test, "stops") {
        let probe = Probe::of(program, &[]);
        let bare = probe.bare();
        assert_eq!(bare.lines, ["80 stopped, 80 ended"], "{form}");
        let seen = probe.through((form, &[]), &["write=100GB/s"]);
        assert_eq!(seen.lines, bare.lines, "{form}: {:?}", seen.finished);
    }
}

/// More threads than have places of their own: all of them are shaped and counted, with
/// a page of memory each at most, and some.
#[test]
fn ten_thousand_threads_are_counted_in_bounded_memory() {
    let test = "ten_thousand_threads_are_counted_in_bounded_memory";
    for (form, program) in forms(test, "crowd") {
        let probe = Probe::of(program, &["10000"]);
        let bare = probe.bare();
        assert!(
            bare.finished.status.success(),
            "{form}: {:?}",
            bare.finished
        );
        let seen = probe.through((form, &[]), &["write=100GB/s"]);
        assert_eq!(seen.lines, bare.lines, "{form}: {:?}", seen.finished);
        let threads = seen.notes["threads"];
        if threads < 10_000.0 {
            eprintln!("NOTE: {form}: {threads} threads");
        }
        let (calls, _) = seen.counters.of("write.other");
        let said = 3;
        let wanted = 2.0 * threads;
        #[expect(clippy::cast_precision_loss, reason = "some thousands")]
        let calls = calls as f64;
        assert!(
            (wanted..=wanted + f64::from(said)).contains(&calls),
            "{form}: {calls} of {wanted}"
        );
        let more = seen.notes["memory"] - bare.notes["memory"];
        assert!(
            more < threads * 8.0 + 8192.0,
            "{form}: {more} kB for {threads} threads"
        );
    }
}

/// What needs no descriptor goes on; what does fails as it does bare.
#[test]
fn nothing_needs_a_descriptor_of_the_programs() {
    let test = "nothing_needs_a_descriptor_of_the_programs";
    for (form, program) in forms(test, "descriptors") {
        for most in ["0", "1", "3", "4", "5"] {
            let own = program.to_string_lossy().into_owned();
            let mut args = vec![most];
            if form == "static" {
                args.push(&own);
            }
            let probe = Probe::of(program.clone(), &args);
            let bare = probe.bare();
            assert!(
                bare.finished.status.success(),
                "{form}: {:?}",
                bare.finished
            );
            let limits = ["send=100GB/s", "recv=100GB/s", "write=100GB/s"];
            let seen = probe.through((form, &[]), &limits);
            assert_eq!(
                seen.lines, bare.lines,
                "{form}, {most}: {:?}",
                seen.finished
            );
            let sent = seen.counters.of("sendto").0;
            assert!(sent >= 1, "{form}, {most}: {:?}", seen.counters);
        }
    }
}

/// `sh -c 'ulimit LIMIT; exec "$@"'`: the exit code, and what was said.
fn under(limit: &str, words: &[std::ffi::OsString]) -> (Option<i32>, String) {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &format!("ulimit {limit}; exec \"$@\""), "sh"]);
    command.args(words);
    let finished = conformance::finish(&mut command, PATIENCE).expect("an end");
    (finished.status.code(), finished.stderr)
}

/// What a process may have is little: it works all the same, or a sentence says what is too little.
#[test]
fn small_resource_limits_end_in_a_sentence_or_in_nothing() {
    let program = Path::new("/bin/true");
    for (limit, code, words) in [
        ("-s 64", 0, ""),
        ("-l 0", 0, ""),
        ("-f 0", 2, "raise it (ulimit -f"),
        ("-n 6", 2, "Too many open files"),
    ] {
        let (_, command) = bonsai().run::<&str>(&["--limit", "read=20MB/s"], program, &[]);
        let all = [command.get_program()]
            .into_iter()
            .chain(command.get_args());
        let folder = command
            .get_envs()
            .find(|(name, _)| *name == "BONSAI_RUNTIME_DIR");
        let folder = folder.and_then(|(_, value)| value).expect("a folder");
        let mut words_of = vec![std::ffi::OsString::from("env")];
        words_of.push(format!("BONSAI_RUNTIME_DIR={}", folder.display()).into());
        words_of.extend(all.map(OsStr::to_owned));
        let (ended, said) = under(limit, &words_of);
        assert_eq!(ended, Some(code), "ulimit {limit}: {said}");
        assert!(said.contains(words), "ulimit {limit}: {said}");
    }
    for (form, program) in forms(
        "small_resource_limits_end_in_a_sentence_or_in_nothing",
        "ends",
    ) {
        let script = format!(
            "ulimit -s 64; exec {} {}",
            program.display(),
            scratch().display()
        );
        let (_, mut command) = bonsai().run(
            &["--limit", "read=20MB/s"],
            Path::new("/bin/sh"),
            &["-c", &script],
        );
        let bare = std::process::Command::new("sh")
            .args(["-c", &script])
            .status()
            .expect("sh");
        let seen = conformance::finish(&mut command, PATIENCE).expect("an end");
        assert_eq!(seen.status.code(), bare.code(), "{form}: {}", seen.stderr);
    }
}

/// A program that unmaps the vDSO goes on by a clock that is a system call.
#[test]
fn a_program_that_unmaps_the_vdso_stays_under_its_limits() {
    for (form, program) in forms(
        "a_program_that_unmaps_the_vdso_stays_under_its_limits",
        "no_vdso",
    ) {
        if form != "static" {
            continue;
        }
        let probe = Probe::of(program, &[]);
        let bare = probe.bare();
        let seen = probe.through((form, &[]), &["write=480kB/s:burst=4kB"]);
        assert!(bare.finished.status.success(), "{:?}", bare.finished);
        assert_eq!(seen.lines, bare.lines, "{:?}", seen.finished);
        seen.assert_shaped(30 * 4096, 480_000, 4000);
    }
}

/// Valgrind is a static program that runs another one within itself: what that one moves is charged
/// once, and signals that end its calls leave valgrind whole.
#[test]
fn a_program_within_valgrind_is_charged_once() {
    let test = "a_program_within_valgrind_is_charged_once";
    let valgrind = PathBuf::from("/usr/bin/valgrind");
    if !valgrind.exists() {
        return skip(test, "no valgrind");
    }
    let script = "i=0; while [ $i -lt 20 ]; do echo $i | cat; i=$((i+1)); done; \
                  exec dd if=/dev/zero of=/dev/null bs=10k count=100 status=none";
    for trace in ["yes", "no"] {
        let trace = format!("--trace-children={trace}");
        let args = ["-q", "--tool=none", &trace, "sh", "-c", script];
        // Valgrind reads symbols of programs by calls of its own.
        let probe = Probe {
            goes_by: true,
            ..Probe::of(valgrind.clone(), &args)
        };
        let bare = probe.bare();
        if !bare.finished.status.success() {
            return skip(test, "valgrind does not run here");
        }
        let seen = probe.through(("valgrind", &[]), &["write=100GB/s"]);
        assert_eq!(seen.lines, bare.lines, "{:?}", seen.finished);
        let (_, bytes) = seen.counters.of("write.other");
        // And what the shell and cat write into pipes.
        let lines = 3 * seen.finished.stdout.len() as u64;
        assert!(
            (1_024_000..=1_024_000 + lines).contains(&bytes),
            "{trace}: {bytes} bytes"
        );
        let text = &seen.finished.stderr;
        assert!(!text.contains("unhandled amd64-linux syscall"), "{text}");
    }
}

/// Whatever a member writes into its service's memory, commands end as ever, for this service and for others.
#[test]
fn commands_stand_what_a_member_writes() {
    use std::io::{BufRead as _, BufReader};
    use std::process::Stdio;
    let test = "commands_stand_what_a_member_writes";
    let Some(compiler) = compiler(test) else {
        return;
    };
    let source = Path::new("faults/scribbles.c");
    let program = compiler.make("scribbles", &[source], &[]);
    let program = program.unwrap_or_else(|error| panic!("{error}"));
    for seed in ["0", "1", "2", "3"] {
        let bonsai = bonsai();
        let limits = ["-l", "write=1MB/s", "-l", "read=5MB/s"];
        let (name, mut command) = bonsai.run(&limits, &program, &[seed]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        output.read_line(&mut line).expect("a line");
        assert_eq!(line, "written\n");
        for words in [
            &["status"][..],
            &["status", "--json"],
            &["status", &name],
            &["stats", &name],
            &["stats", &name, "--json"],
            &["why", &name, "--for", "1s"],
            &["audit", &name],
            &["audit", &name, "--json"],
            &["set", &name, "write=2MB/s"],
        ] {
            let mut command = bonsai.command(words);
            let done = conformance::finish(&mut command, PATIENCE);
            let done = done.unwrap_or_else(|error| panic!("seed {seed}: {words:?}: {error}"));
            let is_ended = matches!(done.status.code(), Some(0..=2));
            assert!(
                is_ended && done.stdout.len() < 1 << 24,
                "seed {seed}: {words:?}: {done:?}"
            );
            let mut said = done.stdout.chars().chain(done.stderr.chars());
            let is_shown = said.all(|c| !c.is_control() || c == '\n');
            assert!(is_shown, "seed {seed}: {words:?}: {:?}", done.stdout);
        }
        drop(child.stdin.take());
        let done = child.wait_with_output().expect("it ends");
        assert_eq!(done.status.code(), Some(0), "seed {seed}: {done:?}");
    }
}
