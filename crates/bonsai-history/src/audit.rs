//! Who changed what, when, from what to what, and why.

use serde::Serialize;

/// Who changed something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Actor {
    /// A person, or a program of theirs.
    User {
        /// The user.
        uid: u32,
        /// The user's name, where it is known.
        name: Option<String>,
        /// The process, where it is known.
        pid: Option<u32>,
        /// Its program, or the address of a remote peer.
        peer: Option<String>,
    },
    /// A remote peer that showed a token.
    Token {
        /// The token's name.
        name: String,
        /// The address of the peer.
        peer: Option<String>,
    },
    /// A policy of the daemon.
    Policy {
        /// Its name.
        name: String,
    },
    /// The end of a change that was for a time.
    Timer,
    /// The configuration file, when it was read anew.
    Config,
}

/// The way by which a change came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Via {
    /// The daemon's Unix socket.
    Socket,
    /// TCP, with the token of that name.
    Tcp {
        /// The token's name.
        token: String,
    },
    /// A configuration file.
    Config {
        /// Its path.
        path: String,
    },
    /// A decision of the daemon itself.
    Policy,
    /// A change that ended.
    Timer,
}

/// One change, or with `dry_run` one that would have been made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditEntry {
    /// The revision of the desired state that the change made.
    pub revision: u64,
    /// When, ms since 1970.
    pub unix_ms: u64,
    /// Who.
    pub actor: Actor,
    /// By which way.
    pub via: Via,
    /// What was done, in a word: `set`, `undo`, `reload`, ...
    pub action: String,
    /// To which service or group; none where it was to the whole.
    pub service: Option<String>,
    /// What was before, as JSON or in words.
    pub from: Option<String>,
    /// What is now, likewise.
    pub to: Option<String>,
    /// Why, in words.
    pub reason: String,
    /// Whether it was only shown.
    pub dry_run: bool,
}

/// An entry as it was kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditRow {
    /// Its number; later entries have larger ones.
    pub id: u64,
    /// What it says.
    #[serde(flatten)]
    pub entry: AuditEntry,
}

/// Which entries: all that every named thing holds for, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Of this service.
    pub service: Option<String>,
    /// By this user.
    pub uid: Option<u32>,
    /// With this action.
    pub action: Option<String>,
    /// Not before this instant, ms since 1970.
    pub since_ms: Option<u64>,
    /// Before this instant, ms since 1970.
    pub until_ms: Option<u64>,
    /// Only dry runs, or only what was done.
    pub dry_run: Option<bool>,
    /// With smaller numbers: the last one of the page before.
    pub before: Option<u64>,
    /// So many at most; 100 where it is 0, never more than 1000.
    pub limit: usize,
}

impl AuditFilter {
    /// The number of entries that is meant.
    pub(crate) fn number(&self) -> u32 {
        match self.limit {
            0 => 100,
            more => u32::try_from(more.min(1000)).unwrap_or(1000),
        }
    }
}

/// Words of the columns that say who and how, as they are kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Columns {
    pub(crate) actor: String,
    pub(crate) uid: Option<u32>,
    pub(crate) user: Option<String>,
    pub(crate) pid: Option<u32>,
    pub(crate) peer: Option<String>,
    pub(crate) via: String,
    pub(crate) via_name: Option<String>,
}

impl AuditEntry {
    pub(crate) fn columns(&self) -> Columns {
        let mut columns = Columns::default();
        let named = |columns: &mut Columns, kind: &str, name: Option<&String>| {
            columns.actor = kind.to_owned();
            columns.user = name.cloned();
        };
        match &self.actor {
            Actor::User {
                uid,
                name,
                pid,
                peer,
            } => {
                named(&mut columns, "user", name.as_ref());
                columns.uid = Some(*uid);
                columns.pid = *pid;
                columns.peer.clone_from(peer);
            }
            Actor::Token { name, peer } => {
                named(&mut columns, "token", Some(name));
                columns.peer.clone_from(peer);
            }
            Actor::Policy { name } => named(&mut columns, "policy", Some(name)),
            Actor::Timer => named(&mut columns, "timer", None),
            Actor::Config => named(&mut columns, "config", None),
        }
        let (via, name) = match &self.via {
            Via::Socket => ("socket", None),
            Via::Tcp { token } => ("tcp", Some(token)),
            Via::Config { path } => ("config", Some(path)),
            Via::Policy => ("policy", None),
            Via::Timer => ("timer", None),
        };
        columns.via = via.to_owned();
        columns.via_name = name.cloned();
        columns
    }

    /// About how many bytes it is.
    pub(crate) fn bytes(&self) -> usize {
        let optional = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let texts = [&self.service, &self.from, &self.to];
        200 + self.action.len() + self.reason.len() + texts.into_iter().map(optional).sum::<usize>()
    }
}

impl Columns {
    pub(crate) fn actor(&self) -> Actor {
        let name = self.user.clone();
        match self.actor.as_str() {
            "policy" => Actor::Policy {
                name: name.unwrap_or_default(),
            },
            "timer" => Actor::Timer,
            "config" => Actor::Config,
            "token" => Actor::Token {
                name: name.unwrap_or_default(),
                peer: self.peer.clone(),
            },
            _ => Actor::User {
                uid: self.uid.unwrap_or(u32::MAX),
                name,
                pid: self.pid,
                peer: self.peer.clone(),
            },
        }
    }

    pub(crate) fn via(&self) -> Via {
        let name = self.via_name.clone().unwrap_or_default();
        match self.via.as_str() {
            "tcp" => Via::Tcp { token: name },
            "config" => Via::Config { path: name },
            "policy" => Via::Policy,
            "timer" => Via::Timer,
            _ => Via::Socket,
        }
    }
}
