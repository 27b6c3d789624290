//! What is decided, and why.

use core::fmt;

use bonsai_units::{Rate, Resource};

use crate::cause::Cause;
use crate::config::{Name, PerResource};

/// What a service gets of one resource. Rates are thousandths of a unit per second; `None`
/// is without bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// What it gets at once, whatever others do: its guarantee in a pool.
    pub guarantee: u64,
    /// The most it gets: its ceiling in a pool.
    pub ceiling: Option<u64>,
    /// Its weight in a flat pool that gives everybody their share.
    pub weight: u32,
    /// Its part by weighted max-min, no more than it demands.
    pub share: Option<u64>,
    /// A plain limit for where there is no pool: the share, and a part of what nobody
    /// demands; moves only by more than the hysteresis. All limits together are within the
    /// capacity.
    pub limit: Option<u64>,
    /// What it was taken to want: what it used and the headroom; without bound where it
    /// wanted more.
    pub demand: Option<u64>,
    pub(crate) resource: Resource,
    pub(crate) how: How,
    /// Its own weight, by which it has its part among its siblings.
    pub(crate) by_weight: u32,
    /// Weight of all services of its owner together, where that is bounded.
    pub(crate) owner_weight: Option<u32>,
    /// True for a service that did nothing: the demand that it is taken to have then keeps its limit above nothing.
    pub(crate) idle: bool,
}

/// Which [`Why`] it is: the rest follows from the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Unshared,
    CeilingOnly,
    Static,
    Met,
    Shares,
    AtCeiling,
}

impl Grant {
    /// Without bound.
    pub(crate) const fn unshared(resource: Resource) -> Self {
        Self {
            guarantee: 0,
            ceiling: None,
            weight: 1,
            share: None,
            limit: None,
            demand: None,
            resource,
            how: How::Unshared,
            by_weight: 1,
            owner_weight: None,
            idle: false,
        }
    }

    /// Weight as it was configured, among its siblings. The one of a flat pool is another scale.
    #[must_use]
    pub const fn own_weight(&self) -> u32 {
        self.by_weight
    }

    /// Demand, for people: nothing where it did nothing.
    #[must_use]
    pub const fn wanted(&self) -> Option<u64> {
        if self.idle { Some(0) } else { self.demand }
    }

    /// Share of the demand, for people: nothing where it did nothing.
    #[must_use]
    pub const fn given(&self) -> Option<u64> {
        match self.how {
            How::Met if self.idle => Some(0),
            _ => self.share,
        }
    }

    /// Why it is as it is.
    #[must_use]
    pub fn reason(&self) -> Reason {
        let share = self.share.unwrap_or(0);
        let guarantee = self.guarantee.min(share);
        let (beyond, weight) = (share - guarantee, self.by_weight);
        let why = match self.how {
            How::Unshared => Why::Unshared,
            How::CeilingOnly => Why::CeilingOnly { ceiling: share },
            How::Static => Why::Static {
                guarantee,
                by_weight: beyond,
                weight,
                of_owner: self.owner_weight,
            },
            How::Met if self.idle => Why::Idle {
                guarantee: self.guarantee,
            },
            How::Met => met(self.demand.unwrap_or(0), self.guarantee),
            How::Shares => Why::Shares {
                guarantee,
                borrowed: beyond,
                weight,
                of_owner: self.owner_weight,
            },
            How::AtCeiling => Why::AtCeiling { ceiling: share },
        };
        Reason {
            resource: self.resource,
            why,
        }
    }
}

/// A demand that is met.
fn met(demand: u64, guarantee: u64) -> Why {
    if demand < guarantee {
        return Why::Lends {
            guarantee,
            lent: guarantee - demand,
            demand,
        };
    }
    Why::Met {
        demand,
        guarantee,
        borrowed: demand - guarantee,
    }
}

/// What a service gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// Which.
    pub name: Name,
    /// What of each resource.
    pub grants: PerResource<Grant>,
}

/// A guarantee that was, or would be, changed automatically.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Whose.
    pub service: Name,
    /// Of what.
    pub resource: Resource,
    /// The guarantee that it has, or had.
    pub from: u64,
    /// The one that it would have, or has.
    pub to: u64,
    /// Why; `Display` is the sentence.
    pub why: Cause,
}

/// What is decided for a period.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocation {
    /// The services of the observation, in its order.
    pub services: Vec<Allocated>,
    /// What nobody demands.
    pub free: PerResource<Option<u64>>,
    /// What was changed automatically in this period.
    pub changes: Vec<Change>,
    /// What would be different if automatic changes were switched on.
    pub proposals: Vec<Change>,
}

/// Why a service gets what it gets. `Display` is a sentence in plain words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Of what.
    pub resource: Resource,
    /// Why.
    pub why: Why,
}

