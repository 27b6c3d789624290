//! How fast.

use core::fmt;
use core::str::FromStr;

use crate::error::{ParseError, Quantity};
use crate::number::{Range, Written, prefix};
use crate::print::{self, Rung};

/// What a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unit {
    /// Bytes moved.
    Bytes,
    /// Calls made.
    Calls,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bytes => "bytes",
            Self::Calls => "calls",
        })
    }
}

/// So many units per second, in thousandths of a unit.
///
/// Always within [`Rate::MIN_MILLI`] and [`Rate::MAX_MILLI`].
///
/// # Text
/// A decimal number, a unit, `/s`; blanks between them do no harm. `B/s` and
/// `bit/s` take the prefixes `k M G T Ki Mi Gi Ti`; calls are `/s` or
/// `calls/s`, without a prefix. `Display` is exact and read back to the same
/// value; [`Rate::storage`] and [`Rate::network`] are for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    milli: u64,
    unit: Unit,
}

const BYTES: Range = Range {
    least: Rate::MIN_MILLI,
    least_text: "0.001B/s",
    most: Rate::MAX_MILLI,
    most_text: "100GB/s",
    step: "0.001B/s",
};
const CALLS: Range = Range {
    least: Rate::MIN_MILLI,
    least_text: "0.001/s",
    most: Rate::MAX_MILLI,
    most_text: "100000000000/s",
    step: "0.001/s",
};

impl Rate {
    /// The lowest rate: a thousandth of a unit per second.
    pub const MIN_MILLI: u64 = 1;

    /// The highest rate: 100e9 units per second, more than the memory of one
    /// machine can move.
    pub const MAX_MILLI: u64 = 100_000_000_000_000;

    /// `n` bytes per second, moved into the range of a rate where it is outside.
    #[must_use]
    pub const fn bytes_per_sec(n: u64) -> Self {
        Self::from_milli(n.saturating_mul(1_000), Unit::Bytes)
    }

    /// `n` calls per second, moved into the range of a rate where it is outside.
    #[must_use]
    pub const fn calls_per_sec(n: u64) -> Self {
        Self::from_milli(n.saturating_mul(1_000), Unit::Calls)
    }

    /// `milli` thousandths of a unit per second, moved into
    /// [`Rate::MIN_MILLI`] to [`Rate::MAX_MILLI`] where it is outside. For
    /// computed rates; what a person wrote is parsed, and refused there.
    #[must_use]
    pub const fn from_milli(milli: u64, unit: Unit) -> Self {
        let milli = match milli {
            0 => Self::MIN_MILLI,
            1..Self::MAX_MILLI => milli,
            _ => Self::MAX_MILLI,
        };
        Self { milli, unit }
    }

    /// Thousandths of a unit per second.
    #[must_use]
    pub const fn milli(self) -> u64 {
        self.milli
    }

    /// What is counted.
    #[must_use]
    pub const fn unit(self) -> Unit {
        self.unit
    }

    /// Units per second, exact to 15 digits.
    #[must_use]
    pub fn per_sec_f64(self) -> f64 {
        self.milli as f64 / 1_000.0
    }

    /// Exact, in bits, as it may be written: `40Mbit/s`. Read back to the same value, as what
    /// `Display` writes in bytes. Calls are `100/s`.
    #[must_use]
    pub fn in_bits(self) -> String {
        match self.unit {
            Unit::Bytes => print::exact_prefixed(self.milli * 8, 3) + "bit/s",
            Unit::Calls => self.to_string(),
        }
    }

    /// For people, in decimal bytes and with three digits: `10 MB/s`,
    /// `1.45 kB/s`. Calls are `100/s`.
    #[must_use]
    pub fn storage(self) -> String {
        const LADDER: [Rung; 5] = [
            Rung::new(1_000, " B/s"),
            Rung::new(1_000_000, " kB/s"),
            Rung::new(1_000_000_000, " MB/s"),
            Rung::new(1_000_000_000_000, " GB/s"),
            Rung::new(1_000_000_000_000_000, " TB/s"),
        ];
        match self.unit {
            Unit::Bytes => print::human(u128::from(self.milli), &LADDER),
            Unit::Calls => self.calls(),
        }
    }

