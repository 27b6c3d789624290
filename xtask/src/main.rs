//! Checks and generators of the repository, run as `cargo xtask COMMAND`.
//!
//! - `tidy` checks what the compiler and clippy cannot know: the layers between
//!   crates, what a pure crate may name, size and form of files, links, and that
//!   every promise of `SPECIFICATION.md` names a test that exists.
//! - `gen` writes the manual page, the completions and the references from the
//!   built program; `gen --check` compares them with what is committed.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;

mod generated;
mod tidy;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  tidy           check layers, sources, links and SPECIFICATION.md; one line per finding
  gen            write man/, completions/ and the generated pages of docs/reference/
  gen --check    compare them with what is committed, write nothing; followed by the path of a
                 program that was built just now, with that instead of building it again";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args.as_slice() {
        ["tidy"] => tidy::run(&root()),
        ["gen"] => generated::run(&root(), generated::Mode::Write, None),
        ["gen", "--check"] => generated::run(&root(), generated::Mode::Check, None),
        ["gen", "--check", program] => {
            let program = Some(Path::new(program));
            generated::run(&root(), generated::Mode::Check, program)
        }
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the repository: the folder above this crate.
///
/// Cargo says at run time where that is. What was compiled in may be another work
/// tree, where several share one build folder.
fn root() -> PathBuf {
    let here =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let here = Path::new(&here);
    here.parent().unwrap_or(here).to_path_buf()
}

/// Runs `command` and returns its standard output; its standard error is passed on.
///
/// # Errors
///
/// When the program cannot be started, fails, or writes something other than UTF-8.
fn output_of(command: &mut std::process::Command) -> anyhow::Result<String> {
    let output = command
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    anyhow::ensure!(
        output.status.success(),
        "{command:?} failed ({}); its own message stands above",
        output.status
    );
    String::from_utf8(output.stdout)
        .with_context(|| format!("{command:?} wrote something that is not UTF-8"))
}
