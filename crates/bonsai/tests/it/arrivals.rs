//! Programs in which the library is expected and does not come up: each is named, with the reason as far as
//! it can be known, and nothing else is.

use std::path::Path;
use std::process::Command;

use crate::support::{Place, compiled, skip, static_program};

/// Says so, and stays until its input ends.
const STAYS: &str = r#"
#include <unistd.h>
int main(void) { char c; if (write(1, "ran\n", 4) != 4) return 9; return (int) read(0, &c, 1); }"#;

/// Runs a copy of a program in memory: by its descriptor, or by the name of that.
const IN_MEMORY: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
extern char **environ;
int main(int n, char **v) {
    static char block[65536];
    char name[64];
    int memory = memfd_create("program", 0), file = open(v[2], O_RDONLY);
    for (long got; (got = read(file, block, sizeof block)) > 0;)
        if (write(memory, block, (size_t) got) != got) return 9;
    close(file);
    if (v[1][0] == 'd') fexecve(memory, v + 2, environ);
    sprintf(name, "/proc/self/fd/%d", memory);
    execv(name, v + 2);
    return 9;
}"#;

const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

const ABSENT: &str = "the library did not come up in it: it ran without limits, or ended before";
const READ_ONLY: &str =
    "its view of the file system is read-only: the ledger cannot be opened for writing";

fn text(path: &Path) -> &str {
    path.to_str().expect("a path")
}

/// The place, and the program with a loader and without.
fn programs(test: &str) -> Option<(Place, [String; 2])> {
    let place = Place::new(test)?;
    let dynamic = compiled(test, &place, STAYS, ".dynamic", &[])?;
    let without = static_program(test, &place, STAYS)?;
    let programs = [&dynamic, &without].map(|path| text(path).to_owned());
    Some((place, programs))
}

#[test]
fn a_read_only_view_of_the_ledger_is_named() {
    let test = "a_read_only_view_of_the_ledger_is_named";
    let Some((place, [dynamic, without])) = programs(test) else {
        return;
    };
    let root = place.path().join(".root");
    std::fs::create_dir(&root).expect("a folder");
    let root = text(&root);
    // As bwrap --ro-bind / / does.
    let view = format!(
        "mount --bind / {root} && mount --bind {own} {root}{own} && mount -o remount,bind,ro {root}{own} || exit 77; exec chroot {root} ",
        own = text(place.path())
    );
    for (program, name) in [(&dynamic, ".dynamic"), (&without, ".static-program")] {
        let script = format!("{view} {program}");
        let words = ["--name", "x", "--", "unshare", "-m", "sh", "-c", &script];
        let said = place.say(&[&["run"][..], &words].concat());
        if said.code == Some(77) || said.err.contains("unshare failed") {
            return skip(test, "mount namespaces cannot be made here");
        }
        assert_eq!(
            (said.code, said.out.as_str()),
            (Some(0), "ran\n"),
            "{said:?}"
        );
        assert!(
            said.err
                .contains(&format!("not covered: chroot, {READ_ONLY}"))
                || said
                    .err
                    .contains(&format!("not covered: {name}, {READ_ONLY}")),
            "{said:?}"
        );
        let strict = place.say(&[&["run", "--strict"][..], &words].concat());
        assert_eq!(strict.out, "", "{strict:?}");
        assert!(strict.err.contains("--strict refuses that"), "{strict:?}");
    }
}

#[test]
fn a_program_without_room_for_the_ledger_is_named() {
    let test = "a_program_without_room_for_the_ledger_is_named";
    let Some((place, [program, _])) = programs(test) else {
        return;
    };
    let script = format!("ulimit -v 10000; {program}; echo $?");
    let words = ["--", "sh", "-c", &script];
    let said = place.say(&[&["run", "--name", "x"][..], &words].concat());
    assert_eq!(said.out, "ran\n0\n", "{said:?}");
    let own = "bonsai: .dynamic: its ledger cannot be used: no memory for it (ulimit -v): ";
    let expected =
        format!("{own}it runs without limits\nbonsai: x: not covered: .dynamic, {ABSENT}\n");
    assert_eq!(said.err, expected);
    let strict = place.say(&[&["run", "--strict", "--name", "x"][..], &words].concat());
    assert_eq!(strict.out, "126\n", "{strict:?}");
    assert!(
        strict
            .err
            .starts_with(&format!("{own}--strict refuses that\n")),
        "{strict:?}"
    );
    // While it runs, too.
    let script = format!("exec 3<&0; ulimit -v 10000; {program} <&3; true");
    let running = place.start("live", &["--", "sh", "-c", &script]);
    let service = place.until("live", |service| service["uncovered"][0].is_object());
    let found = &service["uncovered"][0];
    assert_eq!(
        (&found["program"], &found["ended"]),
        (&".dynamic".into(), &false.into())
    );
    let reason = found["reason"].as_str().expect("a reason");
    assert!(reason.contains("address space is limited"), "{service:#}");
    let audit = place.say(&["audit", "live"]).out;
    assert!(audit.contains("Not covered: .dynamic ("), "{audit}");
    assert!(audit.contains("address space is limited"), "{audit}");
    let why = place.say(&["why", "live", "--for", "200ms"]).out;
    assert!(
        why.contains("is not covered: its address space is limited"),
        "{why}"
    );
    running.end();
}

