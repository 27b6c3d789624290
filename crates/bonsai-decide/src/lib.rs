//! The decision on a call that is under limits.
//!
//! The same rules hold for a call that the library makes in its program's thread, for one that the extension looks at, and for one
//! that the supervisor makes in a thread's place: which part of the call is made next ([`Parts`]), whether it may be made in parts at
//! all ([`division`]), what is paid before it and what after it ([`charge`]). They stand here, without a clock, memory access or
//! system call; the executors ask the kernel what [`OpenFile`] wants to know, take the tickets, wait, and make the calls.
//!
//! ```text
//!  call, sizes ──> Parts::plan ──> part ──> [executor: tickets, wait] ──> call ──> Parts::made ──> part, or the result
//!                     │                                                               │
//!                     └── division(call, extras, open file)                           └── charge::settle
//! ```
//!
//! # Invariants
//! 1. The parts of a call are disjoint, in order, and together the whole call; a short part is the last one.
//! 2. A call that others can see as one is one part: messages, appended, synchronous, direct and atomic writes; writes to files up to
//!    [`RECORD`].
//! 3. The result is the number of bytes (or messages) of all parts, or the error of the first one.
//! 4. What is paid beforehand and not moved is refunded; what moved beyond it is owed.
#![no_std]
#![forbid(unsafe_code)]

pub mod charge;
mod division;
mod parts;

pub use division::{
    Division, Extras, FileKind, OpenFile, SocketType, division, is_stream, may_be_shortened,
    read_division,
};
pub use parts::{PAGE, Parts, RECORD, part_length, quantum_length};
