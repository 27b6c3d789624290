//! How much.

use core::fmt;
use core::str::FromStr;

use crate::error::{ParseError, Quantity};
use crate::number::{Range, Written, prefix};
use crate::print::{self, Rung};

/// A number of bytes.
///
/// Text: a decimal number and `B` with a prefix out of `k M G T Ki Mi Gi Ti`,
/// such as `1MB`, `64KiB`, `1448B`. `Display` is exact and read back to the
/// same value; [`Bytes::human`] is for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bytes(pub u64);

const ANY: Range = Range {
    least: 0,
    least_text: "0B",
    most: u64::MAX,
    most_text: "18446744073709551615B",
    step: "1B",
};

impl Bytes {
    /// For people, with three digits and a decimal prefix: `1.45 kB`.
    #[must_use]
    pub fn human(self) -> String {
        const LADDER: [Rung; 5] = [
            Rung::new(1, " B"),
            Rung::new(1_000, " kB"),
            Rung::new(1_000_000, " MB"),
            Rung::new(1_000_000_000, " GB"),
            Rung::new(1_000_000_000_000, " TB"),
        ];
        print::human(u128::from(self.0), &LADDER)
    }

    /// The bytes of a text that has been taken apart.
    pub(crate) fn read(written: &Written<'_>, range: Range) -> Result<Self, ParseError> {
        let unit = written.unit;
        match unit.strip_suffix('B').and_then(prefix) {
            Some(mul) => written.whole(mul, 1, range).map(Self),
            None => Err(written
                .capital_k(unit)
                .unwrap_or_else(|| written.unknown_unit(unit))),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&(print::exact_prefixed(self.0, 0) + "B"))
    }
}

impl FromStr for Bytes {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let what = Quantity::Bytes;
        let written = Written::split(text, what)?;
        if written.unit.contains('/') {
            return Err(ParseError::NotAnAmount {
                text: written.text.into(),
                what,
            });
        }
        Self::read(&written, ANY)
    }
}
