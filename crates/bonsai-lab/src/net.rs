//! Traffic between network namespaces: what makes it, what measures it, and what shapes it.
//!
//! | module | what is in it |
//! |---|---|
//! | `packet`, `meter`, `series` | what a datagram says; loss, duplicates, order, delay; bytes over time. No sockets, no clock |
//! | `udp`, `tcp`, `traffic` | senders and receivers; both ends of a stream as one value |
//! | `netlink`, `rooms` | namespaces of a run, the links between them, the kernel's counters |
//! | `shaper`, `ours`, `tc` | whatever holds rates: Bonsai's own, and as the peer, HTB by `tc` |
//! | `iperf` | a second opinion |
//! | `commands` | sender and receiver as programs |
//!
//! # What is counted
//! Rates of a link are of layer 2 as a classful queue sees it: an Ethernet header and all above it,
//! for each packet of the wire (`packet::udp_frame`, `packet::tcp_frames`), no preamble, no checksum.
//! Delays are from the call that sends to the kernel's time stamp of the arrival (`SO_TIMESTAMPNS`).

pub(crate) mod commands;
pub(crate) mod iperf;
pub(crate) mod meter;
pub(crate) mod netlink;
pub(crate) mod ours;
pub(crate) mod packet;
pub(crate) mod rooms;
pub(crate) mod series;
pub(crate) mod shaper;
pub(crate) mod tc;
pub(crate) mod tcp;
pub(crate) mod traffic;
pub(crate) mod udp;
