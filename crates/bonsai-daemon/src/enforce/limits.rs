//! A plain limit for each service, rewritten as shares move: for services that cannot share in
//! the pool.

use std::collections::BTreeMap;
use std::sync::Arc;

use bonsai_api::Enforced;
use bonsai_policy::{Allocated, PerResource};
use bonsai_units::Resource;

use super::{Enforcer, Outcome, Reads, Wanted};
use crate::look::Watched;

/// Limits in the ledgers of services.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// What was written last: as long as nobody changes the ledger, it is in force.
    written: Vec<Written>,
}

#[derive(Clone, Debug)]
struct Written {
    id: Arc<str>,
    created_ns: u64,
    /// Of the ledger then; `None` for nothing written yet.
    epoch: Option<u32>,
    limits: PerResource<Option<u64>>,
}

impl Enforcer for Limits {
    fn enforce(&mut self, wanted: &Wanted<'_>, outcome: &mut Outcome, read: &mut Reads<'_>) {
        if wanted.others || self.written.len() != wanted.services.len() {
            self.find_again(wanted);
        }
        let scales = Resource::ALL.map(|resource| scale(wanted.services, resource, outcome));
        let services = wanted.services.iter().zip(&mut self.written);
        for ((&(decided, watched), last), how) in services.zip(&mut outcome.how) {
            let mut limits = [None; Resource::COUNT];
            for (at, how) in how.iter_mut().enumerate().filter(|(_, how)| how.is_none()) {
                let limit = decided.grants[at].limit;
                limits[at] = limit.map(|limit| scaled(limit, scales[at]));
                *how = Some(match limits[at] {
                    Some(_) => Enforced::Limit,
                    None => Enforced::None,
                });
            }
            if last.limits == limits && last.epoch == Some(watched.epoch()) {
                continue;
            }
            match watched.put(limits, wanted.now_ns) {
                Ok(put) => {
                    outcome.written += put.written;
                    (last.epoch, last.limits) = (Some(put.epoch), limits);
                    if let Some(ledger) = &put.ledger {
                        read(&watched.id, ledger);
                    }
                }
                Err(error) => {
                    let text = format!(
                        "its limits could not be written: {}",
                        bonsai_host::sentence(error.as_ref())
                    );
                    outcome
                        .problems
                        .insert(Arc::clone(&watched.id), text.into());
                }
            }
        }
    }
}

impl Limits {
    /// What was written, for those who are there now and were before.
    fn find_again(&mut self, wanted: &Wanted<'_>) {
        let before = std::mem::take(&mut self.written).into_iter();
        let mut before: BTreeMap<_, _> = before.map(|last| (Arc::clone(&last.id), last)).collect();
        let written = wanted.services.iter().map(|(_, watched)| {
            let last = before.remove(&watched.id);
            let same = |last: &Written| last.created_ns == watched.created_ns;
            last.filter(same).unwrap_or_else(|| Written {
                id: Arc::clone(&watched.id),
                created_ns: watched.created_ns,
                epoch: None,
                limits: Default::default(),
            })
        });
        self.written = written.collect();
    }
}

/// What there is for those with plain limits, and what they would have together, where that is
/// more.
fn scale(
    services: &[(&Allocated, &Watched)],
    resource: Resource,
    outcome: &Outcome,
) -> Option<(u64, u64)> {
    let at = resource.index();
    let room = outcome.room[at]?;
    let all = services.iter().zip(&outcome.how);
    let theirs = all.filter(|(_, how)| how[at].is_none());
    let wanted: u64 = theirs
        .filter_map(|((decided, _), _)| decided.grants[at].limit)
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
