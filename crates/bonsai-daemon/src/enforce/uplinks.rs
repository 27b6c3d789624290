//! Shares of uplinks: guarantee, ceiling and weight in the kernel's queue, which lends what one
//! leaves within a millisecond. What is moved here loses nothing on the wire.

use std::collections::BTreeMap;

use bonsai_api::Enforced;
use bonsai_policy::Grant;
use bonsai_units::Resource;

use super::{Enforcer, Outcome, Reads, Wanted};
use crate::places::{LEAST, Placed, Share};

/// Those of services with an uplink. Resources that a service has not are nobody's.
#[derive(Debug, Default)]
pub(crate) struct Uplinks;

impl Enforcer for Uplinks {
    fn enforce(&mut self, wanted: &Wanted<'_>, outcome: &mut Outcome, _read: &mut Reads<'_>) {
        let mut shares: BTreeMap<&str, Vec<(usize, Share)>> = BTreeMap::new();
        let Some(outsiders) = wanted.services.iter().find_map(|(_, of)| of.outsiders()) else {
            return;
        };
        let places = outsiders.places();
        for (i, (decided, watched)) in wanted.services.iter().enumerate() {
            let placed = watched.outsiders().and_then(|_| places.get(&watched.id));
            let Some(placed) = placed else {
                continue;
            };
            for (at, how) in outcome.how[i].iter_mut().enumerate() {
                if !placed.has[at] {
                    *how = Some(Enforced::None);
                }
            }
            if let Some(uplink) = &placed.uplink {
                let at = Resource::Send.index();
                let share = share(placed, &decided.grants[at]);
                shares.entry(uplink).or_default().push((i, share));
                outcome.how[i][at] = Some(Enforced::Uplink);
            }
        }
        for shares in shares.values_mut() {
            fit(shares, |i| places.get(&wanted.services[i].1.id));
            for (i, share) in shares {
                let id = &wanted.services[*i].1.id;
                outcome.written += u64::from(outsiders.want_share(id, *share));
            }
        }
    }
}

/// What is decided, as the kernel takes it: bytes per second.
fn share(placed: &Placed, grant: &Grant) -> Share {
    let at = Resource::Send.index();
    let ceiling = grant
        .ceiling
        .map(|milli| placed.limit(Resource::Send, milli));
    let ceiling = ceiling.or(placed.max[at]);
    // Where the machine's capacity is not said, nothing is decided, and the uplink has its own.
    let guarantee = match grant.share {
        Some(_) => Some(grant.guarantee.div_ceil(1000)),
        None => placed.min[at],
    };
    // One that nobody asked for, and that no packet would get through by, is none.
    let guarantee = guarantee.filter(|of| *of >= LEAST || placed.min[at].is_some() && *of > 0);
    Share {
        guarantee: guarantee.map(|of| ceiling.map_or(of, |ceiling| of.min(ceiling))),
        ceiling,
        weight: placed.first.share.weight,
    }
}

/// Lowers what is guaranteed beyond what was configured, as far as the uplink has not all of it: the
/// machine may have more than the uplink.
fn fit<'a>(shares: &mut [(usize, Share)], placed: impl Fn(usize) -> Option<&'a Placed>) {
    let at = Resource::Send.index();
    let parts = |(i, share): &(usize, Share)| {
        let has = share.guarantee.unwrap_or(0);
        let own = placed(*i).and_then(|placed| placed.min[at]).unwrap_or(0);
        (own.min(has), has)
    };
    let room = shares.first().and_then(|(i, _)| placed(*i)?.room);
    let Some(room) = room else {
        return;
    };
    let sum = |all: &[(usize, Share)], of: fn((u64, u64)) -> u64| -> u64 {
        all.iter().map(|one| of(parts(one))).sum()
    };
    let (own, all) = (sum(shares, |of| of.0), sum(shares, |of| of.1));
    if all <= room {
        return;
    }
    let (left, beyond) = (u128::from(room.saturating_sub(own)), u128::from(all - own));
    for one in shares {
        let (own, has) = parts(one);
        let part = u128::from(has - own) * left / beyond.max(1);
        let guarantee = own + u64::try_from(part).unwrap_or(0);
        one.1.guarantee = Some(guarantee).filter(|of| *of >= LEAST || own > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_uplink_has_not_is_not_guaranteed_beyond_what_was_configured() {
        let placed = |min: u64| Placed {
            place: "vnet3".parse().expect("a place"),
            uplink: Some("eth0".to_owned()),
            cpu: None,
            has: [true; Resource::COUNT],
            first: crate::places::Wanted::default(),
            min: [Some(min).filter(|min| *min > 0); Resource::COUNT],
            max: Default::default(),
            room: Some(10_000_000),
        };
        let all = [placed(4_000_000), placed(0), placed(0)];
        let share = |guarantee| Share {
            guarantee: Some(guarantee),
            ceiling: None,
            weight: 1,
        };
        let mut shares = [6_000_000, 4_000_000, 6_000_000]
            .map(share)
            .map(|of| (0, of));
        shares.iter_mut().enumerate().for_each(|(i, of)| of.0 = i);
        fit(&mut shares, |i| all.get(i));
        let got: Vec<_> = shares.iter().map(|(_, share)| share.guarantee).collect();
        assert_eq!(got, [Some(5_000_000), Some(2_000_000), Some(3_000_000)]);
        // What fits stays as it is.
        let before = shares;
        fit(&mut shares, |i| all.get(i));
        assert_eq!(shares, before);
    }
}
