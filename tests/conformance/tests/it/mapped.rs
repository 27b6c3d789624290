//! Bytes that go past the limits are said: files that a program maps into memory, and bytes that the kernel has counted and Bonsai has not.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use conformance::{Finished, finish, skip};
use serde_json::Value;

use crate::fixture::{PYTHON, bonsai, compiler, installed, scratch};
use crate::probe::PATIENCE;

const LENGTH: u64 = 3_000_000;
const MAPPED: &str = "not limited: files mapped into memory (mmap): ";
const UNSEEN: &str = "by calls that were not seen, as the kernel counts";
const LIMIT: &[&str] = &["--limit", "read=100GB/s"];

/// The program, with a loader and without.
fn forms(test: &str) -> Vec<(&'static str, PathBuf)> {
    let Some(gcc) = compiler(test) else {
        return Vec::new();
    };
    let mut made = Vec::new();
    let id = "-Wl,--build-id";
    for (form, options) in [
        ("with a loader", [].as_slice()),
        ("static", &["-static"]),
        ("static, with a build-id", &["-static", id]),
    ] {
        let name = format!("maps-{}", form.replace([' ', ','], "-"));
        match gcc.make(&name, &["transparency/maps.c"], options) {
            Ok(program) => made.push((form, program)),
            Err(error) => skip(test, &format!("{form}: {error}")),
        }
    }
    made
}

fn file(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir_in(scratch()).expect("a folder");
    let path = folder.path().join(name);
    let length = usize::try_from(LENGTH).expect("short");
    std::fs::write(&path, vec![b'x'; length]).expect("room");
    (folder, path)
}

fn run(options: &[&str], program: &Path, args: &[&str]) -> Finished {
    let (_, mut command) = bonsai().run(options, program, args);
    finish(&mut command, PATIENCE).unwrap_or_else(|error| panic!("{error}"))
}

/// The document at the end of a run with `--json`.
fn document(finished: &Finished) -> Value {
    let line = finished.stderr.lines().rfind(|line| line.starts_with('{'));
    let line = line.unwrap_or_else(|| panic!("no document: {finished:?}"));
    serde_json::from_str(line).expect("JSON")
}

/// Bytes of mapped files by the end of a run, to be read and to be written.
fn mapped(finished: &Finished) -> [u64; 2] {
    let files = &document(finished)["mapped_files"];
    ["read", "written"].map(|side| files[side].as_u64().expect("a number"))
}

#[test]
fn files_that_are_mapped_under_a_limit_are_counted_and_named() {
    let test = "files_that_are_mapped_under_a_limit_are_counted_and_named";
    let (_folder, file) = file("mapped");
    let file = file.to_str().expect("UTF-8");
    for (form, program) in forms(test) {
        let name = program.file_name().expect("a name").to_string_lossy();
        for (how, limit, wanted) in [
            ("read", "read=100GB/s", [LENGTH, 0]),
            ("shared", "read=100GB/s", [LENGTH, 0]),
            ("number", "read=100GB/s", [LENGTH, 0]),
            ("write", "read=100GB/s", [LENGTH, 0]),
            ("write", "write=100GB/s", [0, LENGTH]),
            ("write", "disk=100GB/s", [LENGTH, LENGTH]),
            ("read", "write=100GB/s", [0, 0]),
            ("read", "send=100GB/s", [0, 0]),
            ("code", "read=100GB/s", [0, 0]),
        ] {
            let seen = run(&["--json", "--limit", limit], &program, &[how, file]);
            assert!(seen.status.success(), "{form}, {how}: {seen:?}");
            assert_eq!(mapped(&seen), wanted, "{form}, {how}, {limit}: {seen:?}");
            let is_said = seen.stderr.contains(MAPPED) && seen.stderr.contains(&*name);
            assert_eq!(
                is_said,
                wanted != [0, 0],
                "{form}, {how}, {limit}: {seen:?}"
            );
        }
        let symbols = [&["--json", "--no-patch"], LIMIT].concat();
        let seen = run(&symbols, &program, &["read", file]);
        // A program without a loader is left alone then.
        let wanted = if form.contains("static") { 0 } else { LENGTH };
        assert_eq!(mapped(&seen), [wanted, 0], "{form}: {seen:?}");
    }
}

