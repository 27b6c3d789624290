//! Bytes, durations and bursts.

use super::refused;
use bonsai_units::{
    Burst, BurstError, Bytes, DEFAULT_BURST, Rate, Unit, format_duration_ns, parse_duration,
};
use proptest::prelude::*;
use std::time::Duration;

const NS_PER_S: u64 = 1_000_000_000;

#[test]
fn bytes_are_read_and_printed() {
    for (text, bytes, exact, human) in [
        ("1MB", 1_000_000, "1MB", "1 MB"),
        ("64KiB", 65_536, "64KiB", "65.5 kB"),
        ("1448B", 1_448, "1448B", "1.45 kB"),
        ("1.5kB", 1_500, "1.5kB", "1.5 kB"),
        ("2 GiB", 2_147_483_648, "2GiB", "2.15 GB"),
        ("0B", 0, "0B", "0 B"),
        ("999999B", 999_999, "999999B", "1 MB"),
        (
            "16777215TiB",
            18_446_742_974_197_923_840,
            "16777215TiB",
            "18446743 TB",
        ),
        (
            "18446744073709551615B",
            u64::MAX,
            "18446744073709551615B",
            "18446744 TB",
        ),
    ] {
        let read: Bytes = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(read, Bytes(bytes), "{text}");
        assert_eq!(read.to_string(), exact, "{text}");
        assert_eq!(read.human(), human, "{text}");
    }
}

#[test]
fn bytes_are_refused_with_what_would_be_right() {
    for (text, hints) in [
        ("", &["empty", "1MB"][..]),
        ("64", &["no unit", "bytes, kB or KiB", "64KiB"]),
        ("64KB", &["kB for 1000", "KiB for 1024"]),
        ("64Kb", &["kB for 1000", "KiB for 1024"]),
        ("1M", &["unknown unit \"M\"", "1MB"]),
        ("1Mbit", &["unknown unit \"Mbit\"", "1MB"]),
        ("1MB/s", &["is a rate", "1MB"]),
        ("-1MB", &["negative", "1MB"]),
        ("big", &["plain decimal number", "1MB"]),
        ("0.5B", &["too fine", "1B"]),
        ("1.0001kB", &["too fine", "1B"]),
        (
            "18446744073709551616B",
            &["too large", "18446744073709551615B"],
        ),
        ("16777216TiB", &["too large"]),
    ] {
        refused::<Bytes>(text, hints);
    }
}

#[test]
fn durations_are_read_and_printed() {
    for (text, ns) in [
        ("0s", 0),
        ("1ns", 1),
        ("500us", 500_000),
        ("500\u{b5}s", 500_000),
        ("500\u{3bc}s", 500_000),
        ("10ms", 10_000_000),
        ("1.5 s", 1_500_000_000),
        ("2min", 120 * NS_PER_S),
        ("0.5h", 1_800 * NS_PER_S),
    ] {
        assert_eq!(parse_duration(text), Ok(Duration::from_nanos(ns)), "{text}");
    }
    for (text, hint) in [
        ("", "empty"),
        ("10", "microseconds, milliseconds or seconds"),
        ("10m", "unknown unit \"m\""),
        ("10MS", "unknown unit \"MS\""),
        ("10d", "unknown unit \"d\""),
        ("10/s", "is a rate"),
        ("-1s", "negative"),
        ("soon", "plain decimal number"),
        ("0.1ns", "too fine"),
        ("600000000h", "too large"),
    ] {
        let sentence = parse_duration(text).unwrap_err().to_string();
        assert!(sentence.contains(hint), "{text:?}: {sentence}");
    }
    for (ns, text) in [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1 us"),
        (1_234_567, "1.23 ms"),
        (999_600, "1 ms"),
        (12_345_678, "12.3 ms"),
        (75 * NS_PER_S, "75 s"),
        (119 * NS_PER_S, "119 s"),
        (120 * NS_PER_S - 1, "2 min"),
        (150 * NS_PER_S, "2.5 min"),
        (7_200 * NS_PER_S, "2 h"),
        (3 * 86_400 * NS_PER_S, "3 d"),
        (u64::MAX, "213504 d"),
    ] {
        assert_eq!(format_duration_ns(ns), text, "{ns}");
    }
}

