//! Enforcers make the world equal to what is decided, and say what they could not do.

mod further;
mod limits;
mod pool;
mod uplinks;

use std::collections::BTreeMap;
use std::sync::Arc;

use bonsai_api::Enforced;
use bonsai_ledger::Ledger;
use bonsai_policy::{Allocated, Observation, PerResource};

use crate::look::Watched;

pub(crate) use further::put_further;
pub(crate) use limits::Limits;
pub(crate) use pool::{FULL, Pooled};
pub(crate) use uplinks::Uplinks;

/// What an enforcer works on.
pub(crate) struct Wanted<'a> {
    /// What is decided for each service, and the service; by id.
    pub(crate) services: &'a [(&'a Allocated, &'a Watched)],
    /// Whether they may be others than in the period before.
    pub(crate) others: bool,
    /// What the machine has, thousandths of a unit per second.
    pub(crate) capacity: &'a PerResource<Option<u64>>,
    /// The monotonic clock, ns.
    pub(crate) now_ns: u64,
}

impl<'a> Wanted<'a> {
    /// Where a service is in `services`.
    fn place(&self, id: &str) -> Option<usize> {
        let by_id = |(_, watched): &(&Allocated, &'a Watched)| (*watched.id).cmp(id);
        self.services.binary_search_by(by_id).ok()
    }
}

/// What has become of it.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// How each service's resources are enforced now, in the order of what is decided; `None`
    /// for not yet.
    pub(crate) how: Vec<PerResource<Option<Enforced>>>,
    /// What is left for those who come after, of resources that an enforcer shares out.
    pub(crate) room: PerResource<Option<u64>>,
    /// What could not be done, by service, in words.
    pub(crate) problems: BTreeMap<Arc<str>, Arc<str>>,
    /// Why some do not share in what others do, by service, in words.
    pub(crate) outside: Arc<BTreeMap<Arc<str>, Arc<str>>>,
    /// What could not be done at all, in words.
    pub(crate) problem: Option<String>,
    /// Limits and terms that were written.
    pub(crate) written: u64,
}

/// Reads the limits of a service in its ledger.
pub(crate) type Reads<'a> = dyn FnMut(&str, &Ledger) + 'a;

/// One way to enforce.
pub(crate) trait Enforcer: std::fmt::Debug + Send {
    /// Adds to what was observed what only the enforcer knows.
    fn observe(&mut self, _observation: &mut Observation) {}

    /// True where services share in a pool of it now.
    fn has_pool(&self) -> bool {
        false
    }

    /// Makes the world equal to what is decided, for the resources of services that none before
    /// has taken, and takes those that it can. `read` is for ledgers that were written into, while
    /// they are open.
    fn enforce(&mut self, wanted: &Wanted<'_>, outcome: &mut Outcome, read: &mut Reads<'_>);
}
