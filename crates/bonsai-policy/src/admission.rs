//! Whether something more fits.
//!
//! # How it is decided
//! *Yes* means that what is asked for can be guaranteed: all guarantees together, with it, come
//! to no more than the capacity without its reserve, and in each group above to no more than
//! its ceiling. Whoever asks for a confidence gets *yes* only if all demands fit with that
//! probability, too.
//!
//! # The probability
//! That the demands of all fit into the capacity at that hour of the day. The demand of each
//! service is distributed as its history says ([`crate::history`]); one without history demands
//! what it does now. A service that takes whatever is free counts with its guarantee. Streams
//! send `peak` in `rate / peak` of the time each, so that all of them are binomial; without a
//! peak they are constant. The sum is the convolution of all, on a grid of a thousandth of the
//! capacity. A value between two cells is split so that means stay exact.
//!
//! # Limits
//! Demands are taken to be independent once the hour is known. A match that everybody watches
//! is not in it. The grid blurs the answer by about a thousandth of the capacity for each large
//! service.

use core::fmt;

use bonsai_units::Resource;

use crate::adaptive::ELASTIC;
use crate::allocation::rate;
use crate::config::Name;
use crate::fill::{UNBOUNDED, narrow};
use crate::history::Clock;
use crate::policy::Policy;

/// Cells of the grid up to the capacity.
const CELLS: usize = 1_000;

/// More streams than these are bundled: their sum is as good as constant.
const STREAMS: u32 = 1_000;

/// A question for admission. Rates are thousandths of a unit per second.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Who is to serve it: a service that is known.
    pub service: Option<Name>,
    /// Or the class of a service to come.
    pub class: Option<Name>,
    /// Of what.
    pub resource: Resource,
    /// How many streams, sessions, jobs.
    pub streams: u32,
    /// The mean rate of each.
    pub rate: u64,
    /// Its highest rate, where it varies.
    pub peak: Option<u64>,
    /// With which probability all has to fit, 0 to 1, if that matters.
    pub confidence: Option<f64>,
    /// When, seconds since 1970 UTC.
    pub wall_s: u64,
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The resource has no capacity.
    #[error("{0} has no capacity: configure or measure one, then it can be said what fits")]
    NoCapacity(Resource),
    /// The service is not known.
    #[error("there is no service {0}, neither configured nor running")]
    UnknownService(Name),
    /// The class is not known.
    #[error("there is no class {0}")]
    UnknownClass(Name),
    /// Nothing is asked for.
    #[error(
        "nothing is asked for: streams and rate have to be above 0, and a peak no less than the rate"
    )]
    Nothing,
}

/// What somebody would have to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gives {
    /// What it uses beyond its guarantee.
    Borrowed,
    /// A guarantee beyond what its own configuration says.
    Learned,
    /// A guarantee that a person configured.
    Guarantee,
}

/// Who would have to give what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Giver {
    /// Who.
    pub service: Name,
    /// What.
    pub gives: Gives,
    /// How much.
    pub rate: u64,
}

/// The answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Admission {
    /// Yes or no.
    pub admitted: bool,
    /// Of what.
    pub resource: Resource,
    /// What is asked for, on average.
    pub needed: u64,
    /// By how much guarantees would have to grow for it.
    pub guarantee: u64,
    /// By how much they can.
    pub guarantee_free: u64,
    /// What nobody demands at the moment.
    pub free: u64,
    /// The probability that all demands fit, 0 to 1.
    pub probability: f64,
    /// Who would have to give what: use of the moment if that is more than what is free, and
    /// guarantees if it cannot be guaranteed otherwise.
    pub givers: Vec<Giver>,
}

impl Policy {
    /// Whether something more fits.
    ///
    /// # Errors
    /// The question has no answer.
    pub fn admit(&self, request: &Request) -> Result<Admission, RequestError> {
        let resource = request.resource;
        let i = resource.index();
        let no_capacity = RequestError::NoCapacity(resource);
        let capacity = self.config.capacity[i].ok_or(no_capacity)?;
        if request.streams == 0
            || request.rate == 0
            || request.peak.is_some_and(|peak| peak < request.rate)
        {
            return Err(RequestError::Nothing);
        }
        let needed = narrow(u128::from(request.rate) * u128::from(request.streams)).min(UNBOUNDED);
        let clock = Clock {
            local_s: request
                .wall_s
                .saturating_add_signed(i64::from(self.learned.utc_offset_s)),
            ..self.clock()
        };
        let (guarantee, guarantee_free) = self.guarantees_for(request, needed, &clock)?;
        let probability = self.probability(request, capacity, &clock);
        let fits = guarantee <= guarantee_free;
        let sure = request.confidence.is_none_or(|least| probability >= least);
        let free = self.allocation.free[i].unwrap_or(capacity);
        let mut givers = self.borrowers(resource, needed.saturating_sub(free));
        givers.extend(self.guaranteed(request, guarantee.saturating_sub(guarantee_free)));
        Ok(Admission {
            admitted: fits && sure,
            resource,
            needed,
            guarantee,
            guarantee_free,
            free,
            probability,
            givers,
        })
    }

