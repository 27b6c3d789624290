//! Limits on some descriptors, and per stream: by path, device, peer and port.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use conformance::{Port, finish};

use crate::fixture::{bonsai, compiler};
use crate::probe::{DOORS, PATIENCE, Probe, Seen};

/// `bytes` at `rate` per second, with the burst of 20 ms: never faster than that.
#[expect(clippy::cast_precision_loss, reason = "amounts are small")]
fn assert_not_faster(seen: &Seen, part: &str, bytes: u64, rate: u64) {
    let took = seen.notes[part] / 1000.0;
    let least = bytes as f64 / rate as f64 - 0.020;
    // The program prints whole milliseconds.
    assert!(
        took + 0.001 >= least * 0.98,
        "{}: {part}: {bytes} bytes at {rate}/s in {took} s",
        seen.door
    );
    if took > least * 1.5 + 1.0 {
        eprintln!(
            "NOTE: {}: {part}: took {took} s instead of {least:.3} s",
            seen.door
        );
    }
}

/// What a part without a limit takes is nothing beside what it would take under one.
#[expect(clippy::cast_precision_loss, reason = "amounts are small")]
fn assert_free(seen: &Seen, part: &str, bytes: u64, rate: u64) {
    let (took, limited) = (seen.notes[part] / 1000.0, bytes as f64 / rate as f64);
    if took > limited / 2.0 {
        // Other work on the machine can do that; whether it waited is counted below.
        eprintln!("NOTE: {}: {part}: {took} s without a limit", seen.door);
    }
}

/// Two folders with a file each.
fn two_files(bytes: usize) -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| {
        let within = folder.path().join(name);
        std::fs::create_dir(&within).expect("a folder");
        let path = within.join("x=1");
        std::fs::write(&path, vec![b'x'; bytes]).expect("room for a file");
        path
    };
    let (a, b) = (file("a"), file("b"));
    (folder, a, b)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of UTF-8")
}

#[test]
fn no_stream_is_faster_than_its_limit_and_none_waits_for_another() {
    let test = "no_stream_is_faster_than_its_limit_and_none_waits_for_another";
    let Some(probe) = Probe::new(test, "narrowed", &["streams", "8", "400000"]) else {
        return;
    };
    for seen in probe.same(&["send/stream=1MB/s"]) {
        for stream in 'a'..='h' {
            assert_not_faster(&seen, &format!("stream {stream}"), 400_000, 1_000_000);
        }
        // Had they shared one bucket, it would have taken eight times as long.
        let elapsed = seen.notes["elapsed"];
        assert!(elapsed < 8.0 * 400.0, "{}: {elapsed} ms", seen.door);
        assert!(seen.counters.unshaped.is_empty(), "{:?}", seen.counters);
    }
}

/// Threads pay for a limit of the service with leases, also where each call is under a limit per stream, too.
#[test]
fn a_limit_of_the_service_holds_beside_one_per_stream() {
    let test = "a_limit_of_the_service_holds_beside_one_per_stream";
    let Some(probe) = Probe::new(test, "narrowed", &["streams", "8", "150000"]) else {
        return;
    };
    for seen in probe.same(&["send=1MB/s:burst=20kB", "send/stream=10MB/s"]) {
        seen.assert_shaped(8 * 150_000, 1_000_000, 20_000);
        assert!(seen.counters.unshaped.is_empty(), "{:?}", seen.counters);
    }
    // The limit of the service is above what goes through: it gives leases, and the streams are held back.
    for seen in probe.same(&["send=100MB/s", "send/stream=500kB/s"]) {
        for stream in 'a'..='h' {
            assert_not_faster(&seen, &format!("stream {stream}"), 150_000, 500_000);
        }
    }
}

