//! Times as dates.

use bonsai_units::{format_date, format_utc};

#[test]
fn days_are_those_of_the_calendar() {
    for (days, text) in [
        (0, "1970-01-01"),
        (59, "1970-03-01"),
        (11_016, "2000-02-29"),
        (11_017, "2000-03-01"),
        (20_454, "2026-01-01"),
        (47_540, "2100-02-28"),
        (47_541, "2100-03-01"),
    ] {
        assert_eq!(format_date(days * 86_400), text);
        assert_eq!(format_date(days * 86_400 + 86_399), text);
    }
}

#[test]
fn times_are_to_the_second() {
    for (seconds, text) in [
        (0, "1970-01-01T00:00:00Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (1_709_251_199, "2024-02-29T23:59:59Z"),
        (4_107_542_400, "2100-03-01T00:00:00Z"),
    ] {
        assert_eq!(format_utc(seconds), text);
    }
}