#[test]
fn stdio_that_may_map_a_file_reads_it_by_calls() {
    let test = "stdio_that_may_map_a_file_reads_it_by_calls";
    let (_folder, file) = file("mapped");
    let file = file.to_str().expect("UTF-8");
    for (form, program) in forms(test) {
        for more in [&["--json"][..], &["--json", "--no-patch"]] {
            let options = [more, LIMIT].concat();
            let seen = run(&options, &program, &["stdio", file]);
            assert_eq!(seen.stdout, "sum 360000000\n", "{form}: {seen:?}");
            let counters = document(&seen);
            let classes = counters["classes"].as_array().expect("classes");
            let read = classes.iter().find(|class| class["class"] == "read");
            let read = read.and_then(|class| class["bytes"].as_u64()).unwrap_or(0);
            // Without a loader its own instruction maps, which is seen where instructions are.
            let [whole, part] = match (form.contains("static"), more.len()) {
                (false, _) => [LENGTH, 0],
                (true, 1) => [0, LENGTH],
                (true, _) => [0, 0],
            };
            // Through symbols alone, calls that libc makes for stdio are not seen, which is said.
            let is_said = more.len() > 1 && seen.stderr.contains(UNSEEN);
            assert!(read >= whole || is_said, "{form}: {seen:?}");
            assert_eq!(mapped(&seen), [part, 0], "{form}: {seen:?}");
        }
    }
}

#[test]
fn a_limit_on_other_files_says_nothing_of_this_one() {
    let test = "a_limit_on_other_files_says_nothing_of_this_one";
    let (folder, file) = file("mapped");
    let file = file.to_str().expect("UTF-8");
    let here = format!("read@{}/**=100GB/s", folder.path().display());
    for (form, program) in forms(test) {
        let of = |limit: &str| {
            let seen = run(&["--json", "--limit", limit], &program, &["read", file]);
            mapped(&seen)
        };
        assert_eq!(of(&here), [LENGTH, 0], "{form}");
        assert_eq!(of("read@/not/here/**=100GB/s"), [0, 0], "{form}");
        assert_eq!(of("read/stream=100GB/s"), [LENGTH, 0], "{form}");
    }
}

#[test]
fn a_running_service_names_what_it_has_mapped() {
    let test = "a_running_service_names_what_it_has_mapped";
    let Some(python) = installed(test, PYTHON) else {
        return;
    };
    let (_folder, file) = file("mapped");
    let script = "import mmap, sys\n\
                  f = open(sys.argv[1], 'rb')\n\
                  m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n\
                  print(sum(m[::4096]), flush=True)\n\
                  sys.stdin.read()\n";
    let bonsai = bonsai();
    let (name, mut command) = bonsai.run(
        LIMIT,
        &python,
        &["-c", script, file.to_str().expect("UTF-8")],
    );
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.spawn().expect("bonsai");
    let mut line = String::new();
    let mut said = BufReader::new(child.stdout.take().expect("piped"));
    said.read_line(&mut line).expect("a line");
    let ask = |args: &[&str]| finish(&mut bonsai.command(args), PATIENCE).expect("status");
    let shown = ask(&["status", &name]);
    let json = ask(&["status", "--json", &name]);
    drop(child.stdin.take());
    child.wait().expect("it ends");
    assert!(
        shown.stdout.contains(&format!("{MAPPED}3 MB, by python3")),
        "{shown:?}"
    );
    let json: Value = serde_json::from_str(&json.stdout).expect("JSON");
    let service = &json["services"][0];
    assert_eq!(service["mapped_files"]["read"], LENGTH, "{service}");
    assert_eq!(service["unseen"]["unseen"]["read"], 0, "{service}");
}

/// Programs that do their work by mapped files, where they are installed.
#[test]
fn programs_that_map_their_files_are_named() {
    let test = "programs_that_map_their_files_are_named";
    let (_folder, file) = file("mapped");
    let file = file.to_str().expect("UTF-8");
    for (program, args) in [
        ("/usr/bin/look", ["x", file].as_slice()),
        ("/usr/bin/rg", &["-c", "y", file]),
        ("/usr/bin/ag", &["-c", "y", file]),
        ("/usr/bin/git", &["hash-object", file]),
    ] {
        let Some(path) = installed(test, program) else {
            continue;
        };
        let seen = run(LIMIT, &path, args);
        let said = format!("{MAPPED}3 MB, by {}", &program[9..]);
        assert!(seen.stderr.contains(&said), "{seen:?}");
    }
}

