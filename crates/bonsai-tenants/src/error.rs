use std::io;
use std::path::PathBuf;

/// Why a limit of an interface could not be read or changed.
///
/// The text does not repeat the source: whoever prints it prints the chain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for makes no sense, or names what is not there.
    #[error("{0}")]
    Wrong(String),
    /// What was named is not there now.
    #[error("{0}")]
    Absent(String),
    /// The kernel side.
    #[error(transparent)]
    Link(#[from] bonsai_link::Error),
    /// The control group's side.
    #[error(transparent)]
    Group(#[from] bonsai_cgroup::Error),
    /// The record cannot be read or written.
    #[error("cannot use `{}`", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The record is not one.
    #[error(
        "`{}` is damaged: {what}; take it away, and bonsai link clear --all takes away what is in \
         force",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Only root may.
    #[error("limits of interfaces are root's (CAP_NET_ADMIN): sudo bonsai link ...")]
    NotRoot,
}

impl Error {
    /// Whether what was named is not there, and may come.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(
            self,
            Self::Absent(_) | Self::Link(bonsai_link::Error::NoLink { .. })
        )
    }

    /// It in one sentence, with its causes.
    #[must_use]
    pub fn sentence(&self) -> String {
        bonsai_host::sentence(self)
    }

    /// Whether it is the caller's to mend: bad input, missing rights, what is not there.
    #[must_use]
    pub fn is_input(&self) -> bool {
        match self {
            Self::Wrong(_) | Self::Absent(_) | Self::Group(_) | Self::NotRoot => true,
            Self::Link(error) => matches!(
                error,
                bonsai_link::Error::Wrong(_)
                    | bonsai_link::Error::NoLink { .. }
                    | bonsai_link::Error::Foreign { .. }
                    | bonsai_link::Error::Enter(_)
            ),
            _ => false,
        }
    }
}
