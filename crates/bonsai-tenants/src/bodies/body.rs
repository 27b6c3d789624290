//! What is known of a service, and what it may have.

use bonsai_units::{CpuTerms, Resource};

/// What is known of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// Whether it is there.
    pub there: bool,
    /// Why it is not, or what of it cannot be read, in words.
    pub why: Option<String>,
    /// The user of its leading process; 0 if it has none.
    pub uid: u32,
    /// Its leading process: the one of a machine, the first one of a container or group.
    pub pid: Option<u32>,
    /// When it began, ns since 1970. Another number is another one of that name, such as a container
    /// that was started again.
    pub born_ns: u64,
    /// When it was looked at, ns of the clock that does not jump (`CLOCK_MONOTONIC`).
    pub at_ns: u64,
    /// Bytes of each of [`Body::RESOURCES`], never less than before for one `born_ns`; `None` where
    /// nothing counts them. What is sent and received is counted by the classes of its limits, at
    /// layer 2 (with no more than a part of an uplink: what leaves there), and where it has none by its
    /// interface, as `ip -s link` shows it; reads and writes are those of the machine's disks.
    pub totals: [Option<u64>; 4],
    /// Whether something waited for its limit since the last look, of each.
    pub waits: [bool; 4],
    /// Whether it is an interface that was named itself and is the host's end of a guest, so that what
    /// the service sends is what that interface receives.
    pub turned: bool,
    /// Why what is wanted of disks is not in force, or was not, in words.
    pub disk_why: Option<String>,
    /// Why what is wanted of CPUs is not in force, or was not, in words.
    pub cpu_why: Option<String>,
}

impl Body {
    /// What the places of [`Body::totals`] and [`Body::waits`] are.
    pub const RESOURCES: [Resource; 4] = [
        Resource::Send,
        Resource::Recv,
        Resource::Read,
        Resource::Write,
    ];
}

/// What a service may have of disk and CPU. What is `None` is as it was before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Bytes read of each disk of the machine, per s; at least 4,096.
    pub read: Option<u64>,
    /// Bytes written to each, per s; at least 4,096.
    pub write: Option<u64>,
    /// Its part of the CPUs.
    pub cpu: Option<CpuTerms>,
}
