//! The promises of groups, on a fake clock.

use bonsai_bucket::{
    Curve, GUARANTEE_BURST_NS, Member, Pool, ROUND_NS, Seat, Terms, Weights, grain,
};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
/// miri is a thousand times slower: what it runs is less, not different.
const SECONDS: u64 = if cfg!(miri) { 0 } else { 3 };

#[derive(Default)]
struct Words {
    pool: [Cell<u64>; 3],
    members: Vec<[Cell<u64>; 10]>,
}

/// A member, and what it does.
#[derive(Clone, Debug)]
struct Asks {
    guarantee: u64,
    ceiling: u64,
    weight: u64,
    /// Bytes of each of its calls.
    size: u64,
    /// When it is greedy: from, to.
    busy: Vec<(u64, u64)>,
    /// How late its thread runs after each wait, at most; and in one of how many rounds of
    /// waiting it stalls, for how long.
    late: u64,
    stall: (u64, u64),
    /// Whether its thread takes leases.
    leases: bool,
}

impl Asks {
    fn greedy(weight: u64) -> Self {
        Self {
            guarantee: 0,
            ceiling: 0,
            weight,
            size: 1500,
            busy: vec![(0, u64::MAX)],
            late: 0,
            stall: (0, 0),
            leases: false,
        }
    }
}

struct World {
    words: Words,
    rate: u64,
    burst: u64,
    asks: Vec<Asks>,
    terms: Vec<Terms>,
    /// Who got how much when.
    log: RefCell<Vec<(u64, usize, u64)>>,
    sleeps: Cell<u64>,
    /// What each member's thread holds as a lease, booked and left.
    leases: RefCell<Vec<(u64, u64)>>,
}

impl World {
    fn new(rate: u64, asks: Vec<Asks>) -> Self {
        let burst = (rate / 50).max(1);
        let weights = Weights::of(asks.iter().map(|a| a.weight));
        let curve = |rate: u64, burst: u64| Curve::empty(rate * 1000, burst.max(2), 0, 0);
        let terms = asks.iter().map(|a| Terms {
            pool: curve(rate, burst),
            guarantee: (a.guarantee > 0).then(|| {
                let burst = a.guarantee * GUARANTEE_BURST_NS / S;
                curve(a.guarantee, burst)
            }),
            ceiling: (a.ceiling > 0).then(|| curve(a.ceiling, a.ceiling / 50)),
            grain: grain(rate * 1000, a.weight, weights),
        });
        let members = asks.len();
        Self {
            terms: terms.collect(),
            words: Words {
                members: asks.iter().map(|_| Default::default()).collect(),
                ..Words::default()
            },
            rate,
            burst,
            asks,
            log: RefCell::default(),
            sleeps: Cell::new(0),
            leases: RefCell::new(vec![(0, 0); members]),
        }
    }

