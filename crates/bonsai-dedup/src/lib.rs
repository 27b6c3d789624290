//! Caches of blocks that know what is in them: replacement policies, the schemes that use
//! equal contents (IODEDUP, DRIVE), and exact hit-ratio curves.
//!
//! | module | what is in it |
//! |---|---|
//! | [`drive`] | which block a read should go to: the DRIVE map, one state machine for simulator and server |
//! | [`cache`] | LRU, ARC, CLOCK, S3-FIFO and SIEVE over dense numbers |
//! | [`scheme`] | plain caching, IODEDUP, DRIVE and the ideal over a trace; latencies |
//! | [`distance`], [`curve`], [`sample`] | reuse distances, and from them the hits of LRU at every size, exact or from a sample |
//! | [`intern`], [`stream`] | dense numbers for blocks, and a trace made of them |
//!
//! Nothing here reads a clock, a file or a random source.
#![forbid(unsafe_code)]

pub mod cache;
pub mod curve;
pub mod distance;
pub mod drive;
pub mod intern;
pub mod sample;
pub mod scheme;
pub mod stream;
