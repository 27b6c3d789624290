//! The curve for any words whatever, as a damaged segment may hold, and its
//! arithmetic at the edges.

use bonsai_bucket::{Bucket, Curve, FRACTIONS_PER_UNIT, Pace, Split};
use proptest::prelude::*;

const S: u64 = 1_000_000_000;

/// Any word, with the edges of its range more often than chance has them.
fn word() -> impl Strategy<Value = u64> {
    let edge = prop::sample::select(vec![0, 1, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX]);
    prop_oneof![any::<u64>(), 0..1_u64 << 40, edge]
}

fn curves() -> impl Strategy<Value = Curve> {
    [word(), word(), word(), word(), word()].prop_map(|[a, b, c, d, e]| Curve {
        rate_milli: a,
        burst: b,
        anchor_units: c,
        anchor_fraction: d,
        anchor_ns: e,
    })
}

/// A curve as limits make them, and an instant from its anchor on.
fn sane() -> impl Strategy<Value = (Curve, u64)> {
    let rate = prop_oneof![1..10_000_u64, 1..1_u64 << 47];
    let age = prop_oneof![0..10 * S, 0..1_u64 << 58];
    (
        rate,
        1..1_u64 << 40,
        word(),
        0..1_u64 << 60,
        0..FRACTIONS_PER_UNIT,
        age,
    )
        .prop_map(|(rate, burst, issued, anchor, fraction, age)| {
            let mut curve = Curve::empty(rate, burst, issued, anchor);
            curve.anchor_fraction = fraction;
            (curve, anchor + age)
        })
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(if cfg!(miri) { 10 } else { 2_000 })
    })]

    /// No words make the arithmetic overflow, and the answers stay in their range.
    #[test]
    fn arbitrary_words_do_no_harm(
        curve in curves(), ticket in word(), now in word(), rate in word(), burst in word(),
    ) {
        prop_assert!(curve.value(now).1 < FRACTIONS_PER_UNIT);
        prop_assert!(curve.due(ticket, now) >= now);
        let raised = curve.raised(ticket, now);
        prop_assert!(raised == ticket || raised == curve.floor(now));
        let _ = curve.level(ticket, now);
        let _ = curve.units_in(now);
        let at_once = curve.missing(ticket, now) == 0 || now == u64::MAX;
        prop_assert_eq!(at_once, curve.due(ticket, now) == now);
        let changed = curve.retune(rate, burst, now);
        prop_assert!(changed.anchor_fraction < FRACTIONS_PER_UNIT);
        prop_assert!(changed.anchor_ns >= curve.anchor_ns);
        let split = Split::of(burst);
        prop_assert!(split.curve + split.leases == burst && split.curve >= split.leases);
        let mut bucket = Bucket::new(rate, burst, now);
        let ticket = bucket.take(ticket, now);
        let _ = bucket.due(ticket, now);
        let _ = bucket.backlog(now);
        let pace = Pace { lease: u32::MAX, granted_us: 0 };
        let most = burst.min(u64::from(u32::MAX));
        prop_assert!(pace.next(0, ticket.units, 1, burst, Some(0)) <= most);
        prop_assert!(pace.next(0, ticket.units, 1, burst, None) <= most);
    }

    /// The instant does not depend on when it is asked for: who is woken early
    /// computes the same one again.
    #[test]
    fn due_stays_the_same_while_it_is_waited_for(
        (curve, now) in sane(), wait in 0..1_u64 << 58, part in 0..=1_000_u64,
    ) {
        let ahead = curve.units_in(wait).min(1 << 62);
        let ticket = curve.floor(now).wrapping_add(curve.burst).wrapping_add(ahead);
        let due = curve.due(ticket, now);
        prop_assert!(due <= now + wait);
        prop_assert_eq!(curve.missing(ticket, now), ahead);
        prop_assert_eq!(curve.missing(ticket, due), 0);
        let later = now + (due - now) / 1_000 * part;
        prop_assert_eq!(curve.due(ticket, later), due);
        prop_assert_eq!(curve.due(ticket, due), due);
        prop_assert_eq!(curve.due(ticket, due + 1), due + 1);
    }

    /// A change to the same limits changes nothing, whenever it comes.
    #[test]
    fn a_retune_to_the_same_limits_is_none(
        (curve, now) in sane(), ahead in 0..1_u64 << 40, later in 0..1_u64 << 50,
    ) {
        let same = curve.retune(curve.rate_milli, curve.burst, now);
        let ticket = curve.floor(now).wrapping_add(ahead);
        prop_assert_eq!(same.value(now + later), curve.value(now + later));
        prop_assert_eq!(same.due(ticket, now), curve.due(ticket, now));
    }

    /// After a change the level is what it was, or the new burst if that is less.
    #[test]
    fn a_retune_keeps_the_level_or_cuts_it_to_the_burst(
        (curve, now) in sane(), rate in 1..1_u64 << 47, burst in 1..1_u64 << 40,
        taken in 0..1_u64 << 41,
    ) {
        let issued = curve.raised(curve.floor(now), now).wrapping_add(taken);
        let before = curve.level(issued, now);
        let changed = curve.retune(rate, burst, now);
        prop_assert_eq!(changed.level(issued, now), before.min(burst.cast_signed()));
    }
}

/// The monotonic clock neither jumps nor counts the time of a suspended machine; where
/// one does all the same (a guest that was stopped), nothing is lost or given away.
#[test]
fn a_clock_that_jumps_gives_no_more_than_a_burst() {
    const HOUR: u64 = 3_600_000_000_000;
    let curve = Curve::empty(1_000_000 * 1000, 20_000, 0, 5 * HOUR);
    // An hour ahead: the bucket is full, not fuller.
    assert_eq!(curve.level(0, 6 * HOUR), 20_000);
    let taken = curve.raised(0, 6 * HOUR).wrapping_add(30_000);
    assert_eq!(curve.due(taken, 6 * HOUR), 6 * HOUR + 10_000_000);
    // An hour back: before its anchor it stands still, and nothing is due earlier.
    assert_eq!(curve.level(0, 4 * HOUR), 0);
    assert_eq!(curve.due(1_000_000, 4 * HOUR), 5 * HOUR + 1_000_000_000);
    // Caught up again, all is as it was.
    assert_eq!(curve.level(taken, 6 * HOUR), -10_000);
    assert_eq!(curve.level(taken, 6 * HOUR + 10_000_000), 0);
}
