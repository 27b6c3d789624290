//! Guarantees that follow demand, and what survives a restart.

use bonsai_policy::{Automatic, CauseKind, Config, Memory, Mode, Observation, Policy, Seen, Usage};

use crate::cases::SEND;
use crate::machine::{class, link, mbit, of_class, seen, send};

const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;

/// A media service that begins with 10 Mbit/s, and bulk.
fn config(automatic: Automatic) -> Config {
    let mut config = link();
    config.automatic = automatic;
    config.classes = vec![
        class("media", Mode::Adaptive, send(10, 0, 0)),
        class("bulk", Mode::Dynamic, send(0, 0, 0)),
    ];
    config.services = vec![of_class("vod", "media"), of_class("backup", "bulk")];
    config
}

/// Whether a guarantee is what follows from a demand of so many Mbit/s: 15 % more, and the
/// bucket's end at most 5 % above.
fn is_of(guarantee: u64, demand: u64) -> bool {
    let least = mbit(demand) * 23 / 20;
    (least..=least * 21 / 20).contains(&guarantee)
}

/// A machine on which time passes; the backup takes what is left.
struct Machine {
    policy: Policy,
    second: u64,
    /// Seconds of a period.
    period: u64,
}

impl Machine {
    fn new(config: Config) -> Self {
        Self {
            policy: Policy::new(config).expect("good"),
            second: 0,
            period: 1,
        }
    }

    /// One that is looked at every ten seconds, for tests of days.
    fn slow(config: Config) -> Self {
        Self {
            period: 10,
            ..Self::new(config)
        }
    }

    fn step(&mut self, services: Vec<Seen>) {
        self.second += self.period;
        let observation = Observation {
            now_ns: self.second * 1_000_000_000,
            wall_s: self.second,
            services,
            reports: Vec::new(),
        };
        self.policy.decide(&observation);
    }

    /// So many seconds in which the service uses so many Mbit/s.
    fn run(&mut self, seconds: u64, used: u64) {
        for _ in 0..seconds / self.period {
            self.step(vec![
                seen("vod", used, false),
                seen("backup", 100 - used, true),
            ]);
        }
    }

    fn guarantee(&self, name: &str) -> u64 {
        let found = self
            .policy
            .allocation()
            .services
            .iter()
            .find(|s| &*s.name == name);
        found.expect("it was seen").grants[SEND].guarantee
    }
}

#[test]
fn a_newcomer_begins_where_its_class_does() {
    let mut machine = Machine::new(config(Automatic::On));
    machine.run(2, 3);
    assert_eq!(machine.guarantee("vod"), mbit(10));
    // An hour of less says little yet.
    machine.run(HOUR, 3);
    assert!(
        machine.guarantee("vod") > mbit(9),
        "{}",
        machine.guarantee("vod")
    );
}

#[test]
fn a_guarantee_is_raised_within_a_second_and_lowered_slowly() {
    let mut machine = Machine::new(config(Automatic::On));
    machine.run(10, 8);
    machine.step(vec![seen("vod", 40, false), seen("backup", 60, true)]);
    // 15 % more than what was wanted, and the bucket's end.
    let raised = machine.guarantee("vod");
    assert!(is_of(raised, 40), "{raised}");
    let change = machine.policy.allocation().changes[0].clone();
    assert_eq!((change.from, change.to), (mbit(10), raised));
    assert_eq!(
        change.why.to_string(),
        "demand was 40 Mbit/s, above the guarantee, and 15 % more is kept"
    );
    machine.run(HOUR, 40);
    let high = machine.guarantee("vod");
    // At most a per cent a minute, however little is used.
    for minute in 1..60_u32 {
        machine.run(60, 1);
        let least = high as f64 * 0.99_f64.powi(i32::try_from(minute).expect("few")) - 1.0;
        assert!(machine.guarantee("vod") as f64 >= least, "minute {minute}");
    }
    // An hour of a day that has been seen for a few only counts for all of them; a day later
    // it does not.
    machine.run(26 * HOUR, 1);
    assert!(
        machine.guarantee("vod") < mbit(12),
        "{}",
        machine.guarantee("vod")
    );
}

