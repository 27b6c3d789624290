//! What a service has of the CPUs, as it is written.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use crate::change::Change;
use crate::duration::{exact, parse_duration};
use crate::error::{ParseError, Quantity};
use crate::number::{Range, Written};
use crate::print;

/// The most that a control group uses of the CPUs: so much time in each period
/// (`cpu.max` of version 2, `cpu.cfs_quota_us` and `cpu.cfs_period_us` of version 1).
///
/// Text: `150%` of one CPU, or `15ms/10ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    /// Time on CPUs in a period, us, from 1,000: the kernel's least.
    pub runtime_us: u64,
    /// The period, us, 1,000 to 1,000,000: what the kernel takes.
    pub period_us: u64,
}

/// Time that a thread always gets on a CPU, by the deadline scheduler (sched(7)): so much in each
/// period, also beside threads that never sleep.
///
/// Text: `1.9ms/10ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reserve {
    /// Time on a CPU in a period, ns, from 1,024: the kernel's least.
    pub runtime_ns: u64,
    /// The period, and the deadline, ns: 100 us to 4 s, what the kernel takes by default.
    pub period_ns: u64,
}

/// What becomes of a service's part of the CPUs.
///
/// Text: `weight=200,quota=150%,reserve=1.9ms/10ms`, each at most once; `quota=unlimited` and
/// `reserve=none` take them away, `weight=100` is what everybody has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTerms {
    /// Against the weights of its siblings, 1 to 10,000; 100 is the default.
    pub weight: Change<u64>,
    /// The most it uses.
    pub quota: Change<Quota>,
    /// What each of its threads always gets.
    pub reserve: Change<Reserve>,
}

/// Why a text is not such terms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CpuTermsError {
    /// Nothing.
    #[error("nothing is to be set: write weight=200, quota=150% or reserve=1.9ms/10ms")]
    Empty,
    /// A part without `=`, or with an unknown name.
    #[error(
        "{text:?} is nothing that there is of a CPU: write weight=200, quota=150% or \
         reserve=1.9ms/10ms"
    )]
    Unknown {
        /// The part.
        text: String,
    },
    /// The same twice.
    #[error("{name} is given twice: write it once")]
    Twice {
        /// Its name.
        name: &'static str,
    },
    /// Not a weight.
    #[error("weight={text} is no weight: it is a whole number from 1 to 10000, and 100 by default")]
    Weight {
        /// The value.
        text: String,
    },
    /// Not a quota.
    #[error("quota={text}: {reason}")]
    Quota {
        /// The value.
        text: String,
        /// What is wrong with it.
        reason: SpanError,
    },
    /// Not a reserve.
    #[error("reserve={text}: {reason}")]
    Reserve {
        /// The value.
        text: String,
        /// What is wrong with it.
        reason: SpanError,
    },
}

/// Why a text is not so much time in each period.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpanError {
    /// A number that is none.
    #[error("{0}")]
    Number(ParseError),
    /// No period.
    #[error("it has no period: write a time per period, such as {example}")]
    NoPeriod {
        /// One that is right.
        example: &'static str,
    },
    /// Out of range.
    #[error("{what} is out of range: it is from {least} to {most}")]
    Range {
        /// Which of the two times.
        what: &'static str,
        /// The least.
        least: &'static str,
        /// The most.
        most: &'static str,
    },
    /// Parts of a microsecond.
    #[error("the kernel counts whole microseconds here")]
    TooFine,
    /// More than all of the time.
    #[error("a thread cannot have more time than there is in a period: write {example}")]
    OverOne {
        /// One that is right.
        example: &'static str,
    },
}

/// Thousandths of a percent of one CPU. With them a runtime in a period of 100 ms is whole
/// microseconds.
const PERCENT: Range = Range {
    least: 100,
    least_text: "0.1%",
    most: 100_000_000,
    most_text: "100000%",
    step: "0.001%",
};

impl FromStr for Quota {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        if let Some((runtime, period)) = text.split_once('/') {
            let period_us = us("the period", period, 1_000, 1_000_000, ["1ms", "1s"])?;
            let bound = (1_000, 1_000_000_000_000);
            let runtime_us = us("the time", runtime, bound.0, bound.1, ["1ms", "1000000s"])?;
            return Ok(Self {
                runtime_us,
                period_us,
            });
        }
        let written = Written::split(text, Quantity::Share).map_err(SpanError::Number)?;
        if written.unit != "%" {
            return Err(SpanError::Number(written.unknown_unit(written.unit)));
        }
        let milli = written.whole(1_000, 1, PERCENT);
        let milli = milli.map_err(SpanError::Number)?;
        // A period of 100 ms, the kernel's own choice, unless the time in it is below its least.
        Ok(if milli >= 1_000 {
            Self {
                runtime_us: milli,
                period_us: 100_000,
            }
        } else {
            Self {
                runtime_us: milli * 10,
                period_us: 1_000_000,
            }
        })
    }
}

