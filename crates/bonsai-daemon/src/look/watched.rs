//! A service that is watched.

use std::collections::BTreeMap;
use std::sync::Arc;

use bonsai_ledger::Ledger;
use bonsai_ledger::sync::Ordering;
use bonsai_policy::{PerResource, Seen, Usage};
use bonsai_services::glance::{Glance, OwnLimits};
use bonsai_services::limits::{BY_DAEMON, Holds, put_plain};
use bonsai_services::observe::unix_ms;
use bonsai_services::service::{Enforced, Service, creator};
use bonsai_tenants::Body;
use bonsai_units::{Rate, Resource};

use super::SECOND_NS;
use super::theirs::{Found, Theirs};
use crate::enforce::put_further;
use crate::placed::{self, Outsiders};

/// So long after its making a service has all that it will have, on the slowest machine, ms.
const YOUNG_MS: u64 = 30_000;

/// A time so short that no rate can be told from it, ns.
const TOO_SHORT_NS: u64 = 1_000_000;

/// What a service has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// Units.
    pub(crate) units: u64,
    /// Waits imposed.
    pub(crate) waits: u64,
    /// Their sum, ns.
    pub(crate) waited_ns: u64,
}

/// What came of giving a service limits.
#[derive(Debug)]
pub(crate) struct Put {
    /// How many are new.
    pub(crate) written: u64,
    /// The state of its limits then.
    pub(crate) epoch: u32,
    /// Its ledger, if that was opened for it.
    pub(crate) ledger: Option<Ledger>,
}

/// A service that runs.
#[derive(Debug)]
pub(crate) struct Watched {
    /// What it is known by.
    pub(crate) id: Arc<str>,
    /// Where it is.
    way: Way,
    /// Its user.
    pub(crate) uid: u32,
    /// When it was made, ns since 1970.
    pub(crate) created_ns: u64,
    /// What it had done at the last look; waits, at the last second.
    pub(crate) done: PerResource<Done>,
    /// Waits, ns per s, in the last second.
    pub(crate) waited: PerResource<f64>,
    /// What it used in the last period.
    usage: PerResource<Usage>,
    last_ns: u64,
    /// When its waits were another sum last.
    waits_ns: u64,
}

/// The way to a service.
#[derive(Debug)]
enum Way {
    /// Of the daemon's own user.
    Own(Own),
    /// Of another user, by their thread, where it has that name.
    Theirs(Arc<Theirs>, String, Arc<Found>),
    /// No `bonsai run`, by the thread of these.
    Placed(Outsiders, Arc<placed::Found>),
}

/// What is known of a service of the daemon's own user. What its processes share is opened when
/// it is needed: a thousand of them mapped would count as memory in use.
#[derive(Debug)]
struct Own {
    service: Service,
    /// Where its ledger is, if its limits are not in its processes.
    enforced: Option<Enforced>,
    /// Who made it.
    creator: Option<u32>,
    /// Of its limits, at the last look.
    epoch: u32,
    /// Which limits it can hold.
    holds: Holds,
}

impl Own {
    fn ledger(&self) -> anyhow::Result<Ledger> {
        self.service.ledger_of(self.enforced.as_ref())
    }
}

impl Watched {
    /// One of the daemon's own user.
    pub(super) fn of_own(id: &Arc<str>, service: Service, now_ns: u64) -> Option<Self> {
        let enforced = service.enforced();
        let ledger = service.ledger_of(enforced.as_ref()).ok()?;
        let created_ns = ledger.header.created_ns.load(Ordering::Relaxed);
        let uid = rustix::process::geteuid().as_raw();
        let own = Own {
            service,
            enforced,
            creator: creator(&ledger),
            epoch: ledger.epoch(),
            holds: Holds::of(&ledger),
        };
        Some(Self::new(id, uid, Way::Own(own), created_ns, now_ns))
    }

    /// One of another user.
    pub(super) fn of_other(
        id: &Arc<str>,
        theirs: &Arc<Theirs>,
        name: &str,
        found: Arc<Found>,
        now_ns: u64,
    ) -> Self {
        let created_ns = found.created_ns;
        let way = Way::Theirs(Arc::clone(theirs), name.to_owned(), found);
        Self::new(id, theirs.uid(), way, created_ns, now_ns)
    }

    /// One that is no `bonsai run`.
    pub(super) fn of_place(
        id: &Arc<str>,
        outsiders: &Outsiders,
        found: &Arc<placed::Found>,
        now_ns: u64,
    ) -> Self {
        let way = Way::Placed(outsiders.clone(), Arc::clone(found));
        Self::new(id, found.body.uid, way, found.body.born_ns, now_ns)
    }

