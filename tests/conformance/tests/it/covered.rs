//! The table of `bonsai doctor`, cell by cell: a program of each kind moves a megabyte
//! by each kind of call, and what becomes of it is what the table says.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use conformance::{finish, skip};
use serde_json::Value;

use crate::fixture::{bonsai, compiler, scratch};
use crate::probe::{PATIENCE, Probe, Seen};

const TEST: &str = "every_cell_of_the_table_is_true";

const BYTES: u64 = 1 << 20;
const RATE: u64 = 4_000_000;
const BURST: u64 = 40_000;
const LIMIT: &str = "write=4MB/s:burst=40kB";

/// How many are tried at a time: most of them wait for their limit.
const AT_A_TIME: usize = 6;

/// One cell, in the words of `bonsai doctor --json`.
struct Cell {
    mode: String,
    program: String,
    calls: String,
    answer: String,
}

fn cells() -> Vec<Cell> {
    let doctor = finish(&mut bonsai().command(&["doctor", "--json"]), PATIENCE).expect("doctor");
    let document: Value = serde_json::from_str(&doctor.stdout).expect("JSON");
    let word = |cell: &Value, name: &str| cell[name].as_str().expect(name).to_owned();
    let table = document["machine"]["coverage"].as_array().expect("a table");
    let cell = |cell| Cell {
        mode: word(cell, "mode"),
        program: word(cell, "program"),
        calls: word(cell, "calls"),
        answer: word(cell, "answer"),
    };
    table.iter().map(cell).collect()
}

/// The program of a kind; what is missing if it cannot be made here.
fn build(kind: &str) -> Result<PathBuf, String> {
    let gcc = compiler(TEST).ok_or("no compiler")?;
    let name = format!("covered-{kind}");
    let make = |by: &str, options: &[&str]| {
        let by = gcc.by(by).ok_or_else(|| format!("no {by}"))?;
        // musl's compiler does not look for the kernel's headers.
        let headers = ["/usr/include", "/usr/include/x86_64-linux-gnu"];
        let headers = headers.iter().flat_map(|folder| ["-idirafter", folder]);
        let all: Vec<&str> = ["-Wl,--build-id=sha1"].into_iter().chain(headers).collect();
        by.make(
            &name,
            &["covered/covered.c"],
            &[all.as_slice(), options].concat(),
        )
        .map_err(|error| error.to_string())
    };
    match kind {
        "glibc" => make("gcc", &["-DDLOPEN"]),
        "musl" => make("musl-gcc", &["-DDLOPEN"]),
        "static_glibc" => make("gcc", &["-static"]),
        "static_musl" => make("musl-gcc", &["-static"]),
        "static_go" => go(&name, "0"),
        "go_with_loader" => go(&name, "1"),
        "set_user_id" => set_user_id(&make("gcc", &["-DDLOPEN"])?),
        "foreign" => foreign(&name),
        _ => Err(format!("{kind}: no such program")),
    }
}

fn built(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let said = || String::from_utf8_lossy(&output.stderr).into_owned();
    output.status.success().then_some(()).ok_or_else(said)
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn go(name: &str, cgo: &str) -> Result<PathBuf, String> {
    let program = scratch().join(name);
    let mut build = Command::new("go");
    build
        .args(["build", "-o"])
        .arg(&program)
        .envs([
            ("CGO_ENABLED", cgo),
            ("GOFLAGS", ""),
            ("GO111MODULE", "off"),
        ])
        .env("GOCACHE", scratch().join("go-cache"))
        .current_dir(source("go/covered"));
    built(&mut build).map(|()| program)
}

fn set_user_id(program: &Path) -> Result<PathBuf, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root can make a program of another user".to_owned());
    }
    // The folder of the build may not be open to others, or mounted nosuid.
    let folder = tempfile::tempdir()
        .map_err(|error| error.to_string())?
        .keep();
    let copy = folder.join("setuid");
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours");
    };
    mode(&folder, 0o755);
    std::fs::copy(program, &copy).expect("a copy");
    // nobody
    chown(&copy, Some(65534), None).expect("root may");
    mode(&copy, 0o4755);
    Ok(copy)
}

