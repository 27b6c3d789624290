//! Enforcers make the world equal to what is decided, and say what they could not do.

mod further;
mod limits;
mod pool;

use std::collections::BTreeMap;
use std::sync::Arc;

use bonsai_api::Enforced;
use bonsai_policy::{Allocation, Observation, PerResource};
use bonsai_units::Resource;

use crate::look::Looker;

pub(crate) use further::put_further;
pub(crate) use limits::{Limits, put};
pub(crate) use pool::Pooled;

/// What an enforcer works on.
pub(crate) struct Wanted<'a> {
    /// What is decided.
    pub(crate) allocation: &'a Allocation,
    /// Who is there.
    pub(crate) looker: &'a Looker,
    /// What the machine has, thousandths of a unit per second.
    pub(crate) capacity: &'a PerResource<Option<u64>>,
    /// The monotonic clock, ns.
    pub(crate) now_ns: u64,
}

/// What has become of it.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// How each service's resources are enforced now; `None` for not yet.
    pub(crate) how: BTreeMap<Arc<str>, PerResource<Option<Enforced>>>,
    /// What is left for those who come after, of resources that an enforcer shares out.
    pub(crate) room: PerResource<Option<u64>>,
    /// What could not be done, by service, in words.
    pub(crate) problems: BTreeMap<Arc<str>, String>,
    /// What could not be done at all, in words.
    pub(crate) problem: Option<String>,
    /// Limits and terms that were written.
    pub(crate) written: u64,
}

impl Outcome {
    /// Whether a resource of a service is enforced already.
    pub(crate) fn has(&self, id: &str, resource: Resource) -> bool {
        self.how
            .get(id)
            .is_some_and(|how| how[resource.index()].is_some())
    }
}

/// One way to enforce.
pub(crate) trait Enforcer: std::fmt::Debug + Send {
    /// Adds to what was observed what only the enforcer knows.
    fn observe(&mut self, _observation: &mut Observation) {}

    /// Makes the world equal to what is decided, for the resources of services that none before
    /// has taken, and takes those that it can.
    fn enforce(&mut self, wanted: &Wanted<'_>, outcome: &mut Outcome);
}