    /// For people, in bits and with three digits: `80 Mbit/s`. Calls are `100/s`.
    #[must_use]
    pub fn network(self) -> String {
        const LADDER: [Rung; 5] = [
            Rung::new(1_000, " bit/s"),
            Rung::new(1_000_000, " kbit/s"),
            Rung::new(1_000_000_000, " Mbit/s"),
            Rung::new(1_000_000_000_000, " Gbit/s"),
            Rung::new(1_000_000_000_000_000, " Tbit/s"),
        ];
        match self.unit {
            Unit::Bytes => print::human(u128::from(self.milli) * 8, &LADDER),
            Unit::Calls => self.calls(),
        }
    }

    fn calls(self) -> String {
        print::human(u128::from(self.milli), &[Rung::new(1_000, "/s")])
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&match self.unit {
            Unit::Bytes => print::exact_prefixed(self.milli, 3) + "B/s",
            Unit::Calls => print::exact(self.milli, 3) + "/s",
        })
    }
}

impl FromStr for Rate {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let written = Written::split(text, Quantity::Rate)?;
        let Some((unit, per)) = written.unit.split_once('/') else {
            return Err(without_slash(&written));
        };
        if per.trim() != "s" {
            return Err(ParseError::NotPerSecond {
                text: written.text.into(),
            });
        }
        let unit = unit.trim_end();
        let Some((kind, mul, div)) = counted(unit) else {
            return Err(wrong_unit(&written, unit));
        };
        let range = match kind {
            Unit::Bytes => BYTES,
            Unit::Calls => CALLS,
        };
        let milli = written.whole(mul * 1_000, div, range)?;
        Ok(Self { milli, unit: kind })
    }
}

/// What a unit before `/s` counts, and its factor as a fraction.
fn counted(unit: &str) -> Option<(Unit, u64, u64)> {
    if matches!(unit, "" | "call" | "calls") {
        return Some((Unit::Calls, 1, 1));
    }
    if let Some(before) = unit.strip_suffix("bit") {
        return prefix(before).map(|mul| (Unit::Bytes, mul, 8));
    }
    let before = unit.strip_suffix('B')?;
    prefix(before).map(|mul| (Unit::Bytes, mul, 1))
}

/// The refusal of a unit without `/s`.
fn without_slash(written: &Written<'_>) -> ParseError {
    let unit = written.unit;
    if counted(unit).is_some() {
        let right = format!("{}{unit}/s", written.number);
        return ParseError::MissingPerSecond {
            text: written.text.into(),
            right,
        };
    }
    let text = written.text.to_owned();
    match unit
        .strip_suffix("ps")
        .and_then(|stem| in_bytes_and_bits(written, stem))
    {
        Some((bytes, bits)) => ParseError::PsSuffix { text, bytes, bits },
        None => wrong_unit(written, unit),
    }
}

/// The refusal of a unit that counts nothing.
fn wrong_unit(written: &Written<'_>, unit: &str) -> ParseError {
    let text = written.text.to_owned();
    if let Some(refusal) = written.capital_k(unit) {
        return refusal;
    }
    match in_bytes_and_bits(written, unit) {
        Some((bytes, bits)) if unit.ends_with('b') => ParseError::BitOrByte { text, bytes, bits },
        Some((bytes, bits)) if unit == "K" || prefix(unit).is_some() => {
            ParseError::PrefixAlone { text, bytes, bits }
        }
        _ => written.unknown_unit(unit),
    }
}

/// The same number in bytes and in bits per second, if `stem` is a prefix with
/// or without `B`, `b` or `bit`.
fn in_bytes_and_bits(written: &Written<'_>, stem: &str) -> Option<(String, String)> {
    let before = stem
        .strip_suffix("bit")
        .or(stem.strip_suffix(['B', 'b']))
        .unwrap_or(stem);
    let before = if before == "K" { "k" } else { before };
    prefix(before)?;
    let number = written.number;
    Some((
        format!("{number}{before}B/s"),
        format!("{number}{before}bit/s"),
    ))
}
