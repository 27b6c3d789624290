//! A block server: disk images to guests, over NBD, through the page cache of the host.
//!
//! # Map
//! - [`protocol`]: the protocol, without sockets;
//! - [`client`]: the other side of it;
//! - [`image`]: a file or block device, its lock, and what the page cache has of it;
//! - [`control`]: what a server tells of itself;
//! - [`export`]: an image under a name, what was done with it, and what it may use;
//! - [`record`]: what exports are asked for, as a trace;
//! - [`server`]: listening, a thread for each connection, and workers for what would wait;
//! - [`sharing`]: reads that go to another block with the same content;
//! - [`throttle`]: limits of an export.
//!
//! # Invariants
//! 1. What was flushed, or written with FUA, is on the disk before the reply begins.
//! 2. A reply has the cookie of its request, and comes once.
//! 3. An export whose disk does not answer holds up no other export: workers are each export's own, and no connection
//!    waits for memory that another one holds.
//! 4. An error from below goes to whoever asked, and is remembered nowhere.
// An edge: system calls that no library has (cachestat). Every block states its reason.
#![allow(unsafe_code)]

pub mod client;
pub mod control;
pub mod export;
mod files;
pub mod image;
pub mod protocol;
pub mod record;
pub mod server;
pub mod sharing;
pub mod throttle;
