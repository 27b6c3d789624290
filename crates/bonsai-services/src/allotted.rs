//! What a service may move that reads what it sends: a server of files or clips that has to know it
//! before it falls behind.
//!
//! It is the least of
//! - its own limits in bytes that a person has set, on what it reads and what it sends; one on both has half
//!   of it for each;
//! - what is left for it in its group: what the others did not take in the time before, but no less than
//!   its guarantee and its part, by weight, of what is guaranteed to nobody who asks; and its ceiling.
//!
//! Limits on some descriptors, on each stream, and in calls do not say what all of it may move, and are
//! not looked at. Nor are those that a daemon moves where there is no group: they follow what is asked
//! for, and who asks for nothing has next to nothing.
//!
//! # Invariants
//! 1. Nothing is written.
//! 2. A service that takes less than it may is never told to take less for that.

use bonsai_calls::{CALLS, CallId, PREAD64, SENDMSG, SENDTO, Selection, select};
use bonsai_ledger::{Group, Ledger, MemberReport, Membership, Thing};

use crate::group;
use crate::limits::{calls_of, is_of_daemon};

/// What is read for sending.
const READS: [CallId; 1] = [PREAD64];

/// How it is sent.
const SENDS: [CallId; 2] = [SENDTO, SENDMSG];

/// Looks again and again.
#[derive(Debug)]
pub struct Allotted {
    ledger: Ledger,
    joined: Option<Joined>,
}

#[derive(Debug)]
struct Joined {
    group: Group,
    membership: Membership,
    /// When it was looked, and what each member had been granted of each thing.
    before: Option<(u64, Vec<MemberReport>)>,
}

impl Allotted {
    /// Of the service with this ledger.
    #[must_use]
    pub const fn new(ledger: Ledger) -> Self {
        Self {
            ledger,
            joined: None,
        }
    }

    /// Bytes that it may read and send per second, at a time of the monotonic clock, nanoseconds; `None`
    /// without a limit.
    pub fn look(&mut self, now_ns: u64) -> Option<u64> {
        let limits = self.ledger.limits(now_ns);
        let own = limits.iter().filter(|limit| {
            let is_on_all = !limit.per_stream && !limit.scope.is_narrow();
            limit.bytes && is_on_all && limit.used.is_none() && !is_of_daemon(&limit.name)
        });
        let own = own.filter_map(|limit| for_each(limit.rate_milli, calls_of(&limit.name)));
        let own = own.min();
        let shared = self.shared(now_ns);
        own.into_iter().chain(shared).min()
    }

    /// What is left for it in its group.
    fn shared(&mut self, now_ns: u64) -> Option<u64> {
        let membership = self.ledger.membership();
        if self.joined.as_ref().map(|joined| joined.membership) != membership {
            self.joined = group::of(&self.ledger).map(|(group, membership)| Joined {
                group,
                membership,
                before: None,
            });
        }
        let joined = self.joined.as_mut()?;
        let now = joined.group.reports();
        let before = joined.before.take();
        let mut least = None;
        for (i, thing) in joined.group.things().iter().enumerate() {
            let Some(thing) = thing.as_ref().filter(|thing| thing.bytes) else {
                continue;
            };
            let left = left(thing, i, joined.membership, &now, before.as_ref(), now_ns);
            let left = left.and_then(|milli| for_each(milli, select(&thing.name)));
            least = least.into_iter().chain(left).min();
        }
        joined.before = Some((now_ns, now));
        least
    }
}

/// What a limit of thousandths of a byte a second leaves for each of reading and sending that it is on.
fn for_each(milli: u64, on: Option<Selection>) -> Option<u64> {
    let on = on?;
    let is_on = |calls: &[CallId]| {
        calls
            .iter()
            .any(|call| on.contains(&CALLS[usize::from(*call)]))
    };
    match u64::from(is_on(&READS)) + u64::from(is_on(&SENDS)) {
        0 => None,
        ways => Some(milli / 1000 / ways),
    }
}

/// What a member may have of a thing, thousandths a second.
fn left(
    thing: &Thing,
    i: usize,
    me: Membership,
    now: &[MemberReport],
    before: Option<&(u64, Vec<MemberReport>)>,
    now_ns: u64,
) -> Option<u64> {
    let own = now.iter().find(|member| member.membership == me)?;
    let own = own.parts.get(i).copied().flatten()?;
    let (mut taken, mut guaranteed, mut weights) = (0_u128, 0_u128, 0_u128);
    for other in now.iter().filter(|member| member.membership != me) {
        let Some(part) = other.parts.get(i).copied().flatten() else {
            continue;
        };
        let then = before.and_then(|(at, members)| {
            let there = members.iter().find(|m| m.membership == other.membership)?;
            let granted = there.parts.get(i).copied().flatten()?.granted;
            Some((now_ns.saturating_sub(*at), granted))
        });
        // Of one that has just come nothing is known: it counts as one that asks.
        let asks = match then {
            Some((ns, granted)) if ns > 0 => {
                let got = u128::from(part.granted.saturating_sub(granted));
                let rate = got * 1_000_000_000_000 / u128::from(ns);
                taken += rate;
                rate > 0 || part.backlog > 0
            }
            _ => {
                taken += u128::from(thing.rate_milli);
                true
            }
        };
        if asks {
            guaranteed += u128::from(part.part.guarantee_milli);
            weights += u128::from(part.part.weight);
        }
    }
    let (all, own_guarantee) = (
        u128::from(thing.rate_milli),
        u128::from(own.part.guarantee_milli),
    );
    let free = all.saturating_sub(guaranteed + own_guarantee);
    let weight = u128::from(own.part.weight.max(1));
    let fair = own_guarantee + free * weight / (weights + weight);
    let left = all.saturating_sub(taken).max(fair).min(all);
    let left = u64::try_from(left).unwrap_or(u64::MAX);
    Some(match own.part.ceiling_milli {
        0 => left,
        ceiling => left.min(ceiling),
    })
}

