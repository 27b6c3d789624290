//! Random and hostile calls that move bytes: a program gets from each what the kernel gives it bare.

use std::path::PathBuf;

use crate::probe::Probe;

/// Low enough that most calls are made in pieces, or wait.
const LIMITS: [&str; 4] = [
    "read=100MB/s:burst=64kB",
    "write=100MB/s:burst=64kB",
    "send=100MB/s:burst=64kB",
    "recv=100MB/s:burst=64kB",
];

/// Result, errno, memory, contents and positions of files, and what is in queues are the same after each of some hundred calls of a seed, through
/// both doors. `ODD_CALLS="SEED FIRST COUNT"` has others made.
#[test]
fn whatever_a_call_asks_for_it_ends_as_bare() {
    let test = "whatever_a_call_asks_for_it_ends_as_bare";
    let which = std::env::var("ODD_CALLS").unwrap_or_else(|_| "3 0 300".to_owned());
    let mut args: Vec<_> = which.split_whitespace().collect();
    args.push("all");
    let Some(mut probe) = Probe::new(test, "odd_calls", &args) else {
        return;
    };
    let memory = PathBuf::from("/dev/shm");
    let place = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    let place = place.expect("a folder");
    probe.folder = Some(place.path().to_owned());
    for seen in probe.same(&LIMITS) {
        assert!(seen.lines.len() > 100, "{}: {:?}", seen.door, seen.finished);
    }
}
