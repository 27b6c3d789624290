//! Unwinding out of a system call: destructors of cancelled threads, stack traces.

use conformance::skip;

use crate::fixture::compiler;
use crate::probe::Probe;

/// The C++ program; `None` without a compiler for it, which is noted as a skip.
fn program(test: &str, args: &[&str]) -> Option<Probe> {
    let options = ["-std=gnu++17", "-lstdc++"];
    match compiler(test)?.make(test, &["transparency/unwind.cpp"], &options) {
        Ok(program) => Some(Probe::of(program, args)),
        Err(error) => {
            let error = error.to_string();
            assert!(
                error.contains("cc1plus") || error.contains("stdc++"),
                "{error}"
            );
            skip(test, "no C++ compiler: install g++");
            None
        }
    }
}

#[test]
fn a_thread_cancelled_in_a_call_runs_its_destructors() {
    let test = "a_thread_cancelled_in_a_call_runs_its_destructors";
    let Some(probe) = program(test, &[]) else {
        return;
    };
    let lines = [
        "read", "readv", "recv", "recvmsg", "accept", "fgetc", "write", "send", "syscall",
    ]
    .map(|call| format!("{call}: trace complete, cancelled, 5 destructors"));
    for limits in [
        &[][..],
        &["read=1GB/s", "write=1GB/s", "send=1GB/s", "recv=1GB/s"],
    ] {
        for seen in probe.same(limits) {
            assert_eq!(seen.lines, lines, "{}", seen.door);
        }
    }
}

#[test]
fn a_thread_cancelled_while_it_waits_runs_its_destructors() {
    let test = "a_thread_cancelled_while_it_waits_runs_its_destructors";
    let Some(probe) = program(test, &["limited"]) else {
        return;
    };
    let lines = ["write", "send"]
        .map(|call| format!("limited {call}: trace complete, cancelled, 5 destructors"));
    let lines = lines.each_ref().map(String::as_str);
    probe.prints(&["write=10kB/s:burst=1kB", "send=10kB/s:burst=1kB"], &lines);
}
