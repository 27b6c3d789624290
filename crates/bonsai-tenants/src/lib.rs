//! Interfaces as their users name them: whose each is, and what it is limited to.
//!
//! [`bonsai_link`] makes a namespace as it is wanted. Here is who wants what: names of interfaces,
//! namespaces, containers and machines become interfaces ([`find`]), units and control groups are
//! limited at their uplink, and what was asked for is kept
//! in a [`Book`] from which what is in force can be made again, by whoever comes next. Whoever
//! changes something holds the book's lock meanwhile; nobody else is needed, and a daemon that
//! runs reads the same book. It makes what is configured ([`wishes`]) so by rounds of a [`Keeper`].
//!
//! Containers, machines, namespaces, units and control groups can be services, too: [`bodies`].
#![forbid(unsafe_code)]

mod ask;
pub mod bodies;
mod book;
mod change;
mod draft;
mod error;
mod fights;
mod find;
mod keep;
mod list;
mod standing;
mod target;
mod tree;
mod tune;
mod watch;
mod wish;

pub use ask::{Ask, Change};
pub use bodies::{Bodies, Body, Place};
pub use book::{Book, Entry, GroupEntry, Room};
pub use change::{Cleared, Healed, Set, clear, heal, set};
pub use error::Error;
pub use find::{Found, Whose, find};
pub use keep::{Granted, Keeper, Round};
pub use list::{Before, look, look_since};
pub use standing::{Standing, standing};
pub use target::Target;
pub use tune::Tuned;
pub use watch::Watched;
pub use wish::{Wish, check_sums, wishes};
