//! An enforced program has its own rights and its own name, whoever makes its calls.

use std::path::Path;
use std::process::Command;

use conformance::{Bonsai, Finished, finish, skip};

use crate::enforced::can_enforce;
use crate::fixture::{bonsai, compiler};
use crate::probe::{PATIENCE, Probe};

const LIMITS: [&str; 10] = [
    "-l",
    "write=1GB/s",
    "-l",
    "send=1GB/s",
    "-l",
    "recv=1GB/s",
    "-l",
    "exec=1000000/s",
    "-l",
    "open=1000000/s",
];

/// What makes the namespaces that it is in.
const PLACES: [&[&str]; 4] = [
    &[],
    &["unshare", "-pf", "--mount-proc"],
    &["unshare", "-U", "-r", "-n"],
    &["unshare", "-U", "-r", "-pf", "--mount-proc"],
];

/// Bare, without new privileges, as root or as nobody.
fn bare(words: &[&str], is_root: bool) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-n", "setpriv", "--no-new-privs"]);
    if !is_root {
        command.args(["--reuid=65534", "--regid=65534", "--groups=65534"]);
    }
    command.args(words);
    command
}

/// The same under limits.
fn enforced(there: &Bonsai, words: &[&str], is_root: bool) -> Command {
    let user: &[&str] = if is_root { &[] } else { &["--user", "nobody"] };
    let options = [&["--enforce"], user, &LIMITS].concat();
    let (_, command) = there.run(&options, Path::new(words[0]), &words[1..]);
    command
}

/// A program of `c/enforced` in a folder that all users may enter.
fn made(test: &str, name: &str) -> Option<(tempfile::TempDir, String)> {
    let gcc = compiler(test).filter(|_| can_enforce(test))?;
    let folder = tempfile::tempdir().expect("a folder");
    let source = format!("enforced/{name}.c");
    let made = gcc.make(name, &[Path::new(&source)], &["-pthread"]);
    let made = made.unwrap_or_else(|error| panic!("{error}"));
    let program = folder.path().join(name);
    std::fs::copy(made, &program).expect("a copy");
    mode(folder.path(), 0o755);
    mode(&program, 0o755);
    let program = program.to_str().expect("a name").to_owned();
    Some((folder, program))
}

fn mode(path: &Path, mode: u32) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(path, mode).expect("a mode");
}

fn said(command: &mut Command) -> Finished {
    let finished = finish(command, PATIENCE);
    finished.unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Paths of sockets are those of the thread that says them (its root, its working directory, its mounts), credentials those of
/// its namespace, and its limits hold.
#[test]
fn names_and_limits_are_those_of_the_thread_that_makes_a_call() {
    let test = "names_and_limits_are_those_of_the_thread_that_makes_a_call";
    let Some((folder, program)) = made(test, "places") else {
        return;
    };
    let is_root = rustix::process::geteuid().is_root();
    let there = bonsai().within(&["unshare", "-n"]).expect("a folder");
    for as_root in [true, false] {
        if !is_root && !as_root {
            continue;
        }
        let place = folder.path().join("place");
        let place = place.to_str().expect("a name");
        let words = [program.as_str(), place];
        let anew = || {
            let _ = std::fs::remove_dir_all(place);
            std::fs::create_dir(place).expect("a folder");
            mode(Path::new(place), 0o777);
        };
        anew();
        let bare = said(&mut bare(&words, as_root));
        if !bare.status.success() {
            return skip(test, bare.stderr.trim());
        }
        anew();
        let limited = said(&mut enforced(&there, &words, as_root));
        assert!(bare.stdout.lines().count() > 80, "{bare:?}");
        assert_eq!(limited.stdout, bare.stdout, "{:?}", limited.stderr);
    }
}

/// A thread that runs another program takes over the number of the first one, and the kernel's counters of that number with it: what the
/// first one has read is charged all the same.
#[test]
fn a_thread_that_is_replaced_is_charged() {
    let test = "a_thread_that_is_replaced_is_charged";
    let Some((_folder, program)) = made(test, "replaced") else {
        return;
    };
    let probe = Probe::of(program.into(), &["40", "100000"]);
    let seen = probe.through(("enforced", &["--enforce"]), &["read=2MB/s:burst=100kB"]);
    assert!(seen.finished.status.success(), "{:?}", seen.finished);
    // The burst, and bytes that may be ahead of their payment.
    seen.assert_shaped(40 * 100_000, 2_000_000, 100_000 + 256 * 1024);
}

#[test]
fn an_enforced_program_has_its_own_rights_and_name() {
    let test = "an_enforced_program_has_its_own_rights_and_name";
    if !rustix::process::geteuid().is_root() {
        return skip(test, "only root has rights to lend");
    }
    let Some((folder, program)) = made(test, "rights") else {
        return;
    };
    let file = folder.path().join("file");
    std::fs::write(&file, "text").expect("a file");
    mode(&file, 0o4777);
    let (program, file) = (program.as_str(), file.to_str().expect("a name"));
    let there = bonsai().within(&["unshare", "-n"]).expect("a folder");
    let mut cases = vec![(PLACES[0], "changes", true)];
    for place in PLACES {
        cases.extend([true, false].map(|is_root| (place, "plain", is_root)));
    }
    for (place, what, is_root) in cases {
        let words = [place, &[program, what, file]].concat();
        let bare = said(&mut bare(&words, is_root));
        if !bare.status.success() {
            // Not everybody may make every namespace.
            assert!(bare.stdout.is_empty() && !place.is_empty(), "{bare:?}");
            continue;
        }
        let limited = said(&mut enforced(&there, &words, is_root));
        assert!(bare.stdout.lines().count() > 80, "{bare:?}");
        for (seen, expected) in limited.stdout.lines().zip(bare.stdout.lines()) {
            assert_eq!(seen, expected, "{words:?}, root: {is_root}");
        }
        assert_eq!(limited.stdout, bare.stdout, "{:?}", limited.stderr);
    }
}
