//! Looking at all services: who is there, and what each has done since the last look.

use std::collections::BTreeMap;
use std::sync::Arc;

use bonsai_ledger::Ledger;
use bonsai_ledger::sync::Ordering;
use bonsai_policy::{Observation, PerResource, Seen, Usage};
use bonsai_services::glance::{Glance, Glances};
use bonsai_services::observe::unix_ms;
use bonsai_services::service::{Service, Services};
use bonsai_units::Resource;

/// Folders of services whose `bonsai run` was killed are removed so often, ns: until then they are
/// in sight. All others remove their own.
const TIDY_NS: u64 = 5 * SECOND_NS;

const SECOND_NS: u64 = 1_000_000_000;

/// So long after its making a service has all that it will have, ms.
const YOUNG_MS: u64 = 2000;

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

/// A service that runs.
#[derive(Debug)]
pub(crate) struct Watched {
    /// What it is known by.
    pub(crate) id: Arc<str>,
    /// Where it is.
    pub(crate) service: Service,
    /// What its processes share.
    pub(crate) ledger: Ledger,
    /// Its user.
    pub(crate) uid: u32,
    /// When it was made, ns since 1970.
    pub(crate) created_ns: u64,
    /// What it had done at the last look; waits, at the last second.
    pub(crate) done: PerResource<Done>,
    /// Waits, ns per s, in the last second.
    pub(crate) waited: PerResource<f64>,
    last_ns: u64,
    /// When its waits were another sum last.
    waits_ns: u64,
}

/// Looks.
#[derive(Debug)]
pub(crate) struct Looker {
    services: Services,
    glances: Glances,
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
    /// Of the services of this user.
    pub(crate) fn new(services: Services) -> anyhow::Result<Self> {
        Ok(Self {
            services,
            glances: Glances::new()?,
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
            if let Some(glance) = self.glances.get(&watched.id) {
                into.services.push(watched.look(glance, now_ns));
            }
        }
        Ok(arrivals)
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
            if let Some(new) = Watched::new(&id, service, now_ns) {
                self.watched.insert(Arc::clone(&id), new);
                arrivals.came.push(id);
            }
        }
        Ok(arrivals)
    }
}

impl Watched {
    fn new(id: &Arc<str>, service: Service, now_ns: u64) -> Option<Self> {
        let ledger = service.ledger().ok()?;
        let created_ns = ledger.header.created_ns.load(Ordering::Relaxed);
        Some(Self {
            id: Arc::clone(id),
            service,
            ledger,
            uid: rustix::process::geteuid().as_raw(),
            created_ns,
            done: Default::default(),
            waited: [0.0; Resource::COUNT],
            last_ns: 0,
            waits_ns: now_ns,
        })
    }

    /// Whether it may be half made.
    pub(crate) fn is_young(&self) -> bool {
        unix_ms().saturating_sub(self.created_ns / 1_000_000) < YOUNG_MS
    }

    fn look(&mut self, glance: &Glance, now_ns: u64) -> Seen {
        // Nothing is known of the time before the first look.
        let first = self.last_ns == 0;
        let time_ns = now_ns.saturating_sub(self.last_ns).max(TOO_SHORT_NS);
        let mut usage: PerResource<Usage> = Default::default();
        for (at, usage) in usage.iter_mut().enumerate() {
            let units = glance.totals[at].saturating_sub(self.done[at].units);
            let used = u128::from(units) * 1_000_000_000_000 / u128::from(time_ns);
            *usage = Usage {
                used: if first {
                    0
                } else {
                    u64::try_from(used).unwrap_or(u64::MAX)
                },
                wanted_more: glance.waiting[at] > 0
                    || glance.waited[at] > 0
                    || glance.backlog[at] > 0,
                borrowed: None,
                bound: glance.bounds[at],
            };
            self.done[at].units = glance.totals[at];
        }
        self.last_ns = now_ns;
        self.add_up_waits(glance, now_ns);
        Seen {
            name: Arc::clone(&self.id),
            usage,
        }
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
