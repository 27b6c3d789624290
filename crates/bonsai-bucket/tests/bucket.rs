//! The promises of the bucket, on a fake clock.

use bonsai_bucket::{Bucket, Curve, Group, Pace, QUANTUM_NS, Split, Ticket, Turn};
use proptest::prelude::*;

const S: u64 = 1_000_000_000;
/// miri is a thousand times slower: what it runs is less, not different.
const MIRI: bool = cfg!(miri);
const GB100: u64 = 100_000_000_000;

/// A greedy caller: takes `n` as soon as its last ticket is due. Returns what it
/// got in `[0, end)` and checks the envelope from the start after every call.
fn greedy(bucket: &mut Bucket, rate: u64, n: u64, end: u64) -> u64 {
    let mut now = 0;
    let mut got = 0_u64;
    loop {
        let ticket = bucket.take(n, now);
        now = now.max(bucket.due(ticket, now));
        if now >= end {
            return got;
        }
        got += n;
        let allowed = u128::from(rate) * u128::from(now) / u128::from(S) + u128::from(n);
        assert!(u128::from(got) <= allowed, "{got} > {allowed} at {now}");
    }
}

#[test]
fn greedy_gets_its_rate_from_1_b_to_100_gb() {
    // Ten seconds, calls small enough that one of them is below 0.1 %.
    for (rate, n) in [
        (1_u64, 1_u64),
        (7, 1),
        (1_000, 1),
        (10_000, 10),
        (1_000_000, 1_448),
        (12_500_000, 4_096),
        (1_000_000_000, 65_536),
        (GB100, 16 << 20),
    ]
    .into_iter()
    .take(if MIRI { 1 } else { usize::MAX })
    {
        let mut bucket = Bucket::new(rate * 1000, (rate / 100).max(1), 0);
        let seconds = if rate < 1_000 { 10_000 } else { 10 };
        let got = greedy(&mut bucket, rate, n, seconds * S);
        let want = rate * seconds;
        let error = (got as f64 - want as f64).abs() / want as f64;
        assert!(error <= 0.001, "{rate} B/s: {got} of {want}");
    }
}

#[test]
fn no_drift_over_ten_years() {
    let ten_years = 10 * 365 * 86_400 * S;
    for rate_milli in [1_u64, 999, 1_000, 333_333, 1_234_567_891, GB100 * 1000] {
        let curve = Curve::empty(rate_milli, 1, 0, 0);
        let exact = u128::from(rate_milli) * u128::from(ten_years) / 1_000_000_000_000;
        let (units, _) = curve.value(ten_years);
        let exact = u64::try_from(exact % (1 << 64)).unwrap();
        assert_eq!(units, exact.wrapping_sub(1), "{rate_milli}");
        // Changed every day to the same rate: still exact, the remainder is kept.
        let mut changed = curve;
        for day in 1..=3650_u64 {
            changed = changed.retune(rate_milli, 1, day * 86_400 * S);
        }
        assert_eq!(
            changed.value(ten_years),
            curve.value(ten_years),
            "{rate_milli}"
        );
    }
}

#[test]
fn positions_wrap_without_harm() {
    let mut bucket = Bucket::new(GB100 * 1000, GB100 / 100, 0);
    let year = 365 * 86_400 * S;
    for years in 0..10 {
        let now = years * year;
        let ticket = bucket.take(1 << 20, now);
        assert!(bucket.due(ticket, now) <= now + 11_000, "year {years}");
        let deep = bucket.take(GB100, now);
        let due = bucket.due(deep, now);
        assert!(
            due > now + S - 12_000_000 && due <= now + S + 12_000,
            "year {years}: {due}"
        );
    }
}

#[test]
fn idle_fills_to_the_burst_and_no_further() {
    let mut bucket = Bucket::new(1_000_000, 100, 0);
    for idle in [1_u64, 10, 3_600] {
        let now = idle * 100 * S;
        assert_eq!(bucket.level(now), 50, "half of the burst is for leases");
        let first = bucket.take(50, now);
        assert!(bucket.due(first, now) <= now);
        let next = bucket.take(1, now);
        assert_eq!(bucket.due(next, now), now + 1_000_000);
    }
}

