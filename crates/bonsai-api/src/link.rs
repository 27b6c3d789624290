//! Interfaces: what they do, and what they are limited to.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::change::{Changed, Revision};
use crate::config::Link;

/// What has become of what is wanted of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LinkState {
    /// Nothing is wanted of it.
    #[default]
    Free,
    /// The kernel does it.
    InForce,
    /// It is not there; it will be limited as soon as it is.
    Waiting,
    /// It cannot be done.
    Problem,
}

/// By whom an interface is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LinkBy {
    /// By what is configured.
    Configuration,
    /// By `bonsai link set` while no daemon ran.
    Hand,
}

/// What an interface has of an uplink. Rates are bytes per second at layer 2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LinkShare {
    /// The uplink's name.
    pub uplink: String,
    /// What it has there whenever it wants it.
    pub guarantee: Option<u64>,
    /// The most it has there.
    pub ceiling: Option<u64>,
    /// How what is left is shared out.
    pub weight: u16,
}

/// An interface, or a target that waits for one. Rates are bytes per second, and `tx` is what the
/// interface itself sends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LinkView {
    /// What it is changed by; `null` if it cannot be by the daemon.
    pub target: Option<String>,
    /// Whether that target is the other end of this interface: then `tx` of its settings is what
    /// this one receives.
    pub swapped: bool,
    /// Its namespace, if that is not the machine's.
    pub namespace: Option<String>,
    /// Its name; that of the target where there is no interface.
    pub name: String,
    /// Its number in its namespace; 0 where there is no interface.
    pub index: u32,
    /// What kind of virtual interface it is; `null` for a device, and `group` for a unit or a control
    /// group, whose `tx` is what its class of the uplink has sent.
    pub kind: Option<String>,
    /// Whether it is up.
    pub up: bool,
    /// Whose it is: who is at its other end, in words.
    pub whose: Option<String>,
    /// What it sends now, as the interface counts it.
    pub tx: f64,
    /// What it receives now, as the interface counts it.
    pub rx: f64,
    /// The most it sends.
    pub tx_limit: Option<u64>,
    /// The most it receives.
    pub rx_limit: Option<u64>,
    /// What it has of an uplink.
    pub share: Option<LinkShare>,
    /// For how long limits may be exceeded, ns, if that was said.
    pub burst_ns: Option<u64>,
    /// Bytes that wait for its limits now.
    pub backlog: u64,
    /// Packets that its limits have dropped since they were made, because too many waited.
    pub drops: u64,
    /// A queueing discipline at its root that somebody else made.
    pub foreign: Option<String>,
    /// What has become of what is wanted.
    pub state: LinkState,
    /// By whom it is limited, if it is.
    pub by: Option<LinkBy>,
    /// What is configured for it.
    pub settings: Option<Link>,
    /// What is not as it was asked for, or what it waits for, in words.
    pub problem: Option<String>,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Links {
    /// The state of what is configured; 0 where no daemon was asked.
    pub revision: Revision,
    /// For how long was counted, s.
    pub seconds: f64,
    /// The machine's first, then by namespace; by number. Targets that wait come last.
    pub links: Vec<LinkView>,
    /// Which namespaces are not seen, and why, in words: of their interfaces only those that limits are recorded of are
    /// shown.
    #[serde(default)]
    pub problems: Vec<String>,
}

/// What a change of an interface does, or would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LinkChanged {
    /// What is configured now.
    #[serde(flatten)]
    pub changed: Changed,
    /// What was changed.
    pub target: String,
    /// Whether the kernel does what is configured now: after a limit was taken away, whether it is
    /// gone.
    pub in_force: bool,
    /// What has become of it.
    pub state: LinkState,
    /// Why it is not in force, in words.
    pub why: Option<String>,
}
