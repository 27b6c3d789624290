//! What is wanted of the interfaces of a namespace, and whether it can be.
//!
//! An interface has a limit for each direction. Besides, it may have a share of an *uplink*, an
//! interface by which many leave: a guarantee, a ceiling and a weight there. So may a group of
//! processes. Directions are those of the interface that is named, as `ip -s link` shows them: what
//! the host's end of a pair receives is what the guest behind it sends.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::groups::{Above, Group};
use crate::links::Link;
use crate::rules::{MAX_RATE, MIN_RATE, WEIGHT};

/// What is wanted of an interface. Rates are bytes per second at layer 2.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Terms {
    /// The most it sends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx: Option<u64>,
    /// The most it receives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx: Option<u64>,
    /// What it has of an uplink of what it receives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
    /// For how long a limit may be exceeded, ns; if nothing is said [`crate::rules::BURST_NS`], and
    /// [`crate::rules::SHARE_BURST_NS`] of one that borrows of an uplink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_ns: Option<u64>,
}

/// What an interface or a group has of an uplink. Rates are bytes per second at layer 2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The interface by which it leaves.
    pub uplink: u32,
    /// What it has there whenever it wants it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<u64>,
    /// The most it has there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<u64>,
    /// How what is left is shared out, 1 to 1000.
    #[serde(default = "weight")]
    pub weight: u16,
}

fn weight() -> u16 {
    WEIGHT
}

impl Terms {
    /// Whether nothing is wanted.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.tx.is_none() && self.rx.is_none() && self.share.is_none()
    }
}

/// What is wanted of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Interfaces, by number.
    pub links: BTreeMap<u32, Terms>,
    /// Groups of processes, by path in the hierarchy of version 2. They need not be there.
    #[serde(default)]
    pub groups: BTreeMap<String, Group>,
    /// What there is of groups above those ([`Wanted::above`]), by path.
    #[serde(default)]
    pub tree: BTreeMap<String, Above>,
}

/// Who has a share of an uplink.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    /// An interface, by its number.
    Link(u32),
    /// A group of processes, by its path.
    Group(String),
}

/// A share, and whose it is.
#[derive(Clone, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) who: Who,
    pub(crate) share: &'a Share,
    pub(crate) burst_ns: Option<u64>,
}

