//! How far ahead of its rate a service may be.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use crate::bytes::Bytes;
use crate::duration;
use crate::error::{ParseError, Quantity};
use crate::number::{Range, Written};
use crate::rate::{Rate, Unit};

/// The burst where none is given: small, because a bucket of one second's worth
/// is off by 900 % over 100 ms.
pub const DEFAULT_BURST: Duration = Duration::from_millis(20);

/// How far ahead of its rate a service may be, in time, bytes or calls.
///
/// Text: a duration (`10ms`, at most 60 s), an amount of bytes (`1MB`, at most
/// 1 TB) or calls (`20calls`, at most 1e12), and above zero. `Display` of such
/// a burst is exact and read back to the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Burst {
    /// What the rate gives in this time.
    Time(Duration),
    /// So many bytes, for a rate in bytes.
    Bytes(Bytes),
    /// So many calls, for a rate in calls.
    Calls(u64),
}

/// Why a burst does not fit its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BurstError {
    /// Bytes for calls, or calls for bytes.
    #[error("a burst of {burst} does not fit the rate {rate}: write it in {} or as a time such as 10ms", rate.unit())]
    UnitMismatch {
        /// The burst.
        burst: Burst,
        /// The rate.
        rate: Rate,
    },
    /// Zero: nothing could ever go.
    #[error("a burst of {burst} lets nothing through: the least is {least}")]
    TooSmall {
        /// The burst.
        burst: Burst,
        /// The least of its kind.
        least: &'static str,
    },
    /// Absurdly much.
    #[error("a burst of {burst} is too large: the most is {most}")]
    TooLarge {
        /// The burst.
        burst: Burst,
        /// The most of its kind.
        most: &'static str,
    },
}

/// In ns.
const TIME: Range = Range {
    least: 1,
    least_text: "1ns",
    most: 60_000_000_000,
    most_text: "60s",
    step: "1ns",
};
const BYTES: Range = Range {
    least: 1,
    least_text: "1B",
    most: 1_000_000_000_000,
    most_text: "1TB",
    step: "1B",
};
const CALLS: Range = Range {
    least: 1,
    least_text: "1call",
    most: 1_000_000_000_000,
    most_text: "1000000000000calls",
    step: "1call",
};

impl Burst {
    /// The burst in units of `rate`, at least 1: a time gives what the rate
    /// gives in it, rounded down.
    ///
    /// # Errors
    /// Bytes for a rate in calls or the reverse, and what is zero or above the
    /// most of its kind.
    pub fn units(&self, rate: Rate) -> Result<u64, BurstError> {
        let (amount, range) = match (self, rate.unit()) {
            (Self::Time(time), _) => (u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), TIME),
            (Self::Bytes(bytes), Unit::Bytes) => (bytes.0, BYTES),
            (Self::Calls(calls), Unit::Calls) => (*calls, CALLS),
            _ => return Err(BurstError::UnitMismatch { burst: *self, rate }),
        };
        if amount < range.least {
            return Err(BurstError::TooSmall {
                burst: *self,
                least: range.least_text,
            });
        }
        if amount > range.most {
            return Err(BurstError::TooLarge {
                burst: *self,
                most: range.most_text,
            });
        }
        if !matches!(self, Self::Time(_)) {
            return Ok(amount);
        }
        // Thousandths per second times nanoseconds: at most 6e12 units.
        let units = u128::from(rate.milli()) * u128::from(amount) / 1_000_000_000_000;
        Ok(u64::try_from(units).unwrap_or(u64::MAX).max(1))
    }
}

impl Default for Burst {
    /// [`DEFAULT_BURST`].
    fn default() -> Self {
        Self::Time(DEFAULT_BURST)
    }
}

impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(time) => {
                let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                f.pad(&duration::exact(ns))
            }
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Calls(1) => f.pad("1call"),
            Self::Calls(calls) => f.pad(&format!("{calls}calls")),
        }
    }
}

impl FromStr for Burst {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let what = Quantity::Burst;
        let written = Written::split(text, what)?;
        if written.unit.contains('/') {
            return Err(ParseError::NotAnAmount {
                text: written.text.into(),
                what,
            });
        }
        if let Some(ns) = duration::unit_ns(written.unit) {
            return duration::read(&written, ns, TIME).map(Self::Time);
        }
        if matches!(written.unit, "call" | "calls") {
            return written.whole(1, 1, CALLS).map(Self::Calls);
        }
        Bytes::read(&written, BYTES).map(Self::Bytes)
    }
}
