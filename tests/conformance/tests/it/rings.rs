//! Rings (io_uring) and queues (libaio): what they move is counted exactly and never
//! faster than its limit, and programs see what they see without Bonsai.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use conformance::{Counters, finish, skip};

use crate::fixture::{bonsai, installed, scratch};
use crate::probe::{DOORS, PATIENCE, Probe, Seen};

/// Far above what any case needs.
const LOOSE: &str = "all=200MB/s:burst=20MB";

/// A case of `rings.c`; `None`, with a skip, where there are no rings.
fn case(test: &str, name: &str) -> Option<Probe> {
    let probe = Probe::new(test, "rings", &[name])?;
    let bare = probe.bare();
    if let Some(line) = bare.lines.iter().find(|line| line.starts_with("no ring")) {
        skip(test, line);
        return None;
    }
    Some(probe)
}

/// The same lines through both doors, and these counts.
fn same_and_counted(test: &str, name: &str, counts: &[(&str, (u64, u64))]) {
    let Some(probe) = case(test, name) else {
        return;
    };
    let limits: &[&str] = &[LOOSE];
    for seen in probe.same(limits) {
        for (entry, count) in counts {
            let counted = seen.counters.of(entry);
            // Patched, the loader's own reads are counted as well.
            if *entry == "read.file" && seen.door == DOORS[0].0 {
                assert!(counted.1 >= count.1, "{}: {entry}: {counted:?}", seen.door);
                continue;
            }
            assert_eq!(counted, *count, "{}: {entry}: {:?}", seen.door, seen.lines);
        }
        let unshaped = &seen.counters.unshaped;
        assert!(unshaped.values().all(|n| *n == 0), "{unshaped:?}");
    }
}

#[test]
fn short_reads_and_errors_are_corrected() {
    let test = "short_reads_and_errors_are_corrected";
    let counts = [("read.file", (40, 300_000)), ("read.other", (10, 0))];
    same_and_counted(test, "shorter", &counts);
}

#[test]
fn what_is_cancelled_is_not_charged() {
    let test = "what_is_cancelled_is_not_charged";
    let counts = [("write.file", (4, 400_000)), ("write.other", (1, 0))];
    same_and_counted(test, "linked", &counts);
    same_and_counted(test, "cancel", &[("recvfrom", (1, 300))]);
}

#[test]
fn what_comes_in_is_charged_when_it_has_come() {
    let test = "what_comes_in_is_charged_when_it_has_come";
    same_and_counted(test, "many", &[("recvfrom", (50, 100_000))]);
    same_and_counted(test, "pipes", &[("read.other", (10, 300))]);
    // 1 MB asked for ten times, 30 bytes got: at 10 kB/s that would take minutes.
    let Some(probe) = case(test, "pipes") else {
        return;
    };
    let slow = probe.through(DOORS[0], &["read=10kB/s:burst=10kB"]);
    assert!(slow.finished.status.success(), "{slow:?}");
    assert_eq!(slow.counters.of("read.other"), (10, 300));
}

/// What is not known again by its key stays charged as asked for.
#[test]
fn results_that_cannot_be_told_apart_give_nothing_back() {
    let test = "results_that_cannot_be_told_apart_give_nothing_back";
    let counts = [("write.file", (20, 200_000)), ("write.other", (20, 2_000))];
    same_and_counted(test, "same-key", &counts);
}

/// Nothing of a ring is kept when the program closes it: what it still does ends.
#[test]
fn a_ring_ends_when_its_program_closes_it() {
    let test = "a_ring_ends_when_its_program_closes_it";
    same_and_counted(test, "closes", &[("write.file", (3, 2_010))]);
}

#[test]
fn files_and_rings_are_known_by_their_places() {
    let test = "files_and_rings_are_known_by_their_places";
    let counts = [("write.file", (3, 3_000)), ("write.socket", (1, 1_000))];
    same_and_counted(test, "places", &counts);
}

#[test]
fn queues_are_counted_like_calls() {
    let test = "queues_are_counted_like_calls";
    let counts = [("pread64", (20, 40_000)), ("pwrite64", (16, 16_000))];
    same_and_counted(test, "queues", &counts);
}

