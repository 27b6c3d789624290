//! The token bucket as a service curve.
//!
//! # Definitions
//! - *unit*: a byte or a call; the bucket does not care which.
//! - *issued*: units ever asked for. A call takes its place in line by adding
//!   its units; the sum is its **ticket**.
//! - *curve*: `V(t) = anchor_units + rate * (t - anchor_time)`, the units that
//!   have become available by `t`, and `burst`, the units that may be ahead of it.
//! - A ticket `p` is **due** at the first `t` with `p <= V(t) + burst`.
//! - *lease*: units taken with a ticket beyond what its call needs, kept by the
//!   thread so that its next calls need neither the clock nor the shared line.
//!
//! ```text
//!  units                         V(t) + burst   _.-'
//!    |                                     _.-'   .-- V(t)
//!    |   ticket p ..................... _x'   _.-'
//!    |                              _.-' :_.-'
//!    |                          _.-'  _.-'
//!    |__________________________'__.-'____:________ t
//!                                        due(p)
//! ```
//!
//! # Invariants
//! 1. Let through over any window `w`: at most `rate * w + burst + leases`,
//!    where [`Split`] keeps `burst + leases` within the burst that was asked for, and less
//!    than one unit: positions are whole, and what an idle bucket has gained of the next
//!    unit is not taken from it. It counts where units are calls and few.
//! 2. Tickets are served in the order in which they were taken.
//! 3. An idle bucket fills to `burst` and no further: `issued` is raised to
//!    `V(t)` before a ticket is taken ([`Curve::floor`]).
//! 4. A change of rate or burst never leaves the bucket fuller than it was
//!    ([`Curve::retune`]).
//! 5. No drift: `V` is computed from the anchor with its remainder, never
//!    accumulated.
//!
//! # Limits
//! Groups are in `group.rs`. Positions wrap at 2^64 units and are compared by their difference, so a
//! ticket may be at most 2^63 units ahead of the curve: 2.9 years at 100 GB/s.
//! Times are nanoseconds of one monotonic clock.
#![no_std]
#![forbid(unsafe_code)]

mod bucket;
mod curve;
mod group;
mod lease;

pub use bucket::{Bucket, Group, Ticket};
pub use curve::{Curve, FRACTIONS_PER_UNIT, Split};
pub use group::{
    GUARANTEE_BURST_NS, MEMORY_NS, Member, Pool, ROUND_NS, Seat, Terms, Weights, Word, grain,
};
pub use lease::{Pace, QUANTUM_NS, Turn};
