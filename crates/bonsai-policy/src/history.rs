//! What is known of a service's demand: by hour of the day, over the whole day, and lately.
//!
//! # Definitions
//! - *observation*: the mean rate of a second. Shorter is the flutter of single calls, longer
//!   hides what a viewer feels.
//! - *hour*: of the local day, 0 to 23; each has a histogram.
//! - *hunger*: the part of the seconds of use, over a day, in which the service wanted more.
//!
//! # What an hour says
//! An hour that was seen little is filled up from its neighbours and from the whole day: they
//! count as [`ENOUGH_S`] seconds when it has none of its own, and less the more it has. Demand
//! [`AHEAD_S`] from now counts like that of now, so that a guarantee is there before the
//! evening is.

use std::borrow::Cow;

use crate::config::PerResource;
use crate::fill::{UNBOUNDED, narrow};
use crate::histogram::{Histogram, Mixture, bucket_of};
use crate::observation::Usage;

/// Hours of a day.
pub(crate) const HOURS: usize = 24;

const HOUR_S: u64 = 3_600;
const DAY_S: u64 = 86_400;

/// An hour has enough of its own at so many seconds: half of it.
const ENOUGH_S: f64 = 1_800.0;

/// How far ahead is looked.
pub(crate) const AHEAD_S: u64 = 900;

/// Half-life of what was seen lately.
pub(crate) const RECENT_HALF_LIFE_S: f64 = 1_200.0;

/// An observation is so long, nanoseconds.
const SECOND_NS: u64 = 1_000_000_000;

/// Where and when: what histories need to know of the clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Clock {
    /// Seconds that the history has seen pass, across restarts. It never goes back.
    pub(crate) history_s: f64,
    /// Seconds of local time.
    pub(crate) local_s: u64,
    pub(crate) half_life_s: f64,
}

impl Clock {
    pub(crate) fn hour(&self, ahead_s: u64) -> usize {
        let hour = (self.local_s + ahead_s) % DAY_S / HOUR_S;
        usize::try_from(hour).unwrap_or(0)
    }
}

/// The demand of a service for one resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct History {
    pub(crate) all: Histogram,
    pub(crate) recent: Histogram,
    pub(crate) hours: [Histogram; HOURS],
    /// Seconds that were seen.
    pub(crate) seconds: u64,
    /// Part of them in which it wanted more, of those of about a day.
    pub(crate) hunger: f64,
}

/// The second that is being observed, of all resources of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Gathered {
    pub(crate) span_ns: u64,
    /// What was used, thousandths of a unit.
    moved: PerResource<u64>,
    /// How long it wanted more.
    hungry_ns: PerResource<u64>,
}

impl Gathered {
    /// Takes in a period.
    pub(crate) fn add(&mut self, usage: &PerResource<Usage>, span_ns: u64) {
        self.span_ns += span_ns;
        for (i, usage) in usage.iter().enumerate().filter(|(_, usage)| usage.used > 0) {
            let used = usage.used.min(UNBOUNDED);
            // Microseconds suffice, and 64 bits for all rates but the highest.
            self.moved[i] += match used.checked_mul(span_ns / 1_000) {
                Some(moved) => moved / 1_000_000,
                None => narrow(u128::from(used) * u128::from(span_ns) / u128::from(SECOND_NS)),
            };
            self.hungry_ns[i] += if usage.wanted_more { span_ns } else { 0 };
        }
    }

    /// Whether the second is over that ends at multiples of a second, shifted by the service's
    /// number: not all services of a machine are looked at in the same period.
    pub(crate) fn is_over(&self, before_ns: u64, now_ns: u64, service: usize) -> bool {
        let shift = service as u64 * 618 % 1_000 * (SECOND_NS / 1_000);
        let second = |ns: u64| ns.saturating_add(shift) / SECOND_NS;
        second(before_ns) != second(now_ns) && self.span_ns >= SECOND_NS / 2
    }

    /// The mean rate of a resource, and whether it wanted more for most of the time.
    pub(crate) fn mean(&self, resource: usize) -> (u64, bool) {
        let moved = u128::from(self.moved[resource]) * u128::from(SECOND_NS);
        let rate = narrow(moved / u128::from(self.span_ns.max(1)));
        (rate, 2 * self.hungry_ns[resource] > self.span_ns)
    }
}

/// A second that was observed.
#[derive(Clone, Copy, Debug)]
struct Second {
    clock: Clock,
    span_ns: u64,
    rates: PerResource<u64>,
    hungry: PerResource<bool>,
}

/// What is known of a service.
///
/// Histories of a thousand services are too much for a cache, and a second changes something in
/// a dozen places of each. So seconds are kept in a journal, and put into the histories
/// [`BATCH`] at a time, or when somebody asks: nobody can tell the difference.
#[derive(Clone, Debug, Default)]
pub(crate) struct Histories {
    /// Of each resource that was ever used; without what is in the journal.
    settled: PerResource<Option<Box<History>>>,
    journal: Vec<Second>,
    noted: usize,
}

