//! The block server with a client of its own, and with clients that nobody here wrote.

mod client;
mod clients;
mod faults;
mod house;
mod memory;
mod model;
mod protocol;
