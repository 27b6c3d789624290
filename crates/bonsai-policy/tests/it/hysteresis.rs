//! Limits move when it matters.

use bonsai_policy::{Mode, Policy, Service, Usage};
use proptest::prelude::*;

use crate::cases::SEND;
use crate::machine::{group, link, mbit, observed, seen, send, service};

fn limits(policy: &mut Policy, used: &[(&str, u64, bool)]) -> Vec<u64> {
    let services: Vec<_> = used
        .iter()
        .map(|&(name, used, more)| seen(name, used, more))
        .collect();
    let allocation = policy.decide(&observed(services));
    allocation
        .services
        .iter()
        .map(|s| s.grants[SEND].limit.expect("a limit"))
        .collect()
}

#[test]
fn small_changes_move_no_limit() {
    let mut config = link();
    config.services = vec![service("vod", send(40, 0, 0))];
    let mut policy = Policy::new(config).expect("good");
    let first = limits(&mut policy, &[("vod", 40, false), ("web", 0, true)]);
    // 50 demanded; 52 is 4 % more and the web's 48 4 % less.
    assert_eq!(first, [mbit(50), mbit(50)]);
    let mut policy_used = |used| limits(&mut policy, &[("vod", used, false), ("web", 0, true)]);
    assert_eq!(policy_used(41), first);
    assert_eq!(policy_used(39), first);
    // 56 is 12 % more.
    assert_eq!(
        policy_used(45),
        [mbit(45) * 5 / 4, mbit(100) - mbit(45) * 5 / 4]
    );
}

#[test]
fn a_guarantee_is_given_back_however_little_is_missing() {
    let mut config = link();
    config.services = vec![service("vod", send(40, 0, 0))];
    let mut policy = Policy::new(config).expect("good");
    // 31 used are 38.75 demanded; 40 are 3 % more.
    let lent = limits(&mut policy, &[("vod", 31, false), ("web", 0, true)]);
    assert_eq!(lent[0], mbit(31) * 5 / 4);
    let back = limits(&mut policy, &[("vod", 32, false), ("web", 0, true)]);
    assert_eq!(back[0], mbit(40));
}

