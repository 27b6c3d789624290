//! What is.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::change::Revision;
use crate::config::{Automatic, Group, Mode, Service};
use crate::resource::Resource;

/// The daemon itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// The version of the program.
    pub bonsai: String,
    /// Its process id.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// When it was started, ms since 1970.
    pub started_unix_ms: u64,
    /// Now, ms since 1970.
    pub unix_ms: u64,
    /// The state of what is configured.
    pub revision: Revision,
    /// Time between two decisions, ms.
    pub period_ms: f64,
    /// How is decided.
    pub mode: Mode,
    /// What automatic changes do.
    pub automatic: Automatic,
    /// What the machine has, units/s.
    pub capacity: BTreeMap<Resource, f64>,
    /// Use of all services together that the client may see, units/s.
    pub used: BTreeMap<Resource, f64>,
    /// Guarantees of these together, units/s.
    pub guaranteed: BTreeMap<Resource, f64>,
    /// How many services run.
    pub services: usize,
    /// The configuration file; `null` without one.
    #[schema(value_type = Option<String>)]
    pub file: Option<PathBuf>,
    /// The past.
    pub history: StoreState,
    /// Periods so far, and how long the last decision and the whole of the period took, ns.
    pub periods: u64,
    /// The last decision, ns; 0 for clients that do not see all services.
    pub decision_ns: u64,
    /// The last period's work, decision included, ns; likewise.
    pub work_ns: u64,
    /// What is not as it should be, in words.
    pub problems: Vec<String>,
    /// Whether whoever asks may change things.
    pub may_write: bool,
}

/// How the store of the past is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreState {
    /// Whether what happens now is kept.
    pub keeping: bool,
    /// Why not, or what happened to it, in words.
    pub about: Option<String>,
    /// Bytes on disk; 0 for clients that do not see all services.
    pub bytes: u64,
    /// Points that could not be kept since the start; likewise.
    pub dropped: u64,
}

/// All services that whoever asks may see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Services {
    /// The state of what is configured.
    pub revision: Revision,
    /// When it was looked, ms since 1970.
    pub unix_ms: u64,
    /// The services, by id.
    pub services: Vec<ServiceView>,
    /// The groups, by name.
    pub groups: Vec<GroupView>,
}

/// One service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServiceView {
    /// What it is known by: its name, or `user:name` if it is another user's than the daemon's.
    pub id: String,
    /// Its user's number.
    pub uid: u32,
    /// What it is, if it is no `bonsai run`: a container, a machine, an interface, a unit, ...
    pub target: Option<String>,
    /// Whether it runs; one with a target, whether that is there.
    pub running: bool,
    /// The process id of its `bonsai run`; of one with a target, of the process that leads it.
    pub keeper: Option<u32>,
    /// When it was made, ms since 1970; 0 if it does not run.
    pub created_unix_ms: u64,
    /// What is configured for it.
    pub settings: Service,
    /// Its mode, from wherever it has it.
    pub mode: Mode,
    /// What is decided for it, and what it does.
    pub resources: Vec<Use>,
    /// Its further limits, as they would be written.
    pub limits: BTreeMap<String, String>,
    /// What automatic changes would do.
    pub proposals: Vec<Proposal>,
    /// What could not be enforced, or is not seen, in words.
    pub problems: Vec<String>,
    /// Another way than usual in which its limits are kept, in words: no problem.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// How a decision is put into force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Enforced {
    /// In a group of the ledger: lent within microseconds.
    Pool,
    /// By a limit that is rewritten each period.
    Limit,
    /// In the kernel's queue of its uplink: lent within a millisecond.
    Uplink,
    /// Not at all: nothing is said of the resource, or it could not be.
    None,
}

/// What is decided for a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Decision {
    /// What it gets whatever the others do, units/s.
    pub min: f64,
    /// The most that it gets, units/s; `null` for no bound.
    pub max: Option<f64>,
    /// Its weight.
    pub weight: u16,
    /// What it would get now if all took what they are due, units/s; `null` where nothing is
    /// shared out.
    pub share: Option<f64>,
    /// Why, in words.
    pub reason: String,
    /// How.
    pub enforced: Enforced,
}

/// Owner of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LimitOwner {
    /// The service's own: set by `bonsai run`, `bonsai attach` or `bonsai set --direct`.
    Service,
    /// This daemon's: its ceiling.
    Daemon,
    /// The daemon's of the whole machine, on a service of another user.
    System,
    /// The daemon's of the service's user, seen by that of the machine.
    User,
}

impl LimitOwner {
    /// By the name of a limit in a service's ledger, and what is configured for that.
    #[must_use]
    pub fn of(name: &str, configured: Option<&Service>) -> Self {
        match name.rsplit_once('/') {
            Some((_, "system")) => Self::System,
            Some((_, "daemon")) => Self::User,
            _ if configured.is_some_and(|service| service.limits.contains_key(name)) => {
                Self::Daemon
            }
            _ => Self::Service,
        }
    }

    /// The name without the end that says whose it is.
    #[must_use]
    pub fn plain(self, name: &str) -> &str {
        match name.rsplit_once('/') {
            Some((plain, _)) if matches!(self, Self::System | Self::User) => plain,
            _ => name,
        }
    }

    /// In words: set by it.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Service => "bonsai run, attach or set --direct",
            Self::Daemon => "the daemon",
            Self::System => "root's daemon",
            Self::User => "the daemon of its user",
        }
    }
}

/// The lowest limit on all calls of a resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitInForce {
    /// Units/s.
    pub rate: f64,
    /// Its name in the ledger; `null` for a ceiling of this daemon, which may hold elsewhere.
    pub name: Option<String>,
    /// Its owner.
    pub by: LimitOwner,
}

/// One resource of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Use {
    /// Which.
    pub resource: Resource,
    /// What it got, units/s.
    pub got: f64,
    /// What it is taken to ask for, units/s; `null` for more than it got.
    pub asked: Option<f64>,
    /// What of that was borrowed, units/s.
    pub borrowed: f64,
    /// Whether calls wait now.
    pub waiting: bool,
    /// Waits imposed, seconds per second, over all threads.
    pub waited: f64,
    /// The lowest limit on all of it, from any source; `null` for none.
    #[serde(default)]
    pub limit: Option<LimitInForce>,
    /// What is decided.
    #[serde(flatten)]
    pub decision: Decision,
}

/// One change that the policy would make, or has made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Proposal {
    /// Of which resource.
    pub resource: Resource,
    /// The guarantee as it is, units/s.
    pub from: f64,
    /// As it would be, units/s.
    pub to: f64,
    /// Why, in words.
    pub reason: String,
}

/// One group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GroupView {
    /// Its name.
    pub name: String,
    /// What is configured for it.
    pub settings: Group,
    /// Throughput of all in it that the client may see, units/s.
    pub got: BTreeMap<Resource, f64>,
    /// What they would get now, units/s.
    pub share: BTreeMap<Resource, f64>,
}
