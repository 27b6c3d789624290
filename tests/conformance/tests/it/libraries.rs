//! Libraries that make system calls with instructions of their own: those that come
//! with the program, and those that come by `dlopen`.

use std::path::{Path, PathBuf};

use conformance::{finish, skip};

use crate::fixture::{PYTHON, bonsai, compiler, installed};
use crate::probe::{DOORS, PATIENCE, Probe, Seen};

/// The program with liburing; `None` without a compiler or the library's header,
/// which is noted as a skip.
fn with_liburing(test: &str, options: &[&str], args: &[&str]) -> Option<Probe> {
    let made = compiler(test)?.make(test, &["transparency/uring.c"], options);
    match made {
        Ok(program) => Some(Probe::of(program, args)),
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains("liburing"), "{error}");
            skip(test, "liburing-dev is not installed");
            None
        }
    }
}

/// What liburing's calls were counted as: setup, register, enter.
fn rings(seen: &Seen) -> [u64; 3] {
    ["setup", "register", "enter"].map(|call| seen.counters.of(&format!("io_uring_{call}")).0)
}

fn liburing(test: &str, options: &[&str]) {
    let Some(probe) = with_liburing(test, options, &["20"]) else {
        return;
    };
    let [patched, symbols] = <[Seen; 2]>::try_from(probe.same(&[])).expect("two doors");
    // A kernel that does not let us have a ring says so, and that is counted too.
    let works = patched.lines[0] == "init none";
    let want = if works { [1, 1, 20] } else { [1, 0, 0] };
    assert_eq!(rings(&patched), want, "{:?}", patched.lines);
    assert_eq!(rings(&symbols), [0; 3], "without patching nobody sees them");
    if !works {
        skip(test, &format!("no limit tried: {}", patched.lines[0]));
        return;
    }
    let bare = probe.bare();
    let limited = probe.through(DOORS[0], &["io_uring_enter=40/s:burst=1calls"]);
    assert_eq!(limited.lines, bare.lines);
    assert_eq!(rings(&limited), want);
    limited.assert_shaped(20, 40, 1);
}

#[test]
fn liburing_that_comes_with_the_program_is_counted_and_limited() {
    let test = "liburing_that_comes_with_the_program_is_counted_and_limited";
    liburing(test, &["-luring"]);
}

#[test]
fn liburing_that_comes_by_dlopen_is_counted_and_limited() {
    let test = "liburing_that_comes_by_dlopen_is_counted_and_limited";
    liburing(test, &["-DDLOPEN"]);
}

/// A library of nobody's knowledge, without a build-id: it is looked through when it
/// comes. Returns it, and one that needs it.
fn inside(test: &str) -> Option<(PathBuf, PathBuf)> {
    let compiler = compiler(test)?;
    let make = |name: &str, options: &[&str]| {
        let mut all = vec!["-shared", "-fPIC", "-Wl,--build-id=none"];
        all.extend(options);
        compiler
            .make(
                &format!("lib{name}-{test}.so"),
                &["transparency/inside.c"],
                &all,
            )
            .unwrap_or_else(|error| panic!("{error}"))
    };
    let inner = make("inside", &[]);
    let needed = inner.display().to_string();
    let outer = make("outside", &["-DOUTSIDE", &needed, "-Wl,-rpath,$ORIGIN"]);
    Some((inner, outer))
}

/// The C program `dlopens` with that library.
fn dlopens(test: &str, library: &Path, symbol: &str, more: &[&str]) -> Option<Probe> {
    let library = library.display().to_string();
    let mut args = vec![library.as_str(), symbol];
    args.extend(more);
    let source = ["transparency/dlopens.c"];
    let program = compiler(test)?
        .make(&format!("dlopens-{test}"), &source, &["-ldl"])
        .unwrap_or_else(|error| panic!("{error}"));
    Some(Probe::of(program, &args))
}

#[test]
fn a_library_that_comes_by_dlopen_is_seen() {
    let test = "a_library_that_comes_by_dlopen_is_seen";
    let Some((inner, _)) = inside(test) else {
        return;
    };
    let Some(probe) = dlopens(test, &inner, "inside_write", &[]) else {
        return;
    };
    let doors = probe.same(&[]);
    // Ten of ten bytes, one that fails, and one by a number that nobody knew.
    assert_eq!(doors[0].counters.of("write.other"), (12, 101));
    // What cannot be replaced does its work unseen, and so does libc's close.
    let (closed, _) = doors[0].counters.of("close");
    let (before, _) = doors[1].counters.of("close");
    assert!(closed >= before + 2, "{closed} and {before}");
    assert_eq!(doors[1].counters.of("write.other"), (0, 0));
    for seen in &doors {
        assert!(seen.counters.unshaped.values().all(|n| *n == 0), "{seen:?}");
    }
}

#[test]
fn a_library_that_comes_back_is_seen_again() {
    let test = "a_library_that_comes_back_is_seen_again";
    let Some((inner, _)) = inside(test) else {
        return;
    };
    let Some(probe) = dlopens(test, &inner, "inside_write", &["late"]) else {
        return;
    };
    assert_eq!(probe.same(&[])[0].counters.of("write.other"), (24, 202));
}

