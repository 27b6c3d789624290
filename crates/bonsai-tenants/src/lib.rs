//! Interfaces as their users name them: whose each is, and what it is limited to.
//!
//! [`bonsai_link`] makes a namespace as it is wanted. Here is who wants what: names of interfaces,
//! namespaces, containers and machines become interfaces ([`find`]), and what was asked for is kept
//! in a [`Book`] from which what is in force can be made again, by whoever comes next. Whoever
//! changes something holds the book's lock meanwhile; nobody else is needed, and a daemon that
//! runs reads the same book.
#![forbid(unsafe_code)]

mod ask;
mod book;
mod change;
mod error;
mod find;
mod list;

pub use ask::{Ask, Change};
pub use book::{Book, Entry, Room};
pub use change::{Cleared, Healed, Set, clear, heal, set};
pub use error::Error;
pub use find::{Found, Whose, find};
pub use list::{LinkView, Links, ShareView, look};
