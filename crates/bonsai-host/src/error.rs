use std::io;
use std::path::{Path, PathBuf};

/// Why something about the machine could not be read.
///
/// The text does not repeat the source: whoever prints it prints the chain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened or read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A path names a directory, a device or a pipe where a file is needed.
    #[error("`{}` is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A file starts like an ELF file, but cannot be one.
    #[error("`{}` is a damaged ELF file: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A file in `/proc` or `/sys`, or the loader's cache, does not look as documented.
    #[error("`{}` does not have the expected form: {what}", path.display())]
    Unexpected {
        /// The file.
        path: PathBuf,
        /// What was expected and not found.
        what: &'static str,
    },
    /// No C library was found for a loader.
    #[error("no libc.so.6 was found for programs with the loader `{}`", loader.display())]
    NoLibc {
        /// The loader.
        loader: PathBuf,
    },
}

impl Error {
    pub(crate) fn read(path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Read {
            path: path.to_owned(),
            source: source.into(),
        }
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            what: what.into(),
        }
    }
}
