//! The daemon: it observes all services of a machine, decides who gets how much, puts that into
//! force, keeps a history, and answers those who ask.
//!
//! ```text
//!   ledgers ──> look ──> Observation ──> bonsai-policy ──> Allocation ──> enforce ──> ledgers
//!                                             ^                │
//!   bonsai.toml ──> desired ──> plan ─────────┘                v
//!        ^             ^                                    Picture ──> http: REST, events, page
//!     a person      changes asked for                          └──────> history
//! ```
//!
//! # Invariants
//! 1. One thread owns all that changes (`ring`); everybody else reads pictures it publishes.
//! 2. The daemon is never on the data path: if it dies, the last limits stay in force, nothing
//!    blocks, and the next one takes over what it finds.
//! 3. No request can end it or keep it from its periods: queues, bodies, connections and time are
//!    bounded.
#![forbid(unsafe_code)]

mod admit;
mod desired;
mod drives;
mod enforce;
pub mod exposition;
mod files;
mod http;
mod idle;
mod keeping;
mod links;
mod look;
mod past;
mod patch;
mod picture;
mod placed;
mod places;
mod plain;
mod plan;
mod present;
mod probe;
mod problems;
mod ring;
mod run;
mod state_file;
mod users;
mod watched_files;
mod who;
mod written;
mod zone;

pub use files::{SYSTEM_SOCKET, config_path, parse_config, read_config, socket_path};
pub use http::openapi;
pub use idle::idle;
pub use plain::reason as check_reason;
pub use plan::plan;
pub use present::check_start;
pub use run::{Options, places_of_users, run};
pub use users::{Owner, owner};

#[doc(hidden)]
pub mod fuzz;

/// Several problems as one text.
fn texts(problems: &[bonsai_policy::Problem]) -> String {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    texts.join("; ")
}
