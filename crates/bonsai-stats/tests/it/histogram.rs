//! The histogram of delays.

use bonsai_stats::{BUCKETS, LogHistogram, bucket_bounds, bucket_of, percentile_nearest};
use proptest::prelude::*;

const TOP: usize = BUCKETS - 1;
const US: u64 = 1_000;

// It is computed at compile time where that is wanted.
const _: () = assert!(bucket_of(1_500) == 2 && bucket_bounds(2).0 == 1_500);

#[test]
fn known_buckets() {
    for (ns, bucket) in [
        (0, 0),
        (999, 0),
        (US, 1),
        (1_499, 1),
        (1_500, 2),
        (1_999, 2),
        (2 * US, 3),
        (2_999, 3),
        (3 * US, 4),
        (4 * US, 5),
        (6 * US, 6),
        (8 * US, 7),
        (1_024 * US, 21),
        (1_536 * US, 22),
        (1_048_576 * US, 41),
        ((1 << 31) * US - 1, 62),
        ((1 << 31) * US, 63),
        (u64::MAX, 63),
    ] {
        assert_eq!(bucket_of(ns), bucket, "{ns}");
    }
}

#[test]
fn bounds_join_without_gaps_and_contain_their_bucket() {
    assert_eq!(bucket_bounds(0), (0, US));
    assert_eq!(bucket_bounds(1), (US, 1_500));
    assert_eq!(bucket_bounds(62), (1_610_612_736_000, 2_147_483_648_000));
    assert_eq!(bucket_bounds(TOP), (2_147_483_648_000, u64::MAX));
    assert_eq!(bucket_bounds(usize::MAX), bucket_bounds(TOP));
    for index in 0..BUCKETS {
        let (lo, hi) = bucket_bounds(index);
        assert!(lo < hi);
        assert_eq!(bucket_of(lo), index);
        assert_eq!(bucket_of(hi - 1), index);
        if index < TOP {
            assert_eq!(bucket_bounds(index + 1).0, hi);
            assert_eq!(bucket_of(hi), index + 1);
        }
        if (1..TOP).contains(&index) {
            assert!(
                2 * (hi - lo) <= lo,
                "bucket {index} is wider than half of {lo}"
            );
        }
    }
}

#[test]
fn percentiles_are_interpolated() {
    let mut histogram = LogHistogram::default();
    assert!(histogram.is_empty());
    assert_eq!(histogram.percentile(50.0), None);
    assert_eq!(histogram.max_bound(), None);
    histogram.add(bucket_of(8 * US), 10);
    assert_eq!(bucket_bounds(7), (8 * US, 12 * US));
    for (percent, ns) in [(0.0, 8_000), (25.0, 9_000), (50.0, 10_000), (100.0, 12_000)] {
        assert_eq!(histogram.percentile(percent), Some(ns), "{percent}");
    }
    histogram.add(0, 30);
    assert_eq!(histogram.percentile(0.0), Some(0));
    assert_eq!(histogram.percentile(37.5), Some(500));
    assert_eq!(histogram.percentile(75.0), Some(1_000));
    assert_eq!(histogram.percentile(87.5), Some(10_000));
    assert_eq!(histogram.max_bound(), Some(12_000));
    assert_eq!(histogram.count(), 40);
    for percent in [-1.0, 101.0, f64::NAN] {
        assert_eq!(histogram.percentile(percent), None);
    }
}

#[test]
fn the_top_has_no_upper_bound() {
    let mut histogram = LogHistogram::default();
    histogram.record(u64::MAX);
    histogram.add(usize::MAX, 1);
    assert_eq!(histogram.counts()[TOP], 2);
    assert_eq!(histogram.percentile(0.0), Some(2_147_483_648_000));
    assert_eq!(histogram.percentile(100.0), Some(2_147_483_648_000));
    assert_eq!(histogram.max_bound(), Some(u64::MAX));
}

#[test]
fn counts_saturate_and_differences_stop_at_zero() {
    let full = LogHistogram::from_counts([u64::MAX; BUCKETS]);
    let mut sum = full;
    sum.merge(&full);
    sum.record(5);
    assert_eq!(sum, full);
    assert_eq!(sum.count(), u64::MAX);
    let percentile = full.percentile(50.0).unwrap();
    assert!(bucket_bounds(31).0 <= percentile && percentile <= bucket_bounds(32).1);
    assert!(LogHistogram::default().since(&full).is_empty());
    assert_eq!(full.since(&LogHistogram::default()), full);
}

fn delays() -> impl Strategy<Value = Vec<u64>> {
    let delay = (any::<u64>(), 22..64_u32).prop_map(|(ns, shift)| ns >> shift);
    proptest::collection::vec(delay, 1..100)
}

fn histogram_of(delays: &[u64]) -> LogHistogram {
    let mut histogram = LogHistogram::default();
    delays.iter().for_each(|ns| histogram.record(*ns));
    histogram
}

proptest! {
    #[test]
    fn every_delay_lies_in_the_bounds_of_its_bucket(ns in any::<u64>(), shift in 0..64_u32) {
        let ns = ns >> shift;
        let (lo, hi) = bucket_bounds(bucket_of(ns));
        prop_assert!(lo <= ns && (ns < hi || hi == u64::MAX));
    }

    #[test]
    fn percentiles_are_off_by_less_than_a_bucket(delays in delays(), percent in 0.0..100.0_f64) {
        let histogram = histogram_of(&delays);
        let exact: Vec<f64> = delays.iter().map(|ns| *ns as f64).collect();
        let exact = percentile_nearest(&exact, percent).unwrap();
        let got = histogram.percentile(percent).unwrap() as f64;
        if exact >= bucket_bounds(TOP).0 as f64 {
            prop_assert_eq!(got, bucket_bounds(TOP).0 as f64);
            return Ok(());
        }
        // Half of the larger of the two, 1 us at the bottom, and rounding at borders.
        prop_assert!((got - exact).abs() <= (got.max(exact) * 0.5).max(1_000.0), "{got} for {exact}");
    }

    #[test]
    fn percentiles_ascend_up_to_the_bound(delays in delays(), p in 0.0..100.0_f64, q in 0.0..100.0_f64) {
        let histogram = histogram_of(&delays);
        let (p, q) = if p < q { (p, q) } else { (q, p) };
        prop_assert!(histogram.percentile(p) <= histogram.percentile(q));
        prop_assert!(histogram.percentile(q) <= histogram.percentile(100.0));
        let bound = histogram.max_bound();
        prop_assert!(delays.iter().all(|ns| *ns < bound.unwrap()));
        if bound < Some(u64::MAX) {
            prop_assert_eq!(histogram.percentile(100.0), bound);
        }
    }

    #[test]
    fn merging_counts_everything_and_since_undoes_it(a in delays(), b in delays()) {
        let (first, second) = (histogram_of(&a), histogram_of(&b));
        let mut both = first;
        both.merge(&second);
        prop_assert_eq!(both.count(), (a.len() + b.len()) as u64);
        prop_assert_eq!(both, histogram_of(&[a, b].concat()));
        prop_assert_eq!(both.since(&first), second);
    }
}
