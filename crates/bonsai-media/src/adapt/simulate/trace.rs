//! A network over time, as Sabre describes one.

use serde::{Deserialize, Serialize};

use super::super::Error;

/// A time in which a network is the same.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Period {
    /// How long it lasts, milliseconds.
    pub duration_ms: f64,
    /// What it carries, kbit/s.
    pub bandwidth_kbps: f64,
    /// From a request to the first byte, milliseconds.
    pub latency_ms: f64,
}

/// A network over time: at least one period, and one that carries something. Read and written as the lists
/// of Sabre.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Period>", into = "Vec<Period>")]
pub struct Trace(Vec<Period>);

impl Trace {
    /// One of these.
    ///
    /// # Errors
    /// If there are none, a number cannot be, or nothing is ever carried.
    pub fn new(periods: Vec<Period>) -> Result<Self, Error> {
        if periods.is_empty() {
            return Err(Error::NoPeriods);
        }
        for (at, period) in periods.iter().enumerate() {
            let checks = [
                ("duration_ms", period.duration_ms, 0.001, 1e12),
                ("bandwidth_kbps", period.bandwidth_kbps, 0.0, 1e9),
                ("latency_ms", period.latency_ms, 0.0, 1e9),
            ];
            for (what, value, least, most) in checks {
                if !(least..=most).contains(&value) {
                    return Err(Error::Period {
                        period: at,
                        what,
                        value,
                        least,
                        most,
                    });
                }
            }
        }
        if periods.iter().all(|period| period.bandwidth_kbps <= 0.0) {
            return Err(Error::NoBandwidth);
        }
        Ok(Self(periods))
    }

    /// Its periods.
    #[must_use]
    pub fn periods(&self) -> &[Period] {
        &self.0
    }
}

impl TryFrom<Vec<Period>> for Trace {
    type Error = Error;

    fn try_from(periods: Vec<Period>) -> Result<Self, Error> {
        Self::new(periods)
    }
}

impl From<Trace> for Vec<Period> {
    fn from(trace: Trace) -> Self {
        trace.0
    }
}
