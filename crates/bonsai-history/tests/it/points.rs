//! What was handed in is what is read, at each resolution.

use bonsai_history::{Error, Query, Sample, Stat, Tick, Which};
use bonsai_units::Resource;

use crate::support::{
    MIDNIGHT, folder, history, means, point, query, reader, sample, seconds, sent,
};

#[test]
fn a_second_is_read_as_it_was_handed_in() {
    let folder = folder();
    let mut history = history(&folder);
    let whole = Sample {
        asked: 5_000_400,
        got: 3_000_600,
        limit: Some(2_999_999),
        guarantee: 1_500,
        waited_ns: 2_500_000_001,
        waits: 17,
    };
    let points = vec![
        point("vod", Resource::Send, whole),
        point("vod", Resource::Calls, sample(9)),
    ];
    history.tick(&Tick {
        second: MIDNIGHT,
        points,
    });
    let close = |stat: Stat, value: f64| {
        for each in [stat.min, stat.mean, stat.max] {
            assert!((each - value).abs() < 1e-9, "{each} is not {value}");
        }
    };
    let reader = reader(&folder);
    // As a row of all, and as a block.
    for _ in 0..2 {
        let series = seconds(&reader, "vod", MIDNIGHT, MIDNIGHT + 1);
        let [slot] = series.slots[..] else {
            panic!("{series:?}")
        };
        assert_eq!(
            (slot.at, slot.width, slot.observed, slot.waits),
            (MIDNIGHT, 1, 1, 17)
        );
        close(slot.asked, 5000.0);
        close(slot.got, 3001.0);
        close(slot.limit.expect("a limit"), 2999.999);
        close(slot.guarantee, 1.5);
        close(slot.waited, 2.500_001);
        history.tick(&Tick {
            second: MIDNIGHT + 60,
            points: Vec::new(),
        });
    }
}

/// Seconds become blocks before their minute is over, so that few of them are in memory when they
/// do; each is there once all the same, and what is known ends with the last of them.
#[test]
fn few_seconds_wait_to_become_blocks() {
    let folder = folder();
    let mut history = history(&folder);
    let reader = reader(&folder);
    let file = folder.path().join("history/history.sqlite");
    let file = rusqlite::Connection::open(file).expect("a database");
    let mut most = 0;
    for second in MIDNIGHT..MIDNIGHT + 150 {
        history.tick(&sent(second, "vod", rate(second)));
        let count = "SELECT count(*) FROM open_second";
        let waiting: u32 = file
            .query_row(count, [], |row| row.get(0))
            .expect("a number");
        most = most.max(waiting);
        let range = reader.range().expect("a range");
        assert_eq!(range, Some((MIDNIGHT, second + 1)));
        let series = seconds(&reader, "vod", MIDNIGHT, second + 1);
        let wanted = (MIDNIGHT..=second).map(|second| (second, rate(second) as f64));
        assert_eq!(means(&series), wanted.collect::<Vec<_>>());
    }
    assert!((10..=20).contains(&most), "{most} seconds waited");
}

/// Something that differs from second to second.
fn rate(second: u64) -> u64 {
    let hash = (second % 100_000).wrapping_mul(2_654_435_761) >> 7;
    if second % 600 < 60 {
        0
    } else {
        1_000_000 + hash % 500_000
    }
}

#[test]
fn tiers_agree_with_the_seconds_they_are_made_of() {
    let folder = folder();
    let mut history = history(&folder);
    // Three hours and a bit, not from the start of a minute.
    let (from, to) = (MIDNIGHT + 7, MIDNIGHT + 3 * 3600 + 1234);
    for second in from..to {
        history.tick(&sent(second, "vod", rate(second)));
    }
    let reader = reader(&folder);
    for points in [20_000, 2000, 200, 20, 2] {
        let series = reader
            .series(&query("vod", from, to, points))
            .expect("a series");
        assert!(series.slots.len() <= points && series.slots.len() * 5 >= points.min(11_000) / 2);
        let mut observed = 0;
        for slot in &series.slots {
            let of: Vec<u64> = (slot.at..slot.at + slot.width)
                .filter(|second| (from..to).contains(second))
                .map(rate)
                .collect();
            assert_eq!(slot.observed, of.len() as u64, "step {}", series.step);
            let ends = of.iter().min().zip(of.iter().max()).expect("some");
            assert_eq!(
                (slot.got.min, slot.got.max),
                (*ends.0 as f64, *ends.1 as f64)
            );
            let mean = of.iter().sum::<u64>() as f64 / of.len() as f64;
            assert!(
                (slot.got.mean - mean).abs() < 1e-3,
                "{} is not {mean}",
                slot.got.mean
            );
            observed += slot.observed;
        }
        assert_eq!(
            observed,
            to - from,
            "each second once, step {}",
            series.step
        );
    }
}

