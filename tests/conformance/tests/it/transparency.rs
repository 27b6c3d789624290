//! What an interposer could break inside one process, and must not.

use std::path::PathBuf;

use conformance::skip;

use crate::fixture::{compiler, scratch};
use crate::probe::{DOORS, Probe};

/// A limit that never makes a program wait.
const LOOSE: &[&str] = &["read=1GB/s", "write=1GB/s", "send=1GB/s", "recv=1GB/s"];

#[test]
fn a_blocked_call_is_interrupted_and_restarted() {
    let test = "a_blocked_call_is_interrupted_and_restarted";
    let Some(probe) = Probe::new(test, "signals", &["blocked"]) else {
        return;
    };
    probe.same(&[]);
    probe.same(LOOSE);
}

#[test]
fn a_wait_for_a_limit_is_interrupted_and_restarted() {
    let test = "a_wait_for_a_limit_is_interrupted_and_restarted";
    let Some(probe) = Probe::new(test, "signals", &["limited"]) else {
        return;
    };
    let mut lines = Vec::new();
    for way in ["no restart", "restart"] {
        for kind in ["pipe", "socket"] {
            lines.push(match way {
                "restart" => format!("{kind} write {way}: 1000 none, 1000 arrived, 1 signals"),
                _ => format!("{kind} write {way}: -1 EINTR, 0 arrived, 1 signals"),
            });
            lines.push(format!("{kind} pieces {way}: some, as many arrived"));
        }
    }
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    probe.prints(&["write=20kB/s:burst=1kB", "send=20kB/s:burst=1kB"], &lines);
}

/// A wait that was interrupted is not begun anew by who tries again.
#[test]
fn whoever_tries_again_after_a_signal_gets_through() {
    let test = "whoever_tries_again_after_a_signal_gets_through";
    let Some(probe) = Probe::new(test, "signals", &["progress"]) else {
        return;
    };
    let lines = ["pipe", "socket"]
        .map(|kind| format!("{kind} progress: 16000 written, 16000 read, interrupted"));
    let lines = lines.each_ref().map(String::as_str);
    let limits = ["write", "read", "send", "recv"].map(|name| format!("{name}=20kB/s:burst=1kB"));
    let limits = limits.each_ref().map(String::as_str);
    for seen in probe.prints(&limits, &lines) {
        for (what, ms) in &seen.notes {
            assert!(
                *ms >= 750.0 * 0.98,
                "{}: {what} took {ms} ms only",
                seen.door
            );
        }
    }
}

/// No program expects EINTR from stat, or that a descriptor stays open after close.
#[test]
fn calls_that_no_signal_interrupts_are_not_interrupted_by_a_limit() {
    let test = "calls_that_no_signal_interrupts_are_not_interrupted_by_a_limit";
    let Some(probe) = Probe::new(test, "signals", &["never"]) else {
        return;
    };
    for seen in probe.same(&["stat=20/s:burst=1calls", "close=20/s:burst=1calls"]) {
        assert!(seen.notes["handled"] > 0.0, "{}: no signal came", seen.door);
    }
}

#[test]
fn a_blocked_thread_can_be_cancelled() {
    let test = "a_blocked_thread_can_be_cancelled";
    let Some(probe) = Probe::new(test, "cancel", &[]) else {
        return;
    };
    probe.same(&[]);
    probe.same(LOOSE);
}

#[test]
fn a_thread_that_waits_for_its_limit_can_be_cancelled() {
    let test = "a_thread_that_waits_for_its_limit_can_be_cancelled";
    let Some(probe) = Probe::new(test, "cancel", &["limited"]) else {
        return;
    };
    let lines = ["write", "send"].map(|call| format!("limited {call}: cancelled, cleanup ran"));
    let lines = lines.each_ref().map(String::as_str);
    for seen in probe.prints(&["write=10kB/s:burst=1kB", "send=10kB/s:burst=1kB"], &lines) {
        for (what, ms) in &seen.notes {
            // The wait itself would take 3 s.
            assert!(*ms < 3500.0, "{}: {what} took {ms} ms", seen.door);
            if *ms > 500.0 {
                eprintln!("NOTE: {}: {what} took {ms} ms", seen.door);
            }
        }
    }
}

#[test]
fn time_limits_of_sockets_are_honoured() {
    let test = "time_limits_of_sockets_are_honoured";
    let Some(probe) = Probe::new(test, "timeouts", &[]) else {
        return;
    };
    probe.same(&[]);
    probe.same(LOOSE);
}