#[test]
fn the_evening_is_known_before_it_comes() {
    let mut machine = Machine::slow(config(Automatic::On));
    let day = |machine: &mut Machine| {
        machine.run(20 * HOUR, 4);
        machine.run(2 * HOUR, 50);
        machine.run(2 * HOUR, 4);
    };
    for _ in 0..3 {
        day(&mut machine);
    }
    // The fourth day at 19:50: still quiet, but a quarter of an hour from now it will not be.
    machine.run(19 * HOUR, 4);
    let noon = machine.guarantee("vod");
    machine.run(50 * 60, 4);
    let eve = machine.guarantee("vod");
    assert!(noon < mbit(12), "{noon}");
    assert!((mbit(50)..mbit(64)).contains(&eve), "{eve}");
}

#[test]
fn a_dry_run_says_what_it_would_do() {
    let mut dry = Machine::new(config(Automatic::DryRun));
    let mut off = config(Automatic::DryRun);
    off.classes[0].mode = Some(Mode::Dynamic);
    let mut off = Machine::new(off);
    for machine in [&mut dry, &mut off] {
        machine.run(10, 8);
        machine.run(60, 40);
    }
    // Everything is as without it.
    assert_eq!(
        dry.policy.allocation().services,
        off.policy.allocation().services
    );
    assert_eq!(dry.policy.allocation().changes, []);
    let [proposal] = &dry.policy.allocation().proposals[..] else {
        panic!("{:?}", dry.policy.allocation().proposals);
    };
    assert!(
        proposal.from == mbit(10) && is_of(proposal.to, 40),
        "{proposal:?}"
    );
    let proposed = proposal.to;

    // Switched on, it is in force at once; and off again.
    dry.policy.configure(config(Automatic::On)).expect("good");
    dry.run(1, 40);
    assert_eq!(dry.guarantee("vod"), proposed);
    assert_eq!(dry.policy.allocation().proposals, []);
    dry.policy
        .configure(config(Automatic::DryRun))
        .expect("good");
    dry.run(1, 40);
    assert_eq!(dry.guarantee("vod"), mbit(10));
    let change = &dry.policy.allocation().changes[0];
    assert_eq!(change.why.kind, CauseKind::SwitchedOff);
}

#[test]
fn guarantees_leave_the_reserve() {
    let mut config = config(Automatic::On);
    config.services.push(of_class("tv", "media"));
    let mut machine = Machine::new(config);
    for _ in 0..120 {
        machine.step(vec![seen("vod", 60, false), seen("tv", 40, false)]);
    }
    let (vod, tv) = (machine.guarantee("vod"), machine.guarantee("tv"));
    assert!(is_of(vod, 60), "{vod}");
    assert_eq!(vod + tv, mbit(95));
}

#[test]
fn a_persons_guarantee_is_a_floor_and_a_ceiling_holds() {
    let mut config = config(Automatic::On);
    config.services[0].terms = send(30, 40, 0);
    let mut machine = Machine::slow(config);
    machine.run(2 * DAY, 1);
    assert_eq!(machine.guarantee("vod"), mbit(30));
    machine.run(10, 39);
    assert_eq!(machine.guarantee("vod"), mbit(40));
}

#[test]
fn who_takes_everything_gets_no_guarantee_for_it() {
    let mut config = config(Automatic::On);
    config.classes[1].mode = Some(Mode::Adaptive);
    let mut machine = Machine::new(config);
    machine.run(HOUR, 20);
    assert_eq!(machine.guarantee("backup"), 0);
    assert!(machine.guarantee("vod") >= mbit(23));
}

#[test]
fn steady_demand_moves_nothing() {
    let mut machine = Machine::slow(config(Automatic::On));
    machine.run(DAY, 30);
    let before = machine.guarantee("vod");
    let mut changes = 0;
    for _ in 0..6 * HOUR / 10 {
        machine.run(10, 30);
        changes += machine.policy.allocation().changes.len();
    }
    assert_eq!((machine.guarantee("vod"), changes), (before, 0));
}

