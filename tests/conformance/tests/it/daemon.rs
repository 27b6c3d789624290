//! The daemon: real services below it, asked by the command line and by raw requests.

mod fixture;
mod interface;
mod lives;
mod shares;
mod top;