/// So many seconds at a time.
const BATCH: usize = 16;

impl Histories {
    pub(crate) fn new(settled: PerResource<Option<Box<History>>>) -> Self {
        Self {
            settled,
            ..Self::default()
        }
    }

    /// Notes a second of a service, or the period of somebody who looks less often; returns its
    /// rates. Not all services of a machine have their turn in the same second.
    pub(crate) fn note(
        &mut self,
        done: &Gathered,
        clock: &Clock,
        service: usize,
    ) -> PerResource<u64> {
        let means: PerResource<_> = core::array::from_fn(|i| done.mean(i));
        let rates = means.map(|(rate, _)| rate);
        self.journal.push(Second {
            clock: *clock,
            span_ns: done.span_ns,
            rates,
            hungry: means.map(|(_, hungry)| hungry),
        });
        self.noted += 1;
        if (self.noted + service).is_multiple_of(BATCH) {
            self.settle();
        }
        rates
    }

    /// Empties the journal.
    fn settle(&mut self) {
        for (i, history) in self.settled.iter_mut().enumerate() {
            for second in &self.journal {
                History::note(history, second, i);
            }
        }
        self.journal.clear();
    }

    /// The history of a resource.
    pub(crate) fn settled(&mut self, i: usize) -> Option<&History> {
        self.settle();
        self.settled[i].as_deref()
    }

    /// The same, for who may not change anything.
    pub(crate) fn of(&self, i: usize) -> Option<Cow<'_, History>> {
        if self.journal.is_empty() {
            return self.settled[i].as_deref().map(Cow::Borrowed);
        }
        let mut history = self.settled[i].clone();
        for second in &self.journal {
            History::note(&mut history, second, i);
        }
        history.map(|history| Cow::Owned(*history))
    }

    /// Whether anything is known.
    pub(crate) fn has_any(&mut self) -> bool {
        self.settle();
        self.settled.iter().any(Option::is_some)
    }

    /// Seconds of all resources.
    pub(crate) fn seconds(&mut self) -> u64 {
        self.settle();
        let known = self.settled.iter().flatten();
        known.map(|history| history.seconds).sum()
    }
}

impl History {
    /// Takes in what a second says of a resource. One that was never used has no history, and
    /// needs no memory.
    fn note(history: &mut Option<Box<Self>>, second: &Second, i: usize) {
        let rate = second.rates[i];
        if history.is_some() || rate > 0 {
            let history = history.get_or_insert_default();
            history.take(rate, second.hungry[i], second);
        }
    }

    fn take(&mut self, rate: u64, hungry: bool, second: &Second) {
        let (clock, span_ns) = (&second.clock, second.span_ns);
        let (now_s, half_life_s) = (clock.history_s, clock.half_life_s);
        let seconds = span_ns as f64 / SECOND_NS as f64;
        let bucket = bucket_of(rate);
        self.all.add(bucket, seconds, now_s, half_life_s);
        self.recent.add(bucket, seconds, now_s, RECENT_HALF_LIFE_S);
        self.hours[clock.hour(0)].add(bucket, seconds, now_s, half_life_s);
        self.seconds += ((span_ns + SECOND_NS / 2) / SECOND_NS).max(1);
        if rate > 0 {
            let hungry = if hungry { 1.0 } else { 0.0 };
            let part = seconds / self.seconds.min(DAY_S) as f64;
            self.hunger += (hungry - self.hunger) * part.min(1.0);
        }
    }

    /// How long the history is, in days that were seen.
    pub(crate) fn days(&self) -> f64 {
        self.seconds as f64 / DAY_S as f64
    }

    /// What the demand is at an hour of the day.
    pub(crate) fn at_hour(&self, hour: usize, clock: &Clock, into: &mut Mixture) {
        let (now_s, half_life_s) = (clock.history_s, clock.half_life_s);
        into.clear();
        let own = &self.hours[hour];
        into.add(own.worth(now_s, half_life_s), 1.0);
        // An hour of yesterday is worth half: enough of that is enough.
        let missing = ENOUGH_S / (ENOUGH_S + 2.0 * own.total(now_s, half_life_s));
        let others = [
            (&self.hours[(hour + HOURS - 1) % HOURS], 0.25),
            (&self.hours[(hour + 1) % HOURS], 0.25),
            (&self.all, 0.5),
        ];
        for (other, part) in others {
            let total = other.total(now_s, half_life_s);
            if total > 0.0 {
                let seconds = ENOUGH_S * missing * part;
                into.add(other.worth(now_s, half_life_s), seconds / total);
            }
        }
    }

    /// What the demand was lately.
    pub(crate) fn lately(&self, clock: &Clock, into: &mut Mixture) {
        into.clear();
        into.add(self.recent.worth(clock.history_s, RECENT_HALF_LIFE_S), 1.0);
    }
}