    /// By how much guarantees would have to grow, and can.
    fn guarantees_for(
        &self,
        request: &Request,
        needed: u64,
        clock: &Clock,
    ) -> Result<(u64, u64), RequestError> {
        let i = request.resource.index();
        let tree = &self.plan.tree;
        let first = tree.first_leaf;
        let sums = tree.guaranteed(i, |node| self.wish(node - first, i));
        let most = self.most_of_all(i).unwrap_or(0);
        if let Some(name) = &request.service {
            let unknown = || RequestError::UnknownService(name.clone());
            let at = *self.plan.index.get(name).ok_or_else(unknown)? as usize;
            let has = self.wish(at, i);
            let demands = self.demand_at(at, i, clock);
            let grows = demands.saturating_add(needed).saturating_sub(has);
            return Ok((grows, tree.room(i, &sums, self.plan.node(at), most)));
        }
        let class = match &request.class {
            None => None,
            Some(name) => {
                let found = self.config.classes.iter().find(|class| class.name == *name);
                Some(found.ok_or_else(|| RequestError::UnknownClass(name.clone()))?)
            }
        };
        let terms = class.map(|class| class.terms[i]).unwrap_or_default();
        let group = class.and_then(|class| class.group.as_ref());
        let room = tree.room_in(i, &sums, self.plan.group(group), most);
        let room = room.min(terms.max.unwrap_or(u64::MAX));
        Ok((needed.max(terms.min.unwrap_or(0)), room))
    }

    /// What a service demands at that hour, as a percentile; one without history, what it does
    /// now; one that takes whatever is free, its guarantee.
    fn demand_at(&self, at: usize, i: usize, clock: &Clock) -> u64 {
        let Some(history) = self.learned.histories[at].of(i) else {
            return self.demand_now(at, i);
        };
        if history.hunger > ELASTIC {
            return self.wish(at, i);
        }
        let mut mixture = crate::histogram::Mixture::default();
        history.at_hour(clock.hour(0), clock, &mut mixture);
        let percentile = mixture.percentile(self.config.adaptive.percentile);
        percentile.unwrap_or_else(|| self.demand_now(at, i))
    }

    /// What it was taken to demand in the latest allocation.
    fn demand_now(&self, at: usize, i: usize) -> u64 {
        let is = |place: &u32| *place as usize == at;
        let place = self.places.iter().position(is);
        let allocated = place.and_then(|place| self.allocation.services.get(place));
        let grant = allocated.map(|allocated| allocated.grants[i]);
        grant
            .and_then(|grant| grant.demand.or(grant.share))
            .unwrap_or(0)
    }

    /// The probability that all demands fit.
    fn probability(&self, request: &Request, capacity: u64, clock: &Clock) -> f64 {
        let i = request.resource.index();
        let mut sum = Sum::new(capacity);
        let mut mixture = crate::histogram::Mixture::default();
        for &at in &self.places {
            let at = at as usize;
            let history = self.learned.histories[at].of(i);
            let Some(history) = history.filter(|history| history.seconds > 0) else {
                sum.add([(self.demand_now(at, i) as f64, 1.0)].into_iter());
                continue;
            };
            if history.hunger > ELASTIC {
                sum.add([(self.wish(at, i) as f64, 1.0)].into_iter());
                continue;
            }
            history.at_hour(clock.hour(0), clock, &mut mixture);
            sum.add(mixture.distribution());
        }
        sum.add(streams(request).into_iter());
        sum.fits()
    }

    /// Who uses more than its guarantee, the most first, for a lack of so much.
    fn borrowers(&self, resource: Resource, lack: u64) -> Vec<Giver> {
        let i = resource.index();
        let borrowed = self.allocation.services.iter().map(|service| {
            let grant = service.grants[i];
            let borrowed = grant.share.unwrap_or(0).saturating_sub(grant.guarantee);
            (service.name.clone(), borrowed)
        });
        take(borrowed.collect(), Gives::Borrowed, lack).0
    }

    /// Whose guarantee would have to be smaller: first those that were learned.
    fn guaranteed(&self, request: &Request, lack: u64) -> Vec<Giver> {
        let i = request.resource.index();
        let others = self.plan.services.iter().enumerate();
        let others = others.filter(|(_, service)| Some(&service.name) != request.service.as_ref());
        let all: Vec<(Name, u64, u64)> = others
            .map(|(at, service)| {
                let has = self.wish(at, i);
                let own = service.own_min[i].min(has);
                (service.name.clone(), has - own, own)
            })
            .collect();
        let learned = all
            .iter()
            .map(|(name, learned, _)| (name.clone(), *learned))
            .collect();
        let (mut givers, lack) = take(learned, Gives::Learned, lack);
        let own = all.into_iter().map(|(name, _, own)| (name, own)).collect();
        givers.extend(take(own, Gives::Guarantee, lack).0);
        givers
    }
}