#[test]
fn time_limits_of_sockets_are_honoured_while_a_limit_makes_them_wait() {
    let test = "time_limits_of_sockets_are_honoured_while_a_limit_makes_them_wait";
    let Some(probe) = Probe::new(test, "timeouts", &["limited"]) else {
        return;
    };
    probe.prints(
        &["send=10kB/s:burst=1kB", "recv=10kB/s:burst=1kB"],
        &[
            "send: -1 EAGAIN, in time",
            "nothing of it arrived: -11",
            "received 9000 in turns with EAGAIN",
        ],
    );
}

/// What is bytes alone is let through bit by bit; what is said of a call goes with all
/// of its bytes.
#[test]
fn large_sends_are_divided_where_that_cannot_be_seen() {
    let test = "large_sends_are_divided_where_that_cannot_be_seen";
    let Some(probe) = Probe::new(test, "pieces", &[]) else {
        return;
    };
    for seen in probe.same(&["send=120kB/s:burst=1kB"]) {
        // Sixteen pieces, of which a slow reader finds several at a time.
        assert!(
            seen.notes["sendmsg in reads"] >= 3.0,
            "{}: {:?}",
            seen.door,
            seen.notes
        );
        // Groups of two: a piece has 4096 bytes.
        assert!(
            seen.notes["pauses between messages"] >= 5.0,
            "{}: {:?}",
            seen.door,
            seen.notes
        );
        let all = |n: u64| (0..n).map(|i| 1400 - i).sum::<u64>();
        let messages = all(17) + all(24);
        let sums = ["sendmsg", "sendto", "sendmmsg"].map(|call| seen.counters.of(call));
        assert_eq!(
            sums,
            [(4, 65536 + 3 * 20000), (2, 2 * 20000), (2, messages)],
            "{}",
            seen.door
        );
        seen.assert_shaped(65536 + 5 * 20000 + messages, 120_000, 1000);
    }
}

#[test]
fn the_timer_slack_stays_the_programs() {
    let test = "the_timer_slack_stays_the_programs";
    let Some(probe) = Probe::new(test, "slack", &[]) else {
        return;
    };
    probe.same(&["write=100kB/s:burst=1kB"]);
}

#[test]
fn calls_are_counted_once_before_and_after_the_first_thread() {
    let test = "calls_are_counted_once_before_and_after_the_first_thread";
    let Some(probe) = Probe::new(test, "first_thread", &[]) else {
        return;
    };
    for limits in [&[] as &[&str], LOOSE] {
        for seen in probe.same(limits) {
            for call in ["getppid", "poll"] {
                assert_eq!(seen.counters.of(call).0, 1500, "{}: {call}", seen.door);
            }
            // Cancelling loads a library, which is closed as well.
            let closes = seen.counters.of("close").0;
            assert!((1500..1550).contains(&closes), "{}: {closes}", seen.door);
            for call in ["write.other", "sendto", "recvfrom"] {
                assert_eq!(
                    seen.counters.of(call),
                    (1500, 1500),
                    "{}: {call}",
                    seen.door
                );
            }
            // The cancelled one is counted where libc's own way to it is.
            let reads = seen.counters.of("read.other");
            assert_eq!(reads.1, 1500, "{}: reads", seen.door);
            assert!((1500..=1501).contains(&reads.0), "{}: reads", seen.door);
        }
    }
}

#[test]
fn threads_created_at_full_speed_are_counted_and_shaped() {
    let test = "threads_created_at_full_speed_are_counted_and_shaped";
    many_threads(test, &[]);
}

/// What a thread had on lease is its successor's: neither lost nor doubled.
#[test]
fn threads_one_after_the_other_are_counted_and_shaped() {
    let test = "threads_one_after_the_other_are_counted_and_shaped";
    many_threads(test, &["relay"]);
}

fn many_threads(test: &str, args: &[&str]) {
    let Some(probe) = Probe::new(test, "threads", args) else {
        return;
    };
    for seen in probe.same(&["write=480kB/s:burst=4kB"]) {
        assert_eq!(
            seen.counters.of("write.other"),
            (192, 192 * 1024),
            "{}",
            seen.door
        );
        seen.assert_shaped(192 * 1024, 480_000, 4000);
    }
}

