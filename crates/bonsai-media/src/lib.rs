//! Media as it is delivered, without sockets and clocks: times and bytes are arguments.
//!
//! - [`adapt`]: which quality of which segment is fetched next, and what the viewer sees of it.
//! - [`meter`]: what a viewer gets of a stream, packet by packet.
//! - [`rtsp`], [`description`]: how a stream is asked for, and what there is in it.
//! - [`clip`]: what there is in a file, and where; [`timeline`]: what of it is sent when.
//! - [`packets`]: pictures and sound as payloads of packets.
//! - [`search`]: how many viewers there can be.
//! - [`rtp`], [`rtcp`]: packets of media, and the reports of those who send and receive them.
//! - [`load`]: what a server does that falls behind, or is not allotted what its streams need.
//! - [`seen`]: what viewers see, for whoever decides what a server gets.
#![forbid(unsafe_code)]

pub mod access;
pub mod adapt;
pub mod clip;
pub mod description;
pub mod hls;
pub mod load;
pub mod meter;
pub mod packets;
pub mod rtcp;
pub mod rtp;
pub mod rtsp;
pub mod search;
pub mod seen;
pub mod timeline;