/// Takes what is lacking from those who have most; returns what is still lacking.
fn take(mut from: Vec<(Name, u64)>, gives: Gives, lack: u64) -> (Vec<Giver>, u64) {
    from.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let mut left = lack;
    let mut givers = Vec::new();
    for (service, has) in from {
        let rate = has.min(left);
        if rate == 0 {
            break;
        }
        left -= rate;
        givers.push(Giver {
            service,
            gives,
            rate,
        });
    }
    (givers, left)
}

/// The distribution of all streams together: each sends its peak in a part of the time.
fn streams(request: &Request) -> Vec<(f64, f64)> {
    let bundles = request.streams.min(STREAMS);
    let each = f64::from(request.streams) / f64::from(bundles);
    let mean = request.rate as f64;
    let peak = request.peak.map_or(mean, |peak| peak as f64);
    let on = mean / peak;
    if on >= 1.0 {
        return vec![(mean * f64::from(request.streams), 1.0)];
    }
    // Terms of the binomial from its highest on, so that none is lost for being small.
    let count = f64::from(bundles);
    let mode = ((count + 1.0) * on).floor().min(count);
    let odds = on / (1.0 - on);
    let mut terms = vec![(mode, 1.0)];
    let (mut k, mut term) = (mode, 1.0);
    while k < count {
        term *= (count - k) / (k + 1.0) * odds;
        k += 1.0;
        terms.push((k, term));
    }
    (k, term) = (mode, 1.0);
    while k > 0.0 {
        term *= k / (count - k + 1.0) / odds;
        k -= 1.0;
        terms.push((k, term));
    }
    let total: f64 = terms.iter().map(|term| term.1).sum();
    let value = |(k, term): (f64, f64)| (k * each * peak, term / total);
    terms.into_iter().map(value).collect()
}

/// The distribution of a sum, on a grid; what is beyond the capacity is not kept.
struct Sum {
    cell: f64,
    cells: Vec<f64>,
    next: Vec<f64>,
    points: Vec<f64>,
}

impl Sum {
    /// Nothing, with certainty.
    fn new(capacity: u64) -> Self {
        let mut cells = vec![0.0; CELLS + 1];
        cells[0] = 1.0;
        Self {
            cell: capacity as f64 / CELLS as f64,
            next: cells.clone(),
            points: cells.clone(),
            cells,
        }
    }

    /// Adds an independent demand: values and their probabilities.
    fn add(&mut self, demand: impl Iterator<Item = (f64, f64)>) {
        self.points.fill(0.0);
        for (value, probability) in demand {
            let at = value / self.cell;
            let below = at.floor();
            for (cell, part) in [(below, below + 1.0 - at), (below + 1.0, at - below)] {
                if part > 0.0 && cell <= CELLS as f64 {
                    self.points[index(cell)] += probability * part;
                }
            }
        }
        self.next.fill(0.0);
        let points = self
            .points
            .iter()
            .enumerate()
            .filter(|point| *point.1 > 0.0);
        for (offset, point) in points {
            for (next, cell) in self.next[offset..].iter_mut().zip(&self.cells) {
                *next += point * cell;
            }
        }
        core::mem::swap(&mut self.cells, &mut self.next);
    }

    fn fits(&self) -> f64 {
        self.cells.iter().sum::<f64>().clamp(0.0, 1.0)
    }
}

fn index(cell: f64) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cell of the grid"
    )]
    let index = cell as usize;
    index.min(CELLS)
}

impl fmt::Display for Giver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.service)?;
        f.write_str(match self.gives {
            Gives::Borrowed => " what it borrows",
            Gives::Learned => " of its learned guarantee",
            Gives::Guarantee => " of its guarantee",
        })
    }
}

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |milli| rate(self.resource, milli);
        let fits = self.guarantee <= self.guarantee_free;
        match (self.admitted, fits) {
            (true, _) => write!(f, "yes: {} can be guaranteed", rate(self.needed))?,
            (false, true) => f.write_str("no: all may not fit often enough")?,
            (false, false) => write!(
                f,
                "no: guarantees would grow by {}, and there is room for {}",
                rate(self.guarantee),
                rate(self.guarantee_free)
            )?,
        }
        write!(
            f,
            "; all demands fit with a probability of {:.2} %; free now is {}",
            self.probability * 100.0,
            rate(self.free)
        )?;
        for (at, giver) in self.givers.iter().enumerate() {
            f.write_str(if at == 0 {
                "; would have to give: "
            } else {
                ", "
            })?;
            write!(f, "{giver}, {}", rate(giver.rate))?;
        }
        Ok(())
    }
}
