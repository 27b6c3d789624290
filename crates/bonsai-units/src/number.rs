//! Exact decimal numbers and the units behind them.

use crate::error::{ParseError, Quantity};

/// Decimals that are kept. A rate needs at most 15 (1000 GB/s in thousandths
/// of a byte); a binary fraction with more is refused as too fine.
const DECIMALS: usize = 18;

/// A number as it was written: `digits / 10^scale`, and whether decimals other
/// than zero were cut off.
#[derive(Clone, Copy, Debug)]
struct Decimal {
    digits: u128,
    scale: u32,
    cut: bool,
}

impl Decimal {
    /// From runs of ASCII digits. What does not fit saturates at 3.4e20 or
    /// more, which is above every range here.
    fn new(whole: &str, fraction: &str) -> Self {
        let fraction = fraction.trim_end_matches('0');
        let (kept, cut) = fraction.split_at(fraction.len().min(DECIMALS));
        let digits = whole.bytes().chain(kept.bytes()).fold(0_u128, |sum, d| {
            sum.saturating_mul(10).saturating_add(u128::from(d - b'0'))
        });
        Self {
            digits,
            scale: u32::try_from(kept.len()).unwrap_or(u32::MAX),
            cut: !cut.is_empty(),
        }
    }

    const fn is_zero(self) -> bool {
        self.digits == 0 && !self.cut
    }

    /// The whole part of `self * mul / div`, and whether that is all.
    fn times(self, mul: u64, div: u64) -> (u128, bool) {
        let div = 10_u128.pow(self.scale) * u128::from(div);
        let product = self.digits.saturating_mul(u128::from(mul));
        (product / div, product % div == 0 && !self.cut)
    }
}

/// What is accepted, in the steps in which it is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    /// The least; zero may be written only if this is zero.
    pub(crate) least: u64,
    /// The least, as text.
    pub(crate) least_text: &'static str,
    /// The most.
    pub(crate) most: u64,
    /// The most, as text.
    pub(crate) most_text: &'static str,
    /// One step, as text.
    pub(crate) step: &'static str,
}

/// A text taken apart: its number and what follows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written<'a> {
    /// All of it, without blanks around it.
    pub(crate) text: &'a str,
    /// The digits as written.
    pub(crate) number: &'a str,
    /// The unit, possibly empty, without blanks around it.
    pub(crate) unit: &'a str,
    what: Quantity,
    decimal: Decimal,
}

impl<'a> Written<'a> {
    /// Takes a text apart.
    pub(crate) fn split(text: &'a str, what: Quantity) -> Result<Self, ParseError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(ParseError::Empty { what });
        }
        if let Some(rest) = text.strip_prefix('-')
            && rest
                .trim_start()
                .starts_with(|c: char| c.is_ascii_digit() || c == '.')
        {
            return Err(ParseError::Negative {
                text: text.into(),
                what,
            });
        }
        // Separators belong to the number, so that 1,000 is one wrong number
        // and not a right one with a wrong unit.
        let end = text
            .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | ',' | '_' | '\'')))
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || is_exponent(unit) {
            return Err(ParseError::NotANumber {
                text: text.into(),
                what,
            });
        }
        let unit = unit.trim();
        if unit.is_empty() {
            return Err(ParseError::BareNumber {
                text: text.into(),
                what,
            });
        }
        Ok(Self {
            text,
            number,
            unit,
            what,
            decimal: Decimal::new(whole, fraction),
        })
    }

    /// The number times `mul / div`, in whole steps within `range`.
    pub(crate) fn whole(&self, mul: u64, div: u64, range: Range) -> Result<u64, ParseError> {
        let text = || self.text.to_owned();
        let least = range.least_text;
        if self.decimal.is_zero() && range.least > 0 {
            return Err(ParseError::Zero {
                text: text(),
                least,
            });
        }
        let (steps, exact) = self.decimal.times(mul, div);
        if steps < u128::from(range.least) {
            return Err(ParseError::TooLow {
                text: text(),
                least,
            });
        }
        match u64::try_from(steps) {
            Ok(steps) if steps < range.most || (steps == range.most && exact) => {
                if exact {
                    Ok(steps)
                } else {
                    Err(ParseError::TooFine {
                        text: text(),
                        step: range.step,
                    })
                }
            }
            _ => Err(ParseError::TooHigh {
                text: text(),
                most: range.most_text,
            }),
        }
    }

    /// The refusal of `unit`, which is not one.
    pub(crate) fn unknown_unit(&self, unit: &str) -> ParseError {
        ParseError::UnknownUnit {
            text: self.text.into(),
            unit: unit.into(),
            what: self.what,
        }
    }

    /// The refusal of `unit` if it has a capital K before `B` or `bit`.
    pub(crate) fn capital_k(&self, unit: &str) -> Option<ParseError> {
        let base = unit
            .strip_prefix('K')
            .filter(|base| matches!(*base, "B" | "b" | "bit"))?;
        let base = if base == "bit" { base } else { "B" };
        Some(ParseError::AmbiguousKilo {
            text: self.text.into(),
            decimal: format!("k{base}"),
            binary: format!("Ki{base}"),
        })
    }
}

/// Whether what follows a number makes it one with an exponent, as in `1e6`.
fn is_exponent(rest: &str) -> bool {
    rest.strip_prefix(['e', 'E']).is_some_and(|tail| {
        tail.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-'))
    })
}

/// The factor of a prefix; the empty one is 1.
pub(crate) fn prefix(text: &str) -> Option<u64> {
    Some(match text {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    })
}
