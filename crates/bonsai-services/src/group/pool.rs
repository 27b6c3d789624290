//! The group of a daemon: services that share what a machine has of each resource.
//!
//! Who has what is said by whoever owns the pool, in one change for all members; nobody is
//! in between when it is used (`docs/08-groups.md`). A pool outlives its daemon: the terms
//! stay in force, and the next one goes on with them.
//!
//! # Invariants
//! 1. Nothing is written that is in force already: each change voids the places of all that
//!    borrow, so that each may lose or gain one turn by it.
//! 2. A change holds as a whole, or not at all.

use std::collections::BTreeMap;
use std::fs;

use bonsai_ledger::{
    Group, GroupEditor, Ledger, LedgerError, MEMBERS, Membership, Part, PartReport, Thing,
};
use bonsai_units::{Burst, Rate, Resource, Unit};

use super::join::{draw_anew, enter, keeper, leave};
use super::member::{is_alive, refused};
use super::place;
use crate::observe::monotonic_ns;
use crate::refusal::before_start;
use crate::service::{Service, Services};

/// The group in which a daemon lets the services of its user share.
pub const DAEMON_POOL: &str = "daemon-pool";

/// A group with a rate for each of some resources.
#[derive(Debug)]
pub struct Pool {
    group: Group,
}

/// What a member is to have of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The member.
    pub number: Membership,
    /// The resource.
    pub resource: Resource,
    /// Guarantee, ceiling and weight.
    pub part: Part,
}

/// A member as it is.
#[derive(Clone, Debug)]
pub struct PoolMember {
    /// Its number.
    pub number: Membership,
    /// The service.
    pub service: String,
    /// Whether the process that its place belongs to lives. If not, [`Pool::tidy`] finds out
    /// what has become of the service.
    pub alive: bool,
    /// What it has and did, by [`Resource::index`].
    pub shares: [Option<Share>; Resource::COUNT],
}

/// What a member has of a resource, and did with it so far.
pub type Share = PartReport;

/// True where a thing is what a resource is called in a group.
#[must_use]
pub fn is_of(thing: &Thing, resource: Resource) -> bool {
    thing.name == resource.class() && thing.bytes == (resource.unit() == Unit::Bytes)
}

fn thing(resource: Resource, rate_milli: u64) -> anyhow::Result<Thing> {
    let rate = Rate::from_milli(rate_milli, resource.unit());
    Ok(Thing {
        name: resource.class().to_owned(),
        bytes: resource.unit() == Unit::Bytes,
        rate_milli: rate.milli(),
        burst: Burst::default().units(rate)?,
    })
}

fn place_of(things: &[Option<Thing>], resource: Resource) -> Option<usize> {
    let is_it = |thing: &Option<Thing>| thing.as_ref().is_some_and(|t| is_of(t, resource));
    things.iter().position(is_it)
}

/// What is shared, without the rates.
fn kinds(things: &[Option<Thing>]) -> Vec<Option<(String, bool)>> {
    let kind = |thing: &Thing| (thing.name.clone(), thing.bytes);
    things.iter().map(|t| t.as_ref().map(kind)).collect()
}

impl Pool {
    /// Opens a group of the calling user, which may have been left by an earlier daemon, or
    /// makes it; with these rates, thousandths of a unit per second. What cannot be read as a
    /// group is replaced.
    ///
    /// # Errors
    /// It can be neither opened nor made.
    pub fn open_or_create(name: &str, rates: &[(Resource, u64)]) -> anyhow::Result<Self> {
        let path = place::own(name)?;
        let group = match Group::open(&path) {
            Ok(group) => group,
            Err(LedgerError::File { source, .. }) if source == rustix::io::Errno::NOENT => {
                make(name)?
            }
            // Its members find out that they have no number any more.
            Err(
                LedgerError::Foreign { .. }
                | LedgerError::Damaged { .. }
                | LedgerError::Version { .. },
            ) => {
                fs::remove_file(&path)?;
                make(name)?
            }
            Err(error) => return Err(before_start(error.into())),
        };
        let pool = Self { group };
        if pool.set(rates, &[]).is_err() {
            // What was guaranteed before is more than there is now.
            let members = pool.group.reports();
            let plain = members.iter().flat_map(|member| {
                rates.iter().map(|(resource, _)| Terms {
                    number: member.membership,
                    resource: *resource,
                    part: Part::PLAIN,
                })
            });
            pool.set(rates, &plain.collect::<Vec<_>>())?;
        }
        Ok(pool)
    }

