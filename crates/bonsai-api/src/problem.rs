//! Errors, as RFC 9457 has them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An error: `application/problem+json` (RFC 9457).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[error("{detail}")]
pub struct Problem {
    /// What kind it is, for programs: a word such as `urn:bonsai:unknown-service`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The same in words.
    pub title: String,
    /// The status of the answer.
    #[schema(minimum = 400, maximum = 599)]
    pub status: u16,
    /// What is wrong, where, and what would be right.
    pub detail: String,
}
