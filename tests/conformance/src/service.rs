//! Programs under `bonsai run`, in a runtime directory of their own.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::Deserialize;

use crate::process::{Finished, ProcessError, finish};

/// Why there is no service.
#[derive(Debug)]
pub enum ServiceError {
    /// The program or the library was not built.
    NotBuilt(PathBuf),
    /// A folder cannot be made.
    Folder(std::io::Error),
}

impl std::fmt::Display for ServiceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotBuilt(path) => {
                write!(f, "{} is not there: run `make build` first", path.display())
            }
            Self::Folder(error) => write!(f, "cannot make a runtime directory: {error}"),
        }
    }
}

impl std::error::Error for ServiceError {}

/// The built program, and a runtime directory that goes away with this.
#[derive(Debug)]
pub struct Bonsai {
    binary: PathBuf,
    runtime: tempfile::TempDir,
    started: AtomicU32,
}

impl Bonsai {
    /// The program and the library in the folder that `BONSAI_BIN_DIR` names,
    /// otherwise in `default`.
    ///
    /// # Errors
    /// They are not there.
    pub fn find(default: &Path) -> Result<Self, ServiceError> {
        let folder = std::env::var_os("BONSAI_BIN_DIR").map_or(default.to_owned(), PathBuf::from);
        for file in ["bonsai", "libbonsai_preload.so"] {
            let path = folder.join(file);
            if !path.is_file() {
                return Err(ServiceError::NotBuilt(path));
            }
        }
        let runtime = tempfile::tempdir().map_err(ServiceError::Folder)?;
        std::fs::set_permissions(runtime.path(), std::fs::Permissions::from_mode(0o700))
            .map_err(ServiceError::Folder)?;
        Ok(Self {
            binary: folder.join("bonsai"),
            runtime,
            started: AtomicU32::new(0),
        })
    }

    /// `bonsai ARGS` in this runtime directory.
    #[must_use]
    pub fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .env("BONSAI_RUNTIME_DIR", self.runtime.path())
            .env_remove("LD_PRELOAD")
            .args(args);
        command
    }

    /// `bonsai run --name FRESH OPTIONS -- PROGRAM ARGS`, and the name.
    #[must_use]
    pub fn run<S: AsRef<OsStr>>(
        &self,
        options: &[&str],
        program: &Path,
        args: &[S],
    ) -> (String, Command) {
        let name = format!("s{}", self.started.fetch_add(1, Ordering::Relaxed));
        let mut command = self.command(&["run", "--name", &name]);
        command.args(options).arg("--").arg(program).args(args);
        (name, command)
    }

    /// Runs a program as a service to its end, with its counters. `scratch` is where
    /// it may make files.
    ///
    /// # Errors
    /// What went wrong, in words.
    pub fn counted<S: AsRef<OsStr>>(
        &self,
        options: &[&str],
        program: &Path,
        args: &[S],
        scratch: &Path,
        limit: Duration,
    ) -> Result<(Finished, Counters), String> {
        let mut all = vec!["--json"];
        all.extend(options);
        let (_, mut command) = self.run(&all, program, args);
        let finished = finish(command.env("TMPDIR", scratch), limit)
            .map_err(|e: ProcessError| e.to_string())?;
        let line = finished.stderr.lines().last().unwrap_or_default();
        let counters = Counters::parse(line)
            .map_err(|error| format!("no counters ({error}) in {:?}", finished.stderr))?;
        Ok((finished, counters))
    }
}

/// What `bonsai stats --json` says, as far as it is compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// By entry of the table: calls and bytes.
    pub calls: BTreeMap<String, (u64, u64)>,
    /// Calls that went through without a decision, by reason.
    pub unshaped: BTreeMap<String, u64>,
    /// Waits imposed on all of them, ns.
    pub waited_ns: u64,
}

#[derive(Deserialize)]
struct Document {
    calls: Vec<Call>,
    unshaped: Vec<Unshaped>,
}

#[derive(Deserialize)]
struct Call {
    call: String,
    kind: String,
    calls: u64,
    bytes: Option<u64>,
    waits: Waits,
}

#[derive(Deserialize)]
struct Waits {
    total_ns: u64,
}

#[derive(Deserialize)]
struct Unshaped {
    about: String,
    calls: u64,
}

impl Counters {
    /// Reads the document.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let document: Document = serde_json::from_str(text)?;
        let waited_ns = document.calls.iter().map(|call| call.waits.total_ns).sum();
        let calls = document.calls.into_iter().map(|call| {
            let entry = match call.kind.as_str() {
                "any" => call.call,
                kind => format!("{}.{kind}", call.call),
            };
            (entry, (call.calls, call.bytes.unwrap_or(0)))
        });
        let unshaped = document.unshaped.into_iter().map(|u| (u.about, u.calls));
        Ok(Self {
            calls: calls.collect(),
            unshaped: unshaped.collect(),
            waited_ns,
        })
    }

    /// Calls and bytes of an entry.
    #[must_use]
    pub fn of(&self, entry: &str) -> (u64, u64) {
        self.calls.get(entry).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::Counters;

    #[test]
    fn entries_are_named_as_in_the_cases() {
        let counters = Counters::parse(
            r#"{"calls":[{"call":"read","kind":"file","calls":3,"bytes":9,"waits":{"total_ns":4},"number":0},
                {"call":"open","kind":"any","calls":2,"bytes":null,"waits":{"total_ns":3}}],
                "unshaped":[{"about":"early","calls":1}],"more":1}"#,
        );
        let counters = counters.expect("it is a document");
        assert_eq!(counters.of("read.file"), (3, 9));
        assert_eq!(counters.of("open"), (2, 0));
        assert_eq!(counters.of("read.other"), (0, 0));
        assert_eq!((counters.unshaped["early"], counters.waited_ns), (1, 7));
    }
}