/// A limited run: the same lines, these bytes, and never faster.
fn limited(test: &str, name: &str, limit: &str, entry: &str, bytes: u64, rate: u64, burst: u64) {
    let Some(probe) = case(test, name) else {
        return;
    };
    let bare = probe.bare();
    for door in DOORS {
        let seen = probe.through(door, &[limit]);
        assert_eq!(seen.lines, bare.lines, "{:?}", seen.finished);
        assert_eq!(seen.counters.of(entry).1, bytes, "{entry}");
        seen.assert_shaped(bytes, rate, burst);
    }
}

#[test]
fn a_batch_is_never_faster_than_its_limit() {
    let test = "a_batch_is_never_faster_than_its_limit";
    let limit = "write=400kB/s:burst=20kB";
    limited(test, "batch", limit, "write.file", 819_200, 400_000, 20_000);
}

/// Limits on some files reach what a ring does to them, and no other.
#[test]
fn a_limit_on_some_files_is_for_rings_too() {
    let test = "a_limit_on_some_files_is_for_rings_too";
    let (bytes, rate, burst) = (819_200, 400_000, 20_000);
    for limit in [
        "write@/tmp/rings-*=400kB/s:burst=20kB",
        "write/stream=400kB/s:burst=20kB",
    ] {
        limited(test, "batch", limit, "write.file", bytes, rate, burst);
    }
    let Some(probe) = case(test, "batch") else {
        return;
    };
    let seen = probe.through(DOORS[0], &["write@/tmp/else-*=1B/s:burst=1B"]);
    assert_eq!(seen.lines, probe.bare().lines, "{:?}", seen.finished);
}

#[test]
fn a_ring_that_would_be_polled_is_never_faster_than_its_limit() {
    let test = "a_ring_that_would_be_polled_is_never_faster_than_its_limit";
    let (limit, bytes) = ("write=400kB/s:burst=20kB", 409_600);
    limited(
        test,
        "polled-batch",
        limit,
        "write.file",
        bytes,
        400_000,
        20_000,
    );
}

#[test]
fn a_receive_of_many_messages_is_never_faster_than_its_limit() {
    let test = "a_receive_of_many_messages_is_never_faster_than_its_limit";
    // The last message is paid when the ring is closed.
    let limit = "recv=100kB/s:burst=4kB";
    limited(test, "many", limit, "recvfrom", 100_000, 100_000, 6_000);
}

#[test]
fn a_ring_that_a_child_inherits_is_under_the_same_limit() {
    let test = "a_ring_that_a_child_inherits_is_under_the_same_limit";
    let limit = "write=200kB/s:burst=20kB";
    limited(test, "forks", limit, "write.file", 200_000, 200_000, 20_000);
}

/// A limit in calls is for entries, too.
#[test]
fn entries_are_calls_for_a_limit_in_calls() {
    let test = "entries_are_calls_for_a_limit_in_calls";
    let Some(probe) = case(test, "batch") else {
        return;
    };
    let seen = probe.through(DOORS[0], &["write=100/s:burst=10calls"]);
    assert_eq!(seen.counters.of("write.file").0, 200);
    seen.assert_shaped(200, 100, 10);
}

/// A ring that was made, and entered, before there was a limit.
#[test]
fn a_limit_reaches_a_ring_that_was_there_before() {
    let test = "a_limit_reaches_a_ring_that_was_there_before";
    let Some(probe) = case(test, "none") else {
        return;
    };
    let bonsai = bonsai();
    let (name, mut command) = bonsai.run(&["--json"], &probe.program, &["before"]);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.stderr(Stdio::piped()).spawn().expect("it starts");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    assert_eq!(line, "first 1000\n");
    let ask = |args: &[&str]| {
        let done = finish(&mut bonsai.command(args), PATIENCE);
        let done = done.unwrap_or_else(|error| panic!("{error}"));
        assert!(done.status.success(), "{args:?}: {}", done.stderr);
        done.stdout
    };
    let status = ask(&["status", &name, "--json"]).replace(' ', "");
    assert!(status.contains("\"rings\":true"), "{status}");
    assert!(status.contains("\"polled\":false"), "{status}");
    ask(&["set", &name, "write=100kB/s:burst=10kB"]);
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(b"go\n").expect("it reads");
    drop(input);
    let mut rest = Vec::new();
    for line in output.lines() {
        rest.push(line.expect("text"));
    }
    let done = child.wait_with_output().expect("it ends");
    assert!(done.status.success(), "{done:?}");
    assert_eq!(&rest[..2], ["entered 50", "sum 204800"]);
    let took: f64 = rest[2]
        .rsplit(' ')
        .next()
        .expect("a number")
        .parse()
        .expect("ms");
    let least = f64::from(204_800 - 10_000) / 100_000.0;
    assert!(
        took / 1000.0 >= least * 0.98,
        "{took} ms, {least} s is the least"
    );
}

