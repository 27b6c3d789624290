//! How long.

use core::time::Duration;

use crate::error::{ParseError, Quantity};
use crate::number::{Range, Written};
use crate::print::{self, Rung};

const ANY: Range = Range {
    least: 0,
    least_text: "0s",
    most: u64::MAX,
    most_text: "18446744073709551615ns",
    step: "1ns",
};

/// Reads a duration: a decimal number and `ns`, `us` (or `µs`), `ms`, `s`,
/// `min` or `h`. Zero is a duration; the longest is 584 years.
///
/// # Errors
/// Whatever is not such a text, or finer than a nanosecond.
pub fn parse_duration(text: &str) -> Result<Duration, ParseError> {
    let what = Quantity::Duration;
    let written = Written::split(text, what)?;
    if written.unit.contains('/') {
        return Err(ParseError::NotAnAmount {
            text: written.text.into(),
            what,
        });
    }
    match unit_ns(written.unit) {
        Some(ns) => read(&written, ns, ANY),
        None => Err(written.unknown_unit(written.unit)),
    }
}

/// The duration of a text that has been taken apart, whose unit has `ns`.
pub(crate) fn read(written: &Written<'_>, ns: u64, range: Range) -> Result<Duration, ParseError> {
    written.whole(ns, 1, range).map(Duration::from_nanos)
}

/// Nanoseconds of a unit of time.
pub(crate) fn unit_ns(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        // The micro sign and the Greek letter look alike; keyboards have either.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// A duration exactly, in the shortest of `ns`, `us`, `ms` and `s`; read back by
/// [`parse_duration`] to the same value. `ns` is at most 2^64 - 1.
pub(crate) fn exact(ns: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("s", 9), ("ms", 6), ("us", 3), ("ns", 0)];
    let texts = UNITS
        .iter()
        .filter(|(_, power)| *power == 0 || ns >= 10_u64.pow(*power));
    texts
        .map(|(unit, power)| print::exact(ns, *power) + unit)
        .min_by_key(String::len)
        .unwrap_or_default()
}

/// A duration for people, with three digits: `1.23 ms`. Minutes, hours and days
/// are used from two of them on.
#[must_use]
pub fn format_duration_ns(ns: u64) -> String {
    const S: u128 = 1_000_000_000;
    const fn from_two(ticks: u128, name: &'static str) -> Rung {
        Rung {
            from: 2 * ticks,
            ticks,
            name,
        }
    }
    const LADDER: [Rung; 7] = [
        Rung::new(1, " ns"),
        Rung::new(1_000, " us"),
        Rung::new(1_000_000, " ms"),
        Rung::new(S, " s"),
        from_two(60 * S, " min"),
        from_two(3_600 * S, " h"),
        from_two(86_400 * S, " d"),
    ];
    print::human(u128::from(ns), &LADDER)
}
