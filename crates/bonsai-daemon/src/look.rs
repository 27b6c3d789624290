//! Looking at all services: who is there, and what each has done since the last look.

mod others;
mod scout;
mod theirs;
mod watched;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bonsai_policy::Observation;
use bonsai_services::glance::{Glances, OwnLimits};
use bonsai_services::observe::unix_ms;
use bonsai_services::service::Services;

use crate::placed::Outsiders;
use crate::places::Places;

pub(crate) use others::Others;
pub(crate) use watched::{Done, Watched};

/// Folders of services whose `bonsai run` was killed are removed so often, ns: until then they are
/// in sight. All others remove their own.
const TIDY_NS: u64 = 5 * SECOND_NS;

const SECOND_NS: u64 = 1_000_000_000;

/// Looks.
#[derive(Debug)]
pub(crate) struct Looker {
    services: Services,
    glances: Glances,
    /// Those of other users, of a daemon that sees them.
    others: Option<Others>,
    /// Those that are no `bonsai run`, of root's daemon.
    outsiders: Option<Outsiders>,
    watched: BTreeMap<Arc<str>, Watched>,
    /// Of those seen, who could not be opened yet.
    unopened: Vec<Arc<str>>,
    /// Those of this user whose name another service has that is no `bonsai run`.
    hidden: Vec<Arc<str>>,
    /// Why those that are no `bonsai run` are not seen.
    stale: Option<String>,
    tidied_ns: u64,
}

/// Who came and went between two looks.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    pub(crate) came: Vec<Arc<str>>,
    pub(crate) went: Vec<Arc<str>>,
}