#[test]
fn a_library_that_another_one_needs_is_seen() {
    let test = "a_library_that_another_one_needs_is_seen";
    let Some((_, outer)) = inside(test) else {
        return;
    };
    let Some(probe) = dlopens(test, &outer, "outside_write", &[]) else {
        return;
    };
    let doors = probe.same(&["write=1GB/s"]);
    let (calls, bytes) = doors[0].counters.of("write.other");
    assert!(calls >= 11 && bytes >= 100, "{calls} {bytes}");
}

/// Python's ctypes loads as everybody else does.
#[test]
fn a_library_that_ctypes_loads_is_seen() {
    let test = "a_library_that_ctypes_loads_is_seen";
    let Some((inner, _)) = inside(test) else {
        return;
    };
    let Some(python) = installed(test, PYTHON) else {
        return;
    };
    let script = format!(
        "import ctypes, os\nr, w = os.pipe()\nlib = ctypes.CDLL({:?})\n\
         print(sum(lib.inside_write(w, b'x' * 1000, 1000) for _ in range(20)))",
        inner.display().to_string()
    );
    let probe = Probe::of(python, &["-c", &script]);
    let doors = probe.same(&["write=1GB/s"]);
    let bytes = |seen: &Seen| seen.counters.of("write.other").1;
    assert!(
        bytes(&doors[0]) >= bytes(&doors[1]) + 20_000,
        "{:?}",
        doors[0]
    );
}

/// What cannot be replaced is said while the program runs.
#[test]
fn calls_that_stay_unseen_are_said() {
    let test = "calls_that_stay_unseen_are_said";
    let Some((inner, _)) = inside(test) else {
        return;
    };
    let Some(python) = installed(test, PYTHON) else {
        return;
    };
    let bonsai = bonsai();
    let script = format!(
        "import ctypes, os, subprocess, sys\nctypes.CDLL({:?})\n\
         sys.stdout.write(subprocess.run(sys.argv[1:], capture_output=True, text=True).stdout)",
        inner.display().to_string()
    );
    let status = bonsai.command(&["status", "--json"]);
    let mut args = vec!["-c".to_owned(), script];
    args.push(status.get_program().to_string_lossy().into_owned());
    args.extend(
        status
            .get_args()
            .map(|arg| arg.to_string_lossy().into_owned()),
    );
    let (_, mut command) = bonsai.run(&[], &python, &args);
    let finished = finish(&mut command, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    assert!(
        finished.stdout.contains("\"sites_missed\": 1")
            || finished.stdout.contains("\"sites_missed\":1"),
        "{finished:?}"
    );
}

/// A program with instructions of its own, which `bonsai run` has looked through.
#[test]
fn a_programs_own_instructions_are_entered() {
    let test = "a_programs_own_instructions_are_entered";
    let Some(compiler) = compiler(test) else {
        return;
    };
    let sources = ["transparency/own.c"];
    let made = compiler.make(test, &sources, &["-Wl,--build-id=sha1"]);
    let probe = Probe::of(made.unwrap_or_else(|error| panic!("{error}")), &[]);
    let [patched, symbols] =
        <[Seen; 2]>::try_from(probe.prints(&[], &["196608 bytes, then -9"])).expect("two doors");
    let said = patched.finished.stdout.len() as u64;
    assert_eq!(
        patched.counters.of("write.other"),
        (192 + 2, 192 * 1024 + said)
    );
    assert_eq!(
        symbols.counters.of("write.other").0,
        0,
        "without patching nobody sees them"
    );
    let limited = probe.through(DOORS[0], &["write=480kB/s:burst=4kB"]);
    limited.assert_shaped(192 * 1024, 480_000, 4000);
}

/// The same in a child, without a build-id by which it could have been known, and with one instruction for all calls: what Free Pascal
/// makes of a program that needs libc.
#[test]
fn own_instructions_of_free_pascal_are_entered_in_children() {
    let test = "own_instructions_of_free_pascal_are_entered_in_children";
    let Some(compiler) = compiler(test) else {
        return;
    };
    let options = ["-Wl,--build-id=none", "-DPASCAL"];
    let made = compiler.make(test, &["transparency/own.c"], &options);
    let program = made.unwrap_or_else(|error| panic!("{error}"));
    let script = format!("'{}'; exit $?", program.display());
    let probe = Probe::of(PathBuf::from("/bin/sh"), &["-c", &script]);
    let seen = probe.through(DOORS[0], &[]);
    assert_eq!(seen.lines, ["196608 bytes, then -9"], "{:?}", seen.finished);
    let said = seen.finished.stdout.len() as u64;
    let want = (192 + 2, 192 * 1024 + said);
    assert_eq!(seen.counters.of("write.other"), want, "{:?}", seen.finished);
    let limited = probe.through(DOORS[0], &["write=480kB/s:burst=4kB"]);
    limited.assert_shaped(192 * 1024, 480_000, 4000);
}
