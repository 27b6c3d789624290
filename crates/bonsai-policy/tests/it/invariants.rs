//! What holds for every decision.

use bonsai_policy::{Allocation, Config, Grant, Policy};
use proptest::prelude::*;

use crate::cases::{Case, SEND, cases};

fn decide(config: &Config, case: &Case) -> Allocation {
    let mut policy = Policy::new(config.clone()).expect("a good configuration");
    policy.decide(&case.observation()).clone()
}

fn grants(allocation: &Allocation) -> Vec<Grant> {
    allocation.services.iter().map(|s| s.grants[SEND]).collect()
}

fn share(grant: &Grant) -> u64 {
    grant.share.expect("a share")
}

/// The services in a group, by index.
fn members(case: &Case, group: usize) -> Vec<usize> {
    let within = |mut parent: usize| loop {
        if parent == group {
            return true;
        }
        let Some(up) = parent.checked_sub(1) else {
            return false;
        };
        parent = case.groups[up].parent;
    };
    (0..case.services.len())
        .filter(|&i| within(case.services[i].parent))
        .collect()
}

/// The ceiling of a service's own, and of its groups.
fn room(case: &Case, config: &Config, grants: &[Grant], service: usize) -> u64 {
    let own = config.services[service].terms[SEND].max.unwrap_or(u64::MAX);
    let mut room = own - share(&grants[service]);
    for group in 1..=case.groups.len() {
        let members = members(case, group);
        if let (true, Some(max)) = (
            members.contains(&service),
            config.groups[group - 1].terms[SEND].max,
        ) {
            let used: u64 = members.iter().map(|&i| share(&grants[i])).sum();
            room = room.min(max - used);
        }
    }
    room
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_given_twice(case in cases(5, 12), headroom in 0_u32..500) {
        let config = Config { headroom, ..case.config() };
        let grants = grants(&decide(&config, &case));
        let sum = |of: fn(&Grant) -> u64| -> u64 { grants.iter().map(of).sum() };
        prop_assert!(sum(share) <= case.capacity);
        prop_assert!(sum(|g| g.limit.expect("a limit")) <= case.capacity);
        prop_assert!(sum(|g| g.guarantee) <= case.capacity);
        for (i, group) in config.groups.iter().enumerate() {
            let members = members(&case, i + 1);
            let max = group.terms[SEND].max.unwrap_or(u64::MAX);
            let sum = |of: fn(&Grant) -> u64| -> u64 { members.iter().map(|&i| of(&grants[i])).sum() };
            prop_assert!(sum(share) <= max && sum(|g| g.limit.expect("a limit")) <= max);
            prop_assert!(sum(|g| g.guarantee) <= max);
        }
    }

    #[test]
    fn a_guarantee_that_is_demanded_is_held(case in cases(5, 12)) {
        let config = case.config();
        for (grant, service) in grants(&decide(&config, &case)).iter().zip(&config.services) {
            let min = service.terms[SEND].min.expect("a guarantee");
            prop_assert!(grant.guarantee >= min);
            prop_assert!(share(grant) >= min.min(grant.demand.unwrap_or(u64::MAX)));
            prop_assert!(grant.limit >= grant.share);
        }
    }

    #[test]
    fn a_group_gets_what_it_is_guaranteed(case in cases(5, 12)) {
        let config = case.config();
        let grants = grants(&decide(&config, &case));
        for (i, group) in config.groups.iter().enumerate() {
            let members = members(&case, i + 1);
            let gets: u64 = members.iter().map(|&i| share(&grants[i])).sum();
            let min = group.terms[SEND].min.expect("a guarantee");
            // Or its members can take no more, by their demands or ceilings.
            let more = |&i: &usize| {
                grants[i].demand.is_none_or(|demand| demand > share(&grants[i]))
                    && room(&case, &config, &grants, i) > 0
            };
            prop_assert!(gets >= min || !members.iter().any(more), "{}: {gets} of {min}", group.name);
        }
    }

    #[test]
    fn nobody_is_above_ceiling_or_demand(case in cases(5, 12)) {
        let config = case.config();
        for (grant, service) in grants(&decide(&config, &case)).iter().zip(&config.services) {
            let max = service.terms[SEND].max.unwrap_or(u64::MAX);
            prop_assert!(share(grant) <= max.min(grant.demand.unwrap_or(u64::MAX)));
            prop_assert!(grant.limit.expect("a limit") <= max);
            prop_assert!(grant.ceiling.unwrap_or(u64::MAX) <= max);
prop_assert!(grant.guarantee <= grant.ceiling.unwrap_or(u64::MAX));
        }
    }

    #[test]
    fn nothing_is_left_while_somebody_wants_it(case in cases(5, 12)) {
        let config = case.config();
        let allocation = decide(&config, &case);
        let grants = grants(&allocation);
        let sum: u64 = grants.iter().map(share).sum();
        prop_assert_eq!(allocation.free[SEND], Some(case.capacity - sum));
        for (i, grant) in grants.iter().enumerate() {
            let wants = grant.demand.is_none_or(|demand| demand > share(grant));
            prop_assert!(
                sum == case.capacity || !wants || room(&case, &config, &grants, i) == 0,
                "service {} wants more, {} is left", i, case.capacity - sum
            );
        }
    }

    #[test]
    fn who_wants_more_gets_by_weight(case in cases(0, 12)) {
        let config = case.config();
        let grants = grants(&decide(&config, &case));
        let beyond: Vec<(u64, u64, bool)> = grants
            .iter()
            .zip(&config.services)
            .map(|(grant, service)| {
                let terms = service.terms[SEND];
                let most = terms.max.unwrap_or(u64::MAX).min(grant.demand.unwrap_or(u64::MAX));
                let floor = terms.min.expect("a guarantee").min(most);
                let weight = u64::from(terms.weight.expect("a weight"));
                (share(grant) - floor, weight, share(grant) < most)
            })
            .collect();
        // Per weight nobody has more than one who wants more, but for the unit of rounding.
        for &(less, own, _) in beyond.iter().filter(|b| b.2) {
            for &(more, weight, _) in &beyond {
                let (less, more) = (u128::from(less) * u128::from(weight), u128::from(more) * u128::from(own));
                prop_assert!(more <= less + u128::from(own + weight), "{:?}", beyond);
            }
        }
    }

    #[test]
    fn the_order_of_lists_does_not_matter(case in cases(4, 10), by in any::<prop::sample::Index>()) {
        let config = case.config();
        let mut turned = config.clone();
        let mut observation = case.observation();
        turned.services.rotate_left(by.index(config.services.len()));
        turned.groups.reverse();
        observation.services.reverse();
        let mut policy = Policy::new(turned).expect("a good configuration");
        let other = policy.decide(&observation);
        for allocated in &decide(&config, &case).services {
            let found = other.services.iter().find(|other| other.name == allocated.name);
            prop_assert_eq!(found, Some(allocated));
        }
    }

    #[test]
    fn the_same_input_gives_the_same_output(case in cases(5, 12), before in cases(0, 12), hysteresis in 0_u32..200) {
        let config = Config { hysteresis, ..case.config() };
        let mut policy = Policy::new(config).expect("a good configuration");
        // Whatever there was before.
        policy.decide(&before.observation());
        let first = policy.decide(&case.observation()).clone();
        for _ in 0..3 {
            prop_assert_eq!(policy.decide(&case.observation()), &first);
        }
    }
}