/// The cases of a [`Reason`]; rates as in [`Grant`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The resource has no capacity, and the service no ceiling on it.
    Unshared,
    /// The resource has no capacity; the ceiling holds.
    CeilingOnly {
        /// The ceiling.
        ceiling: u64,
    },
    /// In mode static: a part that does not depend on what is used.
    Static {
        /// Of it, the guarantee.
        guarantee: u64,
        /// Of it, by weight.
        by_weight: u64,
        /// That weight.
        weight: u32,
        /// The one that all services of its owner have together, where that is bounded.
        of_owner: Option<u32>,
    },
    /// It demands less than its guarantee; the rest is lent.
    Lends {
        /// The guarantee.
        guarantee: u64,
        /// What of it is lent.
        lent: u64,
        /// What it demands.
        demand: u64,
    },
    /// Nothing is done; the guarantee is lent.
    Idle {
        /// The guarantee.
        guarantee: u64,
    },
    /// It gets all that it demands.
    Met {
        /// What it demands.
        demand: u64,
        /// Of it, the guarantee.
        guarantee: u64,
        /// Of it, borrowed.
        borrowed: u64,
    },
    /// It demands more than there is for it.
    Shares {
        /// The guarantee.
        guarantee: u64,
        /// What it gets beyond that.
        borrowed: u64,
        /// By this weight.
        weight: u32,
        /// The one that all services of its owner have together, where that is bounded.
        of_owner: Option<u32>,
    },
    /// It demands more than its ceiling.
    AtCeiling {
        /// The ceiling.
        ceiling: u64,
    },
}

impl Reason {
    fn rate(&self, milli: u64) -> String {
        rate(self.resource, milli)
    }
}

/// A rate for people.
pub(crate) fn rate(resource: Resource, milli: u64) -> String {
    if milli == 0 {
        return "nothing".to_owned();
    }
    resource.for_people(Rate::from_milli(milli, resource.unit()))
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why {
            Why::Unshared => write!(f, "{} has no capacity, so it is not shared", self.resource),
            Why::CeilingOnly { ceiling } => write!(
                f,
                "{} has no capacity: only the ceiling holds, {}",
                self.resource,
                self.rate(ceiling)
            ),
            Why::Static {
                guarantee,
                by_weight,
                weight,
                of_owner,
            } => self.parts(
                f,
                "static",
                guarantee,
                ("by weight", by_weight),
                (weight, of_owner),
            ),
            Why::Lends {
                guarantee,
                lent,
                demand,
            } => write!(
                f,
                "guarantee {}, {} of it lent: demand was {}",
                self.rate(guarantee),
                self.rate(lent),
                self.rate(demand)
            ),
            Why::Idle { guarantee: 0 } => write!(f, "idle"),
            Why::Idle { guarantee } => {
                write!(f, "idle: its guarantee, {}, is lent", self.rate(guarantee))
            }
            Why::Met {
                demand,
                guarantee,
                borrowed,
            } => self.met(f, demand, guarantee, borrowed),
            Why::Shares {
                guarantee,
                borrowed,
                weight,
                of_owner,
            } => self.parts(
                f,
                "wanted more",
                guarantee,
                ("borrowed by weight", borrowed),
                (weight, of_owner),
            ),
            Why::AtCeiling { ceiling } => {
                write!(f, "wanted more than its ceiling, {}", self.rate(ceiling))
            }
        }
    }
}

impl Reason {
    fn met(
        &self,
        f: &mut fmt::Formatter<'_>,
        demand: u64,
        guarantee: u64,
        borrowed: u64,
    ) -> fmt::Result {
        let demand = self.rate(demand);
        match (guarantee, borrowed) {
            (_, 0) => write!(
                f,
                "demand was {demand}, the guarantee {}",
                self.rate(guarantee)
            ),
            (0, _) => write!(f, "demand was {demand}, all of it borrowed"),
            _ => write!(
                f,
                "demand was {demand}: guarantee {} and {} borrowed",
                self.rate(guarantee),
                self.rate(borrowed)
            ),
        }
    }

    fn parts(
        &self,
        f: &mut fmt::Formatter<'_>,
        head: &str,
        guarantee: u64,
        (how, more): (&str, u64),
        (weight, of_owner): (u32, Option<u32>),
    ) -> fmt::Result {
        let more = self.rate(more);
        match guarantee {
            0 => write!(f, "{head}: {more} {how} {weight}")?,
            _ => write!(
                f,
                "{head}: guarantee {} and {more} {how} {weight}",
                self.rate(guarantee)
            )?,
        }
        match of_owner {
            Some(all) => write!(f, "; all services of this user share a weight of {all}"),
            None => Ok(()),
        }
    }
}