#[test]
fn files_are_limited_by_their_path_whatever_reads_them() {
    let test = "files_are_limited_by_their_path_whatever_reads_them";
    const BYTES: u64 = 300_000;
    let (folder, a, b) = two_files(300_000);
    let args = ["files", "0", text(&a), text(&b)];
    let Some(probe) = Probe::new(test, "narrowed", &args) else {
        return;
    };
    let limit = format!("read@{}/a/**=1MB/s", folder.path().display());
    for seen in probe.same(&[&limit]) {
        for way in ["read", "pread", "readv", "sendfile"] {
            assert_not_faster(&seen, &format!("{way} a"), BYTES, 1_000_000);
            assert_free(&seen, &format!("{way} b"), BYTES, 1_000_000);
        }
        // Four ways, and nothing else has waited.
        let waited = Duration::from_nanos(seen.counters.waited_ns);
        let most = Duration::from_millis(4 * 300 + 700);
        assert!(waited < most, "{}: {waited:?}", seen.door);
        assert!(seen.counters.unshaped.is_empty(), "{:?}", seen.counters);
    }
}

#[test]
fn a_file_that_is_read_again_and_again_is_limited_when_its_path_has_changed() {
    let test = "a_file_that_is_read_again_and_again_is_limited_when_its_path_has_changed";
    const BYTES: u64 = 200_000;
    let (folder, a, b) = two_files(200_000);
    let args = ["renamed", "0", text(&a), text(&b)];
    let Some(probe) = Probe::new(test, "narrowed", &args) else {
        return;
    };
    let limit = format!("read@{}/a/**=1MB/s", folder.path().display());
    for seen in probe.same(&[&limit]) {
        for part in ["renamed", "linked", "folder"] {
            assert_not_faster(&seen, part, BYTES, 1_000_000);
        }
        // Three times, and not where it was before.
        let waited = Duration::from_nanos(seen.counters.waited_ns);
        let most = Duration::from_millis(3 * 200 + 700);
        assert!(waited < most, "{}: {waited:?}", seen.door);
    }
}

#[test]
fn calls_by_path_are_limited_by_it_however_it_is_written() {
    let test = "calls_by_path_are_limited_by_it_however_it_is_written";
    let (folder, a, b) = two_files(10);
    // The last of these is opened by a relative path, and with detours.
    let within = folder.path().join("b");
    let relative = "../a/./../a//x=1";
    for (first, second) in [(text(&a), text(&b)), (relative, text(&b))] {
        let Some(mut probe) = Probe::new(test, "narrowed", &["paths", "100", first, second]) else {
            return;
        };
        probe.folder = Some(within.clone());
        let limit = format!("open@{}/a/**=200/s:burst=1calls", folder.path().display());
        for seen in probe.same(&[&limit]) {
            assert_not_faster(&seen, "open a", 99, 200);
            assert_free(&seen, "open b", 100, 200);
            let waited = Duration::from_nanos(seen.counters.waited_ns);
            assert!(
                waited < Duration::from_millis(1500),
                "{}: {waited:?}",
                seen.door
            );
        }
    }
}

#[test]
fn a_mount_is_limited_by_its_device() {
    let test = "a_mount_is_limited_by_its_device";
    let (folder, a, b) = two_files(200_000);
    let args = ["files", "0", text(&a), text(&b)];
    let Some(probe) = Probe::new(test, "narrowed", &args) else {
        return;
    };
    let limit = format!("disk@mount:{}=2MB/s", folder.path().display());
    let seen = probe.through(DOORS[0], &[&limit, "disk@mount:/proc=1B/s"]);
    for part in ["read a", "read b", "pread a", "sendfile b"] {
        assert_not_faster(&seen, part, 200_000, 2_000_000);
    }
}