impl Looker {
    /// Of the services of this user, and of others if that is wanted, and those that are no `bonsai
    /// run`.
    pub(crate) fn new(
        services: Services,
        others: Option<Others>,
        outsiders: Option<Outsiders>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            services,
            glances: Glances::new()?,
            others,
            outsiders,
            watched: BTreeMap::new(),
            unopened: Vec::new(),
            hidden: Vec::new(),
            stale: None,
            tidied_ns: 0,
        })
    }

    /// The way to those that are no `bonsai run`, if there may be some.
    pub(crate) const fn outsiders(&self) -> Option<&Outsiders> {
        self.outsiders.as_ref()
    }

    /// True where services of other users are seen.
    pub(crate) const fn sees_others(&self) -> bool {
        self.others.is_some()
    }

    /// Those that run, by id.
    pub(crate) const fn watched(&self) -> &BTreeMap<Arc<str>, Watched> {
        &self.watched
    }

    /// One of them.
    pub(crate) fn get(&self, id: &str) -> Option<&Watched> {
        self.watched.get(id)
    }

    /// Looks at all, at `now_ns` (monotonic clock), and fills the observation.
    pub(crate) fn look(&mut self, now_ns: u64, into: &mut Observation) -> anyhow::Result<Arrivals> {
        if now_ns.saturating_sub(self.tidied_ns) >= TIDY_NS {
            self.tidied_ns = now_ns;
            self.services.live()?;
        }
        let arrivals = self.who(now_ns)?;
        into.now_ns = now_ns;
        into.wall_s = unix_ms() / 1000;
        into.services.clear();
        // Both are in order.
        let mut glances = self.glances.iter().peekable();
        for watched in self.watched.values_mut() {
            let glance = watched.own().and_then(|service| {
                let name = service.name.as_str();
                while glances.next_if(|(there, _)| *there < name).is_some() {}
                glances.next_if(|(there, _)| *there == name)
            });
            into.services.push(match glance {
                Some((_, glance)) => watched.look(glance),
                None => watched.seen(),
            });
        }
        Ok(arrivals)
    }

    /// Those that run, by id, and what reads the limits of those of this user.
    pub(crate) const fn watched_and_read(
        &mut self,
    ) -> (&BTreeMap<Arc<str>, Watched>, &mut Glances) {
        (&self.watched, &mut self.glances)
    }

    /// The limits of a service that are none of this daemon's.
    pub(crate) fn own_limits(&self, watched: &Watched) -> Arc<OwnLimits> {
        let theirs = watched.their_limits();
        theirs.unwrap_or_else(|| self.glances.own_limits(&watched.id))
    }

    /// The runtime directory of this user.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.services.folder()
    }

    /// Has a service looked at in each period, however many there are.
    pub(crate) fn closely(&mut self, id: &str, closely: bool) {
        self.glances.closely(id, closely);
    }

    /// Has those looked for soon that have died.
    pub(crate) const fn tidy_soon(&mut self) {
        self.tidied_ns = 0;
    }

    /// Waits until what other users' services are to have is in force, or as long as said.
    pub(crate) fn settle(&self, patience: Duration) {
        if let Some(others) = &self.others {
            others.settle(patience);
        }
        if let Some(outsiders) = &self.outsiders {
            outsiders.settle(patience);
        }
    }

    /// What cannot be seen of others, in words.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = self.others.as_ref().map_or_else(Vec::new, Others::problems);
        problems.extend(self.stale.clone());
        problems.extend(self.hidden.iter().map(|id| {
            format!(
                "a bonsai run is called {id}, too, as a service with a target is: it is neither shown \
                 nor changed before one of them has another name"
            )
        }));
        problems
    }

    /// Who is there.
    fn who(&mut self, now_ns: u64) -> anyhow::Result<Arrivals> {
        let changes = self.glances.look()?;
        let mut arrivals = Arrivals::default();
        for name in changes.gone {
            if let Some((id, _)) = self.watched.remove_entry(name.as_str()) {
                arrivals.went.push(id);
            }
        }
        // One that could not be opened is tried again: it may have been half made.
        self.unopened
            .extend(changes.came.iter().map(|name| Arc::from(&**name)));
        let places = self.outsiders.as_ref().map(Outsiders::places);
        let places = places.unwrap_or_default();
        self.unopened.append(&mut self.hidden);
        for id in std::mem::take(&mut self.unopened) {
            if places.contains_key(&id) {
                if self.glances.get(&id).is_some() {
                    self.hidden.push(id);
                }
                continue;
            }
            let service = self.services.named(&id);
            match Watched::of_own(&id, service, now_ns) {
                Some(new) => {
                    self.watched.insert(Arc::clone(&id), new);
                    arrivals.came.push(id);
                }
                None if self.glances.get(&id).is_some() => self.unopened.push(id),
                None => {}
            }
        }
        if let Some(others) = &mut self.others {
            others.look(now_ns, &mut self.watched, &mut arrivals);
        }
        self.outside(now_ns, &places, &mut arrivals);
        Ok(arrivals)
    }

    /// Takes what was found of those that are no `bonsai run`.
    fn outside(&mut self, now_ns: u64, places: &Places, arrivals: &mut Arrivals) {
        let Some(outsiders) = &self.outsiders else {
            return;
        };
        let (found, stale) = outsiders.found(now_ns);
        self.stale = stale;
        // Nothing new is known of them: they are taken to be as they were.
        if self.stale.is_some() {
            return;
        }
        let is_there = |watched: &Watched| {
            let found = found.get(&watched.id).filter(|found| found.body.there);
            found.is_some_and(|found| found.body.born_ns == watched.created_ns)
        };
        let hidden = &mut self.hidden;
        self.watched.retain(|id, watched| {
            let is_placed = watched.outsiders().is_some();
            let stays = match places.contains_key(id) {
                true => is_placed && is_there(watched),
                false => !is_placed,
            };
            if !stays {
                if is_placed {
                    outsiders.forget(id);
                } else {
                    hidden.push(Arc::clone(id));
                }
                arrivals.went.push(Arc::clone(id));
            }
            stays
        });
        for (id, found) in found
            .iter()
            .filter(|(id, of)| of.body.there && places.contains_key(*id))
        {
            let known = self.watched.entry(Arc::clone(id)).or_insert_with(|| {
                arrivals.came.push(Arc::clone(id));
                Watched::of_place(id, outsiders, found, now_ns)
            });
            known.take_place(found);
        }
    }
}
