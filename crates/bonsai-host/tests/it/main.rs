//! Everything on the real machine: its programs, its C library, its processes.

mod elf;
mod libs;
mod lookup;
mod privilege;
mod proc;
mod runtime;
mod sys;
mod tenants;
mod threads;

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::io::Errno;

/// Says on standard error, and in the file that `BONSAI_SKIP_LOG` names, that a test was not made.
fn skip(test: &str, reason: &str) {
    let line = format!("SKIP: {test}: {reason}\n");
    eprint!("{line}");
    if let Some(log) = std::env::var_os("BONSAI_SKIP_LOG") {
        let file = OpenOptions::new().append(true).create(true).open(log);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.expect("the file that BONSAI_SKIP_LOG names can be appended to");
    }
}

/// Runs a command to its end; one that was written a moment ago can be busy, because another test
/// forks while it is open.
fn run(command: &mut Command) -> std::io::Result<Output> {
    for _ in 0..100 {
        match command.output() {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::TXTBSY) => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            done => return done,
        }
    }
    command.output()
}

/// Compiles a C program, or says what is missing.
fn compile(directory: &Path, source: &str, arguments: &[&str]) -> Result<PathBuf, String> {
    let name = arguments.concat().replace(['/', '=', ','], "_");
    let code = directory.join(format!("program{name}.c"));
    let program = directory.join(format!("program{name}"));
    fs::write(&code, source).expect("the directory is writable");
    let mut command = Command::new("cc");
    command.arg(&code).arg("-o").arg(&program).args(arguments);
    match command.output() {
        Err(error) => Err(format!("cc: {error}")),
        Ok(done) if !done.status.success() => {
            let text = String::from_utf8_lossy(&done.stderr).into_owned();
            Err(format!("cc {}: {text}", arguments.join(" ")))
        }
        Ok(_) => Ok(program),
    }
}

/// Writes an executable file.
fn write_program(path: &Path, contents: impl AsRef<[u8]>) {
    fs::write(path, contents).expect("the directory is writable");
    set_mode(path, 0o755);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the file is ours");
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The first of these commands in `PATH`.
fn find_program(name: &str) -> Option<PathBuf> {
    bonsai_host::lookup_program(OsStr::new(name), std::env::var_os("PATH").as_deref()).ok()
}
