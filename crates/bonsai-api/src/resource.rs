//! The resources, as they are written.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What services share of a machine. `read` and `write` are bytes from and to files, pipes and
/// devices, `send` and `recv` bytes on sockets, `calls` system calls.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// Bytes read.
    Read,
    /// Bytes written.
    Write,
    /// Bytes sent.
    Send,
    /// Bytes received.
    Recv,
    /// Calls made.
    Calls,
}

impl From<bonsai_units::Resource> for Resource {
    fn from(resource: bonsai_units::Resource) -> Self {
        match resource {
            bonsai_units::Resource::Read => Self::Read,
            bonsai_units::Resource::Write => Self::Write,
            bonsai_units::Resource::Send => Self::Send,
            bonsai_units::Resource::Recv => Self::Recv,
            bonsai_units::Resource::Calls => Self::Calls,
        }
    }
}

impl From<Resource> for bonsai_units::Resource {
    fn from(resource: Resource) -> Self {
        match resource {
            Resource::Read => Self::Read,
            Resource::Write => Self::Write,
            Resource::Send => Self::Send,
            Resource::Recv => Self::Recv,
            Resource::Calls => Self::Calls,
        }
    }
}
