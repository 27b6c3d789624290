//! Bytes of an interface against bytes of its limit: all that an interface moves has to have gone through the class that
//! limits it. Pure, but for the reading at the end.
//!
//! Filters, programs of XDP and packet sockets of others can take packets past a class that is there and as it should be. No
//! list of such ways is complete, so what went through is compared. Interfaces count packets that are not cut yet with one
//! header, classes count each header: a class has as many bytes as its interface, or more. Tags of VLAN that a device has
//! taken off, and checksums that some count, are below [`PART`].

use std::collections::BTreeMap;

use crate::error::Error;
use crate::links;
use crate::objects::{MAJOR, TRUNK};
use crate::site::{Seen, Site};
use crate::tc::{Handle, seen};
use crate::wanted::Wanted;

/// Nothing is said of less, bytes: two of the largest packets that are not cut, and a queue.
const LEAST: u64 = 256 << 10;
/// One in so many bytes may be missing.
const PART: u64 = 8;

/// A limit, and the class that all of its packets go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Limit {
    /// The interface, by its number.
    pub device: u32,
    /// Whether it limits what comes in.
    pub comes_in: bool,
    /// The device of the class.
    at: u32,
    class: Handle,
}

/// What had gone through an interface and through the class of its limit at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passage {
    /// Bytes of the interface.
    interface: u64,
    /// Packets of the interface.
    packets: u64,
    /// Bytes that the class let out.
    class: u64,
    /// Bytes that waited there.
    backlog: u64,
    /// Packets that were dropped there.
    drops: u64,
}

/// What two of them say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// Too little moved to say anything: the former stays the one to compare with.
    TooLittle,
    /// All went through the class, or one of them was made anew.
    Through,
    /// So many bytes of that many did not.
    Around(u64, u64),
}

impl Passage {
    /// Compares with a later one.
    #[must_use]
    pub fn compare(&self, now: &Self) -> Compared {
        let is_new =
            now.interface < self.interface || now.class < self.class || now.drops < self.drops;
        if is_new {
            return Compared::Through;
        }
        let moved = now.interface - self.interface;
        if moved < LEAST {
            return Compared::TooLittle;
        }
        // Of what was dropped, packets are counted alone: each as long as the interface's were.
        let packets = now.packets.saturating_sub(self.packets).max(1);
        let dropped = (now.drops - self.drops).saturating_mul(moved.div_ceil(packets));
        let waiting = now.backlog.saturating_sub(self.backlog);
        let seen = (now.class - self.class)
            .saturating_add(waiting)
            .saturating_add(dropped);
        let around = moved.saturating_sub(seen);
        match around > moved / PART {
            true => Compared::Around(around, moved),
            false => Compared::Through,
        }
    }
}

impl Seen {
    /// The limits of interfaces that are in force.
    #[must_use]
    pub fn limits(&self, wanted: &Wanted) -> Vec<Limit> {
        let slots = self.slots();
        let mut limits = Vec::new();
        for (device, terms) in &wanted.links {
            if terms.tx.is_some() {
                limits.push(Limit {
                    device: *device,
                    comes_in: false,
                    at: *device,
                    class: Handle::of(MAJOR, TRUNK),
                });
            }
            if let (Some(_), Some(at), Some(slot)) =
                (terms.rx, self.block_of(*device), slots.get(device))
            {
                limits.push(Limit {
                    device: *device,
                    comes_in: true,
                    at,
                    class: Handle::of(MAJOR, *slot),
                });
            }
        }
        limits
    }

    /// What went around a limit, in words.
    #[must_use]
    pub fn around(&self, limit: Limit, around: u64, moved: u64) -> String {
        let link = self.links.iter().find(|link| link.index == limit.device);
        let name = link.map_or("the interface", |link| &link.name);
        let xdp = link.and_then(|link| link.xdp);
        let (did, ways) = match (limit.comes_in, xdp) {
            (true, Some(program)) => {
                let name = crate::bpf::named(program);
                (
                    "received",
                    format!("the program {name} at XDP is asked first"),
                )
            }
            (true, None) => (
                "received",
                "another program or filter takes them first".to_owned(),
            ),
            (false, _) => (
                "sent",
                "a packet socket that goes around queues, XDP or a priority of its own is a way"
                    .to_owned(),
            ),
        };
        format!(
            "{} % of what {name} {did} lately went around its limit: {ways}",
            (u128::from(around) * 100).div_ceil(u128::from(moved.max(1)))
        )
    }
}

