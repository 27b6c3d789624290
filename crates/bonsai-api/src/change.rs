//! Changes and who made them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::view::ServiceView;

/// The number of a state of what is configured: the ETag of each answer, and what `If-Match` is
/// compared with.
pub type Revision = u64;

/// One difference between two states.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Difference {
    /// What it is of, such as `services.vod.send.min`.
    pub path: String,
    /// What it was; `null` for nothing.
    pub from: Option<String>,
    /// What it is.
    pub to: Option<String>,
}

/// What a change does, or would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    /// The revision it led to; the one it is compared with if nothing was changed.
    pub revision: Revision,
    /// Whether it was only tried.
    pub dry_run: bool,
    /// When it ends by itself, ms since 1970.
    pub until_unix_ms: Option<u64>,
    /// What is different.
    pub differences: Vec<Difference>,
    /// The services that it reaches, as they will be.
    pub services: Vec<ServiceView>,
    /// What could not be done, in words.
    pub problems: Vec<String>,
    /// Limits that are not this daemon's and lower than a ceiling that was asked for, which does nothing therefore; in words.
    #[serde(default)]
    pub held: Vec<String>,
    /// The changes that an undo takes back, the last first.
    #[serde(default)]
    pub undone: Vec<Undone>,
}

/// A change that is taken back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Undone {
    /// The revision that it led to.
    pub revision: Revision,
    /// The actor that made it; `null` where that is not known any more.
    pub actor: Option<String>,
}

/// Which change to undo.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Undo {
    /// The revision to go back to; without it, the one before the last change.
    pub revision: Option<Revision>,
}

/// Who changed what, when, from what to what, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Its number.
    pub id: u64,
    /// When, ms since 1970.
    pub unix_ms: u64,
    /// Who: a user, a token, `policy`, `timer`, `file`.
    pub actor: String,
    /// By which way: `socket`, `tcp`, `daemon`.
    pub via: String,
    /// The process that asked.
    pub pid: Option<u32>,
    /// What was done: `change`, `undo`, `expire`, `reload`, `decide`, `refuse`, ...
    pub action: String,
    /// The revision after it.
    pub revision: Revision,
    /// The service it is about, if it is one.
    pub service: Option<String>,
    /// From what to what.
    pub differences: Vec<Difference>,
    /// Why, in words.
    pub reason: String,
    /// Differences that there was no room for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
    /// Why a part of it cannot be read, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Some of them, the youngest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditPage {
    /// They.
    pub entries: Vec<AuditEntry>,
    /// What to give as `before` for the next ones; `null` at the end.
    pub before: Option<u64>,
    /// Why entries may be missing, in words.
    #[serde(default)]
    pub problems: Vec<String>,
}
