//! Services of other users: what a user gets does not grow with the number of services.

use bonsai_policy::{Config, Mode, Observation, Policy};

use crate::cases::SEND;
use crate::machine::{class, group, link, mbit, observed, seen, send, service};

/// Allocations in Mbit/s, by owner or by service without one, where each service wants everything.
fn shares(config: Config, services: &[&str]) -> Vec<(String, u64)> {
    let mut policy = Policy::new(config).expect("good");
    let allocation = policy.decide(&observed(
        services
            .iter()
            .map(|name| seen(name, 1, true))
            .collect::<Vec<_>>(),
    ));
    let mut sums = std::collections::BTreeMap::<String, u64>::new();
    for of in &allocation.services {
        let owner = of.name.split(':').next().expect("a name").to_owned();
        *sums.entry(owner).or_default() += of.grants[SEND].share.expect("shared");
    }
    let rounded = |milli: u64| (milli + mbit(1) / 2) / mbit(1);
    sums.into_iter()
        .map(|(owner, sum)| (owner, rounded(sum)))
        .collect()
}

fn many<'a>(names: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    names
        .iter()
        .map(String::as_str)
        .chain(more.iter().copied())
        .collect()
}

fn of(owner: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{owner}:{i}")).collect()
}

fn expect(found: &[(String, u64)], expected: &[(&str, u64)]) {
    let found: Vec<(&str, u64)> = found.iter().map(|(of, sum)| (of.as_str(), *sum)).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_user_with_many_services_has_the_part_of_one() {
    let alice = of("alice", 99);
    let services = many(&alice, &["bob:a", "own"]);
    expect(
        &shares(link(), &services),
        &[("alice", 33), ("bob", 33), ("own", 33)],
    );
    // By a bound that is higher, as much more.
    let config = Config {
        owner_weight: 3,
        ..link()
    };
    expect(
        &shares(config, &services),
        &[("alice", 60), ("bob", 20), ("own", 20)],
    );
    let config = Config {
        owner_weight: 1_000,
        ..link()
    };
    expect(
        &shares(config, &services),
        &[("alice", 98), ("bob", 1), ("own", 1)],
    );
}

#[test]
fn a_weight_that_a_person_wrote_counts_in_full_beside_others_of_that_user() {
    let mut config = link();
    config.services = vec![service("alice:vod", send(0, 0, 3))];
    let alice = of("alice", 30);
    let services = many(&alice, &["alice:vod", "bob:a", "own"]);
    expect(
        &shares(config, &services),
        &[("alice", 60), ("bob", 20), ("own", 20)],
    );
}

#[test]
fn in_a_group_a_user_with_many_services_has_the_part_of_one() {
    let mut config = link();
    config.groups = vec![group("tenants", None, send(0, 60, 1))];
    config.classes = vec![class("default", Mode::Dynamic, send(0, 0, 0))];
    config.classes[0].group = Some("tenants".into());
    config.default_class = Some("default".into());
    let alice = of("alice", 50);
    let services = many(&alice, &["bob:a"]);
    expect(&shares(config, &services), &[("alice", 30), ("bob", 30)]);
}

#[test]
fn one_service_of_each_user_is_shared_as_if_it_had_no_owner() {
    let decide = |names: [&str; 3]| {
        let mut config = link();
        config.services = vec![
            service(names[0], send(10, 0, 3)),
            service(names[1], send(0, 40, 2)),
        ];
        let mut policy = Policy::new(config).expect("good");
        let observation = observed([
            seen(names[0], 20, true),
            seen(names[1], 30, true),
            seen(names[2], 5, false),
        ]);
        let grants = policy
            .decide(&observation)
            .services
            .iter()
            .map(|of| of.grants[SEND]);
        grants.collect::<Vec<_>>()
    };
    assert_eq!(
        decide(["alice:a", "bob:a", "carol:a"]),
        decide(["a", "b", "c"])
    );
}

#[test]
fn the_reason_says_that_the_services_of_a_user_share_a_weight() {
    let mut policy = Policy::new(link()).expect("good");
    let observation = observed([
        seen("alice:a", 1, true),
        seen("alice:b", 1, true),
        seen("own", 1, true),
    ]);
    let allocation = policy.decide(&observation);
    let reason = |at: usize| allocation.services[at].grants[SEND].reason().to_string();
    assert_eq!(
        reason(0),
        "wanted more: 25 Mbit/s borrowed by weight 1; all services of this user share a weight of 1"
    );
    assert_eq!(reason(2), "wanted more: 50 Mbit/s borrowed by weight 1");
}

#[test]
fn what_a_class_guarantees_goes_to_the_first_service_of_each_user_first() {
    let mut config = link();
    config.classes = vec![class("default", Mode::Dynamic, send(30, 0, 0))];
    config.default_class = Some("default".into());
    let alice = of("alice", 20);
    let services = many(&alice, &["bob:a", "own"]);
    let mut policy = Policy::new(config).expect("good");
    let observation = Observation {
        services: services.iter().map(|name| seen(name, 1, true)).collect(),
        ..Observation::default()
    };
    let allocation = policy.decide(&observation);
    let guarantee = |name: &str| {
        let of = allocation.services.iter().find(|of| &*of.name == name);
        of.expect("it runs").grants[SEND].guarantee
    };
    assert_eq!(
        [guarantee("bob:a"), guarantee("own"), guarantee("alice:0")],
        [mbit(30); 3]
    );
    let of_alice: u64 = alice.iter().map(|name| guarantee(name)).sum();
    assert_eq!(of_alice, mbit(40), "30 and the rest");
}

#[test]
fn a_bound_of_weights_makes_sense() {
    for bound in [0, 1_001] {
        let config = Config {
            owner_weight: bound,
            ..link()
        };
        let problems = config.check().expect_err("out of range");
        let text = problems[0].to_string();
        assert!(
            text.contains("owner-weight") && text.contains("1000"),
            "{text}"
        );
    }
}
