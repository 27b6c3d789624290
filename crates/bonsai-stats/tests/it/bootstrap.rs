//! Intervals of medians.

use super::close;
use bonsai_stats::{Interval, MedianEstimate, PairedRatio, SplitMix64, median};
use proptest::prelude::*;

/// A number between 0 and 1.
fn uniform(random: &mut SplitMix64) -> f64 {
    random.below(1 << 53) as f64 / (1_u64 << 53) as f64
}

#[test]
fn the_generator_gives_the_published_sequence() {
    // splitmix64.c of S. Vigna, seed 1234567.
    let mut random = SplitMix64::new(1_234_567);
    let sequence: Vec<u64> = (0..5).map(|_| random.next_u64()).collect();
    assert_eq!(
        sequence,
        [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821
        ]
    );
}

#[test]
fn numbers_below_n_are_even() {
    let mut random = SplitMix64::new(7);
    let mut counts = [0_u32; 6];
    for _ in 0..60_000 {
        counts[usize::try_from(random.below(6)).unwrap()] += 1;
    }
    // Five standard deviations of a count around 10000 are 456.
    assert!(
        counts.iter().all(|n| n.abs_diff(10_000) < 456),
        "{counts:?}"
    );
    assert_eq!(random.below(1), 0);
    assert_eq!(random.below(0), 0);
}

#[test]
fn the_interval_holds_the_true_median_as_often_as_it_says() {
    // 250 samples of a skewed distribution, exponential with median ln 2. The
    // standard deviation of the share of hits around 0.95 is 0.014.
    for (size, least) in [(10, 0.88), (40, 0.91)] {
        let mut random = SplitMix64::new(size);
        let hits = (0..250)
            .filter(|trial| {
                let values: Vec<f64> = (0..size)
                    .map(|_| -(1.0 - uniform(&mut random)).ln())
                    .collect();
                let estimate = MedianEstimate::of(&values, 0.95, *trial).unwrap();
                estimate.interval.contains(std::f64::consts::LN_2)
            })
            .count();
        let share = hits as f64 / 250.0;
        assert!((least..=0.99).contains(&share), "{size} values: {share}");
    }
}

#[test]
fn more_values_and_less_confidence_give_a_narrower_interval() {
    let mut random = SplitMix64::new(1);
    let values: Vec<f64> = (0..400).map(|_| uniform(&mut random)).collect();
    let width = |n: usize, confidence| {
        MedianEstimate::of(&values[..n], confidence, 3)
            .unwrap()
            .interval
            .width()
    };
    assert!(width(400, 0.95) < width(40, 0.95) / 2.0);
    assert!(width(400, 0.5) < width(400, 0.95) / 2.0);
}

#[test]
fn a_constant_overhead_is_found_in_spite_of_drift() {
    // The machine drifts by a factor of three, and one round in ten is disturbed;
    // the subject costs 2 % more.
    let mut random = SplitMix64::new(5);
    let rounds: Vec<(f64, f64)> = (0..50)
        .map(|i| {
            let base = 100.0 * (1.0 + f64::from(i) / 25.0);
            let noise = 1.0 + (uniform(&mut random) - 0.5) * 0.002;
            let disturbed = if i % 10 == 9 { 4.0 } else { 1.0 };
            (base, base * 1.02 * noise * disturbed)
        })
        .collect();
    let ratio = PairedRatio::of(&rounds, 11).unwrap();
    assert!(
        (ratio.relative_difference() - 0.02).abs() < 0.001,
        "{ratio:?}"
    );
    assert!(ratio.ratio.interval.contains(1.02) && ratio.ratio.interval.width() < 0.002);
    assert!(!ratio.may_be_equal());
    assert_eq!(ratio.ratio.count, 50);
    let same: Vec<(f64, f64)> = rounds
        .iter()
        .enumerate()
        .map(|(i, (b, _))| (*b, if i % 2 == 0 { b * 1.01 } else { b * 0.99 }))
        .collect();
    assert!(PairedRatio::of(&same, 11).unwrap().may_be_equal());
}

#[test]
fn what_has_no_meaning_is_none() {
    assert_eq!(MedianEstimate::of(&[], 0.95, 0), None);
    assert_eq!(MedianEstimate::of(&[1.0], 0.95, 0), None);
    assert_eq!(MedianEstimate::of(&[1.0, f64::NAN], 0.95, 0), None);
    for confidence in [0.0, 1.0, -1.0, f64::NAN] {
        assert_eq!(MedianEstimate::of(&[1.0, 2.0], confidence, 0), None);
    }
    let good = (1.0, 1.0);
    for bad in [
        (0.0, 1.0),
        (-1.0, 1.0),
        (f64::NAN, 1.0),
        (1.0, f64::NAN),
        (f64::INFINITY, 1.0),
        (1.0, f64::INFINITY),
    ] {
        assert_eq!(PairedRatio::of(&[good, good, bad], 0), None, "{bad:?}");
    }
    assert_eq!(PairedRatio::of(&[good], 0), None);
    assert_eq!(PairedRatio::of(&[], 0), None);
    let exact = PairedRatio::of(&[good, good], 0).unwrap();
    assert_eq!(
        exact.ratio.interval,
        Interval {
            low: 1.0,
            high: 1.0
        }
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_interval_lies_in_the_sample_and_repeats(
        values in proptest::collection::vec(-1e6..1e6_f64, 2..40),
        seed in any::<u64>(),
    ) {
        let estimate = MedianEstimate::of(&values, 0.95, seed).unwrap();
        let Interval { low, high } = estimate.interval;
        let least = values.iter().copied().reduce(f64::min).unwrap();
        let most = values.iter().copied().reduce(f64::max).unwrap();
        prop_assert!(least <= low && low <= high && high <= most);
        prop_assert!(close(estimate.median, median(&values).unwrap()));
        prop_assert_eq!(MedianEstimate::of(&values, 0.95, seed), Some(estimate));
    }
}
