//! Services share in a group of the ledger: what one does not use others have within
//! microseconds, and a guarantee holds from the first call on, without the daemon.
//!
//! # Invariants
//! 1. A service is in the pool, or has a plain limit; never neither, where there is a capacity.
//! 2. The pool's rate and all plain limits together are no more than the capacity.
//! 3. Nothing is written that is in force already; a daemon that starts finds its pool again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bonsai_api::Enforced;
use bonsai_ledger::{Membership, Part};
use bonsai_policy::{Allocated, Grant, Observation, PerResource};
use bonsai_services::group::{Pool, Terms};
use bonsai_services::service::Service;
use bonsai_units::Resource;

use super::{Enforcer, Outcome, Wanted};
use crate::look::Watched;

/// The group's name.
const NAME: &str = "daemon-pool";

/// Why somebody has no place.
const FULL: &str = "the pool is full (64 services): it has a limit of its own, which follows its \
                    share every period";

/// The pool, and who is in it.
#[derive(Debug, Default)]
pub(crate) struct Pooled {
    pool: Option<Pool>,
    members: BTreeMap<Arc<str>, Member>,
    /// Those that cannot be in it, and why; they are not asked again.
    outside: BTreeMap<Arc<str>, (u64, String)>,
}

#[derive(Debug)]
struct Member {
    number: Membership,
    created_ns: u64,
    /// What it had been granted, borrowed and waited for at the last look.
    last: PerResource<(u64, u64, u64)>,
    last_ns: u64,
}

impl Enforcer for Pooled {
    fn observe(&mut self, observation: &mut Observation) {
        let Some(pool) = &self.pool else {
            return;
        };
        let now_ns = observation.now_ns;
        let reports = pool.members();
        for seen in &mut observation.services {
            let Some(member) = self.members.get_mut(&seen.name) else {
                continue;
            };
            let Some(report) = reports.iter().find(|report| report.number == member.number) else {
                continue;
            };
            let time_ns = now_ns.saturating_sub(member.last_ns).max(1);
            for resource in Resource::ALL {
                let at = resource.index();
                let Some(share) = &report.shares[at] else {
                    continue;
                };
                let (_, borrowed, waits) = member.last[at];
                let more = share.borrowed.saturating_sub(borrowed);
                let rate = u128::from(more) * 1_000_000_000_000 / u128::from(time_ns);
                let usage = &mut seen.usage[at];
                let rate = u64::try_from(rate).unwrap_or(u64::MAX);
                usage.borrowed = Some(rate.min(usage.used));
                // Who waits for the pool wants more of it; who waits for a limit of its own does
                // not.
                usage.wanted_more = share.waits > waits;
                member.last[at] = (share.granted, share.borrowed, share.waits);
            }
            member.last_ns = now_ns;
        }
    }

    fn enforce(&mut self, wanted: &Wanted<'_>, outcome: &mut Outcome) {
        if let Err(error) = self.share(wanted, outcome) {
            // Then all have plain limits, which need no pool.
            outcome.problem = Some(format!("services cannot share in a group: {error:#}"));
        }
    }
}

impl Pooled {
    fn share(&mut self, wanted: &Wanted<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
        let shared: Vec<Resource> = Resource::ALL
            .into_iter()
            .filter(|resource| wanted.capacity[resource.index()].is_some())
            .collect();
        self.forget_who_went(wanted)?;
        if shared.is_empty() {
            return self.close(wanted);
        }
        if self.pool.is_none() {
            self.open(wanted, &shared)?;
        }
        // First room for those who come, then they, then what everybody has.
        let services = &wanted.allocation.services;
        let new = self.candidates(wanted);
        let inside = |id: &Arc<str>| self.members.contains_key(id) || new.contains(id);
        let Some(pool) = &self.pool else {
            return Ok(());
        };
        outcome.written += set(pool, &self.members, inside, wanted, &shared)?;
        self.invite(&new, wanted);
        let Some(pool) = &self.pool else {
            return Ok(());
        };
        let inside = |id: &Arc<str>| self.members.contains_key(id);
        outcome.written += set(pool, &self.members, inside, wanted, &shared)?;
        for decided in services {
            if self.members.contains_key(&decided.name) {
                let mut how = [None; Resource::COUNT];
                for resource in &shared {
                    how[resource.index()] = Some(Enforced::Pool);
                }
                outcome.how.insert(Arc::clone(&decided.name), how);
            } else if let Some((_, why)) = self.outside.get(&decided.name) {
                outcome
                    .problems
                    .insert(Arc::clone(&decided.name), why.clone());
            }
        }
        for resource in &shared {
            let at = resource.index();
            let promised = services
                .iter()
                .filter(|d| self.members.contains_key(&d.name));
            let promised: u64 = promised.map(|decided| decided.grants[at].guarantee).sum();
            outcome.room[at] = wanted.capacity[at].map(|all| all.saturating_sub(promised));
        }
        Ok(())
    }

    /// Takes over what an earlier daemon left.
    fn open(&mut self, wanted: &Wanted<'_>, shared: &[Resource]) -> anyhow::Result<()> {
        let rate = |resource: &Resource| Some((*resource, wanted.capacity[resource.index()]?));
        let rates: Vec<(Resource, u64)> = shared.iter().filter_map(rate).collect();
        let pool = Pool::open_or_create(NAME, &rates)?;
        pool.tidy()?;
        for watched in wanted.looker.watched().values() {
            let ledger = watched.own().and_then(|service| service.ledger().ok());
            let number = ledger.and_then(|ledger| pool.number_of(&ledger));
            if let Some(number) = number {
                self.members.insert(
                    Arc::clone(&watched.id),
                    member(watched, number, wanted.now_ns),
                );
            }
        }
        self.pool = Some(pool);
        Ok(())
    }

