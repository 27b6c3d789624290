//! What an enforced service says of itself.

use std::collections::BTreeMap;

use bonsai_supervisor::enforce::asked_about;
use serde::{Deserialize, Serialize};

use crate::limits::Limit;
use crate::refusal::Refusal;

/// `enforced.json`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Enforced {
    /// The process that decides.
    pub supervisor: u32,
    /// The descriptor by which it holds the ledger.
    pub ledger: i32,
    /// The system calls that it is asked about.
    pub asked: Vec<u32>,
    /// What being asked about costs a call on this machine, ns.
    pub price_ns: u64,
    /// As whom the program runs, if as somebody else.
    pub user: Option<String>,
    /// What its processes can do to others outside, if anything.
    pub reach: Option<String>,
    /// Calls refused, by reason.
    pub refused: BTreeMap<String, u64>,
}

impl Enforced {
    /// Whether limits are on calls that the supervisor is asked about.
    ///
    /// # Errors
    /// A [`Refusal`].
    pub fn check(&self, name: &str, limits: &[Limit]) -> anyhow::Result<()> {
        for limit in limits {
            let wanted = asked_about(&[limit.selection]);
            if wanted.iter().any(|nr| !self.asked.contains(nr)) {
                let text = format!(
                    "{name} is enforced, and nobody is asked about its calls of {limit}: name it \
                     at the start, as in bonsai run --enforce --limit {limit}=unlimited",
                    limit = limit.name
                );
                return Err(Refusal::input(text));
            }
        }
        Ok(())
    }
}
