//! The block server with a client of its own, and with clients that nobody here wrote.

mod below;
mod client;
mod clients;
mod control;
mod dirty;
mod exercise;
mod faults;
mod house;
mod kept;
mod memory;
mod model;
mod mounted;
mod outside;
mod own_client;
mod pipelined;
mod protocol;
mod record;
