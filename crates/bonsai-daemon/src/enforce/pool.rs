//! Services share in a group of the ledger: what one does not use others have within
//! microseconds, and a guarantee holds from the first call on, without the daemon.
//!
//! # Invariants
//! 1. A service is in the pool, or has a plain limit; never neither, where there is a capacity.
//! 2. The pool's rate and all plain limits together are no more than the capacity.
//! 3. Nothing is written that is in force already; a daemon that starts finds its pool again.
//! 4. Where nothing is shared, no service stays in the pool, also not in that of an earlier daemon.

use std::collections::BTreeMap;
use std::sync::Arc;

use bonsai_api::Enforced;
use bonsai_ledger::{Membership, Part};
use bonsai_policy::{Allocated, Grant, Observation, PerResource};
use bonsai_services::group::{self, DAEMON_POOL, Pool, Terms, is_in_pool};

use bonsai_units::Resource;

use super::{Enforcer, Outcome, Reads, Wanted};
use crate::look::Watched;

/// Why somebody has no place.
pub(crate) const FULL: &str = "the pool is full (64 services): it has a limit of its own, which follows its \
                    share every period";

/// The pool, and who is in it.
#[derive(Debug, Default)]
pub(crate) struct Pooled {
    /// False where the configuration has it that services share in none (`daemon.pool`).
    is_wanted: bool,
    pool: Option<Pool>,
    members: BTreeMap<Arc<str>, Member>,
    /// Those that cannot be in it.
    outside: BTreeMap<Arc<str>, Outside>,
    /// Why not.
    why: Arc<BTreeMap<Arc<str>, Arc<str>>>,
    /// When the first of them is asked again, ns.
    again_ns: u64,
    /// Others came or went, and the pool has not been made to fit yet.
    unsettled: bool,
    /// Numbers of members that are gone are still taken.
    untidy: bool,
    /// Services that are known to be in no pool while nothing is shared: when each was made, and
    /// the epoch of its ledger then. A later epoch is looked at again: a newcomer may have read
    /// what an earlier daemon published, and have joined after the first look.
    cleared: BTreeMap<Arc<str>, (u64, u32)>,
}

#[derive(Debug)]
struct Outside {
    created_ns: u64,
    why: Arc<str>,
    /// When it is asked again, ns.
    again_ns: u64,
}

/// One that is being made has not everything yet that it will have, and is asked again so soon, ns;
/// the older it is, the later.
const SOON_NS: u64 = 250_000_000;

