//! Limits as they are written.

use super::refused;
use bonsai_units::{Burst, Bytes, LimitError, LimitSpec, Rate, Setting, SettingError, Unit};
use proptest::prelude::*;
use std::time::Duration;

#[test]
fn every_form_of_a_limit_is_read() {
    let bytes = |n| Rate::bytes_per_sec(n);
    for (text, name, setting) in [
        (
            "read=10MB/s",
            "read",
            Setting::Rate {
                rate: bytes(10_000_000),
                burst: None,
            },
        ),
        ("send=unlimited", "send", Setting::Unlimited),
        (
            "open=100/s",
            "open",
            Setting::Rate {
                rate: Rate::calls_per_sec(100),
                burst: None,
            },
        ),
        (
            "write=5MB/s:burst=1MB",
            "write",
            Setting::Rate {
                rate: bytes(5_000_000),
                burst: Some(Burst::Bytes(Bytes(1_000_000))),
            },
        ),
        (
            " pwrite64 = 1kB/s : burst = 10ms ",
            "pwrite64",
            Setting::Rate {
                rate: bytes(1_000),
                burst: Some(Burst::Time(Duration::from_millis(10))),
            },
        ),
        (
            "accept4=50/s:burst=20 calls",
            "accept4",
            Setting::Rate {
                rate: Rate::calls_per_sec(50),
                burst: Some(Burst::Calls(20)),
            },
        ),
        ("a_9@b.c*/-=unlimited", "a_9@b.c*/-", Setting::Unlimited),
    ] {
        let read: LimitSpec = text.parse().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(
            read,
            LimitSpec {
                name: name.into(),
                setting
            },
            "{text}"
        );
        assert_eq!(read.to_string().parse(), Ok(read), "{text}");
    }
}

#[test]
fn every_refusal_of_a_limit_names_the_text_and_the_form() {
    const FORM: &str = "NAME=RATE[:burst=BURST]";
    for (text, hints) in [
        ("", &[FORM, "no ="][..]),
        ("read", &[FORM, "no ="]),
        ("read:10MB/s", &[FORM, "no ="]),
        ("=10MB/s", &[FORM, "no name"]),
        (" =unlimited", &["no name"]),
        ("Read=10MB/s", &["'R'", "a-z 0-9"]),
        ("re ad=10MB/s", &["' '", "a-z 0-9"]),
        ("l\u{e9}s=10MB/s", &["'\u{e9}'", "a-z 0-9"]),
        ("@/srv=10MB/s", &["no name before the @"]),
        ("re\u{e9}d@/srv=10MB/s", &["'\u{e9}'", "a-z 0-9"]),
        ("read@=10MB/s", &["nothing behind the @", "read@/srv/**"]),
        ("read@\"\"=10MB/s", &["nothing behind the @"]),
        ("read@\"/srv=10MB/s", &["quote", "a quote within as two"]),
        ("read@\"/srv\"x=10MB/s", &["quote"]),
        ("read@/s\trv=10MB/s", &["control character '\\t'"]),
        ("read@/srv", &[FORM, "no ="]),
        ("read@/srv:burst=1MB", &[FORM, "no ="]),
        ("read@/srv=10", &["\"10\" has no unit"]),
        ("read=", &[FORM, "empty", "10MB/s, or unlimited"]),
        ("read= ", &["empty"]),
        (
            "read=10",
            &[FORM, "\"10\" has no unit", "10MB/s, 80Mbit/s or 10/s"],
        ),
        ("read=0MB/s", &[FORM, "zero", "0.001B/s"]),
        ("read=10MB", &[FORM, "write 10MB/s"]),
        ("read==10MB/s", &["plain decimal number"]),
        ("read=unlimitd", &["neither a rate nor unlimited"]),
        ("read=Unlimited", &["neither a rate nor unlimited"]),
        (
            "read=unlimited:burst=1MB",
            &["unlimited takes no options", "burst=1MB"],
        ),
        ("read=10MB/s:", &["not an option", ":burst=10ms"]),
        (
            "read=10MB/s:1MB",
            &["\"1MB\" is not an option", ":burst=10ms"],
        ),
        ("read=10MB/s:brust=1MB", &["\"brust=1MB\" is not an option"]),
        ("read=10MB/s:burst=1MB:burst=2MB", &["given twice"]),
        ("read=10MB/s:burst=", &["empty", "10ms, 1MB or 20calls"]),
        (
            "read=10MB/s:burst=1000",
            &["\"1000\" has no unit", "10ms, 1MB or 20calls"],
        ),
        ("read=10MB/s:burst=0.5B", &["too small", "1B"]),
        ("read=10MB/s:burst=61s", &["too large", "60s"]),
        (
            "read=10MB/s:burst=5calls",
            &["5calls", "in bytes or as a time"],
        ),
        ("open=10/s:burst=1MB", &["1MB", "in calls or as a time"]),
    ] {
        // The text is quoted as it was given, blanks included.
        let sentence = super::refusal::<LimitSpec>(text);
        assert!(sentence.contains(&format!("limit {text:?}")), "{sentence}");
        for hint in hints {
            assert!(
                sentence.contains(hint),
                "{hint:?} is missing in: {sentence}"
            );
        }
    }
}

