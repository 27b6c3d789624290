//! Signals: a wait for a limit ends on a signal as the call's own wait does.

use std::path::PathBuf;

use conformance::{for_each, skip};

use crate::enforced::can_enforce;
use crate::fixture::{SLEEPERS, assert_none, compiler};
use crate::probe::Probe;

/// Calls that can wait for what never comes, and the limit that each is under: of every kind of the table
/// (`bonsai_calls::signals`), those that signal(7) names.
const CALLS: [(&str, &str); 35] = [
    ("poll", "poll"),
    ("ppoll", "ppoll"),
    ("select", "select"),
    ("pselect6", "pselect6"),
    ("epoll_wait", "epoll_wait"),
    ("epoll_pwait", "epoll_pwait"),
    ("epoll_pwait2", "epoll_pwait2"),
    ("read", "read"),
    ("readv", "readv"),
    ("write", "write"),
    ("writev", "writev"),
    ("tee", "tee"),
    ("splice", "splice"),
    ("vmsplice", "vmsplice"),
    ("recvfrom", "recvfrom"),
    ("recvmsg", "recvmsg"),
    ("sendto", "sendto"),
    ("sendmsg", "sendmsg"),
    ("read-socket", "recv"),
    ("write-socket", "send"),
    ("accept", "accept"),
    ("accept4", "accept4"),
    ("recvfrom-timed", "recvfrom"),
    ("recvmsg-timed", "recvmsg"),
    ("sendto-timed", "sendto"),
    ("sendmsg-timed", "sendmsg"),
    ("read-socket-timed", "recv"),
    ("write-socket-timed", "send"),
    ("accept-timed", "accept"),
    ("accept4-timed", "accept4"),
    ("msgrcv", "msgrcv"),
    ("msgsnd", "msgsnd"),
    ("mq_timedreceive", "mq_timedreceive"),
    ("mq_timedsend", "mq_timedsend"),
    ("flock", "flock"),
];

/// Calls that no signal interrupts.
const NEVER: [&str; 4] = ["stat", "pread64", "fsync", "close"];

fn program(test: &str, link: &[&str]) -> Option<PathBuf> {
    let made = compiler(test)?.make(test, &["transparency/interrupted.c"], link);
    if let Err(error) = &made
        && !link.is_empty()
    {
        skip(test, &error.to_string());
        return None;
    }
    Some(made.unwrap_or_else(|error| panic!("{error}")))
}

/// All of these calls, with `SA_RESTART` and without, end as they do bare.
fn all_end_as_bare(test: &'static str, link: &[&str], options: &[&str], calls: &[(&str, &str)]) {
    let Some(program) = program(test, link) else {
        return;
    };
    let flags = ["restart", "plain"];
    let cases: Vec<_> = calls
        .iter()
        .flat_map(|call| flags.map(|flag| (call, flag)))
        .collect();
    let complaints = for_each(&cases, SLEEPERS, |((call, limit), flag)| {
        let bare = Probe::of(program.clone(), &[call, flag]).bare();
        let expected = if NEVER.contains(call) {
            vec!["went on".to_owned()]
        } else {
            bare.lines
        };
        let limit = format!("{limit}=1calls/s:burst=1calls");
        let limited = Probe::of(program.clone(), &[call, flag, "limited"]);
        let seen = limited.through((test, options), &[&limit]);
        if seen.lines == expected {
            return Ok(());
        }
        Err(format!(
            "{call} {flag}: {:?} instead of {expected:?}: {:?}",
            seen.lines, seen.finished
        ))
    });
    assert_none(&complaints);
}

fn every_call() -> Vec<(&'static str, &'static str)> {
    let never = NEVER.map(|call| (call, call));
    CALLS.iter().copied().chain(never).collect()
}

#[test]
fn a_signal_ends_a_wait_for_a_limit_as_the_call_bare() {
    all_end_as_bare("interrupted-patched", &[], &[], &every_call());
}

#[test]
fn a_signal_ends_a_wait_in_a_static_program_as_the_call_bare() {
    all_end_as_bare("interrupted-static", &["-static"], &[], &every_call());
}

/// Calls that no signal interrupts, too, but for the moment before the supervisor has heard of them: from Linux 5.19 on.
#[test]
fn a_signal_ends_an_enforced_wait_as_the_call_bare() {
    if can_enforce("interrupted-enforced") {
        all_end_as_bare("interrupted-enforced", &[], &["--enforce"], &every_call());
    }
}
