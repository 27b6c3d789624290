use std::time::Duration;

use super::*;

const CLOCK: u32 = 90_000;
const MS: u64 = 1_000_000;

fn packet(at_ms: u64, sequence: u16, picture: u32) -> Packet {
    Packet {
        at_ns: at_ms * MS,
        ssrc: 7,
        sequence,
        timestamp: picture * 3600,
        payload: 1000,
    }
}

/// Ten seconds of 25 pictures of four packets each, which come every ten milliseconds.
fn film() -> Vec<Packet> {
    let one = |number: u16| packet(u64::from(number) * 10, number, u32::from(number / 4));
    (0..1000).map(one).collect()
}

fn metered(packets: &[Packet]) -> StreamReport {
    let mut meter = Meter::new(CLOCK, 0);
    packets.iter().for_each(|one| meter.arrive(one));
    meter.report(meter.last_ns().unwrap_or(0))
}

fn judged(report: &StreamReport) -> Vec<Criterion> {
    Thresholds::default().judge(report).broken
}

#[test]
fn a_film_that_comes_as_it_should_is_of_top_quality() {
    let report = metered(&film());
    assert_eq!(
        (report.expected, report.received, report.lost),
        (1000, 1000, 0)
    );
    assert_eq!((report.gap_max_ns, report.gap_p50_ns / MS), (10 * MS, 10));
    assert_eq!(report.bytes, 1_000_000);
    assert!((report.pace - 1.0).abs() < 0.01, "{report:?}");
    assert_eq!(judged(&report), []);
}

#[test]
fn what_is_lost_doubled_or_late_is_counted() {
    let mut film = film();
    film.swap(500, 503);
    film.insert(600, film[590]);
    film.drain(100..103);
    let report = metered(&film);
    assert_eq!(
        (report.expected, report.received, report.lost),
        (1000, 998, 3)
    );
    // Three of the four that were in turn come after the one that overtook them.
    assert_eq!((report.duplicates, report.reordered), (1, 3));
    assert_eq!(
        (report.bursts.bursts, report.bursts.burst_density),
        (1, 1.0)
    );
    assert_eq!(judged(&report), [Criterion::Loss, Criterion::Reordering]);
}

#[test]
fn pictures_in_another_order_than_they_are_shown_in_are_of_top_quality() {
    let mut film = film();
    // As x264 orders three B pictures: 0 4 2 1 3 8 6 5 7.
    for one in &mut film[4..] {
        let picture = one.timestamp / 3600 - 1;
        let (group, place) = (picture / 4 * 4, picture % 4);
        one.timestamp = 3600 * (group + [4, 2, 1, 3][usize::try_from(place).expect("small")]);
    }
    let report = metered(&film);
    assert!(report.jitter_pictures.max_ns > 50e6, "{report:?}");
    assert!(report.jitter_decoded.max_ns < 1.0, "{report:?}");
    assert_eq!(judged(&report), []);
    // What is late is seen in any order.
    for one in &mut film[400..] {
        one.at_ns += 300 * MS * u64::from(one.timestamp / 3600 % 3 == 0);
    }
    film.sort_by_key(|one| one.sequence);
    let report = metered(&film);
    assert!(judged(&report).contains(&Criterion::Jitter), "{report:?}");
}

#[test]
fn slow_motion_passes_the_papers_thresholds_and_not_all() {
    let mut film = film();
    for one in &mut film {
        one.at_ns = one.at_ns * 17 / 10;
    }
    let report = metered(&film);
    let verdict = Thresholds::default().judge(&report);
    assert!(verdict.paper && !verdict.honest, "{verdict:?}");
    assert_eq!(verdict.broken, [Criterion::Lag, Criterion::Pace]);
    assert!((report.lag_ns / 1e9 - 7.0).abs() < 0.1, "{report:?}");
}

#[test]
fn a_short_look_at_sound_in_long_packets_tells_slow_motion_from_none() {
    // Four frames of 1024 at 48 kHz in each packet, which come up to 20 ms late.
    let each_ns = 4.0 * 1024.0 / 48_000.0 * 1e9;
    for (speed, expected) in [(1.0, &[][..]), (0.9, &[Criterion::Pace])] {
        for seconds in [1_u64, 3, 8] {
            let mut meter = Meter::new(48_000, 0);
            for number in 0_u16.. {
                let late_ns = u64::from(number % 3) * 10 * MS;
                let due = Duration::from_secs_f64(f64::from(number) * each_ns / speed / 1e9);
                let due = u64::try_from(due.as_nanos()).expect("small") + late_ns;
                if due > seconds * 1000 * MS {
                    break;
                }
                meter.arrive(&Packet {
                    at_ns: due,
                    ssrc: 7,
                    sequence: number,
                    timestamp: u32::from(number) * 4096,
                    payload: 700,
                });
            }
            let report = meter.report(seconds * 1000 * MS);
            assert_eq!(judged(&report), expected, "{seconds} s: {report:?}");
        }
    }
}

#[test]
fn a_pause_is_a_gap_also_at_the_end() {
    let mut meter = Meter::new(CLOCK, 0);
    film().iter().for_each(|one| meter.arrive(one));
    let last = meter.last_ns().expect("some");
    let report = meter.report(last + 3000 * MS);
    assert_eq!(report.gap_max_ns, 3000 * MS);
    assert_eq!(
        judged(&report),
        [Criterion::Gap, Criterion::Lag, Criterion::Pace]
    );
}

#[test]
fn a_sender_that_starts_again_loses_nothing_in_between() {
    let (mut film, again) = (film(), film());
    for (ssrc, jump) in [(7, 30_000), (8, 500)] {
        let mut both = film.clone();
        both.extend(again.iter().map(|one| Packet {
            at_ns: one.at_ns + 10_000 * MS,
            ssrc,
            sequence: one.sequence + jump,
            timestamp: one.timestamp + 123_456_789,
            ..*one
        }));
        let report = metered(&both);
        // The first of them could have been a stray.
        assert_eq!((report.received, report.strays), (1999, 1));
        assert_eq!((report.lost, report.restarts), (0, 1));
        assert!(
            report.lag_max_ns < 50e6 && report.jitter_packets.max_ns < 20e6,
            "{report:?}"
        );
    }
    // One packet of somebody else is nothing.
    film.insert(
        300,
        Packet {
            ssrc: 9,
            ..film[300]
        },
    );
    let report = metered(&film);
    assert_eq!((report.received, report.strays, report.lost), (1000, 1, 0));
}

#[test]
fn nothing_is_no_quality() {
    let report = metered(&[]);
    assert_eq!(report.startup_ns, None);
    assert_eq!(judged(&report), [Criterion::Nothing]);
}

#[test]
fn times_may_go_back() {
    // Receive timestamps of two sockets, or of a clock that was set.
    let mut film = film();
    film[500].at_ns = 0;
    let report = metered(&film);
    assert_eq!((report.received, report.lost), (1000, 0));
    assert_eq!(report.gap_max_ns, 20 * MS);
}

#[test]
fn the_last_gap_counts_everywhere() {
    let mut meter = Meter::new(CLOCK, 0);
    film().iter().for_each(|one| meter.arrive(one));
    let last = meter.last_ns().expect("packets");
    for (silent_ms, gaps) in [(0, 0), (400, 0), (401, 1), (20_000, 1)] {
        let report = meter.report(last + silent_ms * MS);
        assert_eq!(report.gaps_over_400_ms, gaps, "{silent_ms}");
        assert_eq!(report.gap_max_ns > 400 * MS, gaps == 1, "{silent_ms}");
    }
}