#[test]
fn a_service_whose_ledger_was_removed_is_said_to_be_one() {
    let test = "a_service_whose_ledger_was_removed_is_said_to_be_one";
    let Some((place, [program, _])) = programs(test) else {
        return;
    };
    let running = place.start("gone", &["--limit", "read=1MB/s", "--", &program]);
    place.until("gone", |service| service["processes"][0].is_object());
    let ledger = place.path().join("gone/ledger");
    std::fs::remove_file(&ledger).expect("removed");
    let status = place.say(&["status", "gone"]);
    assert!(status.out.contains("its ledger was removed"), "{status:?}");
    // The error once, and the file.
    let set = place.say(&["set", "gone", "read=2MB/s"]);
    let file = text(&ledger);
    let said = format!("bonsai: {file}: open: No such file or directory (os error 2)\n");
    assert_eq!((set.code, set.err), (Some(1), said));
    running.end();
}

#[test]
fn static_programs_that_are_run_by_other_names_are_named() {
    let test = "static_programs_that_are_run_by_other_names_are_named";
    let Some((place, [dynamic, without])) = programs(test) else {
        return;
    };
    let Some(memory) = compiled(test, &place, IN_MEMORY, ".memory", &[]) else {
        return;
    };
    let script = place.path().join(".script");
    std::fs::write(&script, format!("#!{without}\n")).expect("a script");
    let made = Command::new("chmod").args(["755", text(&script)]).status();
    assert!(made.is_ok_and(|status| status.success()));
    let memory = text(&memory);
    for (words, name) in [
        (&[LOADER, &without][..], "ld-linux-x86-64.so.2"),
        (
            &["sh", "-c", &format!("{LOADER} {without}; true")],
            "ld-linux-x86-64.so.2",
        ),
        (
            &["sh", "-c", &format!("{}; true", text(&script))],
            ".script",
        ),
        (&[memory, "descriptor", &without], ".memory"),
    ] {
        let said = place.say(&[&["run", "--name", "x", "--"][..], words].concat());
        assert_eq!(
            (said.code, said.out.as_str()),
            (Some(0), "ran\n"),
            "{said:?}"
        );
        assert_eq!(
            said.err,
            format!("bonsai: x: not covered: {name}, {ABSENT}\n"),
            "{words:?}"
        );
    }
    // Programs in which the library comes up are not.
    for words in [
        &[LOADER, &dynamic][..],
        &[memory, "descriptor", &dynamic],
        &[memory, "name", &dynamic],
        &[memory, "name", &without],
    ] {
        let said = place.say(&[&["run", "--name", "x", "--"][..], words].concat());
        assert_eq!(
            (said.out.as_str(), said.err.as_str()),
            ("ran\n", ""),
            "{words:?}"
        );
    }
}

#[test]
fn programs_that_arrive_or_do_not_run_are_not_named() {
    let test = "programs_that_arrive_or_do_not_run_are_not_named";
    let Some((place, [program, without])) = programs(test) else {
        return;
    };
    // Names that are looked for along PATH, a file that may not be run, an exec that fails and goes on,
    // an empty environment, a new session, children of children, and text without an interpreter.
    let plain = place.path().join(".plain");
    std::fs::write(&plain, "true\n").expect("a file");
    let runnable = place.path().join(".runnable");
    std::fs::write(&runnable, "true\n").expect("a file");
    let made = Command::new("chmod")
        .args(["755", text(&runnable)])
        .status();
    assert!(made.is_ok_and(|status| status.success()));
    let script = format!(
        "PATH=/none:$PATH; nosuch; {plain}; (exec nosuch); {runnable}; env -i {program}; setsid {program}; {without}; \
         sh -c 'sh -c {program} & wait'; exec env {program}",
        plain = text(&plain),
        runnable = text(&runnable),
    );
    let said = place.say(&["run", "-v", "--name", "x", "--", "sh", "-c", &script]);
    assert_eq!(said.out.matches("ran\n").count(), 5, "{said:?}");
    assert!(!said.err.contains("not covered"), "{said:?}");
    let said = place.say(&["run", "--name", "x", "--", text(&runnable)]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{said:?}");
}