    fn seat(&self, i: usize) -> Seat<'_, Cell<u64>> {
        let [issued, guaranteed, served] = &self.words.pool;
        let pool = Pool {
            issued,
            guaranteed,
            served,
        };
        let [
            asked,
            granted,
            place,
            served,
            guaranteed,
            capped,
            looked,
            borrowed,
            alone,
            leased,
        ] = &self.words.members[i];
        let member = Member {
            asked,
            granted,
            place,
            served,
            guaranteed,
            capped,
            looked,
            borrowed,
            alone,
            leased,
        };
        Seat { pool, member }
    }

    fn asking(&self, now: u64) -> u64 {
        let lately = |i: &usize| now - self.words.members[*i][6].get() < 20 * MS;
        let all = (0..self.asks.len()).filter(lately);
        all.map(|i| self.terms[i].grain).sum()
    }

    /// Runs everybody until `end`.
    fn run(&self, end: u64) {
        let mut random = 1_u64;
        let mut below = |n: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            if n == 0 { 0 } else { (random >> 33) % n }
        };
        let mut wake: Vec<(u64, Option<u64>)> = vec![(0, None); self.asks.len()];
        loop {
            let (i, (now, ticket)) = wake
                .iter()
                .copied()
                .enumerate()
                .min_by_key(|(_, (at, _))| *at)
                .expect("members");
            if now >= end {
                return;
            }
            let asks = &self.asks[i];
            let Some((from, _)) = asks.busy.iter().find(|(_, to)| now < *to) else {
                wake[i].0 = u64::MAX;
                continue;
            };
            if ticket.is_none() && now < *from {
                wake[i].0 = *from;
                continue;
            }
            let seat = self.seat(i);
            if ticket.is_none() && self.pays_from_lease(i, now) {
                self.log.borrow_mut().push((now, i, asks.size));
                continue;
            }
            let ticket = ticket.unwrap_or_else(|| seat.ask(asks.size));
            wake[i] = match seat.serve(&self.terms[i], ticket, now, || self.asking(now)) {
                None => {
                    self.log.borrow_mut().push((now, i, asks.size));
                    (now, None)
                }
                Some(at) => {
                    assert!(at >= now, "a wait into the past");
                    self.sleeps.set(self.sleeps.get() + 1);
                    let waits = at.saturating_sub(now).min(ROUND_NS);
                    let stalls = below(asks.stall.0 * ROUND_NS) < waits && asks.stall.0 > 0;
                    let stall = if stalls { below(asks.stall.1) } else { 0 };
                    (at.max(now + 1) + below(asks.late) + stall, Some(ticket))
                }
            };
        }
    }

    /// Whether a call goes by the lease of its thread, or by a new one out of the credit.
    fn pays_from_lease(&self, i: usize, now: u64) -> bool {
        let (asks, terms, seat) = (&self.asks[i], &self.terms[i], self.seat(i));
        if !asks.leases {
            return false;
        }
        let mut leases = self.leases.borrow_mut();
        let (booked, left) = &mut leases[i];
        if let Some(rest) = left.checked_sub(asks.size) {
            *left = rest;
            return true;
        }
        let tag = u32::try_from(now / S).expect("seconds");
        let short = asks.size - *left;
        seat.end_lease(std::mem::take(booked), tag);
        let Some(lease) = seat.lease(terms, short, terms.leases(), tag) else {
            return false;
        };
        assert!(lease <= terms.leases());
        (*booked, *left) = (lease, lease);
        true
    }

    fn got(&self, member: usize, from: u64, to: u64) -> u64 {
        let log = self.log.borrow();
        let mine = log
            .iter()
            .filter(|(at, i, _)| *i == member && (from..to).contains(at));
        mine.map(|(.., units)| units).sum()
    }

    /// The most that all, or one, got beyond `rate * window`, over any window.
    fn most_ahead(&self, rate: u64, member: Option<usize>) -> u64 {
        let (mut level, mut last, mut most) = (0_i128, 0, 0);
        for (at, i, units) in &*self.log.borrow() {
            if member.is_none_or(|m| m == *i) {
                level -= i128::from(rate) * i128::from(at - last) / i128::from(S);
                level = level.max(0) + i128::from(*units);
                (last, most) = (*at, most.max(level));
            }
        }
        u64::try_from(most).expect("not negative")
    }

    /// The most that a member is ahead of its curves: invariant 6, and its guarantee's burst.
    fn credit(&self, member: usize) -> u64 {
        let (asks, terms) = (&self.asks[member], &self.terms[member]);
        let guarantee = terms
            .guarantee
            .map_or(0, |g| g.burst + g.units_in(ROUND_NS / 2));
        let leases = u64::from(asks.leases) * terms.leases();
        guarantee + leases + asks.size + (2 * self.rate * ROUND_NS / S).max(2 * terms.grain)
    }

    /// The same of one with a ceiling.
    fn credit_below(&self, member: usize, ceiling: &Curve) -> u64 {
        let (asks, terms) = (&self.asks[member], &self.terms[member]);
        let turns = 2 * ceiling.units_in(ROUND_NS).max(terms.grain);
        let place = turns.min(ceiling.burst) + turns / 1024 + 1;
        let guarantee = terms.guarantee.map_or(0, |g| g.units_in(ROUND_NS / 2));
        u64::from(asks.leases) * terms.leases() + asks.size + place.max(guarantee)
    }

    /// The bound of invariant 1.
    fn bound(&self) -> u64 {
        let members = 0..self.asks.len();
        self.burst + members.map(|member| self.credit(member)).sum::<u64>()
    }
}

