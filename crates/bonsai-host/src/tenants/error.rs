use std::io;
use std::path::{Path, PathBuf};

use super::words::plain;

/// How many names a message lists.
const LISTED: usize = 8;

/// Why a tenant cannot be found, or cannot be shaped at an interface. All names in it are fit for a
/// terminal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TenantError {
    /// A file could not be opened or read.
    #[error("cannot read `{}`", plain(&path.to_string_lossy()))]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The name of a namespace is none.
    #[error(
        "`{name}` is not the name of a network namespace: give a name in /run/netns (without `/`, \
         and not `..`), the absolute path of its file without `..`, or a process ID"
    )]
    NetnsName {
        /// What was given.
        name: String,
    },
    /// The path of a control group is none.
    #[error(
        "`{name}` is not a control group: give its path from the root of the hierarchy, such as \
         `/system.slice/db.service`, without `..`; the root itself is the whole machine"
    )]
    GroupName {
        /// What was given.
        name: String,
    },
    /// A file is no network namespace.
    #[error("`{}` is not a network namespace", plain(&path.to_string_lossy()))]
    NotANetns {
        /// The file.
        path: PathBuf,
    },
    /// Nothing of this name is there.
    #[error("there is no {what} `{name}`{known}")]
    Unknown {
        /// What was looked for.
        what: &'static str,
        /// The name.
        name: String,
        /// A clause with the names that there are.
        known: String,
    },
    /// A container exists and does not run.
    #[error("the container `{name}` is not running: start it first")]
    NotRunning {
        /// Its name.
        name: String,
    },
    /// The beginning of an ID is too short to go by.
    #[error(
        "there is no container `{name}`; if it is the beginning of an ID, give at least {} digits",
        super::SHORTEST_ID
    )]
    ShortId {
        /// What was given.
        name: String,
    },
    /// A name means several.
    #[error("`{name}` may mean {candidates}: say which by its ID or its process")]
    Ambiguous {
        /// The name.
        name: String,
        /// What it may mean.
        candidates: String,
    },
    /// The process has ended, or never was.
    #[error("there is no process {pid}")]
    NoProcess {
        /// Its number.
        pid: u32,
    },
    /// The network namespace may not be read.
    #[error("the network namespace of {who} may not be read: it takes root, or the same user")]
    Hidden {
        /// Whose.
        who: String,
    },
    /// There is no single network namespace that it is in.
    #[error("{who} has no network namespace of its own: {why}")]
    NoOneNetns {
        /// Who.
        who: String,
        /// Why.
        why: &'static str,
    },
    /// It has no interface of its own.
    #[error(
        "{who} shares the machine's network namespace, so no interface is its own: limit it by its \
         control group, or start it with a network of its own"
    )]
    SharesOurs {
        /// Who.
        who: String,
    },
    /// A virtual machine without an interface on this side.
    #[error(
        "{who} has no TUN/TAP interface: its network is inside its own program (such as QEMU's \
         `user`), so limit its process"
    )]
    NoTap {
        /// Who.
        who: String,
    },
    /// A namespace that was seen is not there any more.
    #[error("the network namespace net:[{inode}] is gone")]
    Gone {
        /// Its inode number.
        inode: u64,
    },
}

impl TenantError {
    pub(super) fn read(path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Read {
            path: path.to_owned(),
            source: source.into(),
        }
    }

    pub(super) fn netns_name(name: &str) -> Self {
        Self::NetnsName { name: plain(name) }
    }

    pub(super) fn unknown(what: &'static str, name: &str, known: &[String]) -> Self {
        let known = if known.is_empty() {
            String::new()
        } else {
            format!(" (there are: {})", list(known))
        };
        Self::Unknown {
            what,
            name: plain(name),
            known,
        }
    }

    pub(super) fn ambiguous(name: &str, candidates: &[String]) -> Self {
        Self::Ambiguous {
            name: plain(name),
            candidates: list(candidates),
        }
    }
}

/// Names, separated by commas; of many, the first and how many more.
fn list(names: &[String]) -> String {
    let more = names.len().saturating_sub(LISTED);
    let first: Vec<String> = names.iter().take(LISTED).map(|name| plain(name)).collect();
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    format!("{}{more}", first.join(", "))
}
