use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;

/// Where execvp looks if `PATH` is not set (glibc's `_CS_PATH`).
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Why a command name does not lead to a program.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// There is no such file.
    #[error("no program `{name}` was found{}", hint(name))]
    NotFound {
        /// The name that was looked for.
        name: String,
    },
    /// There is a file, but it cannot be executed.
    #[error("`{}` cannot be executed", path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
        /// What the system says about it.
        source: io::Error,
    },
}

impl LookupError {
    /// The exit code that shells give in this case: 127 or 126.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound { .. } => 127,
            Self::NotExecutable { .. } => 126,
        }
    }
}

/// Suggestion for a name that only a shell understands; empty for others.
fn hint(name: &str) -> String {
    const BUILTINS: [&str; 14] = [
        ".", "alias", "cd", "eval", "exec", "exit", "export", "for", "if", "set", "source",
        "ulimit", "umask", "while",
    ];
    let is_variable = |name: &str| {
        name.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
    };
    if BUILTINS.contains(&name) {
        format!(": it is a command of shells, for example sh -c '{name} ...'")
    } else if name
        .split_once('=')
        .is_some_and(|(variable, _)| is_variable(variable))
    {
        format!(": to set a variable, run env {name} PROGRAM")
    } else if name.contains([' ', '|', '>', '<', ';', '&']) {
        ": its arguments are words of their own; for a line of shell commands, run sh -c LINE"
            .to_owned()
    } else {
        String::new()
    }
}

/// Finds the file that execvp(3) would execute for `name`.
///
/// A name with a slash is a path. Any other is looked for in the directories of `path_env`, the
/// value of `PATH`; an empty entry means the working directory, and without `PATH` it is
/// `/bin:/usr/bin`. A file that may not be executed is passed over, but remembered for the error.
///
/// # Errors
///
/// [`LookupError::NotFound`] if there is no such file, [`LookupError::NotExecutable`] if there are
/// only directories, files without permission, or files on a file system mounted `noexec`.
pub fn lookup_program(name: &OsStr, path_env: Option<&OsStr>) -> Result<PathBuf, LookupError> {
    let not_found = || LookupError::NotFound {
        name: name.to_string_lossy().into_owned(),
    };
    if name.is_empty() {
        return Err(not_found());
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match executable(&path) {
            Ok(()) => Ok(path),
            Err(Errno::NOENT) => Err(not_found()),
            Err(errno) => Err(not_executable(path, errno)),
        };
    }
    let mut refused = None;
    let directories = path_env.unwrap_or(OsStr::new(DEFAULT_PATH));
    for directory in directories.as_bytes().split(|byte| *byte == b':') {
        let directory = if directory.is_empty() {
            b"."
        } else {
            directory
        };
        let path = Path::new(OsStr::from_bytes(directory)).join(name);
        match executable(&path) {
            Ok(()) => return Ok(path),
            Err(Errno::ACCESS) => refused = refused.or(Some(path)),
            // Those that execvp goes on after; a name too long for one place is so for all.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::STALE | Errno::NODEV | Errno::TIMEDOUT) => {}
            Err(Errno::NAMETOOLONG) => return Err(not_found()),
            Err(errno) => return Err(not_executable(path, errno)),
        }
    }
    Err(refused.map_or_else(not_found, |path| not_executable(path, Errno::ACCESS)))
}

fn not_executable(path: PathBuf, errno: Errno) -> LookupError {
    LookupError::NotExecutable {
        path,
        source: errno.into(),
    }
}

/// What execve would say about the file before it looks into it.
fn executable(path: &Path) -> Result<(), Errno> {
    let metadata = fs::metadata(path)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::ACCESS))?;
    if !metadata.is_file() {
        return Err(Errno::ACCESS);
    }
    rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS)
}