#[test]
fn sockets_are_limited_by_their_peer_and_port() {
    let test = "sockets_are_limited_by_their_peer_and_port";
    const BYTES: u64 = 200_000;
    let held = Port::free();
    let port = held.number().to_string();
    let args = ["peers", "200000", &port];
    let Some(probe) = Probe::new(test, "narrowed", &args) else {
        return;
    };
    let by_port = format!("send@port:{port}=2MB/s");
    let limits = ["send@127.0.0.1/32=1MB/s", "send@127.0.0.2=4MB/s", &by_port];
    for seen in probe.same(&limits) {
        for way in ["tcp", "mapped", "udp"] {
            for (end, rate) in [("a", 1_000_000), ("b", 4_000_000), ("c", 2_000_000)] {
                let part = format!("{way} {end}");
                if way == "mapped" && !seen.notes.contains_key(&part) {
                    // No IPv6 on this machine.
                    continue;
                }
                assert_not_faster(&seen, &part, BYTES, rate);
            }
            assert!(seen.notes.contains_key("udp d"));
        }
        assert!(seen.counters.unshaped.is_empty(), "{:?}", seen.counters);
    }
}

#[test]
fn a_file_shared_after_fork_is_one_stream_and_one_opened_again_another() {
    let test = "a_file_shared_after_fork_is_one_stream_and_one_opened_again_another";
    let (_folder, a, _) = two_files(8192);
    let Some(probe) = Probe::new(test, "narrowed", &["shared", "204800", text(&a)]) else {
        return;
    };
    let limit = format!("read/stream@{}=1MB/s", text(&a));
    for seen in probe.same(&[&limit]) {
        assert_not_faster(&seen, "forked", 2 * 204_800, 1_000_000);
        assert_not_faster(&seen, "duplicated", 2 * 204_800, 1_000_000);
        assert_not_faster(&seen, "apart", 204_800, 1_000_000);
        let apart = seen.notes["apart"];
        if apart > 400.0 {
            eprintln!("NOTE: {}: two streams at once took {apart} ms", seen.door);
        }
    }
}

#[test]
fn a_number_that_is_given_out_anew_is_not_taken_for_the_old_one() {
    let test = "a_number_that_is_given_out_anew_is_not_taken_for_the_old_one";
    let (folder, a, b) = two_files(4096);
    let args = ["reuse", "100", text(&a), text(&b)];
    let Some(probe) = Probe::new(test, "narrowed", &args) else {
        return;
    };
    let limit = format!("read@{}/a/*=1MB/s", folder.path().display());
    for seen in probe.same(&[&limit]) {
        // Half of what four threads read; more would have taken longer.
        assert_not_faster(&seen, "elapsed", 4 * 50 * 4096, 1_000_000);
        let waited = Duration::from_nanos(seen.counters.waited_ns);
        let most = Duration::from_millis(4 * 819 + 1500);
        assert!(waited < most, "{}: {waited:?}", seen.door);
    }
}

#[test]
fn whoever_is_interrupted_all_the_time_gets_on_under_a_narrowed_limit() {
    let test = "whoever_is_interrupted_all_the_time_gets_on_under_a_narrowed_limit";
    let Some(probe) = Probe::new(test, "narrowed", &["storm", "409600"]) else {
        return;
    };
    for seen in probe.same(&["send/stream=1MB/s"]) {
        assert_not_faster(&seen, "sent", 409_600, 1_000_000);
    }
}

#[test]
fn streams_beyond_the_room_for_them_are_counted() {
    let test = "streams_beyond_the_room_for_them_are_counted";
    let Some(probe) = Probe::new(test, "narrowed", &["many", "10000"]) else {
        return;
    };
    // Each is in debt for longer than this takes, so that none can be given to another.
    let seen = probe.through(DOORS[0], &["send/stream=1B/s:burst=200B"]);
    if seen.lines == ["too few descriptors"] {
        conformance::skip(test, "10,000 descriptors are not allowed here");
        return;
    }
    assert_eq!(seen.lines, ["sent 10000"]);
    let said = "under a limit per stream, with no room for a bucket of its stream";
    let lost = seen.counters.unshaped[said];
    assert!((10_000 - 8_192..10_000).contains(&lost), "{lost}");
}

