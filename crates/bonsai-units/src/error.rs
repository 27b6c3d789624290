//! Why a text was refused.

use core::fmt;

/// What a text was read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quantity {
    /// A [`Rate`](crate::Rate).
    Rate,
    /// [`Bytes`](crate::Bytes).
    Bytes,
    /// A [`Burst`](crate::Burst).
    Burst,
    /// A duration.
    Duration,
    /// How much of a CPU: [`Quota`](crate::Quota).
    Share,
}

impl Quantity {
    /// Texts that are right, as they stand in a sentence.
    #[must_use]
    pub const fn examples(self) -> &'static str {
        match self {
            Self::Rate => "10MB/s, 80Mbit/s or 10/s",
            Self::Bytes => "1MB, 64KiB or 1448B",
            Self::Burst => "10ms, 1MB or 20calls",
            Self::Duration => "500us, 10ms or 1.5s",
            Self::Share => "150% or 15ms/10ms",
        }
    }

    /// What a bare number leaves open.
    const fn choices(self) -> &'static str {
        match self {
            Self::Rate => "bytes, bits or calls per second",
            Self::Bytes => "bytes, kB or KiB",
            Self::Burst => "time, bytes or calls",
            Self::Duration => "microseconds, milliseconds or seconds",
            Self::Share => "percent of a CPU, or a time per period",
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rate => "a rate",
            Self::Bytes => "an amount of bytes",
            Self::Burst => "a burst",
            Self::Duration => "a duration",
            Self::Share => "a share of a CPU",
        })
    }
}

/// Why a text is not the quantity that it should be. Each message is one
/// sentence that names the text and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// An empty text.
    #[error("an empty text is not {what}: write {}", what.examples())]
    Empty {
        /// What it was read as.
        what: Quantity,
    },
    /// No plain decimal number at the start: words, exponents, digit groups,
    /// `1.` or `.5`.
    #[error("{text:?} does not start with a plain decimal number: write {}", what.examples())]
    NotANumber {
        /// The text.
        text: String,
        /// What it was read as.
        what: Quantity,
    },
    /// Below zero.
    #[error("{text:?} is negative, which {what} cannot be: write {}", what.examples())]
    Negative {
        /// The text.
        text: String,
        /// What it was read as.
        what: Quantity,
    },
    /// Zero.
    #[error("{text:?} is zero, which lets nothing through: the least is {least}")]
    Zero {
        /// The text.
        text: String,
        /// The least that is accepted.
        least: &'static str,
    },
    /// No unit.
    #[error("{text:?} has no unit such as {}: write {}", what.choices(), what.examples())]
    BareNumber {
        /// The text.
        text: String,
        /// What it was read as.
        what: Quantity,
    },
    /// An amount where a rate belongs.
    #[error("{text:?} is an amount and not a rate: write {right}")]
    MissingPerSecond {
        /// The text.
        text: String,
        /// The same per second.
        right: String,
    },
    /// A rate, but not per second.
    #[error("{text:?} is not per second: end it in /s, as in {}", Quantity::Rate.examples())]
    NotPerSecond {
        /// The text.
        text: String,
    },
    /// A rate where an amount belongs.
    #[error("{text:?} is a rate and not {what}: write {}", what.examples())]
    NotAnAmount {
        /// The text.
        text: String,
        /// What it was read as.
        what: Quantity,
    },
    /// `MBps`, `Mbps` and the like, which people write for bytes and for bits.
    #[error(
        "{text:?} ends in ps, which is read in two ways: write {bytes} for bytes or {bits} for bits"
    )]
    PsSuffix {
        /// The text.
        text: String,
        /// The same in bytes.
        bytes: String,
        /// The same in bits.
        bits: String,
    },
    /// `Mb/s`: a small b stands for bits and for bytes.
    #[error(
        "{text:?} has a small b, which is read in two ways: write {bytes} for bytes or {bits} for bits"
    )]
    BitOrByte {
        /// The text.
        text: String,
        /// The same in bytes.
        bytes: String,
        /// The same in bits.
        bits: String,
    },
    /// A capital `K`, which stands for 1000 and for 1024.
    #[error(
        "{text:?} has a capital K, which is read in two ways: write {decimal} for 1000 or {binary} for 1024"
    )]
    AmbiguousKilo {
        /// The text.
        text: String,
        /// The unit with the decimal prefix, `kB` or `kbit`.
        decimal: String,
        /// The unit with the binary prefix, `KiB` or `Kibit`.
        binary: String,
    },
    /// `10M/s`: a prefix and nothing that it belongs to.
    #[error(
        "{text:?} has a prefix without a unit: write {bytes} or {bits}, and calls without a prefix, as in 2000/s"
    )]
    PrefixAlone {
        /// The text.
        text: String,
        /// The same in bytes.
        bytes: String,
        /// The same in bits.
        bits: String,
    },
    /// A unit that does not exist here.
    #[error("{text:?} has the unknown unit {unit:?}: write {}", what.examples())]
    UnknownUnit {
        /// The text.
        text: String,
        /// The part that is not a unit.
        unit: String,
        /// What it was read as.
        what: Quantity,
    },
    /// Above zero, but less than can be kept.
    #[error("{text:?} is too small: the least is {least}")]
    TooLow {
        /// The text.
        text: String,
        /// The least that is accepted.
        least: &'static str,
    },
    /// Absurdly much.
    #[error("{text:?} is too large: the most is {most}")]
    TooHigh {
        /// The text.
        text: String,
        /// The most that is accepted.
        most: &'static str,
    },
    /// More decimals than can be kept exactly.
    #[error("{text:?} is too fine: write a multiple of {step}")]
    TooFine {
        /// The text.
        text: String,
        /// The step in which values are kept.
        step: &'static str,
    },
}
