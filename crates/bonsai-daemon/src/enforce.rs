//! Enforcers make the world equal to what is decided, and say what they could not do.

mod limits;

use std::collections::BTreeMap;
use std::sync::Arc;

use bonsai_api::Enforced;
use bonsai_policy::{Allocation, PerResource};

use crate::look::Looker;

pub(crate) use limits::Limits;

/// What an enforcer works on.
pub(crate) struct Wanted<'a> {
    /// What is decided.
    pub(crate) allocation: &'a Allocation,
    /// Who is there, in the same order.
    pub(crate) looker: &'a Looker,
    /// What the machine has, thousandths of a unit per second.
    pub(crate) capacity: &'a PerResource<Option<u64>>,
    /// The monotonic clock, ns.
    pub(crate) now_ns: u64,
}

/// What has become of it.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// How each service's resources are enforced now.
    pub(crate) how: BTreeMap<Arc<str>, PerResource<Enforced>>,
    /// What could not be done, by service, in words.
    pub(crate) problems: BTreeMap<Arc<str>, String>,
    /// Limits and terms that were written.
    pub(crate) written: u64,
}

/// One way to enforce.
pub(crate) trait Enforcer: std::fmt::Debug + Send {
    /// Makes the world equal to what is decided, for the services that nobody before has taken
    /// (`outcome.how`), and takes those that it can.
    fn enforce(&mut self, wanted: &Wanted<'_>, outcome: &mut Outcome);
}