impl Wanted {
    /// The shares of each uplink: those of interfaces by number, then those of groups by path.
    pub(crate) fn shares(&self) -> BTreeMap<u32, Vec<Part<'_>>> {
        let of_links = self.links.iter().filter_map(|(index, terms)| {
            let share = terms.share.as_ref()?;
            // The burst of an interface is that of its own limits.
            Some((Who::Link(*index), share, None))
        });
        let of_groups = self.groups.iter();
        let of_groups =
            of_groups.map(|(path, group)| (Who::Group(path.clone()), &group.share, group.burst_ns));
        let mut shares: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for (who, share, burst_ns) in of_links.chain(of_groups) {
            shares.entry(share.uplink).or_default().push(Part {
                who,
                share,
                burst_ns,
            });
        }
        shares
    }

    /// What is different in two that are of the same interfaces and groups, with whatever that depends
    /// on: an uplink, and all who have a share of it.
    pub(crate) fn parts_that_differ(from: &Self, to: &Self) -> [Self; 2] {
        // Who else has a share is said by groups, too.
        if !to.groups.is_empty() {
            return [from.clone(), to.clone()];
        }
        let pairs = from.links.iter().zip(to.links.values());
        let moved = pairs.filter(|((_, old), new)| old != new);
        let moved: BTreeSet<u32> = moved.map(|((index, _), _)| *index).collect();
        let uplink = |terms: &Terms| terms.share.as_ref().map(|share| share.uplink);
        let shares = |of: &Self, index: u32| of.links.get(&index).and_then(uplink);
        let uplinks = moved.iter().flat_map(|index| {
            let both = [shares(from, *index), shares(to, *index)];
            both.into_iter().flatten().chain([*index])
        });
        let uplinks: BTreeSet<u32> = uplinks.collect();
        [from, to].map(|of| {
            let is_part = |(index, terms): &(&u32, &Terms)| {
                uplinks.contains(index) || uplink(terms).is_some_and(|of| uplinks.contains(&of))
            };
            let links = of.links.iter().filter(is_part);
            Self {
                links: links
                    .map(|(index, terms)| (*index, terms.clone()))
                    .collect(),
                ..Self::default()
            }
        })
    }

    /// Whether all of it can be in force together.
    ///
    /// # Errors
    /// One sentence about the first that cannot.
    pub fn check(&self, links: &[Link]) -> Result<(), Error> {
        let links: BTreeMap<u32, &Link> = links.iter().map(|link| (link.index, link)).collect();
        let name = |index: u32| {
            let link = links.get(&index);
            link.map_or_else(|| format!("interface {index}"), |link| link.name.clone())
        };
        for (index, terms) in &self.links {
            let link = links.get(index);
            let link = link.ok_or_else(|| Error::Wrong(format!("{} is gone", name(*index))))?;
            let share = terms.share.as_ref();
            for (what, rate) in [
                ("tx", terms.tx),
                ("rx", terms.rx),
                ("guarantee", share.and_then(|share| share.guarantee)),
                ("ceiling", share.and_then(|share| share.ceiling)),
            ] {
                if let Some(rate) = rate {
                    check_rate(what, rate, &link.name, link.mtu)?;
                }
            }
            if let Some(share) = share {
                check_share(&link.name, share)?;
            }
        }
        self.check_groups()?;
        for (path, group) in &self.groups {
            let share = &group.share;
            let uplink = links.get(&share.uplink);
            let uplink =
                uplink.ok_or_else(|| Error::Wrong(format!("{} is gone", name(share.uplink))))?;
            for (what, rate) in [("guarantee", share.guarantee), ("ceiling", share.ceiling)] {
                if let Some(rate) = rate {
                    check_rate(what, rate, path, uplink.mtu)?;
                }
            }
            check_share(path, share)?;
        }
        for (uplink, shares) in self.shares() {
            self.check_uplink(uplink, &shares, &name)?;
        }
        Ok(())
    }

    fn check_uplink(
        &self,
        index: u32,
        shares: &[Part<'_>],
        name: &impl Fn(u32) -> String,
    ) -> Result<(), Error> {
        let uplink = name(index);
        let capacity = self.links.get(&index).and_then(|terms| terms.tx);
        let Some(capacity) = capacity else {
            let of = match shares.first().map(|part| &part.who) {
                Some(Who::Group(path)) => path.clone(),
                Some(Who::Link(of)) => name(*of),
                None => name(index),
            };
            return Err(Error::Wrong(format!(
                "{uplink}, by which {of} leaves, has no tx limit that could be shared: \
                 bonsai link set {uplink} tx=... gives it one, a little below what its line carries"
            )));
        };
        if shares.iter().any(|part| part.who == Who::Link(index)) {
            return Err(Error::Wrong(format!("{uplink} cannot be its own uplink")));
        }
        let guarantees = shares.iter().map(|part| part.share.guarantee.unwrap_or(0));
        let sum = guarantees.fold(0, u64::saturating_add);
        if sum > capacity {
            // HTB gives each class its own rate, whatever the one above it has.
            return Err(Error::Wrong(format!(
                "the guarantees on {uplink} are {} together, {} more than its tx limit of {}",
                rate_text(sum),
                rate_text(sum - capacity),
                rate_text(capacity)
            )));
        }
        Ok(())
    }
}

fn check_share(of: &str, share: &Share) -> Result<(), Error> {
    if !(1..=1000).contains(&share.weight) {
        return Err(Error::Wrong(format!(
            "weight={} of {of} is out of range: 1 to 1000",
            share.weight
        )));
    }
    if let (Some(guarantee), Some(ceiling)) = (share.guarantee, share.ceiling)
        && guarantee > ceiling
    {
        return Err(Error::Wrong(format!(
            "the guarantee of {of}, {}, is above its ceiling, {}",
            rate_text(guarantee),
            rate_text(ceiling)
        )));
    }
    Ok(())
}

fn check_rate(what: &str, rate: u64, of: &str, mtu: u32) -> Result<(), Error> {
    // A packet of the largest size has to get through within a second.
    let least = MIN_RATE.max(u64::from(mtu.min(65_535)) + 14);
    if rate < least {
        return Err(Error::Wrong(format!(
            "{what}={} of {of} is too small: a packet of {} bytes would take {:.1} s; at least {}",
            rate_text(rate),
            mtu,
            (f64::from(mtu) + 14.0) / to_f64(rate.max(1)),
            rate_text(least)
        )));
    }
    if rate > MAX_RATE {
        return Err(Error::Wrong(format!(
            "{what}={} of {of} is more than any link carries: at most {}",
            rate_text(rate),
            rate_text(MAX_RATE)
        )));
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn to_f64(rate: u64) -> f64 {
    rate as f64
}

/// A rate as people say it.
#[must_use]
pub fn rate_text(rate: u64) -> String {
    bonsai_units::Rate::bytes_per_sec(rate).in_bits()
}
