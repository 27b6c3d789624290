//! Runs C programs bare and as services of Bonsai, and compares.
//!
//! `c/calls_*.c` have a case for every exported symbol and every entry of the
//! table of calls; `c/harness.h` says what a case is. `c/transparency/*.c` are
//! programs that each look at one thing which an interposer could break. The
//! tests are in `tests/it/`; this library is what they share: the compiler, a
//! service with a runtime directory of its own, and several runs at a time.
//!
//! Nothing here needs a quiet machine. A limited program is checked to be no
//! faster than its limit, by its own clock; that it was much slower is printed,
//! and is no failure.
#![forbid(unsafe_code)]

mod case;
mod compile;
mod pool;
mod port;
mod process;
mod service;

pub use case::{Case, Outcome};
pub use compile::{CompileError, Compiler, GLIBC_LOADER, MUSL_LOADER};
pub use pool::for_each;
pub use port::Port;
pub use process::{Finished, ProcessError, finish};
pub use service::{Bonsai, Counters, ServiceError};

use std::io::Write;

/// Notes that a test cannot run here, and why: on standard error, and in the
/// file that `BONSAI_SKIP_LOG` names.
pub fn skip(test: &str, reason: &str) {
    // A skip is a line: the lines are counted.
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    eprintln!("SKIP: {test}: {reason}");
    let Some(path) = std::env::var_os("BONSAI_SKIP_LOG") else {
        return;
    };
    let written = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .and_then(|mut log| writeln!(log, "{test}: {reason}"));
    if let Err(error) = written {
        eprintln!("{}: cannot be written: {error}", path.display());
    }
}