/// The share of the first member of what both got, in each whole second.
fn shares(world: &World, seconds: u64) -> Vec<f64> {
    let share = |s: u64| {
        let (a, b) = (
            world.got(0, s * S, (s + 1) * S),
            world.got(1, s * S, (s + 1) * S),
        );
        a as f64 / (a + b) as f64
    };
    (0..seconds).map(share).collect()
}

#[test]
fn spare_is_shared_by_weight_within_2_percent() {
    for (rate, size) in [
        (12_500_000, 1500),
        (1_000_000, 700),
        (1_250_000_000, 65_536),
    ] {
        for weights in [(1, 3), (1, 1), (7, 2), (1, 20)] {
            let mut asks = vec![Asks::greedy(weights.0), Asks::greedy(weights.1)];
            asks.iter_mut().for_each(|a| a.size = size);
            let world = World::new(rate, asks);
            world.run(SECONDS * S);
            let fair = weights.0 as f64 / (weights.0 + weights.1) as f64;
            for share in shares(&world, SECONDS) {
                let error = (share / fair - 1.0).abs();
                assert!(error < 0.02, "{rate} {weights:?}: {share} for {fair}");
            }
            assert!(world.most_ahead(rate, None) <= world.bound());
        }
    }
}

#[test]
fn late_threads_catch_up() {
    // Threads of both are up to 300 us late, and in one of 30 rounds they stall for up to
    // 15 ms.
    for weights in [(1, 3), (1, 1), (3, 1)] {
        let mut asks = vec![Asks::greedy(weights.0), Asks::greedy(weights.1)];
        for a in &mut asks {
            (a.late, a.stall) = (300_000, (30, 15 * MS));
        }
        let world = World::new(12_500_000, asks);
        world.run(SECONDS * S);
        let fair = weights.0 as f64 / (weights.0 + weights.1) as f64;
        // What they missed in one second they catch up in the next.
        let all = shares(&world, SECONDS);
        let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
        for (share, most) in all.iter().map(|s| (*s, 0.04)).chain([(mean, 0.02)]) {
            let error = (share / fair - 1.0).abs();
            assert!(
                error < most || SECONDS == 0,
                "{weights:?}: {share} for {fair}"
            );
        }
        let total = world.got(0, 0, SECONDS * S) + world.got(1, 0, SECONDS * S);
        assert!(total >= 12_400_000 * SECONDS, "{total}");
    }
}

#[test]
fn calls_per_second_are_shared_too() {
    let mut asks = vec![Asks::greedy(100), Asks::greedy(300)];
    asks.iter_mut().for_each(|a| a.size = 1);
    let world = World::new(100, asks);
    world.run(SECONDS * 10 * S);
    let got = [world.got(0, 0, 30 * S), world.got(1, 0, 30 * S)];
    if SECONDS > 0 {
        assert!(
            got[0].abs_diff(750) < 10 && got[1].abs_diff(2250) < 20,
            "{got:?}"
        );
    }
}

#[test]
fn one_alone_gets_everything_up_to_its_ceiling() {
    for (ceiling, want) in [(0, 12_500_000), (5_000_000, 5_000_000)] {
        let mut asks = vec![Asks::greedy(1), Asks::greedy(1000)];
        asks[0].ceiling = ceiling;
        asks[1].busy = Vec::new();
        let world = World::new(12_500_000, asks);
        world.run(SECONDS * S);
        let got = world.got(0, 0, SECONDS * S);
        let error = got.abs_diff(want * SECONDS);
        assert!(error * 100 <= want * SECONDS, "{got} of {want} a second");
        assert!(
            world.sleeps.get() < 1000 * SECONDS.max(1),
            "{:?}",
            world.sleeps
        );
    }
}