/// Nothing is said of programs that merely start, or read by calls: neither of mappings nor of unseen bytes.
#[test]
fn nothing_is_said_of_programs_that_read_by_calls() {
    let test = "nothing_is_said_of_programs_that_read_by_calls";
    let (folder, file) = file("data");
    let file = file.to_str().expect("UTF-8");
    let source = folder.path().join("a.c");
    std::fs::write(
        &source,
        "#include <stdio.h>\nint main(void) { return 0; }\n",
    )
    .expect("room");
    let source = source.to_str().expect("UTF-8");
    let object = folder.path().join("a.o");
    let object = object.to_str().expect("UTF-8");
    let many = format!("for i in $(seq 60); do cat {file} > /dev/null; done");
    for (program, args) in [
        ("/bin/cat", [file].as_slice()),
        ("/bin/ls", &["-l", "/usr/bin"]),
        ("/usr/bin/sort", &[file]),
        ("/bin/sed", &["-n", "s/x/y/p", file]),
        ("/bin/grep", &["-c", "y", file]),
        ("/usr/bin/wc", &[file]),
        ("/usr/bin/md5sum", &[file]),
        ("/bin/date", &["+%A"]),
        ("/bin/sh", &["-c", &many]),
        ("/usr/bin/perl", &["-e", "1"]),
        (PYTHON, &["-c", "import json, ctypes, socket, locale"]),
        ("/usr/bin/gcc", &["-O1", "-c", "-o", object, source]),
        ("/usr/bin/bash", &["-lc", "true"]),
        ("/usr/bin/find", &["/usr/lib/python3", "-name", "x"]),
        ("/usr/bin/tar", &["-cf", "/dev/null", "-C", "/etc", "."]),
    ] {
        let Some(path) = installed(test, program) else {
            continue;
        };
        for locale in ["C", "C.UTF-8"] {
            let options = ["--limit", "read=100GB/s", "--limit", "write=100GB/s"];
            let (_, mut command) = bonsai().run(&options, &path, args);
            command.env("LC_ALL", locale);
            let seen = finish(&mut command, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
            let text = &seen.stderr;
            assert!(!text.contains("not limited"), "{program}: {text}");
        }
    }
}

fn holes(test: &str) -> Option<PathBuf> {
    let made = compiler(test)?.make(&format!("holes-{test}"), &["attach/holes.c"], &["-static"]);
    Some(made.unwrap_or_else(|error| panic!("{error}")))
}

/// Bytes that a static program reads by an instruction that cannot be replaced are shown by the kernel's counters.
#[test]
fn bytes_that_only_the_kernel_has_counted_are_said_at_the_end() {
    let test = "bytes_that_only_the_kernel_has_counted_are_said_at_the_end";
    let Some(program) = holes(test) else {
        return;
    };
    let json = [&["--json"], LIMIT].concat();
    let seen = run(&json, &program, &["1"]);
    assert!(seen.stderr.contains(UNSEEN), "{seen:?}");
    let document = document(&seen);
    let unseen = |side: &str| document["unseen"]["unseen"][side].as_u64();
    assert!(unseen("read") > Some(1 << 20), "{document}");
    assert_eq!(unseen("written"), Some(0), "{document}");
    // The direction is not limited.
    let other = run(&["--limit", "write=1GB/s"], &program, &["1"]);
    assert!(!other.stderr.contains(UNSEEN), "{other:?}");
    // The trap sees them.
    let trapped = [&["--unpatched", "trap"], LIMIT].concat();
    let trapped = run(&trapped, &program, &["1"]);
    assert!(!trapped.stderr.contains(UNSEEN), "{trapped:?}");
}

/// The same while a process runs that was put under limits: what it had read before does not count.
#[test]
fn bytes_that_only_the_kernel_has_counted_are_said_after_attaching() {
    let test = "bytes_that_only_the_kernel_has_counted_are_said_after_attaching";
    let (Some(program), Some(cat)) = (holes(test), installed(test, "/bin/cat")) else {
        return;
    };
    let bonsai = bonsai();
    let status = |name: &str| {
        let seen = finish(&mut bonsai.command(&["status", name]), PATIENCE);
        seen.expect("status").stdout
    };
    let attach = |name: &str, pid: &str| {
        let args = ["attach", "--keep", "--name", name, LIMIT[0], LIMIT[1], pid];
        let seen = finish(&mut bonsai.command(&args), PATIENCE).expect("attach");
        assert!(seen.status.success(), "{seen:?}");
    };
    let mut command = Command::new(&program);
    let mut child = command
        .arg("30")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut line = String::new();
    let mut said = BufReader::new(child.stdout.take().expect("piped"));
    said.read_line(&mut line).expect("a line");
    attach("unseen", &child.id().to_string());
    let began = Instant::now();
    let mut shown = String::new();
    while !shown.contains(UNSEEN) && began.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(100));
        shown = status("unseen");
    }
    child.kill().expect("ours");
    child.wait().expect("ours");
    assert!(shown.contains(UNSEEN), "{shown}");

    // Megabytes before, and some after: all of these are seen.
    let (_folder, file) = file("data");
    let mut command = Command::new("/bin/sh");
    let script = format!(
        "for i in 1 2 3; do cat {0} >/dev/null; done; echo; while read line; do cat {0} >/dev/null; echo; done",
        file.display()
    );
    let piped = command
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut shell = piped.spawn().expect("a shell");
    let mut said = BufReader::new(shell.stdout.take().expect("piped"));
    said.read_line(&mut line).expect("a line");
    attach("seen", &shell.id().to_string());
    let mut input = shell.stdin.take().expect("piped");
    std::io::Write::write_all(&mut input, b"\n\n").expect("it reads");
    for _ in 0..2 {
        said.read_line(&mut line).expect("a line");
    }
    let shown = status("seen");
    drop(input);
    shell.wait().expect("ours");
    assert!(
        shown.contains("read") && !shown.contains(UNSEEN),
        "{}: {shown}",
        cat.display()
    );
}
