//! Static and dynamic, by hand.

use bonsai_policy::{Allocation, Config, Grant, Mode, Policy};
use bonsai_units::Resource;

use crate::cases::SEND;
use crate::machine::{class, group, link, mbit, observed, seen, send, service};

fn grant(allocation: &Allocation, name: &str) -> Grant {
    let found = allocation.services.iter().find(|s| &*s.name == name);
    found.expect("it was seen").grants[SEND]
}

fn mixed() -> Config {
    let mut config = link();
    config.services = vec![
        service("vod", send(40, 0, 3)),
        service("web", send(0, 0, 1)),
    ];
    config
}

#[test]
fn static_shares_do_not_depend_on_use() {
    let config = Config {
        mode: Mode::Static,
        ..mixed()
    };
    let mut policy = Policy::new(config).expect("good");
    for (vod, web) in [
        ((0, false), (0, true)),
        ((90, true), (3, false)),
        ((0, false), (0, false)),
    ] {
        let allocation = policy.decide(&observed([
            seen("vod", vod.0, vod.1),
            seen("web", web.0, web.1),
        ]));
        // 60 are left beyond the guarantee, by weights of 3 and 1.
        for (name, share) in [("vod", mbit(85)), ("web", mbit(15))] {
            let grant = grant(allocation, name);
            assert_eq!(grant.share, Some(share));
            assert_eq!((grant.limit, grant.ceiling), (Some(share), Some(share)));
        }
        assert_eq!(
            grant(allocation, "vod").reason().to_string(),
            "static: guarantee 40 Mbit/s and 45 Mbit/s by weight 3"
        );
    }
}

#[test]
fn what_is_not_used_is_lent_and_given_back_in_one_decision() {
    let mut policy = Policy::new(mixed()).expect("good");
    let allocation = policy.decide(&observed([seen("vod", 0, false), seen("web", 50, true)]));
    let web = grant(allocation, "web");
    // All but the trickle that shows that the other is back: a thousandth, shared by two.
    assert_eq!(web.limit, Some(mbit(100) - mbit(100) / 2_000));
    let vod = grant(allocation, "vod");
    assert!(vod.limit.is_some_and(|limit| limit > 0));
    assert_eq!((vod.guarantee, vod.ceiling), (mbit(40), None));
    assert_eq!(
        vod.reason().to_string(),
        "idle: its guarantee, 40 Mbit/s, is lent"
    );

    let back = policy.decide(&observed([seen("vod", 1, true), seen("web", 99, true)]));
    assert_eq!(grant(back, "vod").limit, Some(mbit(85)));
    assert_eq!(grant(back, "web").limit, Some(mbit(15)));
    assert_eq!(
        grant(back, "vod").reason().to_string(),
        "wanted more: guarantee 40 Mbit/s and 45 Mbit/s borrowed by weight 3"
    );
}

#[test]
fn a_demand_has_headroom_and_limits_share_what_is_spare() {
    let mut policy = Policy::new(mixed()).expect("good");
    let allocation = policy.decide(&observed([seen("vod", 40, false), seen("web", 8, false)]));
    let (vod, web) = (grant(allocation, "vod"), grant(allocation, "web"));
    assert_eq!((vod.demand, web.demand), (Some(mbit(50)), Some(mbit(10))));
    assert_eq!((vod.share, web.share), (Some(mbit(50)), Some(mbit(10))));
    assert_eq!(allocation.free[SEND], Some(mbit(40)));
    assert_eq!((vod.limit, web.limit), (Some(mbit(80)), Some(mbit(20))));
    assert_eq!(
        vod.reason().to_string(),
        "demand was 50 Mbit/s: guarantee 40 Mbit/s and 10 Mbit/s borrowed"
    );
    assert_eq!(
        web.reason().to_string(),
        "demand was 10 Mbit/s, all of it borrowed"
    );
}

#[test]
fn nobody_is_given_more_than_a_limit_of_its_own_lets_through() {
    let mut policy = Policy::new(mixed()).expect("good");
    let mut web = seen("web", 10, true);
    web.usage[SEND].bound = Some(mbit(10));
    let allocation = policy.decide(&observed([seen("vod", 40, true), web]));
    let (vod, web) = (grant(allocation, "vod"), grant(allocation, "web"));
    assert_eq!((web.demand, web.share), (Some(mbit(10)), Some(mbit(10))));
    assert_eq!(vod.share, Some(mbit(90)));
}

#[test]
fn a_static_service_keeps_its_part_beside_dynamic_ones() {
    let mut config = mixed();
    config.services[0].mode = Some(Mode::Static);
    config.services.push(service("backup", send(0, 0, 1)));
    let mut policy = Policy::new(config).expect("good");
    let services = [
        seen("vod", 0, false),
        seen("web", 0, false),
        seen("backup", 0, true),
    ];
    let allocation = policy.decide(&observed(services));
    // 40, and 3 of 5 parts of 60.
    assert_eq!(grant(allocation, "vod").share, Some(mbit(76)));
    let backup = grant(allocation, "backup").limit.expect("a limit");
    assert!(backup > mbit(23) && backup < mbit(24), "{backup}");
}

