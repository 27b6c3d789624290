//! Location and spread.

use super::{assert_close, close};
use bonsai_stats::{
    coefficient_of_variation, mad, mean, median, percentile_linear, percentile_nearest, stddev,
};
use proptest::prelude::*;

#[test]
fn known_answers() {
    let values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
    assert_close(mean(&values), 5.0);
    assert_close(stddev(&values), (32.0_f64 / 7.0).sqrt());
    assert_close(
        coefficient_of_variation(&values),
        (32.0_f64 / 7.0).sqrt() / 5.0,
    );
    assert_close(median(&values), 4.5);
    assert_close(mad(&values), 0.5);
    assert_close(median(&[3.0, 1.0, 2.0]), 2.0);
    assert_close(mad(&[1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0]), 1.0);
    assert_close(
        coefficient_of_variation(&[-4.0, -6.0]),
        2.0_f64.sqrt() / 5.0,
    );
    // One disturbed value moves the mean, and neither median nor deviation.
    let disturbed = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9e9];
    assert_close(median(&disturbed), 4.5);
    assert_close(mad(&disturbed), 0.5);
}

#[test]
fn a_large_mean_costs_no_digits() {
    // NIST StRD NumAcc4: mean 10000000.2, standard deviation 0.1.
    let values: Vec<f64> = std::iter::once(10_000_000.2)
        .chain((0..1_000).map(|i| {
            if i % 2 == 0 {
                10_000_000.1
            } else {
                10_000_000.3
            }
        }))
        .collect();
    assert!((mean(&values).unwrap() - 10_000_000.2).abs() < 1e-7);
    assert!((stddev(&values).unwrap() - 0.1).abs() < 1e-8);
}

#[test]
fn percentiles_by_nearest_rank() {
    let values = [15.0, 20.0, 35.0, 40.0, 50.0];
    for (percent, want) in [
        (0.0, 15.0),
        (5.0, 15.0),
        (20.0, 15.0),
        (20.1, 20.0),
        (30.0, 20.0),
        (40.0, 20.0),
        (50.0, 35.0),
        (99.0, 50.0),
        (100.0, 50.0),
    ] {
        assert_close(percentile_nearest(&values, percent), want);
    }
    // 99.9 % of 1000 is rank 999, in spite of 99.9 not being a binary fraction.
    let thousand: Vec<f64> = (1..=1_000).map(f64::from).collect();
    for tenths in 1..=1_000_u32 {
        let percent = f64::from(tenths) / 10.0;
        assert_close(percentile_nearest(&thousand, percent), f64::from(tenths));
    }
}

#[test]
fn percentiles_by_linear_interpolation() {
    // numpy.percentile([15, 20, 35, 40, 50], ...)
    let values = [50.0, 15.0, 40.0, 20.0, 35.0];
    for (percent, want) in [
        (0.0, 15.0),
        (40.0, 29.0),
        (50.0, 35.0),
        (75.0, 40.0),
        (90.0, 46.0),
        (100.0, 50.0),
    ] {
        assert_close(percentile_linear(&values, percent), want);
    }
    assert_close(percentile_linear(&[7.0], 33.0), 7.0);
}

#[test]
fn what_has_no_meaning_is_none() {
    for values in [
        &[][..],
        &[1.0, f64::NAN],
        &[1.0, f64::INFINITY],
        &[f64::NEG_INFINITY],
    ] {
        assert_eq!(mean(values), None);
        assert_eq!(stddev(values), None);
        assert_eq!(coefficient_of_variation(values), None);
        assert_eq!(median(values), None);
        assert_eq!(mad(values), None);
        assert_eq!(percentile_nearest(values, 50.0), None);
        assert_eq!(percentile_linear(values, 50.0), None);
    }
    assert_eq!(stddev(&[1.0]), None);
    assert_eq!(coefficient_of_variation(&[-1.0, 1.0]), None);
    assert_eq!(coefficient_of_variation(&[0.0, 0.0]), None);
    for percent in [-0.1, 100.1, f64::NAN] {
        assert_eq!(percentile_nearest(&[1.0], percent), None);
        assert_eq!(percentile_linear(&[1.0], percent), None);
    }
}

fn values() -> impl Strategy<Value = Vec<f64>> {
    proptest::collection::vec(-1e9..1e9_f64, 1..60)
}

proptest! {
    #[test]
    fn percentiles_are_ordered_and_within_the_sample(values in values(), p in 0.0..100.0_f64, q in 0.0..100.0_f64) {
        let (p, q) = if p < q { (p, q) } else { (q, p) };
        let least = values.iter().copied().reduce(f64::min).unwrap();
        let most = values.iter().copied().reduce(f64::max).unwrap();
        for percentile in [percentile_nearest, percentile_linear] {
            let (low, high) = (percentile(&values, p).unwrap(), percentile(&values, q).unwrap());
            prop_assert!(least <= low && low <= high && high <= most);
            prop_assert_eq!(percentile(&values, 0.0), Some(least));
            prop_assert_eq!(percentile(&values, 100.0), Some(most));
        }
    }

    #[test]
    fn nearest_rank_is_the_smallest_value_that_covers_enough(values in values(), p in 0.0..100.0_f64) {
        let got = percentile_nearest(&values, p).unwrap();
        let needed = p / 100.0 * values.len() as f64 - 1e-6;
        let covered = |limit: f64| values.iter().filter(|v| **v <= limit).count() as f64;
        prop_assert!(values.contains(&got));
        prop_assert!(covered(got) >= needed);
        for smaller in values.iter().filter(|v| **v < got) {
            prop_assert!(covered(*smaller) < needed + 2e-6);
        }
    }

    #[test]
    fn the_median_is_the_fiftieth_percentile(values in values()) {
        prop_assert!(close(median(&values).unwrap(), percentile_linear(&values, 50.0).unwrap()));
    }

    #[test]
    fn spread_ignores_the_place_and_follows_the_scale(values in values(), shift in -1e6..1e6_f64) {
        let moved: Vec<f64> = values.iter().map(|v| v + shift).collect();
        let doubled: Vec<f64> = values.iter().map(|v| v * 2.0).collect();
        let scale = 1e9;
        prop_assert!((mad(&moved).unwrap() - mad(&values).unwrap()).abs() < 1e-12 * scale);
        prop_assert!(close(mad(&doubled).unwrap(), 2.0 * mad(&values).unwrap()));
        if let Some(spread) = stddev(&values) {
            prop_assert!((stddev(&moved).unwrap() - spread).abs() < 1e-9 * scale);
            prop_assert!((stddev(&doubled).unwrap() - 2.0 * spread).abs() < 1e-9 * scale);
        }
    }
}