/// Seconds go into histories many at a time; another plan has them all put in.
#[test]
fn what_was_seen_is_known_at_once() {
    let mut machine = Machine::new(config(Automatic::DryRun));
    machine.run(1, 30);
    for second in 2..40 {
        machine.run(1, second);
        let known = machine.policy.export(second);
        let mut settled = machine.policy.clone();
        settled.configure(config(Automatic::DryRun)).expect("good");
        assert_eq!(settled.export(second), known);
        let seconds = known.services.iter().flat_map(|s| &s.resources);
        let seconds: Vec<u64> = seconds.map(|resource| resource.seconds).collect();
        // The first second of each has only begun.
        assert!(
            seconds.len() == 2 && seconds.iter().all(|&known| known + 1 >= second),
            "{second}: {seconds:?}"
        );
    }
}

#[test]
fn what_was_learned_survives_a_restart() {
    let mut machine = Machine::slow(config(Automatic::On));
    machine.run(DAY, 40);
    let memory = machine.policy.export(DAY);
    assert_eq!(memory.services.len(), 2);

    let mut other = Machine::slow(config(Automatic::On));
    other.second = DAY;
    other.policy.import(&memory, DAY);
    assert_eq!(other.policy.export(DAY), memory);
    machine.run(10, 40);
    other.run(10, 40);
    assert_eq!(other.guarantee("vod"), machine.guarantee("vod"));
    // A week later it is worth less, and still something; a clock that went back changes nothing.
    let mut late = Machine::slow(config(Automatic::On));
    late.policy.import(&memory, 8 * DAY);
    let worth = |memory: &Memory| -> f32 {
        memory.services[1].resources[0]
            .all
            .iter()
            .map(|entry| entry.1)
            .sum()
    };
    let part = worth(&late.policy.export(8 * DAY)) / worth(&memory);
    assert!((part * 128.0 - 1.0).abs() < 0.01, "{part}");
    let mut back = Machine::slow(config(Automatic::On));
    back.policy.import(&memory, 0);
    assert_eq!(worth(&back.policy.export(0)), worth(&memory));
}

#[test]
fn nonsense_in_a_memory_does_no_harm() {
    let mut machine = Machine::new(config(Automatic::On));
    machine.run(HOUR, 40);
    let mut memory = machine.policy.export(HOUR);
    for service in &mut memory.services {
        for resource in &mut service.resources {
            resource.hunger = f64::NAN;
            resource.seconds = u64::MAX;
            resource.guarantee = Some(u64::MAX);
            resource.all.push((60_000, f32::INFINITY));
            resource.hours.truncate(3);
        }
    }
    let mut other = Machine::new(config(Automatic::On));
    other.policy.import(&memory, HOUR);
    other.run(100, 40);
    let sum = other.guarantee("vod") + other.guarantee("backup");
    assert!(sum <= mbit(95), "{sum}");
}

#[test]
fn clocks_may_step() {
    let mut machine = Machine::new(config(Automatic::On));
    machine.run(100, 40);
    let before = machine.guarantee("vod");
    for (now_ns, wall_s) in [
        (0, 50),
        (u64::MAX, 0),
        (5, u64::MAX),
        (200_000_000_000, 200),
    ] {
        let mut usage = [Usage::default(); bonsai_units::Resource::COUNT];
        usage[SEND].used = mbit(40);
        let name = "vod".into();
        machine.policy.decide(&Observation {
            now_ns,
            wall_s,
            services: vec![Seen { name, usage }],
            reports: Vec::new(),
        });
        assert!(machine.guarantee("vod") >= before);
    }
}

#[test]
fn a_service_that_comes_back_does_not_break_what_others_were_given() {
    let mut config = config(Automatic::On);
    config.classes[0].terms = send(40, 0, 0);
    config.services.push(of_class("tv", "media"));
    let mut machine = Machine::slow(config);
    // Both begin with 40; after days of little, tv has less, and vod takes it.
    for _ in 0..2 * DAY / 10 {
        machine.step(vec![seen("vod", 40, false), seen("tv", 1, false)]);
    }
    for _ in 0..100 {
        machine.step(vec![seen("vod", 60, false), seen("tv", 1, false)]);
    }
    assert!(
        machine.guarantee("vod") > mbit(60),
        "{}",
        machine.guarantee("vod")
    );
    for _ in 0..3 {
        machine.step(vec![seen("vod", 60, false)]);
    }
    machine.step(vec![seen("vod", 60, false), seen("tv", 0, true)]);
    let sum = machine.guarantee("vod") + machine.guarantee("tv");
    assert!(sum <= mbit(95), "{sum}");
}
