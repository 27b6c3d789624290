//! What is configured of interfaces, checked as far as it can be without looking at them.

use std::collections::BTreeMap;

use bonsai_api as api;
use bonsai_link::rules::{MAX_RATE, MIN_RATE};
use bonsai_link::{Group, Share, Terms, rate_text};
use bonsai_units::Unit;

use crate::find::Whose;
use crate::target::Target;

/// Of a packet that comes in, nobody knows yet whose it is.
const NO_RX: &str = "what a group of processes receives cannot be limited at an interface: bonsai run \
                     limits it in the process";

/// What is wanted of a target. Rates are bytes per second at layer 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Of what.
    pub target: Target,
    /// The most it sends.
    pub tx: Option<u64>,
    /// The most it receives.
    pub rx: Option<u64>,
    /// What it has of its uplink whenever it wants it.
    pub guarantee: Option<u64>,
    /// The most it has of its uplink.
    pub ceiling: Option<u64>,
    /// How what is left of the uplink is shared out.
    pub weight: u16,
    /// The uplink's name, if it is said.
    pub uplink: Option<String>,
    /// For how long a limit may be exceeded, ns.
    pub burst_ns: Option<u64>,
    /// Whether it takes the place of somebody else's discipline.
    pub adopt: bool,
    /// Whether it is of a service: directions are those of whoever is behind the machine's end of a
    /// pair or a tap, also where that end is named itself, and it has a class of its own on its
    /// uplink, whatever it is given there.
    pub of_service: bool,
}

impl Wish {
    /// Reads what is written for a target.
    ///
    /// # Errors
    /// The first thing that is wrong, where, and what would be right.
    pub fn read(name: &str, link: &api::Link) -> Result<Self, String> {
        let target: Target = name.parse().map_err(|error| format!("links: {error}"))?;
        let place = format!("links.{target}");
        let rate = |word: &str, share: Option<api::Share>| {
            share
                .map(|share| rate(&format!("{place}.{word}"), share))
                .transpose()
        };
        let wish = Self {
            tx: rate("tx", link.tx)?,
            rx: rate("rx", link.rx)?,
            guarantee: rate("guarantee", link.guarantee)?,
            ceiling: rate("ceiling", link.ceiling)?,
            weight: link.weight.unwrap_or(1),
            uplink: link.uplink.clone(),
            burst_ns: link.burst.map(|span| burst(&place, span)).transpose()?,
            adopt: link.adopt,
            of_service: false,
            target,
        };
        if !(1..=1000).contains(&wish.weight) {
            let weight = wish.weight;
            return Err(format!(
                "{place}.weight: {weight} is no weight: write 1 to 1000"
            ));
        }
        if let (Some(guarantee), Some(ceiling)) = (wish.guarantee, wish.ceiling)
            && guarantee > ceiling
        {
            return Err(format!(
                "{place}: the guarantee, {}, is above the ceiling, {}",
                rate_text(guarantee),
                rate_text(ceiling)
            ));
        }
        if let Some(uplink) = &wish.uplink {
            let named = uplink.parse::<Target>();
            let named = named.map_err(|error| format!("{place}.uplink: {error}"))?;
            if named.whose() != Whose::Ours {
                let text = "it is an interface by which it leaves, such as eth0";
                return Err(format!("{place}.uplink: `{uplink}` is none: {text}"));
            }
            if wish.target == named {
                return Err(format!("{place}.uplink: it cannot be its own uplink"));
            }
        }
        if let Whose::Group(_) = wish.target.whose() {
            wish.check_group(&place)?;
        }
        Ok(wish)
    }

    fn check_group(&self, place: &str) -> Result<(), String> {
        if self.rx.is_some() {
            return Err(format!("{place}.rx: {NO_RX}"));
        }
        if self.adopt {
            return Err(format!(
                "{place}.adopt: a group takes nobody's place: write it for its uplink"
            ));
        }
        if let (Some(guarantee), Some(tx)) = (self.guarantee, self.tx)
            && guarantee > tx
        {
            return Err(format!(
                "{place}: the guarantee, {}, is above its tx, {}",
                rate_text(guarantee),
                rate_text(tx)
            ));
        }
        Ok(())
    }

