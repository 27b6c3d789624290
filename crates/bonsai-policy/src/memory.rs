//! What must survive a restart, as plain data; whoever keeps it chooses the format.

use bonsai_units::Resource;

use crate::cause::CauseKind;
use crate::config::{Name, PerResource};
use crate::histogram::Histogram;
use crate::history::{Clock, Histories, History, RECENT_HALF_LIFE_S};
use crate::policy::Policy;

/// Bucket of a histogram, and how many seconds in it are worth at the time of the export.
/// Bucket 0 is below one unit per second, bucket `k` ends at 1.05 to the power of `k`.
pub type Entry = (u16, f32);

/// What was learned of all services.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// When it was exported, seconds since 1970 UTC.
    pub wall_s: u64,
    /// Each service.
    pub services: Vec<ServiceMemory>,
}

/// What was learned of a service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceMemory {
    /// Which.
    pub name: Name,
    /// Each resource that it has used.
    pub resources: Vec<ResourceMemory>,
}

/// What was learned of a service's demand for a resource.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceMemory {
    /// Which.
    pub resource: Resource,
    /// Seconds that were seen.
    pub seconds: u64,
    /// Part of the time in which it wanted more.
    pub hunger: f64,
    /// The guarantee that it had, or would have had in a dry run, where that is not the
    /// configured one.
    pub guarantee: Option<u64>,
    /// Of the whole day.
    pub all: Vec<Entry>,
    /// Of lately.
    pub recent: Vec<Entry>,
    /// Of each hour of the local day.
    pub hours: Vec<Vec<Entry>>,
}

/// No history is older than this.
const LONGEST_S: u64 = 366 * 86_400;

impl Policy {
    /// What was learned; `wall_s` is now, seconds since 1970 UTC.
    #[must_use]
    pub fn export(&self, wall_s: u64) -> Memory {
        let clock = self.clock();
        let own = self.plan.services.iter().zip(&self.learned.histories);
        let own = own.enumerate().map(|(at, (service, histories))| {
            let wishes = core::array::from_fn(|i| self.live[at].cold.auto[i].wish);
            (&service.name, histories, wishes)
        });
        let parked = self.learned.parked.iter();
        let parked = parked.map(|(name, histories)| (name, histories, [None; Resource::COUNT]));
        let services = own.chain(parked).filter_map(|(name, histories, wishes)| {
            let resources = resources(histories, &wishes, &clock);
            (!resources.is_empty()).then(|| ServiceMemory {
                name: name.clone(),
                resources,
            })
        });
        Memory {
            wall_s,
            services: services.collect(),
        }
    }

    /// Takes over what was learned before; `wall_s` is now. What it says replaces what is
    /// known of the same services; nonsense in it is left out.
    pub fn import(&mut self, memory: &Memory, wall_s: u64) {
        let clock = self.clock();
        // A wall clock that went back has not made anything younger.
        let elapsed_s = wall_s.saturating_sub(memory.wall_s).min(LONGEST_S);
        let then_s = clock.history_s - elapsed_s as f64;
        for service in &memory.services {
            let mut histories = PerResource::default();
            for known in &service.resources {
                histories[known.resource.index()] = Some(Box::new(history(known, then_s)));
            }
            let Some(&at) = self.plan.index.get(&service.name) else {
                let histories = Histories::new(histories);
                self.learned.park(service.name.clone(), histories);
                continue;
            };
            self.learned.histories[at as usize] = Histories::new(histories);
            for known in &service.resources {
                if let Some(guarantee) = known.guarantee {
                    let auto = &mut self.live[at as usize].cold.auto[known.resource.index()];
                    auto.restore(guarantee, CauseKind::Remembered);
                }
            }
        }
        self.fit();
        self.learned.dirty = true;
    }

    /// The clock, also before the first decision.
    pub(crate) fn clock(&self) -> Clock {
        Clock {
            half_life_s: f64::from(self.config.adaptive.half_life_h) * 3_600.0,
            ..self.learned.clock
        }
    }
}

fn resources(
    histories: &Histories,
    wishes: &PerResource<Option<u64>>,
    clock: &Clock,
) -> Vec<ResourceMemory> {
    let known = |resource: Resource| {
        let history = histories.of(resource.index())?;
        let entries = |histogram: &Histogram, half_life_s: f64| {
            let worth = histogram.worth(clock.history_s, half_life_s);
            worth
                .map(|(bucket, weight)| (bucket, crate::histogram::narrow(weight)))
                .collect()
        };
        let hours = history
            .hours
            .iter()
            .map(|hour| entries(hour, clock.half_life_s));
        Some(ResourceMemory {
            resource,
            seconds: history.seconds,
            hunger: history.hunger,
            guarantee: wishes[resource.index()],
            all: entries(&history.all, clock.half_life_s),
            recent: entries(&history.recent, RECENT_HALF_LIFE_S),
            hours: hours.collect(),
        })
    };
    Resource::ALL.into_iter().filter_map(known).collect()
}

fn history(known: &ResourceMemory, then_s: f64) -> History {
    let hunger = known.hunger;
    let hour = |hour: usize| {
        let entries = known
            .hours
            .get(hour)
            .map_or(&[][..], |entries| &entries[..]);
        Histogram::from_worth(entries, then_s)
    };
    History {
        all: Histogram::from_worth(&known.all, then_s),
        recent: Histogram::from_worth(&known.recent, then_s),
        hours: core::array::from_fn(hour),
        seconds: known.seconds.min(LONGEST_S),
        hunger: if hunger.is_finite() {
            hunger.clamp(0.0, 1.0)
        } else {
            0.0
        },
    }
}