#[test]
fn what_narrows_a_limit_down_ends_at_the_last_equals_sign() {
    for (text, name, setting) in [
        ("read@/srv/**=5MB/s", "read@/srv/**", "5MB/s"),
        ("read@/a=b/c==5MB/s", "read@/a=b/c=", "5MB/s"),
        (
            " send @ [fd00::]/8 = 5MB/s : burst = 1MB",
            "send@[fd00::]/8",
            "5MB/s:burst=1MB",
        ),
        (
            "read@\"/a:burst=1\"=5MB/s:burst=1MB",
            "read@/a:burst=1",
            "5MB/s:burst=1MB",
        ),
        (
            "read@ \" /\"\"a\"\"=\" = unlimited",
            "read@ /\"a\"=",
            "unlimited",
        ),
        ("read@/a b@c=unlimited", "read@/a b@c", "unlimited"),
    ] {
        let read: LimitSpec = text.parse().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(
            (&*read.name, &*read.setting.to_string()),
            (name, setting),
            "{text}"
        );
        assert_eq!(read.to_string().parse(), Ok(read), "{text}");
    }
}

#[test]
fn a_reason_is_said_once() {
    let error = "read=10".parse::<LimitSpec>().unwrap_err();
    assert!(matches!(
        &error,
        LimitError::Setting {
            reason: SettingError::Rate(_),
            ..
        }
    ));
    assert_eq!(error.to_string().matches("has no unit").count(), 1);
    assert!(std::error::Error::source(&error).is_none());
}

#[test]
fn a_setting_is_read_without_a_name() {
    assert_eq!("unlimited".parse(), Ok(Setting::Unlimited));
    assert_eq!(
        "5MB/s:burst=1MB".parse::<Setting>().map(|s| s.to_string()),
        Ok("5MB/s:burst=1MB".into())
    );
    refused::<Setting>("", &["empty", "10MB/s, or unlimited"]);
    refused::<Setting>("none", &["neither a rate nor unlimited"]);
}

/// Every burst that a rate of its unit accepts.
pub(crate) fn any_burst() -> impl Strategy<Value = Burst> {
    let ns = prop_oneof![
        1..=60_000_000_000_u64,
        (0..10_u32, 1..60_u64).prop_map(|(p, n)| n * 10_u64.pow(p))
    ];
    let amount = prop_oneof![1..=1_000_000_000_000_u64, (0..39_u32).prop_map(|s| 1 << s)];
    prop_oneof![
        ns.prop_map(|ns| Burst::Time(Duration::from_nanos(ns))),
        amount.clone().prop_map(|n| Burst::Bytes(Bytes(n))),
        amount.prop_map(Burst::Calls),
    ]
}

#[test]
fn a_value_is_repeated_as_it_was_written() {
    for (text, value) in [
        ("send/stream= 2Mbit/s:burst=10ms ", "2Mbit/s:burst=10ms"),
        ("read@/a=b:burst=1=8Mbit/s", "8Mbit/s"),
        ("read@\"/a=5MB/s\"=unlimited", "unlimited"),
    ] {
        assert_eq!(LimitSpec::value_of(text), Some(value));
    }
    assert_eq!(LimitSpec::value_of("2Mbit/s"), None);
}

fn any_setting() -> impl Strategy<Value = Setting> {
    let rate = (Rate::MIN_MILLI..=Rate::MAX_MILLI, any::<bool>()).prop_map(|(milli, bytes)| {
        Rate::from_milli(milli, if bytes { Unit::Bytes } else { Unit::Calls })
    });
    let limited = (rate, proptest::option::of(any_burst())).prop_map(|(rate, burst)| {
        let burst = burst.filter(|burst| burst.units(rate).is_ok());
        Setting::Rate { rate, burst }
    });
    prop_oneof![1 => Just(Setting::Unlimited), 9 => limited]
}

proptest! {
    #[test]
    fn limits_are_read_back(
        name in "[a-z0-9_.*/-]{1,20}(@[a-z/*=\":@ \u{e9}]{0,9}(:burst=)?[a-z/=\" ]{1,9})?",
        setting in any_setting(),
    ) {
        let limit = LimitSpec { name, setting };
        prop_assert_eq!(limit.to_string().parse(), Ok(limit));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[a-z0-9=:. /KMB@\"\u{e9}]{0,32}") {
        if let Ok(limit) = text.parse::<LimitSpec>() {
            prop_assert_eq!(limit.to_string().parse(), Ok(limit));
        }
    }
}
