//! A plain limit for each service, rewritten as shares move: for services that cannot share in
//! the pool.

use std::sync::Arc;

use bonsai_api::Enforced;
use bonsai_calls::select;
use bonsai_ledger::{Ledger, LedgerError, Wanted as LedgerLimit};
use bonsai_policy::{Allocated, PerResource};
use bonsai_services::limits::BY_DAEMON;
use bonsai_units::{Burst, Rate, Resource, Unit};

use super::{Enforcer, Outcome, Wanted};

/// Limits in the ledgers of services.
#[derive(Debug, Default)]
pub(crate) struct Limits;

impl Enforcer for Limits {
    fn enforce(&mut self, wanted: &Wanted<'_>, outcome: &mut Outcome) {
        for decided in &wanted.allocation.services {
            if outcome.how.contains_key(&decided.name) {
                continue;
            }
            let Some(watched) = wanted.looker.get(&decided.name) else {
                continue;
            };
            let how = decided.grants.map(|grant| match grant.limit {
                Some(_) => Enforced::Limit,
                None => Enforced::None,
            });
            outcome.how.insert(decided.name.clone(), how);
            match put(&watched.ledger, wants(decided), wanted.now_ns) {
                Ok(written) => outcome.written += written,
                Err(error) => {
                    let text = format!("its limits could not be written: {error}");
                    outcome.problems.insert(Arc::clone(&decided.name), text);
                }
            }
        }
    }
}

/// The limits of a service; `None` where there is to be none.
fn wants(decided: &Allocated) -> PerResource<Option<u64>> {
    decided.grants.map(|grant| grant.limit)
}

/// Takes what the daemon has put there away.
pub(super) fn clear(ledger: &Ledger, now_ns: u64) -> Result<u64, LedgerError> {
    put(ledger, [None; Resource::COUNT], now_ns)
}

/// Writes what is different, in one change.
fn put(ledger: &Ledger, wanted: PerResource<Option<u64>>, now_ns: u64) -> Result<u64, LedgerError> {
    let in_force = ledger.limits(now_ns);
    let name = |resource: Resource| format!("{}{BY_DAEMON}", resource.class());
    let now = |resource: Resource| {
        let name = name(resource);
        let limit = in_force.iter().find(|limit| limit.name == name);
        limit.map(|limit| limit.rate_milli)
    };
    let different = |resource: &Resource| now(*resource) != wanted[resource.index()];
    let different: Vec<Resource> = Resource::ALL.into_iter().filter(different).collect();
    if different.is_empty() {
        return Ok(0);
    }
    let mut editor = ledger.edit(now_ns)?;
    for resource in &different {
        let name = name(*resource);
        let Some(rate_milli) = wanted[resource.index()] else {
            editor.clear(&name);
            continue;
        };
        let Some(selection) = select(resource.class()) else {
            continue;
        };
        let rate = Rate::from_milli(rate_milli, resource.unit());
        editor.put(&LedgerLimit {
            name: &name,
            selection,
            bytes: resource.unit() == Unit::Bytes,
            rate_milli: rate.milli(),
            burst: Burst::default().units(rate).unwrap_or(1).max(1),
            per_stream: false,
            scope: bonsai_ledger::Scope::default(),
        })?;
    }
    editor.commit();
    Ok(different.len() as u64)
}