#[test]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small number of signals"
)]
fn a_handler_that_writes_is_counted_exactly() {
    let test = "a_handler_that_writes_is_counted_exactly";
    for (args, limits) in [
        (["20000", "300"], &[] as &[&str]),
        (["20000", "300"], LOOSE),
        (["2000", "5000"], &["write=100kB/s:burst=1kB"]),
    ] {
        let Some(probe) = Probe::new(test, "handler", &args) else {
            return;
        };
        for seen in probe.same(limits) {
            let handled = seen.notes["handled"] as u64;
            let writes: u64 = args[0].parse().expect("a number");
            let want = (writes + handled, 16 * writes + 8 * handled);
            assert_eq!(
                seen.counters.of("write.other"),
                want,
                "{} {limits:?}",
                seen.door
            );
            assert!(handled > 0, "no signal came");
        }
    }
}

#[test]
fn closing_every_descriptor_does_no_harm() {
    let test = "closing_every_descriptor_does_no_harm";
    let Some(probe) = Probe::new(test, "closing", &[]) else {
        return;
    };
    for seen in probe.same(&["write=120kB/s:burst=1kB"]) {
        assert_eq!(
            seen.counters.of("write.other"),
            (48, 48 * 1024),
            "{}",
            seen.door
        );
        seen.assert_shaped(48 * 1024, 120_000, 1000);
    }
}

#[test]
fn a_number_that_becomes_another_kind_is_counted_as_that() {
    let test = "a_number_that_becomes_another_kind_is_counted_as_that";
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file").display().to_string();
    let Some(probe) = Probe::new(test, "reuse", &[&file]) else {
        return;
    };
    for limits in [&[], LOOSE] {
        for seen in probe.same(limits) {
            let bytes = ["file", "socket", "other"]
                .map(|kind| seen.counters.of(&format!("write.{kind}")).1);
            assert_eq!(bytes, [290, 620, 1008], "{}", seen.door);
        }
    }
}

/// As the kernel's own checks end a program: by the same signal, with the same words.
#[test]
fn fortified_reads_still_find_an_overflow() {
    let test = "fortified_reads_still_find_an_overflow";
    let Some(compiler) = compiler(test) else {
        return;
    };
    let program = compiler
        .make(
            "fortified",
            &["transparency/fortified.c"],
            &["-D_FORTIFY_SOURCE=2"],
        )
        .unwrap_or_else(|error| panic!("{error}"));
    for call in ["read", "recv", "pread", "recvfrom"] {
        let probe = Probe::of(program.clone(), &[call]);
        let bare = probe.bare();
        let said = "*** buffer overflow detected ***: terminated";
        assert!(
            bare.finished.stderr.contains(said),
            "{call}: {:?}",
            bare.finished
        );
        for door in DOORS {
            let seen = probe.through(door, &[]);
            assert_eq!(seen.lines, bare.lines);
            assert!(
                seen.finished.stderr.contains(said),
                "{call}: {:?}",
                seen.finished
            );
            // SIGABRT.
            assert_eq!(
                seen.finished.status.code(),
                Some(128 + 6),
                "{call} {}",
                seen.door
            );
        }
    }
    Probe::of(program, &["within"]).same(&[]);
}

/// A program may take all system calls away from itself but a few.
#[test]
fn a_program_under_a_filter_is_shaped_with_what_it_has_left() {
    let test = "a_program_under_a_filter_is_shaped_with_what_it_has_left";
    let Some(probe) = Probe::new(test, "guarded", &[]) else {
        return;
    };
    for seen in probe.same(&["write=40kB/s:burst=1kB"]) {
        assert_eq!(
            seen.counters.of("write.other"),
            (32, 32 * 512),
            "{}",
            seen.door
        );
        let took = seen.finished.elapsed.as_secs_f64();
        assert!(took > 15384.0 / 40000.0 * 0.98, "{}: {took} s", seen.door);
    }
}

/// Programs that bring their own allocator or checks. Eight threads, 64 KiB.
fn memory(test: &str, probe: &Probe) {
    for seen in probe.same(&["write=160kB/s:burst=2kB"]) {
        let (calls, bytes) = seen.counters.of("write.other");
        assert!(
            (256..=257).contains(&calls) && (65536..=65538).contains(&bytes),
            "{test} {}: {calls} calls, {bytes} bytes",
            seen.door
        );
        seen.assert_shaped(65536, 160_000, 2000);
    }
}