#[test]
fn weights_of_a_flat_pool_give_the_shares_of_the_tree() {
    let mut config = link();
    config.groups = vec![
        group("media", None, send(0, 0, 3)),
        group("rest", None, send(0, 0, 1)),
    ];
    for (name, group, weight) in [
        ("a", "media", 1),
        ("b", "media", 2),
        ("c", "rest", 1),
        ("d", "rest", 4),
    ] {
        let mut one = service(name, send(0, 0, weight));
        one.group = Some(group.into());
        config.services.push(one);
    }
    let mut policy = Policy::new(config).expect("good");
    let all = ["a", "b", "c", "d"].map(|name| seen(name, 0, true));
    let allocation = policy.decide(&observed(all));
    let weights = allocation.services.iter().map(|s| s.grants[SEND].weight);
    // Shares of 25, 50, 5 and 20.
    assert_eq!(weights.collect::<Vec<_>>(), [500, 1_000, 100, 400]);

    // One whose demand is met has the weight that it would need if it wanted more, as far as
    // that does not blur the others'.
    let some = [
        seen("a", 0, true),
        seen("b", 4, false),
        seen("c", 0, true),
        seen("d", 0, true),
    ];
    let allocation = policy.decide(&observed(some));
    let weights: Vec<u32> = allocation
        .services
        .iter()
        .map(|s| s.grants[SEND].weight)
        .collect();
    assert_eq!(weights[..2], [1_000, 1_000], "{weights:?}");
}

#[test]
fn what_a_group_guarantees_goes_to_its_members_that_demand_it() {
    let mut config = link();
    config.groups = vec![group("media", None, send(60, 0, 0))];
    for name in ["a", "b"] {
        let mut one = service(name, send(10, 0, 0));
        one.group = Some("media".into());
        config.services.push(one);
    }
    let mut policy = Policy::new(config).expect("good");
    let services = [seen("a", 0, true), seen("b", 0, false), seen("c", 0, true)];
    let allocation = policy.decide(&observed(services));
    let (a, b) = (grant(allocation, "a"), grant(allocation, "b"));
    assert!(a.guarantee >= mbit(49) && a.guarantee <= mbit(50), "{a:?}");
    assert_eq!(b.guarantee, mbit(10));
    // 60 for the group, and half of the rest, as its weight is that of c.
    let share = a.share.expect("a share");
    assert!(share.abs_diff(mbit(80)) < mbit(1), "{share}");
}

#[test]
fn a_resource_without_capacity_has_ceilings_only() {
    let mut config = mixed();
    config.services[1].terms[Resource::Read.index()].max = Some(mbit(10));
    let mut policy = Policy::new(config).expect("good");
    let allocation = policy.decide(&observed([seen("vod", 1, false), seen("web", 1, false)]));
    let read = |at: usize| allocation.services[at].grants[Resource::Read.index()];
    assert_eq!(
        (read(0).limit, read(0).ceiling, read(0).share),
        (None, None, None)
    );
    assert_eq!(
        (read(1).limit, read(1).ceiling),
        (Some(mbit(10)), Some(mbit(10)))
    );
    assert_eq!(
        read(0).reason().to_string(),
        "read has no capacity, so it is not shared"
    );
    assert_eq!(
        read(1).reason().to_string(),
        "read has no capacity: only the ceiling holds, 1.25 MB/s"
    );
}

#[test]
fn services_come_and_go() {
    let mut config = mixed();
    config.classes = vec![class("stranger", Mode::Dynamic, send(30, 0, 0))];
    config.default_class = Some("stranger".into());
    let mut policy = Policy::new(config).expect("good");
    let first = policy
        .decide(&observed([seen("vod", 0, true), seen("x", 0, true)]))
        .clone();
    assert_eq!(grant(&first, "x").guarantee, mbit(30));
    // web has a class, too, and its own entry says nothing of a guarantee: 40 and 30 are
    // promised, 30 are free, and the first stranger has them.
    let both = [seen("vod", 0, true), seen("y", 0, true), seen("x", 0, true)];
    let second = policy.decide(&observed(both)).clone();
    assert_eq!(grant(&second, "x").guarantee, mbit(30));
    assert_eq!(grant(&second, "y").guarantee, 0);
    let third = policy.decide(&observed([seen("vod", 0, true), seen("y", 0, true)]));
    assert_eq!(grant(third, "y").guarantee, mbit(30));
}

#[test]
fn who_was_promised_nothing_has_what_there_is_room_for() {
    let mut config = link();
    config.classes = vec![class("stranger", Mode::Dynamic, send(60, 0, 0))];
    config.default_class = Some("stranger".into());
    let unasked = |name: &str, terms| bonsai_policy::Service {
        unasked: true,
        ..service(name, terms)
    };
    // Their owners say how much they want at most, and nobody that they are to have 120 of 100.
    config.services = vec![
        unasked("x", send(0, 80, 0)),
        unasked("y", send(0, 70, 0)),
        service("vod", send(30, 0, 0)),
    ];
    let observation = observed(["vod", "x", "y"].map(|name| seen(name, 0, true)));
    let mut policy = Policy::new(config.clone()).expect("good");
    let decided = policy.decide(&observation);
    let guarantees = ["vod", "x", "y"].map(|name| grant(decided, name).guarantee);
    assert_eq!(guarantees, [30, 60, 10].map(mbit));
    // What they were given themselves is a promise.
    config.services[0].terms = send(40, 80, 0);
    config.services[1].terms = send(40, 70, 0);
    Policy::new(config).expect_err("110 of 100");
}

#[test]
fn a_preview_changes_nothing() {
    let mut policy = Policy::new(mixed()).expect("good");
    let observation = observed([seen("vod", 0, true), seen("web", 0, true)]);
    let before = policy.decide(&observation).clone();
    let mut other = mixed();
    other.services[0].terms = send(80, 0, 0);
    let preview = policy.preview(other, &observation).expect("good");
    assert_eq!(grant(&preview, "vod").share, Some(mbit(90)));
    assert_eq!(policy.decide(&observation), &before);
}
