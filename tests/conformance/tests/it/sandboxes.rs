//! Programs under a seccomp filter, installed before or after their start, by themselves or by the
//! program before: no call of ours is one that it forbids.

use std::path::Path;
use std::process::Command;

use conformance::skip;

use crate::fixture::{bonsai, compiler, installed};
use crate::probe::{PATIENCE, Probe, Seen};

/// Limits of every kind; small bursts, so that calls are waited for after the filter, too.
const LIMITS: [(&str, &[&str]); 5] = [
    (
        "plain",
        &[
            "read=5MB/s:burst=8kB",
            "write=5MB/s:burst=8kB",
            "net=5MB/s:burst=8kB",
        ],
    ),
    (
        "streams",
        &[
            "read/stream=5MB/s",
            "send/stream=5MB/s",
            "recv/stream=5MB/s",
        ],
    ),
    (
        "some",
        &[
            "send@port:80=1MB/s",
            "write@/tmp/**=5MB/s",
            "read/stream@/tmp/**=5MB/s",
            "net=5MB/s",
        ],
    ),
    ("loops", &["net=5MB/s"]),
    (
        "calls",
        &[
            "read=2000/s",
            "write=2000/s",
            "poll=2000/s",
            "open=100/s",
            "fork=100/s",
        ],
    ),
];

/// The ways into a program.
const WAYS: [&[&str]; 3] = [&[], &["--no-patch"], &["--unpatched", "trap"]];

/// Runs it under everything, and compares.
fn all_as_bare(test: &str, program: &Path, ways: &[&[&str]], args: &[&str]) {
    let mut probe = Probe::of(program.to_owned(), args);
    let place = tempfile::tempdir().expect("a folder");
    probe.folder = Some(place.path().to_owned());
    let bare = probe.bare();
    assert!(
        bare.finished.status.success(),
        "{test}: bare: {:?}",
        bare.finished
    );
    for (kind, limits) in LIMITS {
        for way in ways {
            let mut options = way.to_vec();
            if kind == "loops" {
                options.extend(["--event-loops", "on"]);
            }
            let seen = probe.service(&bonsai(), kind, &options, limits);
            assert_eq!(
                (seen.finished.status.code(), &seen.lines),
                (bare.finished.status.code(), &bare.lines),
                "{args:?} under {kind} {way:?}: {}",
                seen.finished.stderr
            );
        }
    }
}

fn matrix(test: &str, when: &str) {
    let Some(gcc) = compiler(test) else {
        return;
    };
    let source = [Path::new("transparency").join("sandboxed.c")];
    let made = gcc.make(&format!("sandboxed-{when}"), &source, &[]);
    let program = made.unwrap_or_else(|error| panic!("{error}"));
    for more in [&[][..], &["threads"], &["fork"], &["threads", "fork"]] {
        let args: Vec<&str> = [when].iter().chain(more).copied().collect();
        all_as_bare(test, &program, &WAYS, &args);
    }
}

#[test]
fn a_filter_that_comes_before_all_else_sees_the_programs_calls_alone() {
    matrix(
        "a_filter_that_comes_before_all_else_sees_the_programs_calls_alone",
        "before",
    );
}

#[test]
fn a_filter_that_comes_later_sees_the_programs_calls_alone() {
    matrix(
        "a_filter_that_comes_later_sees_the_programs_calls_alone",
        "after",
    );
}

#[test]
fn a_filter_of_the_program_before_sees_the_programs_calls_alone() {
    matrix(
        "a_filter_of_the_program_before_sees_the_programs_calls_alone",
        "inherited",
    );
}

/// The same in static programs, whose own calls bring the filter.
#[test]
fn a_filter_of_a_static_program_sees_its_calls_alone() {
    let test = "a_filter_of_a_static_program_sees_its_calls_alone";
    let Some(gcc) = compiler(test) else {
        return;
    };
    let source = [Path::new("transparency").join("sandboxed.c")];
    let Ok(program) = gcc.make("sandboxed-static", &source, &["-static"]) else {
        skip(test, "no static C library to link with (libc.a)");
        return;
    };
    for args in [&["before"][..], &["after"], &["after", "fork"]] {
        all_as_bare(test, &program, &[&[]], args);
    }
}

/// What is limited stays so after the filter has come, and is counted.
#[test]
fn what_a_filter_leaves_is_limited() {
    let test = "what_a_filter_leaves_is_limited";
    let Some(mut probe) = Probe::new(test, "sandboxed", &["before", "fork"]) else {
        return;
    };
    let place = tempfile::tempdir().expect("a folder");
    probe.folder = Some(place.path().to_owned());
    let bytes = 16 * 4000;
    for seen in probe.same(&["write=1MB/s:burst=8kB"]) {
        let Seen {
            door,
            counters,
            finished,
            ..
        } = &seen;
        let through = |kind: &str| counters.of(kind).1;
        // /dev/null, the pipes of four processes, and what says so.
        assert!(
            through("write.other") >= 5 * bytes,
            "{door}: {}",
            through("write.other")
        );
        assert!(
            through("writev.file") >= bytes,
            "{door}: {}",
            through("writev.file")
        );
        let least = f64::from(u32::try_from(5 * bytes).expect("small")) / 1e6;
        let took = finished.elapsed.as_secs_f64();
        assert!(took > least * 0.9, "{door}: {took} s");
    }
}