#[test]
fn bursts_are_read_and_printed() {
    for (text, burst, exact) in [
        ("10ms", Burst::Time(Duration::from_millis(10)), "10ms"),
        ("1s", Burst::Time(Duration::from_secs(1)), "1s"),
        ("1min", Burst::Time(Duration::from_secs(60)), "60s"),
        ("500us", Burst::Time(Duration::from_micros(500)), "500us"),
        ("1.5ms", Burst::Time(Duration::from_micros(1_500)), "1.5ms"),
        ("1MB", Burst::Bytes(Bytes(1_000_000)), "1MB"),
        ("64 KiB", Burst::Bytes(Bytes(65_536)), "64KiB"),
        ("1TB", Burst::Bytes(Bytes(1_000_000_000_000)), "1TB"),
        ("20 calls", Burst::Calls(20), "20calls"),
        ("20calls", Burst::Calls(20), "20calls"),
        ("1call", Burst::Calls(1), "1call"),
    ] {
        assert_eq!(text.parse(), Ok(burst), "{text}");
        assert_eq!(burst.to_string(), exact, "{text}");
    }
    assert_eq!(Burst::default(), Burst::Time(DEFAULT_BURST));
    assert_eq!(Burst::default().to_string(), "20ms");
}

#[test]
fn bursts_are_refused_with_what_would_be_right() {
    for (text, hints) in [
        ("", &["empty", "10ms, 1MB or 20calls"][..]),
        (
            "20",
            &["no unit", "time, bytes or calls", "10ms, 1MB or 20calls"],
        ),
        ("1MB/s", &["is a rate", "a burst", "1MB"]),
        ("1KB", &["kB for 1000", "KiB for 1024"]),
        ("1Mbit", &["unknown unit \"Mbit\"", "1MB"]),
        ("5frames", &["unknown unit \"frames\"", "20calls"]),
        ("0B", &["lets nothing through", "1B"]),
        ("0ms", &["lets nothing through", "1ns"]),
        ("0calls", &["lets nothing through", "1call"]),
        ("0.5B", &["too small", "1B"]),
        ("0.0001kB", &["too small", "1B"]),
        ("0.9calls", &["too small", "1call"]),
        ("1.5calls", &["too fine", "1call"]),
        ("0.5ns", &["too small", "1ns"]),
        ("60.1s", &["too large", "60s"]),
        ("2min", &["too large", "60s"]),
        ("1.1TB", &["too large", "1TB"]),
        ("1TiB", &["too large", "1TB"]),
        ("1000000000001calls", &["too large", "1000000000000calls"]),
        ("-1MB", &["negative", "1MB"]),
        ("lots", &["plain decimal number"]),
    ] {
        refused::<Burst>(text, hints);
    }
}

#[test]
fn bursts_have_units_of_their_rate() {
    for (burst, rate, units) in [
        ("10ms", "10MB/s", 100_000),
        ("10ms", "80Mbit/s", 100_000),
        ("1s", "1.5B/s", 1),
        ("10ms", "1B/s", 1),
        ("1ns", "0.001/s", 1),
        ("60s", "100GB/s", 6_000_000_000_000),
        ("10ms", "100/s", 1),
        ("30ms", "100/s", 3),
        ("1MB", "1B/s", 1_000_000),
        ("1B", "100GB/s", 1),
        ("20calls", "0.5/s", 20),
    ] {
        let (parsed, rate): (Burst, Rate) = (burst.parse().unwrap(), rate.parse().unwrap());
        assert_eq!(parsed.units(rate), Ok(units), "{burst} at {rate}");
    }
}