#[test]
fn exhaustive_small_cases_against_a_tick_model() {
    // Every pattern of eight calls of 0..=2 units over eight ticks, rate 1 unit per
    // tick, bursts 1..=3: a bucket stepped tick by tick gives the same instants.
    for burst in 1..=3_u64 {
        for pattern in (0..3_u64.pow(8)).step_by(if MIRI { 500 } else { 1 }) {
            let mut curve_side = Curve::empty(1000, burst, 0, 0);
            curve_side.anchor_units = 0; // a full bucket
            let mut issued = 0_u64;
            let (mut tokens, mut queue_free_at) = (burst.cast_signed(), 0_u64);
            let mut digits = pattern;
            for tick in 0..8_u64 {
                let n = digits % 3;
                digits /= 3;
                if tick > 0 {
                    tokens = (tokens + 1).min(burst.cast_signed());
                }
                if n == 0 {
                    continue;
                }
                let now = tick * S;
                issued = curve_side.raised(issued, now) + n;
                let due = curve_side.due(issued, now);
                tokens -= n.cast_signed();
                let model = if tokens >= 0 {
                    tick
                } else {
                    tick + tokens.unsigned_abs()
                };
                queue_free_at = queue_free_at.max(model);
                assert_eq!(
                    due,
                    queue_free_at * S,
                    "burst {burst} pattern {pattern} tick {tick}"
                );
            }
        }
    }
}

#[test]
fn zero_rate_never_goes_and_a_change_frees_it() {
    let mut bucket = Bucket::new(0, 1, 0);
    let ticket = bucket.take(5, 0);
    assert_eq!(bucket.due(ticket, S), u64::MAX);
    bucket.retune(1_000_000, 1, 0, 3 * S);
    assert_eq!(bucket.due(ticket, 3 * S), 3 * S + 5_000_000);
}

#[test]
fn leases_double_for_the_busy_and_end_for_the_slow() {
    let quantum = 40_000;
    let mut pace = Pace::default();
    let mut sizes = [0_u64; 8];
    let mut now = 100;
    for size in &mut sizes {
        *size = pace.next(now, 1_448, 1_448, quantum, None);
        pace = Pace {
            lease: u32::try_from(*size).unwrap(),
            granted_us: now,
        };
        now += 50;
    }
    assert_eq!(
        sizes,
        [2_896, 5_792, 11_584, 23_168, 38_552, 38_552, 38_552, 38_552]
    );
    assert_eq!(pace.next(now + 5_000, 1_448, 1_448, quantum, None), 38_552);
    assert_eq!(pace.next(now + 20_000, 1_448, 1_448, quantum, Some(0)), 0);
}

#[test]
fn where_a_limit_binds_tickets_are_whole_calls_and_about_a_quantum() {
    let pace = Pace {
        lease: 0,
        granted_us: 7,
    };
    let half = Turn::FIRST.round;
    // 40,000 units are 27.6 calls of 1,448: 28 if rounded at the half.
    assert_eq!(pace.next(8, 1_448, 1_448, 40_000, Some(half)), 27 * 1_448);
    assert_eq!(pace.next(8, 1_448, 1_448, 40_000, Some(0)), 26 * 1_448);
    assert_eq!(
        pace.next(8, 1_448, 1_448, 40_000, Some(u32::MAX)),
        27 * 1_448
    );
    // A call that needs a quantum or more has its own sleep.
    assert_eq!(pace.next(8, 40_000, 40_000, 40_000, Some(half)), 0);
    assert_eq!(pace.next(8, 65_536, 65_536, 40_000, Some(half)), 0);
}

#[test]
fn tickets_end_at_common_marks_and_are_shorter_in_long_lines() {
    // Whatever a ticket was too long or too short is made up for by the next one.
    let (mut tail, calls) = (12_345, 1_448_000);
    for n in 1..100 {
        let turn = Turn::after(tail, 0).ns;
        assert!((QUANTUM_NS / 2..=QUANTUM_NS * 3 / 2).contains(&turn));
        tail += (turn + calls / 2) / calls * calls;
        assert!(tail.abs_diff(n * QUANTUM_NS) <= calls, "{n}: {tail}");
    }
    // With so many threads in line, a round takes so long.
    for (threads, round_ms) in [(16, 71), (64, 91), (256, 111), (1_024, 135)] {
        let mut wait = 70_000_000_u64;
        for _ in 0..10_000 {
            wait = wait - wait / threads + Turn::after(0, wait).ns.min(QUANTUM_NS);
        }
        assert!(
            wait.abs_diff(round_ms * 1_000_000) < 6_000_000,
            "{threads}: {wait}"
        );
    }
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Take(u64),
    Refund(u64),
    Lease(u64),
    EndLease(u64),
    Retune(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..2 * S).prop_map(Step::Wait),
        (1..5_000_u64).prop_map(Step::Take),
        (1..5_000_u64).prop_map(Step::Refund),
        (1..2_000_u64).prop_map(Step::Lease),
        (0..2_000_u64).prop_map(Step::EndLease),
        (1..10_000_u64, 1..4_000_u64).prop_map(|(r, b)| Step::Retune(r, b)),
    ];
    prop::collection::vec(step, 1..80)
}

