//! Puts the decision into programs that the preload library cannot enter.
//!
//! A static program has no loader that could bring a library, so the engine (the
//! interposer without its first door and without libc) is mapped into it from
//! outside, at the one moment when nothing of it has run: the stop at the end of its
//! `execve`. Then it runs on with the engine's start-up first, and is left alone:
//! ```text
//!   process about to exec            keeper of the service        this (`bonsai enter`)
//!     asks in the ledger  ──bell──>  starts it, if none waits ──>  takes the question
//!     allows it, if Yama wants that  <──────────────────────────  seizes the process
//!     execve ──────────────────────────── stop ────────────────>  maps the engine's file,
//!     engine: finds sites, patches   <─────────────────────────── detaches, waits for the next
//!     program
//! ```
//! Starting this program takes ten times as long as entering another, so the first one stays (`stay`).
//!
//! # Invariants
//! 1. Nobody waits for ever: a process that asks goes on without cover after five
//!    seconds, or soon if nobody is there to answer; and is named as not covered.
//! 2. If this dies, the kernel lets its tracee go on, as it stands: the engine is
//!    entered by the last change made, so that it is there completely or not at all.
//! 3. Nothing is traced after the program has begun.
// A hook between fork and exec, filters, and what their price is measured with.
#![allow(unsafe_code)]

mod around;
mod asking;
mod attach;
pub mod enforce;
mod engine;
mod enter;
mod patience;
mod text;
mod tracee;
mod trap;

pub use around::{Denied, Way, is_allowed, note_filter};
pub use asking::{
    Helpers, answer, ask_before_exec, expect_before_exec, expect_nothing, keep, ring, stay, wake,
};
pub use attach::{AttachError, Attached, attach, check, detach, is_attached, may_trace};
pub use engine::{Engine, EngineError};
pub use enter::{EnterError, enter};
pub use trap::{TrapPrice, trap_price};
