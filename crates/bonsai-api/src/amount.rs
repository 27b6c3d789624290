//! Amounts as text, with their units.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bonsai_units::{Bytes, ParseError, Quota, Rate, Reserve, SpanError, parse_duration};
use serde::{Deserialize, Serialize};

/// What is wrong with an amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// It is neither a rate nor a percentage.
    #[error("{0}; or write a percentage of the capacity, such as 40%")]
    Rate(ParseError),
    /// A percentage that is none.
    #[error("{0:?} is no percentage: write a number from 0.001% to 100%")]
    Percent(String),
    /// No time.
    #[error(transparent)]
    Span(ParseError),
    /// No amount of bytes.
    #[error(transparent)]
    Size(ParseError),
    /// No time on CPUs in each period.
    #[error("{text:?}: {reason}")]
    Cpu {
        /// The value.
        text: String,
        /// What is wrong with it.
        reason: SpanError,
    },
}

macro_rules! text {
    ($($type:ty),*) => {$(
        impl TryFrom<String> for $type {
            type Error = AmountError;

            fn try_from(text: String) -> Result<Self, AmountError> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(amount: $type) -> Self {
                amount.to_string()
            }
        }
    )*};
}

text!(Percent, Share, Span, Size, CpuQuota, CpuReserve);

/// A part of a whole: thousandths of a percent, at least one and at most 100 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Percent(u32);

impl Percent {
    /// All of it, in thousandths of a percent.
    const WHOLE: u32 = 100_000;

    /// So many thousandths of a percent, moved into the range where it is outside.
    #[must_use]
    pub const fn from_milli(milli: u32) -> Self {
        match milli {
            0 => Self(1),
            1..Self::WHOLE => Self(milli),
            _ => Self(Self::WHOLE),
        }
    }

    /// Thousandths of a percent.
    #[must_use]
    pub const fn milli(self) -> u32 {
        self.0
    }

    /// That part of an amount, rounded down.
    #[must_use]
    pub fn of(self, whole: u64) -> u64 {
        let part = u128::from(whole) * u128::from(self.0) / u128::from(Self::WHOLE);
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, milli) = (self.0 / 1000, self.0 % 1000);
        if milli == 0 {
            return write!(f, "{whole}%");
        }
        let digits = format!("{milli:03}");
        write!(f, "{whole}.{}%", digits.trim_end_matches('0'))
    }
}

impl FromStr for Percent {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        let refused = || AmountError::Percent(text.to_owned());
        let number = text.trim().strip_suffix('%').ok_or_else(refused)?.trim();
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > 3 || whole.len() > 3 {
            return Err(refused());
        }
        let milli = format!("{whole}{fraction:0<3}")
            .parse()
            .map_err(|_| refused())?;
        (1..=Self::WHOLE)
            .contains(&milli)
            .then_some(Self(milli))
            .ok_or_else(refused)
    }
}

/// A rate, or a part of the capacity. What a person wrote in bits is repeated in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Share {
    /// So many units per second.
    Rate(Rate),
    /// The same, written in bits.
    Bits(Rate),
    /// That part of what the machine has.
    Percent(Percent),
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(rate) => rate.fmt(f),
            Self::Bits(rate) => f.write_str(&rate.in_bits()),
            Self::Percent(percent) => percent.fmt(f),
        }
    }
}

impl FromStr for Share {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        if text.trim_end().ends_with('%') {
            return text.parse().map(Self::Percent);
        }
        let rate = text.parse().map_err(AmountError::Rate)?;
        // A rate without a `b` of its own is of bytes or calls.
        Ok(if text.contains("bit") {
            Self::Bits(rate)
        } else {
            Self::Rate(rate)
        })
    }
}

