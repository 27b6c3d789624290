//! Looking at all services: who is there, and what each has done since the last look.

mod others;
mod theirs;
mod watched;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bonsai_policy::Observation;
use bonsai_services::glance::Glances;
use bonsai_services::observe::unix_ms;
use bonsai_services::service::Services;

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
    watched: BTreeMap<Arc<str>, Watched>,
    tidied_ns: u64,
}

/// Who came and went between two looks.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    pub(crate) came: Vec<Arc<str>>,
    pub(crate) went: Vec<Arc<str>>,
}

impl Looker {
    /// Of the services of this user, and of others if that is wanted.
    pub(crate) fn new(services: Services, others: Option<Others>) -> anyhow::Result<Self> {
        Ok(Self {
            services,
            glances: Glances::new()?,
            others,
            watched: BTreeMap::new(),
            tidied_ns: 0,
        })
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
        for watched in self.watched.values_mut() {
            if watched.own().is_none() {
                into.services.push(watched.seen());
            } else if let Some(glance) = self.glances.get(&watched.id) {
                if let Some(epoch) = self.glances.epoch(&watched.id) {
                    watched.note_epoch(epoch);
                }
                into.services.push(watched.look(glance));
            }
        }
        Ok(arrivals)
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
    }

    /// What cannot be seen of others, in words.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.others.as_ref().map_or_else(Vec::new, Others::problems)
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
        let unknown = self.glances.iter().map(|(name, _)| name);
        let unknown = unknown.filter(|name| !self.watched.contains_key(*name));
        let unknown: Vec<Arc<str>> = unknown.map(Into::into).collect();
        for id in unknown {
            let service = self.services.named(&id);
            if let Some(new) = Watched::of_own(&id, service, now_ns) {
                self.watched.insert(Arc::clone(&id), new);
                arrivals.came.push(id);
            }
        }
        if let Some(others) = &mut self.others {
            others.look(now_ns, &mut self.watched, &mut arrivals);
        }
        Ok(arrivals)
    }
}