    /// It, of a group of processes that leaves by that uplink. What it sends at most is its ceiling
    /// there.
    ///
    /// # Errors
    /// If what it receives is to be limited.
    pub(crate) fn group(&self, uplink: u32) -> Result<Group, String> {
        if self.rx.is_some() {
            return Err(NO_RX.to_owned());
        }
        let ceilings = [self.ceiling, self.tx].into_iter().flatten();
        Ok(Group {
            share: Share {
                uplink,
                guarantee: self.guarantee,
                ceiling: ceilings.min(),
                weight: self.weight,
            },
            burst_ns: self.burst_ns,
            class: None,
        })
    }

    /// Whether it has a part of an uplink.
    #[must_use]
    pub fn has_share(&self) -> bool {
        let of_service = self.of_service && self.uplink.is_some();
        of_service || self.guarantee.is_some() || self.ceiling.is_some() || self.weight != 1
    }

    /// Whether nothing but rates and the weight is different in `other`.
    pub(crate) fn is_same_but_rates(&self, other: &Self) -> bool {
        let kind = |wish: &Self| (wish.tx.is_some(), wish.rx.is_some(), wish.has_share());
        kind(self) == kind(other)
            && self.target == other.target
            && self.uplink == other.uplink
            && self.burst_ns == other.burst_ns
            && self.adopt == other.adopt
            && self.of_service == other.of_service
    }

    /// It, of the interface that is limited; `swapped` says that this is the other end of what is
    /// named, and `uplink` is where its share is, if it has one.
    pub(crate) fn terms(&self, swapped: bool, uplink: Option<u32>) -> Terms {
        let (tx, rx) = match swapped {
            false => (self.tx, self.rx),
            true => (self.rx, self.tx),
        };
        Terms {
            tx,
            rx,
            share: uplink.map(|uplink| Share {
                uplink,
                guarantee: self.guarantee,
                ceiling: self.ceiling,
                weight: self.weight,
            }),
            burst_ns: self.burst_ns,
        }
    }
}

/// Reads all that is configured, and what can be said of it together.
///
/// # Errors
/// The first thing that is wrong, where, and what would be right.
pub fn wishes(links: &BTreeMap<String, api::Link>) -> Result<BTreeMap<String, Wish>, String> {
    let mut wishes = BTreeMap::new();
    for (name, link) in links {
        wishes.insert(name.clone(), Wish::read(name, link)?);
    }
    check_sums(&wishes)?;
    Ok(wishes)
}

/// Whether uplinks have what is guaranteed on them, as far as their limits are configured.
///
/// # Errors
/// The first that has not, and by how much.
pub fn check_sums(wishes: &BTreeMap<String, Wish>) -> Result<(), String> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for wish in wishes.values() {
        if let (Some(uplink), Some(guarantee)) = (&wish.uplink, wish.guarantee) {
            let sum = sums.entry(uplink).or_default();
            *sum = sum.saturating_add(guarantee);
        }
    }
    for (uplink, sum) in sums {
        // One that is limited by hand is judged where it is seen.
        let Some(capacity) = wishes.get(uplink).and_then(|wish: &Wish| wish.tx) else {
            continue;
        };
        if sum > capacity {
            return Err(format!(
                "links.{uplink}: the guarantees on it are {} together, {} more than its tx, {}",
                rate_text(sum),
                rate_text(sum - capacity),
                rate_text(capacity)
            ));
        }
    }
    Ok(())
}

fn rate(place: &str, share: api::Share) -> Result<u64, String> {
    let (api::Share::Rate(rate) | api::Share::Bits(rate)) = share else {
        return Err(format!(
            "{place}: {share} of what? Write a rate such as 20Mbit/s"
        ));
    };
    if rate.unit() != Unit::Bytes {
        return Err(format!(
            "{place}: {share} counts calls, and an interface counts bytes: write 20Mbit/s or 2.5MB/s"
        ));
    }
    // Parts of a byte are less than any clock.
    let bytes = rate.milli().div_ceil(1000);
    if !(MIN_RATE..=MAX_RATE).contains(&bytes) {
        return Err(format!(
            "{place}: {share} is out of range: {} to {}",
            rate_text(MIN_RATE),
            rate_text(MAX_RATE)
        ));
    }
    Ok(bytes)
}