#[test]
fn guarantees_come_first_and_the_rest_goes_by_weight() {
    let mut asks = vec![Asks::greedy(3), Asks::greedy(1), Asks::greedy(1)];
    (asks[0].guarantee, asks[1].guarantee) = (4_000_000, 2_000_000);
    let world = World::new(10_000_000, asks);
    world.run(SECONDS * S);
    for s in 0..SECONDS {
        let got = |i| world.got(i, s * S, (s + 1) * S);
        // 4 million are spare.
        for (i, want) in [(0, 6_400_000_u64), (1, 2_800_000), (2, 800_000)] {
            let error = got(i).abs_diff(want);
            assert!(error * 50 <= want, "{i} got {} of {want}", got(i));
        }
    }
    assert!(world.most_ahead(10_000_000, None) <= world.bound());
    assert!(
        world.sleeps.get() < 5_000 * SECONDS.max(1),
        "{:?}",
        world.sleeps
    );
}

#[test]
fn a_returning_member_has_its_guarantee_within_5_ms() {
    let mut asks = vec![Asks::greedy(1), Asks::greedy(100), Asks::greedy(100)];
    asks[0].guarantee = 4_000_000;
    asks[0].busy = (1..20)
        .map(|i| (i * 100 * MS, i * 100 * MS + 50 * MS))
        .collect();
    let world = World::new(10_000_000, asks);
    world.run(2 * S);
    for (from, _) in world.asks[0]
        .busy
        .iter()
        .take(if SECONDS > 0 { 19 } else { 1 })
    {
        for to in [5, 10, 20, 40] {
            let got = world.got(0, *from, from + to * MS);
            let want = 4_000_000 * to / 1000;
            assert!(got + 1500 >= want, "{got} of {want} in {to} ms");
        }
    }
}

#[test]
fn what_one_leaves_the_others_use() {
    // The second one is there half of the time: the first one has all of it otherwise.
    for weights in [(1, 9), (1, 1), (9, 1)] {
        let mut asks = vec![Asks::greedy(weights.0), Asks::greedy(weights.1)];
        asks[1].busy = (0..20)
            .map(|i| (i * 100 * MS, i * 100 * MS + 50 * MS))
            .collect();
        let world = World::new(10_000_000, asks);
        world.run(2 * S);
        for i in 1..if SECONDS > 0 { 19 } else { 1 } {
            let gap = i * 100 * MS + 50 * MS;
            let calls = world.log.borrow();
            let mut its = calls.iter().filter(|(_, i, _)| *i == 1).map(|c| c.0);
            let gone = its.rfind(|at| *at < gap + 20 * MS).expect("a call");
            drop(calls);
            // From its last call on, but for a call, a step, and a 16th.
            for us in [500, 1_000, 2_000, 5_000, 10_000, 20_000] {
                let got = world.got(0, gone, gone + us * 1000);
                let want = 10 * us * 15 / 16 - 1500 - 10 * ROUND_NS / 16_000;
                assert!(got >= want, "{weights:?}: {got} of {want} in {us} us");
            }
            let got = [0, 1].map(|i| world.got(i, gap - 50 * MS, gap + 50 * MS));
            assert!(
                (got[0] + got[1]).abs_diff(1_000_000) < 50_000,
                "{got:?} in 100 ms"
            );
        }
    }
}

