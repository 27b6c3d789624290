//! Many threads that write in bursts and keep what is left of their leases.

use conformance::finish;

use crate::fixture::{PATIENCE, bonsai, compiler, scratch};

/// Bytes of a write.
const SIZE: u64 = 1400;
/// Bytes a second; the burst is 20 ms of it.
const RATE: u64 = 4_000_000;

/// Threads that hold a lease and pause leave no room to the others, whose tickets are for a lease as well:
/// what these did not get was given back once, and let through at a multiple of the rate a line later.
#[test]
fn bursts_of_many_threads_are_never_over_the_envelope() {
    let test = "bursts_of_many_threads_are_never_over_the_envelope";
    at_most_a_burst_ahead(test, 100, &[]);
}

/// The tickets of all threads are due when a process goes on that was stopped. Each took its lease then, one after
/// the other: four bursts at once.
#[test]
fn threads_that_were_stopped_are_never_over_the_envelope() {
    let test = "threads_that_were_stopped_are_never_over_the_envelope";
    at_most_a_burst_ahead(test, 20, &["stopped"]);
}

fn at_most_a_burst_ahead(test: &str, threads: u64, mode: &[&str]) {
    let Some(compiler) = compiler(test) else {
        return;
    };
    let made = compiler.make("bursts", &["transparency/bursts.c"], &["-pthread"]);
    let program = made.unwrap_or_else(|error| panic!("{error}"));
    let folder = tempfile::tempdir_in(scratch()).expect("a folder");
    let file = folder.path().join("file").display().to_string();
    let numbers = [threads, SIZE, 5, RATE].map(|number| number.to_string());
    let mode = mode.iter().map(ToString::to_string);
    let args: Vec<String> = [file].into_iter().chain(numbers).chain(mode).collect();
    let limit = format!("write={RATE}B/s");
    let (_, mut command) = bonsai().run(&["--limit", &limit], &program, &args);
    let said = finish(&mut command, PATIENCE).expect("it ends");
    assert!(said.status.success(), "{said:?}");
    let words = said.stdout.split_whitespace();
    let found: Vec<u64> = words.map(|word| word.parse().expect("a number")).collect();
    let &[ahead, all] = found.as_slice() else {
        panic!("{:?}", said.stdout);
    };
    println!("{all} bytes, at most {ahead} ahead in any window");
    // A thread whose turn has come may make its call late.
    let most = RATE / 50 + threads * SIZE;
    assert!(
        ahead <= most,
        "{ahead} bytes ahead of the rate; {most} may be"
    );
}