impl Site {
    /// What went through each of some limits up to now.
    ///
    /// # Errors
    /// If the kernel does not show it.
    pub fn passages(&mut self, limits: &[Limit]) -> Result<BTreeMap<Limit, Passage>, Error> {
        let socket = self.socket();
        // Interfaces first: what moves meanwhile is seen at the class, and not missed there.
        let mut traffic = BTreeMap::new();
        links::traffic(socket, None, |one| match one {
            None => traffic.clear(),
            Some((device, of)) => drop(traffic.insert(device, of)),
        })?;
        let mut classes = BTreeMap::new();
        let mut found = BTreeMap::new();
        for limit in limits {
            if let std::collections::btree_map::Entry::Vacant(place) = classes.entry(limit.at) {
                place.insert(seen::classes_of(socket, limit.at)?);
            }
        }
        let mut of_queues: BTreeMap<(u32, Handle), u64> = BTreeMap::new();
        for qdisc in seen::qdiscs(socket, None)? {
            if qdisc.parent.major() == MAJOR {
                let dropped = u64::from(qdisc.counters.drops);
                of_queues.insert((qdisc.device, qdisc.parent), dropped);
            }
        }
        for limit in limits {
            let (Some(traffic), Some(class)) = (
                traffic.get(&limit.device),
                classes.get(&limit.at).and_then(|all| all.get(&limit.class)),
            ) else {
                continue;
            };
            let (interface, packets) = match limit.comes_in {
                true => (traffic.rx_bytes, traffic.rx_packets),
                // What is dropped on the way out is not counted by the interface.
                false => (traffic.tx_bytes, traffic.tx_packets),
            };
            let of_queue = of_queues.get(&(limit.at, limit.class));
            let dropped = of_queue.copied().unwrap_or_default();
            let passage = Passage {
                interface,
                packets,
                class: class.counters.bytes,
                backlog: match limit.comes_in {
                    true => class.counters.backlog.into(),
                    false => 0,
                },
                drops: match limit.comes_in {
                    true => dropped.max(class.counters.drops.into()),
                    false => 0,
                },
            };
            found.insert(*limit, passage);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MB: u64 = 1_000_000;

    #[test]
    fn what_goes_around_a_limit_is_a_gap() {
        let before = Passage::default();
        let at = |interface, class, drops| Passage {
            interface,
            packets: interface / 1_000,
            class,
            backlog: 0,
            drops,
        };
        for (now, expected) in [
            (at(100_000, 0, 0), Compared::TooLittle),
            (at(10 * MB, 10 * MB, 0), Compared::Through),
            // Headers of segments, and a few percent of tags.
            (at(10 * MB, 11 * MB, 0), Compared::Through),
            (at(10 * MB, 9_400_000, 0), Compared::Through),
            // A flood: most of it is dropped at the limit.
            (at(100 * MB, MB, 99_000), Compared::Through),
            (at(10 * MB, 0, 0), Compared::Around(10 * MB, 10 * MB)),
            (at(10 * MB, 8 * MB, 0), Compared::Around(2 * MB, 10 * MB)),
        ] {
            assert_eq!(before.compare(&now), expected, "{now:?}");
        }
        // Counters that begin anew say nothing.
        let high = at(10 * MB, 10 * MB, 5);
        assert_eq!(high.compare(&at(11 * MB, MB, 5)), Compared::Through);
    }

    proptest! {
        #[test]
        fn what_all_goes_through_is_no_gap(
            start in 0_u64..1 << 40,
            packets in 1_u64..1 << 20,
            length in 60_u64..66_000,
            passed in 0_u64..=100,
            waits in 0_u64..1 << 20,
        ) {
            // Each packet is let out, dropped or waits.
            let moved = packets * length;
            let out = packets * passed / 100;
            let now = Passage {
                interface: start + moved + waits,
                packets: packets + waits / length,
                class: start + out * length,
                backlog: waits,
                drops: packets - out,
            };
            let before = Passage { interface: start, class: start, ..Passage::default() };
            let found = before.compare(&now);
            prop_assert!(!matches!(found, Compared::Around(..)), "{:?}", found);
        }
    }
}