#[test]
fn a_ceiling_holds_beside_greedy_others() {
    let mut asks = vec![Asks::greedy(1), Asks::greedy(1)];
    asks[0].ceiling = 3_000_000;
    let world = World::new(10_000_000, asks);
    world.run(SECONDS * S);
    for s in 0..SECONDS {
        let got = [0, 1].map(|i| world.got(i, s * S, (s + 1) * S));
        assert!(got[0].abs_diff(3_000_000) < 90_000, "{got:?}");
        assert!(got[1].abs_diff(7_000_000) < 250_000, "{got:?}");
    }
    let burst = world.terms[0].ceiling.map_or(0, |c| c.burst);
    assert!(world.most_ahead(3_000_000, Some(0)) <= burst + 3_000_000 * ROUND_NS / S + 3_000);
}

#[test]
fn a_member_that_is_stopped_holds_nobody() {
    // In one of two rounds of waiting it is stopped for up to 500 ms.
    let mut asks = vec![Asks::greedy(1), Asks::greedy(1)];
    asks[0].stall = (2, 500 * MS);
    let world = World::new(10_000_000, asks);
    world.run(SECONDS * S);
    for s in 0..SECONDS {
        let all = world.got(0, s * S, (s + 1) * S) + world.got(1, s * S, (s + 1) * S);
        assert!(all.abs_diff(10_000_000) < 300_000, "{all}");
    }
}

#[test]
fn what_is_given_back_is_not_waited_for_by_those_behind() {
    let world = World::new(1_000_000, vec![Asks::greedy(1)]);
    let (seat, terms) = (world.seat(0), &world.terms[0]);
    // A second's worth, given back before anything of it was granted.
    seat.ask(1_000_000);
    let ticket = seat.ask(1000);
    seat.give_back(1_000_000);
    let (mut now, mut steps) = (0, 0);
    while let Some(due) = seat.serve(terms, seat.nearest(ticket), now, || terms.grain) {
        now = due.max(now + 1);
        steps += 1;
        assert!(now < 50 * MS && steps < 1000, "it waits until {now}");
    }
    assert!(now >= MS, "sooner than its rate allows: {now}");
    // Of what was granted already, nobody behind has to wait for more either.
    assert_eq!(seat.nearest(ticket), world.words.members[0][0].get());
}

#[test]
fn many_equal_members_get_equal_parts() {
    let world = World::new(12_500_000, vec![Asks::greedy(1); 16]);
    world.run(SECONDS * S);
    for i in 0..16 {
        let got = world.got(i, 0, SECONDS * S);
        assert!(
            got.abs_diff(12_500_000 * SECONDS / 16) <= 60_000,
            "{i}: {got}"
        );
    }
}

fn member() -> impl Strategy<Value = Asks> {
    let times = prop::collection::vec((0..400_u64, 1..200_u64), 1..5);
    let part = (0..30_u64, 0..3_u64, 1..50_u64, 1..4_000_u64);
    let how = (0..2_u64, any::<bool>());
    (part, times, how).prop_map(
        |((guarantee, ceiling, weight, size), times, (late, leases))| {
            let mut at = 0;
            let busy = times.into_iter().map(|(pause, time)| {
                let from = at + pause * MS;
                at = from + time * MS;
                (from, at)
            });
            Asks {
                guarantee: guarantee * 10_000,
                ceiling: ceiling * 500_000,
                weight,
                size,
                busy: busy.collect(),
                late: late * 200_000,
                stall: (late * 30, 30 * MS),
                leases,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 64 })
    })]

    #[test]
    fn never_over_the_rate_nor_over_a_ceiling(asks in prop::collection::vec(member(), 1..4)) {
        let world = World::new(1_000_000, asks);
        world.run(if cfg!(miri) { S / 100 } else { S });
        prop_assert!(world.most_ahead(1_000_000, None) <= world.bound(),
            "{} > {}", world.most_ahead(1_000_000, None), world.bound());
        for (i, (asks, terms)) in world.asks.iter().zip(&world.terms).enumerate() {
            if let Some(ceiling) = terms.ceiling {
                // Invariant 2.
                let bound = ceiling.burst + world.credit_below(i, &ceiling);
                let ahead = world.most_ahead(asks.ceiling, Some(i));
                prop_assert!(ahead <= bound, "{i}: {ahead} > {bound}");
            }
        }
    }
}