#[cfg(test)]
mod tests {
    use bonsai_ledger::{Part, PartReport, Who};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn ledger(folder: &tempfile::TempDir, limits: &[(&str, u64)]) -> Ledger {
        let ledger = Ledger::create(&folder.path().join("ledger"), "vod").expect("a ledger");
        let mut editor = ledger.edit(0).expect("its lock");
        for (name, per_s) in limits {
            let selection = calls_of(name).expect("a class");
            let set = editor.set(name, selection, true, per_s * 1000, 1000);
            set.expect("set");
        }
        editor.commit();
        ledger
    }

    #[test]
    fn the_least_of_its_limits_counts_and_one_on_both_ways_is_halved() {
        for (limits, expected) in [
            (&[][..], None),
            (&[("send", 500)], Some(500)),
            (&[("net", 500), ("read", 400)], Some(400)),
            (&[("all", 600), ("send", 400)], Some(300)),
            (&[("recv", 10), ("open", 10)][..1], None),
            (&[("sendmsg", 700)], Some(700)),
            (&[("send/daemon", 7), ("send", 900)], Some(900)),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            let mut allotted = Allotted::new(ledger(&folder, limits));
            assert_eq!(allotted.look(SECOND), expected, "{limits:?}");
        }
    }

    #[test]
    fn a_change_is_seen() {
        let folder = tempfile::tempdir().expect("a folder");
        let kept = ledger(&folder, &[("send", 500)]);
        let opened = Ledger::open(&folder.path().join("ledger")).expect("opened");
        let mut allotted = Allotted::new(opened);
        assert_eq!(allotted.look(SECOND), Some(500));
        let mut editor = kept.edit(SECOND).expect("its lock");
        let selection = calls_of("send").expect("a class");
        editor
            .set("send", selection, true, 800_000, 1000)
            .expect("set");
        editor.commit();
        assert_eq!(allotted.look(2 * SECOND), Some(800));
    }

    /// A member with that guarantee, ceiling and weight that was granted so much.
    fn member(number: usize, part: (u64, u64, u64), granted: u64, backlog: u64) -> MemberReport {
        let (guarantee_milli, ceiling_milli, weight) = part;
        let report = PartReport {
            part: Part {
                guarantee_milli: guarantee_milli * 1000,
                ceiling_milli: ceiling_milli * 1000,
                weight,
            },
            granted,
            borrowed: 0,
            backlog,
            waits: 0,
            waited_ns: 0,
        };
        MemberReport {
            membership: Membership {
                member: number,
                generation: 1,
            },
            who: Who {
                name: number.to_string(),
                pid: 1,
                started: 1,
                uid: 0,
            },
            parts: vec![Some(report)],
        }
    }

    #[test]
    fn of_a_group_it_has_what_others_leave_and_never_less_than_its_part() {
        let thing = Thing {
            name: "send".to_owned(),
            bytes: true,
            rate_milli: 1_000_000,
            burst: 1000,
        };
        let me = Membership {
            member: 0,
            generation: 1,
        };
        let look = |before: &[(usize, u64)], now: &[MemberReport]| {
            let then: Vec<MemberReport> = before
                .iter()
                .map(|(number, granted)| member(*number, (0, 0, 1), *granted, 0))
                .collect();
            let before = (!then.is_empty()).then_some((0, then));
            left(&thing, 0, me, now, before.as_ref(), SECOND).map(|milli| milli / 1000)
        };
        let plain = (0, 0, 1);
        // Alone; beside one that is idle; beside one that takes little.
        assert_eq!(look(&[], &[member(0, plain, 0, 0)]), Some(1000));
        let idle = [member(0, plain, 0, 0), member(1, plain, 70, 0)];
        assert_eq!(look(&[(0, 0), (1, 70)], &idle), Some(1000));
        let little = [member(0, plain, 0, 0), member(1, plain, 170, 0)];
        assert_eq!(look(&[(0, 0), (1, 70)], &little), Some(900));
        // Beside one that takes all that is left of what we do not: half, by weight.
        let all = [member(0, plain, 0, 0), member(1, plain, 970, 500)];
        assert_eq!(look(&[(0, 0), (1, 70)], &all), Some(500));
        // Its guarantee, and its part of the rest: 600 + 3 of 4 of 200.
        let kept = [
            member(0, (600, 0, 3), 0, 0),
            member(1, (200, 0, 1), 1000, 9),
        ];
        assert_eq!(look(&[(0, 0), (1, 0)], &kept), Some(750));
        let held = [member(0, (100, 300, 1), 0, 0)];
        assert_eq!(look(&[], &held), Some(300));
        // One that is new asks for all.
        assert_eq!(look(&[], &idle), Some(500));
        assert_eq!(look(&[(0, 0)], &little), Some(500));
    }
}
