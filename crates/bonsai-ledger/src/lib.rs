//! The ledger: one shared-memory segment per service, mapped by each of its
//! processes and by whoever watches or controls them.
//!
//! # What is in it
//! ```text
//! header     who, which version; the epoch; what went unshaped
//! configs    two copies of the limits: the epoch's lowest bit says which holds
//! lines      one hot cache line per bucket: units issued, units leased
//! labels     the names of the limits, and what they are for
//! sites      where the system call instructions of libc and others are, by build-id
//! owners     which thread has which block of counters
//! processes  who attached, and how much of each could be covered; where a library is expected
//! delays     histograms of the waits imposed, by call, in two shards
//! threads    one page per thread, populated when claimed: what it waits for, and
//!            its counters
//! streams    the buckets of streams, where a limit is per stream
//! ```
//!
//! # Invariants
//! 1. Nobody ever waits for anybody: there is no lock in the segment. Readers of
//!    the configuration retry if it changed twice meanwhile; writers are
//!    serialised by a file lock that the kernel drops when its holder dies.
//! 2. A process killed at any instruction leaves every other process working.
//!    What it can cost: one lease of its own.
//! 3. A configuration comes into force by one store, to `epoch`; a writer killed
//!    before it has changed nothing.
//! 4. A page of counters has one writer. Its counters grow, but for corrections of what
//!    rings have done; whoever takes over the page of a dead process continues them.
//! 5. What a thread waits for is noted in its page, and not believed of a thread that
//!    is dead or should have looked up from its wait long ago.
//! 6. The layout is frozen per [`VERSION`]: sizes and offsets are asserted.
//!
//! # Limits
//! 64 limits, 2048 threads with counters of their own, 256 processes named at a
//! time. Beyond that, calls are still shaped, and counted in a shared page, and who
//! of them waits is not known.
#![cfg_attr(not(any(test, feature = "std", loom, miri)), no_std)]
// This is the layer that defines what processes share: single-writer counters
// and the mapping itself need it. Every block states its reason.
#![allow(unsafe_code)]

#[cfg(any(feature = "std", loom, miri))]
mod change;
mod config;
#[cfg(all(feature = "std", not(loom)))]
mod control;
mod entering;
mod group;
mod identity;
mod layout;
#[cfg(all(feature = "std", not(loom)))]
mod mapping;
#[cfg(any(loom, miri))]
#[doc(hidden)]
pub mod model;
#[cfg(all(feature = "std", not(loom)))]
mod namespaces;
mod noted;
#[cfg(any(feature = "std", loom, miri))]
mod reclaim;
#[cfg(all(feature = "std", not(loom)))]
mod report;
mod scope;
#[cfg(not(loom))]
mod sites;
mod sleepers;
mod streams;
pub mod sync;
mod take;
mod threads;
#[cfg(all(feature = "std", not(any(loom, miri))))]
mod watch;

pub use config::{Config, CurveWords};
#[cfg(all(feature = "std", not(loom)))]
pub use control::{Draws, Editor, EventLoops, Limit, Stream, Used, Wanted};
pub use entering::{AskedFor, Futex};
pub use group::*;
pub use identity::{Owner, ProcessId, short_namespace};
pub use layout::*;
#[cfg(all(feature = "std", not(loom)))]
pub use mapping::{Ledger, LedgerError};
#[cfg(all(feature = "std", not(loom)))]
pub use namespaces::{
    Numbers, identity_of, number_of, own_namespace, own_process, read_proc, shows, thread_numbers,
};
pub use noted::LOOK_AGAIN_NS;
#[cfg(any(feature = "std", loom, miri))]
pub use noted::{Noted, Waiting};
#[cfg(all(feature = "std", not(loom)))]
pub use report::{CallTotals, ProcessReport};
pub use scope::{End, Kind, Peer, Scope, mapped};
pub use sleepers::{Asleep, Before, Sleepers};
pub use streams::PROBES;
pub use take::{KEPT, MAX_TICKETS, Tickets};
#[cfg(all(feature = "std", not(any(loom, miri))))]
pub use watch::{Lines, Watch, Watched};