fn burst(place: &str, span: api::Span) -> Result<u64, String> {
    let ns = u64::try_from(span.0.as_nanos()).ok();
    let ns = ns.filter(|ns| (1_000_000..=1_000_000_000).contains(ns));
    ns.ok_or_else(|| format!("{place}.burst: {span} is out of range: 1ms to 1s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(links: serde_json::Value) -> Result<BTreeMap<String, Wish>, String> {
        let links: BTreeMap<String, api::Link> = serde_json::from_value(links).expect("the form");
        wishes(&links)
    }

    #[test]
    fn what_is_wanted_of_the_other_end_is_turned_round() {
        let wishes = read(serde_json::json!({
            "container:web": {"tx": "80Mbit/s", "guarantee": "8Mbit/s", "uplink": "eth0"},
        }));
        let wishes = wishes.expect("fine");
        let terms = wishes["container:web"].terms(true, Some(3));
        assert_eq!((terms.tx, terms.rx), (None, Some(10_000_000)));
        let share = terms.share.expect("a share");
        assert_eq!((share.uplink, share.guarantee), (3, Some(1_000_000)));
    }

    #[test]
    fn the_tx_of_a_group_is_its_ceiling() {
        let wishes = read(serde_json::json!({
            "unit:db.service": {"tx": "8Mbit/s", "guarantee": "4Mbit/s", "uplink": "eth0"},
            "cgroup:/a": {"tx": "8Mbit/s", "ceiling": "4Mbit/s"},
        }));
        let wishes = wishes.expect("fine");
        let share = |name: &str| wishes[name].group(3).expect("it can be").share;
        let db = share("unit:db.service");
        assert_eq!((db.uplink, db.guarantee), (3, Some(500_000)));
        assert_eq!(db.ceiling, Some(1_000_000));
        assert_eq!(share("cgroup:/a").ceiling, Some(500_000));
    }

    #[test]
    fn slips_are_answered_with_their_place() {
        for (links, words) in [
            (r#"{"a b": {}}"#, "links: `a b` names no interface"),
            (r#"{"v": {"tx": "5%"}}"#, "links.v.tx: 5% of what?"),
            (r#"{"v": {"rx": "5/s"}}"#, "links.v.rx: 5/s counts calls"),
            (
                r#"{"v": {"tx": "1bit/s"}}"#,
                "links.v.tx: 1bit/s is out of range",
            ),
            (r#"{"v": {"weight": 0}}"#, "links.v.weight: 0 is no weight"),
            (r#"{"v": {"weight": 1001}}"#, "1 to 1000"),
            (
                r#"{"v": {"burst": "2s"}}"#,
                "links.v.burst: 2s is out of range",
            ),
            (r#"{"v": {"uplink": "v"}}"#, "its own uplink"),
            (
                r#"{"v": {"uplink": "netns:a"}}"#,
                "links.v.uplink: `netns:a` is none",
            ),
            (
                r#"{"unit:db.service": {"rx": "1MB/s"}}"#,
                "links.unit:db.service.rx: what a group of processes receives",
            ),
            (
                r#"{"cgroup:/a": {"tx": "1MB/s", "adopt": true}}"#,
                "links.cgroup:/a.adopt: a group takes nobody's place",
            ),
            (
                r#"{"cgroup:/a": {"guarantee": "2MB/s", "tx": "1MB/s"}}"#,
                "above its tx",
            ),
            (
                r#"{"v": {"uplink": "cgroup:/a"}}"#,
                "links.v.uplink: `cgroup:/a` is none",
            ),
            (
                r#"{"v": {"guarantee": "2MB/s", "ceiling": "1MB/s"}}"#,
                "above the ceiling",
            ),
            (
                r#"{"up": {"tx": "80Mbit/s"}, "a": {"guarantee": "5MB/s", "uplink": "up"},
                    "b": {"guarantee": "6MB/s", "uplink": "up"}}"#,
                "links.up: the guarantees on it are 88Mbit/s together, 8Mbit/s more",
            ),
        ] {
            let error = read(links.parse().expect("JSON")).expect_err(links);
            assert!(
                error.contains(words) && !error.contains('\n'),
                "{links}: {error}"
            );
        }
    }
}
