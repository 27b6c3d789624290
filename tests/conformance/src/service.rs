//! Programs under `bonsai run`, in a runtime directory of their own.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
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
    /// Who runs it, if not we.
    user: Option<u32>,
    /// What runs it in an environment of its own.
    within: Vec<OsString>,
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
        let runtime = private()?;
        Ok(Self {
            binary: folder.join("bonsai"),
            runtime,
            started: AtomicU32::new(0),
            user: None,
            within: Vec::new(),
        })
    }

    /// The same, run by another user: a copy where everybody may look. Only root can.
    ///
    /// # Errors
    /// It cannot be copied, or given away.
    pub fn of_user(&self, uid: u32) -> Result<Self, ServiceError> {
        let runtime = tempfile::tempdir().map_err(ServiceError::Folder)?;
        let all = |path: &Path| {
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(path, mode).map_err(ServiceError::Folder)
        };
        all(runtime.path())?;
        let from = self.binary.parent().unwrap_or(Path::new("."));
        for file in [
            "bonsai",
            "libbonsai_preload.so",
            "libbonsai_engine.so",
            "libbonsai_extension.so",
        ] {
            let (from, to) = (from.join(file), runtime.path().join(file));
            std::fs::copy(&from, &to).map_err(|_| ServiceError::NotBuilt(from))?;
            all(&to)?;
        }
        let own = runtime.path().join("run");
        std::fs::create_dir(&own)
            .and_then(|()| std::os::unix::fs::chown(&own, Some(uid), Some(uid)))
            .and_then(|()| std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o700)))
            .map_err(ServiceError::Folder)?;
        Ok(Self {
            binary: runtime.path().join("bonsai"),
            runtime,
            started: AtomicU32::new(0),
            user: Some(uid),
            within: Vec::new(),
        })
    }

    /// The same, and all that is started beside it, started by a program that makes an
    /// environment first.
    ///
    /// # Errors
    /// A folder cannot be made.
    pub fn within<S: AsRef<OsStr>>(&self, by: &[S]) -> Result<Self, ServiceError> {
        Ok(Self {
            binary: self.binary.clone(),
            runtime: private()?,
            started: AtomicU32::new(0),
            user: None,
            within: by.iter().map(|word| word.as_ref().to_owned()).collect(),
        })
    }

    /// A program as the same user, and in the same environment, but without Bonsai.
    #[must_use]
    pub fn bare(&self, program: &Path) -> Command {
        let mut command = match self.within.split_first() {
            Some((first, more)) => {
                let mut command = Command::new(first);
                command.args(more).arg(program);
                command
            }
            None => Command::new(program),
        };
        if let Some(uid) = self.user {
            command.uid(uid).gid(uid);
        }
        command
    }

    /// The runtime directory.
    #[must_use]
    pub fn services(&self) -> PathBuf {
        match self.user {
            Some(_) => self.runtime.path().join("run"),
            None => self.runtime.path().to_owned(),
        }
    }

    /// `bonsai ARGS` in this runtime directory.
    #[must_use]
    pub fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = self.bare(&self.binary);
        command
            .env("BONSAI_RUNTIME_DIR", self.services())
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
        let counters = Counters::said(&finished.stderr)
            .map_err(|error| format!("no counters ({error}) in {:?}", finished.stderr))?;
        Ok((finished, counters))
    }
}

/// A folder that nobody else may look into.
fn private() -> Result<tempfile::TempDir, ServiceError> {
    let folder = tempfile::tempdir().map_err(ServiceError::Folder)?;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700))
        .map_err(ServiceError::Folder)?;
    Ok(folder)
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
    /// Bytes read and written that the kernel has counted and Bonsai has not; at the end of a run.
    pub unseen: (u64, u64),
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    unseen: Option<Unseen>,
    calls: Vec<Call>,
    unshaped: Vec<Unshaped>,
}

#[derive(Deserialize)]
struct Unseen {
    unseen: Moved,
}

#[derive(Deserialize)]
struct Moved {
    read: u64,
    written: u64,
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
    /// Reads the document that a run with `--json` ends with; whoever left processes behind hears of that
    /// after it.
    ///
    /// # Errors
    /// There is none.
    pub fn said(stderr: &str) -> Result<Self, serde_json::Error> {
        let line = stderr.lines().rfind(|line| line.starts_with('{'));
        Self::parse(line.unwrap_or_default())
    }

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
            unseen: document
                .unseen
                .map_or((0, 0), |of| (of.unseen.read, of.unseen.written)),
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