#[test]
fn bursts_that_do_not_fit_their_rate_are_refused() {
    let bytes = Rate::bytes_per_sec(1_000);
    let calls = Rate::calls_per_sec(10);
    let sentence = Burst::Bytes(Bytes(5)).units(calls).unwrap_err().to_string();
    assert!(
        sentence.contains("5B") && sentence.contains("10/s"),
        "{sentence}"
    );
    assert!(
        sentence.contains("in calls or as a time such as 10ms"),
        "{sentence}"
    );
    let sentence = Burst::Calls(5).units(bytes).unwrap_err().to_string();
    assert!(
        sentence.contains("in bytes or as a time such as 10ms"),
        "{sentence}"
    );
    for (burst, rate) in [
        (Burst::Time(Duration::ZERO), bytes),
        (Burst::Bytes(Bytes(0)), bytes),
        (Burst::Calls(0), calls),
    ] {
        assert!(
            matches!(burst.units(rate), Err(BurstError::TooSmall { .. })),
            "{burst}"
        );
    }
    for (burst, rate) in [
        (Burst::Time(Duration::from_nanos(60 * NS_PER_S + 1)), bytes),
        (Burst::Time(Duration::MAX), calls),
        (Burst::Bytes(Bytes(1_000_000_000_001)), bytes),
        (Burst::Calls(u64::MAX), calls),
    ] {
        assert!(
            matches!(burst.units(rate), Err(BurstError::TooLarge { .. })),
            "{burst}"
        );
    }
}

proptest! {
    #[test]
    fn bytes_are_read_back(bytes in prop_oneof![any::<u64>(), (0..64_u32).prop_map(|s| 1 << s)]) {
        prop_assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)));
    }

    #[test]
    fn bursts_are_read_back(burst in super::limits::any_burst()) {
        prop_assert_eq!(burst.to_string().parse(), Ok(burst));
    }

    #[test]
    fn a_burst_in_time_is_what_the_rate_gives(
        ns in 1..=60 * NS_PER_S,
        milli in Rate::MIN_MILLI..=Rate::MAX_MILLI,
    ) {
        let units = Burst::Time(Duration::from_nanos(ns)).units(Rate::from_milli(milli, Unit::Bytes)).unwrap();
        let fractions = u128::from(ns) * u128::from(milli);
        let one = 1_000_000_000_000_u128;
        prop_assert!(units >= 1);
        prop_assert!(u128::from(units) * one <= fractions.max(one));
        prop_assert!(u128::from(units + 1) * one > fractions);
    }

    #[test]
    fn durations_for_people_are_right_to_three_digits(ns in any::<u64>(), shift in 0..64_u32) {
        let ns = ns >> shift;
        let text = format_duration_ns(ns);
        let (number, unit) = text.split_once(' ').unwrap();
        let ns_per = match unit {
            "ns" => 1.0, "us" => 1e3, "ms" => 1e6, "s" => 1e9,
            "min" => 60e9, "h" => 3600e9, _ => 86400e9,
        };
        let printed = number.parse::<f64>().unwrap() * ns_per;
        prop_assert!((printed - ns as f64).abs() <= ns as f64 * 0.005 * (1.0 + 1e-9), "{}", text);
    }

    #[test]
    fn no_text_makes_the_parsers_panic(text in "[-+0-9.,eE/ kKMGTPibBitps\u{b5}calmnh:=]{0,24}") {
        if let Ok(bytes) = text.parse::<Bytes>() {
            prop_assert_eq!(bytes.to_string().parse(), Ok(bytes));
        }
        if let Ok(burst) = text.parse::<Burst>() {
            prop_assert_eq!(burst.to_string().parse(), Ok(burst));
        }
        if let Ok(time) = parse_duration(&text) {
            prop_assert!(time.as_nanos() <= u128::from(u64::MAX));
        }
    }
}
