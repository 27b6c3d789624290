//! The wall clock jumps.

use bonsai_history::Query;

use crate::support::{MIDNIGHT, folder, history, means, query, reader, seconds, sent};

/// Every second of the span that was observed counts once at every resolution.
fn observed(folder: &tempfile::TempDir, from: u64, to: u64) -> Vec<u64> {
    let reader = reader(folder);
    let observed = |points| {
        let series = reader
            .series(&query("vod", from, to, points))
            .expect("a series");
        assert!(series.slots.is_sorted_by_key(|slot| slot.at), "{series:?}");
        series.slots.iter().map(|slot| slot.observed).sum()
    };
    [Query::MOST_POINTS, 400, 4].map(observed).to_vec()
}

#[test]
fn a_step_back_repeats_nothing_and_keeps_what_came_first() {
    let folder = folder();
    let mut history = history(&folder);
    // Two hours; then back by 90 minutes, into minutes that are blocks, and hours that are.
    for second in 0..7200 {
        history.tick(&sent(MIDNIGHT + second, "vod", 1));
    }
    for second in 1800..9000 {
        history.tick(&sent(MIDNIGHT + second, "vod", 2));
    }
    let counters = history.status().counters;
    assert_eq!(
        (counters.repeated_ticks, counters.written_ticks),
        (5400, 9000)
    );
    assert_eq!(observed(&folder, MIDNIGHT, MIDNIGHT + 9000), [9000; 3]);
    let series = seconds(&reader(&folder), "vod", MIDNIGHT, MIDNIGHT + 9000);
    let first_kept = (0..9000).map(|s| (MIDNIGHT + s, if s < 7200 { 1.0 } else { 2.0 }));
    assert_eq!(means(&series), first_kept.collect::<Vec<_>>());
}

#[test]
fn a_step_back_into_a_gap_fills_it() {
    let folder = folder();
    let mut history = history(&folder);
    // Seconds 0 to 29, then the clock is an hour and a half ahead for two minutes, then right.
    for second in (0..30).chain(5400..5520).chain(30..5460) {
        history.tick(&sent(MIDNIGHT + second, "vod", second));
    }
    let counters = history.status().counters;
    assert_eq!((counters.repeated_ticks, counters.too_old_ticks), (60, 0));
    let series = seconds(&reader(&folder), "vod", MIDNIGHT, MIDNIGHT + 5520);
    let all: Vec<_> = (0..5520).map(|s| (MIDNIGHT + s, s as f64)).collect();
    assert_eq!(means(&series), all);
    assert_eq!(observed(&folder, MIDNIGHT, MIDNIGHT + 5520), [5520; 3]);
}

#[test]
fn a_clock_that_flaps_costs_nothing_but_work() {
    let folder = folder();
    let mut history = history(&folder);
    // Every other second two hours ahead.
    for second in 0..600 {
        history.tick(&sent(MIDNIGHT + second + second % 2 * 7200, "vod", second));
    }
    drop(history);
    let mut history = crate::support::history(&folder);
    history.tick(&sent(MIDNIGHT + 86_400, "vod", 0));
    assert_eq!(observed(&folder, MIDNIGHT, MIDNIGHT + 9000), [600; 3]);
    let series = seconds(&reader(&folder), "vod", MIDNIGHT, MIDNIGHT + 9000);
    for slot in series.slots {
        let second = (slot.at - MIDNIGHT) % 7200;
        assert_eq!(slot.got.mean, second as f64);
    }
}

#[test]
fn seconds_beyond_all_time_are_refused() {
    let folder = folder();
    let mut history = history(&folder);
    history.tick(&sent(u64::MAX, "vod", 1));
    history.tick(&sent(1 << 48, "vod", 1));
    history.tick(&sent(0, "vod", 1));
    history.tick(&sent(MIDNIGHT, "vod", 1));
    let counters = history.status().counters;
    assert_eq!((counters.too_old_ticks, counters.written_ticks), (2, 2));
    assert_eq!(
        reader(&folder).range().expect("a range"),
        Some((0, MIDNIGHT + 1))
    );
}