const NEVER: u64 = u64::MAX;

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
        let shares = pool.shares();
        // A member that a person has put into another group has its share as a plain limit.
        let mut left = Vec::new();
        for (id, member) in &mut self.members {
            // They are in order, as long as whoever observes keeps them so.
            let services = &mut observation.services;
            let Ok(place) = services.binary_search_by(|seen| seen.name.cmp(id)) else {
                continue;
            };
            let seen = &mut services[place];
            let of_it = |(number, _): &&(Membership, _)| *number == member.number;
            let Some((_, shares)) = shares.iter().find(of_it) else {
                left.push(Arc::clone(id));
                continue;
            };
            let time_ns = now_ns.saturating_sub(member.last_ns).max(1);
            for resource in Resource::ALL {
                let at = resource.index();
                let Some(share) = &shares[at] else {
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
        self.unsettled |= !left.is_empty();
        for id in left {
            self.members.remove(&id);
        }
    }

    fn has_pool(&self) -> bool {
        self.pool.is_some()
    }

    fn enforce(&mut self, wanted: &Wanted<'_>, outcome: &mut Outcome, _read: &mut Reads<'_>) {
        if let Err(error) = self.share(wanted, outcome) {
            // Then all have plain limits, which need no pool.
            outcome.problem = Some(format!(
                "services cannot share in a group: {}",
                bonsai_host::sentence(error.as_ref())
            ));
        }
    }
}

impl Pooled {
    /// With a pool, or only to take services out of that of an earlier daemon.
    pub(crate) fn new(is_wanted: bool) -> Self {
        Self {
            is_wanted,
            ..Self::default()
        }
    }

    fn share(&mut self, wanted: &Wanted<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
        let shared: Vec<Resource> = Resource::ALL
            .into_iter()
            .filter(|resource| self.is_wanted && wanted.capacity[resource.index()].is_some())
            .collect();
        // Until all of it has been done: what fails is tried again in the next period.
        self.unsettled |= wanted.others || self.pool.is_none();
        if self.unsettled {
            self.forget_who_went(wanted)?;
        }
        if shared.is_empty() {
            return self.close(wanted);
        }
        if self.pool.is_none() {
            self.cleared.clear();
            self.open(wanted, &shared)?;
        }
        if self.again_ns <= wanted.now_ns {
            self.outside
                .retain(|_, outside| outside.again_ns > wanted.now_ns);
        }
        if self.unsettled || self.again_ns <= wanted.now_ns {
            self.let_in(wanted, &shared, outcome)?;
            let outside = self.outside.iter();
            let why = outside.map(|(id, outside)| (Arc::clone(id), Arc::clone(&outside.why)));
            self.why = Arc::new(why.collect());
            self.unsettled = false;
        }
        let Some(pool) = &self.pool else {
            return Ok(());
        };
        let inside = self.places(wanted);
        outcome.written += set(pool, &inside, wanted, &shared)?;
        for (place, _) in &inside {
            for resource in &shared {
                outcome.how[*place][resource.index()] = Some(Enforced::Pool);
            }
        }
        outcome.outside = Arc::clone(&self.why);
        for resource in &shared {
            let at = resource.index();
            let promised = inside.iter().map(|(place, _)| wanted.services[*place].0);
            let promised: u64 = promised.map(|decided| decided.grants[at].guarantee).sum();
            outcome.room[at] = wanted.capacity[at].map(|all| all.saturating_sub(promised));
        }
        Ok(())
    }

    /// Where the members are in what is wanted, and their numbers.
    fn places(&self, wanted: &Wanted<'_>) -> Vec<(usize, Option<Membership>)> {
        let members = self.members.iter();
        let places = members.filter_map(|(id, m)| Some((wanted.place(id)?, Some(m.number))));
        places.collect()
    }

    /// First room for those who come, then they.
    fn let_in(
        &mut self,
        wanted: &Wanted<'_>,
        shared: &[Resource],
        outcome: &mut Outcome,
    ) -> anyhow::Result<()> {
        let new = self.candidates(wanted);
        let mut inside = self.places(wanted);
        inside.extend(new.iter().filter_map(|id| Some((wanted.place(id)?, None))));
        if let Some(pool) = self.pool.as_ref().filter(|_| !new.is_empty()) {
            outcome.written += set(pool, &inside, wanted, shared)?;
        }
        self.invite(&new, wanted);
        let again = self.outside.values().map(|outside| outside.again_ns);
        self.again_ns = again.min().unwrap_or(NEVER);
        Ok(())
    }

    /// Takes over what an earlier daemon left.
    fn open(&mut self, wanted: &Wanted<'_>, shared: &[Resource]) -> anyhow::Result<()> {
        let rate = |resource: &Resource| Some((*resource, wanted.capacity[resource.index()]?));
        let rates: Vec<(Resource, u64)> = shared.iter().filter_map(rate).collect();
        let pool = Pool::open_or_create(DAEMON_POOL, &rates)?;
        pool.tidy()?;
        for (_, watched) in wanted.services {
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

    /// Nothing is shared: all services leave, also the pool that an earlier daemon left.
    fn close(&mut self, wanted: &Wanted<'_>) -> anyhow::Result<()> {
        if self.pool.is_some() {
            *self = Self::new(self.is_wanted);
        }
        if wanted.others {
            self.cleared.retain(|id, _| wanted.place(id).is_some());
        }
        let mut left = Ok(());
        for (_, watched) in wanted.services {
            let Some(service) = watched.own() else {
                continue;
            };
            let now = (watched.created_ns, watched.epoch());
            if self.cleared.get(&watched.id) == Some(&now) {
                continue;
            }
            // One that cannot be opened any more is about to go.
            let Ok(ledger) = service.ledger() else {
                continue;
            };
            // One that could not leave is asked to in the next period.
            if is_in_pool(&ledger)
                && let Err(error) = group::leave(&ledger)
            {
                left = Err(error);
                continue;
            }
            self.cleared.insert(Arc::clone(&watched.id), now);
        }
        left
    }

    fn forget_who_went(&mut self, wanted: &Wanted<'_>) -> anyhow::Result<()> {
        let same = |id: &Arc<str>, created_ns: u64| {
            let watched = wanted.place(id).map(|place| wanted.services[place].1);
            watched.is_some_and(|watched| watched.created_ns == created_ns)
        };
        let before = self.members.len();
        self.members
            .retain(|id, member| same(id, member.created_ns));
        self.outside
            .retain(|id, outside| same(id, outside.created_ns));
        self.untidy |= self.members.len() < before;
        if let Some(pool) = self.pool.as_ref().filter(|_| self.untidy) {
            pool.tidy()?;
            self.untidy = false;
            // Whoever could not come for want of a place may try again.
            self.outside.clear();
        }
        Ok(())
    }

    /// Takes over those that are in the pool already: a newcomer joins before its first call.
    fn adopt(&mut self, wanted: &Wanted<'_>) {
        let Some(pool) = &self.pool else {
            return;
        };
        for (_, watched) in wanted.services {
            let is_known = self.members.contains_key(&watched.id);
            if is_known || self.outside.contains_key(&watched.id) {
                continue;
            }
            let ledger = watched.own().and_then(|service| service.ledger().ok());
            if let Some(number) = ledger.and_then(|ledger| pool.number_of(&ledger)) {
                let new = member(watched, number, wanted.now_ns);
                self.members.insert(Arc::clone(&watched.id), new);
            }
        }
    }

    /// Those who are not there yet and may come: first those with a guarantee.
    fn candidates(&mut self, wanted: &Wanted<'_>) -> Vec<Arc<str>> {
        self.adopt(wanted);
        let known = |id: &Arc<str>| self.members.contains_key(id) || self.outside.contains_key(id);
        let new = wanted.services.iter().copied();
        let new = new.filter(|(_, watched)| watched.own().is_some() && !known(&watched.id));
        let mut new: Vec<(&Allocated, &Watched)> = new.collect();
        let Some(pool) = self.pool.as_ref().filter(|_| !new.is_empty()) else {
            return Vec::new();
        };
        new.sort_by_key(|(decided, _)| decided.grants.iter().all(|grant| grant.guarantee == 0));
        let free = pool.free();
        let full: Arc<str> = FULL.into();
        for (_, watched) in new.iter().skip(free) {
            let outside = Outside {
                created_ns: watched.created_ns,
                why: Arc::clone(&full),
                again_ns: NEVER,
            };
            self.outside.insert(Arc::clone(&watched.id), outside);
        }
        let new = new.into_iter().take(free);
        new.map(|(_, watched)| Arc::clone(&watched.id)).collect()
    }

    /// Lets them in; what they have is said afterwards, for all together.
    fn invite(&mut self, new: &[Arc<str>], wanted: &Wanted<'_>) {
        let Some(pool) = &self.pool else {
            return;
        };
        for id in new {
            let watched = wanted.place(id).map(|place| wanted.services[place].1);
            let Some((watched, service)) = watched.and_then(|w| Some((w, w.own()?))) else {
                continue;
            };
            let ledger = service.ledger();
            match ledger.and_then(|ledger| pool.join(service, &ledger, &[])) {
                Ok(number) => {
                    let new = member(watched, number, wanted.now_ns);
                    self.members.insert(Arc::clone(id), new);
                }
                Err(error) => {
                    let why = format!(
                        "it has a limit of its own instead of a part in the pool: {}",
                        bonsai_host::sentence(error.as_ref())
                    );
                    let age_ns = watched.is_young_for();
                    let again_ns =
                        age_ns.map_or(NEVER, |age_ns| wanted.now_ns + SOON_NS.max(age_ns / 4));
                    let outside = Outside {
                        created_ns: watched.created_ns,
                        why: why.into(),
                        again_ns,
                    };
                    self.outside.insert(Arc::clone(id), outside);
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

/// Writes rates and terms, as far as they differ: rates with room for all who are to be inside,
/// terms of those who have a number.
fn set(
    pool: &Pool,
    inside: &[(usize, Option<Membership>)],
    wanted: &Wanted<'_>,
    shared: &[Resource],
) -> anyhow::Result<u64> {
    let decided = |place: usize| wanted.services[place].0;
    let rate = |resource: &Resource| {
        let at = resource.index();
        let all = wanted.capacity[at]?;
        let inner = inside.iter().map(|(place, _)| decided(*place).grants[at]);
        let (promised, limits) = inner.fold((0, 0), |(promised, limits), grant| {
            let limit = grant.limit.unwrap_or(0);
            (promised + grant.guarantee, limits + limit)
        });
        let services = wanted.services.iter();
        let limited: u64 = services.filter_map(|(d, _)| d.grants[at].limit).sum();
        // Others borrow nothing of what members are promised.
        let rest = all.saturating_sub(limited - limits);
        Some((*resource, rest.max(promised).max(1)))
    };
    let rates: Vec<(Resource, u64)> = shared.iter().filter_map(rate).collect();
    let there = inside
        .iter()
        .filter_map(|(place, number)| Some((decided(*place), (*number)?)));
    let terms = there.flat_map(|(decided, number)| {
        shared.iter().map(move |resource| Terms {
            number,
            resource: *resource,
            part: part(&decided.grants[resource.index()]),
        })
    });
    let terms: Vec<Terms> = terms.collect();
    Ok(u64::from(pool.set(&rates, &terms)?))
}