/// What fio says of its run: bytes moved, and how long that took, s.
fn fio(test: &str, engine: &[&str], direction: &str, limit: &str) -> Option<(u64, f64, Counters)> {
    let program = installed(test, "/usr/bin/fio")?;
    let folder = scratch().join(test);
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join(format!("{direction}.dat"));
    let report = folder.join(format!("{direction}-{}.json", engine.join("").len()));
    let mut args: Vec<String> = [
        "--name=j",
        "--size=1M",
        "--bs=4k",
        "--output-format=json",
        "--invalidate=0",
    ]
    .map(str::to_owned)
    .into();
    args.push(format!("--filename={}", file.display()));
    args.push(format!("--output={}", report.display()));
    args.push(format!("--rw={direction}"));
    args.extend(engine.iter().map(|&arg| arg.to_owned()));
    // Laid out beforehand: that is no part of the run.
    std::fs::write(&file, vec![7; 1 << 20]).expect("a file");
    let counted = bonsai().counted(&["--limit", limit], &program, &args, &folder, PATIENCE);
    let (finished, counters) = counted.unwrap_or_else(|error| panic!("{error}"));
    assert!(finished.status.success(), "{engine:?}: {}", finished.stderr);
    let text = std::fs::read_to_string(&report).expect("a report");
    let side = match direction {
        "randread" => "\"read\" : {",
        _ => "\"write\" : {",
    };
    let (_, text) = text.split_once(side).expect("a side");
    let number = |name: &str| -> u64 {
        let (_, rest) = text.split_once(&format!("\"{name}\" : ")).expect(name);
        let end = rest.find(|c: char| !c.is_ascii_digit()).expect("an end");
        rest[..end].parse().expect("a number")
    };
    #[expect(clippy::cast_precision_loss, reason = "some seconds in ms")]
    let seconds = number("runtime") as f64 / 1000.0;
    Some((number("io_bytes"), seconds, counters))
}

/// An engine of fio: exactly its bytes, and never faster.
fn fio_is_limited(test: &str, engine: &[&str], direction: &str, entry: &str) {
    let (rate, burst) = (1_000_000_u32, 20_000_u32);
    let limit = format!("disk={rate}B/s:burst={burst}B");
    let Some((bytes, seconds, counters)) = fio(test, engine, direction, &limit) else {
        return;
    };
    assert_eq!(bytes, 1 << 20, "{engine:?}");
    let counted = counters.of(entry).1;
    // By `read` and `write` fio reads and writes files of its own as well.
    let own = if entry.starts_with('p') { 0 } else { 100_000 };
    assert!(
        (bytes..=bytes + own).contains(&counted),
        "{engine:?}: {counted} counted of {bytes}"
    );
    let least = f64::from((1 << 20) - burst) / f64::from(rate);
    assert!(
        seconds >= least * 0.98,
        "{engine:?}: {seconds} s, {least} s is the least"
    );
}

#[test]
fn fio_with_io_uring_is_limited() {
    let test = "fio_with_io_uring_is_limited";
    if case(test, "none").is_none() {
        return;
    }
    let engine = "--ioengine=io_uring";
    let forms: [&[&str]; 5] = [
        &[engine, "--iodepth=1"],
        &[engine, "--iodepth=32", "--iodepth_batch=16"],
        &[engine, "--iodepth=32", "--fixedbufs=1", "--registerfiles=1"],
        &[engine, "--iodepth=32", "--sqthread_poll=1"],
        &[
            engine,
            "--iodepth=8",
            "--sqthread_poll=1",
            "--registerfiles=1",
        ],
    ];
    for form in forms {
        fio_is_limited(test, form, "randread", "read.file");
        fio_is_limited(test, form, "write", "write.file");
    }
}

