//! Rings (io_uring) and queues (libaio): calls that programs describe in memory instead of
//! making them.
//!
//! ```text
//!  io_uring_enter ──> results so far: corrections, debts      (done)
//!                 ──> new entries, in parts: what each asks for (walk)
//!                       tickets, waits                         (toll)
//!                       the program's call for that part
//!                 ──> results that are there now               (done)
//! ```
//! *What is known beforehand is paid beforehand*: all that goes out, and reads of files. A
//! result that is smaller gives the rest back. *What comes in from sockets and pipes is
//! paid when its result is seen*, as a debt that the next thing waits for: nothing is held
//! for a connection that is idle.
//!
//! # Invariants
//! 1. A second mapping of a ring is never kept beyond the last descriptor of it that is
//!    known (`Segment::watch_closing`): its end is what cancels what it still does.
//! 2. Each charge is given back once at most, and only if its result is known to be its:
//!    where two entries under way have the same `user_data` and ask for different things,
//!    both stay charged as asked for.
//! 3. Nothing here waits for another thread.
//!
//! # Limits
//! [`known::RINGS`] rings of a process at a time. A ring that came through a socket, or
//! over an exec, is not known, and what enters it is counted as unshaped; so is a ring
//! that a kernel thread polls, made before there was a limit. What comes in is reaped
//! without a call by programs that poll the completion ring: their debts are paid when
//! they enter next. Results that were overwritten before they were seen correct nothing.

pub(crate) mod done;
mod enter;
mod known;
mod places;
pub(crate) mod records;
mod register;
mod setup;
pub(crate) mod toll;
pub(crate) mod walk;

pub(crate) use enter::{enter, last_look};
pub(crate) use known::closed;
pub(crate) use register::registered;
pub(crate) use setup::{EPERM, asked, made};

/// `IORING_SETUP_*`.
mod flag {
    pub(super) const POLL_RESULTS: u32 = 1;
    pub(super) const POLL: u32 = 1 << 1;
    pub(super) const POLL_ON: u32 = 1 << 2;
    /// `COOP_TASKRUN`, `TASKRUN_FLAG`, `DEFER_TASKRUN`.
    pub(super) const NOT_POLLED: u32 = 1 << 8 | 1 << 9 | 1 << 13;
    pub(super) const WIDE_ENTRIES: u32 = 1 << 10;
    pub(super) const WIDE_RESULTS: u32 = 1 << 11;
    pub(super) const OWN_MEMORY: u32 = 1 << 14;
    pub(super) const NO_DESCRIPTOR: u32 = 1 << 15;
    pub(super) const NO_ARRAY: u32 = 1 << 16;
    pub(super) const MIXED_RESULTS: u32 = 1 << 18;
    pub(super) const MIXED_ENTRIES: u32 = 1 << 19;
    pub(super) const REWIND: u32 = 1 << 20;
    /// What is known of; a ring with others is not looked into.
    pub(super) const KNOWN: u32 = (1 << 21) - 1;
}
