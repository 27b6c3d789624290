//! What a service on disk is: its folder, its limits, the group that it is in, and one
//! look at it. The command line and the daemon stand on it.
//!
//! # Map
//! - [`service`]: where services live, and which of them do;
//! - [`initial`]: the limits of a service that no daemon has looked at yet;
//! - [`limits`]: what a limit may say, and putting limits into force;
//! - [`group`]: services that share a rate;
//! - [`allotted`]: what one may move that reads what it sends;
//! - [`confinement`]: security modules that keep the library out, and their rules;
//! - [`theirs`]: services of other users, who are not trusted;
//! - [`glance`]: what many services have done so far, cheaply;
//! - [`observe`]: one look at a service as a value, which `--json` prints and all views
//!   draw;
//! - [`refusal`]: errors that have an exit code of their own.
//!
//! # Invariants
//! 1. Looking at a service never changes it.
//! 2. Whatever cannot be done is refused in one sentence, with nothing changed.

#![forbid(unsafe_code)]

pub mod allotted;
pub mod confinement;
pub mod glance;
pub mod group;
pub mod initial;
pub mod input;
pub mod limits;
pub mod observe;
pub mod refusal;
pub mod service;
mod text;
pub mod theirs;
pub mod wording;

pub use service::LEDGER_VARIABLE;
pub use text::harmless;
