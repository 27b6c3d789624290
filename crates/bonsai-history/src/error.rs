//! What can go wrong, each in one sentence.

use std::io;
use std::path::{Path, PathBuf};

use crate::codec::DecodeError;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody else writes there.
    #[error("`{}` is written by {holder}: one history has one writer, give each its own folder", path.display())]
    Locked {
        /// The lock.
        path: PathBuf,
        /// Who holds it, as far as it is known.
        holder: String,
    },
    /// The options make no sense.
    #[error("{0}")]
    Options(String),
    /// A file system call failed.
    #[error("`{}`: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The database was written by a newer version.
    #[error(
        "`{}` has version {found} of its form, this program knows up to {known}: \
         it is left alone, use the newer program or move the file away", path.display()
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its version.
        found: i32,
        /// The newest that is understood.
        known: i32,
    },
    /// The file is a database of something else.
    #[error("`{}` is a database of another program: it is left alone, move it away", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// There is no database (yet).
    #[error("`{}` is not there: nothing has been recorded", path.display())]
    Absent {
        /// The file.
        path: PathBuf,
    },
    /// SQLite says no.
    #[error("`{}`: {source}", path.display())]
    Sqlite {
        /// The database.
        path: PathBuf,
        /// What it says.
        source: rusqlite::Error,
    },
    /// A WAL that a reader keeps from being written back.
    #[error(
        "`{}-wal` has {bytes} B and cannot be written back, because another program has been reading \
         the database for long: end it", path.display()
    )]
    Wal {
        /// The database.
        path: PathBuf,
        /// Bytes of the WAL.
        bytes: u64,
    },
    /// The rows of so many services do not fit into the bytes.
    #[error(
        "`{}` is full at its {bytes} B, with rows of {services} services that cannot be packed yet: \
         give it more bytes (`size` in `[history]`)", path.display()
    )]
    Small {
        /// The database.
        path: PathBuf,
        /// Its most bytes.
        bytes: u64,
        /// Services that have names.
        services: usize,
    },
    /// A value that is too large to keep.
    #[error("{0}")]
    TooLarge(String),
    /// A query that makes no sense.
    #[error("{0}")]
    Query(String),
    /// A block is damaged.
    #[error(transparent)]
    Damaged(#[from] DecodeError),
    /// An export could not be written.
    #[error("the export cannot be written: {0}")]
    Export(#[source] io::Error),
    /// An export could not be encoded.
    #[error("the export cannot be made: {0}")]
    Encode(String),
}

impl Error {
    pub(crate) fn file(path: &Path, source: impl Into<io::Error>) -> Self {
        Self::File {
            path: path.to_owned(),
            source: source.into(),
        }
    }

    pub(crate) fn sqlite(path: &Path) -> impl Fn(rusqlite::Error) -> Self + '_ {
        |source| Self::Sqlite {
            path: path.to_owned(),
            source,
        }
    }

    /// Whether the file is beyond repair: then [`History::check`](crate::History::check) moves it
    /// aside.
    #[must_use]
    pub fn is_corrupt(&self) -> bool {
        use rusqlite::Error as E;
        use rusqlite::ErrorCode::{ConstraintViolation, DatabaseCorrupt, NotADatabase};
        let Self::Sqlite { source, .. } = self else {
            return false;
        };
        match source {
            // All tables are strict and no row of a sound file breaks their rules, so numbers
            // and texts that cannot be are damage that SQLite has not noticed.
            E::FromSqlConversionFailure(..)
            | E::IntegralValueOutOfRange(..)
            | E::InvalidColumnType(..)
            | E::Utf8Error(..)
            | E::QueryReturnedNoRows => true,
            other => matches!(
                other.sqlite_error_code(),
                Some(DatabaseCorrupt | NotADatabase | ConstraintViolation)
            ),
        }
    }
}
