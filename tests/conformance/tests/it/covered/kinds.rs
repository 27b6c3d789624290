//! The kinds of programs, made here.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fixture::{compiler, scratch};

/// musl's compiler does not look for the kernel's headers, and no other for those of
/// another architecture.
const HEADERS: [&str; 4] = [
    "-idirafter",
    "/usr/include",
    "-idirafter",
    "/usr/include/x86_64-linux-gnu",
];

/// nobody
pub(super) const OTHER: u32 = 65534;

/// Whatever the umask has made of it.
pub(super) fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("ours");
}

/// A folder in which everybody may make files.
pub(super) fn open_to_all(folder: &Path) {
    set_mode(folder, 0o777);
}

/// The program of a kind, in a folder that everybody can look into; what is missing if it
/// cannot be made here.
pub(super) fn build(test: &str, kind: &str, folder: &Path) -> Result<PathBuf, String> {
    let gcc = compiler(test).ok_or("no compiler")?;
    let name = format!("covered-{kind}-{test}");
    let make = |by: &str, options: &[&str]| {
        let by = gcc.by(by).ok_or_else(|| format!("no {by}"))?;
        let first = ["-Wl,--build-id=sha1"];
        let all = [&first[..], &HEADERS, options].concat();
        by.make(&name, &["covered/covered.c"], &all)
            .map_err(|error| error.to_string())
    };
    let made = match kind {
        "glibc" | "set_user_id" => make("gcc", &["-DDLOPEN"]),
        "musl" => make("musl-gcc", &["-DDLOPEN"]),
        "static_glibc" => make("gcc", &["-static"]),
        "static_musl" => make("musl-gcc", &["-static"]),
        "static_go" => go(&name, "0"),
        "go_with_loader" => go(&name, "1"),
        "foreign" => foreign(&name),
        _ => Err(format!("{kind}: no such program")),
    }?;
    let copy = folder.join(&name);
    std::fs::copy(made, &copy).expect("a copy");
    set_mode(&copy, 0o755);
    if kind == "set_user_id" {
        set_user_id(&copy)?;
    }
    Ok(copy)
}

/// Another user's than the one who runs it: whoever that is.
fn set_user_id(program: &Path) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root can make a program of another user".to_owned());
    }
    // A third one: neither root nor nobody.
    chown(program, Some(1), None).expect("root may");
    set_mode(program, 0o4755);
    Ok(())
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

fn foreign(name: &str) -> Result<PathBuf, String> {
    let program = scratch().join(name);
    let mut compiler = Command::new("gcc");
    compiler
        .args(["-m32", "-O1", "-static", "-nostdlib", "-ffreestanding"])
        .args([
            "-fno-pie",
            "-no-pie",
            "-fno-stack-protector",
            "-fno-builtin",
        ])
        .args(HEADERS)
        .arg("-o")
        .args([&program, &source("c/covered/foreign.c")]);
    built(&mut compiler)?;
    match Command::new(&program).status() {
        Ok(_) => Ok(program),
        Err(error) => Err(format!("no 32-bit programs here: {error}")),
    }
}

/// Its library: plain code.
pub(super) fn foreign_library(folder: &Path) -> Result<PathBuf, String> {
    let (object, library) = (folder.join("foreign.o"), folder.join("foreign-library"));
    let mut assembler = Command::new("as");
    let source = source("c/covered/foreign_library.s");
    built(assembler.args(["--32", "-o"]).args([&object, &source]))?;
    let mut linker = Command::new("ld");
    linker.args(["-m", "elf_i386", "--oformat", "binary", "-Ttext", "0"]);
    built(linker.args(["-e", "0", "-o"]).args([&library, &object]))?;
    set_mode(&library, 0o755);
    Ok(library)
}