fn foreign(name: &str) -> Result<PathBuf, String> {
    let (object, program) = (scratch().join(format!("{name}.o")), scratch().join(name));
    let mut assembler = Command::new("as");
    built(
        assembler
            .args(["--32", "-o"])
            .args([&object, &source("c/covered/foreign.s")]),
    )?;
    let mut linker = Command::new("ld");
    built(
        linker
            .args(["-m", "elf_i386", "-o"])
            .args([&program, &object]),
    )?;
    match Command::new(&program).args(["libc", "/dev/null"]).status() {
        Ok(_) => Ok(program),
        Err(error) => Err(format!("no 32-bit programs here: {error}")),
    }
}

/// The library with instructions of its own.
fn library() -> PathBuf {
    let options = ["-shared", "-fPIC"];
    let made = compiler(TEST)
        .map(|gcc| gcc.make("libinside-covered.so", &["transparency/inside.c"], &options));
    made.expect("found before")
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Runs the program of a cell in its mode. How long it took, and what was seen.
fn tried(cell: &Cell, program: &Path, library: &Path) -> (Duration, Seen, u64) {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // Another user writes it, too.
    let folder = tempfile::tempdir().expect("a folder");
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path(), open).expect("ours");
    let file = folder.path().join(format!("moved-{number}"));
    let words = [
        cell.calls.clone(),
        file.display().to_string(),
        library.display().to_string(),
    ];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let probe = Probe::of(program.to_owned(), &words);
    let began = Instant::now();
    let seen = match cell.mode.as_str() {
        "run" => probe.through(("run", &[]), &[LIMIT]),
        mode => panic!("{mode}: no such mode"),
    };
    let moved = std::fs::metadata(&file).map_or(0, |file| file.len());
    (began.elapsed(), seen, moved)
}

/// Whether a cell is true; why not.
fn judge(cell: &Cell, took: Duration, seen: &Seen, moved: u64) -> Result<(), String> {
    let counted: u64 = seen.counters.of("write.file").1
        + seen.counters.of("writev.file").1
        + seen.counters.of("pwrite64").1;
    let least = Duration::from_secs_f64((BYTES - BURST) as f64 / RATE as f64 * 0.98);
    let error = &seen.finished.stderr;
    let is_named = error.contains("not covered") || error.contains("nothing of it is shaped");
    let problem = match cell.answer.as_str() {
        _ if moved != BYTES => format!("{moved} bytes moved"),
        _ if !seen.finished.status.success() => "it failed".to_owned(),
        "limited" if counted < BYTES => format!("{counted} bytes counted"),
        "limited" if took < least => format!("in {took:?}, {least:?} is the least"),
        "limited" if is_named => "named as not covered".to_owned(),
        "named" if !is_named => "not named".to_owned(),
        "audited" | "measured" if counted >= BYTES => "limited after all".to_owned(),
        "limited" | "named" | "audited" | "measured" => return Ok(()),
        other => format!("{other}: no such answer"),
    };
    Err(format!(
        "{} {} {}, said to be {}: {problem}: {:?}",
        cell.mode, cell.program, cell.calls, cell.answer, seen.finished
    ))
}

#[test]
fn every_cell_of_the_table_is_true() {
    if compiler(TEST).is_none() {
        return;
    }
    let library = library();
    let mut all = cells();
    all.retain(|cell| cell.answer != "nothing");
    let mut programs = std::collections::BTreeMap::new();
    for cell in &all {
        let kind = cell.program.as_str();
        programs.entry(kind).or_insert_with(|| {
            build(kind)
                .inspect_err(|why| skip(TEST, &format!("{kind}: {why}")))
                .ok()
        });
    }
    let next = AtomicUsize::new(0);
    let complaints = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some(cell) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Some(Some(program)) = programs.get(cell.program.as_str()) else {
                        continue;
                    };
                    let (took, seen, moved) = tried(cell, program, &library);
                    if let Err(problem) = judge(cell, took, &seen, moved) {
                        complaints.lock().expect("no panic").push(problem);
                    }
                }
            });
        }
    });
    crate::fixture::assert_none(&complaints.into_inner().expect("no panic"));
}
