//! Limited calls that a program makes by an instruction which cannot be replaced: said, refused or trapped, and shown.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use conformance::{Bonsai, finish};

use crate::fixture::{bonsai, compiler};
use crate::probe::PATIENCE;

const SAID: &str = "a limited call is made by an instruction that cannot be replaced";

fn program(test: &str) -> Option<PathBuf> {
    let gcc = compiler(test)?;
    let made = gcc.make("holes", &["attach/holes.c"], &["-static", "-Wl,--build-id"]);
    Some(made.unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn a_limited_call_that_stays_unseen_is_said_refused_or_trapped() {
    let test = "a_limited_call_that_stays_unseen_is_said_refused_or_trapped";
    let Some(program) = program(test) else {
        return;
    };
    let bonsai = bonsai();
    let run = |options: &[&str]| {
        let (_, mut command) = bonsai.run(options, &program, &[] as &[&str]);
        finish(&mut command, PATIENCE).unwrap_or_else(|error| panic!("{error}"))
    };
    let read = ["--limit", "read=65536B/s:burst=1B"];
    let said = run(&read);
    assert!(said.stderr.contains(SAID), "{said:?}");
    assert!(said.status.success(), "{said:?}");

    let refused = run(&["--strict", read[0], read[1]]);
    assert_eq!(refused.status.code(), Some(126), "{refused:?}");
    assert!(refused.stderr.contains(SAID), "{refused:?}");

    // 65,536 bytes at as many a second: the call after them would wait.
    let trapped = run(&["--unpatched", "trap", read[0], read[1]]);
    assert!(!trapped.stderr.contains(SAID), "{trapped:?}");
    assert!(
        trapped.elapsed > Duration::from_millis(900),
        "it was not limited: {trapped:?}"
    );

    // The instruction is none of a limited call.
    let other = run(&["--strict", "--limit", "write=1MB/s"]);
    assert!(other.status.success(), "{other:?}");
}

#[test]
fn a_process_that_is_attached_is_named_with_its_holes() {
    let test = "a_process_that_is_attached_is_named_with_its_holes";
    let Some(program) = program(test) else {
        return;
    };
    let mut command = Command::new(&program);
    let mut child = command
        .arg("30")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it can be started");
    let mut line = String::new();
    let mut said = BufReader::new(child.stdout.take().expect("piped"));
    said.read_line(&mut line).expect("a line");
    let bonsai = bonsai();
    let pid = child.id().to_string();
    let ask = |bonsai: &Bonsai, args: &[&str]| {
        let finished = finish(&mut bonsai.command(args), PATIENCE);
        finished.unwrap_or_else(|error| panic!("{error}"))
    };
    let attached = ask(
        &bonsai,
        &[
            "attach",
            "--keep",
            "--name",
            "holes",
            "--limit",
            "read=1MB/s",
            &pid,
        ],
    );
    let status = ask(&bonsai, &["status", "holes"]);
    let set = ask(&bonsai, &["set", "holes", "read=unlimited"]);
    let without = ask(&bonsai, &["status", "holes"]);
    child.kill().expect("ours");
    child.wait().expect("ours");
    let named = "not limited in part: made by instructions that cannot be replaced: read";
    assert!(attached.stderr.contains(named), "{attached:?}");
    assert!(
        status.stdout.contains("not limited in part: read"),
        "{status:?}"
    );
    assert!(set.status.success(), "{set:?}");
    // By the limits in force.
    assert!(
        !without.stdout.contains("not limited in part"),
        "{without:?}"
    );
}
