//! What was seen in a period.

use crate::config::{Name, PerResource};

/// What a service did with one resource. Rates are thousandths of a unit per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// What it used, on average over the period.
    pub used: u64,
    /// Whether it wanted more: calls waited for a limit of the policy's making, or data was
    /// left behind.
    pub wanted_more: bool,
    /// What of that was borrowed, if it is known.
    pub borrowed: Option<u64>,
    /// The rate of a limit that is none of the policy's: more than that it cannot use, however
    /// much it wants.
    pub bound: Option<u64>,
}

/// A service that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Which.
    pub name: Name,
    /// What it did.
    pub usage: PerResource<Usage>,
}

/// What clients of a service say. What a source cannot say is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientReport {
    /// Of which service.
    pub service: Name,
    /// Part of packets lost, 0 to 1.
    pub loss: Option<f64>,
    /// Delay, milliseconds.
    pub delay_ms: Option<f64>,
    /// Jitter, milliseconds.
    pub jitter_ms: Option<f64>,
    /// How often playing stopped for want of data.
    pub stalls: Option<u64>,
}

/// What was seen in a period. Whoever observes keeps one and fills it anew.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// The monotonic clock at the period's end, nanoseconds. A step back counts as no time.
    pub now_ns: u64,
    /// The wall clock, seconds since 1970 UTC; for the time of day, and for how old what was
    /// learned is after a restart.
    pub wall_s: u64,
    /// The services that run, each once, in any order.
    pub services: Vec<Seen>,
    /// What clients said since the last period.
    pub reports: Vec<ClientReport>,
}
