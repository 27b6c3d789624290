use std::io;
use std::path::PathBuf;

use crate::netlink::Refused;
use crate::tc::Handle;

/// Why something about an interface could not be read or done.
///
/// The text does not repeat the source: whoever prints it prints the chain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no socket to the kernel, or it broke.
    #[error("the kernel's routing socket (netlink) failed")]
    Socket(#[source] io::Error),
    /// A network namespace could not be entered.
    #[error("the network namespace could not be entered (root, or CAP_SYS_ADMIN, may)")]
    Enter(#[source] io::Error),
    /// The kernel refused a request.
    #[error("the kernel refused")]
    Refused(#[source] Refused),
    /// What is asked for changes faster than it can be read.
    #[error("the list of interfaces or classes changed each time it was read; try again")]
    Restless,
    /// The kernel's answer cannot be understood.
    #[error("the kernel's answer about {what} does not have the expected form")]
    Unexpected {
        /// What was asked for.
        what: String,
    },
    /// There is no such interface.
    #[error("there is no interface `{name}`{}", suggestion(.similar))]
    NoLink {
        /// The name.
        name: String,
        /// A name that is nearly the same.
        similar: Option<String>,
    },
    /// A program could not be given to the kernel.
    #[error(
        "the kernel did not take the classifier (BPF; root, or CAP_BPF and CAP_NET_ADMIN, may)"
    )]
    Bpf(#[source] io::Error),
    /// A process's sockets may not be used.
    #[error("the sockets of the process cannot be used (root, or its own user, may)")]
    Process(#[source] io::Error),
    /// A process has ended.
    #[error("process {0} has ended")]
    Ended(i32),
    /// What is wanted cannot be.
    #[error("{0}")]
    Wrong(String),
    /// A step was refused; what was done before it was taken back.
    #[error("{step}: nothing was changed")]
    Step {
        /// What was tried, in words.
        step: String,
        /// What the kernel said.
        #[source]
        refused: Refused,
    },
    /// Something went wrong, and what was done before it could not be taken back.
    #[error("{error}, and taking back failed at {undone}; bonsai link clear takes all away")]
    Torn {
        /// What went wrong first.
        error: String,
        /// What is left, in words.
        undone: String,
        /// Why.
        #[source]
        why: Box<Self>,
    },
    /// Somebody else's discipline is where ours would be.
    #[error(
        "{name} has a queueing discipline that somebody else made ({kind} {handle}); \
         --adopt takes its place, and clear brings it back"
    )]
    Foreign {
        /// The interface.
        name: String,
        /// The kind of the discipline.
        kind: String,
        /// Its name.
        handle: Handle,
    },
    /// The kernel agreed, and shows something else.
    #[error("after the change {what} is not as it was asked for")]
    Differs {
        /// What differs, in words.
        what: String,
    },
    /// A file of the record could not be read or written.
    #[error("cannot use `{}`", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The record is damaged.
    #[error("`{}` is damaged: {what}; bonsai link ls shows what is in force", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

fn suggestion(name: &Option<String>) -> String {
    name.as_ref()
        .map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

impl Error {
    /// The number of the kernel's error, if it was one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused(refused) | Self::Step { refused, .. } => Some(refused.errno),
            Self::Socket(error) | Self::Enter(error) | Self::Bpf(error) | Self::Process(error) => {
                error.raw_os_error()
            }
            _ => None,
        }
    }
}
