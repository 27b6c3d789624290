//! The authority over programs that are not trusted: it lives outside of their memory.
//!
//! ```text
//!   guard (bonsai run)          sees to it that nobody outlives the supervisor
//!     └─ supervisor             the ledger, the listener, the decision
//!          └─ program           under the filter, in a domain, without new privileges
//!               └─ all that it starts, adopted by the supervisor
//! ```
//! A call that the filter asks about waits in the kernel until the supervisor answers.
//! What it may move is read from its registers, which cannot change any more, and paid
//! for before it goes on; what it did move is taken from counters that the kernel keeps.
//! A call whose amount stands in memory is made by the supervisor, from a copy.
//!
//! # Invariants
//! 1. Nothing that a program of the service writes is believed twice: a value is copied,
//!    and what was copied is what happens.
//! 2. Without the supervisor every call that was asked about fails (`ENOSYS`): nothing
//!    goes unshaped, and nothing hangs.
//! 3. The supervisor keeps a bounded amount per living thread of the service.

mod amount;
mod confine;
mod domain;
mod drawn;
mod filter;
mod interruption;
mod least;
mod listener;
mod look;
mod memory;
mod names;
mod pending;
mod perform;
mod price;
mod rights;
mod serve;
mod shift;
mod state;
mod threads;
mod upkeep;

pub use confine::{ConfineError, User, become_program, inherited, user};
pub use domain::{Reach, confinable, reach};
pub use filter::{Refused, asked_about};
pub use least::do_the_least;
pub use listener::probe;
pub use price::{let_all_go, price};
pub use serve::Enforcer;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// The listener that a program under [`become_program`] sends; `None` if it has ended
/// before. [`listening`] lets it go on.
///
/// # Errors
/// What the system says.
pub fn listener_of(socket: &UnixStream) -> std::io::Result<Option<OwnedFd>> {
    confine::receive(socket)
}

/// Lets the program begin.
///
/// # Errors
/// It has ended.
pub fn listening(mut socket: &UnixStream) -> std::io::Result<()> {
    std::io::Write::write_all(&mut socket, b"g")
}
