//! What cannot be is refused in one sentence.

use bonsai_media::adapt::{Error, Ladder, Movie, Period, Rule, Settings, Trace, simulate};

fn period(duration_ms: f64, bandwidth_kbps: f64, latency_ms: f64) -> Period {
    Period {
        duration_ms,
        bandwidth_kbps,
        latency_ms,
    }
}

fn film() -> Movie {
    Movie::new(2_000.0, vec![500.0, 1_000.0], vec![vec![1e6, 2e6]; 4]).expect("a film")
}

#[test]
fn a_film_that_cannot_be_is_refused() {
    let cases = [
        (
            Movie::new(0.0, vec![1.0], vec![vec![1.0]]),
            "a segment lasts 0 ms: it has to be from 1 ms to a day",
        ),
        (
            Movie::new(-3.0, vec![1.0], vec![vec![1.0]]),
            "a segment lasts -3 ms: it has to be from 1 ms to a day",
        ),
        (
            Movie::new(f64::NAN, vec![1.0], vec![vec![1.0]]),
            "a segment lasts NaN ms: it has to be from 1 ms to a day",
        ),
        (
            Movie::new(2e3, vec![], vec![vec![]]),
            "there is no quality: at least one bitrate is needed",
        ),
        (
            Movie::new(2e3, vec![1.0], vec![]),
            "there is no segment: at least one is needed",
        ),
        (
            Movie::new(2e3, vec![1.0, 0.0], vec![vec![1.0]]),
            "quality 1 has 0 kbit/s: it has to be from 0.001 to 1000000000",
        ),
        (
            Movie::new(2e3, vec![2.0, 2.0], vec![vec![1.0, 1.0]]),
            "quality 1 has 2 kbit/s, and the one before 2: bitrates have to ascend",
        ),
        (
            Movie::new(2e3, vec![1.0, 2.0], vec![vec![1.0, 1.0], vec![1.0]]),
            "segment 1 has 1 sizes: it has to have one for each of 2 qualities",
        ),
        (
            Movie::new(2e3, vec![1.0], vec![vec![f64::INFINITY]]),
            "segment 0 has inf bits in quality 0: it has to have from 1 to 1000000000000",
        ),
    ];
    for (film, sentence) in cases {
        assert_eq!(film.expect_err("refused").to_string(), sentence);
    }
}

#[test]
fn segments_that_do_not_last_are_refused() {
    let ladder = Ladder::new(2_000.0, vec![500.0], None).expect("a ladder");
    let error = ladder.clone().with_durations(vec![2_000.0, 0.0]);
    let sentence = "segment 1 lasts 0 ms: it has to be from 1 ms to a day";
    assert_eq!(error.expect_err("refused").to_string(), sentence);
    assert_eq!(ladder.with_durations(vec![]), Err(Error::NoSegments));
}

#[test]
fn a_network_that_cannot_be_is_refused() {
    let cases = [
        (
            Trace::new(vec![]),
            "the network's trace is empty: at least one period is needed",
        ),
        (
            Trace::new(vec![period(1.0, 1.0, 0.0), period(0.0, 1.0, 0.0)]),
            "period 1 of the network has a duration_ms of 0: it has to be from 0.001 to 1000000000000",
        ),
        (
            Trace::new(vec![period(1.0, -1.0, 0.0)]),
            "period 0 of the network has a bandwidth_kbps of -1: it has to be from 0 to 1000000000",
        ),
        (
            Trace::new(vec![period(1.0, 1.0, f64::NAN)]),
            "period 0 of the network has a latency_ms of NaN: it has to be from 0 to 1000000000",
        ),
        (
            Trace::new(vec![period(1.0, 0.0, 0.0)]),
            "the network never delivers anything: at least one period has to have a bandwidth above 0",
        ),
    ];
    for (trace, sentence) in cases {
        assert_eq!(trace.expect_err("refused").to_string(), sentence);
    }
}

#[test]
fn what_is_written_is_checked_as_it_is_read() {
    let film =
        r#"{"segment_duration_ms": 3000, "bitrates_kbps": [2, 1], "segment_sizes_bits": [[1, 1]]}"#;
    let error = serde_json::from_str::<Movie>(film)
        .expect_err("refused")
        .to_string();
    assert!(error.contains("bitrates have to ascend"), "{error}");
    let trace = r#"[{"duration_ms": -1, "bandwidth_kbps": 1, "latency_ms": 1}]"#;
    let error = serde_json::from_str::<Trace>(trace)
        .expect_err("refused")
        .to_string();
    assert!(error.contains("a duration_ms of -1"), "{error}");
    assert!(serde_json::from_str::<Trace>("{}").is_err());
    assert!(serde_json::from_str::<Settings>(r#"{"rule": "bola", "bufer_ms": 1}"#).is_err());
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let trace = Trace::new(vec![period(1e3, 1e3, 10.0)]).expect("a network");
    let with = |change: fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        simulate(&film(), &trace, &settings)
            .expect_err("refused")
            .to_string()
    };
    assert_eq!(
        with(|settings| settings.buffer_ms = 3_999.0),
        "buffer_ms is 3999: it has to be from 4000 to 1000000000000"
    );
    assert_eq!(
        with(|settings| settings.start_ms = 24_000.0),
        "start_ms is 24000: it has to be from 0 to 23000"
    );
    assert_eq!(
        with(|settings| settings.half_lives_ms = [3_000.0, f64::NAN]),
        "half_lives_ms is NaN: it has to be from 1 to 1000000000"
    );
    assert_eq!(
        with(|settings| settings.safety = 0.0),
        "safety is 0: it has to be from 0.01 to 1"
    );
    assert_eq!(
        with(|settings| settings.gamma_p = 0.5),
        "gamma_p is 0.5: it has to be from 1 to 1000000"
    );
    assert_eq!(
        "bba".parse::<Rule>().expect_err("refused").to_string(),
        "there is no rule \"bba\": it has to be throughput, bola, bolae, dynamic or davvi"
    );
}

#[test]
fn a_network_that_takes_for_ever_is_given_up() {
    let trace = Trace::new(vec![period(0.001, 0.0, 0.0), period(0.001, 0.001, 0.0)]);
    let error = simulate(&film(), &trace.expect("a network"), &Settings::default());
    let sentence = "the network is too slow for segment 0: 10000000 steps did not bring it";
    assert_eq!(error.expect_err("given up").to_string(), sentence);
}
