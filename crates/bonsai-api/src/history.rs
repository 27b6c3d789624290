//! The past.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::resource::Resource;

/// What is known of one service, or of all together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Series {
    /// The service; `null` for all together.
    pub service: Option<String>,
    /// The resource.
    pub resource: Resource,
    /// Time between two points, ms.
    pub step_ms: u64,
    /// The points, the oldest first. Where nothing is known there is none.
    pub points: Vec<Point>,
    /// Blocks of that time that cannot be read, and are gaps.
    #[serde(default, skip_serializing_if = "crate::change::is_zero")]
    pub damaged: u64,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Point {
    /// Its beginning, ms since 1970.
    pub unix_ms: u64,
    /// The mean of what was got, units/s.
    pub got: f64,
    /// The least.
    pub got_min: f64,
    /// The most.
    pub got_max: f64,
    /// The mean of what was asked for, units/s.
    pub asked: f64,
    /// The share of the time at its end, units/s; `null` where there was none.
    pub limit: Option<f64>,
    /// The guarantee at its end, units/s.
    pub guarantee: f64,
    /// Waits imposed, seconds per second, over all threads.
    pub waited: f64,
}

/// A service that something is known of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Known {
    /// The service.
    pub service: String,
    /// From when, ms since 1970.
    pub from_unix_ms: u64,
    /// Until when, ms since 1970.
    pub to_unix_ms: u64,
}
