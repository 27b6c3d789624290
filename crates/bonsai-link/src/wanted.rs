//! What is wanted of the interfaces of a namespace, and whether it can be.
//!
//! An interface has a limit for each direction. Besides, it may have a share of an *uplink*, an
//! interface by which many leave: a guarantee, a ceiling and a weight there. Directions are those of
//! the interface that is named, as `ip -s link` shows them: what the host's end of a pair
//! receives is what the guest behind it sends.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Error;
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
    /// For how long a limit may be exceeded, ns; [`crate::rules::BURST_NS`] if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_ns: Option<u64>,
}

/// What an interface has of an uplink. Rates are bytes per second at layer 2.
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

/// What is wanted of a namespace: its interfaces, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Interfaces, by number.
    pub links: BTreeMap<u32, Terms>,
}

impl Wanted {
    /// The shares of each uplink, in the order of the numbers of those that have them.
    pub(crate) fn shares(&self) -> BTreeMap<u32, Vec<(u32, &Share)>> {
        let mut shares: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for (index, terms) in &self.links {
            if let Some(share) = &terms.share {
                shares
                    .entry(share.uplink)
                    .or_default()
                    .push((*index, share));
            }
        }
        shares
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
                    check_rate(what, rate, link)?;
                }
            }
            if let Some(share) = share {
                check_share(&link.name, share)?;
            }
        }
        for (uplink, shares) in self.shares() {
            self.check_uplink(uplink, &shares, &name)?;
        }
        Ok(())
    }

    fn check_uplink(
        &self,
        index: u32,
        shares: &[(u32, &Share)],
        name: &impl Fn(u32) -> String,
    ) -> Result<(), Error> {
        let uplink = name(index);
        let capacity = self.links.get(&index).and_then(|terms| terms.tx);
        let of = shares.first().map_or(index, |(of, _)| *of);
        let Some(capacity) = capacity else {
            return Err(Error::Wrong(format!(
                "{uplink}, by which {} leaves, has no tx limit that could be shared: \
                 bonsai link set {uplink} tx=... gives it one, a little below what its line carries",
                name(of)
            )));
        };
        if shares.iter().any(|(of, _)| *of == index) {
            return Err(Error::Wrong(format!("{uplink} cannot be its own uplink")));
        }
        let guarantees = shares.iter().map(|(_, share)| share.guarantee.unwrap_or(0));
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

fn check_rate(what: &str, rate: u64, link: &Link) -> Result<(), Error> {
    let of = &link.name;
    // A packet of the largest size has to get through within a second.
    let least = MIN_RATE.max(u64::from(link.mtu.min(65_535)) + 14);
    if rate < least {
        return Err(Error::Wrong(format!(
            "{what}={} of {of} is too small: a packet of {} bytes would take {:.1} s; at least {}",
            rate_text(rate),
            link.mtu,
            (f64::from(link.mtu) + 14.0) / to_f64(rate.max(1)),
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
