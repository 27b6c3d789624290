//! Processes of one thread that run already: libc makes their calls by instructions of their own.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::attach::{counters, forms_of};
use crate::busy::runs;
use crate::fixture::{bonsai, scratch};

/// Moves a file's bytes in a process that was put under limits before.
fn moves_under_limits(program: &Path, how: &str, entry: &str) {
    const LENGTH: u64 = 200_000;
    const RATE: u64 = 1_000_000;
    const BURST: u64 = 4096;
    let name = format!(
        "{}-{how}",
        program.file_name().expect("a name").to_string_lossy()
    );
    let file = scratch().join(format!("{name}.data"));
    std::fs::write(&file, vec![1; 200_000]).expect("a file");
    let mut child = Command::new(program)
        .arg(how)
        .arg(&file)
        .args([&LENGTH.to_string(), "waits"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it can be started");
    let mut said = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    let bonsai = bonsai();
    let class = if how.contains("read") {
        "read"
    } else if how == "send" {
        "send"
    } else {
        "write"
    };
    let limit = format!("{class}={RATE}B/s:burst={BURST}B");
    let pid = child.id().to_string();
    runs(&bonsai, &["attach", "-k", "-n", &name, "-l", &limit, &pid]);
    drop(child.stdin.take());
    for _ in 0..2 {
        line.clear();
        said.read_line(&mut line).expect("a line");
    }
    let ms = line
        .split_whitespace()
        .rev()
        .nth(1)
        .and_then(|ms| ms.parse::<f64>().ok());
    let moved = counters(&bonsai, &name).of(entry).1;
    child.kill().expect("ours");
    child.wait().expect("ours");
    let (ms, least) = (
        ms.expect("a time"),
        1e3 * (LENGTH - BURST - 1) as f64 / RATE as f64,
    );
    assert!(
        ms >= 0.98 * least,
        "{name}: {line}; {least} ms is the least"
    );
    assert!(
        (LENGTH..LENGTH + 4096).contains(&moved),
        "{name}: {moved} of {LENGTH} bytes"
    );
}

#[test]
fn calls_of_processes_with_one_thread_are_limited_after_attaching() {
    // With a build-id, as programs have that are not made for tests: `bonsai` looks through their files beforehand.
    for (form, program) in forms_of("libcs/moves.c", "one-thread", &["-Wl,--build-id"]) {
        for (how, entry) in [
            ("read", "read.file"),
            ("pread", "pread64"),
            ("write", "write.file"),
            ("pwrite", "pwrite64"),
            (
                "fread",
                if form.contains("musl") {
                    "readv.file"
                } else {
                    "read.file"
                },
            ),
            ("send", "sendto"),
        ] {
            moves_under_limits(&program, how, entry);
        }
    }
}
