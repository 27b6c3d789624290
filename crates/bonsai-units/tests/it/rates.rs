//! Rates.

use super::refused;
use bonsai_units::{ParseError, Rate, Unit};
use proptest::prelude::*;

#[test]
fn every_form_of_a_rate_is_read_exactly() {
    for (text, milli, unit) in [
        ("10MB/s", 10_000_000_000, Unit::Bytes),
        ("10MiB/s", 10_485_760_000, Unit::Bytes),
        ("1.5GB/s", 1_500_000_000_000, Unit::Bytes),
        ("512B/s", 512_000, Unit::Bytes),
        ("1kB/s", 1_000_000, Unit::Bytes),
        ("1KiB/s", 1_024_000, Unit::Bytes),
        ("0.5GiB/s", 536_870_912_000, Unit::Bytes),
        ("0.1TB/s", 100_000_000_000_000, Unit::Bytes),
        ("0.0625TiB/s", 68_719_476_736_000, Unit::Bytes),
        ("80Mbit/s", 10_000_000_000, Unit::Bytes),
        ("2.5Gbit/s", 312_500_000_000, Unit::Bytes),
        ("100kbit/s", 12_500_000, Unit::Bytes),
        ("8Kibit/s", 1_024_000, Unit::Bytes),
        ("1Mibit/s", 131_072_000, Unit::Bytes),
        ("1bit/s", 125, Unit::Bytes),
        ("0.008kbit/s", 1_000, Unit::Bytes),
        ("0.000008Mbit/s", 1_000, Unit::Bytes),
        ("0.001B/s", 1, Unit::Bytes),
        ("1.001B/s", 1_001, Unit::Bytes),
        ("1.0010000000000000000000000B/s", 1_001, Unit::Bytes),
        ("0.0009765625KiB/s", 1_000, Unit::Bytes),
        ("000010MB/s", 10_000_000_000, Unit::Bytes),
        ("100GB/s", Rate::MAX_MILLI, Unit::Bytes),
        ("800Gbit/s", Rate::MAX_MILLI, Unit::Bytes),
        ("100/s", 100_000, Unit::Calls),
        ("0.5/s", 500, Unit::Calls),
        ("2000 /s", 2_000_000, Unit::Calls),
        ("100 calls/s", 100_000, Unit::Calls),
        ("1call/s", 1_000, Unit::Calls),
        ("0.001/s", 1, Unit::Calls),
        ("100000000000/s", Rate::MAX_MILLI, Unit::Calls),
        ("  10 MB / s\t", 10_000_000_000, Unit::Bytes),
    ] {
        let rate: Rate = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!((rate.milli(), rate.unit()), (milli, unit), "{text}");
        assert_eq!(rate.to_string().parse(), Ok(rate), "{text}");
    }
}