    /// The group that it is.
    #[must_use]
    pub const fn group(&self) -> &Group {
        &self.group
    }

    /// The rates, thousandths of a unit per second.
    #[must_use]
    pub fn rates(&self) -> Vec<(Resource, u64)> {
        let things = self.group.things();
        let rate = |resource: Resource| {
            let thing = things.get(place_of(&things, resource)?)?.as_ref()?;
            Some((resource, thing.rate_milli))
        };
        Resource::ALL.into_iter().filter_map(rate).collect()
    }

    /// How many services may join yet.
    #[must_use]
    pub fn free(&self) -> usize {
        MEMBERS.saturating_sub(self.group.reports().len())
    }

    /// Sets all rates, and terms of some members, in one change; returns whether anything is
    /// different now. A resource without a rate is shared no longer. Terms of who is no
    /// member are passed over.
    ///
    /// # Errors
    /// A refusal, with nothing changed: guarantees are more than there is, or a ceiling is
    /// below its guarantee.
    pub fn set(&self, rates: &[(Resource, u64)], terms: &[Terms]) -> anyhow::Result<bool> {
        let before = self.group.things();
        let wanted = rates.iter().map(|(resource, rate)| thing(*resource, *rate));
        let wanted = wanted.collect::<Result<Vec<_>, _>>()?;
        let same = |thing: &Thing| before.iter().flatten().any(|there| there == thing);
        let count = before.iter().flatten().count();
        let same_rates = count == wanted.len() && wanted.iter().all(same);
        if same_rates && self.are_in_force(&before, terms) {
            return Ok(false);
        }
        let mut editor = self.group.edit(monotonic_ns())?;
        for there in before.iter().flatten() {
            let is_it = |wanted: &Thing| (&wanted.name, wanted.bytes) == (&there.name, there.bytes);
            if !wanted.iter().any(is_it) {
                editor.lift(&there.name);
            }
        }
        for thing in wanted {
            editor.share(thing).map_err(refused)?;
        }
        for terms in terms {
            agree(&self.group, &mut editor, terms);
        }
        editor.commit().map_err(refused)?;
        if kinds(&before) != kinds(&self.group.things()) {
            draw_anew(&self.group)?;
        }
        Ok(true)
    }

    /// Sets terms of some members in one change; see [`Pool::set`].
    ///
    /// # Errors
    /// As there.
    pub fn set_terms(&self, terms: &[Terms]) -> anyhow::Result<bool> {
        if self.are_in_force(&self.group.things(), terms) {
            return Ok(false);
        }
        let mut editor = self.group.edit(monotonic_ns())?;
        for terms in terms {
            agree(&self.group, &mut editor, terms);
        }
        editor.commit().map_err(refused)?;
        Ok(true)
    }

    /// Sets the rates alone; see [`Pool::set`].
    ///
    /// # Errors
    /// As there.
    pub fn set_rates(&self, rates: &[(Resource, u64)]) -> anyhow::Result<bool> {
        self.set(rates, &[])
    }

    fn are_in_force(&self, things: &[Option<Thing>], terms: &[Terms]) -> bool {
        terms.iter().all(|terms| {
            let place = place_of(things, terms.resource);
            let part = place.and_then(|thing| self.group.part(terms.number, thing));
            place.is_none() || !self.group.has(terms.number) || part == Some(terms.part)
        })
    }

