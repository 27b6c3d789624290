//! Limits on block devices, as they are written.

use core::fmt;

use crate::change::Change;
use crate::error::ParseError;
use crate::limit::SettingError;
use crate::rate::{Rate, Unit};

/// What becomes of the limits of a control group on a block device.
///
/// Text: words such as `read=50MB/s`, `write=1000/s`, `read=unlimited`. The unit says whether
/// bytes or calls are meant (a call is a request to the device); both may be given for a direction.
/// `unlimited` takes both of its direction away, wherever it stands, and a rate beside it is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskTerms {
    /// Bytes read per second, from [`DiskTerms::LEAST_BYTES`].
    pub read_bytes: Change<u64>,
    /// Bytes written per second, likewise.
    pub write_bytes: Change<u64>,
    /// Reads per second, 1 to [`DiskTerms::MOST_CALLS`].
    pub read_calls: Change<u64>,
    /// Writes per second, likewise.
    pub write_calls: Change<u64>,
}

/// Why words are not such terms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DiskTermsError {
    /// No words.
    #[error("nothing is to be set: write read=50MB/s, write=1000/s or read=unlimited")]
    Empty,
    /// No `=`.
    #[error("{text:?} has no =: the form is read=RATE or write=RATE, such as read=50MB/s")]
    NoEquals {
        /// The word.
        text: String,
    },
    /// Neither reads nor writes.
    #[error("{name:?} is nothing that a disk does: write read=50MB/s or write=1000/s")]
    UnknownName {
        /// What stood before the `=`.
        name: String,
    },
    /// Not a rate.
    #[error("{text:?}: {reason}")]
    Rate {
        /// The word.
        text: String,
        /// What is wrong with the value.
        reason: ParseError,
    },
    /// A word that is no rate.
    #[error("{text:?}: {reason}")]
    Word {
        /// The word.
        text: String,
        /// What is wrong with the value.
        reason: SettingError,
    },
    /// A burst.
    #[error("{text:?} has options, and a limit of a disk has none: write the rate alone")]
    Options {
        /// The word.
        text: String,
    },
    /// Too low for a device.
    #[error(
        "{text:?} is too small: the least is {least}, for whoever needs the disk would stand still"
    )]
    TooLow {
        /// The word.
        text: String,
        /// The least.
        least: &'static str,
    },
    /// More than the kernel counts.
    #[error("{text:?} is too large: the most is {most}/s", most = DiskTerms::MOST_CALLS)]
    TooHigh {
        /// The word.
        text: String,
    },
    /// Part of a byte or call.
    #[error("{text:?} is too fine: the kernel counts whole bytes and calls per second")]
    TooFine {
        /// The word.
        text: String,
    },
    /// The same twice.
    #[error("{name} is given twice in {unit}: write it once")]
    Twice {
        /// The direction.
        name: String,
        /// What is counted.
        unit: Unit,
    },
}

impl DiskTerms {
    /// The least bytes per second. One page: whoever faults a page in waits that long for it, and
    /// cannot be killed meanwhile.
    pub const LEAST_BYTES: u64 = 4_096;

    /// The most calls per second: `UINT_MAX` is how the kernel keeps that there is no limit.
    pub const MOST_CALLS: u64 = u32::MAX as u64 - 1;

    /// Reads words.
    ///
    /// # Errors
    /// One sentence that names the word.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, DiskTermsError> {
        let mut terms = Self::default();
        let mut cleared = [false; 2];
        let mut any = false;
        for text in words {
            any = true;
            let Some((name, value)) = text.split_once('=') else {
                return Err(DiskTermsError::NoEquals { text: text.into() });
            };
            let (name, value) = (name.trim(), value.trim());
            let is_read = match name {
                "read" => true,
                "write" => false,
                _ => return Err(DiskTermsError::UnknownName { name: name.into() }),
            };
            if value == "unlimited" {
                cleared[usize::from(is_read)] = true;
                continue;
            }
            let (unit, n) = rate(text, value)?;
            let slot = terms.slot(is_read, unit);
            if !slot.is_keep() {
                let name = name.into();
                return Err(DiskTermsError::Twice { name, unit });
            }
            *slot = Change::To(n);
        }
        if !any {
            return Err(DiskTermsError::Empty);
        }
        for (is_read, cleared) in [false, true].into_iter().zip(cleared) {
            for unit in [Unit::Bytes, Unit::Calls] {
                let slot = terms.slot(is_read, unit);
                if cleared && slot.is_keep() {
                    *slot = Change::Clear;
                }
            }
        }
        Ok(terms)
    }

    fn slot(&mut self, is_read: bool, unit: Unit) -> &mut Change<u64> {
        match (is_read, unit) {
            (true, Unit::Bytes) => &mut self.read_bytes,
            (false, Unit::Bytes) => &mut self.write_bytes,
            (true, Unit::Calls) => &mut self.read_calls,
            (false, Unit::Calls) => &mut self.write_calls,
        }
    }
}

/// A rate as a device can have it.
fn rate(text: &str, value: &str) -> Result<(Unit, u64), DiskTermsError> {
    let text = || text.to_owned();
    if value.contains(':') {
        return Err(DiskTermsError::Options { text: text() });
    }
    if value.is_empty() || value.starts_with(char::is_alphabetic) {
        let reason = match value {
            "" => SettingError::Empty,
            word => SettingError::UnknownWord { text: word.into() },
        };
        return Err(DiskTermsError::Word {
            text: text(),
            reason,
        });
    }
    let rate: Rate = value.parse().map_err(|reason| DiskTermsError::Rate {
        text: text(),
        reason,
    })?;
    let (least, least_text) = match rate.unit() {
        Unit::Bytes => (DiskTerms::LEAST_BYTES, "4096B/s"),
        Unit::Calls => (1, "1/s"),
    };
    if rate.milli() < least * 1_000 {
        return Err(DiskTermsError::TooLow {
            text: text(),
            least: least_text,
        });
    }
    if !rate.milli().is_multiple_of(1_000) {
        return Err(DiskTermsError::TooFine { text: text() });
    }
    let n = rate.milli() / 1_000;
    if rate.unit() == Unit::Calls && n > DiskTerms::MOST_CALLS {
        return Err(DiskTermsError::TooHigh { text: text() });
    }
    Ok((rate.unit(), n))
}

impl fmt::Display for DiskTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        for (name, bytes, calls) in [
            ("read", self.read_bytes, self.read_calls),
            ("write", self.write_bytes, self.write_calls),
        ] {
            if bytes == Change::Clear || calls == Change::Clear {
                words.push(format!("{name}=unlimited"));
            }
            if let Change::To(n) = bytes {
                words.push(format!("{name}={}", Rate::bytes_per_sec(n)));
            }
            if let Change::To(n) = calls {
                words.push(format!("{name}={}", Rate::calls_per_sec(n)));
            }
        }
        f.pad(&words.join(" "))
    }
}
