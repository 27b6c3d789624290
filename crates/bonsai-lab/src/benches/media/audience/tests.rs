use super::*;

const MS: u64 = 1_000_000;

/// Twice a second, so many bytes a second for all: viewers come for a second and leave after `seconds`.
pub(in crate::benches::media) fn points(viewers: u32, rate: u64, seconds: u64) -> Vec<Point> {
    let point = |half: u64| Point {
        at_ns: half * 500 * MS,
        playing: if (2..seconds * 2).contains(&half) {
            viewers
        } else {
            viewers / 2
        },
        // A bucket that was full at the beginning.
        bytes: rate * half / 2 + 50_000,
    };
    (0..seconds * 2 + 1).map(point).collect()
}

/// Four seconds of a track that is on time, or two seconds behind at their end.
pub(in crate::benches::media) fn track(kind: &str, lag_s: f64) -> Track {
    let broken = if lag_s > 1.0 {
        vec!["lag".to_owned(), "pace".to_owned()]
    } else {
        Vec::new()
    };
    // 250 packets of a thousand bytes with their headers for each second of media.
    let packets = if lag_s > 1.0 { 500 } else { 1_000 };
    Track {
        kind: kind.to_owned(),
        expected: packets,
        received: packets,
        bytes: packets * (1_000 - HEADER),
        elapsed_ns: 4_000 * MS,
        media_ns: 4e9 - lag_s * 1e9,
        gap_max_ns: 40 * MS,
        lag_max_ns: lag_s * 1e9,
        pace: 1.0 - lag_s / 4.0,
        broken,
        paper: true,
        ..Track::default()
    }
}

#[test]
fn the_steady_rate_leaves_out_who_comes_and_goes() {
    let found = steady(&points(50, 10_000_000, 8), 50).expect("steady");
    assert_eq!((found.from_ns, found.to_ns), (2_000 * MS, 7_500 * MS));
    assert!((found.rate - 1e7).abs() < 1.0, "{found:?}");
    assert_eq!(steady(&points(50, 10_000_000, 3), 50), None, "too short");
    assert_eq!(
        steady(&points(50, 10_000_000, 8), 51),
        None,
        "somebody failed"
    );
    assert_eq!(steady(&[], 1), None);
}

#[test]
fn slow_motion_is_top_quality_by_the_papers_criteria_alone() {
    let viewer = |lag| Viewer {
        failure: None,
        tracks: vec![track("video", lag), track("audio", 0.0)],
    };
    let failed = Viewer {
        failure: Some("SETUP: 453".to_owned()),
        tracks: Vec::new(),
    };
    let mut seen = Seen {
        viewers: vec![viewer(0.0), viewer(2.0), failed],
        ..Seen::default()
    };
    let expected = Quality {
        all: 3,
        paper: 2,
        honest: 1,
    };
    assert_eq!(seen.quality(), expected);
    assert_eq!(seen.short_of(), "lag 1, pace 1");
    assert_eq!(
        seen.failures().as_deref(),
        Some("1 of 3 viewers failed: SETUP: 453")
    );
    assert!(!seen.is_at_full_rate());
    assert!((seen.lag_s() - 2.0).abs() < 1e-9 && (seen.pace() - 0.5).abs() < 1e-9);
    seen.viewers.truncate(1);
    assert!(seen.is_at_full_rate());
    // Two tracks of a million bytes each in four seconds.
    let full = seen.full_rate().expect("a rate");
    assert!((full - 5e5).abs() < 1.0, "{full}");
    let (least, most) = seen.spread();
    assert!((least - 5e5).abs() < 1.0 && (most - least).abs() < 1.0);
}

#[test]
fn a_client_that_drops_packets_says_nothing_of_the_server() {
    let mut seen = Seen {
        elapsed_s: 2.0,
        cpu_s: 0.5,
        ..Seen::default()
    };
    assert_eq!(seen.own_fault(), None);
    seen.busiest = 0.9;
    assert!(seen.own_fault().expect("doubt").contains("90 %"));
    seen.dropped_here = 3;
    assert!(
        seen.own_fault()
            .expect("doubt")
            .starts_with("void: 3 packets")
    );
    let sum = Seen::of_all(vec![seen.clone(), seen]);
    assert_eq!(sum.dropped_here, 6);
    assert!((sum.busiest - 0.5).abs() < 1e-9, "{}", sum.busiest);
}