/// A time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span(pub Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0.as_nanos();
        let units = [
            (3_600_000_000_000, "h"),
            (60_000_000_000, "min"),
            (1_000_000_000, "s"),
            (1_000_000, "ms"),
            (1000, "us"),
        ];
        let exact = units
            .iter()
            .find(|(unit, _)| ns >= *unit && ns.is_multiple_of(*unit));
        match exact {
            Some((unit, name)) => write!(f, "{}{name}", ns / unit),
            None => write!(f, "{ns}ns"),
        }
    }
}

impl FromStr for Span {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        parse_duration(text).map(Self).map_err(AmountError::Span)
    }
}

/// An amount of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Size(pub Bytes);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Size {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        text.parse().map(Self).map_err(AmountError::Size)
    }
}

/// The most of the CPUs: `150%` of one, or `15ms/10ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuQuota(pub Quota);

/// What each thread always gets of a CPU: `1.9ms/10ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuReserve(pub Reserve);

macro_rules! of_cpus {
    ($($type:ident),*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $type {
            type Err = AmountError;

            fn from_str(text: &str) -> Result<Self, AmountError> {
                let refused = |reason| AmountError::Cpu {
                    text: text.to_owned(),
                    reason,
                };
                text.parse().map(Self).map_err(refused)
            }
        }
    )*};
}

of_cpus!(CpuQuota, CpuReserve);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn percentages() {
        for (text, milli) in [
            ("40%", 40_000),
            ("0.001%", 1),
            ("99.5 %", 99_500),
            ("100%", 100_000),
        ] {
            assert_eq!(text.parse(), Ok(Percent(milli)), "{text}");
        }
        for text in [
            "0%", "101%", "100.001%", "-1%", "4", "%", ".5%", "1e1%", "0.0001%",
        ] {
            text.parse::<Percent>().expect_err(text);
        }
        assert_eq!(Percent::from_milli(12_500).of(80), 10);
        assert_eq!(Percent::from_milli(12_500).of(u64::MAX), u64::MAX / 8);
    }

    #[test]
    fn shares() {
        assert_eq!("90%".parse(), Ok(Share::Percent(Percent(90_000))));
        let rate = Rate::bytes_per_sec(5_000_000);
        assert_eq!("40Mbit/s".parse(), Ok(Share::Bits(rate)));
        assert_eq!("5MB/s".parse(), Ok(Share::Rate(rate)));
        for text in ["40Mbit/s", "1.5Mbit/s", "8bit/s", "5MB/s", "100/s"] {
            let share: Share = text.parse().expect(text);
            assert_eq!(share.to_string(), text);
        }
        let error = "40".parse::<Share>().expect_err("no unit");
        assert!(error.to_string().contains("percentage"), "{error}");
    }

    #[test]
    fn times_on_cpus() {
        for text in ["150%", "7ms/10ms"] {
            let quota: CpuQuota = text.parse().expect(text);
            assert_eq!(quota.to_string().parse(), Ok(quota), "{text}");
        }
        let reserve: CpuReserve = "1.9ms/10ms".parse().expect("a reserve");
        assert_eq!(reserve.to_string(), "1.9ms/10ms");
        let error = "11ms/10ms".parse::<CpuReserve>().expect_err("too much");
        assert!(error.to_string().starts_with("\"11ms/10ms\": "), "{error}");
    }

    proptest! {
        #[test]
        fn rates_are_read_back_in_the_unit_they_were_written_in(
            milli in Rate::MIN_MILLI..=Rate::MAX_MILLI,
        ) {
            let rate = Rate::from_milli(milli, bonsai_units::Unit::Bytes);
            for share in [Share::Rate(rate), Share::Bits(rate)] {
                prop_assert_eq!(share.to_string().parse(), Ok(share));
            }
        }

        #[test]
        fn amounts_are_read_back(milli in 1_u32..=100_000, ns in 1_u64..1 << 53) {
            let percent = Percent(milli);
            prop_assert_eq!(percent.to_string().parse(), Ok(percent));
            let span = Span(Duration::from_nanos(ns));
            prop_assert_eq!(span.to_string().parse(), Ok(span));
        }
    }
}
