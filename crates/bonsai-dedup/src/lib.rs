//! Caches of blocks that know what is in them: replacement policies, the schemes that use
//! equal contents (IODEDUP, DRIVE), and exact hit-ratio curves.
//!
//! | type | is |
//! |---|---|
//! | [`DriveMap`](drive::DriveMap) | which block a read should go to: the state machine of simulator and server |
//!
//! Nothing here reads a clock, a file or a random source.
#![forbid(unsafe_code)]

pub mod drive;