/// Whole microseconds within bounds.
fn us(
    what: &'static str,
    text: &str,
    least: u64,
    most: u64,
    [least_text, most_text]: [&'static str; 2],
) -> Result<u64, SpanError> {
    let time = parse_duration(text).map_err(SpanError::Number)?;
    if time.subsec_nanos() % 1_000 != 0 {
        return Err(SpanError::TooFine);
    }
    let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    if (least..=most).contains(&us) {
        return Ok(us);
    }
    Err(SpanError::Range {
        what,
        least: least_text,
        most: most_text,
    })
}

impl FromStr for Reserve {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        const EXAMPLE: &str = "1.9ms/10ms";
        let Some((runtime, period)) = text.split_once('/') else {
            return Err(SpanError::NoPeriod { example: EXAMPLE });
        };
        let ns = |text: &str| {
            let time: Duration = parse_duration(text).map_err(SpanError::Number)?;
            Ok(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        };
        let (runtime_ns, period_ns) = (ns(runtime)?, ns(period)?);
        if !(100_000..=4_000_000_000).contains(&period_ns) {
            return Err(SpanError::Range {
                what: "the period",
                least: "100us",
                most: "4s",
            });
        }
        if runtime_ns < 1_024 {
            return Err(SpanError::Range {
                what: "the time",
                least: "1024ns",
                most: "the period",
            });
        }
        if runtime_ns > period_ns {
            return Err(SpanError::OverOne { example: EXAMPLE });
        }
        Ok(Self {
            runtime_ns,
            period_ns,
        })
    }
}

impl Reserve {
    /// Its part of one CPU, 0 to 1.
    #[must_use]
    pub fn share(self) -> f64 {
        self.runtime_ns as f64 / self.period_ns as f64
    }
}

impl CpuTerms {
    /// Whether nothing is to change.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.weight.is_keep() && self.quota.is_keep() && self.reserve.is_keep()
    }

    fn part(&mut self, text: &str) -> Result<(), CpuTermsError> {
        let unknown = || CpuTermsError::Unknown { text: text.into() };
        let (name, value) = text.split_once('=').ok_or_else(unknown)?;
        let value = value.trim();
        let (name, is_new) = match name.trim() {
            "weight" => {
                let parsed = value.parse().ok().filter(|n| (1..=10_000).contains(n));
                let wrong = || CpuTermsError::Weight { text: value.into() };
                let new = Change::To(parsed.ok_or_else(wrong)?);
                (
                    "weight",
                    core::mem::replace(&mut self.weight, new).is_keep(),
                )
            }
            "quota" => {
                let wrong = |reason| CpuTermsError::Quota {
                    text: value.into(),
                    reason,
                };
                let new = match value {
                    "unlimited" => Change::Clear,
                    value => Change::To(value.parse().map_err(wrong)?),
                };
                ("quota", core::mem::replace(&mut self.quota, new).is_keep())
            }
            "reserve" => {
                let wrong = |reason| CpuTermsError::Reserve {
                    text: value.into(),
                    reason,
                };
                let new = match value {
                    "none" => Change::Clear,
                    value => Change::To(value.parse().map_err(wrong)?),
                };
                let old = core::mem::replace(&mut self.reserve, new);
                ("reserve", old.is_keep())
            }
            _ => return Err(unknown()),
        };
        if is_new {
            Ok(())
        } else {
            Err(CpuTermsError::Twice { name })
        }
    }
}

impl FromStr for CpuTerms {
    type Err = CpuTermsError;

    fn from_str(text: &str) -> Result<Self, CpuTermsError> {
        if text.trim().is_empty() {
            return Err(CpuTermsError::Empty);
        }
        let mut terms = Self::default();
        for part in text.split(',') {
            terms.part(part.trim())?;
        }
        Ok(terms)
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As a percentage where that is read back to the same two numbers.
        let milli = match self.period_us {
            100_000 => Some(self.runtime_us),
            1_000_000 if self.runtime_us < 10_000 && self.runtime_us.is_multiple_of(10) => {
                Some(self.runtime_us / 10)
            }
            _ => None,
        };
        f.pad(&match milli {
            Some(milli) if milli <= PERCENT.most => print::exact(milli, 3) + "%",
            _ => format!(
                "{}/{}",
                exact(self.runtime_us.saturating_mul(1_000)),
                exact(self.period_us.saturating_mul(1_000))
            ),
        })
    }
}

impl fmt::Display for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!(
            "{}/{}",
            exact(self.runtime_ns),
            exact(self.period_ns)
        ))
    }
}

impl fmt::Display for CpuTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        match self.weight {
            Change::Keep => {}
            Change::Clear => parts.push("weight=100".to_owned()),
            Change::To(weight) => parts.push(format!("weight={weight}")),
        }
        match self.quota {
            Change::Keep => {}
            Change::Clear => parts.push("quota=unlimited".to_owned()),
            Change::To(quota) => parts.push(format!("quota={quota}")),
        }
        match self.reserve {
            Change::Keep => {}
            Change::Clear => parts.push("reserve=none".to_owned()),
            Change::To(reserve) => parts.push(format!("reserve={reserve}")),
        }
        f.pad(&parts.join(","))
    }
}