/// A link on which services send what they want, or their limit.
fn step(policy: &mut Policy, wants: &[u64], limits: &[u64]) -> Vec<u64> {
    let services: Vec<_> = wants
        .iter()
        .zip(limits)
        .enumerate()
        .map(|(i, (&wants, &limit))| {
            let mut one = seen(&format!("s{i}"), 0, wants > limit);
            one.usage[SEND] = Usage {
                used: wants.min(limit),
                ..one.usage[SEND]
            };
            one
        })
        .collect();
    let allocation = policy.decide(&observed(services));
    allocation
        .services
        .iter()
        .map(|s| s.grants[SEND].limit.expect("a limit"))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn limits_come_to_rest_under_steady_loads(
        wants in prop::collection::vec((0_u64..150, 0_u64..20, 1_u32..10), 2..8),
    ) {
        let mut config = link();
        config.services = (0..)
            .zip(&wants)
            .map(|(i, &(_, min, weight))| service(&format!("s{i}"), send(min / 2, 0, weight)))
            .collect();
        let wants: Vec<u64> = wants.iter().map(|&(wants, _, _)| mbit(wants)).collect();
        let mut policy = Policy::new(config).expect("good");
        let mut limits = vec![mbit(100) / wants.len() as u64; wants.len()];
        for _ in 0..2 * wants.len() + 3 {
            limits = step(&mut policy, &wants, &limits);
        }
        let rest = limits.clone();
        for _ in 0..10 {
            limits = step(&mut policy, &wants, &limits);
            prop_assert_eq!(&limits, &rest);
        }
    }

    /// Whatever they do, limits are within the capacity, and nobody's is far below its share.
    #[test]
    fn limits_serve_and_fit_in_every_period(
        periods in prop::collection::vec(prop::collection::vec((0_u64..60, any::<bool>()), 6), 1..12),
        mins in prop::collection::vec(0_u64..15, 6),
    ) {
        let mut config = link();
        config.services = (0..)
            .zip(&mins)
            .map(|(i, &min)| service(&format!("s{i}"), send(min, 0, 1)))
            .collect();
        let mut policy = Policy::new(config).expect("good");
        for period in periods {
            let seen = period.iter().enumerate();
            let seen: Vec<_> = seen
                .map(|(i, &(used, more))| seen_of(i, used, more))
                .collect();
            let allocation = policy.decide(&observed(seen));
            let grants = allocation.services.iter().map(|s| s.grants[SEND]);
            let sum: u64 = grants.clone().map(|g| g.limit.expect("a limit")).sum();
            prop_assert!(sum <= mbit(100), "{sum}");
            for (i, grant) in grants.enumerate() {
                let (limit, share) = (grant.limit.expect("a limit"), grant.share.expect("a share"));
                prop_assert!(limit >= share.min(mbit(mins[i])), "{i}: {grant:?}");
                prop_assert!(limit + limit / 20 + 1 >= share, "{i}: {grant:?}");
            }
        }
    }

    /// Where nothing is new, the decision of before stands: it is the one that would be made.
    #[test]
    fn a_decision_that_stands_is_the_one_that_would_be_made(
        periods in prop::collection::vec(
            (1_usize..5, prop::collection::vec((0_u64..40, any::<bool>()), 5)),
            1..12,
        ),
        mins in prop::collection::vec(0_u64..15, 5),
        leaves in prop::collection::vec(any::<bool>(), 12),
    ) {
        let mut config = link();
        config.groups = vec![group("media", None, send(30, 60, 2))];
        config.services = (0..)
            .zip(&mins)
            .map(|(i, &min)| Service {
                group: (i < 2).then(|| "media".into()),
                mode: (i == 4).then_some(Mode::Static),
                ..service(&format!("s{i}"), send(min, 0, i + 1))
            })
            .collect();
        let mut policy = Policy::new(config.clone()).expect("good");
        let mut anew = policy.clone();
        for ((times, period), leaves) in periods.into_iter().zip(leaves) {
            let seen = period.iter().enumerate();
            let mut seen: Vec<_> = seen.map(|(i, &(used, more))| seen_of(i, used, more)).collect();
            if leaves {
                seen.pop();
            }
            for _ in 0..times {
                anew.configure(config.clone()).expect("good");
                let observation = observed(seen.clone());
                prop_assert_eq!(policy.decide(&observation), anew.decide(&observation));
            }
        }
    }

    /// Where there is enough for all, limits come to where everybody has what they ever demand,
    /// and stay.
    #[test]
    fn no_limit_moves_where_there_is_enough_for_all(
        wants in prop::collection::vec(prop::collection::vec(0_u64..20, 4), 6..20),
    ) {
        let mut policy = Policy::new(link()).expect("good");
        let mut decide = |wants: &[u64]| {
            let services = wants.iter().enumerate();
            let services: Vec<_> = services.map(|(i, &used)| seen_of(i, used, false)).collect();
            let allocation = policy.decide(&observed(services));
            let limit = |s: &bonsai_policy::Allocated| s.grants[SEND].limit.expect("a limit");
            allocation.services.iter().map(limit).collect::<Vec<_>>()
        };
        // 20 Mbit/s of each, and the headroom, fit.
        decide(&[20; 4]);
        let rest = decide(&[20; 4]);
        for wants in wants {
            prop_assert_eq!(decide(&wants), rest.clone());
        }
    }
}

#[test]
fn held_peaks_keep_limits_where_they_are_but_not_those_of_the_guaranteed() {
    let mut config = link();
    config.services = vec![service("vod", send(40, 0, 0))];
    let mut policy = Policy::new(config).expect("good");
    policy.hold_peaks(true);
    let mut at = |ms: u64, used: [u64; 3]| {
        let names = ["vod", "a", "b"];
        let seen: Vec<_> = names
            .iter()
            .zip(used)
            .map(|(name, used)| seen(name, used, false))
            .collect();
        let mut observation = observed(seen);
        observation.now_ns = ms * 1_000_000;
        let allocation = policy.decide(&observation);
        let demand = |s: &bonsai_policy::Allocated| s.grants[SEND].demand.expect("bounded");
        allocation.services.iter().map(demand).collect::<Vec<_>>()
    };
    let headroom = |used: u64| mbit(used) * 5 / 4;
    assert_eq!(
        at(5_000, [20, 20, 8]),
        [headroom(20), headroom(20), headroom(8)]
    );
    // Of whoever has a guarantee, the rest of it is lent at once.
    assert_eq!(
        at(5_100, [8, 4, 16]),
        [headroom(8), headroom(20), headroom(16)]
    );
    assert_eq!(
        at(7_200, [8, 4, 4]),
        [headroom(8), headroom(20), headroom(16)]
    );
    assert_eq!(
        at(9_300, [8, 4, 4]),
        [headroom(8), headroom(4), headroom(4)]
    );
}

fn seen_of(i: usize, used: u64, more: bool) -> bonsai_policy::Seen {
    seen(&format!("s{i}"), used, more)
}