fn sanitized(test: &str, option: &str) {
    let Some(compiler) = compiler(test) else {
        return;
    };
    match compiler.make(test, &["transparency/memory.c"], &[option]) {
        Ok(program) => {
            // The runtime of ThreadSanitizer, which is left alone, writes into pipes.
            let of = |program: PathBuf, args: &[&str]| Probe {
                goes_by: option.contains("thread"),
                ..Probe::of(program, args)
            };
            memory(test, &of(program.clone(), &[]));
            // With an environment that says nothing to the sanitizer.
            let path = program.display().to_string();
            memory(test, &of("/usr/bin/env".into(), &["-i", &path]));
        }
        Err(error) => skip(
            test,
            &format!("no {option} here: {error}").replace('\n', " "),
        ),
    }
}

#[test]
fn an_address_sanitized_program_is_shaped() {
    sanitized(
        "an_address_sanitized_program_is_shaped",
        "-fsanitize=address",
    );
}

#[test]
fn a_thread_sanitized_program_is_shaped() {
    sanitized("a_thread_sanitized_program_is_shaped", "-fsanitize=thread");
}

#[test]
fn a_program_with_jemalloc_is_shaped() {
    let test = "a_program_with_jemalloc_is_shaped";
    let Some(probe) = Probe::new(test, "memory", &[]) else {
        return;
    };
    memory(test, &probe);
    let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let found = places
        .iter()
        .map(|place| format!("{place}/libjemalloc.so.2"))
        .find(|path| std::path::Path::new(path).exists());
    match found {
        Some(library) => memory(test, &probe.with("LD_PRELOAD", library)),
        None => skip(test, "libjemalloc.so.2 is not installed"),
    }
}

/// One write to a file stays one, where others may see that: records on open files that are shared, what is appended, synchronous or
/// direct.
#[test]
fn writes_that_others_see_as_one_stay_one() {
    let folder = scratch();
    let folder = folder.to_str().expect("a name");
    let Some(probe) = Probe::new("writes_that_others_see_as_one_stay_one", "whole", &[folder])
    else {
        return;
    };
    // 18 MB, of which a mebibyte is waited for before a call and the rest after it.
    let seen = probe.same(&["write=9MB/s:burst=4kB"]);
    let whole = seen[0]
        .lines
        .iter()
        .filter(|line| line.ends_with("done whole"));
    assert_eq!(whole.count(), 11, "{:?}", seen[0].lines);
    assert_eq!(seen[0].lines[11], "0 of 40 records torn");
}

/// A handler on a signal stack above its thread's has interrupted the call below, and has not left it: both
/// are counted, and wait their turn.
#[test]
fn handlers_on_stacks_of_their_own_keep_to_limits() {
    let test = "handlers_on_stacks_of_their_own_keep_to_limits";
    let Some(probe) = Probe::new(test, "altstack", &[]) else {
        return;
    };
    let seen = probe.through(("patched", &[]), &["write=1MB/s:burst=4kB"]);
    assert_eq!(seen.lines, ["done"], "{:?}", seen.finished);
    assert!(seen.notes["handled"] > 10.0, "{:?}", seen.notes);
    let (_, bytes) = seen.counters.of("write.other");
    assert_eq!(bytes.to_string(), seen.notes["written"].to_string());
    seen.assert_shaped(bytes, 1_000_000, 4000);
}

/// Calls before the constructor of any library has run end as bare, and the program starts. The library that is first in any case is
/// another one than Bonsai's here, as libpthread is before glibc 2.34.
#[test]
fn calls_before_all_constructors_end_as_bare() {
    let test = "calls_before_all_constructors_end_as_bare";
    let Some(compiler) = compiler(test) else {
        return;
    };
    let source = ["transparency/earliest.c"];
    let options = ["-DLIBRARY", "-shared", "-fPIC", "-Wl,-z,initfirst"];
    let library = compiler.make("libearliest.so", &source, &options);
    let library = library.unwrap_or_else(|error| panic!("{error}"));
    let library = library.to_string_lossy();
    let program = compiler.make("earliest", &source, &[&library]);
    let program = program.unwrap_or_else(|error| panic!("{error}"));
    for seen in Probe::of(program, &[]).same(&[]) {
        assert_eq!(seen.lines.len(), 9, "{:?}", seen.finished);
    }
}