    /// Nothing is shared any more: everybody goes.
    fn close(&mut self, wanted: &Wanted<'_>) -> anyhow::Result<()> {
        let Some(pool) = self.pool.take() else {
            return Ok(());
        };
        for watched in wanted.looker.watched().values() {
            // One that cannot be opened any more is about to go.
            if let Some(Ok(ledger)) = watched.own().map(Service::ledger) {
                pool.leave(&ledger)?;
            }
        }
        self.members.clear();
        self.outside.clear();
        Ok(())
    }

    fn forget_who_went(&mut self, wanted: &Wanted<'_>) -> anyhow::Result<()> {
        let same = |id: &Arc<str>, created_ns: u64| {
            wanted
                .looker
                .get(id)
                .is_some_and(|watched| watched.created_ns == created_ns)
        };
        let before = self.members.len();
        self.members
            .retain(|id, member| same(id, member.created_ns));
        self.outside
            .retain(|id, (created_ns, _)| same(id, *created_ns));
        if let Some(pool) = self.pool.as_ref().filter(|_| self.members.len() < before) {
            pool.tidy()?;
            // Whoever could not come for want of a place may try again.
            self.outside.clear();
        }
        Ok(())
    }

    /// Those who are not there yet and may come: first those with a guarantee.
    fn candidates(&mut self, wanted: &Wanted<'_>) -> BTreeSet<Arc<str>> {
        let known = |id: &Arc<str>| self.members.contains_key(id) || self.outside.contains_key(id);
        let services = &wanted.allocation.services;
        let is_own = |d: &&Allocated| {
            wanted
                .looker
                .get(&d.name)
                .is_some_and(|w| w.own().is_some())
        };
        let new = services.iter().filter(|d| !known(&d.name)).filter(is_own);
        let mut new: Vec<&Allocated> = new.collect();
        let Some(pool) = self.pool.as_ref().filter(|_| !new.is_empty()) else {
            return BTreeSet::new();
        };
        new.sort_by_key(|decided| decided.grants.iter().all(|grant| grant.guarantee == 0));
        let free = pool.free();
        for decided in new.iter().skip(free) {
            if let Some(watched) = wanted.looker.get(&decided.name) {
                let outside = (watched.created_ns, FULL.to_owned());
                self.outside.insert(Arc::clone(&decided.name), outside);
            }
        }
        let new = new.into_iter().take(free);
        new.map(|decided| Arc::clone(&decided.name)).collect()
    }

    /// Lets them in; what they have is said afterwards, for all together.
    fn invite(&mut self, new: &BTreeSet<Arc<str>>, wanted: &Wanted<'_>) {
        let Some(pool) = &self.pool else {
            return;
        };
        for id in new {
            let Some(watched) = wanted.looker.get(id) else {
                continue;
            };
            let Some(service) = watched.own() else {
                continue;
            };
            let ledger = service.ledger().map_err(anyhow::Error::from);
            match ledger.and_then(|ledger| pool.join(service, &ledger, &[])) {
                Ok(number) => {
                    let new = member(watched, number, wanted.now_ns);
                    self.members.insert(Arc::clone(id), new);
                }
                // One that is being made has not everything yet that it will have.
                Err(_) if watched.is_young() => {}
                Err(error) => {
                    let why = format!(
                        "it has a limit of its own instead of a part in the pool: {error:#}"
                    );
                    self.outside
                        .insert(Arc::clone(id), (watched.created_ns, why));
                }
            }
        }
    }
}

fn member(watched: &Watched, number: Membership, now_ns: u64) -> Member {
    Member {
        number,
        created_ns: watched.created_ns,
        last: Default::default(),
        last_ns: now_ns,
    }
}

fn part(grant: &Grant) -> Part {
    Part {
        guarantee_milli: grant.guarantee,
        // 0 stands for none.
        ceiling_milli: grant.ceiling.map_or(0, |ceiling| ceiling.max(1)),
        weight: u64::from(grant.weight),
    }
}

/// Writes rates and terms, as far as they differ: rates with room for all who are to be inside.
fn set(
    pool: &Pool,
    members: &BTreeMap<Arc<str>, Member>,
    inside: impl Fn(&Arc<str>) -> bool,
    wanted: &Wanted<'_>,
    shared: &[Resource],
) -> anyhow::Result<u64> {
    let services = &wanted.allocation.services;
    let rate = |resource: &Resource| {
        let at = resource.index();
        let all = wanted.capacity[at]?;
        let inner = services.iter().filter(|decided| inside(&decided.name));
        let promised: u64 = inner.map(|decided| decided.grants[at].guarantee).sum();
        let others = services.iter().filter(|decided| !inside(&decided.name));
        let others: u64 = others.filter_map(|decided| decided.grants[at].limit).sum();
        // Others borrow nothing of what members are promised.
        Some((*resource, all.saturating_sub(others).max(promised).max(1)))
    };
    let rates: Vec<(Resource, u64)> = shared.iter().filter_map(rate).collect();
    let there = services
        .iter()
        .filter_map(|d| Some((members.get(&d.name)?.number, d)));
    let terms = there.flat_map(|(number, decided)| {
        shared.iter().map(move |resource| Terms {
            number,
            resource: *resource,
            part: part(&decided.grants[resource.index()]),
        })
    });
    let terms: Vec<Terms> = terms.collect();
    Ok(u64::from(pool.set(&rates, &terms)?))
}