#[test]
fn every_refusal_of_a_rate_names_what_would_be_right() {
    type Kind = fn(&ParseError) -> bool;
    macro_rules! kind {
        ($variant:ident) => {
            (|e| matches!(e, ParseError::$variant { .. })) as Kind
        };
    }
    let cases: &[(&str, Kind, &[&str])] = &[
        ("", kind!(Empty), &["empty", "10MB/s"]),
        ("  ", kind!(Empty), &["empty", "10MB/s"]),
        (
            "10",
            kind!(BareNumber),
            &[
                "no unit",
                "bytes, bits or calls",
                "10MB/s, 80Mbit/s or 10/s",
            ],
        ),
        ("0", kind!(BareNumber), &["no unit"]),
        ("10MB", kind!(MissingPerSecond), &["write 10MB/s"]),
        ("1.5 Gbit", kind!(MissingPerSecond), &["write 1.5Gbit/s"]),
        ("5calls", kind!(MissingPerSecond), &["write 5calls/s"]),
        ("10MB/min", kind!(NotPerSecond), &["end it in /s"]),
        ("10/h", kind!(NotPerSecond), &["end it in /s"]),
        ("10MB/", kind!(NotPerSecond), &["end it in /s"]),
        ("10MB/s/s", kind!(NotPerSecond), &["end it in /s"]),
        ("10MB/sec", kind!(NotPerSecond), &["end it in /s"]),
        (
            "10MBps",
            kind!(PsSuffix),
            &["10MB/s for bytes", "10Mbit/s for bits"],
        ),
        (
            "10Mbps",
            kind!(PsSuffix),
            &["10MB/s for bytes", "10Mbit/s for bits"],
        ),
        ("1.5 Gibps", kind!(PsSuffix), &["1.5GiB/s", "1.5Gibit/s"]),
        ("7KBps", kind!(PsSuffix), &["7kB/s", "7kbit/s"]),
        ("9bps", kind!(PsSuffix), &["9B/s", "9bit/s"]),
        (
            "10Mb/s",
            kind!(BitOrByte),
            &["10MB/s for bytes", "10Mbit/s for bits"],
        ),
        ("10b/s", kind!(BitOrByte), &["10B/s", "10bit/s"]),
        (
            "10KB/s",
            kind!(AmbiguousKilo),
            &["kB for 1000", "KiB for 1024"],
        ),
        (
            "10KB",
            kind!(AmbiguousKilo),
            &["kB for 1000", "KiB for 1024"],
        ),
        (
            "10Kbit/s",
            kind!(AmbiguousKilo),
            &["kbit for 1000", "Kibit for 1024"],
        ),
        (
            "10M/s",
            kind!(PrefixAlone),
            &["10MB/s", "10Mbit/s", "2000/s"],
        ),
        ("10M", kind!(PrefixAlone), &["10MB/s", "10Mbit/s", "2000/s"]),
        (
            "10K/s",
            kind!(PrefixAlone),
            &["10kB/s", "10kbit/s", "2000/s"],
        ),
        (
            "10mB/s",
            kind!(UnknownUnit),
            &["unknown unit \"mB\"", "10MB/s"],
        ),
        ("10kiB/s", kind!(UnknownUnit), &["unknown unit \"kiB\""]),
        ("10PB/s", kind!(UnknownUnit), &["unknown unit \"PB\""]),
        (
            "10parsec/s",
            kind!(UnknownUnit),
            &["unknown unit \"parsec\""],
        ),
        ("10frames", kind!(UnknownUnit), &["unknown unit \"frames\""]),
        (
            "-5MB/s",
            kind!(Negative),
            &["negative", "a rate cannot be", "10MB/s"],
        ),
        ("-5", kind!(Negative), &["negative"]),
        ("0MB/s", kind!(Zero), &["lets nothing through", "0.001B/s"]),
        ("0.000/s", kind!(Zero), &["lets nothing through", "0.001/s"]),
        (
            "fast",
            kind!(NotANumber),
            &["plain decimal number", "10MB/s"],
        ),
        ("MB/s", kind!(NotANumber), &["plain decimal number"]),
        ("NaN/s", kind!(NotANumber), &["plain decimal number"]),
        ("inf", kind!(NotANumber), &["plain decimal number"]),
        ("+5/s", kind!(NotANumber), &["plain decimal number"]),
        ("1e6B/s", kind!(NotANumber), &["plain decimal number"]),
        ("1E+6B/s", kind!(NotANumber), &["plain decimal number"]),
        ("1.B/s", kind!(NotANumber), &["plain decimal number"]),
        (".5/s", kind!(NotANumber), &["plain decimal number"]),
        ("1.2.3B/s", kind!(NotANumber), &["plain decimal number"]),
        ("1,000B/s", kind!(NotANumber), &["plain decimal number"]),
        ("1_000B/s", kind!(NotANumber), &["plain decimal number"]),
        ("\u{661}B/s", kind!(NotANumber), &["plain decimal number"]),
        ("0.0009B/s", kind!(TooLow), &["too small", "0.001B/s"]),
        ("0.007bit/s", kind!(TooLow), &["too small", "0.001B/s"]),
        (
            "0.0000000000000000000000001/s",
            kind!(TooLow),
            &["too small", "0.001/s"],
        ),
        ("100.1GB/s", kind!(TooHigh), &["too large", "100GB/s"]),
        (
            "100000000000.0001B/s",
            kind!(TooHigh),
            &["too large", "100GB/s"],
        ),
        ("801Gbit/s", kind!(TooHigh), &["too large", "100GB/s"]),
        (
            "100000000001/s",
            kind!(TooHigh),
            &["too large", "100000000000/s"],
        ),
        (
            "99999999999999999999999999999999999999999999999TiB/s",
            kind!(TooHigh),
            &["100GB/s"],
        ),
        ("1.0005B/s", kind!(TooFine), &["too fine", "0.001B/s"]),
        ("1.0000000000000000000001TB/s", kind!(TooHigh), &["100GB/s"]),
        (
            "0.0100000000000000000001TB/s",
            kind!(TooFine),
            &["too fine"],
        ),
        ("0.3333333/s", kind!(TooFine), &["too fine", "0.001/s"]),
    ];
    for (text, is_kind, hints) in cases {
        refused::<Rate>(text, hints);
        let error = text.parse::<Rate>().unwrap_err();
        assert!(is_kind(&error), "{text:?}: {error:?}");
    }
}

#[test]
fn computed_rates_stay_in_range() {
    assert_eq!(Rate::bytes_per_sec(10_000_000).milli(), 10_000_000_000);
    assert_eq!(
        Rate::calls_per_sec(100),
        Rate::from_milli(100_000, Unit::Calls)
    );
    assert_eq!(Rate::bytes_per_sec(0).milli(), Rate::MIN_MILLI);
    assert_eq!(Rate::bytes_per_sec(u64::MAX).milli(), Rate::MAX_MILLI);
    assert_eq!(Rate::from_milli(0, Unit::Calls).milli(), Rate::MIN_MILLI);
    assert_eq!(
        Rate::from_milli(u64::MAX, Unit::Bytes).milli(),
        Rate::MAX_MILLI
    );
    assert!((Rate::from_milli(1_500, Unit::Calls).per_sec_f64() - 1.5).abs() < 1e-12);
}