    /// Makes a running service a member, on these terms of what the pool has; of others, it
    /// has nothing guaranteed and the weight 1.
    ///
    /// # Errors
    /// A refusal: it cannot be in a group, is in one already, or there is no place left.
    pub fn join(
        &self,
        service: &Service,
        ledger: &Ledger,
        parts: &[(Resource, Part)],
    ) -> anyhow::Result<Membership> {
        let who = keeper(service, ledger)?;
        enter(ledger, who, &self.group, |editor, number| {
            for thing in 0..editor.things().len() {
                if editor.things()[thing].is_some() {
                    editor.agree(number, thing, Part::PLAIN);
                }
            }
            for (resource, part) in parts {
                if let Some(thing) = place_of(editor.things(), *resource) {
                    editor.agree(number, thing, *part);
                }
            }
            Ok(())
        })
    }

    /// Takes a service out again, if it is in this pool. Calls that wait for the pool go on.
    ///
    /// # Errors
    /// Its ledger cannot be changed.
    pub fn leave(&self, ledger: &Ledger) -> anyhow::Result<bool> {
        if self.number_of(ledger).is_none() {
            return Ok(false);
        }
        Ok(leave(ledger)?.is_some())
    }

    /// The number of a service in this pool, if it is in it.
    #[must_use]
    pub fn number_of(&self, ledger: &Ledger) -> Option<Membership> {
        let number = ledger
            .membership()
            .filter(|number| self.group.has(*number))?;
        (ledger.group()? == self.group.path()).then_some(number)
    }

    /// What each member has of each resource, by [`Resource::index`], and did with it so far.
    /// Whether they live is not looked at, which takes long.
    #[must_use]
    pub fn shares(&self) -> Vec<(Membership, [Option<Share>; Resource::COUNT])> {
        let things = self.group.things();
        let places = Resource::ALL.map(|resource| place_of(&things, resource));
        let reports = self.group.reports().into_iter();
        let shares = reports.map(|report| {
            let parts = places.map(|thing| *report.parts.get(thing?)?);
            (report.membership, parts)
        });
        shares.collect()
    }

    /// All members, as they are and what they did.
    #[must_use]
    pub fn members(&self) -> Vec<PoolMember> {
        let things = self.group.things();
        let places = Resource::ALL.map(|resource| place_of(&things, resource));
        let reports = self.group.reports().into_iter();
        let members = reports.map(|report| PoolMember {
            number: report.membership,
            alive: is_alive(&report.who),
            service: report.who.name,
            shares: places.map(|thing| *report.parts.get(thing?)?),
        });
        members.collect()
    }

    /// Finds out which services are in the pool, after somebody has died: gives back the
    /// numbers of those that have ended, and ties others to a process that lives. Returns
    /// the members by name.
    ///
    /// # Errors
    /// The services cannot be listed, or the pool not be changed.
    pub fn tidy(&self) -> anyhow::Result<BTreeMap<String, Membership>> {
        let mut there = BTreeMap::new();
        let mut owners = Vec::new();
        for service in Services::open()?.live()? {
            let Ok(ledger) = service.ledger() else {
                continue;
            };
            if let Some(number) = self.number_of(&ledger) {
                if let Ok(who) = keeper(&service, &ledger) {
                    owners.push((number, who));
                }
                there.insert(service.name, number);
            }
        }
        let reports = self.group.reports();
        let ended = reports.iter().filter(|report| {
            let is_it = |number: &Membership| *number == report.membership;
            !there.values().any(is_it) && !is_alive(&report.who)
        });
        let ended: Vec<Membership> = ended.map(|report| report.membership).collect();
        owners.retain(|(number, who)| {
            let report = reports.iter().find(|report| report.membership == *number);
            report.is_some_and(|report| report.who != *who)
        });
        if !ended.is_empty() || !owners.is_empty() {
            let mut editor = self.group.edit(monotonic_ns())?;
            for number in ended {
                editor.leave(number);
            }
            for (number, who) in owners {
                editor.own(number, who);
            }
            editor.commit().map_err(refused)?;
        }
        Ok(there)
    }
}

fn make(name: &str) -> anyhow::Result<Group> {
    let path = place::new(name, false)?;
    Group::create(&path, name, None).map_err(|error| before_start(error.into()))
}

fn agree(group: &Group, editor: &mut GroupEditor<'_>, terms: &Terms) {
    if let Some(thing) = place_of(editor.things(), terms.resource)
        && group.has(terms.number)
    {
        editor.agree(terms.number, thing, terms.part);
    }
}