    fn new(id: &Arc<str>, uid: u32, way: Way, created_ns: u64, now_ns: u64) -> Self {
        Self {
            id: Arc::clone(id),
            way,
            uid,
            created_ns,
            done: Default::default(),
            waited: [0.0; Resource::COUNT],
            usage: Default::default(),
            last_ns: 0,
            waits_ns: now_ns,
        }
    }

    /// The service, if it is of the daemon's own user.
    pub(crate) const fn own(&self) -> Option<&Service> {
        match &self.way {
            Way::Own(own) => Some(&own.service),
            Way::Theirs(..) | Way::Placed(..) => None,
        }
    }

    /// The way to it, if it is no `bonsai run`.
    pub(crate) const fn outsiders(&self) -> Option<&Outsiders> {
        match &self.way {
            Way::Placed(outsiders, _) => Some(outsiders),
            Way::Own(_) | Way::Theirs(..) => None,
        }
    }

    /// Takes what was found of another user's.
    pub(super) fn take(&mut self, new: &Arc<Found>) {
        self.look(&new.glance);
        if let Way::Theirs(_, _, found) = &mut self.way {
            *found = Arc::clone(new);
        }
    }

    /// Takes what was found of one that is no `bonsai run`.
    pub(super) fn take_place(&mut self, new: &Arc<placed::Found>) {
        self.look_at_place(&new.body);
        if let Way::Placed(_, found) = &mut self.way {
            *found = Arc::clone(new);
        }
    }

    /// What it used at the last look.
    pub(super) fn seen(&self) -> Seen {
        Seen {
            name: Arc::clone(&self.id),
            usage: self.usage,
        }
    }

    /// The state of its limits.
    pub(crate) fn epoch(&self) -> u32 {
        match &self.way {
            Way::Own(own) => own.epoch,
            Way::Theirs(_, _, found) => found.glance.epoch,
            // Somebody else's changes are seen, and put right, by whoever made it so.
            Way::Placed(..) => 0,
        }
    }

    /// Its `bonsai run`, if that lives; one that has ended never comes back. Of one that is none, the
    /// process that leads it.
    pub(crate) fn keeper(&self) -> Option<u32> {
        match &self.way {
            Way::Own(own) => {
                let keeps = own.service.has_keeper().unwrap_or(false);
                own.creator.filter(|_| keeps)
            }
            Way::Theirs(_, _, found) => found.keeper,
            Way::Placed(_, found) => found.body.pid,
        }
    }

    /// Its limits that are none of this daemon's, if they are not in a ledger of this user.
    pub(super) fn their_limits(&self) -> Option<Arc<OwnLimits>> {
        match &self.way {
            Way::Own(_) => None,
            Way::Theirs(_, _, found) => Some(Arc::clone(&found.limits)),
            Way::Placed(..) => Some(Arc::default()),
        }
    }

    /// What could not be done with it, in words.
    pub(crate) fn problems(&self) -> Vec<String> {
        match &self.way {
            Way::Own(_) => Vec::new(),
            Way::Theirs(_, _, found) => found.problem.iter().cloned().collect(),
            Way::Placed(_, found) => found.problems.clone(),
        }
    }

    /// Gives it plain limits. Another user's has them a moment later.
    ///
    /// # Errors
    /// They cannot be written.
    pub(crate) fn put(&self, limits: PerResource<Option<u64>>, now_ns: u64) -> anyhow::Result<Put> {
        Ok(match &self.way {
            Way::Own(own) => {
                let ledger = own.ledger()?;
                Put {
                    written: put_plain(&ledger, BY_DAEMON, limits, now_ns)?,
                    epoch: ledger.epoch(),
                    ledger: Some(ledger),
                }
            }
            Way::Theirs(theirs, name, found) => Put {
                written: u64::from(theirs.want_plain(name, limits)),
                epoch: found.glance.epoch,
                ledger: None,
            },
            Way::Placed(outsiders, _) => Put {
                written: u64::from(outsiders.want_plain(&self.id, limits)),
                epoch: 0,
                ledger: None,
            },
        })
    }

    /// Which limits it can hold. What other users' services hold is decided where their ledgers are.
    pub(crate) const fn holds(&self) -> Holds {
        match &self.way {
            Way::Own(own) => own.holds,
            Way::Theirs(..) | Way::Placed(..) => Holds::Everything,
        }
    }

    /// Gives it the further limits that are configured, as far as they differ from those of
    /// before.
    ///
    /// # Errors
    /// It cannot have them.
    pub(crate) fn put_further(
        &self,
        configured: &BTreeMap<String, String>,
        before: &BTreeMap<String, String>,
        now_ns: u64,
    ) -> anyhow::Result<()> {
        match &self.way {
            Way::Own(own) => {
                if configured == before {
                    return Ok(());
                }
                put_further(&self.id, &own.ledger()?, configured, before, now_ns)
            }
            Way::Theirs(theirs, name, _) => {
                theirs.want_further(name, self.created_ns, configured, before);
                Ok(())
            }
            // It has none: they are refused.
            Way::Placed(..) => Ok(()),
        }
    }

