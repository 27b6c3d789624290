//! A plain limit for each service, rewritten as shares move: for services that cannot share in
//! the pool.

use std::collections::BTreeMap;
use std::sync::Arc;

use bonsai_api::Enforced;
use bonsai_calls::select;
use bonsai_ledger::{Ledger, LedgerError, Wanted as LedgerLimit};
use bonsai_policy::{Allocated, PerResource};
use bonsai_units::{Burst, Rate, Resource, Unit};

use super::{Enforcer, Outcome, Wanted};

/// Limits in the ledgers of services.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// What was written last: as long as nobody changes the ledger, it is in force.
    written: BTreeMap<Arc<str>, Written>,
}

#[derive(Debug)]
struct Written {
    created_ns: u64,
    epoch: u32,
    limits: PerResource<Option<u64>>,
}

impl Enforcer for Limits {
    fn enforce(&mut self, wanted: &Wanted<'_>, outcome: &mut Outcome) {
        let services = &wanted.allocation.services;
        if self.written.len() > 2 * services.len() {
            self.written.retain(|id, _| wanted.looker.get(id).is_some());
        }
        let scales = Resource::ALL.map(|resource| scale(services, resource, outcome));
        for decided in services {
            let Some(watched) = wanted.looker.get(&decided.name) else {
                continue;
            };
            let mut limits = [None; Resource::COUNT];
            let mut how = outcome.how.get(&decided.name).copied().unwrap_or_default();
            for resource in Resource::ALL {
                let at = resource.index();
                if how[at].is_some() {
                    continue;
                }
                limits[at] = decided.grants[at]
                    .limit
                    .map(|limit| scaled(limit, scales[at]));
                how[at] = Some(match limits[at] {
                    Some(_) => Enforced::Limit,
                    None => Enforced::None,
                });
            }
            outcome.how.insert(decided.name.clone(), how);
            let same = |last: &&Written| {
                last.limits == limits
                    && last.created_ns == watched.created_ns
                    && last.epoch == watched.epoch()
            };
            if self.written.get(&decided.name).filter(same).is_some() {
                continue;
            }
            match watched.put(limits, wanted.now_ns) {
                Ok((written, epoch)) => {
                    outcome.written += written;
                    let last = Written {
                        created_ns: watched.created_ns,
                        epoch,
                        limits,
                    };
                    self.written.insert(Arc::clone(&decided.name), last);
                }
                Err(error) => {
                    let text = format!("its limits could not be written: {error}");
                    outcome.problems.insert(Arc::clone(&decided.name), text);
                }
            }
        }
    }
}

/// What there is for those with plain limits, and what they would have together, where that is
/// more.
fn scale(services: &[Allocated], resource: Resource, outcome: &Outcome) -> Option<(u64, u64)> {
    let room = outcome.room[resource.index()]?;
    let theirs = services
        .iter()
        .filter(|decided| !outcome.has(&decided.name, resource));
    let wanted: u64 = theirs
        .filter_map(|d| d.grants[resource.index()].limit)
        .sum();
    (wanted > room).then_some((room, wanted))
}

fn scaled(limit: u64, scale: Option<(u64, u64)>) -> u64 {
    let Some((room, wanted)) = scale else {
        return limit;
    };
    let part = u128::from(limit) * u128::from(room) / u128::from(wanted.max(1));
    u64::try_from(part).unwrap_or(limit).max(1)
}

/// Writes what is different, in one change; `whose` is what the names of such limits end with.
pub(crate) fn put(
    ledger: &Ledger,
    whose: &str,
    wanted: PerResource<Option<u64>>,
    now_ns: u64,
) -> Result<u64, LedgerError> {
    let in_force = ledger.limits(now_ns);
    let name = |resource: Resource| format!("{}{whose}", resource.class());
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