/// `file` and `man` filter themselves by libseccomp.
#[test]
fn file_and_man_say_what_they_say_bare() {
    let test = "file_and_man_say_what_they_say_bare";
    for (program, args) in [("/usr/bin/file", ["/bin/sh"]), ("/usr/bin/man", ["true"])] {
        let Some(path) = installed(test, program) else {
            continue;
        };
        let probe = Probe::of(path, &args).with("PAGER", "cat");
        let bare = probe.bare();
        if !bare.finished.status.success() {
            skip(test, &format!("{program} fails bare"));
            continue;
        }
        for (kind, limits) in LIMITS {
            let seen = probe.service(
                &bonsai(),
                kind,
                &["--no-patch"][..usize::from(kind == "some")],
                limits,
            );
            assert_eq!(
                seen.lines, bare.lines,
                "{program} under {kind}: {}",
                seen.finished.stderr
            );
            assert!(
                seen.finished.status.success(),
                "{program} under {kind}: {:?}",
                seen.finished
            );
        }
    }
}

/// A fake of time: whoever sets libc's clock forward or back sets no limit's.
#[test]
fn a_false_clock_changes_no_limit() {
    let test = "a_false_clock_changes_no_limit";
    let Some(gcc) = compiler(test) else {
        return;
    };
    let source = |name: &str| [Path::new("transparency").join(name)];
    let library = gcc
        .make(
            "false_clock.so",
            &source("false_clock.c"),
            &["-shared", "-fPIC"],
        )
        .unwrap_or_else(|error| panic!("{error}"));
    let Some(probe) = Probe::new(test, "told_time", &[]) else {
        return;
    };
    for (jump, what) in [
        ("31536000", "ahead"),
        ("-31536000", "behind"),
        ("wild", "wild"),
    ] {
        let path = library.display().to_string();
        let probe = probe
            .clone()
            .with("LD_PRELOAD", path)
            .with("FALSE_CLOCK", jump);
        let bare = probe.bare();
        assert_eq!(
            bare.lines,
            ["false: 1", "64 writes of 64"],
            "bare, {what}: {:?}",
            bare.finished
        );
        for seen in probe.prints(
            &["write=64kB/s:burst=1kB"],
            &["false: 1", "64 writes of 64"],
        ) {
            let took = seen.finished.elapsed.as_secs_f64();
            assert!(
                (0.9..20.0).contains(&took),
                "{}: {what}: {took} s",
                seen.door
            );
        }
    }
}

/// Nothing that the library needs goes by a name that another library may have.
#[test]
fn the_library_wants_of_others_what_is_theirs_alone() {
    let test = "the_library_wants_of_others_what_is_theirs_alone";
    let Some(nm) = installed(test, "/usr/bin/nm") else {
        return;
    };
    let folder = std::env::var_os("BONSAI_BIN_DIR").unwrap_or_default();
    for (file, wanted) in [
        (
            "libbonsai_preload.so",
            &["__errno_location", "dl_iterate_phdr", "environ"][..],
        ),
        ("libbonsai_engine.so", &[]),
        ("libbonsai_extension.so", &[]),
    ] {
        let path = Path::new(&folder).join(file);
        if !path.exists() {
            skip(test, "BONSAI_BIN_DIR names no folder with the libraries");
            return;
        }
        let output = Command::new(&nm)
            .args(["-D", "--undefined-only"])
            .arg(&path)
            .output();
        let text = String::from_utf8(output.expect("nm runs").stdout).expect("names");
        let mut names: Vec<_> = text
            .lines()
            .filter_map(|line| line.split_whitespace().last())
            .collect();
        names.sort_unstable();
        assert_eq!(names, wanted, "{file}");
    }
}

/// Longer than each of the programs here takes.
const _: () = assert!(PATIENCE.as_secs() >= 60);

/// System calls of the interposer's own go through one place. Instructions of its own have only
/// that, the program's calls, and what runs before anything can be known of a filter.
#[test]
fn all_helper_calls_go_through_one_place() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/bonsai-preload/src");
    let allowed = ["sys.rs", "unfold.rs", "entry.rs", "table.rs"];
    let (mut folders, mut asked) = (vec![sources], 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a source");
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            asked += text.matches("ask!(").count();
            assert!(
                !text.contains("call!(") || allowed.contains(&name),
                "{}: a system call that no filter is asked about",
                path.display()
            );
        }
    }
    assert!(asked > 60, "{asked} calls");
}

/// libseccomp asks for strict mode with a flag that it does not have: `file`, `man` and services of systemd do so.
#[test]
fn a_question_for_strict_mode_forbids_nothing() {
    let test = "a_question_for_strict_mode_forbids_nothing";
    let Some(probe) = Probe::new(test, "strict_probe", &[]) else {
        return;
    };
    for seen in probe.same(&["read=500kB/s:burst=4kB"]) {
        seen.assert_shaped(200_000, 500_000, 4000);
    }
}