    /// How old it is, ns, if it may be half made.
    pub(crate) fn is_young_for(&self) -> Option<u64> {
        let age_ms = unix_ms().saturating_sub(self.created_ns / 1_000_000);
        (age_ms < YOUNG_MS).then_some(age_ms * 1_000_000)
    }

    /// What it has done since its counters were read before; they are not in each look.
    pub(super) fn look(&mut self, glance: &Glance) -> Seen {
        if let Way::Own(own) = &mut self.way {
            own.epoch = glance.epoch;
        }
        let now_ns = glance.at_ns;
        if now_ns <= self.last_ns {
            return self.seen();
        }
        // Nothing is known of the time before the first look.
        let first = self.last_ns == 0;
        let time_ns = now_ns.saturating_sub(self.last_ns).max(TOO_SHORT_NS);
        let mut usage: PerResource<Usage> = Default::default();
        for (at, usage) in usage.iter_mut().enumerate() {
            let units = glance.totals[at].saturating_sub(self.done[at].units);
            let used = if first { 0 } else { per_s(units, time_ns) };
            // Who waited and still wants more has used its burst since, a fifth of a period; who
            // waited, and fell silent then, has not.
            let is_silent = glance.lowest[at].is_some_and(|limit| used < limit / 16);
            *usage = Usage {
                used,
                wanted_more: glance.waiting[at] > 0
                    || glance.backlog[at] > 0
                    || (glance.waited[at] > 0 && !is_silent),
                borrowed: None,
                bound: glance.bounds[at],
            };
            self.done[at].units = glance.totals[at];
        }
        self.last_ns = now_ns;
        self.add_up_waits(glance, now_ns);
        self.usage = usage;
        self.seen()
    }

    /// What it has done since the last look. How long anything waited is not counted there.
    fn look_at_place(&mut self, body: &Body) {
        if body.at_ns <= self.last_ns {
            return;
        }
        let first = self.last_ns == 0;
        let time_ns = body.at_ns.saturating_sub(self.last_ns).max(TOO_SHORT_NS);
        let mut usage: PerResource<Usage> = Default::default();
        let counted = body.totals.into_iter().zip(body.waits);
        for (resource, (total, waits)) in Body::RESOURCES.into_iter().zip(counted) {
            let at = resource.index();
            let done = &mut self.done[at].units;
            let units = total.map_or(0, |total| total.saturating_sub(*done));
            usage[at] = Usage {
                used: if first { 0 } else { per_s(units, time_ns) },
                wanted_more: waits,
                borrowed: None,
                bound: None,
            };
            *done = total.unwrap_or(*done);
        }
        self.last_ns = body.at_ns;
        self.usage = usage;
    }

    /// Waits are read once a second; what they are per second is told until then.
    fn add_up_waits(&mut self, glance: &Glance, now_ns: u64) {
        let time_ns = now_ns.saturating_sub(self.waits_ns).max(TOO_SHORT_NS);
        let known = self.done.map(|done| (done.waits, done.waited_ns));
        if known == glance.waits && time_ns < 2 * SECOND_NS {
            return;
        }
        self.waits_ns = now_ns;
        for (at, (waits, ns)) in glance.waits.into_iter().enumerate() {
            let more = ns.saturating_sub(self.done[at].waited_ns);
            self.waited[at] = more as f64 * 1e9 / time_ns as f64;
            (self.done[at].waits, self.done[at].waited_ns) = (waits, ns);
        }
    }
}

/// Thousandths of a unit per second. A counter may say anything; the policy adds these up.
fn per_s(units: u64, time_ns: u64) -> u64 {
    let used = u128::from(units) * 1_000_000_000_000 / u128::from(time_ns);
    u64::try_from(used).map_or(Rate::MAX_MILLI, |used| used.min(Rate::MAX_MILLI))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_counter_says_more_than_the_highest_rate() {
        let service = Service {
            name: "vod".to_owned(),
            folder: "/nonexistent".into(),
        };
        let own = Own {
            service,
            enforced: None,
            creator: None,
            epoch: 0,
            holds: Holds::Everything,
        };
        let mut watched = Watched::new(&"vod".into(), 0, Way::Own(own), 0, 0);
        let glance = |at_ns, units| Glance {
            at_ns,
            totals: [units; Resource::COUNT],
            ..Glance::default()
        };
        watched.look(&glance(SECOND_NS, 0));
        let seen = watched.look(&glance(SECOND_NS + 1, u64::MAX));
        for usage in seen.usage {
            assert_eq!(usage.used, Rate::MAX_MILLI);
        }
    }
}
