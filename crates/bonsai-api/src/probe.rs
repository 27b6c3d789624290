//! Capacities that are measured on demand.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::amount::Span;
use crate::resource::Resource;

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ProbeRequest {
    /// Of which resource.
    pub resource: Resource,
    /// For `read` and `write`: a folder on the device, by its whole path. Without it, that of the
    /// daemon's own state.
    #[schema(value_type = Option<String>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// For `send` and `recv`: the interface. Without it, the one of the default route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// For how long, from `1s` to `20s`; `3s` without it. It takes up to half of that more to make
    /// ready.
    #[serde(rename = "for", default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "span", example = "3s")]
    pub lasts: Option<Span>,
}

/// What was measured. Nothing is changed by it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Probed {
    /// Of which resource.
    pub resource: Resource,
    /// When, ms since 1970.
    pub unix_ms: u64,
    /// The median of all slices, units/s: what was moved for the measurement and by others.
    pub median: f64,
    /// A tenth of the slices is below this, units/s.
    pub low: f64,
    /// A tenth of the slices is above this, units/s.
    pub high: f64,
    /// What others moved of it meanwhile, units/s; `null` where that cannot be known.
    pub others: Option<f64>,
    /// Each slice, units/s; none of a link's own speed.
    pub slices: Vec<f64>,
    /// Bytes that were moved for it, the making ready included.
    pub moved: u64,
    /// What was measured, and how, in words.
    pub of: String,
    /// Why it may be doubted, in words.
    pub doubts: Vec<String>,
    /// The capacity to configure, as it is written.
    #[schema(example = "412MB/s")]
    pub capacity: String,
    /// The reason to give with that change, for the audit trail.
    pub reason: String,
}
