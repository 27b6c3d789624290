//! What clients see, and whether more of them fit.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::amount::Share;
use crate::config::Qos;
use crate::resource::Resource;

/// What the clients of a service have seen since the last report. Whatever is not known is left
/// out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct QosReport {
    /// The service.
    pub service: String,
    /// Who reports, in a word: `rtcp`, `player`, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The part of packets that was lost, 0 to 1.
    #[schema(minimum = 0, maximum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Delay, ms.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<f64>,
    /// Jitter (RFC 3550), ms.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter_ms: Option<f64>,
    /// Stalls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stalls: Option<u32>,
}

/// What the clients of a service see, and what that does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QosView {
    /// The service.
    pub service: String,
    /// What they are to see.
    pub target: Qos,
    /// What they see: the last report.
    pub last: Option<QosReport>,
    /// When that came, ms since 1970.
    pub last_unix_ms: Option<u64>,
    /// Whether the target holds; `null` without reports.
    pub holds: Option<bool>,
    /// What is done about it, in words.
    pub action: String,
}

/// Whether more streams fit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AdmitRequest {
    /// The service that would serve them.
    pub service: String,
    /// Of what they need; `send` where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<Resource>,
    /// How many.
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub streams: u32,
    /// The rate of each.
    #[schema(value_type = String, format = "rate", example = "2Mbit/s")]
    pub rate: Share,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Admission {
    /// Yes or no.
    pub admitted: bool,
    /// How likely it is that all who have a guarantee get what they need, 0 to 1.
    pub probability: f64,
    /// What is free of guarantees, units/s.
    pub free: f64,
    /// What they need, units/s.
    pub needed: f64,
    /// Why, in words.
    pub reason: String,
    /// What would have to give, if it is no.
    pub give: Vec<Give>,
}

/// What could give.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Give {
    /// Whose guarantee.
    pub service: String,
    /// How much of it, units/s.
    pub amount: f64,
    /// Why that one, in words.
    pub reason: String,
}
