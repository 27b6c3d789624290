//! Each case under enforced limits that do not bind: the same results as bare.

use conformance::{for_each, skip};

use crate::fixture::{PATIENCE, WORKERS, assert_none, bare, bonsai, cases, outcome, scratch};

/// All calls are asked about; these limits have the supervisor look at descriptors, and
/// make calls in the program's place.
const OPTIONS: [&str; 11] = [
    "--enforce",
    "-l",
    "read=100GB/s",
    "-l",
    "write=100GB/s",
    "-l",
    "send=100GB/s",
    "-l",
    "recv=100GB/s",
    "-l",
    "all=unlimited",
];

/// Refused on purpose.
const OTHERWISE: [&str; 4] = ["io_uring", "io_submit", "io_setup", "process_vm"];

#[test]
fn enforced_results_are_equal() {
    let test = "enforced_results_are_equal";
    let Some(cases) = cases(test) else {
        return;
    };
    let bonsai = bonsai();
    let mut tried = bonsai.command(&["run", "--enforce", "-l", "write=1MB/s", "--", "/bin/true"]);
    let tried = tried.output().expect("bonsai");
    if tried.status.code() == Some(2) {
        return skip(test, String::from_utf8_lossy(&tried.stderr).trim());
    }
    let bare = bare(cases);
    let complaints = for_each(&cases.cases, WORKERS, |case| {
        let named = |word: &&str| case.name.contains(*word) || case.entry.contains(*word);
        let expected = &bare[&case.name];
        if OTHERWISE.iter().any(named) || expected.skip.is_some() {
            return Ok(());
        }
        let args = [case.name.as_str()];
        let run = bonsai.counted(&OPTIONS, &cases.program, &args, &scratch(), PATIENCE);
        let (finished, _) = run.map_err(|error| format!("{}: {error}", case.name))?;
        outcome(case, &finished)?.same_as(expected)
    });
    assert_none(&complaints);
}
