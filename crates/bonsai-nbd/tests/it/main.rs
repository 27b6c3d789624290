//! The block server with a client of its own, and with clients that nobody here wrote.

mod below;
mod client;
mod clients;
mod exercise;
mod faults;
mod house;
mod model;
mod mounted;
mod outside;
mod protocol;