#[test]
fn rates_are_printed_for_people_and_exactly() {
    for (text, storage, network, exact) in [
        ("10MB/s", "10 MB/s", "80 Mbit/s", "10MB/s"),
        ("80Mbit/s", "10 MB/s", "80 Mbit/s", "10MB/s"),
        ("10MiB/s", "10.5 MB/s", "83.9 Mbit/s", "10MiB/s"),
        ("1448B/s", "1.45 kB/s", "11.6 kbit/s", "1448B/s"),
        (
            "1.234567891MB/s",
            "1.23 MB/s",
            "9.88 Mbit/s",
            "1234567.891B/s",
        ),
        ("999.4kB/s", "999 kB/s", "8 Mbit/s", "999.4kB/s"),
        ("999.6kB/s", "1 MB/s", "8 Mbit/s", "999.6kB/s"),
        ("9.995kB/s", "10 kB/s", "80 kbit/s", "9995B/s"),
        ("100GB/s", "100 GB/s", "800 Gbit/s", "100GB/s"),
        ("1bit/s", "0.125 B/s", "1 bit/s", "0.125B/s"),
        ("0.001B/s", "0.001 B/s", "0.008 bit/s", "0.001B/s"),
        ("100/s", "100/s", "100/s", "100/s"),
        ("0.5/s", "0.5/s", "0.5/s", "0.5/s"),
        ("12.345/s", "12.3/s", "12.3/s", "12.345/s"),
        ("123456.789/s", "123457/s", "123457/s", "123456.789/s"),
    ] {
        let rate: Rate = text.parse().unwrap();
        let printed = (rate.storage(), rate.network(), rate.to_string());
        assert_eq!(
            printed,
            (storage.into(), network.into(), exact.into()),
            "{text}"
        );
    }
    assert_eq!(
        format!(
            "{:>8}|{:<8}|",
            Rate::calls_per_sec(5),
            Rate::bytes_per_sec(5)
        ),
        "     5/s|5B/s    |"
    );
}

/// Rates of every magnitude, round ones among them.
fn any_rate() -> impl Strategy<Value = Rate> {
    let milli = prop_oneof![
        Rate::MIN_MILLI..=Rate::MAX_MILLI,
        (0..47_u32, 0..1_000_u64).prop_map(|(shift, low)| (1 << shift) | low),
        (0..15_u32, 1..1_000_u64).prop_map(|(power, n)| n * 10_u64.pow(power)),
        (0..4_u32, 1..1_000_u64).prop_map(|(power, n)| (n * 1_000) << (10 * power)),
    ];
    (milli, prop_oneof![Just(Unit::Bytes), Just(Unit::Calls)])
        .prop_map(|(milli, unit)| Rate::from_milli(milli, unit))
}

/// The number before the unit and the factor of its prefix, for a text that was
/// printed for people.
fn approximate(text: &str) -> f64 {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap();
    let factor = match text[end..].trim_start().chars().next().unwrap() {
        'k' => 1e3,
        'M' => 1e6,
        'G' => 1e9,
        'T' => 1e12,
        _ => 1.0,
    };
    text[..end].parse::<f64>().unwrap() * factor
}

proptest! {
    #[test]
    fn display_is_read_back_to_the_same_rate(rate in any_rate()) {
        prop_assert_eq!(rate.to_string().parse(), Ok(rate));
    }

    #[test]
    fn what_people_see_is_right_to_three_digits(rate in any_rate()) {
        let exact = rate.per_sec_f64();
        // Half of the last of three digits, or of a thousandth.
        let tolerance = |x: f64| (x * 0.005).max(0.0005) * (1.0 + 1e-9);
        prop_assert!((approximate(&rate.storage()) - exact).abs() <= tolerance(exact), "{}", rate.storage());
        if rate.unit() == Unit::Bytes {
            let bits = exact * 8.0;
            prop_assert!((approximate(&rate.network()) - bits).abs() <= tolerance(bits), "{}", rate.network());
        }
    }

    #[test]
    fn decimals_are_exact(whole in 0..95_000_u64, thousandths in 0..1_000_u64, prefix in 0..3_usize) {
        prop_assume!(whole + thousandths > 0);
        let (name, factor) = [("", 1), ("k", 1_000), ("Mi", 1 << 20)][prefix];
        let rate: Rate = format!("{whole}.{thousandths:03}{name}B/s").parse().unwrap();
        prop_assert_eq!(rate.milli(), (whole * 1_000 + thousandths) * factor);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[-+0-9.,eE/ kKMGTPibBitps\u{b5}calmnh:=]{0,24}") {
        if let Ok(rate) = text.parse::<Rate>() {
            prop_assert!((Rate::MIN_MILLI..=Rate::MAX_MILLI).contains(&rate.milli()));
            prop_assert_eq!(rate.to_string().parse(), Ok(rate));
        }
    }
}
