//! Fairness and windows.

use super::assert_close;
use bonsai_stats::{jain_index, max_relative_error, min_max_ratio, windows};
use proptest::prelude::*;

#[test]
fn fairness_of_known_shares() {
    for (shares, jain, ratio) in [
        (&[5.0, 5.0, 5.0, 5.0][..], 1.0, 1.0),
        (&[7.0], 1.0, 1.0),
        (&[1.0, 0.0, 0.0, 0.0], 0.25, 0.0),
        (&[1.0, 1.0, 0.0, 0.0], 0.5, 0.0),
        (&[1.0, 2.0, 3.0], 36.0 / 42.0, 1.0 / 3.0),
        (&[0.0, 0.0], 1.0, 1.0),
        (&[1e300, 1e300], 1.0, 1.0),
        (&[1e-300, 1e-300], 1.0, 1.0),
    ] {
        assert_close(jain_index(shares), jain);
        assert_close(min_max_ratio(shares), ratio);
    }
    for shares in [&[][..], &[1.0, -1.0], &[f64::NAN], &[1.0, f64::INFINITY]] {
        assert_eq!(jain_index(shares), None);
        assert_eq!(min_max_ratio(shares), None);
    }
}

#[test]
fn windows_are_aligned_to_their_start() {
    let events = [
        (99, 1_000),
        (100, 1),
        (199, 2),
        (200, 4),
        (350, 8),
        (399, 16),
        (400, 2_000),
        (120, 32),
    ];
    assert_eq!(windows(&events, 100, 100, 3), [35, 4, 24]);
    assert_eq!(windows(&events, 100, 100, 0), [0; 0]);
    assert_eq!(windows(&events, 100, 0, 3), [0, 0, 0]);
    assert_eq!(windows(&[], 0, 10, 2), [0, 0]);
    assert_eq!(
        windows(&[(5, u64::MAX), (6, 1), (u64::MAX, 1)], 0, 10, 1),
        [u64::MAX]
    );
    assert_eq!(windows(&[(u64::MAX, 7)], u64::MAX, 1, 1), [7]);
}

#[test]
fn errors_are_relative_to_the_rate() {
    // 10 MB/s over 100 ms is 1 MB.
    let sums = [1_000_000, 990_000, 1_005_000];
    assert_close(max_relative_error(&sums, 100_000_000, 1e7), 0.01);
    assert_close(max_relative_error(&[0, 1_000_000], 100_000_000, 1e7), 1.0);
    assert_close(max_relative_error(&[3_000_000], 100_000_000, 1e7), 2.0);
    assert_eq!(max_relative_error(&[], 100_000_000, 1e7), None);
    for (window_ns, rate) in [
        (0, 1e7),
        (100, 0.0),
        (100, -1.0),
        (100, f64::NAN),
        (100, f64::INFINITY),
    ] {
        assert_eq!(max_relative_error(&sums, window_ns, rate), None);
    }
}

proptest! {
    #[test]
    fn jain_lies_between_one_over_n_and_one_and_ignores_the_unit(
        shares in proptest::collection::vec(0.0..1e6_f64, 1..40),
        unit in 1e-3..1e3_f64,
    ) {
        let index = jain_index(&shares).unwrap();
        let slack = 1e-9;
        prop_assert!(index >= 1.0 / shares.len() as f64 - slack && index <= 1.0 + slack);
        let scaled: Vec<f64> = shares.iter().map(|s| s * unit).collect();
        prop_assert!((jain_index(&scaled).unwrap() - index).abs() < slack);
        prop_assert!(min_max_ratio(&shares).unwrap() <= index + slack);
    }

    #[test]
    fn every_event_inside_is_counted_once(
        events in proptest::collection::vec((0..2_000_u64, 0..1_000_u64), 0..100),
        start in 0..500_u64,
        window in 1..300_u64,
        count in 0..8_usize,
    ) {
        let end = start + window * count as u64;
        let inside: u64 = events.iter().filter(|(t, _)| (start..end).contains(t)).map(|(_, n)| n).sum();
        let sums = windows(&events, start, window, count);
        prop_assert_eq!(sums.len(), count);
        prop_assert_eq!(sums.iter().sum::<u64>(), inside);
        if let Some(first) = sums.first() {
            let direct: u64 =
                events.iter().filter(|(t, _)| (start..start + window).contains(t)).map(|(_, n)| n).sum();
            prop_assert_eq!(*first, direct);
        }
    }
}