#[test]
fn all_services_together_are_their_sum() {
    let folder = folder();
    let mut history = history(&folder);
    for i in 0..200 {
        let points = vec![
            point("a", Resource::Send, sample(100 + i)),
            point("b", Resource::Send, sample(1000 - i)),
            point("b", Resource::Read, sample(7)),
        ];
        history.tick(&Tick {
            second: MIDNIGHT + i,
            points,
        });
    }
    let reader = reader(&folder);
    let total = |resource| {
        let query = Query {
            which: Which::Total,
            resource,
            from: MIDNIGHT,
            to: MIDNIGHT + 200,
            points: 200,
        };
        means(&reader.series(&query).expect("a series"))
    };
    let sums: Vec<_> = (0..200).map(|i| (MIDNIGHT + i, 1100.0)).collect();
    assert_eq!(total(Resource::Send), sums);
    assert!(total(Resource::Read).iter().all(|(_, mean)| *mean == 7.0));
    assert!(total(Resource::Write).iter().all(|(_, mean)| *mean == 0.0));
}

#[test]
fn gaps_are_gaps_and_idle_is_zero() {
    let folder = folder();
    let mut history = history(&folder);
    for second in (0..30).chain(100..110) {
        let mut tick = sent(MIDNIGHT + second, "busy", 5);
        // Idle: there, with nothing that it does.
        tick.points
            .push(point("idle", Resource::Send, Sample::default()));
        history.tick(&tick);
    }
    drop(history);
    // The daemon was off for an hour.
    let mut history = crate::support::history(&folder);
    history.tick(&sent(MIDNIGHT + 3600, "busy", 5));
    let reader = reader(&folder);
    let at = |service: &str| {
        let series = seconds(&reader, service, MIDNIGHT, MIDNIGHT + 3601);
        let at = series
            .slots
            .iter()
            .map(|slot| (slot.at - MIDNIGHT, slot.got.mean));
        at.collect::<Vec<_>>()
    };
    let observed = (0..30).chain(100..110);
    let busy: Vec<_> = observed.clone().chain([3600]).map(|s| (s, 5.0)).collect();
    assert_eq!(at("busy"), busy);
    assert_eq!(at("idle"), observed.map(|s| (s, 0.0)).collect::<Vec<_>>());
    assert_eq!(at("nobody"), []);
    // A minute that was observed in part says so, and its mean is of that part.
    let minutes = reader
        .series(&query("busy", MIDNIGHT, MIDNIGHT + 3660, 61))
        .expect("a series");
    let parts: Vec<_> = minutes
        .slots
        .iter()
        .map(|slot| (slot.observed, slot.got.mean))
        .collect();
    assert_eq!(parts, [(30, 5.0), (10, 5.0), (1, 5.0)]);
}

#[test]
fn services_are_listed_with_their_times() {
    let folder = folder();
    let mut history = history(&folder);
    for second in 0..200 {
        let name = if second < 100 { "first" } else { "second" };
        history.tick(&sent(MIDNIGHT + second, name, 1));
    }
    // Ends the last minute.
    history.tick(&Tick {
        second: MIDNIGHT + 240,
        points: Vec::new(),
    });
    let known = reader(&folder).services().expect("a list");
    let known: Vec<_> = known
        .into_iter()
        .map(|s| (s.name, s.first, s.last))
        .collect();
    let of = |name: &str, first, last| (name.to_owned(), MIDNIGHT + first, MIDNIGHT + last);
    assert_eq!(known, [of("first", 0, 99), of("second", 100, 199)]);
    assert_eq!(
        reader(&folder).range().expect("a range"),
        Some((MIDNIGHT, MIDNIGHT + 241))
    );
}

#[test]
fn names_that_cannot_be_kept_are_counted() {
    let folder = folder();
    let mut history = history(&folder);
    let mut tick = sent(MIDNIGHT, "good", 1);
    for name in [String::new(), "x".repeat(256)] {
        tick.points.push(point(&name, Resource::Send, sample(1)));
    }
    history.tick(&tick);
    assert_eq!(history.status().counters.dropped_points, 2);
    assert_eq!(
        seconds(&reader(&folder), "good", MIDNIGHT, MIDNIGHT + 1)
            .slots
            .len(),
        1
    );
}

#[test]
fn a_query_that_makes_no_sense_is_refused() {
    let folder = folder();
    let reader = reader(&folder);
    let why = |query: &Query| reader.series(query).expect_err("no answer").to_string();
    assert!(why(&query("a", 10, 10, 5)).contains("earlier start"));
    assert!(why(&query("a", 0, 10, 0)).contains("1 to 20000"));
    assert!(why(&query("a", 0, 10, 20_001)).contains("1 to 20000"));
    let absent = reader
        .series(&query("a", 0, 10, 5))
        .expect_err("nothing there");
    assert!(matches!(absent, Error::Absent { .. }), "{absent}");
    // Whatever the span is, it is cut to what there is.
    let mut history = history(&folder);
    history.tick(&sent(MIDNIGHT, "a", 1));
    let series = reader
        .series(&query("a", 0, u64::MAX, 5))
        .expect("a series");
    assert_eq!(means(&series), [(MIDNIGHT, 1.0)]);
    let later = reader
        .series(&query("a", MIDNIGHT + 50, u64::MAX, 5))
        .expect("a series");
    assert_eq!(later.slots, []);
}
