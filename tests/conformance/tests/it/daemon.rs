//! The daemon: real services below it, asked by the command line and by raw requests.

mod capacity;
mod fixture;
mod interface;
mod lives;
mod shares;
mod top;
