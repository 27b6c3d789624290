//! The interface enforcer: what an interface may send and receive, by the kernel's own queues.
//!
//! What cannot be shaped inside a program (virtual machines, containers, tenants that nobody
//! trusts, floods of datagrams) is shaped where it passes: by HTB at the root of an interface for
//! what it sends, and at a block for what it receives. An uplink is shared out among interfaces, and
//! among groups of processes of the machine itself ([`groups`]). [`Wanted`] says what is wanted, [`Site`] sees what is there, and makes it so: all of it or nothing, and by changing what
//! is there, so that nobody is interrupted. What was put into force stays, whatever becomes of the
//! process that did it.
//!
//! - `objects`: what there has to be for what is wanted; `diff`: the steps there. Both are pure.
//! - `netlink`, `tc`, `bpf`: the kernel's languages. [`rules`]: bursts, turns and queues.
//! - [`Plan`]: by what means packets find their class; [`Gate`]: groups that have just come.
#![allow(unsafe_code)]

mod abilities;
mod bpf;
mod diff;
mod error;
mod events;
#[cfg(fuzzing)]
pub mod fuzz;
mod gate;
pub mod groups;
mod hooks;
mod links;
pub mod namespace;
mod netlink;
mod objects;
mod pacing;
mod passage;
mod plan;
pub mod rules;
mod saved;
mod site;
mod tc;
mod wanted;
mod ways;

pub use abilities::{Ability, abilities};
pub use error::Error;
pub use events::{Events, Heard};
pub use gate::Gate;
pub use groups::{Above, Group};
pub use links::{Link, Traffic, named};
pub use netlink::Refused;
pub use pacing::{Paced, Turn};
pub use passage::{Compared, Limit, Passage};
pub use plan::{NO_SHARES, Plan};
pub use saved::Saved;
pub use site::{Done, Seen, Site};
pub use tc::Handle;
pub use tc::htb::Class as HtbClass;
pub use tc::seen::{Class, Counters, Qdisc};
pub use wanted::{Share, Terms, Wanted, rate_text};
pub use ways::ways_out;
