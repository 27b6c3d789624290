//! Guarantees that follow what clients report.

use bonsai_policy::{Automatic, ClientReport, Config, Mode, Observation, Policy, Target};

use crate::cases::SEND;
use crate::machine::{class, link, mbit, of_class, seen, send};

/// A call service that needs some rate below which its clients see delay.
struct Calls {
    policy: Policy,
    second: u64,
    needs: u64,
}

fn config(automatic: Automatic, min: u64) -> Config {
    let mut config = link();
    config.automatic = automatic;
    let mut calls = class("calls", Mode::Qos, send(min, 0, 0));
    calls.target = Some(Target {
        delay_ms: Some(50.0),
        loss: Some(0.01),
        ..Target::default()
    });
    config.classes = vec![calls, class("bulk", Mode::Dynamic, send(0, 0, 0))];
    config.services = vec![of_class("calls", "calls"), of_class("backup", "bulk")];
    config
}

fn report(delay_ms: f64) -> ClientReport {
    ClientReport {
        service: "calls".into(),
        loss: Some(0.0),
        delay_ms: Some(delay_ms),
        jitter_ms: None,
        stalls: None,
    }
}

impl Calls {
    fn new(config: Config, needs: u64) -> Self {
        Self {
            policy: Policy::new(config).expect("good"),
            second: 0,
            needs,
        }
    }

    fn guarantee(&self) -> u64 {
        self.policy.allocation().services[0].grants[SEND].guarantee
    }

    /// A second with these reports.
    fn step(&mut self, used: u64, reports: Vec<ClientReport>) {
        self.second += 1;
        self.policy.decide(&Observation {
            now_ns: self.second * 1_000_000_000,
            wall_s: self.second,
            services: vec![seen("calls", used, false), seen("backup", 90, true)],
            reports,
        });
    }

    /// Seconds in which clients see delay while the guarantee is below the need; returns how
    /// many of them were bad.
    fn run(&mut self, seconds: u64) -> u64 {
        let mut bad = 0;
        for _ in 0..seconds {
            let held = self.second > 0 && self.guarantee() >= mbit(self.needs);
            bad += u64::from(!held);
            let delay = if held { 20.0 } else { 200.0 };
            let used = self.needs.min(self.guarantee_mbit());
            self.step(used, vec![report(delay)]);
        }
        bad
    }

    fn guarantee_mbit(&self) -> u64 {
        if self.second == 0 {
            10
        } else {
            self.guarantee() / mbit(1) + 1
        }
    }
}

#[test]
fn a_missed_target_raises_until_it_holds_at_least_cost() {
    let mut calls = Calls::new(config(Automatic::On, 10), 25);
    let bad = calls.run(60);
    // 10, 12.5, 15.6, 19.5, 24.4, 30.5 and the first, each seen for a second or two.
    assert!(bad <= 14, "{bad}");
    let high = calls.guarantee();
    assert!(high >= mbit(25), "{high}");
    // An hour later it has come down to what holds, with few misses on the way.
    let bad = calls.run(3_600);
    let low = calls.guarantee();
    assert!((mbit(25)..=mbit(32)).contains(&low), "{low}");
    assert!(bad <= 36, "{bad} bad seconds of an hour");
}

#[test]
fn reasons_are_said() {
    let mut calls = Calls::new(config(Automatic::On, 10), 25);
    calls.run(2);
    let change = calls.policy.allocation().changes[0].to_owned();
    assert_eq!(
        change.why.to_string(),
        "clients report delay of 200 ms, above the target of 50 ms"
    );
}

#[test]
fn more_is_bounded() {
    let mut calls = Calls::new(config(Automatic::On, 10), 1_000);
    calls.run(300);
    // Four times what was configured.
    assert_eq!(calls.guarantee(), mbit(40));
    let mut large = Calls::new(config(Automatic::On, 40), 1_000);
    large.run(300);
    // All but the reserve.
    assert_eq!(large.guarantee(), mbit(95));
}

#[test]
fn more_is_not_given_where_it_would_not_help() {
    let mut calls = Calls::new(config(Automatic::On, 10), 25);
    for _ in 0..100 {
        calls.step(2, vec![report(500.0)]);
    }
    assert_eq!(calls.guarantee(), mbit(10));
}

#[test]
fn one_client_of_many_is_no_reason() {
    let mut calls = Calls::new(config(Automatic::On, 10), 25);
    for _ in 0..100 {
        let mut reports = vec![report(20.0); 19];
        reports.push(report(900.0));
        calls.step(10, reports);
    }
    assert_eq!(calls.guarantee(), mbit(10));
    let mut reports = vec![report(20.0); 9];
    reports.extend([report(900.0), report(900.0)]);
    calls.step(10, reports);
    assert_eq!(calls.guarantee(), mbit(10) * 5 / 4);
}

#[test]
fn without_reports_nothing_moves() {
    let mut calls = Calls::new(config(Automatic::On, 10), 25);
    calls.run(60);
    let before = calls.guarantee();
    for _ in 0..3_600 {
        calls.step(25, Vec::new());
    }
    assert_eq!(calls.guarantee(), before);
}

#[test]
fn a_dry_run_proposes_one_step() {
    let mut calls = Calls::new(config(Automatic::DryRun, 10), 25);
    calls.run(600);
    assert_eq!(calls.guarantee(), mbit(10));
    let [proposal] = &calls.policy.allocation().proposals[..] else {
        panic!("{:?}", calls.policy.allocation().proposals);
    };
    assert_eq!((proposal.from, proposal.to), (mbit(10), mbit(10) * 5 / 4));
}
