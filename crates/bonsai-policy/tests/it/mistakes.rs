//! Each mistake in a configuration has its sentence.

use bonsai_policy::{Config, Overcommit, Policy, Target};
use bonsai_units::Resource;

use crate::cases::SEND;
use crate::machine::{class, group, link, mbit, observed, of_class, seen, send, service};

fn said(config: &Config) -> Vec<String> {
    let problems = config.check().expect_err("a mistake");
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn overcommitted_guarantees_are_refused_with_the_arithmetic() {
    let mut config = link();
    config.services = vec![
        service("vod", send(60, 0, 0)),
        service("web", send(50, 0, 0)),
    ];
    assert_eq!(
        said(&config),
        [
            "min of vod 60 Mbit/s + web 50 Mbit/s = 110 Mbit/s is 10 Mbit/s more than send has, \
             100 Mbit/s; lower one, or say overcommit = \"scale\""
        ]
    );
    assert!(Policy::new(config.clone()).is_err());

    config.overcommit = Overcommit::Scale;
    let mut policy = Policy::new(config).expect("scaled");
    let allocation = policy.decide(&observed([seen("vod", 0, true), seen("web", 0, true)]));
    let guarantees: Vec<u64> = allocation
        .services
        .iter()
        .map(|s| s.grants[SEND].guarantee)
        .collect();
    // 60 and 50 of 110.
    assert_eq!(guarantees, [mbit(100) * 6 / 11, mbit(100) * 5 / 11]);
}

#[test]
fn guarantees_in_a_group_fit_its_ceiling() {
    let mut config = link();
    config.groups = vec![
        group("media", None, send(0, 50, 0)),
        group("live", Some("media"), send(40, 0, 0)),
    ];
    let mut vod = service("vod", send(20, 0, 0));
    vod.group = Some("media".into());
    config.services = vec![vod];
    assert_eq!(
        said(&config),
        [
            "min of group live 40 Mbit/s + vod 20 Mbit/s = 60 Mbit/s is 10 Mbit/s more than the max of \
             group media for send, 50 Mbit/s; lower one, or say overcommit = \"scale\""
        ]
    );
}

#[test]
fn the_arithmetic_of_many_services_stays_short() {
    let mut config = link();
    config.services = (0..40)
        .map(|i| service(&format!("s{i:02}"), send(3, 0, 0)))
        .collect();
    assert_eq!(
        said(&config),
        [
            "min of s00 3 Mbit/s + s01 3 Mbit/s + s02 3 Mbit/s + s03 3 Mbit/s + s04 3 Mbit/s + \
             35 others 105 Mbit/s = 120 Mbit/s is 20 Mbit/s more than send has, 100 Mbit/s; \
             lower one, or say overcommit = \"scale\""
        ]
    );
}

#[test]
fn groups_are_no_circle() {
    let mut config = link();
    config.groups = vec![
        group("a", Some("b"), send(0, 0, 0)),
        group("b", Some("c"), send(0, 0, 0)),
        group("c", Some("a"), send(0, 0, 0)),
        group("d", Some("a"), send(0, 0, 0)),
        group("e", Some("e"), send(0, 0, 0)),
    ];
    assert_eq!(
        said(&config),
        [
            "groups are in each other: a in b in c in a; take one of them out",
            "groups are in each other: e in e; take one of them out",
        ]
    );
}

#[test]
fn names_lead_somewhere() {
    let mut config = link();
    config.classes = vec![class("media", bonsai_policy::Mode::Dynamic, send(0, 0, 0))];
    config.services = vec![
        of_class("vod", "meida"),
        of_class("vod", "media"),
        service("", send(0, 0, 0)),
    ];
    config.services[1].group = Some("tv".into());
    assert_eq!(
        said(&config),
        [
            "there are two of service vod: merge them, or rename one",
            "a service has an empty name: give it one",
            "vod is to be in group tv, which does not exist; there is no group",
            "vod is to have class meida, which does not exist; there is media",
        ]
    );
}

#[test]
fn terms_make_sense() {
    let mut config = link();
    config.classes = vec![class("media", bonsai_policy::Mode::Dynamic, send(40, 0, 0))];
    let mut vod = of_class("vod", "media");
    vod.terms = send(0, 30, 2_000);
    vod.target = Some(Target {
        loss: Some(1.5),
        delay_ms: Some(f64::NAN),
        ..Target::default()
    });
    config.services = vec![vod];
    config.capacity[Resource::Read.index()] = Some(0);
    config.headroom = 20_000;
    assert_eq!(
        said(&config),
        [
            "headroom is 2000 %; it has to be 0 % to 1000 %",
            "the machine has for read a capacity of nothing; it has to be above 0 and at most 100 GB/s",
            "vod has for send a min of 40 Mbit/s, above its max of 30 Mbit/s",
            "vod has for send a weight of 2000; weights are 1 to 1000",
            "vod has a target for loss of 1.5; it has to be 0 to 1, a part of all packets",
            "vod has a target for delay of NaN; it has to be 0 or more",
        ]
    );
}

#[test]
fn a_refused_configuration_leaves_the_one_before() {
    let mut config = link();
    config.services = vec![service("vod", send(60, 0, 0))];
    let mut policy = Policy::new(config.clone()).expect("good");
    let observation = observed([seen("vod", 0, true), seen("other", 0, true)]);
    let before = policy.decide(&observation).clone();
    config.services[0].terms = send(160, 0, 0);
    assert!(policy.configure(config).is_err());
    assert_eq!(policy.decide(&observation), &before);
}
