//! Files that are not what they look like from outside of the program: those of the kernel, whose writes act on the process that makes
//! them, and FIFOs with names.

use std::path::Path;

use conformance::{finish, skip};

use crate::enforced::can_enforce;
use crate::fixture::{bonsai, compiler};
use crate::probe::PATIENCE;

/// Prints the same under each of these limits as bare; what that is.
fn same(test: &str, source: &str, sets: &[&[&str]]) -> Option<String> {
    let gcc = compiler(test).filter(|_| can_enforce(test))?;
    let sources = [Path::new("enforced").join(source)];
    let program = gcc.make(test, &sources, &["-pthread"]).expect("compiled");
    let bonsai = bonsai();
    let bare = finish(&mut bonsai.bare(&program), PATIENCE).expect("bare");
    for limits in sets {
        let mut options = vec!["--enforce"];
        options.extend(limits.iter().flat_map(|limit| ["--limit", *limit]));
        let (_, mut command) = bonsai.run(&options, &program, &[] as &[&str]);
        let enforced = finish(&mut command, PATIENCE).expect("enforced");
        let said = &enforced.stderr;
        assert_eq!(enforced.stdout, bare.stdout, "{limits:?}: {said}");
    }
    Some(bare.stdout)
}

/// Under a limit on sockets the supervisor has to make reads and writes of programs with several threads.
#[test]
fn files_of_the_kernel_know_their_reader_and_writer() {
    let test = "files_of_the_kernel_know_their_reader_and_writer";
    let sets: [&[&str]; 3] = [
        &["send=1MB/s"],
        &["send=1MB/s", "write=1MB/s"],
        &["recv=1MB/s", "read=1MB/s"],
    ];
    if let Some(said) = same(test, "kernel_files.c", &sets) {
        assert!(said.starts_with("comm: Success, renamed"), "{said}");
        if said.contains("no namespace") {
            skip(test, "no namespaces of its own for a program");
        }
    }
}

/// Lists that are appended, and files that are sent as datagrams, are longer than the pieces of other calls.
#[test]
fn calls_that_others_see_as_one_are_one() {
    let test = "calls_that_others_see_as_one_are_one";
    let sets: [&[&str]; 2] = [
        &["write=100MB/s", "send=500kB/s"],
        &["write=60MB/s", "send=100kB/s", "read=1GB/s"],
    ];
    if let Some(said) = same(test, "one.c", &sets) {
        let whole = "appended: 10 of 10 records, 0 torn, all written: 1";
        assert!(said.starts_with(whole), "{said}");
    }
}

#[test]
fn a_read_of_a_fifo_with_a_name_is_interrupted() {
    let test = "a_read_of_a_fifo_with_a_name_is_interrupted";
    let sets: [&[&str]; 2] = [&["read=1MB/s"], &["read=1MB/s", "recv=2MB/s"]];
    if let Some(said) = same(test, "fifo.c", &sets) {
        assert_eq!(said.trim(), "Interrupted system call");
    }
}

/// The supervisor's own descriptor of what it writes to is closed before the call returns.
#[test]
fn what_is_closed_is_free_at_once() {
    let test = "what_is_closed_is_free_at_once";
    let sets: [&[&str]; 2] = [&["write=1GB/s"], &["write=1GB/s", "send=2GB/s"]];
    if let Some(said) = same(test, "closed.c", &sets) {
        assert!(said.starts_with("0 addresses, 0 ends"), "{said}");
    }
}

/// An amount that is paid for and not taken goes back to the bucket, up to its burst: what is beyond that would be lost to the service.
#[test]
fn a_transfer_pays_no_more_at_once_than_can_go_back() {
    const BURST: i64 = 8192;
    let test = "a_transfer_pays_no_more_at_once_than_can_go_back";
    let Some(gcc) = compiler(test).filter(|_| can_enforce(test)) else {
        return;
    };
    let sources = [Path::new("enforced/partly.c")];
    let program = gcc.make(test, &sources, &[]).expect("compiled");
    let bonsai = bonsai();
    for limit in ["write=1MB/s:burst=8192B", "read=1MB/s:burst=8192B"] {
        let options = ["--enforce", "--limit", limit];
        let (_, mut command) = bonsai.run(&options, &program, &[] as &[&str]);
        let enforced = finish(&mut command, PATIENCE).expect("enforced");
        let moved: Vec<i64> = enforced
            .stdout
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        assert_eq!(moved.len(), 2, "{limit}: {enforced:?}");
        let fits = |moved: &i64| (1..=BURST).contains(moved);
        assert!(moved.iter().all(fits), "{limit}: {enforced:?}");
    }
}

/// How much a pipe takes of a call that ends at memory that is not there depends on where its pages begin.
#[test]
fn a_list_that_ends_nowhere_moves_what_it_moves_bare() {
    let test = "a_list_that_ends_nowhere_moves_what_it_moves_bare";
    let Some(gcc) = compiler(test).filter(|_| can_enforce(test)) else {
        return;
    };
    let sources = [Path::new("enforced/ends_nowhere.c")];
    let program = gcc.make(test, &sources, &[]).expect("compiled");
    let bonsai = bonsai();
    let bare = finish(&mut bonsai.bare(&program), PATIENCE).expect("bare");
    assert_eq!(bare.stdout.lines().count(), 70, "{bare:?}");
    for limit in ["write=100GB/s", "write=20MB/s"] {
        let options = ["--enforce", "--limit", limit];
        let (_, mut command) = bonsai.run(&options, &program, &[] as &[&str]);
        let enforced = finish(&mut command, PATIENCE).expect("enforced");
        let both = bare.stdout.lines().zip(enforced.stdout.lines());
        for (bare, enforced) in both {
            assert_eq!(bare, enforced, "{limit}");
        }
        assert_eq!(enforced.stdout.lines().count(), 70, "{enforced:?}");
    }
}