/// Most threads lose no time.
fn some_ms() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0_u64), 1 => 0..100_u64]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(if MIRI { 3 } else { 600 })
    })]

    /// Threads that look at their tickets late, up to all at once after a long stop, and use their leases at any later
    /// time: no window has more than the rate, the burst and a call of each thread.
    #[test]
    fn late_threads_are_never_over_the_envelope(
        late in prop::collection::vec(some_ms(), 60), used in prop::collection::vec(some_ms(), 60),
        threads in 1..12_usize, stop in 0..3_000_u64,
    ) {
        const MS: u64 = S / 1000;
        const CALL: u64 = 100;
        let (rate, burst) = (10_000, 2_000);
        let mut bucket = Bucket::new(rate * 1000, burst, 0);
        // Next step of each thread, and its time: a look at its ticket, or the use of a lease.
        let mut next: Vec<(u64, Option<Ticket>, u64)> = Vec::new();
        for _ in 0..threads {
            let ticket = bucket.take(CALL * 5, 0);
            next.push((bucket.due(ticket, 0), Some(ticket), 0));
        }
        let mut passed: Vec<(u64, u64)> = Vec::new();
        for (step, (late, used)) in late.iter().zip(&used).enumerate() {
            let (thread, &(at, ticket, lease)) =
                next.iter().enumerate().min_by_key(|(_, next)| next.0).unwrap();
            // All of them stand still once.
            let now = if step == 30 { at + stop * MS } else { at };
            if step == 30 {
                for other in &mut next { other.0 = other.0.max(now); }
            }
            next[thread] = if let Some(ticket) = ticket {
                passed.push((now, CALL));
                let lease = bucket.lease(ticket, CALL * 4, now);
                (now + used * MS, None, lease)
            } else {
                passed.push((now, lease));
                bucket.end_lease(lease, 0);
                let ticket = bucket.take(CALL * 5, now);
                (bucket.due(ticket, now) + late * MS, Some(ticket), 0)
            };
        }
        passed.sort_unstable();
        for from in 0..passed.len() {
            let mut sum = 0;
            for &(at, units) in &passed[from..] {
                sum += units;
                let allowed = rate * (at - passed[from].0) / S + burst + CALL * threads as u64 + 1;
                prop_assert!(sum <= allowed, "{sum} > {allowed} from {} to {at}", passed[from].0);
            }
        }
    }

    /// Any window of any history stays under `rate * window + burst`, leases
    /// included, with the largest rate and burst that were in force in it.
    #[test]
    fn never_over_the_envelope(steps in steps(), rate in 1..10_000_u64, burst in 1..4_000_u64) {
        let mut bucket = Bucket::new(rate * 1000, burst, 0);
        let mut now = 0_u64;
        let mut passed: Vec<(u64, u64)> = Vec::new();
        let mut config: Vec<(u64, u64, u64)> = vec![(0, rate, burst)];
        let (mut lease, mut left) = (0_u64, 0_u64);
        let mut unpaid_refund = 0_u64;
        for step in steps {
            match step {
                Step::Wait(ns) => now += ns,
                Step::Take(n) => {
                    let ticket = bucket.take(n, now);
                    now = now.max(bucket.due(ticket, now));
                    passed.push((now, n));
                    unpaid_refund = n;
                }
                Step::Refund(n) => {
                    // Only what the last call took and did not use.
                    let n = n.min(unpaid_refund);
                    unpaid_refund = 0;
                    if n > 0 {
                        bucket.refund(n);
                        let last = passed.last_mut().unwrap();
                        last.1 -= n;
                    }
                }
                Step::Lease(n) if lease == 0 => {
                    unpaid_refund = 0;
                    let ticket = bucket.take(n, now);
                    now = now.max(bucket.due(ticket, now));
                    lease = bucket.lease(ticket, n, now);
                    left = lease;
                }
                Step::Lease(_) => {}
                Step::EndLease(use_units) => {
                    unpaid_refund = 0;
                    let used = use_units.min(left);
                    if used > 0 { passed.push((now, used)); }
                    bucket.end_lease(lease, left - used);
                    (lease, left) = (0, 0);
                }
                Step::Retune(r, b) => {
                    let before = bucket.level(now) + i64::try_from(left).unwrap();
                    bucket.retune(r * 1000, b, left, now);
                    (lease, left) = (0, 0);
                    prop_assert!(bucket.level(now) <= before, "a change enriched the bucket");
                    config.push((now, r, b));
                    unpaid_refund = 0;
                }
            }
            prop_assert!(bucket.level(now) <= i64::try_from(Split::of(config.last().unwrap().2).curve).unwrap());
        }
        for from in 0..passed.len() {
            let mut sum = 0_u64;
            for to in from..passed.len() {
                sum += passed[to].1;
                let (a, b) = (passed[from].0, passed[to].0);
                let in_force = config.iter().enumerate().filter(|(i, c)| {
                    c.0 <= b && config.get(i + 1).is_none_or(|next| next.0 >= a)
                });
                let (mut top_rate, mut top_burst) = (0, 0);
                for (_, c) in in_force { top_rate = top_rate.max(c.1); top_burst = top_burst.max(c.2); }
                // A ticket larger than the burst goes once its own units have accrued:
                // the window that holds only it starts before it.
                let largest = passed[from..=to].iter().map(|p| p.1).max().unwrap();
                let allowed = u128::from(top_rate) * u128::from(b - a) / u128::from(S)
                    + u128::from(top_burst.max(largest)) + u128::from(largest) + 1;
                prop_assert!(u128::from(sum) <= allowed, "{sum} > {allowed} in [{a}, {b}]");
            }
        }
    }

    /// Tickets are due in the order in which they were taken.
    #[test]
    fn first_come_first_served(
        sizes in prop::collection::vec((1..100_000_u64, 0..S), 2..50),
        rate in 1..1_000_000_000_u64,
        burst in 1..1_000_000_u64,
    ) {
        let mut bucket = Bucket::new(rate * 1000, burst, 0);
        let mut now = 0;
        let mut last_due = 0;
        for (n, pause) in sizes {
            now += pause;
            let ticket = bucket.take(n, now);
            let due = bucket.due(ticket, now).max(now);
            prop_assert!(due >= last_due);
            last_due = due;
        }
    }

    /// `due` is the first instant, to the nanosecond, at which `V + burst`
    /// reaches the ticket.
    #[test]
    fn due_is_exact(
        rate_milli in 1..GB100 * 1000,
        burst in 1..1_u64 << 40,
        ahead in 1..1_u64 << 40,
        anchor in 0..1_u64 << 50,
        issued in any::<u64>(),
    ) {
        let curve = Curve::empty(rate_milli, burst, issued, anchor);
        let ticket = issued.wrapping_add(ahead);
        let due = curve.due(ticket, anchor);
        prop_assume!(due < u64::MAX);
        let reached = |t: u64| {
            let (v, _) = curve.value(t);
            ticket.wrapping_sub(v.wrapping_add(burst)).cast_signed() <= 0
        };
        prop_assert!(reached(due));
        prop_assert!(due == anchor || !reached(due - 1));
    }

    /// A call in a group waits for the latest member, and no member is exceeded.
    #[test]
    fn a_group_waits_for_the_latest(
        rates in prop::collection::vec(1..1_000_000_u64, 1..5),
        calls in prop::collection::vec(1..10_000_u64, 1..40),
    ) {
        let mut members: Vec<Bucket> = rates.iter().map(|r| Bucket::new(r * 1000, 1, 0)).collect();
        let mut now = 0;
        let mut sum = 0_u64;
        for n in calls {
            let due = Group(&mut members).take(n, now);
            prop_assert!(due >= now);
            now = due;
            sum += n;
            let slowest = rates.iter().min().unwrap();
            prop_assert!(u128::from(sum) <= u128::from(*slowest) * u128::from(now) / u128::from(S) + 1);
        }
    }
}