#[test]
fn fio_with_libaio_is_limited() {
    let test = "fio_with_libaio_is_limited";
    for depth in ["--iodepth=1", "--iodepth=32"] {
        let form = ["--ioengine=libaio", depth];
        fio_is_limited(test, &form, "randread", "pread64");
        fio_is_limited(test, &form, "write", "pwrite64");
    }
}

#[test]
fn fio_with_posix_aio_is_limited() {
    let test = "fio_with_posix_aio_is_limited";
    let form = ["--ioengine=posixaio", "--iodepth=8"];
    fio_is_limited(test, &form, "randread", "pread64");
    fio_is_limited(test, &form, "write", "pwrite64");
}

/// node reads files through a ring where it is told to.
#[test]
fn node_with_rings_is_the_same() {
    let test = "node_with_rings_is_the_same";
    let Some(node) = installed(test, "/usr/bin/node") else {
        return;
    };
    let script = "const f = require('fs'); const p = process.argv[1]; \
                  f.promises.readFile(p).then(d => console.log(d.length));";
    let file = scratch().join("node-rings.dat");
    std::fs::create_dir_all(scratch()).expect("a folder");
    std::fs::write(&file, vec![1; 300_000]).expect("a file");
    let path = file.display().to_string();
    let probe = Probe::of(node, &["-e", script, &path]).with("UV_USE_IO_URING", "1");
    let seen: Vec<Seen> = probe.same(&[LOOSE]);
    assert_eq!(seen[0].lines, ["300000"]);
}

/// Reads through mapped memory are nobody's calls: they are said at the end.
#[test]
fn what_is_read_through_mapped_memory_is_said() {
    let test = "what_is_read_through_mapped_memory_is_said";
    let Some(python) = installed(test, crate::fixture::PYTHON) else {
        return;
    };
    let script = "import mmap, os, resource, sys\n\
        f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)\n\
        os.write(f, os.urandom(2 << 20)); os.fsync(f)\n\
        os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)\n\
        m = mmap.mmap(f, 0, prot=mmap.PROT_READ)\n\
        m.madvise(mmap.MADV_RANDOM)\n\
        before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt\n\
        sum(m[i] for i in range(0, len(m), 4096))\n\
        print(resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before)";
    std::fs::create_dir_all(scratch()).expect("a folder");
    let folder = tempfile::tempdir_in(scratch()).expect("a folder");
    let file = folder.path().join("mapped.dat");
    let path = file.display().to_string();
    let (_, mut command) = bonsai().run(&["--limit", LOOSE], &python, &["-c", script, &path]);
    // Hundreds of reads, one after another, of a disk that others use as well.
    let done = finish(&mut command, 4 * PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    let faults = done.stdout.trim().parse();
    let faults: u64 = faults.unwrap_or_else(|error| panic!("{error}: {done:?}"));
    // A megabyte is worth a line.
    if faults < 300 {
        skip(
            test,
            "the file system keeps files in memory: no fault waits for storage",
        );
        return;
    }
    assert!(
        done.stderr
            .contains("through mapped memory, unshaped: at least"),
        "{faults} faults: {done:?}"
    );
}

/// A program that speaks to its rings with instructions of its own, as fio does.
#[test]
fn a_programs_own_calls_into_rings_are_found() {
    let test = "a_programs_own_calls_into_rings_are_found";
    if installed(test, "/usr/bin/fio").is_none() || case(test, "none").is_none() {
        return;
    }
    let engine = ["--ioengine=io_uring", "--iodepth=4"];
    if let Some((_, _, counters)) = fio(test, &engine, "write", LOOSE) {
        let (entered, _) = counters.of("io_uring_enter");
        assert!(
            entered > 0,
            "its own instructions are entered: {counters:?}"
        );
    }
}
