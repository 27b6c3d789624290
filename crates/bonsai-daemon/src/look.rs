//! Looking at all services: who is there, and what each has done since the last look.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use bonsai_calls::{CALLS, Call, Selection, select};
use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{CallTotals, Ledger};
use bonsai_policy::{Observation, PerResource, Seen, Usage};
use bonsai_services::limits::BY_DAEMON;
use bonsai_services::service::{Service, Services};
use bonsai_units::{Resource, Unit};

/// How often it is looked who is there if nothing says that somebody came or went, ns.
const WHO_NS: u64 = 1_000_000_000;

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
    /// What it had done at the last look.
    pub(crate) done: PerResource<Done>,
    /// Waits, ns per s, in the last period.
    pub(crate) waited: PerResource<f64>,
    last_ns: u64,
}

/// Looks.
#[derive(Debug)]
pub(crate) struct Looker {
    services: Services,
    watched: BTreeMap<Arc<str>, Watched>,
    folder_changed: Option<SystemTime>,
    who_ns: u64,
}

/// Who came and went between two looks.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    pub(crate) came: Vec<Arc<str>>,
    pub(crate) went: Vec<Arc<str>>,
}

impl Looker {
    /// Of the services of this user.
    pub(crate) const fn new(services: Services) -> Self {
        Self {
            services,
            watched: BTreeMap::new(),
            folder_changed: None,
            who_ns: 0,
        }
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
    pub(crate) fn look(
        &mut self,
        now_ns: u64,
        into: &mut Observation,
    ) -> anyhow::Result<Arrivals> {
        let arrivals = self.who(now_ns)?;
        into.now_ns = now_ns;
        into.wall_s = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        into.services.clear();
        into.services.extend(self.watched.values_mut().map(|w| w.look(now_ns)));
        Ok(arrivals)
    }

    /// Who is there.
    fn who(&mut self, now_ns: u64) -> anyhow::Result<Arrivals> {
        let mut arrivals = Arrivals::default();
        let changed = self.services.changed();
        let due = now_ns.saturating_sub(self.who_ns) >= WHO_NS;
        if self.who_ns != 0 && !due && changed == self.folder_changed {
            return Ok(arrivals);
        }
        (self.folder_changed, self.who_ns) = (changed, now_ns);
        let mut gone = std::mem::take(&mut self.watched);
        for service in self.services.live()? {
            let id: Arc<str> = service.name.as_str().into();
            // A ledger that is being made is looked at in the next period.
            let Some(old) = gone.remove(&id) else {
                if let Some(new) = Watched::new(id.clone(), service, now_ns) {
                    arrivals.came.push(id.clone());
                    self.watched.insert(id, new);
                } else {
                    self.folder_changed = None;
                }
                continue;
            };
            // One of the same name may have been made anew meanwhile.
            let Some(new) = Watched::new(id.clone(), service, now_ns) else {
                continue;
            };
            if new.created_ns == old.created_ns {
                self.watched.insert(id, old);
            } else {
                arrivals.went.push(id.clone());
                arrivals.came.push(id.clone());
                self.watched.insert(id, new);
            }
        }
        arrivals.went.extend(gone.into_keys());
        Ok(arrivals)
    }
}

impl Watched {
    fn new(id: Arc<str>, service: Service, now_ns: u64) -> Option<Self> {
        let ledger = service.ledger().ok()?;
        let created_ns = ledger.header.created_ns.load(Ordering::Relaxed);
        Some(Self {
            id,
            service,
            uid: rustix::process::geteuid().as_raw(),
            created_ns,
            done: done(&ledger.totals()),
            waited: [0.0; Resource::COUNT],
            ledger,
            last_ns: now_ns,
        })
    }

    fn look(&mut self, now_ns: u64) -> Seen {
        let limits = self.ledger.limits(now_ns);
        let done = done(&self.ledger.totals());
        let time_ns = now_ns.saturating_sub(self.last_ns);
        let mut usage: PerResource<Usage> = Default::default();
        for resource in Resource::ALL {
            let i = resource.index();
            let (then, now) = (self.done[i], done[i]);
            let per_s = |units: u64, factor: u128| {
                let scaled = u128::from(units) * factor / u128::from(time_ns.max(TOO_SHORT_NS));
                u64::try_from(scaled).unwrap_or(u64::MAX)
            };
            let waiting = limits.iter().any(|limit| {
                limit.level < 0 && limit.name.strip_suffix(BY_DAEMON) == Some(resource.class())
            });
            self.waited[i] = per_s(now.waited_ns.saturating_sub(then.waited_ns), 1_000_000_000) as f64;
            usage[i] = Usage {
                used: per_s(now.units.saturating_sub(then.units), 1_000_000_000_000),
                // A call under several limits waits once: which of them it was for is not known
                // afterwards.
                wanted_more: waiting,
                borrowed: None,
            };
        }
        (self.done, self.last_ns) = (done, now_ns);
        Seen {
            name: self.id.clone(),
            usage,
        }
    }
}

/// What was done of each resource.
fn done(totals: &[CallTotals]) -> PerResource<Done> {
    let mut found = [Done::default(); Resource::COUNT];
    for resource in Resource::ALL {
        let Some(selection) = select(resource.class()) else {
            continue;
        };
        let sum = &mut found[resource.index()];
        let of_it = totals.iter().filter(|total| belongs(&CALLS[total.call], resource, selection));
        for total in of_it {
            let units = match resource.unit() {
                Unit::Bytes => total.bytes,
                Unit::Calls => total.calls,
            };
            sum.units = sum.units.wrapping_add(units);
            sum.waits += total.delays.count();
            sum.waited_ns = sum.waited_ns.saturating_add(total.waited_ns);
        }
    }
    found
}

fn belongs(call: &Call, resource: Resource, selection: Selection) -> bool {
    selection.contains(call) && (resource.unit() == Unit::Calls || call.moves_bytes())
}
