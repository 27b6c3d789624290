//! The crate as its users see it, on files and sockets.

mod capture;
mod film;
mod programs;
mod serve;
mod support;
