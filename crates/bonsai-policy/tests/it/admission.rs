//! Whether something more fits.

use bonsai_policy::{
    Admission, Automatic, Config, Gives, Mode, Observation, Policy, Request, RequestError,
};
use bonsai_units::Resource;

use crate::cases::SEND;
use crate::machine::{class, group, link, mbit, observed, of_class, seen, send, service};

fn request(streams: u32, rate: u64) -> Request {
    Request {
        service: None,
        class: None,
        resource: Resource::Send,
        streams,
        rate,
        peak: None,
        confidence: None,
        wall_s: 0,
    }
}

fn ask(policy: &Policy, request: &Request) -> Admission {
    policy.admit(request).expect("an answer")
}

fn machine() -> Policy {
    let mut config = link();
    config.services = vec![
        service("vod", send(60, 0, 0)),
        service("web", send(10, 0, 0)),
    ];
    let mut policy = Policy::new(config).expect("good");
    let services = [
        seen("vod", 32, false),
        seen("web", 4, false),
        seen("backup", 50, true),
    ];
    policy.decide(&observed(services));
    policy
}

#[test]
fn what_can_be_guaranteed_is_admitted() {
    let policy = machine();
    let yes = ask(&policy, &request(10, mbit(2)));
    assert!(yes.admitted);
    assert_eq!((yes.guarantee, yes.guarantee_free), (mbit(20), mbit(25)));
    // Nothing is free, for the backup takes all: it would have to give.
    assert_eq!(yes.free, 0);
    assert_eq!(yes.givers.len(), 1);
    assert_eq!(
        (&*yes.givers[0].service, yes.givers[0].gives),
        ("backup", Gives::Borrowed)
    );
    assert_eq!(yes.givers[0].rate, mbit(20));

    let no = ask(&policy, &request(15, mbit(2)));
    assert!(!no.admitted);
    let last = no.givers.last().expect("somebody");
    assert_eq!(
        (&*last.service, last.gives, last.rate),
        ("vod", Gives::Guarantee, mbit(5))
    );
    assert_eq!(
        no.to_string(),
        "no: guarantees would grow by 30 Mbit/s, and there is room for 25 Mbit/s; all demands fit with a \
         probability of 0.00 %; free now is nothing; would have to give: backup what it borrows, 30 Mbit/s, \
         vod of its guarantee, 5 Mbit/s"
    );
}

#[test]
fn ceilings_of_groups_count() {
    let mut config = link();
    config.groups = vec![group("media", None, send(0, 50, 0))];
    let mut media = class("media", Mode::Dynamic, send(5, 0, 0));
    media.group = Some("media".into());
    config.classes = vec![media];
    let mut vod = of_class("vod", "media");
    vod.terms = send(40, 0, 0);
    config.services = vec![vod];
    let mut policy = Policy::new(config).expect("good");
    policy.decide(&observed([seen("vod", 30, false)]));
    let into_group = |streams| {
        let class = Some("media".into());
        ask(
            &policy,
            &Request {
                class,
                ..request(streams, mbit(1))
            },
        )
    };
    assert!(into_group(10).admitted);
    assert!(!into_group(11).admitted);
    assert!(ask(&policy, &request(50, mbit(1))).admitted);
}

#[test]
fn questions_without_an_answer_say_why() {
    let policy = machine();
    let refused = |request: Request| policy.admit(&request).expect_err("no answer");
    assert_eq!(refused(request(0, mbit(1))), RequestError::Nothing);
    let read = Request {
        resource: Resource::Read,
        ..request(1, 1)
    };
    assert_eq!(refused(read), RequestError::NoCapacity(Resource::Read));
    let service = Some("tv".into());
    assert_eq!(
        refused(Request {
            service,
            ..request(1, 1)
        })
        .to_string(),
        "there is no service tv, neither configured nor running"
    );
    let class = Some("tv".into());
    assert_eq!(
        refused(Request {
            class,
            ..request(1, 1)
        })
        .to_string(),
        "there is no class tv"
    );
}

