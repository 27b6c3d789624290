//! What is handed in.

use std::sync::Arc;

use bonsai_units::Resource;

/// What a service did with a resource in one second.
///
/// Rates are in thousandths of a unit (byte or call) per second, as
/// [`Rate::milli`](bonsai_units::Rate::milli). What was asked and got is kept in whole units per
/// second, rounded; limit and guarantee are kept exactly; waited time in microseconds, rounded up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// What was asked for, milli units per second.
    pub asked: u64,
    /// What was let through, milli units per second.
    pub got: u64,
    /// The limit in force at the end of the second, milli units per second; none is unlimited.
    pub limit: Option<u64>,
    /// The guarantee in force, milli units per second; 0 is none.
    pub guarantee: u64,
    /// How long threads waited in that second, ns; more than 10^9 where several did.
    pub waited_ns: u64,
    /// How many waits began.
    pub waits: u64,
}

/// A [`Sample`] and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// The service's name, at most 255 bytes.
    pub service: Arc<str>,
    /// The resource.
    pub resource: Resource,
    /// What happened.
    pub sample: Sample,
}

/// Everything that was observed in one second.
///
/// A tick without points says that nothing happened, no tick that nobody looked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tick {
    /// Seconds since 1970, by the wall clock: the second that has just ended.
    pub second: u64,
    /// Of each service that exists and each resource that it uses, one. A service that is
    /// idle may be left out (then it was not there) or have points of zeros (then it idled).
    pub points: Vec<Point>,
}
