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
            // Each one a bit later than the one before.
            std::thread::sleep(Duration::from_micros(300 * u64::from(killed % KILLED)));
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
    assert!(codes.lines().count() >= KILLED as usize, "{codes}");
    for code in codes.lines() {
        assert!(matches!(code, "0" | "137"), "{codes}");
    }
}

/// A child of the keeper that enters a program.
fn helper_of(keeper: u32) -> Option<Pid> {
    let threads = std::fs::read_dir(format!("/proc/{keeper}/task")).ok()?;
    for thread in threads.flatten() {
        let children = std::fs::read_to_string(thread.path().join("children")).ok()?;
        for child in children.split_whitespace() {
            let line = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            if line.split(|b| *b == 0).nth(1) == Some(b"enter") {
                return Pid::from_raw(child.parse().ok()?);
            }
        }
    }
    None
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