/// A machine on which two services were seen for two hours; each sends 20 or 40 Mbit/s, half
/// of the time each, independently.
fn learned() -> Policy {
    let mut config: Config = link();
    config.automatic = Automatic::DryRun;
    config.services = ["a", "b"].map(|name| service(name, send(0, 0, 0))).into();
    config.headroom = 0;
    let mut policy = Policy::new(config).expect("good");
    for second in 0..7_200_u64 {
        let rate = |bit: u64| if second >> bit & 1 == 1 { 40 } else { 20 };
        policy.decide(&Observation {
            now_ns: second * 1_000_000_000,
            wall_s: second,
            services: vec![seen("a", rate(0), false), seen("b", rate(1), false)],
            reports: Vec::new(),
        });
    }
    policy
}

#[test]
fn the_probability_is_that_of_the_convolution() {
    let policy = learned();
    // Together 40, 60 or 80 in a quarter, half and quarter of the time; buckets of 5 % blur
    // each by a few Mbit/s, so these are asked in between.
    let probability = |free: u64| {
        let one = Request {
            wall_s: 3_600,
            ..request(1, mbit(100 - free))
        };
        ask(&policy, &one).probability
    };
    for (free, exact) in [(30, 0.0), (50, 0.25), (70, 0.75), (90, 1.0)] {
        let found = probability(free);
        assert!((found - exact).abs() < 0.01, "{free}: {found}");
    }
}

#[test]
fn streams_that_vary_are_binomial() {
    let policy = Policy::new(link()).expect("good");
    // 50 streams of 1 Mbit/s on average, 4 Mbit/s in a quarter of the time: at most 25 at once
    // fit into 100 Mbit/s. P(X <= 25), X ~ B(50, 1/4), is 0.999962 by the sum of its terms.
    let varying = Request {
        peak: Some(mbit(4)),
        ..request(50, mbit(1))
    };
    let found = ask(&policy, &varying).probability;
    assert!((found - 0.999_962).abs() < 1e-5, "{found}");
    // 80 of them: X ~ B(80, 1/4), P(X <= 25) is 0.92.
    let varying = Request {
        peak: Some(mbit(4)),
        ..request(80, mbit(1))
    };
    let exact: f64 = (0..=25).map(|k| binomial(80, k, 0.25)).sum();
    let found = ask(&policy, &varying).probability;
    assert!((found - exact).abs() < 1e-6, "{found}, exactly {exact}");
    let sure = Request {
        confidence: Some(0.95),
        ..varying
    };
    assert!(!ask(&policy, &sure).admitted);
}

fn binomial(n: u32, k: u32, p: f64) -> f64 {
    let choose: f64 = (0..k)
        .map(|i| f64::from(n - i) / f64::from(i + 1))
        .product();
    choose
        * p.powi(i32::try_from(k).expect("few"))
        * (1.0 - p).powi(i32::try_from(n - k).expect("few"))
}

#[test]
fn learned_guarantees_give_before_configured_ones() {
    let mut config = link();
    config.automatic = Automatic::On;
    config.classes = vec![class("media", Mode::Adaptive, send(10, 0, 0))];
    config.services = vec![of_class("vod", "media"), service("web", send(20, 0, 0))];
    let mut policy = Policy::new(config).expect("good");
    for second in 0..60_u64 {
        policy.decide(&Observation {
            now_ns: second * 1_000_000_000,
            wall_s: second,
            services: vec![seen("vod", 40, false), seen("web", 10, false)],
            reports: Vec::new(),
        });
    }
    let learned = policy.allocation().services[0].grants[SEND].guarantee;
    assert!(learned >= mbit(46) && learned < mbit(49), "{learned}");
    let no = ask(&policy, &request(1, mbit(40)));
    let givers: Vec<_> = no
        .givers
        .iter()
        .map(|g| (&*g.service, g.gives, g.rate))
        .collect();
    let free = mbit(75) - learned;
    assert_eq!((no.guarantee_free, no.admitted), (free, false));
    assert_eq!(
        givers.last(),
        Some(&("vod", Gives::Learned, mbit(40) - free))
    );
}
