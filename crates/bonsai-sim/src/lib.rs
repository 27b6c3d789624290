//! Trace-driven simulation of block caches.
//!
//! | function | does |
//! |---|---|
//! | [`load`](fn@load) | reads a trace into memory: 8 bytes a request of one block, and 14 to 23 a block |
//! | [`load_together`] | several traces as one, by their times |
//! | [`run_all`] | every combination of scheme, policy and size, on several threads |
//! | [`curves`] | hit ratios of LRU for every size, one pass for each scheme; or from a sample, with errors |
//! | [`published`] | what the thesis on DRIVE has, to be set beside it |
//!
//! What is simulated, and how exactly, is in [`bonsai_dedup`].

mod curves;
mod load;
pub mod published;
mod runs;
mod work;

pub use bonsai_dedup::cache::{MAX_CAPACITY, Policy};
pub use bonsai_dedup::scheme::{BadScheme, Latency, Outcome, Scheme};
pub use bonsai_dedup::stream::Stream;
pub use curves::{Line, NotACurve, Point, Sample, check_curve, curves, sampled, sizes};
pub use load::{Failed, FailedTogether, Loaded, load, load_together};
pub use runs::{Plan, Row, run_all, write_csv};

/// Bytes of a block.
pub const BLOCK: u64 = bonsai_trace::BLOCK;
