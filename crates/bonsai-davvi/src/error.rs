//! What may go wrong, with what is needed to put it right.

use std::io;
use std::path::{Path, PathBuf};

/// Why something cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for makes no sense, or a file is not what it should be.
    #[error("{0}")]
    Input(String),

    /// A file or folder.
    #[error("{}: {what}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        error: io::Error,
    },

    /// A program that is needed is not there.
    #[error("{program} is not installed (on Debian: apt-get install {package})")]
    Missing {
        /// The program.
        program: &'static str,
        /// The package that it is in.
        package: &'static str,
    },

    /// A program failed.
    #[error("{program} failed: {last_line}")]
    Program {
        /// The program.
        program: &'static str,
        /// The last line that it wrote, or how it ended.
        last_line: String,
    },

    /// A program did not come to an end.
    #[error("{program} made no progress for {seconds} s and was ended")]
    Stuck {
        /// The program.
        program: &'static str,
        /// For how long it was waited, s.
        seconds: u64,
    },

    /// The index or the list of what was watched.
    #[error("{}: {error}", path.display())]
    Database {
        /// Its file.
        path: PathBuf,
        /// What SQLite said.
        error: rusqlite::Error,
    },
}

impl Error {
    /// Whether it is for the user to put right what they wrote or named.
    #[must_use]
    pub const fn is_input(&self) -> bool {
        matches!(self, Self::Input(_) | Self::Missing { .. })
    }

    pub(crate) fn input(text: impl Into<String>) -> Self {
        Self::Input(text.into())
    }

    /// What a failed call on a file becomes.
    pub(crate) fn file(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::File { path, what, error }
    }

    pub(crate) fn database(path: &Path) -> impl Fn(rusqlite::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Database {
            path: path.clone(),
            error,
        }
    }
}