#[test]
fn a_static_program_is_under_narrowed_limits_too() {
    let test = "a_static_program_is_under_narrowed_limits_too";
    let Some(compiler) = compiler(test) else {
        return;
    };
    let source = [Path::new("transparency").join("narrowed.c")];
    let Ok(program) = compiler.make("narrowed-static", &source, &["-static"]) else {
        conformance::skip(test, "no static C library to link with (libc.a)");
        return;
    };
    let (folder, a, b) = two_files(200_000);
    let probe = Probe::of(program, &["files", "0", text(&a), text(&b)]);
    let limit = format!("read@{}/b/**=1MB/s", folder.path().display());
    let seen = probe.through(DOORS[0], &[&limit]);
    assert_eq!(seen.lines, probe.bare().lines);
    for way in ["read", "pread", "readv", "sendfile"] {
        assert_not_faster(&seen, &format!("{way} b"), 200_000, 1_000_000);
    }
}

/// A service without narrowed limits is given one while it runs, and then another rate.
#[test]
fn a_change_reaches_every_stream() {
    let test = "a_change_reaches_every_stream";
    let Some(probe) = Probe::new(test, "narrowed", &["streams", "4", "600000"]) else {
        return;
    };
    let bonsai = bonsai();
    let (name, mut command) = bonsai.run(&["--limit", "send=300kB/s"], &probe.program, &probe.args);
    let began = Instant::now();
    let set = |limits: &[&str]| {
        let all = [&["set", &name], limits].concat();
        let done = finish(&mut bonsai.command(&all), PATIENCE).expect("it ends");
        assert!(done.status.success(), "{done:?}");
    };
    let finished = std::thread::scope(|scope| {
        let service = scope.spawn(|| finish(&mut command, PATIENCE).expect("it ends"));
        while !finish(&mut bonsai.command(&["stats", &name]), PATIENCE)
            .expect("it ends")
            .stdout
            .contains("sendto")
        {
            assert!(began.elapsed() < PATIENCE, "it never sends");
            std::thread::sleep(Duration::from_millis(10));
        }
        set(&["send=unlimited", "send/stream=500kB/s"]);
        std::thread::sleep(Duration::from_millis(300));
        set(&["send/stream=2MB/s"]);
        service.join().expect("no panic")
    });
    assert!(finished.status.success(), "{finished:?}");
    let elapsed = finished.elapsed.as_secs_f64();
    // 600 kB of each, the last 450 kB or so at 2 MB/s, and at least 0.3 s before.
    assert!(elapsed > 0.3 + 0.2, "{elapsed}");
    if elapsed > 1.2 + 1.0 {
        eprintln!("NOTE: the change of the rate took {elapsed} s to reach all");
    }
}

/// Calls of each thread on a descriptor of its own write to no memory that other threads' calls write, but for the few that take a lease:
/// on many cores, such a line costs each call a microsecond.
#[test]
fn calls_on_streams_of_their_own_write_nothing_in_common() {
    let test = "calls_on_streams_of_their_own_write_nothing_in_common";
    let Some(gcc) = compiler(test) else { return };
    let made = gcc.make(
        "shared_writes",
        &["narrowed/shared_writes.c"],
        &["-pthread"],
    );
    let program = made.unwrap_or_else(|error| panic!("{error}"));
    for limits in [
        &["--limit", "read/stream=100GB/s"][..],
        &["--limit", "read=100GB/s", "--limit", "read/stream=100GB/s"],
        &["--limit", "read@/dev/*=100GB/s"],
    ] {
        let (_, mut command) = bonsai().run::<&str>(limits, &program, &[]);
        let seen = finish(&mut command, PATIENCE).expect("an end");
        assert!(seen.status.success(), "{limits:?}: {seen:?}");
        let number = |name: &str| -> u64 {
            let line = seen.stdout.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|number| number.trim().parse().ok());
            number.unwrap_or_else(|| panic!("{limits:?}: {name} in {seen:?}"))
        };
        // Each call is counted, so that without any write nothing was looked at.
        assert!(number("writes") >= 3000, "{limits:?}: {seen:?}");
        assert!(number("shared") <= 3000 / 10, "{limits:?}: {seen:?}");
    }
}
