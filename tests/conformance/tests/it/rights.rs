//! An enforced program has its own rights and its own name, whoever makes its calls.

use std::path::Path;
use std::process::Command;

use conformance::{Bonsai, finish, skip};

use crate::enforced::can_enforce;
use crate::fixture::{bonsai, compiler};
use crate::probe::PATIENCE;

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

#[test]
fn an_enforced_program_has_its_own_rights_and_name() {
    let test = "an_enforced_program_has_its_own_rights_and_name";
    let Some(gcc) = compiler(test).filter(|_| can_enforce(test)) else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return skip(test, "only root has rights to lend");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let made = gcc.make("rights", &[Path::new("enforced/rights.c")], &[]);
    let made = made.unwrap_or_else(|error| panic!("{error}"));
    let [program, file] = ["rights", "file"].map(|name| folder.path().join(name));
    let mode = |path: &Path, mode: u32| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("a mode");
    };
    std::fs::copy(made, &program).expect("a copy");
    std::fs::write(&file, "text").expect("a file");
    mode(folder.path(), 0o755);
    mode(&program, 0o755);
    mode(&file, 0o4777);
    let [program, file] = [&program, &file].map(|path| path.to_str().expect("a name"));
    let there = bonsai().within(&["unshare", "-n"]).expect("a folder");
    let mut cases = vec![(PLACES[0], "changes", true)];
    for place in PLACES {
        cases.extend([true, false].map(|is_root| (place, "plain", is_root)));
    }
    for (place, what, is_root) in cases {
        let words = [place, &[program, what, file]].concat();
        let said = |mut command: Command| {
            let finished = finish(&mut command, PATIENCE);
            finished.unwrap_or_else(|error| panic!("{words:?}: {error}"))
        };
        let bare = said(bare(&words, is_root));
        if !bare.status.success() {
            // Not everybody may make every namespace.
            assert!(bare.stdout.is_empty() && !place.is_empty(), "{bare:?}");
            continue;
        }
        let limited = said(enforced(&there, &words, is_root));
        assert!(bare.stdout.lines().count() > 80, "{bare:?}");
        for (seen, expected) in limited.stdout.lines().zip(bare.stdout.lines()) {
            assert_eq!(seen, expected, "{words:?}, root: {is_root}");
        }
        assert_eq!(limited.stdout, bare.stdout, "{:?}", limited.stderr);
    }
}
